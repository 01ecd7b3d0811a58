//! Descriptors: small numbers for open files.
//!
//! ```text
//!  number ──► Table ──► Entries: chunk ──► slot ──► Arc<File> ◄── a call
//!                │
//!                └────► Numbers in use: Bitmap (64-way tree)
//! ```
//!
//! Lives here: the table ([`Table`]), and [`Descriptors`], the table of one application
//! with the calls.
//!
//! Does not live here: waiting on descriptors. These are descriptors of the native API,
//! not the kernel's: 5 here and 5 there are two files.
//!
//! A new descriptor is always the lowest free one, as POSIX requires, which rules out a
//! free list. The bitmap finds it by one word per level. The linear search of the kernels
//! that the paper measured is kept for comparison (`comparators::linear`). The table maps
//! descriptors to entries: a look-up takes no lock that another descriptor's calls take.
//!
//! Read first: Banga and Mogul, USENIX 1998, section 3.2.

use std::io;

mod bitmap;
mod calls;
mod entries;
mod numbers;
mod table;

#[cfg(not(loom))]
use tidewall_stack::lock as sync;

/// The locks of a table under loom.
#[cfg(loom)]
mod sync {
    use std::marker::PhantomData;
    use std::sync::PoisonError;

    use loom::sync::MutexGuard;

    #[derive(Debug)]
    pub(super) struct Mutex<T, R> {
        inner: loom::sync::Mutex<T>,
        rank: PhantomData<fn() -> R>,
    }

    impl<T, R> Mutex<T, R> {
        pub(super) fn new(value: T) -> Self {
            Mutex {
                inner: loom::sync::Mutex::new(value),
                rank: PhantomData,
            }
        }
    }

    pub(super) fn lock<T, R>(mutex: &Mutex<T, R>) -> MutexGuard<'_, T> {
        mutex.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub use calls::{Descriptors, FileTable, Flags, Identity, TableFile};
pub use table::CLOSE_RANGE_CLOEXEC;
pub use table::Closing;
// For benches and tests that compare tables.
#[doc(hidden)]
pub use table::Table;

pub(crate) fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// How a table finds the lowest free descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocator {
    /// A tree of bitmaps: one word per level.
    #[default]
    Bitmap,
    /// One check per descriptor in use. A comparator, slow on purpose.
    Linear,
}
