//! The receive buffer: a queue of what is in order, and apart from it what lies
//! beyond holes ([`islands`](super::islands)).
//!
//! Memory is that of what has come: neither a segment at the far end of the window
//! nor a thousand islands of one byte make more of the window resident.

use super::byte_queue::ByteQueue;
use super::islands::{Bounds, Islands, Kept};
use tidewall_wire::tcp::{SackBlocks, before};

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
    /// It is in order, and there is no memory for it.
    NoMemory,
}

/// What an [`Assembler`] may take; asked for only when that decides.
pub(super) trait ReceiveLimits {
    /// What may be held beyond holes.
    fn beyond(&self) -> Bounds;
    /// Whether it may grow for so many bytes in order after those not read.
    fn in_order(&self, unread: u32, bytes: usize) -> bool;
}

impl ReceiveLimits for Bounds {
    fn beyond(&self) -> Bounds {
        *self
    }

    fn in_order(&self, _unread: u32, _bytes: usize) -> bool {
        true
    }
}

/// The receive buffer.
#[derive(Default)]
pub(super) struct Assembler {
    /// Bytes in order that nobody has read.
    data: ByteQueue,
    /// The sequence number after them.
    next: u32,
    /// Null in the ordinary case.
    disorder: Option<Box<Disorder>>,
}

/// What is out of order, and what the peer is to be told of it.
#[derive(Default)]
struct Disorder {
    islands: Islands,
    /// What has come again since the peer was last told of such (RFC 2883);
    /// empty if nothing has.
    copy: (u32, u32),
    /// Where the peer's FIN is, while it lies beyond a hole.
    fin: Option<u32>,
}

impl Disorder {
    /// True while the peer is to be told that something has come again.
    fn has_copy(&self) -> bool {
        self.copy.0 != self.copy.1
    }

