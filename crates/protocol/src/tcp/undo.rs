//! Undoing spurious recoveries: the window is restored.
//!
//! Two things show that nothing was lost: the echo of a timestamp that is older than the first
//! retransmission (Eifel, RFC 3522, RFC 4015), and a duplicate at the receiver
//! for each retransmission (D-SACK, RFC 3708). What follows is Linux's.

use super::connection::{Connection, count};
use super::recovery::{CaState, Recovery};
use super::tail_probe::TailProbe;
use tidewall_wire::tcp::before;

/// What is remembered of a recovery to find out that it was spurious.
#[derive(Clone, Copy, Default)]
pub(super) struct Undo {
    /// SND.UNA when it began; none when there is nothing to undo.
    pub(super) marker: Option<u32>,
    /// Retransmitted segments that no D-SACK has reported; none before the first.
    pub(super) undo_retrans: Option<u16>,
    /// The timestamp of the first segment retransmitted.
    pub(super) retrans_stamp: Option<u32>,
    /// The window may be given back: it was not reduced for a mark as well.
    pub(super) restores_window: bool,
}

impl Undo {
    /// Congestion was signalled (ECE): no reduction is undone.
    pub(super) fn forbid(&mut self) {
        self.restores_window = false;
    }

    /// A segment was retransmitted, with this timestamp.
    pub(super) fn note_retransmission(&mut self, stamp: u32) {
        self.undo_retrans = Some(self.undo_retrans.unwrap_or(0).saturating_add(1));
        self.retrans_stamp.get_or_insert(stamp);
    }

    /// A D-SACK has reported so many segments, ending at `end`.
    pub(super) fn count_dsack(&mut self, segments: u32, end: u32) {
        if let (Some(marker), Some(undo_retrans)) = (self.marker, &mut self.undo_retrans)
            && before(marker, end)
        {
            let segments = u16::try_from(segments).unwrap_or(u16::MAX);
            *undo_retrans = undo_retrans.saturating_sub(segments);
        }
    }

    /// All retransmissions were spurious.
    fn all_dsacked(&self) -> bool {
        self.marker.is_some() && self.undo_retrans == Some(0)
    }

    /// Nothing was retransmitted, or what is acknowledged left before that was:
    /// `echo` is the timestamp of what has caused the acknowledgment.
    fn packet_delayed(&self, echo: Option<u32>) -> bool {
        match (self.retrans_stamp, echo) {
            (None, _) => true,
            (Some(stamp), Some(echo)) => before(echo, stamp),
            (Some(_), None) => false,
        }
    }

    fn may_undo(&self, echo: Option<u32>) -> bool {
        self.marker.is_some() && (self.undo_retrans == Some(0) || self.packet_delayed(echo))
    }
}

impl Recovery {
    /// A recovery begins at `first`: remembers what its end is to be judged by.
    pub(super) fn begin_undo(&mut self, first: u32, mss: u32) {
        let mut in_flight = self.board.retransmitted().div_ceil(mss.max(1));
        if matches!(self.probe, TailProbe::Sent { again: true, .. }) {
            in_flight += 1;
        }
        self.undo.marker = Some(first);
        // None of them: the first is still to be retransmitted.
        self.undo.undo_retrans = u16::try_from(in_flight).ok().filter(|count| *count > 0);
    }

    /// Something retransmitted may still be unacknowledged at SND.UNA.
    pub(super) fn any_retransmitted(&self) -> bool {
        use super::scoreboard::{EVER_RETRANSMITTED, RETRANSMITTED};
        self.board.retransmitted() > 0
            || self
                .board
                .head()
                .is_some_and(|piece| piece.has(RETRANSMITTED | EVER_RETRANSMITTED))
    }

    /// The next recovery has its own first retransmission.
    pub(super) fn clear_retrans_stamp(&mut self) {
        if !self.any_retransmitted() {
            self.undo.retrans_stamp = None;
        }
    }
}

impl Connection {
    fn undo_reduction(&mut self, nothing_lost: bool) {
        if nothing_lost {
            self.recovery.board.clear_lost();
        }
        if self.recovery.undo.restores_window {
            self.congestion.undo();
            self.ecn.cwr_sent();
        }
        self.recovery.undo.marker = None;
        // What is lost is looked for anew.
        self.recovery.rack.advanced = true;
        count(&mut self.counters.recoveries_undone);
    }

    /// All that was in flight when recovery began is acknowledged. True when the
    /// state lasts nevertheless: without SACK, until something beyond is.
    pub(super) fn try_undo_recovery(&mut self, echo: Option<u32>) -> bool {
        if self.recovery.undo.may_undo(echo) {
            if self.sack && self.recovery.ca_state == CaState::Recovery {
                // It was late, beyond what duplicates allow (here Linux forgets).
                let reordered = self.recovery.rack.reord_seen;
                self.recovery.rack.reord_seen = reordered.saturating_add(1);
            }
            self.undo_reduction(false);
        } else {
            self.recovery.rack.recovered(false);
        }
        if self.lasts_without_sack() {
            return true;
        }
        self.recovery.ca_state = CaState::Open;
        false
    }

    /// Duplicates of what was in flight, which come now, must not begin another
    /// recovery (RFC 6582 §3.2, step 1).
    fn lasts_without_sack(&mut self) -> bool {
        let lasts = !self.sack && self.send.una == self.recovery.high_seq;
        if lasts {
            self.recovery.clear_retrans_stamp();
        }
        lasts
    }

    /// Undoes if a D-SACK has come for each retransmitted segment.
    pub(super) fn try_undo_dsack(&mut self) -> bool {
        let undone = self.recovery.undo.all_dsacked();
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
            count(&mut self.counters.spurious_timeouts);
        }
        self.send.retries = 0;
        if self.lasts_without_sack() {
            return true;
        }
        if forward || self.sack {
            self.recovery.ca_state = CaState::Open;
        }
        true
    }

    /// A part was acknowledged in recovery, beginning at `before`. True when
    /// nothing more is to be marked lost: the hole was filled by what was only
    /// delayed, while retransmissions are under way.
    pub(super) fn try_undo_partial(&mut self, before: u32, echo: Option<u32>) -> bool {
        let undo = &self.recovery.undo;
        if undo.marker.is_none() || !undo.packet_delayed(echo) {
            return false;
        }
        self.note_reordering(before);
        if self.recovery.board.retransmitted() > 0 {
            return true;
        }
        self.recovery.clear_retrans_stamp();
        self.undo_reduction(true);
        self.keep_open();
        false
    }
}
