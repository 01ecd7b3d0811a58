//! The send buffer: what was written and not acknowledged.

use super::ring::{KEEP_ABOVE, Ring};

/// Bytes from the first that is not acknowledged to the last written.
#[derive(Default)]
pub(super) struct SendBuffer {
    ring: Ring,
    len: u32,
}

impl SendBuffer {
    /// Bytes held.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds bytes at the end; how many is the caller's to bound.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.ring.write(self.len as usize, bytes);
        self.len += bytes.len() as u32;
    }

    /// Forgets bytes from the start; returns how many there were to forget.
    pub(super) fn acknowledge(&mut self, bytes: u32) -> u32 {
        let bytes = bytes.min(self.len);
        self.len -= bytes;
        self.ring.advance(bytes as usize);
        if self.len == 0 && self.ring.capacity() <= KEEP_ABOVE {
            self.ring.release();
        }
        bytes
    }

    /// `length` bytes at an offset, in up to two pieces.
    pub(super) fn slices(&self, offset: u32, length: u32) -> [&[u8]; 2] {
        self.ring.slices(offset as usize, length as usize)
    }

    /// Gives the memory back when it holds nothing.
    pub(super) fn release_if_empty(&mut self) {
        if self.len == 0 {
            self.ring.release();
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes allocated.
    pub(super) fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}
