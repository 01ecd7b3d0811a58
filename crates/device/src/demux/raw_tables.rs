//! The memory behind either level of tables: a kernel map or the heap.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use tidewall_sys::Mapping;
use zerocopy::FromZeros;

use super::layout::{Application, Device, QUEUES, Queue};

/// Tables as the driver program has them: integers and atomics, of which every bit
/// pattern is one.
pub(crate) trait Layout: FromZeros {}

impl Layout for Device {}
impl Layout for Application {}
impl Layout for [Queue; QUEUES] {}

/// One level of tables, wherever it lies.
#[derive(Debug)]
pub(crate) enum Memory<T> {
    Mapped(Mapping, PhantomData<T>),
    /// To read only.
    Frozen(Mapping),
    Heap(Box<T>),
}

impl<T: Layout> Memory<T> {
    /// Zeroed tables on the heap. OutOfMemory.
    pub(crate) fn heap() -> io::Result<Self> {
        let tables = T::new_box_zeroed().map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Memory::Heap(tables))
    }

    /// Tables in a kernel map. EINVAL when it is too short.
    pub(crate) fn mapped(map: BorrowedFd<'_>) -> io::Result<Self> {
        // The kernel maps whole pages of an array.
        let mapping = Mapping::new(map, size_of::<T>().next_multiple_of(4096), 0)?;
        Ok(Memory::Mapped(mapping, PhantomData))
    }

    /// Tables in a kernel map that is frozen. EINVAL when it is too short.
    pub(crate) fn frozen(map: BorrowedFd<'_>) -> io::Result<Self> {
        let mapping = Mapping::read_only(map, size_of::<T>().next_multiple_of(4096), 0)?;
        Ok(Memory::Frozen(mapping))
    }

    /// The tables, where they may be written.
    pub(crate) fn writable(&self) -> Option<&T> {
        (!matches!(self, Memory::Frozen(_))).then(|| self.get())
    }

    /// The tables, to read.
    pub(crate) fn get(&self) -> &T {
        match self {
            // SAFETY: the mapping is at least as long as `T`, begins a page, lives as
            // long as `self`, and any bytes are a valid `T`, as `Layout` says. What the
            // driver program writes at the same time, it writes to atomics.
            Memory::Mapped(mapping, _) | Memory::Frozen(mapping) => unsafe {
                &*mapping.address().cast::<T>()
            },
            Memory::Heap(tables) => tables,
        }
    }
}
