//! The receiver's report of the data that it holds (RFC 2018, RFC 2883).
//!
//! A peer can split runs by naming odd ranges. It is trusted for up to
//! [`SACK_RANGES_MAX`] ranges; data that it reports beyond them is at worst sent twice.

use tidewall_wire::tcp::before;

use super::{EVER_RETRANSMITTED, LOST, Piece, RETRANSMITTED, SACKED, Scoreboard};

/// Ranges beyond a hole that are remembered: more than honest receivers report.
pub(super) const SACK_RANGES_MAX: u16 = 512;

/// From this number of ranges on, a range shorter than a segment is not accepted. Each
/// hole between such ranges would be retransmitted in its own segment (CVE-2019-11478).
const SMALL_SACK_RANGES_MAX: u16 = 32;

impl Scoreboard {
    /// Without SACK: sets how many bytes have arrived, by the count of duplicate
    /// acknowledgments (Linux `tcp_add_reno_sack`).
    pub(in crate::tcp) fn set_reno_sacked(&mut self, bytes: u32) {
        self.sacked = bytes;
    }

    /// The bytes of [`Scoreboard::set_reno_sacked`], if any.
    pub(in crate::tcp) fn reno_sacked(&self) -> Option<u32> {
        (self.sacked_ranges == 0 && self.sacked > 0).then_some(self.sacked)
    }

    pub(in crate::tcp) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// The end of the highest SACKed range, or SND.UNA.
    pub(in crate::tcp) fn highest_sack(&self) -> u32 {
        if self.sacked_ranges == 0 {
            self.una
        } else {
            self.highest_sack
        }
    }

    /// Whether the bytes from `start`, in the run at `index`, to `end` extend a SACKed
    /// range, and so add no range.
    fn touches_sacked(&self, index: usize, start: u32, end: u32) -> bool {
        (index.saturating_sub(1)..self.earlier.len())
            .map_while(|index| self.piece(index))
            .take_while(|piece| !before(end, piece.start))
            .any(|piece| piece.has(SACKED) && !before(piece.end, start))
    }

    /// Whether `start` and `end` are boundaries of segments as they left. A run has full
    /// segments from its start, and may have a smaller one at its end.
    fn is_segment_aligned(&self, start: u32, end: u32, segment: u32) -> bool {
        let offset = |index: usize, at: u32| {
            let from = at.wrapping_sub(self.start_of(index));
            from.checked_rem(segment).unwrap_or(0)
        };
        if offset(self.find(start), start) != 0 {
            return false;
        }
        let last = self.find(end.wrapping_sub(1));
        // Not every receiver counts the FIN that goes with the last bytes.
        let ends = self
            .earlier
            .get(last)
            .is_some_and(|run| run.end.wrapping_sub(end) <= 1);
        ends || offset(last, end) == 0
    }

    /// Processes a SACK block from `start` to `end`, within the data in flight; `each`
    /// gets every newly SACKed piece. `segment` is the payload of a full segment. A block
    /// that does not end at segment boundaries is ignored until it does (as Linux).
    /// Otherwise a hostile receiver could split runs at will.
    pub(in crate::tcp) fn sack(
        &mut self,
        (start, end): (u32, u32),
        segment: u32,
        mut each: impl FnMut(&Piece),
    ) {
        self.gather();
        let mut index = self.find(start);
        let is_small = end.wrapping_sub(start) < segment;
        let refused = self.sacked_ranges >= SACK_RANGES_MAX
            || is_small
                && (self.sacked_ranges >= SMALL_SACK_RANGES_MAX
                    || !self.is_segment_aligned(start, end, segment));
        if refused && !self.touches_sacked(index, start, end) {
            return;
        }
        let mut new = false;
        while let Some(mut piece) = self.piece(index)
            && before(piece.start, end)
        {
            index += 1;
            if piece.has(SACKED) {
                continue;
            }
            new = true;
            if before(piece.start, start) {
                piece.start = start;
            }
            if before(end, piece.end) {
                piece.end = end;
            }
            each(&piece);
        }
        if !new {
            return;
        }
        if self.sacked_ranges == 0 || before(self.highest_sack, end) {
            self.highest_sack = end;
        }
        self.mark(start, end, None, |flags| {
            SACKED | flags & EVER_RETRANSMITTED
        });
    }

    /// Clears the SACKed flags: the receiver has reneged (RFC 2018 §8).
    pub(in crate::tcp) fn clear_sacked(&mut self) {
        self.change_all(|flags| flags & !SACKED);
    }

    /// Processes a D-SACK: retransmitted bytes from `start` to `end` have arrived twice.
    pub(in crate::tcp) fn dsack(&mut self, start: u32, end: u32) {
        self.gather();
        if self.retransmitted > 0 {
            self.mark(start, end, None, |flags| {
                if flags & LOST == 0 {
                    flags & !RETRANSMITTED
                } else {
                    flags
                }
            });
        }
    }
}
