//! The running closed loop over UDP or a circuit.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{LATENCY_MAX, REPLIES_MAX, nanoseconds};
use crate::circuit::CircuitEnd;
use crate::dns;
use crate::exchange::Exchange;
use crate::report::{Latency, Measures, PingCounts, PingReport, per_second};
use crate::spec::{PingSpec, Wait};
use crate::tcp::prefer_busy_poll;

/// The running closed loop.
pub(super) struct Ping {
    socket: Socket,
    pub(super) wait: Wait,
    pub(super) exchange: Exchange,
    outstanding: u16,
    rate: Option<u64>,
    /// The number, and the bytes behind it.
    request: Vec<u8>,
    /// Whether requests are DNS queries.
    names: bool,
    reply: Vec<u8>,
    pub(super) measures: Measures<PingCounts>,
}

/// The socket that carries requests.
enum Socket {
    Udp(UdpSocket),
    Circuit(CircuitEnd),
}

impl Socket {
    fn send(&self, request: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Udp(socket) => socket.send(request),
            Socket::Circuit(end) => end.send(request),
        }
    }

    fn recv(&self, reply: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Udp(socket) => socket.recv(reply),
            Socket::Circuit(end) => end.recv(reply),
        }
    }
}

impl Ping {
    pub(super) fn open(spec: &PingSpec) -> io::Result<Self> {
        let any = match spec.destination {
            SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
        };
        let local = spec.source.unwrap_or(any);
        let open = || {
            if spec.circuit {
                return Ok(Socket::Circuit(CircuitEnd::open(spec)?));
            }
            let socket = UdpSocket::bind(local)?;
            socket.connect(spec.destination)?;
            socket.set_nonblocking(true)?;
            if spec.wait == Wait::Spin {
                // Without CAP_NET_ADMIN, replies arrive by interrupt as usual.
                let _ = prefer_busy_poll(&socket);
            }
            Ok(Socket::Udp(socket))
        };
        let socket = open().map_err(|error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot ping {} from {local}: {error}", spec.destination),
            )
        })?;
        let mut request = vec![0; spec.payload.into()];
        request.extend(
            spec.name
                .as_deref()
                .and_then(dns::query)
                .unwrap_or_default(),
        );
        Ok(Ping {
            socket,
            wait: spec.wait,
            exchange: Exchange::new(spec),
            outstanding: spec.outstanding,
            rate: spec.rate,
            request,
            names: spec.name.is_some(),
            // A reply of any length is accepted; the rest is cut off.
            reply: vec![0; 2048],
            measures: Measures::new(LATENCY_MAX)?,
        })
    }

    /// Returns the descriptor that becomes readable on a reply; none for a client that
    /// always spins.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            Socket::Udp(socket) => Some(socket.as_fd()),
            Socket::Circuit(_) => None,
        }
    }

    /// Handles the waiting replies and sends what may be sent. Returns true if there were
    /// any replies.
    pub(super) fn poll(&mut self, now: impl Fn() -> u64) -> io::Result<bool> {
        let mut busy = false;
        for _ in 0..REPLIES_MAX {
            match self.socket.recv(&mut self.reply) {
                Ok(length) => {
                    busy = true;
                    let payload = self.reply.get(..length).unwrap_or_default();
                    if self.names && !dns::is_answer(payload) {
                        self.exchange.error();
                        continue;
                    }
                    if let Some(took) = self.exchange.reply(payload, now()) {
                        self.measures.answered(took.corrected, took.raw);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.live_with(error)?,
            }
        }
        self.exchange.expire(now());
        while let Some(number) = self.exchange.next_request(now()) {
            let bytes = if self.names {
                dns::ID
            } else {
                size_of::<u64>()
            };
            let numbered = self.request.iter_mut().take(bytes);
            for (to, from) in numbered.zip(number.to_le_bytes()) {
                *to = from;
            }
            // Before the call: building and sending the packet is part of the round trip.
            let time = now();
            match self.socket.send(&self.request) {
                Ok(_) => {
                    busy = true;
                    self.exchange.sent(time);
                }
                Err(error) => {
                    self.live_with(error)?;
                    self.exchange.not_sent(time);
                }
            }
        }
        Ok(busy)
    }

    /// Counts a transient error; returns any other.
    fn live_with(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(
                libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EAGAIN
                | libc::ENOBUFS
                | libc::EINTR,
            ) => {
                self.exchange.error();
                Ok(())
            }
            _ => Err(error),
        }
    }

    pub(super) fn since_progress(&mut self) -> (PingCounts, Option<Latency>) {
        self.measures.since_progress(self.exchange.counts())
    }

    pub(super) fn report(self, measured: bool, duration: Duration) -> PingReport {
        let whole = self.exchange.counts();
        let counts = self.measures.counts(whole, measured);
        let closed = (self.outstanding.into(), nanoseconds(duration));
        let closed = self.rate.is_none().then_some(closed);
        PingReport {
            response: self.measures.response(measured, closed),
            measured: counts,
            whole,
            duration,
            rate: per_second(counts.echoed, duration),
            latency: Latency::of(&self.measures.raw).filter(|_| measured),
        }
    }
}
