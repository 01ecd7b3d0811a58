//! What is lost and to be sent again: NewReno (RFC 6582), and with SACK the
//! scoreboard and pipe of RFC 6675.
//!
//! Three sequence numbers say all: bytes below `lost_below` that were not
//! selectively acknowledged are lost; of those, the ones below `sent_again` are
//! in flight once more; recovery ends at `end`. Another way of finding losses
//! need only move `lost_below`.

use tidewall_wire::tcp::before;

/// Duplicate acknowledgments, or islands at the receiver, that mean a loss
/// (RFC 5681 §3.2, RFC 6675 §2).
pub(super) const DUPLICATES: u32 = 3;

/// Islands at the receiver that are remembered. More than the peer could tell of
/// in one round trip only if it splits hairs; what is forgotten is at worst sent
/// twice.
pub(super) const RANGES_MAX: usize = 64;

/// Whether something is being recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing is lost.
    #[default]
    Open = 0,
    /// Fast recovery (RFC 5681 §3.2).
    Fast = 1,
    /// After a retransmission timeout: all is lost until shown otherwise.
    Loss = 2,
}

/// What is lost of what was sent.
#[derive(Default)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// Duplicate acknowledgments since the last that moved.
    pub(super) duplicates: u32,
    /// Recovery ends when this is acknowledged.
    pub(super) end: u32,
    /// Lost bytes below were sent again.
    pub(super) sent_again: u32,
    /// Bytes below that are not in `sacked` are lost.
    pub(super) lost_below: u32,
    /// What the receiver holds beyond a hole: ascending, disjoint, not adjacent.
    /// Empty and without memory in the ordinary case.
    pub(super) sacked: Vec<(u32, u32)>,
    pub(super) path_probe: Option<(u32, u32)>,
}

impl Recovery {
    /// For a connection of which all below `sequence` is acknowledged.
    pub(super) fn new(sequence: u32) -> Self {
        let mut recovery = Self::default();
        recovery.follow(sequence);
        // So that the first loss counts (RFC 6582 §3.2, step 1).
        recovery.end = sequence.wrapping_sub(1);
        recovery
    }

    /// Keeps the marks near what is acknowledged, so that they stay comparable.
    fn follow(&mut self, acknowledged: u32) {
        self.sent_again = acknowledged;
        self.lost_below = acknowledged;
        self.end = acknowledged.wrapping_sub(1);
    }

