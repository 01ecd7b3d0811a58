//! Linux sockets as a [`Host`], used as an expert would use them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{RecvFlags, recv, recvfrom};
use serde::{Deserialize, Serialize};
use tidewall_sys::{
    Message, MessageBatch, Received, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL,
    receive_message, send_message, set_option, wait_readable,
};

use crate::host::{Datagrams, Host, Peer};
use crate::services::BATCH;

/// Longest datagram.
const DATAGRAM_MAX: usize = 65_536;
/// Bytes of a datagram that a batched send has room for.
const BATCH_BYTES: usize = 2048;

/// How datagrams are received from a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Receive {
    /// `recv` (`recvfrom` with replies), each reply sent at once with `sendto`: the least
    /// work for one datagram.
    #[default]
    Recv,
    /// `recvmmsg` of a batch, replies sent together with `sendmmsg`: the fewest system
    /// calls for many.
    Recvmmsg,
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Receive::Recv => "recv",
            Receive::Recvmmsg => "recvmmsg",
        })
    }
}

/// Busy polling: the receiving thread runs the driver's poll itself. The
/// interface needs `gro_flush_timeout` and `napi_defer_hard_irqs` set for it
/// (Documentation/networking/napi.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyPoll {
    /// How long a receive call polls before it sleeps, µs (SO_BUSY_POLL).
    pub microseconds: u32,
    /// Most packets per poll (SO_BUSY_POLL_BUDGET).
    pub budget: u16,
}

/// How the sockets are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// How datagrams are received.
    #[serde(default)]
    pub receive: Receive,
    /// Busy polling, with SO_PREFER_BUSY_POLL; needs CAP_NET_ADMIN.
    #[serde(default)]
    pub busy_poll: Option<BusyPoll>,
    /// Busy polling by the event loop's epoll instance instead of the sockets
    /// ([`serve_events`](crate::serve_events) only).
    #[serde(default)]
    pub epoll_busy_poll: Option<BusyPoll>,
    /// Receive buffer in bytes (SO_RCVBUFFORCE, or SO_RCVBUF without
    /// CAP_NET_ADMIN). `None`: `net.core.rmem_default`.
    #[serde(default)]
    pub receive_buffer: Option<u32>,
}

/// The kernel's own stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux {
    options: Options,
}

impl Linux {
    /// Creates a host whose sockets have these options.
    pub fn new(options: Options) -> Self {
        Linux { options }
    }
}

impl Host for Linux {
    type Socket = Socket;

    fn bind(&self, address: SocketAddr, _priority: usize, replies: bool) -> io::Result<Socket> {
        let socket = UdpSocket::bind(address)?;
        let fd = socket.as_fd();
        if let Some(bytes) = self.options.receive_buffer {
            let bytes = bytes as usize;
            set_socket_recv_buffer_size_force(fd, bytes)
                .or_else(|_| set_socket_recv_buffer_size(fd, bytes))?;
        }
        if let Some(busy) = self.options.busy_poll {
            let time = libc::c_int::try_from(busy.microseconds).unwrap_or(libc::c_int::MAX);
            let set = |name, value| set_option(fd, libc::SOL_SOCKET, name, value);
            set(SO_PREFER_BUSY_POLL, 1)
                .and_then(|()| set(SO_BUSY_POLL, time))
                .and_then(|()| set(SO_BUSY_POLL_BUDGET, busy.budget.into()))
                .map_err(|error| {
                    let what = format!("busy polling (needs CAP_NET_ADMIN): {error}");
                    io::Error::new(error.kind(), what)
                })?;
        }
        // A socket bound to one address answers from that by itself.
        let located = replies && address.ip().is_unspecified();
        if located {
            if address.is_ipv6() {
                set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            }
            set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        let batched = self.options.receive == Receive::Recvmmsg;
        let (incoming, outgoing) = match (batched, replies) {
            (true, true) => (BATCH, BATCH),
            (true, false) => (BATCH, 0),
            (false, _) => (0, 0),
        };
        Ok(Socket {
            socket,
            how: self.options.receive,
            replies,
            located,
            single: RefCell::new(vec![0; if batched { 0 } else { DATAGRAM_MAX }]),
            incoming: RefCell::new(Batch::new(incoming, DATAGRAM_MAX)),
            outgoing: RefCell::new(Batch::new(outgoing, BATCH_BYTES)),
            timeout: Cell::new(Duration::ZERO),
        })
    }

    fn wait(&self, sockets: &[&Socket], timeout: Duration) -> io::Result<()> {
        let descriptors: Vec<_> = sockets.iter().map(|socket| socket.fd()).collect();
        wait_readable(&descriptors, timeout)
    }

    fn spin(&self) -> Duration {
        // poll(2) busy-polls only under the sysctl net.core.busy_poll, which affects the
        // whole machine; asking the sockets polls each time.
        self.options.busy_poll.map_or(Duration::ZERO, |busy| {
            Duration::from_micros(busy.microseconds.into())
        })
    }
}

/// A kernel UDP socket.
pub struct Socket {
    socket: UdpSocket,
    how: Receive,
    replies: bool,
    /// Datagrams report to which of our addresses they were sent.
    located: bool,
    single: RefCell<Vec<u8>>,
    incoming: RefCell<Batch>,
    outgoing: RefCell<Batch>,
    /// The present value of SO_RCVTIMEO.
    timeout: Cell<Duration>,
}

impl Socket {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives one datagram, by the cheapest sufficient call.
    fn one(&self, buffer: &mut [u8], flags: libc::c_int) -> io::Result<(usize, Option<Peer>)> {
        if self.located {
            let received = receive_message(&self.socket, buffer, flags)?;
            return Ok((received.length, peer(&received)));
        }
        let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
        if !self.replies {
            return Ok((recv(&self.socket, buffer, flags)?.0, None));
        }
        let (length, _, address) = recvfrom(&self.socket, buffer, flags)?;
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        let local = Ipv4Addr::UNSPECIFIED.into();
        Ok((length, address.map(|address| Peer { address, local })))
    }

