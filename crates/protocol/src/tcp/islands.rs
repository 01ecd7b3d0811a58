//! What lies beyond holes: data in memory of its own, so that a byte at the far
//! end of the window costs a byte and not the window.
//!
//! Each island holds what has come without a gap. Their number is bounded by the
//! window ([`Bounds`]), their data by the window too, their memory by twice their
//! data and [`ISLAND`] for each. A segment costs a search in a tree, and copying at
//! most twice its own bytes a doubling.

use core::cmp::Ordering;
use core::ops::Bound::{Excluded, Included};
use std::collections::BTreeMap;

use super::byte_queue::ByteQueue;
use tidewall_wire::tcp::{SackBlocks, before};

/// The most islands that any connection holds. A slow start that overshoots loses
/// every second segment of a round: with 32 islands, two in a hundred segments of
/// a lossless path of 100 ms were sent in vain.
pub(super) const ISLANDS_MAX: usize = 1024;

/// The most islands of the smallest window.
const ISLANDS_LEAST: usize = 16;

/// Window that each island may be taken to need: two segments of the least size
/// that every path carries.
const WINDOW_AN_ISLAND: u32 = 1024;

/// What an island takes beside its data: its place in the tree, whose nodes are
/// half full at the worst, and what the allocator notes of its ring.
pub(super) const ISLAND: usize = 112;

/// What the first island takes besides: a node of the tree, and what points to it.
pub(super) const FIRST_ISLAND: usize = 512;

/// What may be held beyond holes; what is not is dropped, as RFC 2018 §8 allows,
/// and sent again.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Islands at most; none at all lets nothing be held.
    pub(super) islands: usize,
    /// A segment shorter than this begins no island once three quarters of them are
    /// there: room for honest ones, whose segments are longer.
    pub(super) crumb: usize,
}

impl Bounds {
    /// Of a receive buffer of so many bytes, where full segments carry `mss`.
    pub(super) fn new(buffer: u32, mss: u16) -> Self {
        let islands = (buffer / WINDOW_AN_ISLAND) as usize;
        Self {
            islands: islands.clamp(ISLANDS_LEAST, ISLANDS_MAX),
            crumb: usize::from(mss / 4),
        }
    }

    /// Nothing is held.
    pub(super) const NOTHING: Self = Self {
        islands: 0,
        crumb: 0,
    };

    /// All that any connection holds.
    pub(super) const MOST: Self = Self {
        islands: ISLANDS_MAX,
        crumb: 0,
    };
}

/// A sequence number among others of the same window, which is less than half of
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

/// What became of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Something of it was new.
    New,
    /// Nothing was.
    Known,
    /// There was no room for it.
    Refused,
}

/// Islands, by the sequence number of their first byte; disjoint and not adjacent.
#[derive(Default)]
pub(super) struct Islands {
    islands: BTreeMap<Sequence, ByteQueue>,
    /// A byte of each of those touched last, the latest first (RFC 2018 §4). What
    /// lies in none any more counts for nothing.
    recent: [u32; SackBlocks::MAX],
    /// Bytes allocated for data.
    capacity: usize,
}

