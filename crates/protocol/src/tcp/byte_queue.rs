//! Bytes in the order of the stream: written but not acknowledged, received but not read,
//! or waiting beyond a hole.

use super::ring::{KEEP_ABOVE, Ring};

/// Bytes that are added at the end and removed from the start.
#[derive(Default)]
pub(super) struct ByteQueue {
    ring: Ring,
    len: u32,
}

impl ByteQueue {
    /// Bytes held.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds bytes at the end; the caller bounds their number.
    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.ring.write(self.len as usize, bytes);
        self.len += bytes.len() as u32;
    }

    /// Adds bytes at the end that `fill` writes into up to two pieces of memory, `length`
    /// bytes in all. Returns their number, as `fill` reports it.
    ///
    /// # Errors
    /// Those of `fill`; nothing is added then.
    pub(super) fn push_with<E>(
        &mut self,
        length: usize,
        fill: impl FnOnce([&mut [u8]; 2]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let filled = fill(self.ring.slices_mut(self.len as usize, length))?.min(length);
        self.len += filled as u32;
        Ok(filled)
    }

    /// Whether adding `bytes` bytes needs more memory.
    #[inline]
    pub(super) fn grows_with(&self, bytes: usize) -> bool {
        self.len as usize + bytes > self.ring.capacity()
    }

    /// Adds all bytes of another queue at the end. The shorter of the two is copied:
    /// filling a hole before megabytes of data costs no more than the bytes that fill it.
    pub(super) fn append(&mut self, mut other: Self) {
        if other.len <= self.len {
            for piece in other.slices(0, other.len) {
                self.push(piece);
            }
            return;
        }
        let [first, second] = self.slices(0, self.len);
        for piece in [second, first] {
            other.ring.write_before(other.len as usize, piece);
            other.len += piece.len() as u32;
        }
        *self = other;
    }

    /// Removes bytes from the start; returns how many were there to remove.
    #[inline]
    pub(super) fn consume(&mut self, bytes: u32) -> u32 {
        let bytes = bytes.min(self.len);
        self.len -= bytes;
        self.ring.advance(bytes as usize);
        if self.len == 0 {
            if self.ring.capacity() <= KEEP_ABOVE {
                self.ring.release();
            } else {
                // The CPU cache has the start of the memory sooner than the bytes that
                // come next.
                self.ring.rewind();
            }
        }
        bytes
    }

    /// `length` bytes at an offset, in up to two pieces.
    #[inline]
    pub(super) fn slices(&self, offset: u32, length: u32) -> [&[u8]; 2] {
        self.ring.slices(offset as usize, length as usize)
    }

    /// Frees the memory when it holds no data.
    pub(super) fn release_if_empty(&mut self) {
        if self.len == 0 {
            self.ring.release();
        }
    }

    /// Frees the memory that its data does not need.
    pub(super) fn fit(&mut self) {
        self.ring.fit(self.len as usize);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}
