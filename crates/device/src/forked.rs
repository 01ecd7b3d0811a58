//! Makes sure that a forked child keeps nothing of a device and of the sockets above it.
//!
//! Rings and frames are not mapped in a child, and its parent's threads and locks do not
//! exist there. But the child inherits descriptors. Through them it would keep the
//! program attached, the queues bound and the ports held after its parent's end. So these
//! are marked, and a child closes them at once. All code that uses them first checks that
//! it runs in the [`Process`] that made it.
//!
//! A child made by a bare `clone(2)`, without the C library's fork, is not noticed unless
//! its maker reports it ([`note_child`]).

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use crate::raw::forked::{self, OfProcess};

/// The process in which something was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The current process.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn current() -> io::Result<Self> {
        forked::install()?;
        Ok(Process(forked::forks()))
    }

    /// False in a forked child.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == forked::forks()
    }
}

/// Whether forked children close this descriptor; true only of the stack's own.
#[inline]
pub fn is_marked(fd: RawFd) -> bool {
    forked::is_marked(fd)
}

/// Runs in a child that was made without the C library's fork. Closes its parent's
/// descriptors, unless both share one descriptor table (CLONE_FILES). Async-signal-safe.
pub fn note_child(shares_files: bool) {
    forked::note_child(shares_files);
}

/// Records that from now on another process may have descriptors of this one that no
/// child closes. Either a child is about to be made, or this process has another's
/// descriptors. Async-signal-safe.
pub fn note_shared() {
    forked::note_shared();
}

/// Whether another process may have descriptors of this one that no child closes.
pub fn is_shared() -> bool {
    forked::is_shared()
}

/// A descriptor that forked children close, unless it is 65,536 or higher. If dropped in
/// a child it is not closed: its number may refer to another file there.
#[derive(Debug)]
pub struct Unshared<T> {
    // Dropped before the descriptor is closed.
    _mark: Mark,
    inner: OfProcess<T>,
}

impl<T: AsFd> Unshared<T> {
    /// Marks a descriptor.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(inner: T) -> io::Result<Self> {
        let process = Process::current()?;
        let fd = inner.as_fd().as_raw_fd();
        forked::mark(fd, true);
        let _mark = Mark { fd, process };
        Ok(Unshared {
            _mark,
            inner: OfProcess::new(inner),
        })
    }
}

impl<T> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

#[derive(Debug)]
struct Mark {
    fd: RawFd,
    process: Process,
}

impl Drop for Mark {
    fn drop(&mut self) {
        // In a child the number may refer to another file.
        if self.process.is_current() {
            forked::mark(self.fd, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_mark_goes_with_its_descriptor() {
        let file = Unshared::new(File::open("/dev/null").unwrap()).unwrap();
        let fd = file.as_raw_fd();
        assert!(forked::is_marked(fd));
        assert!(Process::current().unwrap().is_current());
        drop(file);
        assert!(!forked::is_marked(fd));
    }
}