    fn is_over(&self) -> bool {
        self.islands.is_empty() && !self.has_copy() && self.fin.is_none()
    }
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
        self.data.len()
    }

    /// True when nothing waits beyond a hole.
    #[inline]
    pub(super) fn is_contiguous(&self) -> bool {
        self.islands().is_none_or(Islands::is_empty)
    }

    #[inline]
    fn islands(&self) -> Option<&Islands> {
        self.disorder.as_deref().map(|disorder| &disorder.islands)
    }

    fn disorder(&mut self) -> &mut Disorder {
        self.disorder.get_or_insert_default()
    }

    /// Gives back what notes disorder once there is none.
    fn end_disorder(&mut self) {
        if self.disorder.as_deref().is_some_and(Disorder::is_over) {
            self.disorder = None;
        }
    }

    /// Notes that what lies between two sequence numbers has come again. What
    /// touches the last note joins it, as long as both lie on one side of RCV.NXT:
    /// a block across it would mean nothing to the peer.
    #[cold]
    pub(super) fn note_copy(&mut self, mut first: u32, mut end: u32) {
        let expected = self.next;
        let beyond = before(expected, end);
        let disorder = self.disorder();
        let (last_first, last_end) = disorder.copy;
        if disorder.has_copy()
            && beyond == before(expected, last_end)
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
        disorder.copy = (first, end);
        self.end_disorder();
    }

    /// The peer was told.
    #[inline]
    pub(super) fn told(&mut self) {
        if self.disorder.is_some() {
            self.restore_copy((0, 0));
        }
    }

    /// The note, for [`freeze`](super::freeze).
    pub(super) fn copy(&self) -> (u32, u32) {
        self.disorder
            .as_deref()
            .map_or((0, 0), |disorder| disorder.copy)
    }

    /// See [`Assembler::copy`].
    #[cold]
    pub(super) fn restore_copy(&mut self, copy: (u32, u32)) {
        self.disorder().copy = copy;
        self.end_disorder();
    }

    /// Notes where the peer's FIN is beyond a hole; nothing once it is in order.
    pub(super) fn note_fin(&mut self, fin: Option<u32>) {
        self.disorder().fin = fin;
        self.end_disorder();
    }

    /// True when there is something for a SACK option to tell.
    #[inline]
    pub(super) fn has_blocks(&self) -> bool {
        self.disorder.is_some()
    }

    /// The end of what lies furthest beyond a hole, if anything does.
    pub(super) fn furthest(&self) -> Option<u32> {
        self.islands()?.furthest()
    }

    /// Takes bytes at `sequence`. The caller has cut off what lies outside the
    /// window; what was received before is cut off here.
    #[inline]
    pub(super) fn insert(
        &mut self,
        mut sequence: u32,
        mut bytes: &[u8],
        limits: &impl ReceiveLimits,
    ) -> Inserted {
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
            return self.insert_beyond(sequence, bytes, limits.beyond());
        }
        if self.data.grows_with(bytes.len()) && !limits.in_order(self.unread(), bytes.len()) {
            return Inserted::NoMemory;
        }
        self.data.push(bytes);
        let mut advanced = bytes.len() as u32;
        if self.disorder.is_some() {
            advanced = self.close_holes(advanced, overlaps);
        }
        self.next = self.next.wrapping_add(advanced);
        Inserted::InOrder(advanced)
    }

    /// How far order reaches when `advanced` bytes have come in order; `told` when
    /// a copy was noted for their segment already.
    #[cold]
    fn close_holes(&mut self, advanced: u32, told: bool) -> u32 {
        let mut reached = self.next.wrapping_add(advanced);
        let held = self
            .islands()
            .and_then(|islands| islands.first_held(self.next, reached));
        if !told && let Some((first, end)) = held {
            self.note_copy(first, end);
        }
        let Some(disorder) = self.disorder.as_deref_mut() else {
            return advanced;
        };
        while let Some((first, mut island)) = disorder.islands.take_reached(reached) {
            island.consume(reached.wrapping_sub(first));
            reached = reached.wrapping_add(island.len());
            self.data.append(island);
        }
        self.end_disorder();
        reached.wrapping_sub(self.next)
    }

    #[cold]
    fn insert_beyond(&mut self, sequence: u32, bytes: &[u8], bounds: Bounds) -> Inserted {
        let end = sequence.wrapping_add(bytes.len() as u32);
        let held = self
            .islands()
            .and_then(|islands| islands.first_held(sequence, end));
        if let Some((first, end)) = held {
            self.note_copy(first, end);
        }
        let kept = self.disorder().islands.insert(sequence, bytes, bounds);
        self.end_disorder();
        match kept {
            Kept::New => Inserted::Beyond,
            Kept::Known => Inserted::Duplicate,
            Kept::Refused => Inserted::Refused,
        }
    }

    /// The blocks of a SACK option: first what has come again (RFC 2883 §4).
    /// A FIN counts as a byte.
    pub(super) fn sack(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let Some(disorder) = self.disorder.as_deref() else {
            return blocks;
        };
        if disorder.has_copy() {
            blocks.push(disorder.copy.0, disorder.copy.1);
        }
        for (first, end) in disorder.islands.ranges().take(SackBlocks::MAX) {
            let fin = disorder.fin == Some(end);
            if !blocks.push(first, end.wrapping_add(fin.into())) {
                break;
            }
        }
        if let Some(fin) = disorder.fin
            && disorder.islands.furthest() != Some(fin)
        {
            blocks.push(fin, fin.wrapping_add(1));
        }
        blocks
    }

    /// What is in order and not read.
    pub(super) fn unread_slices(&self) -> [&[u8]; 2] {
        self.data.slices(0, self.data.len())
    }

    /// Forgets up to `bytes` that were read; returns how many.
    pub(super) fn consume(&mut self, bytes: usize) -> u32 {
        self.data.consume(u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Gives the memory back that holds nothing.
    pub(super) fn release_if_empty(&mut self) {
        self.data.release_if_empty();
    }

    /// Drops what lies beyond holes, and gives back what is not needed for the rest.
    pub(super) fn prune(&mut self) {
        if let Some(disorder) = self.disorder.as_deref_mut() {
            disorder.islands = Islands::default();
            if before(self.next, disorder.copy.1) {
                // Without its island it would say that it is held.
                disorder.copy = (0, 0);
            }
        }
        self.end_disorder();
        self.data.fit();
    }

    /// Drops everything that is held.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.next);
    }

    /// Bytes allocated for what is in order.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Bytes of memory for what lies beyond holes.
    #[inline]
    pub(super) fn memory_beyond(&self) -> usize {
        self.islands().map_or(0, Islands::memory)
    }

    /// What lies beyond holes, for [`freeze`](super::freeze).
    pub(super) fn beyond(&self) -> impl Iterator<Item = (u32, [&[u8]; 2])> {
        self.islands().into_iter().flat_map(Islands::data)
    }

    /// Fills an empty one, for [`freeze`](super::freeze): data that ends at
    /// [`Assembler::next`].
    pub(super) fn restore_unread(&mut self, bytes: &[u8]) {
        self.data.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::islands::{FIRST_ISLAND, ISLAND, ISLANDS_MAX};
    use proptest::prelude::*;

    /// So that everything wraps.
    const FIRST: u32 = u32::MAX - 300;

    fn byte(offset: usize) -> u8 {
        (offset * 7 + offset / 256) as u8
    }

    fn data(from: usize, length: usize) -> Vec<u8> {
        (from..from + length).map(byte).collect()
    }

    /// One that `count` islands of three bytes lie in, ten bytes apart.
    fn scattered(count: u32, bounds: Bounds) -> Assembler {
        let mut assembler = Assembler::new(FIRST);
        for island in 0..count {
            let at = FIRST.wrapping_add(island * 10 + 5);
            assert_eq!(assembler.insert(at, b"abc", &bounds), Inserted::Beyond);
        }
        assembler
    }

    #[test]
    fn islands_are_bounded_and_known_ones_grow() {
        let most = Bounds::MOST;
        let mut assembler = scattered(ISLANDS_MAX as u32, most);
        let next = FIRST.wrapping_add(ISLANDS_MAX as u32 * 10 + 5);
        assert_eq!(assembler.insert(next, b"abc", &most), Inserted::Refused);
        assert_eq!(
            assembler.insert(FIRST.wrapping_add(8), b"de", &most),
            Inserted::Beyond,
            "it touches one"
        );
        assert_eq!(
            assembler.insert(FIRST.wrapping_add(6), b"bcd", &most),
            Inserted::Duplicate
        );
        assert_eq!(
            assembler.insert(FIRST.wrapping_add(13), b"xyabc", &most),
            Inserted::Beyond,
            "it touches the next"
        );
        assert_eq!(assembler.furthest(), Some(next.wrapping_sub(7)));
        let memory = assembler.memory_beyond();
        assert!(
            memory <= FIRST_ISLAND + ISLANDS_MAX * (64 + ISLAND),
            "{memory}"
        );
        assembler.prune();
        assert_eq!((assembler.memory_beyond(), assembler.furthest()), (0, None));
        assert!(!assembler.has_blocks());
    }

    #[test]
    fn crumbs_leave_places_to_segments() {
        let bounds = Bounds::new(64 << 10, 1460);
        assert_eq!(bounds.islands, 64);
        let mut assembler = scattered(48, bounds);
        let at = |island: u32| FIRST.wrapping_add(island * 2000 + 5000);
        assert_eq!(assembler.insert(at(0), b"abc", &bounds), Inserted::Refused);
        for island in 0..16 {
            assert_eq!(
                assembler.insert(at(island), &[1; 1460], &bounds),
                Inserted::Beyond
            );
        }
        assert_eq!(
            assembler.insert(at(16), &[1; 1460], &bounds),
            Inserted::Refused
        );
        assert_eq!(
            assembler.insert(at(0), &[1; 1461], &Bounds::NOTHING),
            Inserted::Refused,
            "nothing more of a known one"
        );
    }

    #[test]
    fn a_byte_far_beyond_costs_a_byte() {
        let mut assembler = Assembler::new(FIRST);
        let far = FIRST.wrapping_add(6 << 20);
        assert_eq!(assembler.insert(far, b"x", &Bounds::MOST), Inserted::Beyond);
        assert_eq!(assembler.capacity(), 0);
        assert!(assembler.memory_beyond() <= FIRST_ISLAND + 64 + ISLAND);
    }

    #[test]
    fn a_hole_before_much_is_filled_without_copying_it() {
        let mut assembler = Assembler::new(FIRST);
        let at = |offset: usize| FIRST.wrapping_add(offset as u32);
        const END: usize = 1_000_000;
        for start in (1000..END).step_by(1000) {
            assembler.insert(at(start), &data(start, 1000), &Bounds::MOST);
        }
        let before = assembler.memory_beyond();
        let filled = assembler.insert(at(0), &data(0, 1000), &Bounds::MOST);
        assert_eq!(filled, Inserted::InOrder(END as u32));
        assert!(assembler.capacity() <= before, "its memory is the island's");
        assert_eq!(assembler.unread_slices().concat(), data(0, END));
        assert!(!assembler.has_blocks());
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
                    FIRST.wrapping_add(from as u32), &data(from, length), &Bounds::MOST,
                ) == Inserted::Refused;
                if !refused {
                    held[from..from + length].fill(true);
                }
                let next = held.iter().position(|held| !held).unwrap();
                prop_assert_eq!(assembler.next(), FIRST.wrapping_add(next as u32));
                let unread = assembler.unread_slices().concat();
                prop_assert_eq!(&unread, &data(read, next - read));
                for (first, pieces) in assembler.beyond() {
                    let first = first.wrapping_sub(FIRST) as usize;
                    let bytes = pieces.concat();
                    prop_assert!(!held[first - 1] && first > next);
                    prop_assert!(!held[first + bytes.len()]);
                    prop_assert_eq!(&bytes, &data(first, bytes.len()));
                }
                let islands: usize = assembler.beyond().map(|island| island.1.concat().len()).sum();
                let beyond = held[next..].iter().filter(|held| **held).count();
                prop_assert_eq!(islands, beyond);
                let count = assembler.beyond().count();
                let most = FIRST_ISLAND + 2 * beyond + count * (64 + ISLAND);
                prop_assert!(assembler.memory_beyond() <= most);
                prop_assert_eq!(assembler.has_blocks(), count > 0 || assembler.copy() != (0, 0));
                read += assembler.consume(consumed) as usize;
            }
        }
    }
}
