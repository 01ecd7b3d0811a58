//! The tail-loss probe (RFC 8985 §7). When acknowledgments stay away, one segment is sent
//! long before the retransmission timeout. Its answer lets recovery find losses at the
//! end.

use super::acknowledgment::Feedback;
use super::connection::{Connection, count};
use super::plan::Plan;
use super::rack::TICKS;
use super::recovery::{CaState, RtxTimer};
use super::timers::Timer;
use super::{State, Time, microseconds};
use tidewall_wire::tcp::before;

/// The state of the probe; there is one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TailProbe {
    /// No probe.
    #[default]
    None,
    /// To be sent now.
    Due,
    /// Sent and not acknowledged; SND.NXT was `end` after it.
    Sent {
        /// SND.NXT.
        end: u32,
        /// It repeated the last segment instead of sending a new one.
        again: bool,
    },
}

impl Connection {
    /// Starts the timer for the data in flight after an acknowledgment: the probe's timer
    /// if a probe is allowed, otherwise the retransmission timer.
    #[inline]
    pub(super) fn start_timer(&mut self, now: Time) {
        if self.send.una == self.send.nxt {
            self.recovery.rtx_timer = RtxTimer::Retransmission;
            self.timers.stop(Timer::Retransmit);
        } else if self.may_probe() {
            let timeout = self.retransmission_micros();
            self.start_probe_timer(timeout, now);
        } else {
            self.restart_timer(now);
        }
    }

    /// Starts the timer after new data was sent, so that a probe is due a fixed time
    /// after that. `began` is set when nothing was in flight before: a timer that ran
    /// then was for the persist state. The timer of a SYN or SYN-ACK continues.
    #[inline(never)]
    pub(super) fn start_timer_after_sending(&mut self, began: bool, now: Time) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return;
        }
        let timeout = self.retransmission_micros();
        if self.may_probe() {
            // No later than the retransmission timeout would be.
            let age = if began {
                0
            } else {
                let head = self.recovery.board.head();
                head.map_or(0, |head| microseconds(now).wrapping_sub(head.sent))
            };
            let rest = timeout.saturating_sub(age.into());
            self.start_probe_timer(if rest == 0 { u64::MAX } else { rest }, now);
        } else if began || !self.timers.is_running(Timer::Retransmit) {
            self.recovery.rtx_timer = RtxTimer::Retransmission;
            self.timers.set_micros(Timer::Retransmit, now, timeout);
        }
    }

    /// Whether a probe may be sent. It is for a connection that may lack acknowledgments
    /// because it has nothing more to send, or is not allowed to.
    #[inline]
    fn may_probe(&self) -> bool {
        self.sack && matches!(self.recovery.ca_state, CaState::Open | CaState::Cwr)
    }

    #[inline]
    fn start_probe_timer(&mut self, most: u64, now: Time) {
        let in_flight = self.send.outstanding();
        let wait = if self.round_trip.srtt_8 == 0 {
            1_000_000
        } else if in_flight <= self.send.mss.into() && self.recovery.board.is_single() {
            // Its acknowledgment may be delayed.
            self.round_trip.srtt_8 / 4 + self.config.timeout_min.micros()
        } else {
            self.round_trip.srtt_8 / 4 + TICKS
        };
        self.recovery.rtx_timer = RtxTimer::Probe;
        self.timers
            .set_micros(Timer::Retransmit, now, u64::from(wait).min(most));
    }

    /// Restarts the retransmission timer for the data in flight. It counts from when the
    /// first of that data left if the timer was not running, otherwise from now.
    #[inline]
    pub(super) fn restart_timer(&mut self, now: Time) {
        let mut wait = self.retransmission_micros();
        if self.recovery.rtx_timer != RtxTimer::Retransmission
            && let Some(head) = self.recovery.board.head()
        {
            let age = microseconds(now).wrapping_sub(head.sent);
            wait = wait.saturating_sub(age.into()).max(1);
        }
        self.recovery.rtx_timer = RtxTimer::Retransmission;
        self.timers.set_micros(Timer::Retransmit, now, wait);
    }

    /// Handles the expired probe timer (RFC 8985 §7.3).
    pub(super) fn probe_timer(&mut self, now: Time) {
        if self.recovery.probe == TailProbe::None {
            self.recovery.probe = TailProbe::Due;
            if self.plan_probe().is_some() {
                return;
            }
            self.recovery.probe = TailProbe::None;
        }
        self.restart_timer(now);
    }

    /// The probe: a new segment, whatever the congestion window, or else the last one
    /// again.
    pub(super) fn plan_probe(&self) -> Option<Plan> {
        let mss = self.payload_max();
        let window_end = self.send.window_end();
        let unsent = self.unsent();
        if unsent > 0 {
            let nxt = self.send.nxt;
            let end = nxt.wrapping_add(unsent.min(mss));
            let length = self.send.push_marks.cut(nxt, end).wrapping_sub(nxt);
            if !before(window_end, self.send.nxt.wrapping_add(length)) {
                return Some(Plan::New { length });
            }
        }
        let (start, end) = self.recovery.board.last_segment(mss, self.fin_sent())?;
        let start = self.send.push_marks.cut_from(start, end);
        if start != self.send.una && !before(start, window_end) {
            return None;
        }
        Some(self.retransmission(start, end))
    }

    pub(super) fn probe_sent(&mut self, again: bool, now: Time) {
        self.recovery.probe = TailProbe::Sent {
            end: self.send.nxt,
            again,
        };
        count(&mut self.counters.loss_probes);
        // Counted from now.
        self.recovery.rtx_timer = RtxTimer::Retransmission;
        self.restart_timer(now);
    }

    /// Judges the probe by an acknowledgment (RFC 8985 §7.4): if the probe alone repaired
    /// a loss, the window is reduced for it.
    pub(super) fn judge_probe(&mut self, acknowledgment: u32, seen: &Feedback) {
        let TailProbe::Sent { end, again } = self.recovery.probe else {
            return;
        };
        if before(acknowledgment, end) {
            return;
        }
        if !again || seen.probe_dsack {
            self.recovery.probe = TailProbe::None;
        } else if before(end, acknowledgment) {
            self.begin_reduction();
            self.recovery.ca_state = CaState::Cwr;
            self.end_reduction();
            self.keep_open();
        } else if !seen.advanced && seen.plain && !seen.sacked {
            // Both the original and the probe have arrived.
            self.recovery.probe = TailProbe::None;
        }
    }
}
