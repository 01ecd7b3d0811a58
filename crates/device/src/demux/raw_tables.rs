//! The memory behind [`super::Tables`]: kernel maps or the heap.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::layout::{Application, Device};
use crate::raw::mapping::Mapping;

/// Zeroed memory on the heap that holds one `T`.
#[derive(Debug)]
pub(crate) struct Heap {
    address: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owned memory, reached only as `&Device` or `&Application`, whose
// changing fields are atomics.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(layout: Layout) -> io::Result<Self> {
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

/// The two levels of tables, wherever they lie.
#[derive(Debug)]
pub(crate) struct Memory {
    device: Place,
    application: Place,
}

impl Memory {
    /// Zeroed tables on the heap.
    pub(crate) fn heap() -> io::Result<Self> {
        Ok(Memory {
            device: Place::Heap(Heap::new(Layout::new::<Device>())?),
            application: Place::Heap(Heap::new(Layout::new::<Application>())?),
        })
    }

    /// Tables in kernel maps. EINVAL when a mapping is too short.
    pub(crate) fn mapped(device: Mapping, application: Mapping) -> io::Result<Self> {
        if device.length() < size_of::<Device>() || application.length() < size_of::<Application>()
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Memory {
            device: Place::Mapped(device),
            application: Place::Mapped(application),
        })
    }

    /// Trusted level.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: the place is at least as long as `Device` and aligned for it
        // (pages, or an allocation with its layout), lives as long as `self`,
        // and every bit pattern is a valid `Device`: integers and atomics. What
        // the driver program writes at the same time, it writes to atomics.
        unsafe { &*self.device.address().cast::<Device>() }
    }

    /// Application level.
    pub(crate) fn application(&self) -> &Application {
        // SAFETY: as for `device`.
        unsafe { &*self.application.address().cast::<Application>() }
    }
}
