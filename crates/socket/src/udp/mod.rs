//! UDP sockets.

pub(crate) mod inner;
mod mtu;
mod options;
mod ports;
pub(crate) mod receive;
mod reservation;
mod sending;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Patience;

use crate::udp::reservation::PortReservation;
pub use mtu::MtuDiscover;
pub use ports::Udp;
use tidewall_readiness::registration::{Handle, Pollable};
use tidewall_stack::StackHandle;
use tidewall_stack::channels::{ChannelSet, DEFAULT_RECEIVE_LIMIT};
use tidewall_stack::ip::routes::Route;
use tidewall_stack::lock::lock;
use tidewall_stack::threads::Waitable;
use tidewall_stack::timeout::Timeout;

use inner::{Ends, Receiving, SocketInner};
use tidewall_stack::address::{canonical, specified, to_v6};
use tidewall_stack::receiver::BETWEEN_LOOKS;

/// Nonblocking receives that find nothing before the kernel socket is asked
/// although nobody has said that it has input.
const ASK_KERNEL_EVERY: u64 = 16;
/// Receives in a row that find datagrams in user space before the kernel socket
/// is asked all the same.
const ASK_KERNEL_AFTER: u64 = 64;

/// A datagram as the application sees it, in the frame it came in.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The payload, in place.
    pub payload: &'a [u8],
    /// Who sent it.
    pub source: SocketAddr,
    /// The address, which may be a group's, and the port it was sent to.
    pub destination: SocketAddr,
    /// The address to answer from, for [`UdpSocket::send_from`]: that of
    /// `destination` if it is one of ours; of a datagram to a group or to
    /// everybody the one that the kernel chooses, unspecified if it has not said.
    pub local: IpAddr,
    /// The index of the interface that it came by; `None` for the stack's own
    /// ([`StackHandle::interface_index`]).
    pub interface: Option<u32>,
    /// Type of service (IPv4) or traffic class (IPv6): DSCP and ECN.
    pub traffic_class: u8,
    /// Hops that were left; 0 where unknown.
    pub hop_limit: u8,
}

/// How to bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// SO_REUSEADDR: share the port with others that set it too; datagrams go
    /// to the socket bound last.
    pub reuse_address: bool,
    /// SO_REUSEPORT, as above within one stack. Between processes the kernel's
    /// rule holds for datagrams that pass through it.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: an IPv6 wildcard socket leaves IPv4 alone.
    pub only_v6: bool,
}

/// A UDP socket on a [`StackHandle`].
///
/// Its port is held by a bound kernel socket, so conflicts with other programs
/// are real and peers on this host reach it too. Datagrams from the network
/// wait in a channel of their own and are processed in the thread that
/// receives. Multicast and broadcast stay with the kernel: they are received
/// and sent through the kernel socket, at the kernel's cost.
///
/// A socket bound to any address answers from the address that was asked if its
/// application says so, as with IP_PKTINFO on Linux: [`Received::local`] and
/// [`UdpSocket::queue_from`].
///
/// Several threads may use one socket at once.
pub struct UdpSocket {
    pub(crate) inner: Arc<SocketInner>,
    #[cfg(feature = "mio")]
    pub(crate) event_loop: tidewall_readiness::event_loop::Slot,
    // Dropped after `inner`'s use in Drop; keeps the device open.
    pub(crate) stack: StackHandle,
    nonblocking: AtomicBool,
    read_timeout: Timeout,
    empty_receives: AtomicU64,
    /// Receives that found datagrams in user space.
    own_receives: AtomicU64,
    /// Rounds that had been made when it was last asked.
    asked: AtomicU64,
}

impl UdpSocket {
    /// What a thread that waits for several sockets sleeps on.
    #[doc(hidden)]
    pub fn waitable(&self) -> &dyn Waitable {
        &*self.inner
    }

    /// Binds a socket. Port 0 lets the kernel choose.
    ///
    /// # Errors
    /// EADDRINUSE when any program on this host has the port; EADDRNOTAVAIL for
    /// an address that is not this host's; EACCES below 1024 without privilege;
    /// ENFILE when the stack's channels are all in use.
    pub fn bind(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(stack, address, BindOptions::default())
    }

