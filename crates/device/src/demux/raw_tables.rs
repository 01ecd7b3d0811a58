//! The memory behind either level of tables: a kernel map or the heap.

use std::alloc::{self, alloc_zeroed, dealloc};
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use tidewall_sys::Mapping;

use super::layout::{Application, Device};

/// Zeroed memory on the heap that holds one `T`.
#[derive(Debug)]
pub(crate) struct Heap {
    address: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: owned memory, reached only as `&Device` or `&Application`, whose
// changing fields are atomics.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(layout: alloc::Layout) -> io::Result<Self> {
        // SAFETY: both layouts used below have a size other than zero.
        let address = unsafe { alloc_zeroed(layout) };
        let address = NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Heap { address, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed once; every
        // reference into it borrows `self`.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}

#[derive(Debug)]
enum Place {
    Mapped(Mapping),
    Heap(Heap),
}

impl Place {
    fn address(&self) -> *const u8 {
        match self {
            Place::Mapped(mapping) => mapping.address(),
            Place::Heap(heap) => heap.address.as_ptr(),
        }
    }
}

/// Tables as the driver program has them.
pub(crate) trait Layout {}

impl Layout for Device {}
impl Layout for Application {}

/// One level of tables, wherever it lies.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    place: Place,
    layout: PhantomData<T>,
}

impl<T: Layout> Memory<T> {
    /// Zeroed tables on the heap.
    pub(crate) fn heap() -> io::Result<Self> {
        Ok(Memory {
            place: Place::Heap(Heap::new(alloc::Layout::new::<T>())?),
            layout: PhantomData,
        })
    }

    /// Tables in a kernel map. EINVAL when it is too short.
    pub(crate) fn mapped(map: BorrowedFd<'_>) -> io::Result<Self> {
        // The kernel maps whole pages of an array.
        let mapping = Mapping::new(map, size_of::<T>().next_multiple_of(4096), 0)?;
        Ok(Memory {
            place: Place::Mapped(mapping),
            layout: PhantomData,
        })
    }

    /// The tables.
    pub(crate) fn get(&self) -> &T {
        // SAFETY: the place is at least as long as `T` and aligned for it (pages, or an
        // allocation with its layout), lives as long as `self`, and every bit pattern is a
        // valid `T`, one of the two above: integers and atomics. What the driver program
        // writes at the same time, it writes to atomics.
        unsafe { &*self.place.address().cast::<T>() }
    }
}
