//! Sending: in a frame of the stack, or through the kernel socket.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidewall_stack::address::{canonical, specified, stays_with_kernel, to_v6};
use tidewall_stack::ip::routes::Route;
use tidewall_stack::ip::transmit::Heading;
use tidewall_stack::lock::lock;
use tidewall_stack::receiver::QueueHandle;

use super::mtu::is_lost_in_kernel;
use super::{UdpSocket, mtu};

/// Largest payload of a UDP datagram over IPv4 (RFC 768 in 65,535 bytes).
const PAYLOAD_MAX: usize = 65_507;
/// How long a blocking send waits for a frame.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

impl UdpSocket {
    /// Sends to an address.
    ///
    /// # Errors
    /// EMSGSIZE over 65,507 bytes. ENETUNREACH, EHOSTUNREACH, EACCES by the kernel's
    /// routes. EAGAIN when nonblocking and no frame is free. An ICMP error about an
    /// earlier datagram of a connected socket.
    pub fn send_to(&self, payload: &[u8], destination: SocketAddr) -> io::Result<usize> {
        self.take_pending()?;
        let sent = self.send_one(payload, None, destination, true)?;
        self.inner.note_sent();
        Ok(sent)
    }

    /// Sends to an address from a given address of this host, as Linux does with IP_PKTINFO
    /// and IPV6_PKTINFO. The source may differ from the address to which the socket is bound.
    /// With an unspecified source it is the same as [`UdpSocket::send_to`]. The port is the
    /// socket's.
    ///
    /// # Errors
    /// As Linux: EINVAL for a source that is a group's or of another family than the
    /// destination. For a source that is not local: over IPv6 EINVAL, over IPv4
    /// ENETUNREACH (EINVAL on an older kernel). Those of [`UdpSocket::send_to`].
    pub fn send_from(
        &self,
        payload: &[u8],
        source: IpAddr,
        destination: SocketAddr,
    ) -> io::Result<usize> {
        self.take_pending()?;
        let sent = self.send_one(payload, Some(source), destination, true)?;
        self.inner.note_sent();
        Ok(sent)
    }

