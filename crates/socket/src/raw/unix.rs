//! Unix sockets with permissions.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::options;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A nonblocking stream socket that listens at `path`, whose permissions are
/// `mode` from the first moment on: the file takes those of the socket (and of
/// the umask, which can only be stricter).
///
/// # Errors
/// EINVAL for a path too long or with a zero byte; EADDRINUSE; what `bind`
/// reports.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    let socket = UnixListener::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: no pointers but the address, valid for its size for the call's
    // duration.
    let failed = unsafe {
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let address: *const libc::sockaddr_un = &address;
        libc::fchmod(socket.as_raw_fd(), mode) < 0
            || libc::bind(socket.as_raw_fd(), address.cast(), length) < 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    options::listen(socket.as_fd(), BACKLOG)?;
    Ok(socket)
}
