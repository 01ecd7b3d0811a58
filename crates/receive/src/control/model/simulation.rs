//! One processor, event by event: a check of the model's formulas.

use std::collections::VecDeque;

use super::{Load, Machine, Room};
use crate::control::Setting;

/// Results of a simulated run: frames, lost frames and interrupts per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) goodput: f64,
    pub(super) idle: f64,
    pub(super) buffer_lost: f64,
    pub(super) ring_lost: f64,
    pub(super) interrupts: f64,
}

struct Processor {
    now: f64,
    // Arrivals.
    period: f64,
    burst: u64,
    arrived: u64,
    ring: u64,
    ring_size: u64,
    ring_lost: u64,
    // Receive buffer.
    buffer: VecDeque<()>,
    buffer_size: usize,
    buffer_lost: u64,
}

impl Processor {
    /// Time of the next burst.
    fn next_arrival(&self) -> f64 {
        (self.arrived / self.burst) as f64 * self.period
    }

    /// Advances time; frames arrive meanwhile.
    fn pass(&mut self, time: f64) {
        self.now += time;
        while self.next_arrival() <= self.now {
            self.arrived += self.burst;
            let room = self.ring_size - self.ring;
            let kept = self.burst.min(room);
            self.ring += kept;
            self.ring_lost += self.burst - kept;
        }
    }

    /// A round of at most `budget` frames.
    fn round(&mut self, budget: u32, protocol: f64) {
        for _ in 0..budget {
            if self.ring == 0 {
                break;
            }
            self.ring -= 1;
            self.pass(protocol);
            if self.buffer.len() < self.buffer_size {
                self.buffer.push_back(());
            } else {
                self.buffer_lost += 1;
            }
        }
    }
}

/// Runs `seconds` of load against a softirq with its ksoftirqd; the first half
/// is not counted.
pub(super) fn run(
    machine: &Machine,
    load: Load,
    setting: Setting,
    room: Room,
    seconds: f64,
) -> Outcome {
    let [
        protocol,
        application,
        to_application,
        to_poller,
        interrupt,
        quantum,
    ] = [
        machine.protocol,
        machine.application,
        machine.switch_application,
        machine.switch_poller,
        machine.interrupt,
        machine.application_quantum,
    ]
    .map(|time| time.as_secs_f64());
    let interval = setting.interrupt_interval.as_secs_f64();
    let mut cpu = Processor {
        now: 0.0,
        period: f64::from(load.burst) / load.rate,
        burst: load.burst.into(),
        arrived: 0,
        ring: 0,
        ring_size: room.ring.into(),
        ring_lost: 0,
        buffer: VecDeque::new(),
        buffer_size: room.buffer as usize,
        buffer_lost: 0,
    };
    cpu.pass(0.0);
    let mut masked = false;
    let mut last_round = f64::NEG_INFINITY;
    // Remaining work on the frame that the application is processing.
    let mut unfinished = 0.0;
    let mut used = 0.0;
    let (mut processed, mut idle, mut interrupts) = (0_u64, 0.0, 0_u64);
    let mut half = None;
    while cpu.now < seconds {
        if half.is_none() && cpu.now >= seconds / 2.0 {
            half = Some((
                cpu.now,
                processed,
                idle,
                cpu.buffer_lost,
                cpu.ring_lost,
                interrupts,
            ));
        }
        let may_interrupt = if masked || (cpu.ring == 0 && cpu.next_arrival().is_infinite()) {
            f64::INFINITY
        } else if cpu.ring > 0 {
            last_round + interval
        } else {
            cpu.next_arrival().max(last_round + interval)
        };
        let works = unfinished > 0.0 || !cpu.buffer.is_empty();
        if may_interrupt <= cpu.now {
            interrupts += 1;
            cpu.pass(interrupt);
            cpu.round(setting.budget, protocol);
            masked = cpu.ring > 0;
            last_round = cpu.now;
            used = 0.0;
            cpu.pass(to_application);
        } else if works && (!masked || used < quantum) {
            if unfinished <= 0.0 {
                cpu.buffer.pop_front();
                unfinished = application;
            }
            let mut slice = unfinished.min(may_interrupt - cpu.now);
            if masked {
                slice = slice.min((quantum - used).max(1e-12));
            }
            used += slice;
            cpu.pass(slice);
            unfinished -= slice;
            if unfinished <= 1e-12 {
                unfinished = 0.0;
                processed += 1;
            }
        } else if masked {
            cpu.pass(to_poller);
            cpu.round(setting.budget, protocol);
            masked = cpu.ring > 0;
            last_round = cpu.now;
            used = 0.0;
            cpu.pass(to_application);
        } else {
            let wait = (may_interrupt - cpu.now).min(seconds - cpu.now).max(1e-12);
            idle += wait;
            cpu.pass(wait);
        }
    }
    let (since, done, idled, buffer_lost, ring_lost, interrupted) = half.unwrap_or_default();
    let time = cpu.now - since;
    Outcome {
        goodput: (processed - done) as f64 / time,
        idle: (idle - idled) / time,
        buffer_lost: (cpu.buffer_lost - buffer_lost) as f64 / time,
        ring_lost: (cpu.ring_lost - ring_lost) as f64 / time,
        interrupts: (interrupts - interrupted) as f64 / time,
    }
}
