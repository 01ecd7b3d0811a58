//! Linux sockets as a [`Host`], used as an expert would use them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::host::{Datagrams, Host, Peer};
use crate::raw_linux::{
    BATCH_BYTES, Batch, DATAGRAM_MAX, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL, poll,
    readable, receive, receive_from, receive_located, send_from, set_option, tell_local,
};
use crate::services::BATCH;

/// How datagrams are taken from a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Receive {
    /// `recv` (`recvfrom` where there are replies), each reply sent at once
    /// with `sendto`: the least work for one datagram.
    #[default]
    Recv,
    /// `recvmmsg` of a batch, replies sent together with `sendmmsg`: the fewest
    /// system calls for many.
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

impl FromStr for Receive {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        match text {
            "recv" => Ok(Receive::Recv),
            "recvmmsg" => Ok(Receive::Recvmmsg),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "recv or recvmmsg",
            )),
        }
    }
}

/// Busy polling: the receiving thread runs the driver's poll itself. The
/// interface needs `gro_flush_timeout` and `napi_defer_hard_irqs` set for it
/// (Documentation/networking/napi.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyPoll {
    /// How long a receive call polls before it sleeps, µs (SO_BUSY_POLL).
    pub microseconds: u32,
    /// Packets a poll may take (SO_BUSY_POLL_BUDGET).
    pub budget: u16,
}

/// How the sockets are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// How datagrams are taken.
    #[serde(default)]
    pub receive: Receive,
    /// Busy polling, with SO_PREFER_BUSY_POLL; needs CAP_NET_ADMIN.
    #[serde(default)]
    pub busy_poll: Option<BusyPoll>,
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
    /// A host whose sockets have these options.
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
            let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
            set_option(fd, libc::SO_RCVBUFFORCE, bytes)
                .or_else(|_| set_option(fd, libc::SO_RCVBUF, bytes))?;
        }
        if let Some(busy) = self.options.busy_poll {
            let time = libc::c_int::try_from(busy.microseconds).unwrap_or(libc::c_int::MAX);
            set_option(fd, SO_PREFER_BUSY_POLL, 1)
                .and_then(|()| set_option(fd, SO_BUSY_POLL, time))
                .and_then(|()| set_option(fd, SO_BUSY_POLL_BUDGET, busy.budget.into()))
                .map_err(|error| {
                    let what = format!("busy polling (needs CAP_NET_ADMIN): {error}");
                    io::Error::new(error.kind(), what)
                })?;
        }
        // A socket bound to one address answers from that without being told.
        let located = replies && address.ip().is_unspecified();
        if located {
            tell_local(fd, address.is_ipv6())?;
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
            incoming: RefCell::new(Batch::new(incoming, DATAGRAM_MAX, replies, located)),
            outgoing: RefCell::new(Batch::new(outgoing, BATCH_BYTES, true, false)),
            queued: Cell::new(0),
            timeout: Cell::new(Duration::ZERO),
        })
    }

    fn wait(&self, sockets: &[&Socket], timeout: Duration) -> io::Result<()> {
        let mut entries: Vec<_> = sockets.iter().map(|socket| readable(socket.fd())).collect();
        quiet(poll(&mut entries, timeout)).map(drop)
    }

    fn spin(&self) -> Duration {
        // poll(2) busy-polls only under the sysctl net.core.busy_poll, which is
        // the whole machine's; asking the sockets polls each time.
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
    /// Datagrams say which of our addresses they were sent to.
    located: bool,
    single: RefCell<Vec<u8>>,
    incoming: RefCell<Batch>,
    outgoing: RefCell<Batch>,
    /// Places of `outgoing` in use.
    queued: Cell<usize>,
    /// SO_RCVTIMEO as set.
    timeout: Cell<Duration>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("socket", &self.socket)
            .field("how", &self.how)
            .finish()
    }
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// One at a time; `first` are the flags of the first call.
    fn one_by_one(
        &self,
        limit: usize,
        first: libc::c_int,
        mut each: impl FnMut(&[u8], Option<Peer>),
    ) -> io::Result<usize> {
        let mut buffer = self.single.borrow_mut();
        let mut flags = first;
        for count in 0..limit {
            let result = match (self.located, self.replies) {
                (true, _) => receive_located(self.fd(), &mut buffer, flags),
                (false, true) => receive_from(self.fd(), &mut buffer, flags),
                (false, false) => {
                    receive(self.fd(), &mut buffer, flags).map(|length| (length, None))
                }
            };
            match quiet(result) {
                Ok(Some((length, peer))) => each(buffer.get(..length).unwrap_or_default(), peer),
                Ok(None) => return Ok(count),
                // What came before it counts; the next call meets it again, or
                // it has passed.
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
        let count = quiet(batch.receive(self.fd(), limit, flags))?.unwrap_or(0);
        let mut whole = 0;
        for number in 0..count {
            if let Some((payload, peer)) = batch.datagram(number) {
                whole += 1;
                each(payload, peer);
            }
        }
        Ok(whole)
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
        // Of recvmmsg's datagrams only the first is waited for.
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
                false => send_from(self.fd(), payload, to),
            };
        }
        let full = self.queued.get() >= self.outgoing.borrow().capacity();
        if full {
            self.flush()?;
        }
        if self
            .outgoing
            .borrow_mut()
            .put(self.queued.get(), payload, to)
        {
            self.queued.set(self.queued.get() + 1);
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
        }
    }

    fn flush(&self) -> io::Result<()> {
        let queued = self.queued.replace(0);
        if queued == 0 {
            return Ok(());
        }
        // A socket buffer that is full takes no more of this batch: UDP loses.
        let sent = self.outgoing.borrow_mut().send(self.fd(), queued)?;
        match sent < queued {
            true => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            false => Ok(()),
        }
    }
}

/// Having nothing, a timeout and a signal are no errors.
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
