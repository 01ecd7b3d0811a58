//! `openat2`, which the standard library does not have.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};

/// Opens a file below `root` for reading. The kernel resolves the path and
/// refuses (EXDEV) whatever leaves the root: `..`, absolute symbolic links,
/// those of /proc. Does not block on a FIFO.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &CStr) -> io::Result<File> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: zeroes are a valid open_how, a plain struct of integers.
    let mut how: libc::open_how = unsafe { zeroed() };
    how.flags = u64::from(flags.unsigned_abs());
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the path ends with a NUL, and `how` comes with its size; both
    // outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the call has just returned this descriptor; nobody else has
        // it.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
