//! The interface between a service and a stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The sender of a datagram, and how to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The sender's address.
    pub address: SocketAddr,
    /// Our address to answer from: the one that the sender knows. Unspecified if the
    /// socket has only one, or for the default one.
    pub local: IpAddr,
}

/// A bound UDP socket, used by one thread.
pub trait Datagrams {
    /// Receives up to `limit` datagrams that are there now, without waiting, and calls
    /// `each` with payload and sender; returns how many there were. The sender is `None`
    /// on a socket bound without replies.
    ///
    /// # Errors
    /// The error of the stack; no datagram is `Ok(0)`.
    fn receive(&self, limit: usize, each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize>;

    /// Acts as [`Datagrams::receive`], but sleeps for up to `timeout` for the first
    /// datagram. A program with a single socket saves one system call over waiting and
    /// then receiving.
    ///
    /// # Errors
    /// Those of [`Datagrams::receive`]; a timeout and a signal are `Ok(0)`.
    fn receive_waiting(
        &self,
        limit: usize,
        timeout: Duration,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize>;

    /// Queues a datagram, to be sent by the next [`Datagrams::flush`] at the latest. May
    /// be called from within `each`.
    ///
    /// # Errors
    /// The stack's error for this datagram; earlier ones are unaffected.
    fn queue(&self, payload: &[u8], to: Peer) -> io::Result<()>;

    /// Sends the queued datagrams.
    ///
    /// # Errors
    /// The error of the stack; unsent datagrams are dropped.
    fn flush(&self) -> io::Result<()>;
}

/// Converts the errors of [`Datagrams::receive`] for an empty socket or a vain wait to
/// `Ok(0)`.
pub(crate) fn nothing_came(received: io::Result<usize>) -> io::Result<usize> {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    match received {
        Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => Ok(0),
        other => other,
    }
}

/// A stack that a program runs on.
pub trait Host {
    /// Its sockets.
    type Socket: Datagrams;

    /// Opens a UDP socket. `priority` is its position in the order of services, 0 first;
    /// `replies` is false if no datagram will be sent.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL and the like, as on Linux.
    fn bind(&self, address: SocketAddr, priority: usize, replies: bool)
    -> io::Result<Self::Socket>;

    /// Sleeps until one of `sockets` may have a datagram, or `timeout` is over.
    ///
    /// # Errors
    /// The error of the stack; a signal is no error.
    fn wait(&self, sockets: &[&Self::Socket], timeout: Duration) -> io::Result<()>;

    /// Returns how long the program is to keep asking its sockets before it calls
    /// [`Host::wait`]. Zero if the stack itself does any such polling.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }
}
