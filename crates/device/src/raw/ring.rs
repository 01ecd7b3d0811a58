//! The four AF_XDP rings: single producer, single consumer, shared with the
//! kernel (Documentation/networking/af_xdp.rst, "Rings").

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use tidewall_sys::Mapping;

/// Offsets of one ring's parts in its mapping (`struct xdp_ring_offset`).
pub(crate) type RingOffset = libc::xdp_ring_offset;

/// One ring of `T` and this side's private copy of both indices.
pub(crate) struct Ring<T> {
    mapping: Mapping,
    offsets: RingOffset,
    mask: u32,
    /// Our own index: the producer's in a producing ring, else the consumer's.
    own: u32,
    /// The other side's index as last read.
    other: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `entries` (a power of two) of the socket.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        offsets: RingOffset,
        entries: u32,
        page_offset: u64,
    ) -> io::Result<Self> {
        let length = offsets.desc as usize + entries as usize * size_of::<T>();
        let mapping = Mapping::new(fd, length, page_offset)?;
        Ok(Ring {
            mapping,
            offsets,
            mask: entries - 1,
            own: 0,
            other: 0,
            entries: PhantomData,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel gave `offset` for this mapping: 4-aligned, and
        // below `desc`, up to which everything is mapped.
        unsafe {
            &*self
                .mapping
                .address()
                .add(offset as usize)
                .cast::<AtomicU32>()
        }
    }

    fn slot(&self, index: u32) -> *mut T {
        // Masked, so within `entries`, all of which are mapped.
        self.mapping
            .address()
            .wrapping_add(self.offsets.desc as usize)
            .cast::<T>()
            .wrapping_add((index & self.mask) as usize)
    }

    /// True when the kernel needs a system call to continue.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Entries that fit into it.
    pub(crate) fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Producing side: entries that may be written now.
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let size = self.mask + 1;
        let mut room = size - self.own.wrapping_sub(self.other);
        if room < wanted {
            self.other = self.word(self.offsets.consumer).load(Ordering::Acquire);
            room = size - self.own.wrapping_sub(self.other);
        }
        room
    }

    /// Producing side: writes one entry; the caller has checked `room`. Visible to the
    /// kernel after [`Ring::submit`].
    pub(crate) fn push(&mut self, value: T) {
        // SAFETY: the slot is ours: the caller saw room, so the kernel has
        // consumed what it held, and it will not look before `submit`.
        unsafe { self.slot(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
    }

    /// Producing side: publishes everything pushed to the kernel.
    pub(crate) fn submit(&mut self) {
        self.word(self.offsets.producer)
            .store(self.own, Ordering::Release);
    }

    /// Producing side: entries published to the kernel that it has not taken yet.
    pub(crate) fn pending(&mut self) -> u32 {
        self.other = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.own.wrapping_sub(self.other)
    }

    /// Consuming side: entries that may be read now, refreshed if fewer than
    /// `wanted` are known.
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        let mut available = self.other.wrapping_sub(self.own);
        if available < wanted {
            self.other = self.word(self.offsets.producer).load(Ordering::Acquire);
            available = self.other.wrapping_sub(self.own);
        }
        available
    }

    /// Consuming side: reads one entry; the caller has checked `available`. The slot
    /// returns to the kernel with [`Ring::release`].
    pub(crate) fn pop(&mut self) -> T {
        // SAFETY: the caller saw an entry available, so the kernel wrote the
        // slot before publishing its producer index (acquire), and will not
        // write it again before `release`.
        let value = unsafe { self.slot(self.own).read() };
        self.own = self.own.wrapping_add(1);
        value
    }

    /// Consuming side: returns the slots of everything popped.
    pub(crate) fn release(&mut self) {
        self.word(self.offsets.consumer)
            .store(self.own, Ordering::Release);
    }
}
