//! Linux sockets as a [`StreamHost`], used as an expert would use them.
//!
//! Streams are nonblocking from `accept4` on, and inherit TCP_NODELAY from the listener.
//! They are added to epoll edge-triggered, once, and only when there is something to wait
//! for. A connection with a single request costs accept4, recv, send, close. A request on
//! a persistent connection costs recv, send and its share of an epoll_wait. Files are
//! sent by sendfile. There is one thread, so SO_REUSEPORT and SO_INCOMING_CPU have no
//! effect.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, acceptfrom_with, send, socket_with,
};
use serde::{Deserialize, Serialize};
use tidewall_sys::{raise_open_files, set_option};

use crate::linux::BusyPoll;
use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// Most events per call.
const EVENTS: usize = 512;
/// Most bytes per sendfile: the caller bounds a connection's turn, and this only keeps
/// the number within the kernel's limit.
const SEND_FILE_MAX: u64 = 0x7fff_f000;

const NO_EVENT: epoll::Event = epoll::Event {
    flags: EventFlags::empty(),
    data: EventData::new_u64(0),
};

/// How the sockets are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Busy polling by epoll_wait itself (EPIOCSPARAMS, Linux 6.9), preferred to softirq;
    /// the interface needs `gro_flush_timeout` and `napi_defer_hard_irqs` set for it.
    #[serde(default)]
    pub busy_poll: Option<BusyPoll>,
    /// Connections are accepted only once they have sent bytes, or after about a second
    /// (TCP_DEFER_ACCEPT): saves the wait between accepting and the first request.
    #[serde(default)]
    pub defer_accept: bool,
}

/// The kernel's own stack.
pub struct LinuxStreams {
    epoll: OwnedFd,
    /// Room for the events of a call.
    ready: RefCell<Box<[epoll::Event]>>,
    options: Options,
}

impl LinuxStreams {
    /// Creates a host whose sockets have these options. Raises the process's soft limit
    /// of open files to the hard one, as every connection is a file.
    ///
    /// # Errors
    /// The error of `epoll_create1`; ENOTTY for busy polling before Linux 6.9, EPERM for
    /// a budget over 64 without CAP_NET_ADMIN.
    pub fn new(options: Options) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(busy) = options.busy_poll {
            tidewall_sys::busy_poll(epoll.as_fd(), busy.microseconds, busy.budget).map_err(
                |error| {
                    let what = format!(
                        "busy polling by epoll (Linux 6.9 or later; over 64 packets needs \
                         CAP_NET_ADMIN): {error}"
                    );
                    io::Error::new(error.kind(), what)
                },
            )?;
        }
        // If it cannot be raised, fewer connections are served.
        let _ = raise_open_files(u64::MAX);
        Ok(LinuxStreams {
            epoll,
            ready: RefCell::new(vec![NO_EVENT; EVENTS].into()),
            options,
        })
    }
}

/// A kernel connection.
#[derive(Debug)]
pub struct LinuxStream {
    socket: TcpStream,
}

impl AsFd for LinuxStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream for LinuxStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(buffer)
    }

    fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        Ok(send(&self.socket, bytes, flags)?)
    }

    fn send_file(
        &self,
        file: &File,
        mut offset: u64,
        length: u64,
        _scratch: &mut [u8],
    ) -> io::Result<usize> {
        let length = usize::try_from(length.min(SEND_FILE_MAX)).unwrap_or(usize::MAX);
        match sendfile(&self.socket, file, Some(&mut offset), length)? {
            0 if length > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }
}

/// Listens; if `deferred`, connections are accepted only with bytes.
pub(crate) fn listen(address: SocketAddr, backlog: u32, deferred: bool) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR and leaves :: open to IPv4.
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // Accepted sockets inherit it, which saves a call for each.
    set_tcp_nodelay(&listener, true)?;
    if deferred {
        set_option(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    rustix::net::listen(&listener, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(listener)
}

/// Accepts a waiting connection.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(LinuxStream, SocketAddr)>> {
    match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((socket, address)) => {
            let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            let address = address.and_then(|address| address.try_into().ok());
            let socket = socket.into();
            Ok(Some((LinuxStream { socket }, address.unwrap_or(nowhere))))
        }
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Begins to connect.
pub(crate) fn connect(address: SocketAddr) -> io::Result<(LinuxStream, Progress)> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?);
    let progress = match rustix::net::connect(&socket, &address) {
        Ok(()) => Progress::Done,
        Err(Errno::INPROGRESS) => Progress::Begun,
        Err(error) => return Err(error.into()),
    };
    socket.set_nodelay(true)?;
    Ok((LinuxStream { socket }, progress))
}

impl StreamHost for LinuxStreams {
    type Listener = TcpListener;
    type Stream = LinuxStream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
        listen(address, backlog, self.options.defer_accept)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    fn watch_listener(&self, listener: &TcpListener, token: u64) -> io::Result<()> {
        let token = EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, listener, token, EventFlags::IN)?)
    }

    fn unwatch_listener(&self, listener: &TcpListener) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, listener)?)
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<Option<(LinuxStream, SocketAddr)>> {
        accept(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(LinuxStream, Progress)> {
        connect(address)
    }

    fn watch_early(&self) -> bool {
        // epoll learns which driver to poll from the sockets in it.
        self.options.busy_poll.is_some()
    }

    fn watch(&self, stream: &LinuxStream, token: u64, _interest: Interest) -> io::Result<()> {
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            stream,
            EventData::new_u64(token),
            events,
        )?)
    }

    fn rewatch(&self, _stream: &LinuxStream, _token: u64, _interest: Interest) -> io::Result<()> {
        // Edges are reported once; there is nothing to switch off.
        Ok(())
    }

    fn unwatch(&self, _stream: &LinuxStream) {
        // Closing the descriptor, which has no duplicates, removes it.
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        // In milliseconds, as in epoll_wait: a shorter time is no wait.
        let timeout = Timespec::try_from(Duration::from_millis(
            u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        ))
        .ok();
        let mut ready = self.ready.borrow_mut();
        let count = match epoll::wait(&self.epoll, &mut ready[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().take(count).map(|event| {
            let (mask, token) = (event.flags, event.data);
            let broken = mask.intersects(EventFlags::ERR | EventFlags::HUP);
            Event {
                token: token.u64(),
                readable: broken || mask.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: broken || mask.intersects(EventFlags::OUT),
                hangup: broken || mask.intersects(EventFlags::RDHUP),
            }
        }));
        Ok(())
    }
}
