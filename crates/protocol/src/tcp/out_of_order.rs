//! The out-of-order queue (Linux `out_of_order_queue`): data beyond holes, in its own
//! memory. So a byte at the far end of the window costs one byte, not the whole window.
//!
//! Each range holds contiguous data. The window bounds the number of ranges
//! ([`QueueLimits`]) and their data. Their memory is at most twice their data plus
//! [`RANGE_OVERHEAD`] for each. A segment costs a search in a tree, and per doubling a
//! copy of at most twice its own bytes.

use core::cmp::Ordering;
use core::ops::Bound::{Excluded, Included};
use std::collections::BTreeMap;

use super::byte_queue::ByteQueue;
use tidewall_wire::tcp::{SackBlocks, before};

/// The largest number of ranges that any connection holds. A slow start that overshoots
/// loses every second segment of a round. With 32 ranges, two in a hundred segments of a
/// lossless path of 100 ms were sent in vain.
pub(super) const RANGES_MAX: usize = 1024;

/// The largest number of ranges for the smallest window.
const RANGES_MIN: usize = 16;

/// Window that each range is assumed to need: two segments of the smallest size that
/// every path carries.
const WINDOW_PER_RANGE: u32 = 1024;

/// Memory of a range beside its data: its position in the tree, whose nodes are at worst
/// half full, and the allocator's bookkeeping for its ring.
pub(super) const RANGE_OVERHEAD: usize = 112;

/// Additional memory of the first range: a node of the tree, and the pointer to it.
pub(super) const FIRST_RANGE_OVERHEAD: usize = 512;

/// Limits of the data held beyond holes. The rest is dropped, as RFC 2018 §8 permits, and
/// retransmitted.
#[derive(Clone, Copy)]
pub(super) struct QueueLimits {
    /// The largest number of ranges; with zero nothing is held.
    pub(super) ranges: usize,
    /// A segment shorter than this begins no new range once three quarters of the ranges
    /// are in use. That reserves room for honest peers, whose segments are longer.
    pub(super) min_len: usize,
}

impl QueueLimits {
    /// Limits for a receive buffer of `buffer` bytes, where full segments carry `mss`.
    pub(super) fn new(buffer: u32, mss: u16) -> Self {
        let ranges = (buffer / WINDOW_PER_RANGE) as usize;
        Self {
            ranges: ranges.clamp(RANGES_MIN, RANGES_MAX),
            min_len: usize::from(mss / 4),
        }
    }

    pub(super) const NOTHING: Self = Self {
        ranges: 0,
        min_len: 0,
    };

    /// The largest limits of any connection.
    pub(super) const MOST: Self = Self {
        ranges: RANGES_MAX,
        min_len: 0,
    };
}

/// A sequence number, ordered among others of the same window, which is less than half of
/// the sequence space.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sequence(u32);

impl Ord for Sequence {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0.wrapping_sub(other.0) as i32).cmp(&0)
    }
}

impl PartialOrd for Sequence {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The result of inserting a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Some of it was new.
    New,
    /// None of it was new.
    Known,
    /// There was no room for it.
    Refused,
}

/// Ranges keyed by the sequence number of their first byte; disjoint and not adjacent.
#[derive(Default)]
pub(super) struct OutOfOrderQueue {
    ranges: BTreeMap<Sequence, ByteQueue>,
    /// One byte of each range touched recently, the latest first (RFC 2018 §4). An entry
    /// that lies in no range any more is ignored.
    recent: [u32; SackBlocks::MAX],
    /// Bytes allocated for data.
    capacity: usize,
}

impl OutOfOrderQueue {
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn memory(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        FIRST_RANGE_OVERHEAD + self.capacity + self.ranges.len() * RANGE_OVERHEAD
    }

    /// The range that contains a byte, or ends directly before it (`or_end`).
    fn around(&self, sequence: u32, or_end: bool) -> Option<(u32, u32)> {
        let (&Sequence(first), data) = self.ranges.range(..=Sequence(sequence)).next_back()?;
        let end = first.wrapping_add(data.len());
        (before(sequence, end) || or_end && sequence == end).then_some((first, end))
    }

    /// The end of the last range.
    pub(super) fn furthest(&self) -> Option<u32> {
        let (&Sequence(first), data) = self.ranges.last_key_value()?;
        Some(first.wrapping_add(data.len()))
    }

    /// The first contiguous bytes held between two sequence numbers: what a D-SACK
    /// reports of a segment that overlaps several ranges (RFC 2883 §4.2).
    pub(super) fn first_held(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let (first, end) = self.around(from, false).or_else(|| {
            let (&Sequence(first), data) = self.ranges.range(Sequence(from)..).next()?;
            before(first, to).then(|| (first, first.wrapping_add(data.len())))
        })?;
        let first = if before(first, from) { from } else { first };
        Some((first, if before(to, end) { to } else { end }))
    }

