//! A stack with services on circuits as a [`Host`]: circuit 0.PORT instead of a UDP port.
//!
//! Each service also has the UDP port, and never receives there. A stack finds the poll
//! of some devices (veth's) only by datagrams, and until then frames of circuits arrive
//! by interrupt.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidewall::descriptor::Flags;
use tidewall::readiness::{Events, PollFd};
use tidewall::{AtmSocket, Circuit, Descriptors, OpenFile, Stack, UdpSocket};

use crate::host::{Datagrams, Host, Peer, nothing_came};

/// Default number of frames that may wait for a circuit: as many as for a UDP socket.
const RECEIVE_LIMIT: u32 = 512;

/// A stack to run services on, whose circuits lead to `peer`.
#[derive(Clone)]
pub struct Circuits {
    stack: Stack,
    descriptors: Arc<Descriptors>,
    receive_limit: u32,
    peer: Peer,
}

impl Circuits {
    /// Creates a host on `stack`, whose circuits lead to the neighbour `next_hop` and
    /// hold at most `receive_limit` frames per queue (`None`: 512).
    ///
    /// # Errors
    /// Those of [`Stack::attach_atm`].
    pub fn new(
        stack: &Stack,
        next_hop: SocketAddr,
        receive_limit: Option<u32>,
    ) -> io::Result<Self> {
        stack.attach_atm(next_hop.ip())?;
        Ok(Circuits {
            stack: stack.clone(),
            descriptors: Arc::new(Descriptors::new(stack, u32::from(u16::MAX))),
            receive_limit: receive_limit.unwrap_or(RECEIVE_LIMIT),
            peer: Peer {
                address: next_hop,
                local: next_hop.ip(),
            },
        })
    }
}

impl Host for Circuits {
    type Socket = CircuitSocket;

    fn bind(
        &self,
        address: SocketAddr,
        _priority: usize,
        _replies: bool,
    ) -> io::Result<CircuitSocket> {
        let circuit = Circuit {
            vpi: 0,
            vci: address.port(),
        };
        let port = UdpSocket::bind(&self.stack, address)?;
        let socket = AtmSocket::bind(&self.stack, circuit)?;
        socket.set_receive_limit(self.receive_limit)?;
        let fd = self.descriptors.open(socket, Flags::NONE)?;
        Ok(CircuitSocket {
            fd,
            file: self.descriptors.file(fd)?,
            peer: self.peer,
            _port: port,
        })
    }

    fn wait(&self, sockets: &[&CircuitSocket], timeout: Duration) -> io::Result<()> {
        let list = sockets.iter().map(|it| PollFd::new(it.fd, Events::IN));
        let mut list: Vec<PollFd> = list.collect();
        match self.descriptors.poll(&mut list, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// A circuit of a Tidewall stack.
pub struct CircuitSocket {
    fd: i32,
    file: Arc<OpenFile>,
    /// The other end.
    peer: Peer,
    _port: UdpSocket,
}

impl CircuitSocket {
    fn socket(&self) -> io::Result<&AtmSocket> {
        match &*self.file {
            OpenFile::Circuit(socket) => Ok(socket),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn take(&self, limit: usize, mut each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize> {
        let peer = Some(self.peer);
        nothing_came((self.socket()?).recv_batch(limit, |received| each(received.payload, peer)))
    }
}

impl Datagrams for CircuitSocket {
    fn receive(&self, limit: usize, each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize> {
        self.socket()?.set_nonblocking(true)?;
        self.take(limit, each)
    }

    fn receive_waiting(
        &self,
        limit: usize,
        timeout: Duration,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        let socket = self.socket()?;
        if socket.read_timeout() != Some(timeout) {
            socket.set_read_timeout(Some(timeout))?;
        }
        socket.set_nonblocking(false)?;
        self.take(limit, each)
    }

    fn queue(&self, payload: &[u8], _to: Peer) -> io::Result<()> {
        self.socket()?.queue(payload)
    }

    fn flush(&self) -> io::Result<()> {
        self.socket()?.flush()
    }
}
