//! What is remembered of a segment with data or a FIN once it has left.

use core::time::Duration;

use super::connection::Connection;
use super::recovery::Wait;
use super::tail_probe::TailProbe;
use super::{Time, microseconds, timestamp};
use tidewall_wire::tcp::before;

impl Connection {
    /// New bytes up to `end`, `length` of them data, have left.
    #[inline]
    pub(super) fn sent_new(&mut self, length: u32, end: u32, now: Time) {
        let micros = microseconds(now);
        let first = self.send.next;
        self.goes_on(now);
        // A segment that was not full ends a run, so that what was sent apart is
        // counted, and sent again, apart.
        let separate = self.send.small == first || length == 0;
        if !length.is_multiple_of(self.send.mss.into()) {
            self.send.small = end;
        }
        if self.send.first == first {
            self.recovery.rack.begin(first, micros);
        }
        self.recovery.board.sent(end, micros, separate);
        self.send.next = end;
        if self.notices.is_some() {
            self.tell_sent(end, now);
        }
        let flight = self.pipe();
        let limited = flight.saturating_add(self.send.mss.into()) > self.congestion.window();
        if limited {
            self.send.limited_at = micros;
        }
        if limited
            || flight > self.send.flight && !self.send.limited
            || !before(self.send.first, self.send.flight_end)
        {
            self.send.limited = limited;
            self.send.flight = flight;
            self.send.flight_end = end;
        }
        if self.config.paces() {
            self.pace(length, now);
        }
        if !self.recovery.is_quiet() {
            self.sent_in_recovery(end.wrapping_sub(first), now);
        }
    }

    /// Nothing was in flight for longer than a retransmission timeout: the window
    /// is what it would be at the beginning, or nearly (RFC 2861 §3).
    #[cold]
    pub(super) fn restart_after_idle(&mut self, idle: Duration, now: Time) {
        let initial = self.initial_window();
        let timeout = self.retransmission_timeout();
        self.congestion.on_idle(idle, timeout, initial);
        self.send.drained = microseconds(now);
        self.send.limited_at = microseconds(now);
    }

    /// The window was not used up for a retransmission timeout: what was never
    /// used is no longer known to be there (RFC 2861 §3).
    #[cold]
    pub(super) fn validate_window(&mut self, now: Time) {
        self.send.limited_at = microseconds(now);
        let initial = self.initial_window();
        let used = self.send.flight;
        self.congestion.on_application_limited(used, initial);
    }

    /// New bytes have left while something is doubtful.
    #[cold]
    fn sent_in_recovery(&mut self, bytes: u32, now: Time) {
        if self.recovery.is_reducing() {
            let sent = &mut self.recovery.reduction.sent;
            *sent = sent.saturating_add(bytes);
        }
        if self.recovery.probe == TailProbe::Due {
            self.probe_sent(false, now);
        }
    }

    /// Bytes were sent again: what was lost, or the tail-loss probe.
    #[cold]
    pub(super) fn sent_again(&mut self, start: u32, end: u32, now: Time) {
        let micros = microseconds(now);
        let end = if before(self.send.next, end) {
            // The FIN goes with it for the first time.
            self.sent_new(0, end, now);
            end.wrapping_sub(1)
        } else {
            end
        };
        self.counters.retransmissions = self.counters.retransmissions.wrapping_add(1);
        if self.recovery.probe == TailProbe::Due {
            self.recovery.board.probed(start, end, micros);
            self.probe_sent(true, now);
            return;
        }
        if self.recovery.new_first {
            // Nothing new could be sent: F-RTO cannot decide.
            self.recovery.new_first = false;
            self.recovery.forward = false;
        }
        if self.recovery.path_probe.is_some() {
            self.path_probe_void();
        }
        self.recovery.board.resent(start, end, micros);
        let stamp = timestamp(now, self.timestamp_offset);
        self.recovery.undo.sent_again(stamp);
        if self.recovery.is_reducing() {
            let sent = &mut self.recovery.reduction.sent;
            *sent = sent.saturating_add(end.wrapping_sub(start));
        }
        if start == self.send.first && self.recovery.wait != Wait::Reordering {
            // As what is left of it says to an acknowledgment that comes late.
            self.recovery.wait = Wait::Retransmission;
            if self.send.retries == 0 {
                self.restart_timer(now);
            }
        }
    }
}
