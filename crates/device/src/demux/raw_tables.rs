//! The memory behind either level of tables: a kernel map or the heap.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use tidewall_sys::Mapping;
use zerocopy::FromZeros;

use super::layout::{Application, Device, QUEUES, Queue};

/// Tables in the driver program's layout: integers and atomics, for which every bit
/// pattern is valid.
pub(crate) trait Layout: FromZeros {}

impl Layout for Device {}
impl Layout for Application {}
impl Layout for [Queue; QUEUES] {}

/// One level of tables, on the heap or in a map.
#[derive(Debug)]
pub(crate) enum Memory<T> {
    Mapped(Mapping, PhantomData<T>),
    /// Read-only.
    Frozen(Mapping),
    Heap(Box<T>),
}

impl<T: Layout> Memory<T> {
    /// Allocates zeroed tables on the heap. Fails with OutOfMemory.
    pub(crate) fn heap() -> io::Result<Self> {
        let tables = T::new_box_zeroed().map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Memory::Heap(tables))
    }

    /// Maps tables in a kernel map. EINVAL when it is too short.
    pub(crate) fn mapped(map: BorrowedFd<'_>) -> io::Result<Self> {
        // The kernel maps whole pages of an array.
        let mapping = Mapping::new(map, size_of::<T>().next_multiple_of(4096), 0)?;
        Ok(Memory::Mapped(mapping, PhantomData))
    }

    /// Maps tables in a frozen kernel map. EINVAL when it is too short.
    pub(crate) fn frozen(map: BorrowedFd<'_>) -> io::Result<Self> {
        let mapping = Mapping::read_only(map, size_of::<T>().next_multiple_of(4096), 0)?;
        Ok(Memory::Frozen(mapping))
    }

    /// The tables for writing, where that is permitted.
    pub(crate) fn writable(&self) -> Option<&T> {
        (!matches!(self, Memory::Frozen(_))).then(|| self.get())
    }

    /// The tables for reading.
    pub(crate) fn get(&self) -> &T {
        match self {
            // SAFETY: the mapping is at least as long as `T`, begins a page, lives as
            // long as `self`, and any bytes are a valid `T`, as `Layout` requires. The
            // driver program's concurrent writes are to atomics.
            Memory::Mapped(mapping, _) | Memory::Frozen(mapping) => unsafe {
                &*mapping.address().cast::<T>()
            },
            Memory::Heap(tables) => tables,
        }
    }
}
