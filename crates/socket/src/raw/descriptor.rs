//! Calls on descriptors of the kernel, of whatever kind.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::options::{parse_address, raw_address};

/// A count of bytes, or the calling thread's last error.
fn length(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Nothing, or the calling thread's last error.
fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// As many as the kernel takes at once; it refuses more.
fn pieces<T>(all: &[T]) -> io::Result<i32> {
    i32::try_from(all.len()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// `readv`.
pub(crate) fn readv(fd: BorrowedFd<'_>, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let count = pieces(buffers)?;
    // SAFETY: `IoSliceMut` is laid out as iovec; each is writable for its length.
    length(unsafe { libc::readv(fd.as_raw_fd(), buffers.as_mut_ptr().cast(), count) })
}

/// `writev`.
pub(crate) fn writev(fd: BorrowedFd<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let count = pieces(buffers)?;
    // SAFETY: `IoSlice` is laid out as iovec; each is readable for its length.
    length(unsafe { libc::writev(fd.as_raw_fd(), buffers.as_ptr().cast(), count) })
}

/// `recvmsg`, with the sender's address if it is an internet one.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> io::Result<(usize, Option<SocketAddr>)> {
    // SAFETY: all-zero is a valid sockaddr_storage and msghdr.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    message.msg_name = (&mut name as *mut libc::sockaddr_storage).cast();
    message.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    message.msg_iov = buffers.as_mut_ptr().cast();
    message.msg_iovlen = buffers.len();
    // SAFETY: every pointer in `message` is valid for its stated length.
    let got = length(unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, flags) })?;
    Ok((got, parse_address(&name)))
}

/// `sendmsg`, to an address or to the peer; SIGPIPE is not raised.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    buffers: &[IoSlice<'_>],
    destination: Option<SocketAddr>,
    flags: i32,
) -> io::Result<usize> {
    let mut name = destination.map(raw_address);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(name) = &mut name {
        message.msg_name = (&mut name.storage as *mut libc::sockaddr_storage).cast();
        message.msg_namelen = name.length;
    }
    message.msg_iov = buffers.as_ptr().cast_mut().cast();
    message.msg_iovlen = buffers.len();
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in `message` is valid for its stated length, and only
    // read.
    length(unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) })
}

/// `accept4`, with the peer's address if it is an internet one.
pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut size = mem::size_of_val(&name) as libc::socklen_t;
    // SAFETY: `name` is writable for `size` bytes, both for the call's duration.
    let accepted = unsafe {
        libc::accept4(
            fd.as_raw_fd(),
            (&mut name as *mut libc::sockaddr_storage).cast(),
            &mut size,
            libc::SOCK_CLOEXEC,
        )
    };
    done(accepted)?;
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
    Ok((accepted, parse_address(&name)))
}

/// `shutdown`.
pub(crate) fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: no pointers.
    done(unsafe { libc::shutdown(fd.as_raw_fd(), how) })
}

/// Which end's address is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Local,
    Peer,
}

/// `getsockname` and `getpeername`; `None` for one that is not an internet
/// address.
pub(crate) fn address(fd: BorrowedFd<'_>, end: End) -> io::Result<Option<SocketAddr>> {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut size = mem::size_of_val(&name) as libc::socklen_t;
    let place = (&mut name as *mut libc::sockaddr_storage).cast();
    // SAFETY: `name` is writable for `size` bytes, both for the call's duration.
    let result = unsafe {
        match end {
            End::Local => libc::getsockname(fd.as_raw_fd(), place, &mut size),
            End::Peer => libc::getpeername(fd.as_raw_fd(), place, &mut size),
        }
    };
    done(result)?;
    Ok(parse_address(&name))
}

/// Whether O_NONBLOCK is set.
pub(crate) fn nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    done(flags)?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Sets or clears O_NONBLOCK.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    // SAFETY: no pointers.
    let before = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    done(before)?;
    let flags = if nonblocking {
        before | libc::O_NONBLOCK
    } else {
        before & !libc::O_NONBLOCK
    };
    if flags == before {
        return Ok(());
    }
    // SAFETY: no pointers.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })
}
