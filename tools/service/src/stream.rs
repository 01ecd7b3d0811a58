//! What a server of connections needs of a stack.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// What a stream is watched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interest {
    /// Bytes, the end of the stream or an error can be read.
    pub readable: bool,
    /// Bytes can be written.
    pub writable: bool,
}

impl Interest {
    /// In nothing.
    pub const NONE: Self = Interest {
        readable: false,
        writable: false,
    };
    /// In bytes to be read.
    pub const READABLE: Self = Interest {
        readable: true,
        writable: false,
    };
}

/// What [`StreamHost::wait`] has found.
///
/// A host may report a state once, when it begins (as edge-triggered epoll
/// does), or each time while it lasts. So who gets an event remembers it
/// until a read or write has come back short or with `WouldBlock`, and is not
/// surprised when it did not need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The one given with the stream or listener.
    pub token: u64,
    /// A read would not be `WouldBlock`.
    pub readable: bool,
    /// A write would not be `WouldBlock`.
    pub writable: bool,
    /// The peer has sent its last byte, or the connection is broken: reads go
    /// on to the end even after a short one.
    pub hangup: bool,
}

/// How far [`StreamHost::connect`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The connection is there.
    Done,
    /// The peer has not answered.
    Begun,
}

/// A nonblocking connection, used by one thread. Closed on drop.
pub trait Stream {
    /// Takes bytes that are there. `Ok(0)` is the end of the stream. One that
    /// fills less than the buffer found no more.
    ///
    /// # Errors
    /// `WouldBlock`; what the stack reports, as Linux has it.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Hands over bytes to be sent; returns how many there was room for. With
    /// `more`, further bytes follow at once: no segment has to leave yet.
    ///
    /// # Errors
    /// `WouldBlock`; what the stack reports, as Linux has it.
    fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize>;

    /// Hands over up to `length` bytes of `file` from `offset` on; returns how
    /// many there was room for. `scratch` is memory that a stack without a call
    /// of its own for it may use.
    ///
    /// # Errors
    /// As [`Stream::write`]; UnexpectedEof when the file ends before `offset`.
    fn send_file(
        &self,
        file: &File,
        offset: u64,
        length: u64,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let room = scratch.len().min(length);
        let room = scratch.get_mut(..room).unwrap_or_default();
        match file.read_at(room, offset)? {
            0 if length > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => self.write(room.get(..count).unwrap_or_default(), count < length),
        }
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// What the stack reports; the connection is then of no more use.
    fn shutdown_write(&self) -> io::Result<()>;
}

/// A stack that a server of connections runs on.
pub trait StreamHost {
    /// A listening socket. Closed on drop.
    type Listener;
    /// Its connections.
    type Stream: Stream;

    /// Listens at `address` with room for `backlog` connections that have not
    /// been accepted. Their small writes are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL and the like, as Linux has them.
    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Self::Listener>;

    /// Where it listens: the port, if it was to be chosen.
    ///
    /// # Errors
    /// What the stack reports.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// Reports in [`StreamHost::wait`], for as long as there is one, that a
    /// connection can be accepted.
    ///
    /// # Errors
    /// What the stack reports.
    fn watch_listener(&self, listener: &Self::Listener, token: u64) -> io::Result<()>;

    /// Ends [`StreamHost::watch_listener`]; to be called before a watched
    /// listener is dropped.
    ///
    /// # Errors
    /// What the stack reports.
    fn unwatch_listener(&self, listener: &Self::Listener) -> io::Result<()>;

    /// Takes a connection that is there, `None` when there is none.
    ///
    /// # Errors
    /// What the stack reports, ECONNABORTED and EMFILE among it.
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Stream, SocketAddr)>>;

    /// Begins to connect to `address`; small writes are sent at once
    /// (TCP_NODELAY). While it is [`Progress::Begun`] reads and writes are
    /// `WouldBlock`. Watched for writing, it is reported when it is there or
    /// has failed; then a write succeeds, or fails with the reason.
    ///
    /// # Errors
    /// What is known at once: ENETUNREACH, EADDRNOTAVAIL when no port is free,
    /// EMFILE, and what Linux reports besides.
    fn connect(&self, address: SocketAddr) -> io::Result<(Self::Stream, Progress)>;

    /// Whether each stream is best watched as soon as it has been accepted,
    /// although it may be done with before anything is waited for.
    fn watch_early(&self) -> bool {
        false
    }

    /// Begins to watch a stream.
    ///
    /// # Errors
    /// What the stack reports.
    fn watch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()>;

    /// Changes what a watched stream is watched for. A host whose events cost
    /// nothing when unwanted may ignore it.
    ///
    /// # Errors
    /// What the stack reports.
    fn rewatch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()>;

    /// Ends [`StreamHost::watch`]; to be called before a watched stream is
    /// dropped.
    fn unwatch(&self, stream: &Self::Stream);

    /// Puts what has happened into `events`, in place of what they held;
    /// sleeps for up to `timeout` until there is something.
    ///
    /// # Errors
    /// What the stack reports; a timeout and a signal are no error.
    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()>;
}