impl Islands {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.islands.len()
    }

    /// True when there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.islands.is_empty()
    }

    /// Bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        FIRST_ISLAND + self.capacity + self.islands.len() * ISLAND
    }

    /// The island that a byte lies in, or directly behind (`or_end`).
    fn around(&self, sequence: u32, or_end: bool) -> Option<(u32, u32)> {
        let (&Sequence(first), data) = self.islands.range(..=Sequence(sequence)).next_back()?;
        let end = first.wrapping_add(data.len());
        (before(sequence, end) || or_end && sequence == end).then_some((first, end))
    }

    /// The end of the last.
    pub(super) fn furthest(&self) -> Option<u32> {
        let (&Sequence(first), data) = self.islands.last_key_value()?;
        Some(first.wrapping_add(data.len()))
    }

    /// The first bytes between two sequence numbers that are held: what RFC 2883
    /// §4.2 tells of a segment that overlaps several islands.
    pub(super) fn first_held(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let (first, end) = self.around(from, false).or_else(|| {
            let (&Sequence(first), data) = self.islands.range(Sequence(from)..).next()?;
            before(first, to).then(|| (first, first.wrapping_add(data.len())))
        })?;
        let first = if before(first, from) { from } else { first };
        Some((first, if before(to, end) { to } else { end }))
    }

    /// Takes bytes that lie beyond a hole.
    pub(super) fn insert(&mut self, sequence: u32, bytes: &[u8], bounds: Bounds) -> Kept {
        let end = sequence.wrapping_add(bytes.len() as u32);
        let first = match self.around(sequence, true) {
            Some((first, known)) if !before(known, end) => {
                self.touch(first);
                return Kept::Known;
            }
            _ if bounds.islands == 0 => return Kept::Refused,
            Some((first, known)) => {
                let new = known.wrapping_sub(sequence) as usize;
                self.push(first, bytes.get(new..).unwrap_or_default());
                first
            }
            None => {
                let few = bounds.islands - bounds.islands / 4;
                let most = if bytes.len() < bounds.crumb {
                    few
                } else {
                    bounds.islands
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

    /// True when an island begins after `sequence`, up to `end`.
    fn begins_before(&self, sequence: u32, end: u32) -> bool {
        let between = (Excluded(Sequence(sequence)), Included(Sequence(end)));
        self.islands.range(between).next().is_some()
    }

    /// Adds bytes to the island that begins at `first`.
    fn push(&mut self, first: u32, bytes: &[u8]) {
        let data = self.islands.entry(Sequence(first)).or_default();
        self.capacity -= data.capacity();
        data.push(bytes);
        self.capacity += data.capacity();
    }

    /// Makes an island and the next one, if that begins in it or directly behind
    /// it, one. False if not.
    fn join_next(&mut self, first: u32) -> bool {
        let mut from = self.islands.range_mut(Sequence(first)..);
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
        self.islands.remove(&next);
        true
    }

    /// Notes which island was touched last.
    fn touch(&mut self, first: u32) {
        let here = self.recent.iter().position(|&other| other == first);
        let place = here.unwrap_or(self.recent.len() - 1);
        self.recent.copy_within(..place, 1);
        if let Some(latest) = self.recent.first_mut() {
            *latest = first;
        }
    }

    /// Takes out the first island if it begins at or before a sequence number.
    pub(super) fn take_reached(&mut self, sequence: u32) -> Option<(u32, ByteQueue)> {
        let entry = self.islands.first_entry()?;
        let Sequence(first) = *entry.key();
        if before(sequence, first) {
            return None;
        }
        let data = entry.remove();
        self.capacity -= data.capacity();
        Some((first, data))
    }

    /// Those touched last, the latest first, each once.
    fn latest(&self) -> impl Iterator<Item = (u32, u32)> {
        let around = |place: usize| self.around(*self.recent.get(place)?, false);
        (0..self.recent.len()).filter_map(move |place| {
            let island = around(place)?;
            (!(0..place).any(|earlier| around(earlier) == Some(island))).then_some(island)
        })
    }

    /// First byte and end of all: those touched last before the others, the latest
    /// first; the others as they lie.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        let others = self.islands.iter().filter_map(|(&Sequence(first), data)| {
            let island = (first, first.wrapping_add(data.len()));
            (!self.latest().any(|latest| latest == island)).then_some(island)
        });
        self.latest().chain(others)
    }

    /// The data of all, by their first bytes; in the order in which
    /// [`Islands::insert`] makes the same of them.
    pub(super) fn data(&self) -> impl Iterator<Item = (u32, [&[u8]; 2])> {
        let mut firsts: Vec<u32> = self.ranges().map(|(first, _)| first).collect();
        firsts.reverse();
        firsts.into_iter().filter_map(|first| {
            let data = self.islands.get(&Sequence(first))?;
            Some((first, data.slices(0, data.len())))
        })
    }
}
