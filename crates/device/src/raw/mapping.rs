//! Shared memory mappings that undo themselves.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::frame::Frame;

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    length: usize,
}

// SAFETY: the mapping is plain memory; who may touch which part of it is
// decided by its users (one `Frame` token a frame, atomics in rings and tables).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `fd` from `offset`, shared and writable.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>, length: usize, offset: i64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; no
        // existing memory is touched.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child that inherited a ring would keep its socket bound, and the
        // queue busy, until it ends (the restorer ends after us). Kernels that
        // refuse the advice for a mapping lose nothing but that.
        // SAFETY: exactly the range just mapped.
        unsafe { libc::madvise(address, length, libc::MADV_DONTFORK) };
        Ok(Mapping {
            address: address.cast(),
            length,
        })
    }

    /// Maps a new memfd of `length` zero bytes. The descriptor is closed on
    /// exec, so that a child never holds a queue's memory by accident.
    pub(crate) fn anonymous_file(name: &str, length: usize) -> io::Result<Self> {
        let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `name` is a valid C string for the duration of the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just returned to us, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on a descriptor we own.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), length as i64) } < 0 {
            return Err(io::Error::last_os_error());
        }
        use std::os::fd::AsFd;
        Mapping::of_fd(fd.as_fd(), length, 0)
    }

    /// First byte.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    /// Bytes mapped.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Bytes of a frame whose owner holds a borrow for the result's lifetime.
    /// A range outside the mapping gives an empty slice.
    pub(crate) fn slice(&self, start: usize, length: usize) -> &[u8] {
        if start
            .checked_add(length)
            .is_none_or(|end| end > self.length)
        {
            return &[];
        }
        // SAFETY: inside the mapping (checked above). The bytes belong to the
        // frame whose token the caller borrows, and a frame has one token, so
        // nobody writes them meanwhile: the kernel writes only frames whose
        // tokens were given to the fill ring.
        unsafe { std::slice::from_raw_parts(self.address.add(start), length) }
    }

    /// Bytes of a frame to change; `_owner` is the token, borrowed mutably so
    /// that no other view of the frame exists.
    pub(crate) fn slice_mut<'a>(
        &'a self,
        start: usize,
        length: usize,
        _owner: &'a mut Frame,
    ) -> &'a mut [u8] {
        if start
            .checked_add(length)
            .is_none_or(|end| end > self.length)
        {
            return &mut [];
        }
        // SAFETY: inside the mapping (checked above); `_owner` is the only
        // token of this frame and is borrowed mutably for 'a.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(start), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, unmapped once; every
        // reference into it borrows `self`.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}
