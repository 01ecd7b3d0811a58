//! The handler that a forked child runs before anything else (pthread_atfork(3)).
//!
//! It uses only atomics and `close`: another thread may have held any lock at the moment
//! of the fork.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Descriptors that can be marked are below this.
pub(crate) const DESCRIPTORS: usize = 65_536;

/// Forks between the first process and this one, while they are counted.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// There may be another process that has descriptors of this one.
static SHARED: AtomicBool = AtomicBool::new(false);
/// One bit per descriptor: a child closes it.
static MARKED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// See [`is_shared`]. Async-signal-safe.
pub(crate) extern "C" fn note_shared() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Whether there may be another process that has descriptors of this one.
pub(crate) fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    note_child(false);
}

/// In a child: it is another process, and closes the marked descriptors, unless its
/// parent has the same descriptor table. Async-signal-safe.
pub(crate) fn note_child(shares_files: bool) {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if shares_files {
        return;
    }
    for (word, place) in (0..).zip(&MARKED) {
        let mut marked = place.swap(0, Ordering::Relaxed);
        while marked != 0 {
            let fd = word * 64 + marked.trailing_zeros() as RawFd;
            marked &= marked - 1;
            // SAFETY: the mark means that the descriptor is open. Its owner, which would
            // close it, sees by FORKS that it is not this process's.
            unsafe { libc::close(fd) };
        }
    }
}

/// Makes children count their forks and close marked descriptors.
///
/// # Errors
/// ENOMEM.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let errno = *INSTALLED.get_or_init(|| {
        // SAFETY: both do only what is async-signal-safe, and are never unloaded.
        unsafe { libc::pthread_atfork(Some(note_shared), None, Some(in_child)) }
    });
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Forks so far.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// A value that is dropped in the process that made it, and forgotten in a child.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    forks: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess {
            value: ManuallyDrop::new(value),
            forks: forks(),
        }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.forks == forks() {
            // SAFETY: it is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Sets whether a child closes a descriptor.
pub(crate) fn mark(fd: RawFd, marked: bool) {
    let Ok(number) = usize::try_from(fd) else {
        return;
    };
    if let Some(place) = MARKED.get(number / 64) {
        let bit = 1 << (number % 64);
        if marked {
            place.fetch_or(bit, Ordering::Relaxed);
        } else {
            place.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Whether a child closes a descriptor.
#[inline]
pub(crate) fn is_marked(fd: RawFd) -> bool {
    let number = fd as usize;
    let place = MARKED.get(number / 64);
    place.is_some_and(|place| place.load(Ordering::Relaxed) & 1 << (number % 64) != 0)
}
