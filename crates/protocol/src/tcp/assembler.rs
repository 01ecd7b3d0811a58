//! The receive buffer: a queue of data in order, and separate from it the data beyond
//! holes ([`out_of_order`](super::out_of_order)).
//!
//! Memory is proportional to the data received. Neither a segment at the far end of the
//! window nor a thousand ranges of one byte make more of the window resident.

use super::byte_queue::ByteQueue;
use super::out_of_order::{Kept, OutOfOrderQueue, QueueLimits};
use tidewall_wire::tcp::{SackBlocks, before};

/// The result of inserting a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inserted {
    /// This many more bytes are in order.
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

/// Limits of an [`Assembler`]; computed only when they decide.
pub(super) trait ReceiveLimits {
    /// How much may be held beyond holes.
    fn beyond(&self) -> QueueLimits;
    /// Whether the buffer may grow for `bytes` in order beyond the unread ones.
    fn in_order(&self, unread: u32, bytes: usize) -> bool;
}

impl ReceiveLimits for QueueLimits {
    fn beyond(&self) -> QueueLimits {
        *self
    }

    fn in_order(&self, _unread: u32, _bytes: usize) -> bool {
        true
    }
}

#[derive(Default)]
pub(super) struct Assembler {
    /// Unread bytes in order.
    data: ByteQueue,
    /// The sequence number after them.
    next: u32,
    /// Null in the ordinary case.
    disorder: Option<Box<Disorder>>,
}

/// Data out of order, and what is to be reported of it.
#[derive(Default)]
struct Disorder {
    out_of_order: OutOfOrderQueue,
    /// The duplicate that the next D-SACK reports (RFC 2883); empty if there is none.
    duplicate: (u32, u32),
    /// Position of the peer's FIN, while it lies beyond a hole.
    fin: Option<u32>,
}

impl Disorder {
    /// True while a D-SACK is due.
    fn has_duplicate(&self) -> bool {
        self.duplicate.0 != self.duplicate.1
    }

    fn is_empty(&self) -> bool {
        self.out_of_order.is_empty() && !self.has_duplicate() && self.fin.is_none()
    }
}

impl Assembler {
    /// Returns an empty assembler that expects `next`.
    pub(super) fn new(next: u32) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// The next sequence number expected, without the FIN.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Unread bytes in order.
    pub(super) fn unread(&self) -> u32 {
        self.data.len()
    }

    /// True when nothing waits beyond a hole.
    #[inline]
    pub(super) fn is_contiguous(&self) -> bool {
        self.out_of_order().is_none_or(OutOfOrderQueue::is_empty)
    }

    #[inline]
    fn out_of_order(&self) -> Option<&OutOfOrderQueue> {
        self.disorder
            .as_deref()
            .map(|disorder| &disorder.out_of_order)
    }

    fn disorder(&mut self) -> &mut Disorder {
        self.disorder.get_or_insert_default()
    }

    /// Frees [`Disorder`] once there is none.
    fn end_disorder(&mut self) {
        if self.disorder.as_deref().is_some_and(Disorder::is_empty) {
            self.disorder = None;
        }
    }

    /// Records that the data between two sequence numbers has arrived again. A duplicate
    /// adjacent to the last one is merged with it if both lie on one side of RCV.NXT. A
    /// block across RCV.NXT would mean nothing to the peer.
    #[cold]
    pub(super) fn note_duplicate(&mut self, mut first: u32, mut end: u32) {
        let expected = self.next;
        let beyond = before(expected, end);
        let disorder = self.disorder();
        let (last_first, last_end) = disorder.duplicate;
        if disorder.has_duplicate()
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
        disorder.duplicate = (first, end);
        self.end_disorder();
    }

    /// Records that the D-SACK was sent.
    #[inline]
    pub(super) fn duplicate_reported(&mut self) {
        if self.disorder.is_some() {
            self.restore_duplicate((0, 0));
        }
    }

    /// The duplicate to report, for [`freeze`](super::freeze).
    pub(super) fn duplicate(&self) -> (u32, u32) {
        self.disorder
            .as_deref()
            .map_or((0, 0), |disorder| disorder.duplicate)
    }

    /// See [`Assembler::duplicate`].
    #[cold]
    pub(super) fn restore_duplicate(&mut self, duplicate: (u32, u32)) {
        self.disorder().duplicate = duplicate;
        self.end_disorder();
    }

    /// Records the position of the peer's FIN beyond a hole; `None` once it is in order.
    pub(super) fn note_fin(&mut self, fin: Option<u32>) {
        self.disorder().fin = fin;
        self.end_disorder();
    }

    /// True when a SACK option is due.
    #[inline]
    pub(super) fn has_sack_blocks(&self) -> bool {
        self.disorder.is_some()
    }