    /// Sends to the peer.
    ///
    /// # Errors
    /// EDESTADDRREQ without [`UdpSocket::connect`]; as [`UdpSocket::send_to`].
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        let peer = self
            .inner
            .peer()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EDESTADDRREQ))?;
        self.take_pending()?;
        let sent = self.send_one(payload, None, peer, true)?;
        self.inner.note_sent();
        Ok(sent)
    }

    /// Sends by the kernel socket that holds the port, with flags of sendmsg(2). With MSG_MORE
    /// the kernel keeps the bytes for a datagram that a later call completes.
    ///
    /// # Errors
    /// EOPNOTSUPP for a stack without a kernel (in memory); the kernel's errors.
    pub fn send_by_kernel(
        &self,
        buffers: &[IoSlice<'_>],
        destination: Option<SocketAddr>,
        flags: i32,
    ) -> io::Result<usize> {
        self.take_pending()?;
        let Some(reservation) = &self.inner.reservation else {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        };
        // An adopted socket may be blocking for others that share it.
        let flags = flags | libc::MSG_DONTWAIT;
        reservation.send(buffers, destination, flags)
    }

    /// Queues a datagram; [`UdpSocket::flush`] sends everything queued with one
    /// system call.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn queue_to(&self, payload: &[u8], destination: SocketAddr) -> io::Result<()> {
        self.send_one(payload, None, destination, false).map(drop)
    }

    /// As [`UdpSocket::queue_to`], from a given address of this host.
    ///
    /// ```no_run
    /// # fn answer(socket: &tidewall_socket::UdpSocket) -> std::io::Result<()> {
    /// socket.recv_batch(64, |asked| {
    ///     // The thread that asked one address of many takes an answer from that one.
    ///     let _ = socket.queue_from(b"answer", asked.local, asked.source);
    /// })?;
    /// socket.flush()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::send_from`].
    pub fn queue_from(
        &self,
        payload: &[u8],
        source: IpAddr,
        destination: SocketAddr,
    ) -> io::Result<()> {
        self.send_one(payload, Some(source), destination, false)
            .map(drop)
    }

    /// Sends the queued datagrams.
    ///
    /// # Errors
    /// ENETDOWN and other device errors.
    pub fn flush(&self) -> io::Result<()> {
        let core = self.stack.here()?;
        match self.transmit_queue() {
            Some((number, queue)) => core.send_queue(number, queue),
            None => Ok(()),
        }
    }

    /// Sends a batch with one system call; stops at the first datagram that cannot be
    /// sent. Returns how many were sent.
    ///
    /// # Errors
    /// The error of the first datagram, if that one failed.
    pub fn send_batch<'a>(
        &self,
        batch: impl IntoIterator<Item = (&'a [u8], SocketAddr)>,
    ) -> io::Result<usize> {
        let mut sent = 0;
        for (payload, destination) in batch {
            match self.queue_to(payload, destination) {
                Ok(()) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.flush()?;
        self.inner.note_sent();
        Ok(sent)
    }

    pub(super) fn transmit_queue(&self) -> Option<(usize, &QueueHandle)> {
        // Replies leave by the queue on which their requests arrived.
        let queue = self.inner.last_queue.load(Ordering::Relaxed);
        self.stack.core().receiver.sending_queue(queue)
    }

    /// `named`: the source that the application states, if any.
    fn send_one(
        &self,
        payload: &[u8],
        named: Option<IpAddr>,
        destination: SocketAddr,
        flush: bool,
    ) -> io::Result<usize> {
        let errno = |errno| Err(io::Error::from_raw_os_error(errno));
        if payload.len() > PAYLOAD_MAX {
            return errno(libc::EMSGSIZE);
        }
        if self.inner.is_shut(Shutdown::Write) {
            return errno(libc::EPIPE);
        }
        if destination.port() == 0 {
            return errno(libc::EINVAL);
        }
        let ends = self.inner.ends();
        let wire = canonical(destination);
        if ends.bound.is_ipv4() && wire.is_ipv6() {
            return errno(libc::EAFNOSUPPORT);
        }
        let named = named.and_then(|named| specified(SocketAddr::new(named, 0)));
        if named.is_some_and(|named| named.is_ipv4() != wire.is_ipv4()) {
            return errno(libc::EINVAL);
        }
        let core = self.stack.here()?;
        if !self.inner.has_kernel_part() {
            core.netdev.check()?;
        }
        let length = mtu::datagram_length(wire, payload.len());
        self.inner.look_for_errors(core, wire, length);
        let source = named.or_else(|| specified(ends.local));
        let route = if stays_with_kernel(wire.ip()) || named.is_some_and(stays_with_kernel) {
            Route::Kernel
        } else {
            core.ip.route(wire, source, named.is_some())
        };
        let Some((number, queue)) = self.transmit_queue() else {
            return errno(libc::ENETDOWN);
        };
        if let Route::Link {
            source,
            neighbour,
            mtu,
        } = route
            && source.is_ipv4() == wire.is_ipv4()
        {
            let heading = Heading {
                source: SocketAddr::new(source, ends.local.port()),
                destination: wire,
                neighbour,
                traffic_class: self.inner.options.traffic_class.load(Ordering::Relaxed),
                hop_limit: self.inner.options.hop_limit.load(Ordering::Relaxed),
            };
            let mut give_up = None;
            loop {
                let mut transmitter = lock(&queue.transmitter);
                if length > transmitter.mtu() || !self.inner.fits(wire, length, mtu) {
                    break;
                }
                match transmitter.queue(&heading, payload) {
                    Ok(()) if flush => {
                        drop(transmitter);
                        return core.send_queue(number, queue).map(|()| payload.len());
                    }
                    Ok(()) => return Ok(payload.len()),
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        drop(transmitter);
                        if self.nonblocking.load(Ordering::Relaxed) {
                            // No event reports when a frame is returned, which is soon:
                            // an edge-triggered caller may try again.
                            self.inner.note_sent();
                            return Err(io::ErrorKind::WouldBlock.into());
                        }
                        let now = Instant::now();
                        if now >= *give_up.get_or_insert(now + SEND_TIMEOUT) {
                            return Err(error);
                        }
                        tidewall_sys::priority::yield_processor();
                    }
                    Err(error) => return Err(error),
                }
            }
            // The kernel sends datagrams that are longer than a frame.
            let widest = lock(&queue.transmitter).link_mtu();
            if self.inner.mtu_discover().refuses() && length > widest.min(mtu)
                || is_lost_in_kernel(core, wire, length, mtu, widest)
            {
                return errno(libc::EMSGSIZE);
            }
        }
        match &self.inner.reservation {
            Some(reservation) => {
                let destination = if ends.bound.is_ipv6() {
                    to_v6(destination)
                } else {
                    wire
                };
                if let Some(named) = named {
                    // Only a link-local address needs its link.
                    let interface = match named {
                        IpAddr::V6(v6) if v6.is_unicast_link_local() && scope(destination) == 0 => {
                            lock(&core.ip.routes).interface()
                        }
                        _ => 0,
                    };
                    return reservation.send_from(payload, named, interface, destination);
                }
                let connected = ends.peer.is_some_and(|peer| canonical(peer) == wire);
                reservation.send_to(payload, destination, connected)
            }
            // As the kernel reports for such a source.
            None if named.is_some_and(|named| {
                (named.is_ipv6() || stays_with_kernel(named))
                    && !lock(&core.ip.routes).is_own(named)
            }) =>
            {
                errno(libc::EINVAL)
            }
            // No kernel could fragment it.
            None if matches!(route, Route::Link { .. }) => errno(libc::EMSGSIZE),
            None => errno(libc::ENETUNREACH),
        }
    }
}

fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}
