//! Connections by descriptor number, without a way to wait for them: what the
//! hosts of `select` and `poll` put theirs upon.

use std::io;
use std::net::SocketAddr;

use crate::stream::{Progress, Stream};

/// The sockets of a stack whose calls take descriptor numbers. The calls are as
/// those of [`StreamHost`](crate::StreamHost).
pub trait Sockets {
    /// A listening socket. Closed on drop.
    type Listener;
    /// Its connections.
    type Stream: Stream;

    /// Listens at `address`.
    ///
    /// # Errors
    /// As [`StreamHost::listen`](crate::StreamHost::listen).
    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Self::Listener>;

    /// Where it listens.
    ///
    /// # Errors
    /// What the stack reports.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// Takes a connection that is there, `None` when there is none.
    ///
    /// # Errors
    /// As [`StreamHost::accept`](crate::StreamHost::accept).
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Stream, SocketAddr)>>;

    /// Begins to connect.
    ///
    /// # Errors
    /// As [`StreamHost::connect`](crate::StreamHost::connect).
    fn connect(&self, address: SocketAddr) -> io::Result<(Self::Stream, Progress)>;

    /// The listener's descriptor.
    fn listener_number(&self, listener: &Self::Listener) -> i32;

    /// The stream's descriptor.
    fn stream_number(&self, stream: &Self::Stream) -> i32;
}
