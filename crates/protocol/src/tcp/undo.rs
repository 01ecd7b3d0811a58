//! Recoveries that were for nothing: the window is given back.
//!
//! Two things show it: the echo of a timestamp that is older than the first
//! retransmission (Eifel, RFC 3522, RFC 4015), and a duplicate at the receiver
//! for each retransmission (D-SACK, RFC 3708). What follows is Linux's.

use super::connection::Connection;
use super::recovery::{Phase, Recovery};
use super::tail_probe::TailProbe;
use tidewall_wire::tcp::before;

/// What is remembered of a recovery to find out that it was for nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Undo {
    /// SND.UNA when it began; none when there is nothing to undo.
    pub(super) marker: Option<u32>,
    /// Segments sent again that the receiver has not told to be duplicates; none
    /// before the first.
    pub(super) unexplained: Option<u16>,
    /// The timestamp of the first segment sent again.
    pub(super) stamp: Option<u32>,
    /// The window may be given back: it was not reduced for a mark as well.
    pub(super) restores: bool,
}

impl Undo {
    /// The network has told of congestion: no reduction is undone.
    pub(super) fn forbid(&mut self) {
        self.restores = false;
    }

    /// A segment was sent again, with this timestamp.
    pub(super) fn sent_again(&mut self, stamp: u32) {
        self.unexplained = Some(self.unexplained.unwrap_or(0).saturating_add(1));
        self.stamp.get_or_insert(stamp);
    }

    /// The receiver has told of duplicates, ending there.
    pub(super) fn explained(&mut self, segments: u32, end: u32) {
        if let (Some(marker), Some(unexplained)) = (self.marker, &mut self.unexplained)
            && before(marker, end)
        {
            let segments = u16::try_from(segments).unwrap_or(u16::MAX);
            *unexplained = unexplained.saturating_sub(segments);
        }
    }

    /// All that was sent again was for nothing.
    fn all_explained(&self) -> bool {
        self.marker.is_some() && self.unexplained == Some(0)
    }

    /// Nothing was sent again, or what is acknowledged left before that was:
    /// `echo` is the timestamp of what has caused the acknowledgment.
    fn was_delayed(&self, echo: Option<u32>) -> bool {
        match (self.stamp, echo) {
            (None, _) => true,
            (Some(stamp), Some(echo)) => before(echo, stamp),
            (Some(_), None) => false,
        }
    }

    fn may_undo(&self, echo: Option<u32>) -> bool {
        self.marker.is_some() && (self.unexplained == Some(0) || self.was_delayed(echo))
    }
}

impl Recovery {
    /// A recovery begins at `first`: remembers what its end is to be judged by.
    pub(super) fn begin_undo(&mut self, first: u32, mss: u32) {
        let mut in_flight = self.board.again().div_ceil(mss.max(1));
        if matches!(self.probe, TailProbe::Sent { again: true, .. }) {
            in_flight += 1;
        }
        self.undo.marker = Some(first);
        // None of them: the first is still to be sent again.
        self.undo.unexplained = u16::try_from(in_flight).ok().filter(|count| *count > 0);
    }

    /// Something sent again may still be unacknowledged at SND.UNA.
    pub(super) fn any_sent_again(&self) -> bool {
        use super::scoreboard::{AGAIN, EVER};
        self.board.again() > 0
            || self
                .board
                .head()
                .is_some_and(|piece| piece.has(AGAIN | EVER))
    }

    /// The next recovery has its own first retransmission.
    pub(super) fn forget_stamp(&mut self) {
        if !self.any_sent_again() {
            self.undo.stamp = None;
        }
    }
}

impl Connection {
    fn undo_reduction(&mut self, nothing_lost: bool) {
        if nothing_lost {
            self.recovery.board.forget_lost();
        }
        if self.recovery.undo.restores {
            self.congestion.undo();
            self.ecn.told();
        }
        self.recovery.undo.marker = None;
        // What is lost is looked for anew.
        self.recovery.rack.advanced = true;
        let undone = self.counters.recoveries_undone;
        self.counters.recoveries_undone = undone.wrapping_add(1);
    }

    /// All that was in flight when recovery began is acknowledged. True when the
    /// state lasts nevertheless: without SACK, until something beyond is.
    pub(super) fn try_undo_recovery(&mut self, echo: Option<u32>) -> bool {
        if self.recovery.undo.may_undo(echo) {
            if self.sack && self.recovery.phase == Phase::Fast {
                // It was late, beyond what duplicates allow (here Linux forgets).
                let reordered = self.recovery.rack.reordered;
                self.recovery.rack.reordered = reordered.saturating_add(1);
            }
            self.undo_reduction(false);
        } else {
            self.recovery.rack.recovered(false);
        }
        if self.lasts_without_sack() {
            return true;
        }
        self.recovery.phase = Phase::Open;
        false
    }

    /// Duplicates of what was in flight, which come now, must not begin another
    /// recovery (RFC 6582 §3.2, step 1).
    fn lasts_without_sack(&mut self) -> bool {
        let lasts = !self.sack && self.send.first == self.recovery.end;
        if lasts {
            self.recovery.forget_stamp();
        }
        lasts
    }

    /// The receiver has told of a duplicate for each segment sent again.
    pub(super) fn try_undo_by_duplicates(&mut self) -> bool {
        let undone = self.recovery.undo.all_explained();
        if undone {
            self.recovery.rack.recovered(true);
            self.undo_reduction(false);
        }
        undone
    }

    /// In the state after a timeout; `forward` when F-RTO has shown it to be
    /// spurious.
    pub(super) fn try_undo_loss(&mut self, forward: bool, echo: Option<u32>) -> bool {
        if !forward && !self.recovery.undo.may_undo(echo) {
            return false;
        }
        self.undo_reduction(true);
        if forward {
            let spurious = self.counters.spurious_timeouts;
            self.counters.spurious_timeouts = spurious.wrapping_add(1);
        }
        self.send.retries = 0;
        if self.lasts_without_sack() {
            return true;
        }
        if forward || self.sack {
            self.recovery.phase = Phase::Open;
        }
        true
    }

    /// A part was acknowledged in recovery, beginning at `before`. True when
    /// nothing more is to be marked lost: the hole was filled by what was only
    /// delayed, while retransmissions are under way.
    pub(super) fn try_undo_partial(&mut self, before: u32, echo: Option<u32>) -> bool {
        let undo = &self.recovery.undo;
        if undo.marker.is_none() || !undo.was_delayed(echo) {
            return false;
        }
        self.note_reordering(before);
        if self.recovery.board.again() > 0 {
            return true;
        }
        self.recovery.forget_stamp();
        self.undo_reduction(true);
        self.keep_open();
        false
    }
}
