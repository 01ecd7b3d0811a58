//! Bookkeeping for a segment with data or a FIN once it has left.

use core::time::Duration;

use super::connection::{Connection, count};
use super::recovery::RtxTimer;
use super::tail_probe::TailProbe;
use super::{Time, microseconds, timestamp};
use tidewall_wire::tcp::before;

impl Connection {
    /// Records that new bytes up to `end`, `length` of them data, have left.
    #[inline]
    pub(super) fn note_sent(&mut self, length: u32, end: u32, now: Time) {
        let micros = microseconds(now);
        let first = self.send.nxt;
        self.start_busy(now);
        // A segment that was not full ends a run, so that data sent separately is
        // counted, and retransmitted, separately.
        let separate = self.send.snd_sml == first || length == 0;
        if !length.is_multiple_of(self.send.mss.into()) {
            self.send.snd_sml = end;
        }
        if self.send.una == first {
            self.recovery.rack.restart(first, micros);
        }
        self.recovery.board.sent(end, micros, separate);
        self.send.nxt = end;
        self.send.offered = end;
        if self.error_queue.is_some() {
            self.timestamp_sent(end, now);
        }
        let flight = self.pipe();
        let limited = flight.saturating_add(self.send.mss.into()) > self.congestion.window();
        if limited {
            self.send.cwnd_stamp = micros;
        }
        if limited
            || flight > self.send.max_in_flight && !self.send.is_cwnd_limited
            || !before(self.send.una, self.send.cwnd_usage_seq)
        {
            self.send.is_cwnd_limited = limited;
            self.send.max_in_flight = flight;
            self.send.cwnd_usage_seq = end;
        }
        if self.config.paces() {
            self.pace(length, now);
        }
        if !self.recovery.is_quiet() {
            self.sent_in_recovery(end.wrapping_sub(first), now);
        }
    }

    /// Restarts after nothing was in flight for longer than a retransmission timeout. The
    /// window returns to its initial size, or nearly (RFC 2861 §3).
    #[cold]
    pub(super) fn restart_after_idle(&mut self, idle: Duration, now: Time) {
        let initial = self.initial_window();
        let timeout = self.retransmission_timeout();
        self.congestion.on_idle(idle, timeout, initial);
        self.send.departure_time = microseconds(now);
        self.send.cwnd_stamp = microseconds(now);
    }

    /// Reduces a window that was not used up for a retransmission timeout: its unused
    /// part is no longer validated (RFC 2861 §3).
    #[cold]
    pub(super) fn validate_window(&mut self, now: Time) {
        self.send.cwnd_stamp = microseconds(now);
        let initial = self.initial_window();
        let used = self.send.max_in_flight;
        self.congestion.on_application_limited(used, initial);
    }

    /// Accounts for new bytes sent while data may be lost.
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

    /// Records a retransmission: lost data, or the tail-loss probe.
    #[cold]
    pub(super) fn note_retransmission(&mut self, start: u32, end: u32, now: Time) {
        let micros = microseconds(now);
        let end = if before(self.send.nxt, end) {
            // The FIN leaves with it for the first time.
            self.note_sent(0, end, now);
            end.wrapping_sub(1)
        } else {
            end
        };
        count(&mut self.counters.retransmissions);
        if self.recovery.probe == TailProbe::Due {
            self.recovery.board.mark_probed(start, end, micros);
            self.probe_sent(true, now);
            return;
        }
        if self.recovery.frto_new_data {
            // No new data could be sent: F-RTO cannot decide.
            self.recovery.frto_new_data = false;
            self.recovery.frto = false;
        }
        if self.recovery.path_probe.is_some() {
            self.path_probe_void();
        }
        self.recovery.board.mark_retransmitted(start, end, micros);
        let stamp = timestamp(now, self.timestamp_offset);
        self.recovery.undo.note_retransmission(stamp);
        if self.recovery.is_reducing() {
            let sent = &mut self.recovery.reduction.sent;
            *sent = sent.saturating_add(end.wrapping_sub(start));
        }
        if start == self.send.una && self.recovery.rtx_timer != RtxTimer::Reordering {
            // As what is left of it says to an acknowledgment that comes late.
            self.recovery.rtx_timer = RtxTimer::Retransmission;
            if self.send.retries == 0 {
                self.restart_timer(now);
            }
        }
    }
}
