//! Non-blocking TCP connects, epoll, and descriptor limits.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidewall_sys::{
    SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL, option_bytes, raise_open_files,
    set_option,
};

/// Default number of events handled at once.
const EVENTS: usize = 16;

/// The destination and sources of connections.
#[derive(Debug)]
pub(crate) struct Ways {
    destination: SocketAddr,
    /// Used in turn; none: the kernel's choice.
    sources: Vec<IpAddr>,
    turn: usize,
    /// Receive buffer in bytes, which the kernel doubles and bounds: no larger window is
    /// announced to the peer.
    buffer: Option<u32>,
}

impl Ways {
    pub(crate) fn new(destination: SocketAddr, sources: &[IpAddr], buffer: Option<u32>) -> Self {
        Ways {
            destination,
            sources: sources.to_vec(),
            turn: 0,
            buffer,
        }
    }

    /// Begins to connect. The socket does not block. It becomes writable once it is
    /// connected; [`TcpStream::take_error`] reports a failure.
    pub(crate) fn connect(&mut self) -> io::Result<TcpStream> {
        let source = self.sources.get(self.turn % self.sources.len().max(1));
        self.turn = self.turn.wrapping_add(1);
        connect(self.destination, source.copied(), self.buffer)
    }
}

fn connect(
    destination: SocketAddr,
    source: Option<IpAddr>,
    buffer: Option<u32>,
) -> io::Result<TcpStream> {
    let family = match destination {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?);
    if let Some(bytes) = buffer {
        set_socket_recv_buffer_size(&stream, bytes as usize)?;
    }
    if let Some(source) = source {
        // The port is then chosen by the whole connection, not by the address:
        // it need not be free for all destinations.
        set_option(&stream, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        bind(&stream, &SocketAddr::new(source, 0))?;
    }
    match rustix::net::connect(&stream, &destination) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

/// Makes each receive call poll the device itself, if the device's interrupt is deferred
/// (`napi_defer_hard_irqs`, `gro_flush_timeout`). A spinning client then receives replies
/// in its own time, without interrupting other threads.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN.
pub(crate) fn prefer_busy_poll(socket: impl AsFd) -> io::Result<()> {
    set_option(&socket, libc::SOL_SOCKET, SO_BUSY_POLL, 50)?;
    set_option(&socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)
}

/// Acts as [`prefer_busy_poll`], with as many packets per poll as the kernel allows: for
/// a socket that polls on behalf of others.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN.
pub(crate) fn poll_much(socket: impl AsFd) -> io::Result<()> {
    prefer_busy_poll(&socket)?;
    set_option(&socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, 64)
}

/// Returns the payload bytes that the peer has acknowledged so far (`tcpi_bytes_acked`;
/// the SYN counts as one, RFC 4898 `tcpEStatsAppHCThruOctetsAcked`).
pub(crate) fn bytes_acknowledged(stream: &TcpStream) -> io::Result<u64> {
    /// Offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h): after
    /// 8 single bytes, 24 words of 32 bits and two of 64.
    const AT: usize = 8 + 24 * 4 + 2 * 8;
    let mut info = [0u8; AT + 8];
    option_bytes(stream, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    let value = info.get(AT..).and_then(|bytes| bytes.first_chunk());
    Ok(value.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

/// An event of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number with which it was added.
    pub(crate) token: u64,
    /// Something can be read: data, the end or an error.
    pub(crate) readable: bool,
    /// It is connected, has room again, or failed.
    pub(crate) writable: bool,
    /// It failed; [`TcpStream::take_error`] returns the reason.
    pub(crate) failed: bool,
    /// The peer closed it, or it failed.
    pub(crate) ended: bool,
}

/// Readiness of many sockets, reported once for each change (edge-triggered).
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Epoll").field(&self.fd).finish()
    }
}

impl Epoll {
    /// Creates one that handles few events at once, as a blast waits meanwhile.
    pub(crate) fn new() -> io::Result<Self> {
        Epoll::taking(EVENTS)
    }

    /// Creates one that handles up to this many events at once.
    pub(crate) fn taking(events: usize) -> io::Result<Self> {
        Ok(Epoll {
            fd: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(events.max(1)),
        })
    }

    /// Watches a socket until it is closed.
    pub(crate) fn add(&self, stream: &TcpStream, token: u64) -> io::Result<()> {
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(
            &self.fd,
            stream,
            EventData::new_u64(token),
            events,
        )?)
    }

    /// Receives events into `taken`, which is cleared; waits up to `milliseconds` for the
    /// first.
    pub(crate) fn wait(&mut self, milliseconds: u32, taken: &mut Vec<Event>) -> io::Result<()> {
        taken.clear();
        let timeout = Timespec {
            tv_sec: i64::from(milliseconds / 1000),
            tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
        };
        self.events.clear();
        let room = spare_capacity(&mut self.events);
        match epoll::wait(&self.fd, room, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ends = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
        taken.extend(self.events.iter().map(|event| {
            let (flags, token) = (event.flags, event.data);
            Event {
                token: token.u64(),
                readable: flags.intersects(ends | EventFlags::IN),
                writable: flags.intersects(ends | EventFlags::OUT),
                failed: flags.intersects(EventFlags::ERR),
                ended: flags.intersects(ends),
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

/// Allows this process `descriptors` open files, raising its limit as far as necessary
/// and permitted.
///
/// # Errors
/// `PermissionDenied`, with the command that raises the limit, if it may not be raised so
/// far.
pub(crate) fn raise_descriptors(descriptors: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= descriptors) {
        return Ok(());
    }
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let wanted = Rlimit {
        current: Some(descriptors),
        maximum: limit.maximum.map(|hard| hard.max(descriptors)),
    };
    setrlimit(Resource::Nofile, wanted).map_err(|error| {
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

/// Allows this process as many of `descriptors` open files as permitted, and returns
/// their number.
pub(crate) fn allow_descriptors(descriptors: u64) -> io::Result<u64> {
    if raise_descriptors(descriptors).is_ok() {
        return Ok(descriptors);
    }
    Ok(raise_open_files(descriptors)?.min(descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_connection_is_reported_when_it_stands() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                tidewall_skip::inapplicable(local, "no such address here");
                continue;
            };
            let server = listener.local_addr().unwrap();
            let mut epoll = Epoll::new().unwrap();
            let mut stream = connect(server, Some(server.ip()), None).unwrap();
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
        let Ok(stream) = connect(server, None, None) else {
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
