//! Tidewall's stack as a [`Host`].

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidewall::{Received, Stack, UdpSocket};

use crate::host::{Datagrams, Host, Peer, nothing_came};

/// Highest priority that a socket may have
/// ([`UdpSocket::set_priority`]).
const PRIORITY_MAX: u8 = 6;

/// A Tidewall stack to run services on.
#[derive(Clone)]
pub struct Tidewall {
    stack: Stack,
    receive_limit: Option<u32>,
}

impl Tidewall {
    /// Creates a host on `stack`, whose sockets hold at most `receive_limit` frames per
    /// queue (`None`: the stack's default).
    pub fn new(stack: Stack, receive_limit: Option<u32>) -> Self {
        Tidewall {
            stack,
            receive_limit,
        }
    }
}

impl Host for Tidewall {
    type Socket = Socket;

    fn bind(&self, address: SocketAddr, priority: usize, _replies: bool) -> io::Result<Socket> {
        let socket = UdpSocket::bind(&self.stack, address)?;
        let below = u8::try_from(priority).unwrap_or(u8::MAX);
        socket.set_priority(PRIORITY_MAX.saturating_sub(below))?;
        if let Some(frames) = self.receive_limit {
            socket.set_receive_limit(frames)?;
        }
        Ok(Socket {
            socket,
            timeout: Cell::new(None),
        })
    }

    fn wait(&self, sockets: &[&Socket], timeout: Duration) -> io::Result<()> {
        let sockets: Vec<&UdpSocket> = sockets.iter().map(|socket| &socket.socket).collect();
        match self.stack.wait(&sockets, Some(timeout)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A Tidewall UDP socket.
pub struct Socket {
    socket: UdpSocket,
    /// The present read timeout.
    timeout: Cell<Option<Duration>>,
}

impl Socket {
    fn take(&self, limit: usize, mut each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize> {
        let each = |received: Received<'_>| {
            let peer = Peer {
                address: received.source,
                local: received.local,
            };
            each(received.payload, Some(peer));
        };
        nothing_came(self.socket.recv_batch(limit, each))
    }
}

impl Datagrams for Socket {
    fn receive(&self, limit: usize, each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize> {
        self.socket.set_nonblocking(true)?;
        self.take(limit, each)
    }

    fn receive_waiting(
        &self,
        limit: usize,
        timeout: Duration,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        if self.timeout.get() != Some(timeout) {
            self.socket.set_read_timeout(Some(timeout))?;
            self.timeout.set(Some(timeout));
        }
        self.socket.set_nonblocking(false)?;
        self.take(limit, each)
    }

    fn queue(&self, payload: &[u8], to: Peer) -> io::Result<()> {
        self.socket.queue_from(payload, to.local, to.address)
    }

    fn flush(&self) -> io::Result<()> {
        self.socket.flush()
    }
}
