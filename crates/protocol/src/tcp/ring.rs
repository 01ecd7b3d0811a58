//! A byte ring that is allocated when needed, grows by doubling, and can be freed.

/// The smallest allocation: many rings hold one byte beyond a hole.
const SMALLEST: usize = 64;

/// A ring up to this size is freed as soon as it is empty: allocating it again costs less
/// than a system call. A larger one is kept until the connection has been quiet for a
/// while (see `Timer::Release`).
pub(super) const KEEP_ABOVE: usize = 16 << 10;

/// Bytes at offsets from a head that moves forward. The user of the ring knows which of
/// them are valid.
#[derive(Default)]
pub(super) struct Ring {
    /// Empty, or a power of two long.
    bytes: Box<[u8]>,
    head: usize,
}

impl Ring {
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// The index of the byte at an offset; the capacity must not be zero.
    fn place(&self, offset: usize) -> usize {
        (self.head + offset) & (self.bytes.len().wrapping_sub(1))
    }

    /// Makes room for offsets below `needed`.
    #[inline]
    fn reserve(&mut self, needed: usize) {
        if needed > self.bytes.len() {
            self.grow(needed.next_power_of_two().max(SMALLEST));
        }
    }

    fn grow(&mut self, capacity: usize) {
        // Not `vec![0; capacity]`: glibc's calloc bypasses its fast lists.
        let mut grown = Vec::with_capacity(capacity);
        if !self.bytes.is_empty() {
            let (start, end) = self.bytes.split_at(self.head.min(self.bytes.len()));
            grown.extend_from_slice(end);
            grown.extend_from_slice(start);
        }
        grown.resize(capacity, 0);
        self.bytes = grown.into_boxed_slice();
        self.head = 0;
    }

    /// Frees what is not needed for offsets below `needed`.
    pub(super) fn fit(&mut self, needed: usize) {
        let capacity = needed.next_power_of_two().max(SMALLEST);
        if needed == 0 || capacity < self.bytes.len() {
            let [first, second] = self.slices(0, needed);
            let mut fitted = Self::default();
            fitted.reserve(needed);
            fitted.write(0, first);
            fitted.write(first.len(), second);
            *self = fitted;
        }
    }

    /// Writes bytes at an offset, allocating if necessary.
    #[inline]
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let [start, end] = self.slices_mut(offset, bytes.len());
        let (first, second) = bytes.split_at(bytes.len().min(start.len()));
        start.copy_from_slice(first);
        // `slices_mut` has made room for both slices. A missing slice would be left
        // unwritten, not overrun.
        if let Some(place) = end.get_mut(..second.len()) {
            place.copy_from_slice(second);
        }
    }

    /// Memory for `length` bytes at an offset, in up to two pieces. Allocates if
    /// necessary.
    #[inline]
    pub(super) fn slices_mut(&mut self, offset: usize, length: usize) -> [&mut [u8]; 2] {
        if length == 0 {
            return [&mut [], &mut []];
        }
        self.reserve(offset + length);
        let at = self.place(offset);
        let (start, end) = self.bytes.split_at_mut(at.min(self.bytes.len()));
        let first = length.min(end.len());
        let rest = (length - first).min(start.len());
        [
            end.get_mut(..first).unwrap_or_default(),
            start.get_mut(..rest).unwrap_or_default(),
        ]
    }

    /// The bytes from an offset on, in up to two pieces; fewer than `length` if the ring
    /// is smaller.
    #[inline]
    pub(super) fn slices(&self, offset: usize, length: usize) -> [&[u8]; 2] {
        if self.bytes.is_empty() || length == 0 {
            return [&[]; 2];
        }
        let (start, end) = self.bytes.split_at(self.place(offset));
        let first = end.get(..length.min(end.len())).unwrap_or_default();
        let rest = (length - first.len()).min(start.len());
        [first, start.get(..rest).unwrap_or_default()]
    }

    /// Writes bytes before the head, which moves back to them. Offsets below `held` are
    /// valid.
    pub(super) fn write_before(&mut self, held: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.reserve(held + bytes.len());
        self.head = self.place(self.bytes.len() - bytes.len());
        self.write(0, bytes);
    }

    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        if !self.bytes.is_empty() {
            self.head = self.place(bytes);
        }
    }

    /// Moves the head to the memory's start; the ring holds no data.
    #[inline]
    pub(super) fn rewind(&mut self) {
        self.head = 0;
    }

    /// Frees the memory.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(ring: &Ring, offset: usize, length: usize) -> Vec<u8> {
        ring.slices(offset, length).concat()
    }

    #[test]
    fn memory_to_fill_wraps() {
        let mut ring = Ring::default();
        assert_eq!(ring.slices_mut(0, 0).map(|piece| piece.len()), [0, 0]);
        ring.write(0, &[1; 64]);
        ring.advance(60);
        let pieces = ring.slices_mut(4, 40);
        assert_eq!(pieces.each_ref().map(|piece| piece.len()), [40, 0]);
        ring.advance(2);
        let pieces = ring.slices_mut(0, 10);
        assert_eq!(pieces.each_ref().map(|piece| piece.len()), [2, 8]);
        pieces.into_iter().for_each(|piece| piece.fill(3));
        assert_eq!(joined(&ring, 0, 10), [3; 10]);
        let pieces = ring.slices_mut(10, 100);
        assert_eq!(pieces.each_ref().map(|piece| piece.len()), [100, 0]);
        assert_eq!(joined(&ring, 0, 10), [3; 10], "grown");
    }

    #[test]
    fn bytes_survive_wrapping_and_growing() {
        let mut ring = Ring::default();
        assert_eq!(joined(&ring, 0, 10), []);
        ring.write(0, &[1; 5]);
        assert_eq!(ring.capacity(), SMALLEST);
        ring.write(5, &[1; 495]);
        assert_eq!(ring.capacity(), 512);
        ring.advance(490);
        let bytes: Vec<u8> = (0..100).collect();
        ring.write(10, &bytes);
        assert_eq!(ring.capacity(), 512, "wrapped, not grown");
        assert_eq!(joined(&ring, 0, 10), [1; 10]);
        assert_eq!(joined(&ring, 10, 100), bytes);
        ring.write(600, &bytes);
        assert_eq!(ring.capacity(), 1024);
        assert_eq!(joined(&ring, 10, 100), bytes);
        assert_eq!(joined(&ring, 600, 100), bytes);
        ring.write_before(700, &[2; 400]);
        assert_eq!(ring.capacity(), 2048);
        assert_eq!(joined(&ring, 0, 400), [2; 400]);
        assert_eq!(joined(&ring, 410, 100), bytes);
        ring.advance(410);
        ring.fit(100);
        assert_eq!(ring.capacity(), 128);
        assert_eq!(joined(&ring, 0, 100), bytes);
        ring.fit(0);
        assert_eq!(ring.capacity(), 0);
        ring.advance(5);
    }
}
