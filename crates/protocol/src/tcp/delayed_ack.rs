//! Decides which acknowledgments are delayed (RFC 9293 §3.8.6.3, RFC 5681 §4.2), with
//! Linux's quickack and pingpong modes.

use super::connection::{Connection, Pending, QUICK_ACKS};
use super::timers::Timer;
use tidewall_wire::tcp::before;

/// The most duplicate acknowledgments that one call of output sends to a peer without
/// SACK. Three begin its fast retransmission; each further one allows it to send a
/// segment.
const DUPLICATES_MAX: u8 = 16;

impl Connection {
    /// Answers an unacceptable segment that occupies sequence numbers; those received
    /// before are reported (RFC 2883, as Linux `tcp_send_dupack`).
    pub(super) fn acknowledge_duplicate(&mut self, sequence: u32, end: u32) {
        self.pending.add(Pending::ACKNOWLEDGE);
        let expected = self.next_expected();
        if before(sequence, expected) {
            let end = if before(expected, end) { expected } else { end };
            self.receive.assembler.note_duplicate(sequence, end);
            self.enter_quickack(QUICK_ACKS);
        }
    }

    /// Disables the delay for the next acknowledgments, half a window of them and `most`
    /// at most: the peer waits for them.
    pub(super) fn enter_quickack(&mut self, most: u8) {
        let segments = self.receive.buffer_limit / (2 * u32::from(self.receive.mss));
        let count = segments.clamp(2, most.into()) as u8;
        self.receive.quick_acks = self.receive.quick_acks.max(count);
        self.receive.pingpong = false;
    }

    pub(super) fn acknowledge_out_of_order(&mut self) {
        self.pending.add(Pending::ACKNOWLEDGE);
        if !self.sack {
            self.receive.duplicate_acks = (self.receive.duplicate_acks + 1).min(DUPLICATES_MAX);
        }
    }

    /// Suspends delayed acknowledgments for a while, or resumes them (`TCP_QUICKACK`; not
    /// permanent).
    pub fn set_quick_ack(&mut self, on: bool) {
        self.receive.pingpong = !on;
        if on {
            self.receive.quick_acks = QUICK_ACKS;
            if self.timers.is_running(Timer::Acknowledge) {
                self.pending.add(Pending::ACKNOWLEDGE);
            }
        }
    }

    /// True when acknowledgments are not delayed now.
    pub fn quick_ack(&self) -> bool {
        !self.receive.pingpong && self.receive.quick_acks > 0
    }
}
