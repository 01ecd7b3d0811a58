//! RACK (RFC 8985): segments sent before one that has arrived are lost if they are still
//! missing after a time for reordering.

use super::connection::Connection;
use super::recovery::{CaState, RtxTimer};
use super::round_trip::RoundTrip;
use super::scoreboard::{Losses, Piece, Verdict};
use super::timers::Timer;
use super::{Time, microseconds};
use tidewall_wire::tcp::before;

/// Segments beyond a hole that mean a loss (RFC 5681 §3.2), and the initial degree of
/// reordering (`tcp_reordering`).
pub(super) const DUPLICATES: u16 = 3;

/// The highest degree of reordering that is remembered (`tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// Recoveries for which a larger reordering window lasts (RFC 8985 §6.2).
const PERSISTENCE: u8 = 16;

/// Added to timers, which have ticks (Linux `TCP_TIMEOUT_MIN_US`).
pub(super) const TICKS: u32 = 2000;

/// RACK state of a connection.
#[derive(Clone, Copy)]
pub(super) struct Rack {
    /// The last-sent of all segments that have arrived: when it left, in wrapping
    /// microseconds, and where it ends.
    pub(super) xmit_ts: u32,
    pub(super) end_seq: u32,
    /// The round trip of the segment that arrived last, in microseconds.
    pub(super) rtt: u32,
    /// A segment has arrived since the last search for losses.
    pub(super) advanced: bool,
    /// The reordering window in quarters of the least round trip.
    pub(super) reo_wnd_steps: u8,
    /// Recoveries for which `reo_wnd_steps` lasts.
    pub(super) reo_wnd_persist: u8,
    /// SND.NXT when a duplicate last widened the window: the next one that counts must be
    /// of a later round trip.
    pub(super) dsack_round: Option<u32>,
    /// The degree of reordering in segments (`tcpi_reordering`).
    pub(super) reordering: u16,
    /// How often reordering was seen (`tcpi_reord_seen`).
    pub(super) reord_seen: u32,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self {
            xmit_ts: 0,
            end_seq: 0,
            rtt: 0,
            advanced: false,
            reo_wnd_steps: 1,
            reo_wnd_persist: 0,
            dsack_round: None,
            reordering: DUPLICATES,
            reord_seen: 0,
        }
    }

    /// Restarts at `sequence`: nothing was in flight before it.
    #[inline]
    pub(super) fn restart(&mut self, sequence: u32, now: u32) {
        // A moment long ago would no longer compare.
        self.xmit_ts = now;
        self.end_seq = sequence;
    }

    /// Records the arrival of a segment that ends at `end` and left at `sent`, for the
    /// first time or `again`.
    #[inline]
    pub(super) fn update(&mut self, (end, sent): (u32, u32), again: bool, now: u32, min: u32) {
        let rtt = now.wrapping_sub(sent);
        if again && rtt < min {
            // Too early for the retransmission: the first one was not lost.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        if sent_after((sent, end), (self.xmit_ts, self.end_seq)) {
            self.xmit_ts = sent;
            self.end_seq = end;
        }
    }

    /// Time from now until a piece counts as lost; not above zero when it does.
    pub(super) fn remaining(&self, piece: &Piece, window: u32, now: u32) -> i32 {
        let age = now.wrapping_sub(piece.sent);
        self.rtt.saturating_add(window).wrapping_sub(age) as i32
    }

    /// Records that a segment arrived out of order, after `distance` bytes beyond it.
    pub(super) fn note_reordering_degree(&mut self, distance: u32, mss: u32) {
        if distance > u32::from(self.reordering) * mss {
            let degree = distance.div_ceil(mss.max(1)).min(REORDERING_MAX);
            self.reordering = degree as u16;
        }
        self.reord_seen = self.reord_seen.saturating_add(1);
    }

    /// Adapts the reordering window to D-SACKs (RFC 8985 §6.2, step 4).
    pub(super) fn update_reo_wnd(&mut self, duplicate: bool, first: u32, next: u32) {
        if self.dsack_round.is_some_and(|end| !before(first, end)) {
            self.dsack_round = None;
        }
        if duplicate && self.dsack_round.is_none() {
            self.dsack_round = Some(next);
            self.reo_wnd_steps = self.reo_wnd_steps.saturating_add(1);
            self.reo_wnd_persist = PERSISTENCE;
        } else if self.reo_wnd_persist == 0 {
            self.reo_wnd_steps = 1;
        }
    }

    /// Records the end of a recovery; `spurious` when a duplicate showed that nothing was
    /// lost.
    pub(super) fn recovered(&mut self, spurious: bool) {
        self.reo_wnd_persist = if spurious {
            (self.reo_wnd_persist + 1).min(PERSISTENCE)
        } else {
            self.reo_wnd_persist.saturating_sub(1)
        };
    }
}