    /// True while nothing is lost, doubtful or selectively acknowledged.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.duplicates == 0 && self.sacked.is_empty()
    }

    /// Takes the blocks of a SACK option; true when they tell something new.
    /// Blocks outside of what is in flight are forged or old, and not taken.
    pub(super) fn sack(&mut self, blocks: &[(u32, u32)], first: u32, next: u32) -> bool {
        let mut news = false;
        for &(start, end) in blocks {
            if before(start, end) && !before(start, first) && !before(next, end) {
                news |= self.mark(start, end, first);
            }
        }
        news
    }

    fn mark(&mut self, start: u32, end: u32, origin: u32) -> bool {
        let distance = |sequence: u32| sequence.wrapping_sub(origin);
        let from = self
            .sacked
            .partition_point(|range| distance(range.1) < distance(start));
        let to = self
            .sacked
            .partition_point(|range| distance(range.0) <= distance(end));
        let Some(touched) = self.sacked.get(from..to) else {
            return false;
        };
        let (Some(&low), Some(&high)) = (touched.first(), touched.last()) else {
            if self.sacked.len() >= RANGES_MAX {
                return false;
            }
            if self.sacked.capacity() == 0 {
                self.sacked.reserve_exact(RANGES_MAX);
            }
            self.sacked.insert(from, (start, end));
            return true;
        };
        let start = if before(low.0, start) { low.0 } else { start };
        let end = if before(end, high.1) { high.1 } else { end };
        if touched == [(start, end)] {
            return false;
        }
        self.sacked.drain(from + 1..to);
        if let Some(range) = self.sacked.get_mut(from) {
            *range = (start, end);
        }
        true
    }

    /// Bytes of the scoreboard between two marks.
    fn sacked_between(&self, from: u32, to: u32) -> u32 {
        let mut bytes = 0u32;
        for &(start, end) in &self.sacked {
            let start = if before(start, from) { from } else { start };
            let end = if before(to, end) { to } else { end };
            if before(start, end) {
                bytes = bytes.saturating_add(end.wrapping_sub(start));
            }
        }
        bytes
    }

    /// Bytes in flight (RFC 6675 §4, `SetPipe`): sent, neither acknowledged nor
    /// lost, or sent again.
    #[inline]
    pub(super) fn pipe(&self, first: u32, next: u32, mss: u32, sack: bool) -> u32 {
        let outstanding = next.wrapping_sub(first);
        if self.is_quiet() {
            return outstanding;
        }
        self.pipe_of_loss(first, next, outstanding, mss, sack)
    }

    #[cold]
    fn pipe_of_loss(&self, first: u32, next: u32, outstanding: u32, mss: u32, sack: bool) -> u32 {
        let mut gone = self.sacked_between(first, next);
        if before(self.sent_again, self.lost_below) {
            let lost = self.lost_below.wrapping_sub(self.sent_again);
            gone += lost.saturating_sub(self.sacked_between(self.sent_again, self.lost_below));
        }
        if !sack && self.phase != Phase::Loss {
            // Each duplicate tells of a segment that has left the network: what
            // RFC 6582 does by inflating the window.
            gone = gone.saturating_add(self.duplicates.saturating_mul(mss));
        }
        outstanding.saturating_sub(gone)
    }

    /// Finds what the scoreboard shows to be lost (RFC 6675 §4, `IsLost`).
    fn find_lost(&mut self, mss: u32) {
        let mut bytes = 0u32;
        let mut islands = 0;
        for &(start, end) in self.sacked.iter().rev() {
            bytes = bytes.saturating_add(end.wrapping_sub(start));
            islands += 1;
            if islands >= DUPLICATES || bytes > (DUPLICATES - 1) * mss {
                if before(self.lost_below, start) {
                    self.lost_below = start;
                }
                return;
            }
        }
    }

    /// A duplicate acknowledgment of `first`, or one with news in its SACK
    /// option. True when fast recovery begins.
    pub(super) fn duplicate(&mut self, first: u32, next: u32, mss: u32, sack: bool) -> bool {
        self.duplicates = self.duplicates.saturating_add(1);
        self.find_lost(mss);
        if self.phase != Phase::Open {
            return false;
        }
        let lost = before(first, self.lost_below);
        // Duplicates of what a timeout has sent again say nothing new (RFC 6582
        // §3.2, step 1); with SACK they are told apart by the scoreboard.
        let counts = self.duplicates >= DUPLICATES && (sack || before(self.end, first));
        if !lost && !counts {
            return false;
        }
        self.phase = Phase::Fast;
        self.end = next;
        self.sent_again = first;
        self.lose_first(first, next, mss);
        true
    }

    /// The first unacknowledged segment is lost.
    fn lose_first(&mut self, first: u32, next: u32, mss: u32) {
        let left = next.wrapping_sub(first).min(mss);
        let end = first.wrapping_add(left);
        if before(self.lost_below, end) {
            self.lost_below = end;
        }
    }

    /// `first` is now the first unacknowledged byte. True when recovery ends.
    pub(super) fn acknowledged(
        &mut self,
        first: u32,
        next: u32,
        bytes: u32,
        mss: u32,
        sack: bool,
    ) -> bool {
        self.sacked.retain_mut(|range| {
            if before(range.0, first) {
                range.0 = first;
            }
            before(range.0, range.1)
        });
        if self.sacked.is_empty() && self.sacked.capacity() != 0 {
            self.sacked = Vec::new();
        }
        if self.phase == Phase::Open || !before(first, self.end) {
            let over = self.phase != Phase::Open;
            self.phase = Phase::Open;
            self.duplicates = 0;
            self.follow(first);
            return over;
        }
        if before(self.sent_again, first) {
            self.sent_again = first;
        }
        if before(self.lost_below, first) {
            self.lost_below = first;
        }
        if self.phase == Phase::Fast {
            if sack {
                self.find_lost(mss);
            } else {
                self.duplicates = self.duplicates.saturating_sub(bytes / mss.max(1));
                // Whatever was sent again lay below.
                self.sent_again = first;
            }
            if self.sent_again == first {
                // A partial acknowledgment: the next one is lost too (RFC 6582
                // §3.2, step 3).
                self.lose_first(first, next, mss);
            }
        }
        false
    }

    /// The retransmission timer has expired: all in flight is lost. `again` when
    /// it has expired for this before: then the scoreboard is no longer believed,
    /// for a receiver may drop what it has not acknowledged (RFC 2018 §8).
    pub(super) fn timeout(&mut self, first: u32, next: u32, again: bool) {
        if again || self.sacked.first().is_some_and(|range| range.0 == first) {
            self.sacked = Vec::new();
        }
        self.phase = Phase::Loss;
        self.duplicates = 0;
        self.end = next;
        self.sent_again = first;
        self.lost_below = next;
    }

    /// All in flight is lost for another reason than congestion: it was too
    /// large for the path.
    pub(super) fn lose_all(&mut self, first: u32, next: u32) {
        if self.phase == Phase::Open {
            self.phase = Phase::Fast;
        }
        self.end = next;
        self.sent_again = first;
        self.lost_below = next;
    }

    /// The first lost bytes that were not sent again: where they begin and end.
    pub(super) fn next_lost(&self, first: u32) -> Option<(u32, u32)> {
        if self.phase == Phase::Open {
            return None;
        }
        let mut start = self.sent_again;
        if before(start, first) {
            start = first;
        }
        let mut end = self.lost_below;
        for &(island, after) in &self.sacked {
            if before(start, island) {
                if before(island, end) {
                    end = island;
                }
                break;
            }
            if before(start, after) {
                start = after;
            }
        }
        before(start, end).then_some((start, end))
    }

    /// Lost bytes up to `end` were sent again.
    pub(super) fn sent_up_to(&mut self, end: u32) {
        if before(self.sent_again, end) {
            self.sent_again = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1000;
    /// So that everything wraps.
    const FIRST: u32 = u32::MAX - 2500;

    fn at(offset: u32) -> u32 {
        FIRST.wrapping_add(offset)
    }

    fn blocks(offsets: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let block = |&(start, end): &(u32, u32)| (at(start), at(end));
        offsets.iter().map(block).collect()
    }

    #[test]
    fn three_segments_beyond_a_hole_mean_a_loss() {
        let mut recovery = Recovery::new(FIRST);
        let next = at(10_000);
        assert!(recovery.sack(&blocks(&[(1000, 2000)]), FIRST, next));
        assert!(!recovery.duplicate(FIRST, next, MSS, true));
        assert_eq!(recovery.pipe(FIRST, next, MSS, true), 9000);
        assert!(recovery.sack(&blocks(&[(1000, 3000)]), FIRST, next));
        assert!(!recovery.duplicate(FIRST, next, MSS, true));
        assert!(recovery.sack(&blocks(&[(1000, 4000)]), FIRST, next));
        assert!(recovery.duplicate(FIRST, next, MSS, true));
        assert_eq!(recovery.next_lost(FIRST), Some((FIRST, at(1000))));
        assert_eq!(recovery.pipe(FIRST, next, MSS, true), 6000);
        recovery.sent_up_to(at(1000));
        assert_eq!(recovery.next_lost(FIRST), None);
        assert_eq!(recovery.pipe(FIRST, next, MSS, true), 7000);
        // A second hole shows.
        assert!(recovery.sack(&blocks(&[(5000, 9000)]), FIRST, next));
        assert!(!recovery.duplicate(FIRST, next, MSS, true));
        assert_eq!(recovery.next_lost(FIRST), Some((at(4000), at(5000))));
        assert!(!recovery.acknowledged(at(4000), next, 4000, MSS, true));
        assert!(recovery.acknowledged(at(10_000), next, 6000, MSS, true));
        assert!(recovery.is_quiet());
        assert_eq!(recovery.sacked.capacity(), 0);
    }

    #[test]
    fn without_sack_a_partial_acknowledgment_names_the_next_loss() {
        let mut recovery = Recovery::new(FIRST);
        let next = at(10_000);
        assert!(!recovery.duplicate(FIRST, next, MSS, false));
        assert!(!recovery.duplicate(FIRST, next, MSS, false));
        assert_eq!(recovery.pipe(FIRST, next, MSS, false), 8000);
        assert!(recovery.duplicate(FIRST, next, MSS, false));
        assert_eq!(recovery.next_lost(FIRST), Some((FIRST, at(1000))));
        recovery.sent_up_to(at(1000));
        assert!(!recovery.acknowledged(at(5000), next, 5000, MSS, false));
        assert_eq!(recovery.next_lost(at(5000)), Some((at(5000), at(6000))));
        assert!(recovery.acknowledged(next, next, 5000, MSS, false));
    }

    #[test]
    fn a_timeout_loses_all_but_what_was_selectively_acknowledged() {
        let mut recovery = Recovery::new(FIRST);
        let next = at(5000);
        recovery.sack(&blocks(&[(2000, 3000)]), FIRST, next);
        recovery.timeout(FIRST, next, false);
        assert_eq!(recovery.pipe(FIRST, next, MSS, true), 0);
        assert_eq!(recovery.next_lost(FIRST), Some((FIRST, at(2000))));
        recovery.sent_up_to(at(2000));
        assert_eq!(recovery.next_lost(FIRST), Some((at(3000), next)));
        // A receiver that reneged: nothing it said is believed.
        recovery.timeout(FIRST, next, true);
        assert_eq!(recovery.next_lost(FIRST), Some((FIRST, next)));
    }

    #[test]
    fn forged_blocks_are_not_taken() {
        let mut recovery = Recovery::new(FIRST);
        let next = at(5000);
        for block in [
            (4000, 5001),
            (2000, 1000),
            (1000, 1000),
            (0u32.wrapping_sub(1), 10),
        ] {
            assert!(!recovery.sack(&blocks(&[block]), FIRST, next), "{block:?}");
        }
    }

    #[test]
    fn a_peer_that_splits_hairs_is_not_followed() {
        let mut recovery = Recovery::new(FIRST);
        let next = at(1_000_000);
        for hole in 0..10_000 {
            recovery.sack(&blocks(&[(hole * 2 + 1, hole * 2 + 2)]), FIRST, next);
        }
        assert_eq!(recovery.sacked.len(), RANGES_MAX);
        assert_eq!(recovery.sacked.capacity(), RANGES_MAX);
    }

    proptest! {
        /// The scoreboard is the union of what it was told.
        #[test]
        fn the_scoreboard_is_a_union(
            told in prop::collection::vec((0u32..60, 1u32..9), 1..30), acknowledged in 0u32..60,
        ) {
            let mut recovery = Recovery::new(FIRST);
            let next = at(100);
            let mut model = [false; 100];
            for &(start, length) in &told {
                let end = start + length;
                let new = model[start as usize..end as usize].contains(&false);
                prop_assert_eq!(recovery.sack(&blocks(&[(start, end)]), FIRST, next), new);
                model[start as usize..end as usize].fill(true);
            }
            recovery.acknowledged(at(acknowledged), next, acknowledged, MSS, true);
            for offset in 0..100 {
                let held = recovery.sacked.iter().any(|range| {
                    !before(at(offset), range.0) && before(at(offset), range.1)
                });
                prop_assert_eq!(held, offset >= acknowledged && model[offset as usize]);
            }
            for pair in recovery.sacked.windows(2) {
                prop_assert!(before(pair[0].1, pair[1].0));
            }
        }
    }
}