    /// The end of the furthest data beyond a hole, if there is any.
    pub(super) fn furthest(&self) -> Option<u32> {
        self.out_of_order()?.furthest()
    }

    /// Takes bytes at `sequence`. The caller has cut off the part outside the window; the
    /// part received before is cut off here.
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
            self.note_duplicate(sequence, sequence.wrapping_add(copied));
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

    /// Returns how far data is in order after `advanced` bytes have arrived in order.
    /// `noted` is set when a duplicate was already recorded for their segment.
    #[cold]
    fn close_holes(&mut self, advanced: u32, noted: bool) -> u32 {
        let mut reached = self.next.wrapping_add(advanced);
        let held = self
            .out_of_order()
            .and_then(|queue| queue.first_held(self.next, reached));
        if !noted && let Some((first, end)) = held {
            self.note_duplicate(first, end);
        }
        let Some(disorder) = self.disorder.as_deref_mut() else {
            return advanced;
        };
        while let Some((first, mut range)) = disorder.out_of_order.take_reached(reached) {
            range.consume(reached.wrapping_sub(first));
            reached = reached.wrapping_add(range.len());
            self.data.append(range);
        }
        self.end_disorder();
        reached.wrapping_sub(self.next)
    }

    #[cold]
    fn insert_beyond(&mut self, sequence: u32, bytes: &[u8], limits: QueueLimits) -> Inserted {
        let end = sequence.wrapping_add(bytes.len() as u32);
        let held = self
            .out_of_order()
            .and_then(|queue| queue.first_held(sequence, end));
        if let Some((first, end)) = held {
            self.note_duplicate(first, end);
        }
        let kept = self.disorder().out_of_order.insert(sequence, bytes, limits);
        self.end_disorder();
        match kept {
            Kept::New => Inserted::Beyond,
            Kept::Known => Inserted::Duplicate,
            Kept::Refused => Inserted::Refused,
        }
    }

    /// The blocks of a SACK option, the duplicate first (RFC 2883 §4). A FIN counts as a
    /// byte.
    pub(super) fn sack(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let Some(disorder) = self.disorder.as_deref() else {
            return blocks;
        };
        if disorder.has_duplicate() {
            blocks.push(disorder.duplicate.0, disorder.duplicate.1);
        }
        for (first, end) in disorder.out_of_order.sack_ranges().take(SackBlocks::MAX) {
            let fin = disorder.fin == Some(end);
            if !blocks.push(first, end.wrapping_add(fin.into())) {
                break;
            }
        }
        if let Some(fin) = disorder.fin
            && disorder.out_of_order.furthest() != Some(fin)
        {
            blocks.push(fin, fin.wrapping_add(1));
        }
        blocks
    }

    /// Unread data in order.
    pub(super) fn unread_slices(&self) -> [&[u8]; 2] {
        self.data.slices(0, self.data.len())
    }

    /// Up to `length` bytes of that, from `offset` bytes after the first.
    pub(super) fn unread_at(&self, offset: u32, length: u32) -> [&[u8]; 2] {
        let rest = self.data.len().saturating_sub(offset);
        self.data.slices(offset, length.min(rest))
    }

    /// Removes up to `bytes` that were read; returns their number.
    pub(super) fn consume(&mut self, bytes: usize) -> u32 {
        self.data.consume(u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Frees memory that holds no data.
    pub(super) fn release_if_empty(&mut self) {
        self.data.release_if_empty();
    }

    /// Drops data beyond holes, and frees the memory that the rest does not need.
    pub(super) fn prune(&mut self) {
        if let Some(disorder) = self.disorder.as_deref_mut() {
            disorder.out_of_order = OutOfOrderQueue::default();
            if before(self.next, disorder.duplicate.1) {
                // Without its range, the report would state that the data is held.
                disorder.duplicate = (0, 0);
            }
        }
        self.end_disorder();
        self.data.fit();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.next);
    }

    /// Bytes allocated for data in order.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Bytes of memory for data beyond holes.
    #[inline]
    pub(super) fn out_of_order_memory(&self) -> usize {
        self.out_of_order().map_or(0, OutOfOrderQueue::memory)
    }

    /// Data beyond holes, for [`freeze`](super::freeze).
    pub(super) fn beyond(&self) -> impl Iterator<Item = (u32, [&[u8]; 2])> {
        self.out_of_order()
            .into_iter()
            .flat_map(OutOfOrderQueue::data)
    }

    /// Fills an empty assembler, for [`freeze`](super::freeze), with data that ends at
    /// [`Assembler::next`].
    pub(super) fn restore_unread(&mut self, bytes: &[u8]) {
        self.data.push(bytes);
    }
}

#[cfg(test)]
mod tests;