    /// Inserts bytes that lie beyond a hole.
    pub(super) fn insert(&mut self, sequence: u32, bytes: &[u8], limits: QueueLimits) -> Kept {
        let end = sequence.wrapping_add(bytes.len() as u32);
        let first = match self.around(sequence, true) {
            Some((first, known)) if !before(known, end) => {
                self.touch(first);
                return Kept::Known;
            }
            _ if limits.ranges == 0 => return Kept::Refused,
            Some((first, known)) => {
                let new = known.wrapping_sub(sequence) as usize;
                self.push(first, bytes.get(new..).unwrap_or_default());
                first
            }
            None => {
                let few = limits.ranges - limits.ranges / 4;
                let most = if bytes.len() < limits.min_len {
                    few
                } else {
                    limits.ranges
                };
                if self.len() >= most && !self.begins_before(sequence, end) {
                    return Kept::Refused;
                }
                self.push(sequence, bytes);
                sequence
            }
        };
        while self.join_next(first) {}
        self.touch(first);
        Kept::New
    }

    /// True when a range begins after `sequence`, up to `end`.
    fn begins_before(&self, sequence: u32, end: u32) -> bool {
        let between = (Excluded(Sequence(sequence)), Included(Sequence(end)));
        self.ranges.range(between).next().is_some()
    }

    /// Adds bytes to the range that begins at `first`.
    fn push(&mut self, first: u32, bytes: &[u8]) {
        let data = self.ranges.entry(Sequence(first)).or_default();
        self.capacity -= data.capacity();
        data.push(bytes);
        self.capacity += data.capacity();
    }

    /// Merges a range with the next one if that begins inside it or directly after it.
    /// Returns false otherwise.
    fn join_next(&mut self, first: u32) -> bool {
        let mut from = self.ranges.range_mut(Sequence(first)..);
        let Some((_, data)) = from.next() else {
            return false;
        };
        let end = first.wrapping_add(data.len());
        let Some((&next, other)) = from.next() else {
            return false;
        };
        if before(end, next.0) {
            return false;
        }
        let mut other = std::mem::take(other);
        self.capacity -= data.capacity() + other.capacity();
        other.consume(end.wrapping_sub(next.0));
        data.append(other);
        self.capacity += data.capacity();
        self.ranges.remove(&next);
        true
    }

    /// Records which range was touched last.
    fn touch(&mut self, first: u32) {
        let here = self.recent.iter().position(|&other| other == first);
        let place = here.unwrap_or(self.recent.len() - 1);
        self.recent.copy_within(..place, 1);
        if let Some(latest) = self.recent.first_mut() {
            *latest = first;
        }
    }

    /// Removes and returns the first range if it begins at or before a sequence number.
    pub(super) fn take_reached(&mut self, sequence: u32) -> Option<(u32, ByteQueue)> {
        let entry = self.ranges.first_entry()?;
        let Sequence(first) = *entry.key();
        if before(sequence, first) {
            return None;
        }
        let data = entry.remove();
        self.capacity -= data.capacity();
        Some((first, data))
    }

    /// Recently touched ranges, the latest first, each once.
    fn latest(&self) -> impl Iterator<Item = (u32, u32)> {
        let around = |place: usize| self.around(*self.recent.get(place)?, false);
        (0..self.recent.len()).filter_map(move |place| {
            let range = around(place)?;
            (!(0..place).any(|earlier| around(earlier) == Some(range))).then_some(range)
        })
    }

    /// First byte and end of all ranges. Recently touched ranges come first, the latest
    /// first; the others follow in sequence order.
    pub(super) fn sack_ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        let others = self.ranges.iter().filter_map(|(&Sequence(first), data)| {
            let range = (first, first.wrapping_add(data.len()));
            (!self.latest().any(|latest| latest == range)).then_some(range)
        });
        self.latest().chain(others)
    }

    /// The data of all ranges, by their first bytes, in the order in which
    /// [`OutOfOrderQueue::insert`] recreates the same queue.
    pub(super) fn data(&self) -> impl Iterator<Item = (u32, [&[u8]; 2])> {
        let mut firsts: Vec<u32> = self.sack_ranges().map(|(first, _)| first).collect();
        firsts.reverse();
        firsts.into_iter().filter_map(|first| {
            let data = self.ranges.get(&Sequence(first))?;
            Some((first, data.slices(0, data.len())))
        })
    }
}
