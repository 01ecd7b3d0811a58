//! The kernel's calls on descriptors that do not belong to the host. They are raw system
//! calls, since this library replaces the C library's functions.

use core::ffi::{c_int, c_long};
use core::ptr;
use std::os::fd::BorrowedFd;

use libc::{off64_t, socklen_t};
use tidewall_posix::raw::{Count, Place};
use tidewall_posix::{Errno, Result};

/// Borrows a script's descriptor for one call.
fn borrow<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: not -1. The script determines what is done to it; a number without a
    // descriptor is EBADF.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Converts an error to the host's type.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Sets this thread's errno.
pub(super) fn set_errno(number: i32) {
    // SAFETY: this thread's errno always exists.
    unsafe { *libc::__errno_location() = number };
}

/// `read`.
pub(super) fn read(fd: c_int, length: usize) -> Result<Vec<u8>> {
    let mut data = vec![0; length];
    let count = rustix::io::read(borrow(fd)?, &mut data[..]).map_err(errno)?;
    data.truncate(count);
    Ok(data)
}

/// `pread`.
pub(super) fn pread(fd: c_int, length: usize, offset: off64_t) -> Result<Vec<u8>> {
    let offset = u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
    let mut data = vec![0; length];
    let count = rustix::io::pread(borrow(fd)?, &mut data[..], offset).map_err(errno)?;
    data.truncate(count);
    Ok(data)
}

/// `write`.
pub(super) fn write(fd: c_int, data: &[u8]) -> Result<usize> {
    rustix::io::write(borrow(fd)?, data).map_err(errno)
}

/// `sendfile`.
pub(super) fn sendfile(
    to: c_int,
    from: c_int,
    offset: Option<&mut off64_t>,
    count: usize,
) -> Result<usize> {
    let mut at = offset.as_deref().map(|offset| offset.cast_unsigned());
    let sent = rustix::fs::sendfile(borrow(to)?, borrow(from)?, at.as_mut(), count);
    if let (Some(offset), Some(at)) = (offset, at) {
        *offset = at.cast_signed();
    }
    sent.map_err(errno)
}

/// `close`.
pub(super) fn close(fd: c_int) -> Result<usize> {
    // SAFETY: the script's own descriptor, which is not used afterwards.
    let result = unsafe { libc::syscall(libc::SYS_close, fd) };
    finish(result)
}

/// `fcntl`.
pub(super) fn fcntl(fd: c_int, command: c_int, argument: c_long) -> Result<usize> {
    // SAFETY: the script's own descriptor, and an argument that is a number for
    // every command that a script can name.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    finish(result)
}

/// `getsockopt`, which sets errno.
pub(super) fn getsockopt<'a>(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: Place<'a>,
    length: Option<&mut Count<'a, socklen_t>>,
) -> c_int {
    let (value, length) = (
        value.as_ptr(),
        length.map_or(ptr::null_mut(), ptr::from_mut),
    );
    // SAFETY: null, or long enough, by their types.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, option, value, length) as c_int }
}

/// The result of a system call.
fn finish(result: c_long) -> Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    })
}
