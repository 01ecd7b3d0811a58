//! A page of a file as 64-bit atomics, shared between processes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of a page.
pub(crate) const BYTES: usize = 4096;
/// 64-bit words of a page.
pub(crate) const WORDS: usize = BYTES / 8;

/// A shared mapping of the first [`BYTES`] of a file.
#[derive(Debug)]
pub(crate) struct Page {
    base: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to the process, not to a thread, stays in place
// until drop, and is only reached through atomics.
unsafe impl Send for Page {}
// SAFETY: as above; shared references only give out atomics.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the file, which must be at least [`BYTES`] long: reaching past a
    /// file's end raises SIGBUS, so a shorter one is refused.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < BYTES as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the counters file is too short",
            ));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice
        // aliases no memory of this program.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Page { base })
    }

    /// The words of the page.
    pub(crate) fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping is page-aligned, BYTES long, readable and
        // writable until drop; atomics may be shared with other processes.
        unsafe { self.base.cast::<[AtomicU64; WORDS]>().as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, which nothing borrows any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