    /// Receives one at a time; `first` are the flags of the first call.
    fn one_by_one(
        &self,
        limit: usize,
        first: libc::c_int,
        mut each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        let mut buffer = self.single.borrow_mut();
        let mut flags = first;
        for count in 0..limit {
            let result = self.one(&mut buffer, flags);
            match quiet(result) {
                Ok(Some((length, peer))) => each(buffer.get(..length).unwrap_or_default(), peer),
                Ok(None) => return Ok(count),
                // Earlier datagrams count; the next call returns the error again, or it
                // has passed.
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
            flags = libc::MSG_DONTWAIT;
        }
        Ok(limit)
    }

    fn batch(
        &self,
        limit: usize,
        flags: libc::c_int,
        mut each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        let mut batch = self.incoming.borrow_mut();
        let Batch {
            messages,
            bytes,
            room,
            ..
        } = &mut *batch;
        let buffers = bytes.chunks_exact_mut(*room).take(limit);
        let count = quiet(messages.receive(&self.socket, buffers, flags))?.unwrap_or(0);
        let mut complete = 0;
        for (number, buffer) in bytes.chunks_exact(*room).take(count).enumerate() {
            let received = messages.received(number).filter(|it| !it.truncated);
            if let Some(received) = received {
                complete += 1;
                let sender = if self.replies { peer(&received) } else { None };
                each(buffer.get(..received.length).unwrap_or_default(), sender);
            }
        }
        Ok(complete)
    }

    fn take(
        &self,
        limit: usize,
        flags: libc::c_int,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        match self.how {
            Receive::Recv => self.one_by_one(limit, flags, each),
            Receive::Recvmmsg => self.batch(limit, flags, each),
        }
    }
}

impl Datagrams for Socket {
    fn receive(&self, limit: usize, each: impl FnMut(&[u8], Option<Peer>)) -> io::Result<usize> {
        self.take(limit, libc::MSG_DONTWAIT, each)
    }

    fn receive_waiting(
        &self,
        limit: usize,
        timeout: Duration,
        each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        if self.timeout.get() != timeout {
            self.socket.set_read_timeout(Some(timeout))?;
            self.timeout.set(timeout);
        }
        // recvmmsg waits only for the first datagram.
        let flags = match self.how {
            Receive::Recv => 0,
            Receive::Recvmmsg => libc::MSG_WAITFORONE,
        };
        self.take(limit, flags, each)
    }

    fn queue(&self, payload: &[u8], to: Peer) -> io::Result<()> {
        if self.how == Receive::Recv || payload.len() > BATCH_BYTES {
            return match to.local.is_unspecified() {
                true => self.socket.send_to(payload, to.address).map(drop),
                false => send_message(&self.socket, &message(payload, to), 0).map(drop),
            };
        }
        let full = self.outgoing.borrow().is_full();
        if full {
            self.flush()?;
        }
        self.outgoing.borrow_mut().put(payload, to)
    }

    fn flush(&self) -> io::Result<()> {
        let mut batch = self.outgoing.borrow_mut();
        let count = batch.queued.len();
        // A full socket buffer accepts no more of this batch: UDP loses.
        match batch.send(self.fd())? < count {
            true => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            false => Ok(()),
        }
    }
}

/// Returns the sender of a datagram, and our address as the sender knows it.
fn peer(received: &Received) -> Option<Peer> {
    let local = received.ancillary.local.map(|local| local.to_canonical());
    received.source.map(|address| Peer {
        address,
        local: local.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
    })
}

fn message(payload: &[u8], to: Peer) -> Message<'_> {
    Message {
        payload,
        destination: Some(to.address),
        source: to.local,
        interface: 0,
    }
}

/// Headers and buffers of the datagrams of one call.
struct Batch {
    messages: MessageBatch,
    bytes: Box<[u8]>,
    /// Largest datagram that fits, bytes.
    room: usize,
    /// Length and peer of each queued datagram.
    queued: Vec<(usize, Peer)>,
}

impl Batch {
    /// Creates room for `count` datagrams of up to `room` bytes; only the used part takes
    /// memory.
    fn new(count: usize, room: usize) -> Self {
        Batch {
            messages: MessageBatch::new(count),
            bytes: vec![0; count * room].into(),
            room,
            queued: Vec::with_capacity(count),
        }
    }

    fn is_full(&self) -> bool {
        self.queued.len() >= self.messages.capacity()
    }

    /// Queues a datagram, for which there must be room.
    fn put(&mut self, payload: &[u8], to: Peer) -> io::Result<()> {
        let start = self.queued.len() * self.room;
        let place = self.bytes.get_mut(start..start + payload.len());
        let (Some(place), true) = (place, payload.len() <= self.room) else {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        };
        place.copy_from_slice(payload);
        self.queued.push((payload.len(), to));
        Ok(())
    }

    /// Sends the queued datagrams and clears the queue; returns how many were sent.
    fn send(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        if self.queued.is_empty() {
            return Ok(0);
        }
        let places = self.queued.iter().zip(self.bytes.chunks_exact(self.room));
        let all = places
            .map(|(&(length, to), bytes)| message(bytes.get(..length).unwrap_or_default(), to));
        let sent = self.messages.send(fd, all, libc::MSG_DONTWAIT);
        self.queued.clear();
        sent
    }
}

/// Converts an empty socket, a timeout and a signal to `None`.
fn quiet<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
