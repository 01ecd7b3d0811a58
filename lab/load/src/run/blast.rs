//! The running open-loop stream.

use std::io;
use std::time::Duration;

use super::nanoseconds;
use crate::neighbour::{self, counters};
use crate::pacer::{Pacer, Step};
use crate::report::{BlastCounts, BlastReport, InterfaceCounters, per_second};
use crate::sender::{self, Sender};
use crate::spec::{BlastSpec, RateStep, SenderKind};

/// The running blast.
pub(super) struct Blast {
    kind: SenderKind,
    interface: String,
    rate: Option<u64>,
    packets: Option<u64>,
    burst: u32,
    /// The other parameters of the burst size, if bursts follow the rate rather than a
    /// given size.
    follows: Option<(BlastSpec, bool)>,
    /// Remaining changes of the rate, the next one last.
    steps: Vec<RateStep>,
    /// End of the stream, ns.
    end: u64,
    /// Packets offered and skipped at earlier rates.
    earlier: (u64, u64),
    pacer: Pacer,
    sender: Box<dyn Sender>,
    sent: u64,
    ring_full: u64,
    counters: Option<InterfaceCounters>,
    /// Counts when measuring began.
    pub(super) mark: BlastCounts,
    /// Counts at the last progress.
    reported: BlastCounts,
}

impl Blast {
    pub(super) fn open(spec: &BlastSpec, answered: bool) -> io::Result<Self> {
        let path = neighbour::find(spec)?;
        let burst = spec
            .burst
            .map_or_else(|| sender::burst_of(spec, spec.rate, answered), u32::from);
        let sender = sender::open(spec, &path)?;
        let mut steps = spec.steps.clone();
        steps.reverse();
        Ok(Blast {
            kind: spec.kind,
            rate: spec.rate,
            packets: spec.packets,
            burst,
            follows: spec.burst.is_none().then(|| (spec.clone(), answered)),
            steps,
            end: 0,
            earlier: (0, 0),
            pacer: Pacer::new(spec.rate, burst, 0, 0, spec.packets),
            sender,
            sent: 0,
            ring_full: 0,
            counters: counters(&path.link.name),
            interface: path.link.name,
            mark: BlastCounts::default(),
            reported: BlastCounts::default(),
        })
    }

    pub(super) fn schedule(&mut self, end: u64) {
        self.end = end;
        self.pacer = Pacer::new(self.rate, self.burst, 0, end, self.packets);
    }

    /// Returns true while it has a rate to keep.
    pub(super) fn is_paced(&self) -> bool {
        self.rate.is_some()
    }

    /// Changes to the next rate once its time has come, skipping a rate whose whole time
    /// passed while this thread did not run.
    fn change_rate(&mut self, now: u64) {
        let is_due = |step: &mut RateStep| nanoseconds(step.after) <= now;
        while let Some(next) = self.steps.pop_if(is_due) {
            self.go_over(next);
        }
    }

    fn go_over(&mut self, next: RateStep) {
        let after = nanoseconds(next.after);
        self.pacer.give_up_until(after);
        self.earlier.0 += self.pacer.offered();
        self.earlier.1 += self.pacer.skipped();
        if let Some((spec, answered)) = &self.follows {
            self.burst = sender::burst_of(spec, Some(next.rate), *answered);
        }
        self.pacer = Pacer::new(Some(next.rate), self.burst, after, self.end, None);
    }

    pub(super) fn step(&mut self, now: u64) -> io::Result<Step> {
        self.change_rate(now);
        let step = match (self.pacer.step(now), self.steps.last()) {
            // A slow stream must not sleep past its next rate.
            (Step::Wait(until), Some(next)) => Step::Wait(until.min(nanoseconds(next.after))),
            (step, _) => step,
        };
        if let Step::Send(count) = step {
            let sent = self.sender.send(count)?;
            self.sent += sent.sent;
            self.ring_full += sent.ring_full;
        }
        Ok(step)
    }

    pub(super) fn counts(&self) -> BlastCounts {
        BlastCounts {
            offered: self.earlier.0 + self.pacer.offered(),
            sent: self.sent,
            ring_full: self.ring_full,
            skipped: self.earlier.1 + self.pacer.skipped(),
        }
    }

    pub(super) fn since_progress(&mut self) -> BlastCounts {
        let counts = self.counts();
        counts - std::mem::replace(&mut self.reported, counts)
    }

    pub(super) fn report(self, measured: bool, duration: Duration) -> BlastReport {
        let whole = self.counts();
        let measured = if measured {
            whole - self.mark
        } else {
            BlastCounts::default()
        };
        let counters = match (self.counters, counters(&self.interface)) {
            (Some(before), Some(after)) => Some(InterfaceCounters {
                packets: after.packets.saturating_sub(before.packets),
                dropped: after.dropped.saturating_sub(before.dropped),
            }),
            _ => None,
        };
        BlastReport {
            kind: self.kind,
            interface: self.interface,
            burst: self.burst,
            measured,
            whole,
            duration,
            rate: per_second(measured.sent, duration),
            counters,
        }
    }
}
