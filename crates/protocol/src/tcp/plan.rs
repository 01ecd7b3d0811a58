//! Which segment may be sent next (RFC 9293 §3.7.4, §3.8.6.2.1; RFC 5681; RFC 6675).

use super::State;
use super::connection::{Connection, Pending};
use super::tail_probe::TailProbe;
use super::timers::Timer;
use tidewall_wire::tcp::{Options, SackBlocks, before};

/// A segment, or a burst of them, that may be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// SYN or SYN-ACK.
    Synchronize,
    /// Lost bytes from a sequence number on; with a length of zero, the FIN.
    Retransmit { sequence: u32, length: u32 },
    /// New bytes.
    New { length: u32 },
    /// New bytes in one segment larger than the others: a probe of the path's MTU.
    PathProbe { length: u32 },
    /// The FIN alone.
    Fin,
    /// Nothing can be sent: the next frame is now longer than a segment.
    TooLong,
}

impl Connection {
    /// The next segment, if one may be sent now. Acknowledgments, probes and resets are
    /// pending flags, not planned.
    #[inline]
    pub(super) fn plan(&self) -> Option<Plan> {
        match self.state {
            State::SynSent | State::SynReceived => self.plan_synchronizing(),
            State::Closed | State::TimeWait | State::FinWait2 => None,
            _ if self.recovery.is_quiet() => self.plan_new(),
            _ => self.plan_retransmission(),
        }
    }

    /// The next segment before the handshake is complete.
    #[cold]
    fn plan_synchronizing(&self) -> Option<Plan> {
        if self.pending.has(Pending::SYNCHRONIZE) {
            return Some(Plan::Synchronize);
        }
        // Before the handshake is complete nothing is retransmitted: all is new data.
        let sends = self.is_fast_opening() && self.recovery.is_quiet();
        if sends {
            self.plan_retransmission()
        } else {
            None
        }
    }

    /// Lost data is sent before new data.
    #[cold]
    fn plan_retransmission(&self) -> Option<Plan> {
        if self.recovery.probe == TailProbe::Due
            && let Some(probe) = self.plan_probe()
        {
            return Some(probe);
        }
        if self.recovery.frto_new_data {
            let plan = self.plan_new();
            if plan.is_some() || self.send.nxt != self.recovery.high_seq {
                return plan;
            }
        }
        let mss = self.payload_max();
        let Some((sequence, end)) = self.recovery.board.next_to_retransmit(mss) else {
            return self.plan_new();
        };
        let una = self.send.una;
        // The window may have shrunk. The first segment is always tried, since its
        // acknowledgment brings the window (as Linux).
        if sequence != una && !before(sequence, una.wrapping_add(self.send.wnd)) {
            return None;
        }
        let length = end.wrapping_sub(sequence);
        let pipe = self.pipe();
        if pipe > 0 && pipe.saturating_add(length) > self.congestion.window() {
            return None;
        }
        Some(self.retransmission(sequence, end))
    }

    /// Retransmits data up to `end`, which may be the sequence number after the FIN.
    pub(super) fn retransmission(&self, sequence: u32, end: u32) -> Plan {
        let end = if before(self.send.write_seq, end) {
            self.send.write_seq
        } else {
            end
        };
        if self.is_framed() && end != sequence {
            return self.retransmission_of_frames(sequence, end);
        }
        let end = self.send.push_marks.cut(sequence, end);
        Plan::Retransmit {
            sequence,
            length: end.wrapping_sub(sequence),
        }
    }

    #[inline]
    fn plan_new(&self) -> Option<Plan> {
        let unsent = self.unsent();
        if unsent == 0 {
            let fin = self.send.closed && !self.fin_sent();
            return fin.then_some(Plan::Fin);
        }
        let window_end = self.send.window_end();
        let nxt = self.send.nxt;
        if !before(nxt, window_end) || self.timers.is_running(Timer::Pace) {
            return None;
        }
        // Up to the end of a record; more data may wait behind it.
        let record = if self.send.push_marks.is_plain() {
            self.send.write_seq
        } else if self.is_framed() {
            return self.plan_frames();
        } else {
            self.send.push_marks.cut(nxt, self.send.write_seq)
        };
        let (unsent, ends) = (record.wrapping_sub(nxt), record != self.send.write_seq);
        let usable = window_end.wrapping_sub(nxt);
        let pipe = self.pipe();
        let allowed = self.congestion.window().saturating_sub(pipe);
        let mss = self.payload_max();
        let length = unsent.min(usable).min(allowed);
        if length >= mss {
            let burst = self.burst(mss);
            if length > burst {
                return Some(Plan::New { length: burst });
            }
            let rest = length % mss;
            let tail = rest != 0 && length == unsent && (ends || self.may_send_small());
            return Some(Plan::New {
                length: if tail { length } else { length - rest },
            });
        }
        if length == 0 {
            return None;
        }
        let sends = if length == unsent {
            ends || self.may_send_small()
        } else if usable < mss {
            // Sender's silly-window avoidance (RFC 9293 §3.8.6.2.1).
            length >= self.send.max_window / 2
        } else {
            // Less than a segment of the congestion window is left.
            pipe == 0
        };
        (sends || self.pending.has(Pending::OVERRIDE)).then_some(Plan::New { length })
    }

    /// Whether a segment that is not full may leave (Nagle, as Minshall modified
    /// it: one such segment in flight at a time).
    #[inline(always)]
    pub(super) fn may_send_small(&self) -> bool {
        if self.send.closed || self.pending.has(Pending::OVERRIDE) {
            return true;
        }
        !(self.cork || self.more)
            && (self.config.nodelay || self.send.una == self.send.nxt || !self.small_in_flight())
    }

    /// True if a segment that was not full is not acknowledged. Checked only for data in
    /// flight: after two gigabytes of full segments `snd_sml` compares as ahead.
    #[inline]
    fn small_in_flight(&self) -> bool {
        let ahead = self.send.snd_sml.wrapping_sub(self.send.una);
        ahead != 0 && ahead <= self.send.outstanding()
    }

    /// Payload of a full segment now; SACK blocks reduce it, except for frames.
    #[inline]
    pub(super) fn payload_max(&self) -> u32 {
        let mss = u32::from(self.send.mss);
        if !self.receive.assembler.has_sack_blocks() || !self.sack || self.is_framed() {
            return mss;
        }
        self.payload_with_sack(mss)
    }

    #[cold]
    fn payload_with_sack(&self, mss: u32) -> u32 {
        let with = self.options(0);
        let without = Options {
            sack: SackBlocks::default(),
            ..with
        };
        mss.saturating_sub((with.len() - without.len()) as u32)
            .max(1)
    }

    /// Unsent bytes that the windows allow to leave now.
    pub(super) fn may_leave(&self) -> u32 {
        if self.timers.is_running(Timer::Pace) {
            return 0;
        }
        let in_flight = self.send.outstanding();
        let usable = self.send.wnd.saturating_sub(in_flight);
        let allowed = self.congestion.window().saturating_sub(self.pipe());
        usable.min(allowed)
    }

    /// True when data waits, nothing is in flight to bring an acknowledgment,
    /// and no timer runs: a persist timer must be started.
    #[inline]
    pub(super) fn needs_persist(&self) -> bool {
        self.send.una == self.send.nxt
            && self.unsent() > 0
            && self.state.may_send_data()
            && !self.timers.is_running(Timer::Retransmit)
            && !self.timers.is_running(Timer::Pace)
    }
}
