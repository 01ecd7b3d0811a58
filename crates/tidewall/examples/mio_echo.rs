//! An echo service, TCP and UDP, on an event loop of `mio`'s.
//!
//! ```sh
//! cargo run --release -p tidewall --features mio --example mio_echo -- eth0 7
//! ```
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::{Events, Interest, Poll, Token, Waker};

use tidewall::{EmbeddedConfig, Stack, TcpListener, TcpStream, UdpSocket};

const WAKER: Token = Token(0);
const LISTENER: Token = Token(1);
const DATAGRAMS: Token = Token(2);
const FIRST: usize = 3;

struct Connection {
    stream: TcpStream,
    /// Bytes still to be sent back.
    rest: Vec<u8>,
    interest: Interest,
}

/// A service, and the loop that it runs on.
pub struct Echo {
    poll: Poll,
    listener: TcpListener,
    datagrams: UdpSocket,
    connections: HashMap<usize, Connection>,
    next: usize,
    stop: Arc<(AtomicBool, Waker)>,
}

impl Echo {
    /// A service on one address, over TCP and UDP.
    pub fn new(stack: &Stack, address: SocketAddr) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(stack, address)?;
        let mut datagrams = UdpSocket::bind(stack, address)?;
        listener.set_nonblocking(true)?;
        datagrams.set_nonblocking(true)?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        registry.register(&mut datagrams, DATAGRAMS, Interest::READABLE)?;
        let waker = Waker::new(registry, WAKER)?;
        Ok(Echo {
            poll,
            listener,
            datagrams,
            connections: HashMap::new(),
            next: FIRST,
            stop: Arc::new((AtomicBool::new(false), waker)),
        })
    }

    /// Ends [`Echo::run`] when it is called.
    pub fn stopper(&self) -> impl Fn() + Send + use<> {
        let stop = self.stop.clone();
        move || {
            stop.0.store(true, Ordering::Release);
            let _ = stop.1.wake();
        }
    }

    /// Serves until it is stopped; how many connections there were.
    pub fn run(&mut self) -> io::Result<usize> {
        let mut events = Events::with_capacity(256);
        let mut buffer = vec![0; 65_536];
        while !self.stop.0.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.accept()?,
                    DATAGRAMS => self.answer_datagrams(&mut buffer)?,
                    Token(number) => self.answer(number, &mut buffer),
                }
            }
        }
        Ok(self.next - FIRST)
    }

    /// Events are edges: accepts until no connection waits.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (mut stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let interest = Interest::READABLE;
            let registry = self.poll.registry();
            registry.register(&mut stream, Token(self.next), interest)?;
            let connection = Connection {
                stream,
                rest: Vec::new(),
                interest,
            };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
    }

    fn answer_datagrams(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            match self.datagrams.recv_from(buffer) {
                Ok((length, from)) => {
                    // One that cannot be answered is lost, as datagrams are.
                    let _ = self.datagrams.send_to(&buffer[..length], from);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // An ICMP error about an earlier datagram.
                Err(_) => {}
            }
        }
    }

    /// Sends back what came, until there is no more or no room.
    fn answer(&mut self, number: usize, buffer: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let interest = match connection.turn(buffer) {
            Ok(()) => Interest::READABLE,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if connection.rest.is_empty() {
                    Interest::READABLE
                } else {
                    Interest::WRITABLE
                }
            }
            Err(_) => {
                self.connections.remove(&number);
                return;
            }
        };
        if interest != connection.interest {
            connection.interest = interest;
            let stream = &mut connection.stream;
            let registry = self.poll.registry();
            if registry
                .reregister(stream, Token(number), interest)
                .is_err()
            {
                self.connections.remove(&number);
            }
        }
    }
}

impl Connection {
    /// Until it would wait; any other error ends it, and so does the peer.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            while !self.rest.is_empty() {
                let sent = self.stream.write(&self.rest)?;
                self.rest.drain(..sent);
            }
            match self.stream.read(buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => self.rest.extend_from_slice(&buffer[..length]),
            }
        }
    }
}

#[allow(dead_code, reason = "tests use the service without the program")]
fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: mio_echo INTERFACE PORT";
    let (Some(interface), Some(Ok(port))) = (
        arguments.next(),
        arguments.next().map(|port| port.parse::<u16>()),
    ) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, usage));
    };
    let stack = Stack::embedded(EmbeddedConfig::new(interface))?;
    Echo::new(&stack, ([0, 0, 0, 0], port).into())?
        .run()
        .map(drop)
}
