//! From `socket` to `shutdown`.

use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;

use libc::{sockaddr, socklen_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType, acceptfrom_with, socket_with};
use tidewall::OpenFile;
use tidewall::readiness::Events;
use tidewall_posix::{Accepted, Errno, PollFd, Posix, Result};

use super::options::{self, SIOCATMARK};
use super::signals::{begins_again, first_of_many, restarting};
use super::{address, bytes, checked, done, number, originals, put_address};
use crate::candidates;
use crate::process::{inside, is_inside, ours};
use crate::promote::{self, attended};
use crate::protected::out_of_the_way;
use crate::watch;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let fd = unsafe { originals::socket(domain, kind, protocol) };
    if super::given::given(fd) >= 0 && !is_inside() {
        watch::forget(fd);
        candidates::made(fd, candidates::of_call(domain, kind, protocol));
    }
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let remote = unsafe { address(to, length) };
    // SAFETY: guaranteed by the caller.
    let leaves = || unsafe { is_of_no_family(to, length) };
    let again = |posix: &Posix, remote| {
        let connect = || posix.connect(fd, remote);
        restarting(posix, fd, Posix::write_timeout, connect)
    };
    let connected = match (ours(fd), remote) {
        (Some(posix), Some(remote)) => Some(again(posix, remote)),
        (Some(posix), None) if leaves() => Some(inside(|| posix.disconnect(fd))),
        (None, Some(remote)) => {
            let first = first_of_many(|| promote::connect(fd, remote));
            match (first, ours(fd)) {
                (Some(Err(Errno(libc::EINTR))), Some(posix))
                    if begins_again(posix, fd, Posix::write_timeout) =>
                {
                    Some(again(posix, remote))
                }
                (first, _) => first,
            }
        }
        _ => None,
    };
    match connected {
        Some(result) => done(result),
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::connect(fd, to, length) },
    }
}

/// Reports an address of AF_UNSPEC.
///
/// # Safety
/// The arguments are as connect(2) requires.
unsafe fn is_of_no_family(address: *const sockaddr, length: socklen_t) -> bool {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(address.cast(), length as usize) }.unwrap_or_default();
    let family = bytes.first_chunk().map(|it| u16::from_ne_bytes(*it));
    family == Some(libc::AF_UNSPEC as u16)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match ours(fd) {
        Some(posix) => done(inside(|| posix.listen(fd, backlog))),
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::listen(fd, backlog) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match attended(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { accept_here(posix, fd, from, length, 0) },
        // SAFETY: guaranteed by the caller.
        None => accepted_by_kernel(fd, unsafe { originals::accept(fd, from, length) }),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    match attended(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { accept_here(posix, fd, from, length, flags) },
        // SAFETY: guaranteed by the caller.
        None => accepted_by_kernel(fd, unsafe { originals::accept4(fd, from, length, flags) }),
    }
}

/// Records a socket that the kernel has accepted for the program, if any.
fn accepted_by_kernel(listener: c_int, fd: c_int) -> c_int {
    let fd = super::given::given(fd);
    if !is_inside() {
        watch::accepted(listener, fd);
    }
    fd
}

/// # Safety
/// The arguments are as accept4(2) requires.
unsafe fn accept_here(
    posix: &Posix,
    fd: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    number(
        restarting(posix, fd, Posix::read_timeout, || {
            accepted(posix, fd, flags)
        })
        .and_then(|(accepted, peer)| {
            // SAFETY: guaranteed by the caller.
            let named = peer.map_or(Ok(()), |peer| unsafe { put_address(peer, from, length) });
            named.map(|()| accepted).inspect_err(|_| {
                // SAFETY: no other code knows the descriptor.
                unsafe { super::numbers::close(accepted) };
            })
        }),
    )
}

fn accepted(posix: &Posix, fd: c_int, flags: c_int) -> Result<(c_int, Option<SocketAddr>)> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let cloexec = flags & libc::SOCK_CLOEXEC != 0;
    let waits = |file: &OpenFile| {
        matches!(file, OpenFile::Listener(_)) && !file.is_nonblocking().unwrap_or(true)
    };
    if posix.descriptors().file(fd).is_ok_and(|file| waits(&file)) {
        // So that no descriptor is used while it waits.
        if posix.poll(&mut [PollFd::new(fd, Events::IN)], 0)? == 0 {
            // A caller without a free descriptor does not wait for a connection that it
            // cannot accept. SAFETY: no other code knows the descriptor.
            unsafe { originals::close(placeholder(cloexec)?) };
        }
        let limit = posix.read_timeout(fd).map_or(-1, |it| {
            i32::try_from(it.as_millis()).unwrap_or(i32::MAX).max(1)
        });
        if posix.poll(&mut [PollFd::new(fd, Events::IN)], limit)? == 0 {
            return Err(Errno(libc::EAGAIN));
        }
    }
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let number = placeholder(cloexec)?;
    match posix.accept_as(fd, number, nonblocking) {
        Ok((Accepted::Here, peer)) => {
            watch::accepted_here(posix, fd);
            Ok((number, peer))
        }
        Ok((Accepted::Kernel(socket), peer)) => {
            let how = if cloexec { libc::O_CLOEXEC } else { 0 };
            // SAFETY: two descriptors, of which the second belongs to this call.
            checked(unsafe { originals::dup3(socket.as_raw_fd(), number, how) })?;
            let _ = rustix::io::ioctl_fionbio(&socket, nonblocking);
            Ok((number, peer))
        }
        Err(error) => {
            // SAFETY: no other code knows the descriptor.
            unsafe { originals::close(number) };
            // A kernel connection used another descriptor beside it; the last free one
            // lets the kernel's listener accept it.
            if let (Errno(libc::EMFILE), Some(listener)) = (error, super::borrow(fd))
                && super::poll_now(&mut [PollFd::new(fd, Events::IN)]) == Ok(1)
            {
                let flags = SocketFlags::from_bits_retain(flags as c_uint);
                let accepted = acceptfrom_with(listener, flags);
                let (socket, peer) = accepted.map_err(|error| Errno(error.raw_os_error()))?;
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                return Ok((socket.into_raw_fd(), peer));
            }
            Err(error)
        }
    }
}

