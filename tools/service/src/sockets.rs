//! Connections by descriptor number: the sockets of a stack, without a way to
//! wait for them ([`Sockets`]), and ways to wait for numbers ([`Waiter`]), which
//! make a host of the two.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

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

/// A way to wait for the sockets of a stack by their numbers: all that hosts
/// such as [`SelectHost`](crate::SelectHost) differ in.
pub trait Waiter {
    /// The sockets.
    type Sockets: Sockets;

    /// The stack's sockets.
    fn sockets(&self) -> &Self::Sockets;

    /// Watches a descriptor from now on for `interest`, for nothing if that is
    /// nothing, in place of what it was watched for.
    ///
    /// # Errors
    /// What the stack reports.
    fn set(&self, number: i32, token: u64, interest: Interest) -> io::Result<()>;

    /// Watches a listener's descriptor.
    ///
    /// # Errors
    /// What the stack reports.
    fn set_listener(&self, number: i32, token: u64) -> io::Result<()> {
        self.set(number, token, Interest::READABLE)
    }

    /// Ends [`Waiter::set_listener`].
    ///
    /// # Errors
    /// What the stack reports.
    fn clear_listener(&self, number: i32) -> io::Result<()> {
        self.set(number, 0, Interest::NONE)
    }

    /// Changes what a descriptor is watched for.
    ///
    /// # Errors
    /// What the stack reports.
    fn change(&self, number: i32, token: u64, interest: Interest) -> io::Result<()> {
        self.set(number, token, interest)
    }

    /// Ends [`Waiter::set`]; its descriptor is closed next.
    fn clear(&self, number: i32) {
        // One of which nothing is known is not watched.
        let _ = self.set(number, 0, Interest::NONE);
    }

    /// As [`StreamHost::watch_early`].
    fn early(&self) -> bool {
        false
    }

    /// Adds what has happened to `events`; sleeps for up to `timeout` until
    /// there is something.
    ///
    /// # Errors
    /// What the stack reports; EINTR.
    fn find(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()>;
}

impl<W: Waiter> StreamHost for W {
    type Listener = <W::Sockets as Sockets>::Listener;
    type Stream = <W::Sockets as Sockets>::Stream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Self::Listener> {
        self.sockets().listen(address, backlog)
    }

    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr> {
        self.sockets().local_address(listener)
    }

    fn watch_listener(&self, listener: &Self::Listener, token: u64) -> io::Result<()> {
        self.set_listener(self.sockets().listener_number(listener), token)
    }

    fn unwatch_listener(&self, listener: &Self::Listener) -> io::Result<()> {
        self.clear_listener(self.sockets().listener_number(listener))
    }

    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Stream, SocketAddr)>> {
        self.sockets().accept(listener)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(Self::Stream, Progress)> {
        self.sockets().connect(address)
    }

    fn watch_early(&self) -> bool {
        self.early()
    }

    fn watch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()> {
        self.set(self.sockets().stream_number(stream), token, interest)
    }

    fn rewatch(&self, stream: &Self::Stream, token: u64, interest: Interest) -> io::Result<()> {
        self.change(self.sockets().stream_number(stream), token, interest)
    }

    fn unwatch(&self, stream: &Self::Stream) {
        self.clear(self.sockets().stream_number(stream));
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        match self.find(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            found => found,
        }
    }
}
