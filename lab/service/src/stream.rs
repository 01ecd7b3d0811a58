//! The interface between a connection server and a stack.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The events for which a stream is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interest {
    /// Bytes, the end of the stream or an error can be read.
    pub readable: bool,
    /// Bytes can be written.
    pub writable: bool,
}

impl Interest {
    /// No events.
    pub const NONE: Self = Interest {
        readable: false,
        writable: false,
    };
    /// Bytes to read.
    pub const READABLE: Self = Interest {
        readable: true,
        writable: false,
    };
}

/// An event found by [`StreamHost::wait`].
///
/// A host may report a state once, when it begins (as edge-triggered epoll does), or each
/// time while it lasts. So the receiver of an event remembers it until a read or write
/// has returned short or with `WouldBlock`, and tolerates unneeded events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The token given with the stream or listener.
    pub token: u64,
    /// A read would not return `WouldBlock`.
    pub readable: bool,
    /// A write would not return `WouldBlock`.
    pub writable: bool,
    /// The peer has sent its last byte, or the connection is broken: continue reading to
    /// the end even after a short read.
    pub hangup: bool,
}

/// The progress of [`StreamHost::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The connection is established.
    Done,
    /// The peer has not answered.
    Begun,
}

/// A nonblocking connection, used by one thread. Closed on drop.
pub trait Stream {
    /// Reads available bytes. `Ok(0)` is the end of the stream. A read that does not fill
    /// the buffer found no more.
    ///
    /// # Errors
    /// `WouldBlock`; the error of the stack, as on Linux.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Queues bytes to be sent; returns how many there was room for. With `more`, further
    /// bytes follow at once, so no segment has to leave yet.
    ///
    /// # Errors
    /// `WouldBlock`; the error of the stack, as on Linux.
    fn write(&self, bytes: &[u8], more: bool) -> io::Result<usize>;

    /// Queues up to `length` bytes of `file` from `offset` on; returns how many there was
    /// room for. `scratch` is memory for a stack without its own call for this.
    ///
    /// # Errors
    /// Those of [`Stream::write`]; UnexpectedEof if the file ends before `offset`.
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

    /// Ends the sending side: nothing more will be sent.
    ///
    /// # Errors
    /// The error of the stack; the connection is unusable then.
    fn shutdown_write(&self) -> io::Result<()>;
}

/// A stack on which a connection server runs.
pub trait StreamHost {
    /// A listening socket. Closed on drop.
    type Listener;
    /// Its connections.
    type Stream: Stream;

    /// Listens on `address` with room for `backlog` unaccepted connections. Their small
    /// writes are sent at once (TCP_NODELAY).
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL and the like, as on Linux.
    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Self::Listener>;

    /// Returns the address on which it listens, including a port that the stack chose.
    ///
    /// # Errors
    /// The error of the stack.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// Reports in [`StreamHost::wait`] that a connection can be accepted, for as long as
    /// there is one.
    ///
    /// # Errors
    /// The error of the stack.
    fn watch_listener(&self, listener: &Self::Listener, token: u64) -> io::Result<()>;

    /// Ends [`StreamHost::watch_listener`]; must be called before a watched listener is
    /// dropped.
    ///
    /// # Errors
    /// The error of the stack.
    fn unwatch_listener(&self, listener: &Self::Listener) -> io::Result<()>;

    /// Accepts a waiting connection; `None` if there is none.
    ///
    /// # Errors
    /// The error of the stack, including ECONNABORTED and EMFILE.
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Stream, SocketAddr)>>;

    /// Begins to connect to `address`; small writes are sent at once (TCP_NODELAY).
    /// During [`Progress::Begun`], reads and writes return `WouldBlock`. A stream watched
    /// for writing is reported when it is established or has failed; then a write
    /// succeeds, or fails with the reason.
    ///
    /// # Errors
    /// Errors known at once: ENETUNREACH, EADDRNOTAVAIL if no port is free, EMFILE, and
    /// others of Linux.
    fn connect(&self, address: SocketAddr) -> io::Result<(Self::Stream, Progress)>;

    /// Returns whether each stream is best watched as soon as it has been accepted,
    /// although it may be closed before any wait.
    fn watch_early(&self) -> bool {
        false
    }

    /// Begins to watch a stream.
    ///
    /// # Errors
    /// The error of the stack.
    fn watch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()>;

    /// Changes the interest of a watched stream. A host whose unwanted events cost
    /// nothing may ignore it.
    ///
    /// # Errors
    /// The error of the stack.
    fn rewatch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()>;

    /// Ends [`StreamHost::watch`]; must be called before a watched stream is dropped.
    fn unwatch(&self, stream: &Self::Stream);

    /// Replaces the contents of `events` by new events; sleeps for up to `timeout` until
    /// there is one.
    ///
    /// # Errors
    /// The error of the stack; a timeout and a signal are no error.
    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()>;
}
