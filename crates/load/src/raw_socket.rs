//! Socket calls that the standard library has no name for.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Sends `payload` up to `count` times over a connected socket, never blocking.
/// Returns how many times; an error only when that is none.
pub(crate) fn send_many(
    socket: BorrowedFd<'_>,
    payload: &[u8],
    count: u32,
    messages: &mut Vec<libc::mmsghdr>,
) -> io::Result<u32> {
    let mut part = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    messages.clear();
    for _ in 0..count {
        // SAFETY: all-zero is a valid mmsghdr: no name, no parts, no control.
        let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
        messages.push(message);
    }
    // SAFETY: the headers lie in `messages`, of which the length is given; each
    // points at `part`, which outlives the call and describes `payload`. Sending
    // only reads the parts.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    // The headers point into this call's frame: let none survive it.
    messages.clear();
    u32::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Makes each receive call poll the device itself, where the device's interrupt
/// is deferred (`napi_defer_hard_irqs`, `gro_flush_timeout`): a spinning client
/// then takes replies on its own time, without an interrupt on anybody's.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN.
pub(crate) fn prefer_busy_poll(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_PREFER_BUSY_POLL: i32 = 69;
    set_options(
        socket,
        &[(libc::SO_BUSY_POLL, 50), (SO_PREFER_BUSY_POLL, 1)],
    )
}

/// As [`prefer_busy_poll`], with as many packets a poll as the kernel allows:
/// for a socket that polls on behalf of others.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN.
pub(crate) fn poll_much(socket: BorrowedFd<'_>) -> io::Result<()> {
    const SO_BUSY_POLL_BUDGET: i32 = 70;
    prefer_busy_poll(socket)?;
    set_options(socket, &[(SO_BUSY_POLL_BUDGET, 64)])
}

fn set_options(socket: BorrowedFd<'_>, options: &[(i32, i32)]) -> io::Result<()> {
    for &(name, value) in options {
        // SAFETY: four valid bytes for the call's duration.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                (&raw const value).cast(),
                mem::size_of::<i32>() as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A generic netlink socket in the caller's namespace, to write requests to and
/// read answers from.
pub(crate) fn generic_netlink() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_GENERIC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just returned to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ties a socket to an interface.
pub(crate) fn bind_to_interface(socket: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    // SAFETY: the name is valid for reads of the length given; the kernel takes
    // names without a final zero.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Sleeps until one of the descriptors is readable or `timeout` is over. A
/// signal ends the sleep too.
///
/// # Errors
/// What `ppoll` reports.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<()> {
    let mut entries: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|descriptor| libc::pollfd {
            fd: descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: as many pollfds are passed as are announced; the timespec
    // outlives the call; no signal mask is passed.
    let result = unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            &raw const timeout,
            ptr::null(),
        )
    };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn datagrams_are_sent_in_one_call() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let mut messages = Vec::new();
        for payload in [&b""[..], b"fourteen bytes"] {
            let sent = send_many(sender.as_fd(), payload, 5, &mut messages).unwrap();
            assert_eq!(sent, 5);
            let mut buffer = [0; 64];
            for _ in 0..5 {
                let length = receiver.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], payload);
            }
        }
        assert!(receiver.set_nonblocking(true).is_ok());
        assert!(
            receiver.recv(&mut [0; 64]).is_err(),
            "no more than were sent"
        );
    }

    #[test]
    fn waiting_ends_with_the_timeout() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let begin = Instant::now();
        wait_readable(&[socket.as_fd()], Duration::from_millis(3)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(3));
    }
}
