//! Undoing spurious recoveries: the window is restored.
//!
//! Two things show that nothing was lost. One is the echo of a timestamp that is older
//! than the first retransmission (Eifel, RFC 3522, RFC 4015). The other is a duplicate at
//! the receiver for each retransmission (D-SACK, RFC 3708). The rest follows Linux.

use super::connection::{Connection, count};
use super::recovery::{CaState, Recovery};
use super::tail_probe::TailProbe;
use tidewall_wire::tcp::before;

/// State of a recovery that may turn out to be spurious.
#[derive(Clone, Copy, Default)]
pub(super) struct Undo {
    /// SND.UNA when it began; `None` when there is nothing to undo.
    pub(super) marker: Option<u32>,
    /// Retransmitted segments that no D-SACK has reported; `None` before the first.
    pub(super) undo_retrans: Option<u16>,
    /// The timestamp of the first segment retransmitted.
    pub(super) retrans_stamp: Option<u32>,
    /// The window may be restored: it was not reduced for a mark as well.
    pub(super) restores_window: bool,
}

impl Undo {
    /// Forbids undoing a reduction: congestion was signalled (ECE).
    pub(super) fn forbid(&mut self) {
        self.restores_window = false;
    }

    /// Records that a segment with this timestamp was retransmitted.
    pub(super) fn note_retransmission(&mut self, stamp: u32) {
        self.undo_retrans = Some(self.undo_retrans.unwrap_or(0).saturating_add(1));
        self.retrans_stamp.get_or_insert(stamp);
    }

    /// Records that a D-SACK has reported `segments` segments, ending at `end`.
    pub(super) fn count_dsack(&mut self, segments: u32, end: u32) {
        if let (Some(marker), Some(undo_retrans)) = (self.marker, &mut self.undo_retrans)
            && before(marker, end)
        {
            let segments = u16::try_from(segments).unwrap_or(u16::MAX);
            *undo_retrans = undo_retrans.saturating_sub(segments);
        }
    }

    /// Whether all retransmissions were spurious.
    fn all_dsacked(&self) -> bool {
        self.marker.is_some() && self.undo_retrans == Some(0)
    }

    /// Whether nothing was retransmitted, or the acknowledged data left before the
    /// retransmission. `echo` is the timestamp of the segment that caused the
    /// acknowledgment.
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
    /// Begins a recovery at `first`: records what its end will be judged by.
    pub(super) fn begin_undo(&mut self, first: u32, mss: u32) {
        let mut in_flight = self.board.retransmitted().div_ceil(mss.max(1));
        if matches!(self.probe, TailProbe::Sent { again: true, .. }) {
            in_flight += 1;
        }
        self.undo.marker = Some(first);
        // `None`: the first is still to be retransmitted.
        self.undo.undo_retrans = u16::try_from(in_flight).ok().filter(|count| *count > 0);
    }

    /// Whether retransmitted data may still be unacknowledged at SND.UNA.
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
        // Losses are searched for again.
        self.recovery.rack.advanced = true;
        count(&mut self.counters.recoveries_undone);
    }

    /// Undoes a recovery whose data in flight is all acknowledged. Returns true when the
    /// state lasts nevertheless: without SACK, until data beyond is acknowledged.
    pub(super) fn try_undo_recovery(&mut self, echo: Option<u32>) -> bool {
        if self.recovery.undo.may_undo(echo) {
            if self.sack && self.recovery.ca_state == CaState::Recovery {
                // The segment was late, beyond what duplicates allow (here Linux
                // forgets).
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

    /// Whether the state must last: duplicates of the data in flight, which come now,
    /// must not begin another recovery (RFC 6582 §3.2, step 1).
    fn lasts_without_sack(&mut self) -> bool {
        let lasts = !self.sack && self.send.una == self.recovery.high_seq;
        if lasts {
            self.recovery.clear_retrans_stamp();
        }
        lasts
    }

    /// Undoes the recovery if a D-SACK has come for each retransmitted segment.
    pub(super) fn try_undo_dsack(&mut self) -> bool {
        let undone = self.recovery.undo.all_dsacked();
        if undone {
            self.recovery.rack.recovered(true);
            self.undo_reduction(false);
        }
        undone
    }

    /// Undoes the state after a timeout; `forward` when F-RTO has shown it to be
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

    /// Handles a partial acknowledgment in recovery, beginning at `before`. Returns true
    /// when nothing more is to be marked lost: a merely delayed segment filled the hole,
    /// while retransmissions are in flight.
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
