//! An AF_XDP socket, which the standard library has no name for.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// An AF_XDP socket bound to nothing.
pub fn af_xdp() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