/// Whether one segment left after another; for equal times, whether it ends later.
pub(super) fn sent_after((sent, end): (u32, u32), (other, other_end): (u32, u32)) -> bool {
    before(other, sent) || sent == other && before(other_end, end)
}

impl Connection {
    /// How long beyond its round trip a segment may be missing before it counts as lost
    /// (RFC 8985 §6.2, step 4), in microseconds.
    fn reordering_window(&self) -> u32 {
        let recovery = &self.recovery;
        if recovery.rack.reord_seen == 0
            && (recovery.ca_state >= CaState::Recovery
                || recovery.sacked_out >= recovery.rack.reordering.into())
        {
            return 0;
        }
        let RoundTrip { min, .. } = self.round_trip;
        let window = (min / 4).saturating_mul(recovery.rack.reo_wnd_steps.into());
        window.min(self.round_trip.srtt())
    }

    /// Records that `sequence` arrived out of order, after data beyond it.
    pub(super) fn note_reordering(&mut self, sequence: u32) {
        let furthest = self.recovery.board.highest_sack();
        if before(sequence, furthest) {
            let distance = furthest.wrapping_sub(sequence);
            let mss = self.send.mss.into();
            self.recovery.rack.note_reordering_degree(distance, mss);
        }
    }

    /// Marks what RACK knows to be lost. The second value is how long to wait for the
    /// last segment that may be lost, in microseconds.
    fn find_losses(&mut self, now: Time) -> (Losses, u32) {
        let window = self.reordering_window();
        let now = microseconds(now);
        let recovery = &mut self.recovery;
        let rack = recovery.rack;
        // Beyond this, later sequence numbers have left later.
        let furthest = recovery.board.high_rxt();
        let mut wait = 0;
        let losses = recovery.board.mark_lost(|piece| {
            if !sent_after((rack.xmit_ts, rack.end_seq), (piece.sent, piece.end)) {
                return if before(piece.start, furthest) {
                    Verdict::Keep
                } else {
                    Verdict::Stop
                };
            }
            match u32::try_from(rack.remaining(piece, window, now)) {
                Ok(rest) if rest > 0 => {
                    wait = wait.max(rest);
                    Verdict::Keep
                }
                _ => Verdict::Lost,
            }
        });
        (losses, wait)
    }

    /// Finds losses after an acknowledgment. Returns true when the reordering timer runs.
    pub(super) fn find_rack_losses(&mut self, now: Time) -> (Losses, bool) {
        if !core::mem::take(&mut self.recovery.rack.advanced) {
            return (Losses::default(), false);
        }
        let (losses, wait) = self.find_losses(now);
        if wait > 0 {
            self.recovery.rtx_timer = RtxTimer::Reordering;
            let wait = u64::from(wait) + u64::from(TICKS);
            self.timers.set_micros(Timer::Retransmit, now, wait);
        }
        (losses, wait > 0)
    }

    /// The reordering timer has expired (RFC 8985 §6.3).
    pub(super) fn reordering_timer(&mut self, now: Time) {
        let (losses, wait) = self.find_losses(now);
        if losses.bytes > 0 {
            if self.recovery.ca_state != CaState::Recovery {
                self.enter_recovery(false);
            }
            let mss = self.send.mss.into();
            self.reduce_window(mss, losses.bytes, false);
        }
        if wait > 0 {
            let wait = u64::from(wait) + u64::from(TICKS);
            self.timers.set_micros(Timer::Retransmit, now, wait);
        } else {
            self.restart_timer(now);
        }
    }
}
