//! The receive buffer: a ring in which segments are put where they belong, and
//! the list of what lies beyond a hole.
//!
//! Memory is bounded twice: the ring by the window that was announced (a segment
//! beyond it never gets here), the list by [`RANGES_MAX`]. So neither a segment
//! at the far end of the window nor a thousand one-byte islands costs more.

use super::ring::{KEEP_ABOVE, Ring};
use tidewall_wire::tcp::{SackBlocks, before};

/// Islands beyond holes that are kept; a segment that would make another is
/// dropped, as RFC 2018 §8 allows, and sent again later. A slow start that
/// overshoots loses every second segment of a round: with 32 islands, two in a
/// hundred segments of a lossless path of 100 ms were sent in vain.
pub(super) const RANGES_MAX: usize = 1024;

/// What a segment did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inserted {
    /// So many bytes more are in order.
    InOrder(u32),
    /// It lies beyond a hole and is kept.
    Beyond,
    /// Nothing of it was new.
    Duplicate,
    /// It lies beyond a hole and could not be kept.
    Refused,
}

/// The receive buffer.
#[derive(Default)]
pub(super) struct Assembler {
    ring: Ring,
    /// Bytes in order that nobody has read.
    unread: u32,
    /// The sequence number after them.
    next: u32,
    /// Islands, the most recently touched first (RFC 2018 §4), disjoint and not
    /// adjacent. Empty and without memory in the ordinary case.
    beyond: Vec<(u32, u32)>,
    /// What has come again since the peer was last told of such (RFC 2883);
    /// empty if nothing has.
    copy: (u32, u32),
    /// Where the peer's FIN is, while it lies beyond a hole.
    fin: Option<u32>,
    /// Whether there is any of the three.
    disorder: bool,
}

impl Assembler {
    /// An empty one that expects `next`.
    pub(super) fn new(next: u32) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// The next sequence number expected, FIN aside.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Bytes in order that nobody has read.
    pub(super) fn unread(&self) -> u32 {
        self.unread
    }

    /// True when nothing waits beyond a hole.
    #[inline]
    pub(super) fn is_contiguous(&self) -> bool {
        self.beyond.is_empty()
    }

    /// Notes that what lies between two sequence numbers has come again. What
    /// touches the last note joins it, as long as both lie on one side of RCV.NXT:
    /// a block across it would mean nothing to the peer.
    #[cold]
    pub(super) fn note_copy(&mut self, mut first: u32, mut end: u32) {
        let beyond = before(self.next, end);
        let (last_first, last_end) = self.copy;
        if self.has_copy()
            && beyond == before(self.next, last_end)
            && !before(end, last_first)
            && !before(last_end, first)
        {
            if before(last_first, first) {
                first = last_first;
            }
            if before(end, last_end) {
                end = last_end;
            }
        }
        self.copy = (first, end);
        self.disorder = true;
    }

    /// True while the peer is to be told that something has come again.
    fn has_copy(&self) -> bool {
        self.copy.0 != self.copy.1
    }

    /// The peer was told.
    #[inline]
    pub(super) fn told(&mut self) {
        if self.disorder {
            self.copy = (0, 0);
            self.update_disorder();
        }
    }

    /// The note, for [`freeze`](super::freeze).
    pub(super) fn copy(&self) -> (u32, u32) {
        self.copy
    }

    /// See [`Assembler::copy`].
    pub(super) fn restore_copy(&mut self, copy: (u32, u32)) {
        self.copy = copy;
        self.update_disorder();
    }

    /// Notes where the peer's FIN is beyond a hole; nothing once it is in order.
    pub(super) fn note_fin(&mut self, fin: Option<u32>) {
        self.fin = fin;
        self.update_disorder();
    }

    fn update_disorder(&mut self) {
        self.disorder = !self.beyond.is_empty() || self.has_copy() || self.fin.is_some();
    }

    /// True when there is something for a SACK option to tell.
    #[inline]
    pub(super) fn has_blocks(&self) -> bool {
        self.disorder
    }

    /// The end of what lies furthest beyond a hole, if anything does.
    pub(super) fn furthest(&self) -> Option<u32> {
        let ends = self.beyond.iter().map(|range| range.1);
        ends.max_by_key(|end| end.wrapping_sub(self.next))
    }