/// The socket that a connection's descriptor names for the kernel.
pub(crate) fn unconnected() -> Option<&'static OwnedFd> {
    static UNCONNECTED: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let made = UNCONNECTED.get_or_init(|| {
        let flags = SocketFlags::CLOEXEC;
        let made = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok();
        made.map(out_of_the_way)
    });
    made.as_ref()
}

/// Allocates the kernel's next descriptor for a connection. It names a socket that is not
/// connected, so a call that bypasses the library fails.
fn placeholder(cloexec: bool) -> Result<c_int> {
    let socket = unconnected().ok_or(Errno(libc::EMFILE))?;
    let command = match cloexec {
        true => libc::F_DUPFD_CLOEXEC,
        false => libc::F_DUPFD,
    };
    // SAFETY: duplicates a descriptor.
    checked(unsafe { originals::fcntl(socket.as_raw_fd(), command, 0) }).map(super::given::given)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match ours(fd) {
        Some(posix) => done(inside(|| posix.shutdown(fd, how))),
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::shutdown(fd, how) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match ours(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { name(inside(|| posix.getsockname(fd)), to, length) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::getsockname(fd, to, length) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    match ours(fd) {
        // SAFETY: guaranteed by the caller.
        Some(posix) => unsafe { name(inside(|| posix.getpeername(fd)), to, length) },
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::getpeername(fd, to, length) },
    }
}

/// # Safety
/// The arguments are as getsockname(2) requires.
unsafe fn name(result: Result<SocketAddr>, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    done(result.and_then(|address| {
        // SAFETY: guaranteed by the caller.
        unsafe { put_address(address, to, length) }?;
        match to.is_null() {
            true => Err(Errno(libc::EFAULT)),
            false => Ok(()),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    match ours(fd) {
        Some(_) => {
            let mut mark: c_int = 0;
            let place = (&raw mut mark).expose_provenance();
            // SAFETY: an integer on this stack.
            match unsafe { options::ioctl(fd, SIOCATMARK, place) } {
                0 => mark,
                error => error,
            }
        }
        // SAFETY: guaranteed by the caller.
        None => unsafe { originals::sockatmark(fd) },
    }
}
