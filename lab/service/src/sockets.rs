//! Connections by descriptor: the sockets of a stack, without a way to wait for them
//! ([`Sockets`]), and ways to wait for descriptors ([`Waiter`]). The two together form a
//! host.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// The sockets of a stack whose calls use descriptors. The calls are those of
/// [`StreamHost`](crate::StreamHost).
pub trait Sockets {
    /// A listening socket. Closed on drop.
    type Listener;
    /// Its connections.
    type Stream: Stream;

    /// Listens on `address`.
    ///
    /// # Errors
    /// Those of [`StreamHost::listen`](crate::StreamHost::listen).
    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<Self::Listener>;

    /// Returns the address on which it listens.
    ///
    /// # Errors
    /// The error of the stack.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// Accepts a waiting connection; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`StreamHost::accept`](crate::StreamHost::accept).
    fn accept(&self, listener: &Self::Listener) -> io::Result<Option<(Self::Stream, SocketAddr)>>;

    /// Begins to connect.
    ///
    /// # Errors
    /// Those of [`StreamHost::connect`](crate::StreamHost::connect).
    fn connect(&self, address: SocketAddr) -> io::Result<(Self::Stream, Progress)>;

    /// Returns the listener's descriptor.
    fn listener_number(&self, listener: &Self::Listener) -> i32;

    /// Returns the stream's descriptor.
    fn stream_number(&self, stream: &Self::Stream) -> i32;
}

/// A way to wait for the sockets of a stack by their descriptors: the only difference
/// between hosts such as [`SelectHost`](crate::SelectHost).
pub trait Waiter {
    /// The sockets.
    type Sockets: Sockets;

    /// Returns the stack's sockets.
    fn sockets(&self) -> &Self::Sockets;

    /// Watches a descriptor from now on for `interest`, which may be nothing, instead of
    /// its earlier interest.
    ///
    /// # Errors
    /// The error of the stack.
    fn set(&self, number: i32, token: u64, interest: Interest) -> io::Result<()>;

    /// Watches a listener's descriptor.
    ///
    /// # Errors
    /// The error of the stack.
    fn set_listener(&self, number: i32, token: u64) -> io::Result<()> {
        self.set(number, token, Interest::READABLE)
    }

    /// Ends [`Waiter::set_listener`].
    ///
    /// # Errors
    /// The error of the stack.
    fn clear_listener(&self, number: i32) -> io::Result<()> {
        self.set(number, 0, Interest::NONE)
    }

    /// Changes the interest of a descriptor.
    ///
    /// # Errors
    /// The error of the stack.
    fn change(&self, number: i32, token: u64, interest: Interest) -> io::Result<()> {
        self.set(number, token, interest)
    }

    /// Ends [`Waiter::set`]; its descriptor is closed next.
    fn clear(&self, number: i32) {
        // An unknown descriptor is not watched.
        let _ = self.set(number, 0, Interest::NONE);
    }

    /// As [`StreamHost::watch_early`].
    fn early(&self) -> bool {
        false
    }

    /// Adds new events to `events`; sleeps for up to `timeout` until there is one.
    ///
    /// # Errors
    /// The error of the stack; EINTR.
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