    /// Binds a socket with options.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_with(
        stack: &StackHandle,
        address: SocketAddr,
        how: BindOptions,
    ) -> io::Result<Self> {
        let has_kernel = stack.here()?.netdev.has_kernel;
        let reservation = has_kernel.then(|| PortReservation::bind(address, &how));
        let reservation = reservation.transpose()?;
        Self::begin(stack, reservation, address, &how, Patience::Restart)
    }

    /// Takes over a bound socket of the kernel's that an application has made: it holds the
    /// port from now on, and what has come to it is received first. How it is bound, its
    /// peer if it has one, O_NONBLOCK, IP_TOS and IP_TTL (of IPv6 IPV6_TCLASS and
    /// IPV6_UNICAST_HOPS) are this socket's; memberships of groups stay the kernel's.
    ///
    /// Others that share the socket see that it says with each datagram where that came to
    /// (IP_PKTINFO, IP_RECVTOS and IP_RECVTTL are set).
    ///
    /// # Errors
    /// EINVAL for a socket that is not bound, EPROTONOSUPPORT for another protocol;
    /// EOPNOTSUPP for a stack without a kernel (in memory); as [`UdpSocket::bind`] and
    /// [`UdpSocket::connect`]. The socket is as before then.
    pub fn adopt(stack: &StackHandle, socket: OwnedFd) -> io::Result<Self> {
        if !stack.here()?.netdev.has_kernel {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let (reservation, how) = PortReservation::adopt(socket)?;
        let nonblocking = fcntl_getfl(reservation.as_fd())?.contains(OFlags::NONBLOCK);
        let local = reservation.local_addr()?;
        let peer = reservation.peer_addr();
        let class = reservation.get_own(libc::IP_TOS, libc::IPV6_TCLASS)?;
        let hops = reservation.get_own(libc::IP_TTL, libc::IPV6_UNICAST_HOPS)?;
        let socket = Self::begin(stack, Some(reservation), local, &how, Patience::Prompt)?;
        if let Some(reservation) = &socket.inner.reservation {
            reservation.take_over()?;
        }
        socket.set_nonblocking(nonblocking)?;
        // As it has them already: of what is sent by the interface they are ours to write.
        let options = &socket.inner.options;
        options.traffic_class.store(class as u8, Ordering::Relaxed);
        options.hop_limit.store(hops as u8, Ordering::Relaxed);
        if let Some(peer) = peer {
            socket.connect(peer)?;
        }
        // What it has, nobody has watched it get.
        Pollable::kernel_has_input(&*socket.inner);
        Ok(socket)
    }

    /// `reservation`: the kernel socket that has the port, if there is a kernel; without one
    /// the stack chooses by `address`.
    fn begin(
        stack: &StackHandle,
        reservation: Option<PortReservation>,
        address: SocketAddr,
        how: &BindOptions,
        patience: Patience,
    ) -> io::Result<Self> {
        let core = stack.here()?;
        core.check_protocol::<Udp>()?;
        let held = reservation.as_ref().map(|held| {
            let local = held.local_addr()?;
            // Before any lock is taken, since a manager is waited for.
            let asked = Udp::of(core).ask_for_port(core, held, local, how, patience);
            asked.map(|()| local)
        });
        let held = held.transpose()?;
        let binding = lock(&core.binding);
        let local = match held {
            Some(local) => local,
            None => Udp::of(core).bind_without_kernel(core, address, how)?,
        };
        let queues = &core.receiver.queues;
        let opened = core.channels.allocate().and_then(|id| {
            let set = core.channels.open(queues, id, DEFAULT_RECEIVE_LIMIT)?;
            Ok((id, set))
        });
        let (id, set) = opened.inspect_err(|_| {
            if let Some(holder) = &reservation {
                core.netdev.owner.close_datagrams(holder.as_fd());
            }
        })?;
        let inner = Arc::new(SocketInner::new(
            id,
            reservation,
            local,
            set.channels.into(),
            DEFAULT_RECEIVE_LIMIT,
            how,
        ));
        Udp::of(core).register(core, inner.clone());
        let socket = UdpSocket {
            inner,
            #[cfg(feature = "mio")]
            event_loop: Default::default(),
            stack: stack.clone(),
            nonblocking: AtomicBool::new(false),
            read_timeout: Timeout::default(),
            empty_receives: AtomicU64::new(0),
            own_receives: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        };
        // From here on dropping `socket` undoes what was done, which takes the
        // lock itself.
        let listens = Udp::of(core).listen(core, &socket.inner);
        drop(binding);
        listens.map(|()| socket)
    }

    /// The address the socket is bound to; after [`UdpSocket::connect`] the one
    /// it sends from.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.ends().local)
    }

    /// The peer.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner
            .peer()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    }

    /// Fixes the peer: only its datagrams are received from now on, ICMP errors
    /// about the flow are reported, and [`UdpSocket::send`] works. The driver
    /// finds the socket by both addresses.
    ///
    /// # Errors
    /// ENETUNREACH, EINVAL, EAFNOSUPPORT as the kernel says; ENOBUFS when the
    /// flow table's bucket is full.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        let core = self.stack.here()?;
        let _binding = lock(&core.binding);
        let before = self.inner.ends();
        let local = match &self.inner.reservation {
            Some(reservation) => {
                reservation.connect(peer)?;
                reservation.local_addr()?
            }
            None => match core.ip.route(peer, specified(before.bound), false) {
                Route::Link { source, .. } => SocketAddr::new(source, before.local.port()),
                Route::Kernel => return Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
            },
        };
        core.tables.connect(
            Protocol::Udp,
            canonical(local),
            canonical(peer),
            self.inner.id(),
        )?;
        let flow = (canonical(local), canonical(peer));
        if let Some(old) = before.peer {
            let before = (canonical(before.local), canonical(old));
            if before != flow {
                core.tables.disconnect(Protocol::Udp, before.0, before.1);
            }
        }
        *lock(&self.inner.ends) = Ends {
            local,
            peer: Some(peer),
            ..before
        };
        Udp::of(core).unlisten(core, &self.inner)
    }

    /// Takes the peer away (`connect` with AF_UNSPEC): anybody's datagrams are received
    /// again. Nothing changes without one.
    ///
    /// # Errors
    /// ENOBUFS as [`UdpSocket::bind`]; what the kernel says.
    pub fn disconnect(&self) -> io::Result<()> {
        let core = self.stack.here()?;
        let _binding = lock(&core.binding);
        let before = self.inner.ends();
        let Some(peer) = before.peer else {
            return Ok(());
        };
        let bound = SocketAddr::new(before.bound.ip(), before.local.port());
        if let Some(reservation) = &self.inner.reservation {
            reservation.disconnect(bound)?;
        }
        *lock(&self.inner.ends) = Ends {
            local: bound,
            peer: None,
            ..before
        };
        let flow = (canonical(before.local), canonical(peer));
        core.tables.disconnect(Protocol::Udp, flow.0, flow.1);
        Udp::of(core).listen(core, &self.inner)
    }

    /// Bytes of the datagram that is received next; 0 where there is none (FIONREAD).
    pub fn next_length(&self) -> usize {
        let mut length = 0;
        match self.peek(true, |received| length = received.payload.len()) {
            Ok(_) => length,
            Err(error) => {
                // It is reported by a call that receives or sends.
                if error.kind() != io::ErrorKind::WouldBlock
                    && let Some(errno) = error.raw_os_error()
                {
                    self.inner.fail(errno);
                }
                0
            }
        }
    }

    /// Receives one datagram; a longer one is cut to the buffer, as by Linux.
    ///
    /// # Errors
    /// EAGAIN when nonblocking or at the timeout, EINTR, and what ICMP reported
    /// about a connected socket's flow (ECONNREFUSED, EHOSTUNREACH, …).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut result = None;
        self.recv_batch(1, |received| {
            let length = received.payload.len().min(buffer.len());
            if let (Some(to), Some(from)) =
                (buffer.get_mut(..length), received.payload.get(..length))
            {
                to.copy_from_slice(from);
            }
            result = Some((length, received.source));
        })?;
        result.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Receives one datagram's payload.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(length, _)| length)
    }

    /// Receives up to `limit` datagrams without copying: `each` sees them in
    /// the frames they came in. Waits for the first unless nonblocking. Returns
    /// how many there were, at least one unless `limit` is 0 or receiving is shut.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]. Datagrams already given to `each` are not
    /// lost to an error: it is reported by the next call.
    pub fn recv_batch(&self, limit: usize, each: impl FnMut(Received<'_>)) -> io::Result<usize> {
        self.receive_batch(limit, false, each)
    }

    /// As [`UdpSocket::recv_batch`]. `at_once`: does not wait, whatever the
    /// socket is set to.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_batch`].
    pub fn receive_batch(
        &self,
        limit: usize,
        at_once: bool,
        each: impl FnMut(Received<'_>),
    ) -> io::Result<usize> {
        match limit {
            0 => Ok(0),
            _ => self.receive(limit, at_once, &mut self.as_named(each)),
        }
    }

    /// As [`UdpSocket::receive_batch`] of one datagram, which is the next to be received
    /// afterwards, too (MSG_PEEK). Who receives by another thread meanwhile may find it
    /// missing.
    ///
    /// # Errors
    /// As [`UdpSocket::receive_batch`].
    pub fn peek(&self, at_once: bool, each: impl FnMut(Received<'_>)) -> io::Result<usize> {
        let mut kept = None;
        self.receive(1, at_once, &mut |received| {
            kept = Some(receive::Owned::copy(&received, None));
        })?;
        let Some(datagram) = kept else { return Ok(0) };
        self.as_named(each)(datagram.borrow());
        self.inner.put_back(datagram);
        Ok(1)
    }

    /// Gives `each` datagrams with their addresses as the socket's family has them.
    fn as_named(&self, mut each: impl FnMut(Received<'_>)) -> impl FnMut(Received<'_>) {
        let v6 = self.inner.ends().bound.is_ipv6();
        // A dual-stack socket names IPv4 peers as Linux does, and one on our
        // link says which link that is.
        move |received: Received<'_>| match received.source {
            SocketAddr::V4(_) if v6 => each(Received {
                source: to_v6(received.source),
                destination: to_v6(received.destination),
                local: to_v6(SocketAddr::new(received.local, 0)).ip(),
                ..received
            }),
            SocketAddr::V6(_) => each(Received {
                source: self.stack.core().ip.scoped(received.source),
                ..received
            }),
            SocketAddr::V4(_) => each(received),
        }
    }

    fn receive(
        &self,
        limit: usize,
        at_once: bool,
        each: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let core = self.stack.here()?;
        let nonblocking = at_once || self.nonblocking.load(Ordering::Relaxed);
        // Who does not wait need not know what time it is.
        let timeout = self.read_timeout().filter(|_| !nonblocking);
        let deadline = timeout.map(|timeout| core.clock.instant_now() + timeout);
        let mut polled = false;
        // Who may be given more looks after each step, and at the end.
        if limit <= BETWEEN_LOOKS {
            core.receiver.poll_if_due(core)?;
        }
        loop {
            let made = core.receiver.rounds_made();
            let mut asked = self.asked.swap(made, Ordering::Relaxed);
            if !core.netdev.has_kernel {
                // In memory what was sent before a call is found by it.
                asked = made;
            }
            self.take_pending()?;
            if !self.inner.peeked.load(Ordering::Relaxed) && self.must_ask_kernel() {
                let given = self.inner.drain_kernel(limit, each)?;
                if given > 0 {
                    return Ok(given);
                }
            }
            let given = self.inner.drain(core, limit, each);
            if given > 0 {
                self.own_receives.fetch_add(1, Ordering::Relaxed);
                self.inner.pass_wakeup();
                return Ok(given);
            }
            if self.inner.kernel_is_ready() {
                match self.inner.drain_kernel(limit, each)? {
                    0 => continue,
                    given => return Ok(given),
                }
            }
            if !polled && nonblocking {
                polled = true;
                if core.receiver.round_after_asking(core, asked, made)? {
                    continue;
                }
            } else if !polled && core.receiver.is_polling() && !core.receiver.device_polls() {
                polled = true;
                core.receiver.round_and_return(core)?;
                continue;
            }
            self.take_pending()?;
            if !self.inner.has_kernel_part() {
                core.netdev.check()?;
            }
            if nonblocking {
                if self
                    .empty_receives
                    .fetch_add(1, Ordering::Relaxed)
                    .is_multiple_of(ASK_KERNEL_EVERY)
                {
                    let given = self.inner.drain_kernel(limit, each)?;
                    if given > 0 {
                        return Ok(given);
                    }
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if self.inner.is_shut(Shutdown::Read) {
                return Ok(0);
            }
            polled = false;
            if !core
                .receiver
                .sleep(core, &[&Receiving(&self.inner)], deadline)?
            {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// True now and then while datagrams keep coming from the network: peers on
    /// this host would starve if the kernel socket were asked only when there
    /// are none.
    fn must_ask_kernel(&self) -> bool {
        let received = self.own_receives.load(Ordering::Relaxed);
        if self.inner.reservation.is_none() || received < ASK_KERNEL_AFTER {
            return false;
        }
        self.own_receives.store(0, Ordering::Relaxed);
        true
    }

    /// Closes one half or both (`shutdown`): sending gives EPIPE, receiving does not
    /// wait for datagrams any more, [`UdpSocket::recv_batch`] then returning 0. Those
    /// that come are received still, and nobody is woken, as by Linux.
    ///
    /// # Errors
    /// ENOTCONN without a peer; it is shut all the same, as by Linux.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.inner.shut(how);
        self.peer_addr().map(drop)
    }

    /// Takes the pending error, if any (SO_ERROR).
    ///
    /// # Errors
    /// What the kernel socket reports.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        if let Some(error) = self.inner.take_error() {
            return Ok(Some(error));
        }
        self.inner
            .reservation
            .as_ref()
            .map_or(Ok(None), PortReservation::take_error)
    }

    fn take_pending(&self) -> io::Result<()> {
        self.inner.take_error().map_or(Ok(()), Err)
    }
}

impl Handle for UdpSocket {
    type Shared = SocketInner;

    fn stack(&self) -> &StackHandle {
        &self.stack
    }

    fn shared(&self) -> &Arc<SocketInner> {
        &self.inner
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let Ok(core) = self.stack.here() else { return };
        self.inner.wait_queue.close();
        let _binding = lock(&core.binding);
        Udp::of(core).unregister(core, &self.inner);
        let set = ChannelSet {
            id: self.inner.id(),
            channels: self.inner.close(core).into(),
        };
        core.channels.close(&core.receiver.queues, set);
    }
}
