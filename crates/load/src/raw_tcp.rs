//! TCP sockets that connect without waiting, epoll, and room for descriptors.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most events taken at once where nothing else is asked for.
const EVENTS: usize = 16;

/// Begins to connect to `destination`, from `source` if one is given. The
/// socket does not block; it is writable once it is connected, and
/// [`TcpStream::take_error`] tells when that failed.
pub(crate) fn connect(destination: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    connect_with(destination, source, None)
}

/// As [`connect`], with a receive buffer of so many bytes, of which the kernel
/// doubles and bounds the number: the peer is told of no larger window.
pub(crate) fn connect_with(
    destination: SocketAddr,
    source: Option<IpAddr>,
    buffer: Option<u32>,
) -> io::Result<TcpStream> {
    let family = match destination {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            family,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel just returned to us.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if let Some(bytes) = buffer {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        set(stream.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }
    if let Some(source) = source {
        // The port is then chosen by the whole connection, not by the address:
        // it need not be free for all destinations.
        set(
            stream.as_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            1,
        )?;
        let (address, length) = raw_address(SocketAddr::new(source, 0));
        // SAFETY: an initialised address of the length given.
        check(unsafe { libc::bind(stream.as_raw_fd(), (&raw const address).cast(), length) })?;
    }
    let (address, length) = raw_address(destination);
    // SAFETY: an initialised address of the length given.
    match check(unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(stream),
    }
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage is as large as any address and aligned
            // for it.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(value) };
            mem::size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(value) };
            mem::size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn set(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: four valid bytes for the call's duration.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of::<i32>() as libc::socklen_t,
        )
    })
}

/// Asks for a send buffer of so many bytes, of which the kernel doubles and
/// bounds the number.
pub(crate) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

/// Lets closing the socket end its connection at once, by a reset: nothing of
/// it stays behind in TIME-WAIT.
pub(crate) fn abort_on_close(socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: one linger that outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const value).cast(),
            mem::size_of::<libc::linger>() as libc::socklen_t,
        )
    })
}

/// Payload bytes that the peer has acknowledged so far (`tcpi_bytes_acked`; the
/// SYN counts as one, RFC 4898 `tcpEStatsAppHCThruOctetsAcked`).
pub(crate) fn bytes_acknowledged(stream: &TcpStream) -> io::Result<u64> {
    /// Offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h): after
    /// 8 single bytes, 24 words of 32 bits and two of 64.
    const AT: usize = 8 + 24 * 4 + 2 * 8;
    let mut info = [0u8; AT + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the array.
    check(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    let value = info.get(AT..).and_then(|bytes| bytes.first_chunk());
    Ok(value.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What happened to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number it was added with.
    pub(crate) token: u64,
    /// Something can be read: data, the end or an error.
    pub(crate) readable: bool,
    /// It is connected, has room again, or failed.
    pub(crate) writable: bool,
    /// It failed; [`TcpStream::take_error`] tells how.
    pub(crate) failed: bool,
    /// The peer ended it, or it failed.
    pub(crate) ended: bool,
}

/// Readiness of many sockets, told once for each change (edge-triggered).
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Taking few events at once, as a blast waits meanwhile.
    pub(crate) fn new() -> io::Result<Self> {
        Epoll::taking(EVENTS)
    }

    /// Taking up to so many events at once.
    pub(crate) fn taking(events: usize) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Epoll {
            // SAFETY: a descriptor that the kernel just returned to us.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: vec![libc::epoll_event { events: 0, u64: 0 }; events.max(1)],
        })
    }

    /// Watches a socket until it is closed.
    pub(crate) fn add(&self, stream: &TcpStream, token: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: token,
        };
        // SAFETY: one event that outlives the call.
        check(unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                stream.as_raw_fd(),
                &raw mut event,
            )
        })
    }

    /// Takes what has happened, waiting up to `milliseconds` for the first
    /// event; into `taken`, which is cleared.
    pub(crate) fn wait(&mut self, milliseconds: i32, taken: &mut Vec<Event>) -> io::Result<()> {
        taken.clear();
        // SAFETY: room for as many events as are announced.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                i32::try_from(self.events.len()).unwrap_or(i32::MAX),
                milliseconds,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        };
        let ends = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;
        taken.extend(self.events.iter().take(count).map(|event| {
            let (flags, token) = (event.events, event.u64);
            Event {
                token,
                readable: flags & (libc::EPOLLIN as u32 | ends) != 0,
                writable: flags & (libc::EPOLLOUT as u32 | ends) != 0,
                failed: flags & libc::EPOLLERR as u32 != 0,
                ended: flags & ends != 0,
            }
        }));
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Lets this process hold `descriptors` open files, raising its limit as far as
/// that takes and as it may.
///
/// # Errors
/// `PermissionDenied` where the limit may not be raised so far, naming the
/// command that does.
pub fn raise_descriptors(descriptors: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one rlimit to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur >= descriptors {
        return Ok(());
    }
    let hard = limit.rlim_max;
    limit = libc::rlimit {
        rlim_cur: descriptors,
        rlim_max: hard.max(descriptors),
    };
    // SAFETY: one rlimit to read from.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).map_err(|error| {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{descriptors} open files are needed and {hard} are allowed ({error}): raise the \
                 limit with `ulimit -Hn {descriptors}` as root (`prlimit --pid $$ \
                 --nofile={descriptors}`; LimitNOFILE={descriptors} in a unit; beyond \
                 /proc/sys/fs/nr_open with `sysctl fs.nr_open={descriptors}` first)"
            ),
        )
    })
}

/// Lets this process hold as many of `descriptors` open files as it may, and
/// says how many that are.
pub(crate) fn allow_descriptors(descriptors: u64) -> io::Result<u64> {
    if raise_descriptors(descriptors).is_ok() {
        return Ok(descriptors);
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one rlimit to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    let most = limit.rlim_max.min(descriptors);
    raise_descriptors(most)?;
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_connection_is_told_when_it_stands() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                tidewall_skip::inapplicable(local, "no such address here");
                continue;
            };
            let server = listener.local_addr().unwrap();
            let mut epoll = Epoll::new().unwrap();
            let mut stream = connect(server, Some(server.ip())).unwrap();
            epoll.add(&stream, 7).unwrap();
            let mut events = Vec::new();
            epoll.wait(1000, &mut events).unwrap();
            assert!(events[0].token == 7 && events[0].writable);
            assert!(stream.take_error().unwrap().is_none());
            let (mut peer, _) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            peer.read_exact(&mut bytes).unwrap();
            while bytes_acknowledged(&stream).unwrap() < 5 {
                assert!(stream.take_error().unwrap().is_none());
            }
            drop(peer);
            epoll.wait(1000, &mut events).unwrap();
            assert!(events[0].readable);
        }
    }

    #[test]
    fn a_refused_connection_is_an_error_of_the_socket() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = closed.local_addr().unwrap();
        drop(closed);
        let mut epoll = Epoll::new().unwrap();
        // Loopback may refuse at once.
        let Ok(stream) = connect(server, None) else {
            return;
        };
        epoll.add(&stream, 1).unwrap();
        let mut events = Vec::new();
        epoll.wait(1000, &mut events).unwrap();
        assert!(events[0].writable && stream.take_error().unwrap().is_some());
    }

    #[test]
    fn descriptors_that_are_allowed_already_are_no_matter() {
        raise_descriptors(3).unwrap();
        assert_eq!(allow_descriptors(3).unwrap(), 3);
    }
}
