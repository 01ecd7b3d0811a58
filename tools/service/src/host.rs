//! What a service needs of a stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Who sent a datagram, and how to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The sender's address.
    pub address: SocketAddr,
    /// Our address to answer from: the one that the sender knows. Unspecified
    /// where the socket has only one, or the usual one is meant.
    pub local: IpAddr,
}

/// A bound UDP socket, used by one thread.
pub trait Datagrams {
    /// Takes up to `limit` datagrams that are there now, without waiting, and
    /// calls `each` with payload and sender; returns how many there were. The
    /// sender is `None` on a socket bound without replies.
    ///
    /// # Errors
    /// What the stack reports; having nothing is `Ok(0)`.
    fn receive(&self, limit: usize, each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize>;

    /// As [`Datagrams::receive`], but sleeps for up to `timeout` for the first
    /// one: one system call less than waiting and then receiving, for a program
    /// with a single socket.
    ///
    /// # Errors
    /// As [`Datagrams::receive`]; a timeout and a signal are `Ok(0)`.
    fn receive_waiting(
        &self,
        limit: usize,
        timeout: Duration,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize>;

    /// Hands over a datagram to be sent, at the latest by the next
    /// [`Datagrams::flush`]. May be called from within `each`.
    ///
    /// # Errors
    /// What the stack reports for this datagram; earlier ones are unaffected.
    fn queue(&self, payload: &[u8], to: Peer) -> io::Result<()>;

    /// Sends what was queued.
    ///
    /// # Errors
    /// What the stack reports; what could not be sent is dropped.
    fn flush(&self) -> io::Result<()>;
}

/// What [`Datagrams::receive`] says where having nothing, or having waited in vain, is no error.
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

    /// Opens a UDP socket. `priority` is the place in the order of services, 0
    /// first; `replies` is false when no datagram will be sent.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL and the like, as Linux has them.
    fn bind(&self, address: SocketAddr, priority: usize, replies: bool)
    -> io::Result<Self::Socket>;

    /// Sleeps until one of `sockets` may have something, or `timeout` is over.
    ///
    /// # Errors
    /// What the stack reports; a signal is no error.
    fn wait(&self, sockets: &[&Self::Socket], timeout: Duration) -> io::Result<()>;

    /// How long the program is to go on asking its sockets before it calls
    /// [`Host::wait`]. Zero where the stack itself does any such polling.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }
}
