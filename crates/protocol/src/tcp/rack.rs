//! RACK (RFC 8985): what left before something that has arrived, and has not
//! arrived itself, is lost, once reordering has had time to show.

use super::connection::Connection;
use super::recovery::{Phase, Wait};
use super::round_trip::RoundTrip;
use super::scoreboard::{Losses, Piece, Verdict};
use super::timers::Timer;
use super::{Time, microseconds};
use tidewall_wire::tcp::before;

/// Segments beyond a hole that mean a loss (RFC 5681 §3.2), and the degree of
/// reordering that is presumed (`tcp_reordering`).
pub(super) const DUPLICATES: u16 = 3;

/// The highest degree of reordering that is remembered (`tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// Recoveries for which a larger reordering window lasts (RFC 8985 §6.2).
const PERSISTENCE: u8 = 16;

/// Added to timers, which tick (Linux `TCP_TIMEOUT_MIN_US`).
pub(super) const TICKS: u32 = 2000;

/// What RACK remembers of a connection.
#[derive(Clone, Copy)]
pub(super) struct Rack {
    /// When that left which was sent last of all that has arrived, in wrapping
    /// microseconds, and where it ends.
    pub(super) sent: u32,
    pub(super) end: u32,
    /// The round trip of what has arrived last, in microseconds.
    pub(super) round_trip: u32,
    /// Something has arrived since losses were last looked for.
    pub(super) advanced: bool,
    /// The reordering window in quarters of the least round trip.
    pub(super) steps: u8,
    /// Recoveries for which `steps` lasts.
    pub(super) persists: u8,
    /// SND.NXT when a duplicate last widened the window: the next that counts
    /// must be of a later round trip.
    pub(super) widened: Option<u32>,
    /// The degree of reordering in segments (`tcpi_reordering`).
    pub(super) reordering: u16,
    /// Times that reordering was seen (`tcpi_reord_seen`).
    pub(super) reordered: u32,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self {
            sent: 0,
            end: 0,
            round_trip: 0,
            advanced: false,
            steps: 1,
            persists: 0,
            widened: None,
            reordering: DUPLICATES,
            reordered: 0,
        }
    }

    /// Nothing was in flight: from `sequence` on it is now.
    #[inline]
    pub(super) fn begin(&mut self, sequence: u32, now: u32) {
        // A moment of long ago would no longer compare.
        self.sent = now;
        self.end = sequence;
    }

    /// What ends at `end` and left at `sent`, for the first time or `again`, has
    /// arrived.
    #[inline]
    pub(super) fn arrived(&mut self, (end, sent): (u32, u32), again: bool, now: u32, min: u32) {
        let round_trip = now.wrapping_sub(sent);
        if again && round_trip < min {
            // Too early for the retransmission: the first one was not lost.
            return;
        }
        self.advanced = true;
        self.round_trip = round_trip;
        if sent_after((sent, end), (self.sent, self.end)) {
            self.sent = sent;
            self.end = end;
        }
    }

    /// How long after its round trip a piece is lost, from now; not above zero
    /// when it is.
    pub(super) fn rest(&self, piece: &Piece, window: u32, now: u32) -> i32 {
        let age = now.wrapping_sub(piece.sent);
        self.round_trip.saturating_add(window).wrapping_sub(age) as i32
    }

    /// Something arrived in another order than it was sent in: so many bytes
    /// beyond it had arrived.
    pub(super) fn saw_reordering(&mut self, distance: u32, mss: u32) {
        if distance > u32::from(self.reordering) * mss {
            let degree = distance.div_ceil(mss.max(1)).min(REORDERING_MAX);
            self.reordering = degree as u16;
        }
        self.reordered = self.reordered.saturating_add(1);
    }

    /// The window adapts to duplicates that the receiver tells of (RFC 8985 §6.2,
    /// step 4).
    pub(super) fn adapt(&mut self, duplicate: bool, first: u32, next: u32) {
        if self.widened.is_some_and(|end| !before(first, end)) {
            self.widened = None;
        }
        if duplicate && self.widened.is_none() {
            self.widened = Some(next);
            self.steps = self.steps.saturating_add(1);
            self.persists = PERSISTENCE;
        } else if self.persists == 0 {
            self.steps = 1;
        }
    }

    /// A recovery has ended; `spurious` when a duplicate showed that it was for
    /// nothing.
    pub(super) fn recovered(&mut self, spurious: bool) {
        self.persists = if spurious {
            (self.persists + 1).min(PERSISTENCE)
        } else {
            self.persists.saturating_sub(1)
        };
    }
}

/// Whether one segment left after another: those of one moment are told apart by
/// where they end.
pub(super) fn sent_after((sent, end): (u32, u32), (other, other_end): (u32, u32)) -> bool {
    before(other, sent) || sent == other && before(other_end, end)
}

impl Connection {
    /// How long beyond its round trip a segment may stay away before it is lost
    /// (RFC 8985 §6.2, step 4), in microseconds.
    fn reordering_window(&self) -> u32 {
        let recovery = &self.recovery;
        if recovery.rack.reordered == 0
            && (recovery.phase >= Phase::Fast
                || recovery.sacked_segments >= recovery.rack.reordering.into())
        {
            return 0;
        }
        let RoundTrip { min, .. } = self.round_trip;
        let window = (min / 4).saturating_mul(recovery.rack.steps.into());
        window.min(self.round_trip.smoothed())
    }

    /// Something arrived out of order: `sequence` after what lies beyond it.
    pub(super) fn note_reordering(&mut self, sequence: u32) {
        let furthest = self.recovery.board.sacked_to();
        if before(sequence, furthest) {
            let distance = furthest.wrapping_sub(sequence);
            let mss = self.send.mss.into();
            self.recovery.rack.saw_reordering(distance, mss);
        }
    }

    /// Marks as lost what RACK knows to be; the rest of the time is how long the
    /// last that may be lost is to be waited for, in microseconds.
    fn find_losses(&mut self, now: Time) -> (Losses, u32) {
        let window = self.reordering_window();
        let now = microseconds(now);
        let recovery = &mut self.recovery;
        let rack = recovery.rack;
        // Behind this, what is later in sequence has left later.
        let furthest = recovery.board.resent_to();
        let mut wait = 0;
        let losses = recovery.board.judge(|piece| {
            if !sent_after((rack.sent, rack.end), (piece.sent, piece.end)) {
                return if before(piece.start, furthest) {
                    Verdict::Keep
                } else {
                    Verdict::Stop
                };
            }
            match u32::try_from(rack.rest(piece, window, now)) {
                Ok(rest) if rest > 0 => {
                    wait = wait.max(rest);
                    Verdict::Keep
                }
                _ => Verdict::Lost,
            }
        });
        (losses, wait)
    }

    /// After an acknowledgment: what is lost by it. True when the reordering
    /// timer runs.
    pub(super) fn find_losses_by_time(&mut self, now: Time) -> (Losses, bool) {
        if !core::mem::take(&mut self.recovery.rack.advanced) {
            return (Losses::default(), false);
        }
        let (losses, wait) = self.find_losses(now);
        if wait > 0 {
            self.recovery.wait = Wait::Reordering;
            let wait = u64::from(wait) + u64::from(TICKS);
            self.timers.set_micros(Timer::Retransmit, now, wait);
        }
        (losses, wait > 0)
    }

    /// The reordering timer has expired (RFC 8985 §6.3).
    pub(super) fn reordering_timer(&mut self, now: Time) {
        let (losses, wait) = self.find_losses(now);
        if losses.bytes > 0 {
            if self.recovery.phase != Phase::Fast {
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
