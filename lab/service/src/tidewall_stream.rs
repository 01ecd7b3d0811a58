//! Tidewall's stack as a [`StreamHost`].
//!
//! Streams are watched as soon as they have been accepted. Writes to watched streams in a
//! turn leave together, with the acknowledgments of reads, at the next wait on the
//! selector.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use tidewall::Stack;
use tidewall::tcp::{self, ListenOptions, Selector, StreamOptions, TcpListener, TcpStream};

use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// A Tidewall stack to run servers of connections on.
pub struct TidewallStreams {
    stack: Stack,
    selector: Selector,
    events: RefCell<Vec<tcp::Event>>,
}

impl TidewallStreams {
    /// Creates a host on `stack`.
    ///
    /// # Errors
    /// Those of [`Selector::new`].
    pub fn new(stack: &Stack) -> io::Result<Self> {
        Ok(TidewallStreams {
            stack: stack.clone(),
            selector: Selector::new(stack)?,
            events: RefCell::new(Vec::new()),
        })
    }
}

/// A Tidewall connection.
pub struct TidewallStream(TcpStream);

impl TidewallStream {
    /// Returns the connection itself.
    pub fn get_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl Stream for TidewallStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }

    fn write(&self, bytes: &[u8], _more: bool) -> io::Result<usize> {
        // Nothing leaves before the turn is over.
        (&self.0).write(bytes)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }
}

fn interest(interest: Interest) -> tcp::Interest {
    match (interest.readable, interest.writable) {
        (false, false) => tcp::Interest::NONE,
        (true, false) => tcp::Interest::READABLE,
        (false, true) => tcp::Interest::WRITABLE,
        (true, true) => tcp::Interest::READABLE | tcp::Interest::WRITABLE,
    }
}

impl StreamHost for TidewallStreams {
    type Listener = TcpListener;
    type Stream = TidewallStream;

    fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
        let options = ListenOptions {
            backlog,
            stream: StreamOptions {
                nodelay: true,
                ..StreamOptions::default()
            },
            ..ListenOptions::default()
        };
        let listener = TcpListener::bind_with(&self.stack, address, options)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    fn watch_listener(&self, listener: &TcpListener, token: u64) -> io::Result<()> {
        self.selector.add(listener, token, tcp::Interest::READABLE)
    }

    fn unwatch_listener(&self, listener: &TcpListener) -> io::Result<()> {
        self.selector.remove(listener)
    }

    fn accept(&self, listener: &TcpListener) -> io::Result<Option<(TidewallStream, SocketAddr)>> {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                Ok(Some((TidewallStream(stream), peer)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(TidewallStream, Progress)> {
        let stream = TcpStream::connect_nonblocking(&self.stack, address)?;
        stream.set_nodelay(true)?;
        Ok((TidewallStream(stream), Progress::Begun))
    }

    fn watch_early(&self) -> bool {
        true
    }

    fn watch(&self, stream: &TidewallStream, token: u64, wanted: Interest) -> io::Result<()> {
        self.selector.add(&stream.0, token, interest(wanted))
    }

    fn rewatch(&self, stream: &TidewallStream, token: u64, wanted: Interest) -> io::Result<()> {
        self.selector.modify(&stream.0, token, interest(wanted))
    }

    fn unwatch(&self, _stream: &TidewallStream) {
        // Dropping the stream does it.
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        events.clear();
        let mut found = self.events.borrow_mut();
        match self.selector.wait(&mut found, Some(timeout)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        events.extend(found.iter().map(|event| {
            // A read or write returns the error.
            let broken = event.hangup || event.error;
            Event {
                token: event.token,
                readable: event.readable || broken,
                writable: event.writable || broken,
                hangup: broken,
            }
        }));
        Ok(())
    }
}
