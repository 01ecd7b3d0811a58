//! Linux sockets as a [`StreamHost`], used as an expert would use them.
//!
//! Streams are nonblocking from `accept4` on, inherit TCP_NODELAY from the
//! listener, and are entered into epoll edge-triggered, once, and only when
//! there is something to wait for: a connection that brings one request and
//! goes costs accept4, recv, send, close. A kept-alive request costs recv, send
//! and its share of an epoll_wait. Files leave by sendfile. There is one
//! thread, so SO_REUSEPORT and SO_INCOMING_CPU have nothing to decide.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::linux::BusyPoll;
use crate::raw_stream::{self, Epoll};
use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// Events taken with one call.
const EVENTS: usize = 512;
/// Bytes that one sendfile may move: a connection's turn is bounded by its
/// caller, this only keeps the number within what the kernel takes.
const SEND_FILE_MAX: u64 = 0x7fff_f000;

/// How the sockets are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Busy polling by epoll_wait itself (EPIOCSPARAMS, Linux 6.9), preferred
    /// to softirq; the interface needs `gro_flush_timeout` and
    /// `napi_defer_hard_irqs` set for it.
    #[serde(default)]
    pub busy_poll: Option<BusyPoll>,
    /// Connections are accepted only once they have brought bytes, or after
    /// about a second (TCP_DEFER_ACCEPT): saves the wait between accepting and
    /// the first request.
    #[serde(default)]
    pub defer_accept: bool,
}

/// The kernel's own stack.
pub struct LinuxStreams {
    epoll: RefCell<Epoll>,
    options: Options,
}

impl fmt::Debug for LinuxStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinuxStreams")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl LinuxStreams {
    /// A host whose sockets have these options. Raises the process's soft
    /// limit of open files to the hard one, as every connection is a file.
    ///
    /// # Errors
    /// What `epoll_create1` reports; ENOTTY for busy polling before Linux 6.9,
    /// EPERM for a budget over 64 without CAP_NET_ADMIN.
    pub fn new(options: Options) -> io::Result<Self> {
        let epoll = Epoll::new(EVENTS)?;
        if let Some(busy) = options.busy_poll {
            epoll
                .busy_poll(busy.microseconds, busy.budget)
                .map_err(|error| {
                    let what = format!(
                        "busy polling by epoll (Linux 6.9 or later; over 64 packets needs \
                         CAP_NET_ADMIN): {error}"
                    );
                    io::Error::new(error.kind(), what)
                })?;
        }
        // Fewer connections are served where it cannot be raised.
        let _ = raw_stream::raise_file_limit();
        Ok(LinuxStreams {
            epoll: RefCell::new(epoll),
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
        let flags = if more { libc::MSG_MORE } else { 0 };
        raw_stream::send(self.socket.as_fd(), bytes, flags)
    }

    fn send_file(
        &self,
        file: &File,
        offset: u64,
        length: u64,
        _scratch: &mut [u8],
    ) -> io::Result<usize> {
        let length = usize::try_from(length.min(SEND_FILE_MAX)).unwrap_or(usize::MAX);
        match raw_stream::send_file(self.socket.as_fd(), file, offset, length)? {
            0 if length > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }
}

/// Listens; connections come only with bytes if `deferred`.
pub(crate) fn listen(address: SocketAddr, backlog: u32, deferred: bool) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR and leaves :: open to IPv4.
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let fd = listener.as_fd();
    // Accepted sockets inherit it: a call less for each.
    raw_stream::set_tcp_option(fd, libc::TCP_NODELAY, 1)?;
    if deferred {
        raw_stream::set_tcp_option(fd, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    raw_stream::listen(fd, backlog)?;
    Ok(listener)
}

/// Takes a connection that is there.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<Option<(LinuxStream, SocketAddr)>> {
    match raw_stream::accept(listener.as_fd()) {
        Ok((socket, address)) => {
            let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            Ok(Some((LinuxStream { socket }, address.unwrap_or(nowhere))))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Begins to connect.
pub(crate) fn connect(address: SocketAddr) -> io::Result<(LinuxStream, Progress)> {
    let (socket, done) = raw_stream::connect(address)?;
    raw_stream::set_tcp_option(socket.as_fd(), libc::TCP_NODELAY, 1)?;
    let progress = if done {
        Progress::Done
    } else {
        Progress::Begun
    };
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
        self.epoll
            .borrow()
            .control(libc::EPOLL_CTL_ADD, listener.as_fd(), libc::EPOLLIN, token)
    }

    fn unwatch_listener(&self, listener: &TcpListener) -> io::Result<()> {
        self.epoll
            .borrow()
            .control(libc::EPOLL_CTL_DEL, listener.as_fd(), 0, 0)
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
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.epoll
            .borrow()
            .control(libc::EPOLL_CTL_ADD, stream.socket.as_fd(), events, token)
    }

    fn rewatch(&self, _stream: &LinuxStream, _token: u64, _interest: Interest) -> io::Result<()> {
        // Edges come once; there is nothing to switch off.
        Ok(())
    }

    fn unwatch(&self, _stream: &LinuxStream) {
        // Closing the descriptor, which has no duplicates, takes it out.
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        let waited = self.epoll.borrow_mut().wait(timeout, |token, mask| {
            let broken = mask & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            events.push(Event {
                token,
                readable: broken || mask & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
                writable: broken || mask & libc::EPOLLOUT != 0,
                hangup: broken || mask & libc::EPOLLRDHUP != 0,
            });
        });
        match waited {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