    /// Takes bytes at `sequence`. The caller has cut off what lies outside the
    /// window; what was received before is cut off here.
    #[inline]
    pub(super) fn insert(&mut self, mut sequence: u32, mut bytes: &[u8]) -> Inserted {
        let overlaps = before(sequence, self.next);
        if overlaps {
            let old = self.next.wrapping_sub(sequence) as usize;
            let copied = bytes.len().min(old) as u32;
            self.note_copy(sequence, sequence.wrapping_add(copied));
            bytes = bytes.get(old..).unwrap_or_default();
            sequence = self.next;
        }
        if bytes.is_empty() {
            return Inserted::Duplicate;
        }
        if sequence != self.next {
            return self.insert_beyond(sequence, bytes);
        }
        self.ring.write(self.unread as usize, bytes);
        let mut advanced = bytes.len() as u32;
        if !self.beyond.is_empty() {
            advanced = self.close_holes(advanced, overlaps);
        }
        self.unread += advanced;
        self.next = self.next.wrapping_add(advanced);
        Inserted::InOrder(advanced)
    }

    /// The first bytes between two distances from RCV.NXT that are held beyond a
    /// hole: what RFC 2883 §4.2 tells of a segment that overlaps several islands.
    fn first_held(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let distance = |sequence: u32| sequence.wrapping_sub(self.next);
        let held = self.beyond.iter().filter_map(|range| {
            let first = distance(range.0).max(from);
            let end = distance(range.1).min(to);
            (first < end).then_some((first, end))
        });
        held.min()
            .map(|(first, end)| (self.next.wrapping_add(first), self.next.wrapping_add(end)))
    }

    /// How far order reaches when `advanced` bytes have come in order; `told` when
    /// a copy was noted for their segment already.
    #[cold]
    fn close_holes(&mut self, mut advanced: u32, told: bool) -> u32 {
        let origin = self.next;
        if !told && let Some((first, end)) = self.first_held(0, advanced) {
            self.note_copy(first, end);
        }
        loop {
            let mut more = false;
            self.beyond.retain(|&(first, end)| {
                if first.wrapping_sub(origin) > advanced {
                    return true;
                }
                advanced = advanced.max(end.wrapping_sub(origin));
                more = true;
                false
            });
            if !more || self.beyond.is_empty() {
                break;
            }
        }
        if self.beyond.is_empty() {
            self.beyond = Vec::new();
            self.update_disorder();
        }
        advanced
    }

    #[cold]
    fn insert_beyond(&mut self, sequence: u32, bytes: &[u8]) -> Inserted {
        let origin = self.next;
        let from = sequence.wrapping_sub(origin);
        let mut first = from;
        let mut end = from + bytes.len() as u32;
        if let Some((first, end)) = self.first_held(from, end) {
            self.note_copy(first, end);
        }
        let mut known = false;
        let mut touched = 0;
        for range in &self.beyond {
            let range = (range.0.wrapping_sub(origin), range.1.wrapping_sub(origin));
            if range.0 <= end && first <= range.1 {
                known |= range.0 <= from && from + bytes.len() as u32 <= range.1;
                touched += 1;
            }
        }
        if touched == 0 && self.beyond.len() >= RANGES_MAX {
            return Inserted::Refused;
        }
        self.beyond.retain(|range| {
            let range = (range.0.wrapping_sub(origin), range.1.wrapping_sub(origin));
            let apart = range.0 > end || first > range.1;
            if !apart {
                first = first.min(range.0);
                end = end.max(range.1);
            }
            apart
        });
        self.beyond
            .insert(0, (origin.wrapping_add(first), origin.wrapping_add(end)));
        self.disorder = true;
        if known {
            return Inserted::Duplicate;
        }
        self.ring.write(self.unread as usize + from as usize, bytes);
        Inserted::Beyond
    }

    /// The blocks of a SACK option: first what has come again (RFC 2883 §4).
    /// A FIN counts as a byte.
    pub(super) fn sack(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if self.has_copy() {
            blocks.push(self.copy.0, self.copy.1);
        }
        for &(first, end) in &self.beyond {
            let end = end.wrapping_add((self.fin == Some(end)).into());
            if !blocks.push(first, end) {
                break;
            }
        }
        if let Some(fin) = self.fin
            && self.beyond.iter().all(|&(_, end)| end != fin)
        {
            blocks.push(fin, fin.wrapping_add(1));
        }
        blocks
    }

    /// What is in order and not read.
    pub(super) fn unread_slices(&self) -> [&[u8]; 2] {
        self.ring.slices(0, self.unread as usize)
    }

    /// Forgets up to `bytes` that were read; returns how many.
    pub(super) fn consume(&mut self, bytes: usize) -> u32 {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.unread);
        self.unread -= bytes;
        self.ring.advance(bytes as usize);
        if self.unread == 0 && self.ring.capacity() <= KEEP_ABOVE {
            self.release_if_empty();
        }
        bytes
    }

    /// Gives the memory back when it holds nothing.
    pub(super) fn release_if_empty(&mut self) {
        if self.unread == 0 && self.beyond.is_empty() {
            self.ring.release();
        }
    }

    /// Drops everything that is held.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.next);
    }

    /// Bytes allocated for data.
    pub(super) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// What lies beyond holes, for [`freeze`](super::freeze).
    pub(super) fn islands(&self) -> impl Iterator<Item = (u32, [&[u8]; 2])> {
        self.beyond.iter().rev().map(|&(first, end)| {
            let offset = self.unread as usize + first.wrapping_sub(self.next) as usize;
            let length = end.wrapping_sub(first) as usize;
            (first, self.ring.slices(offset, length))
        })
    }

    /// Fills an empty one, for [`freeze`](super::freeze): data that ends at
    /// [`Assembler::next`].
    pub(super) fn restore_unread(&mut self, bytes: &[u8]) {
        self.ring.write(0, bytes);
        self.unread = bytes.len() as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// So that everything wraps.
    const FIRST: u32 = u32::MAX - 300;

    fn byte(offset: usize) -> u8 {
        (offset * 7 + offset / 256) as u8
    }

    fn data(from: usize, length: usize) -> Vec<u8> {
        (from..from + length).map(byte).collect()
    }

    #[test]
    fn islands_are_bounded_and_known_ones_grow() {
        let mut assembler = Assembler::new(FIRST);
        for island in 0..RANGES_MAX as u32 {
            let at = FIRST.wrapping_add(island * 10 + 5);
            assert_eq!(assembler.insert(at, b"abc"), Inserted::Beyond);
        }
        let next = FIRST.wrapping_add(RANGES_MAX as u32 * 10 + 5);
        assert_eq!(assembler.insert(next, b"abc"), Inserted::Refused);
        assert_eq!(
            assembler.insert(FIRST.wrapping_add(8), b"de"),
            Inserted::Beyond,
            "it touches one"
        );
        assert_eq!(
            assembler.insert(FIRST.wrapping_add(6), b"bcd"),
            Inserted::Duplicate
        );
        assert!(assembler.beyond.capacity() <= RANGES_MAX);
        assert_eq!(assembler.furthest(), Some(next.wrapping_sub(7)));
    }

    proptest! {
        /// Whatever comes in whatever order and overlap: what is in order is what
        /// was sent, and what is told to be held is held.
        #[test]
        fn order_is_restored(
            segments in prop::collection::vec((0usize..600, 1usize..80, 0usize..90), 1..60),
        ) {
            let mut assembler = Assembler::new(FIRST);
            let mut held = vec![false; 700];
            let mut read = 0;
            for (from, length, consumed) in segments {
                let refused = assembler.insert(
                    FIRST.wrapping_add(from as u32), &data(from, length),
                ) == Inserted::Refused;
                if !refused {
                    held[from..from + length].fill(true);
                }
                let next = held.iter().position(|held| !held).unwrap();
                prop_assert_eq!(assembler.next(), FIRST.wrapping_add(next as u32));
                let unread = assembler.unread_slices().concat();
                prop_assert_eq!(&unread, &data(read, next - read));
                for (first, pieces) in assembler.islands() {
                    let first = first.wrapping_sub(FIRST) as usize;
                    let bytes = pieces.concat();
                    prop_assert!(!held[first - 1] && first > next);
                    prop_assert!(!held[first + bytes.len()]);
                    prop_assert_eq!(&bytes, &data(first, bytes.len()));
                }
                let islands: usize = assembler.islands().map(|island| island.1.concat().len()).sum();
                let beyond = held[next..].iter().filter(|held| **held).count();
                prop_assert_eq!(islands, beyond);
                read += assembler.consume(consumed) as usize;
            }
        }
    }
}
