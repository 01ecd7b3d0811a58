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
use tidewall_readiness::registration::{Handle, Pollable};
use tidewall_stack::StackHandle;
use tidewall_stack::address::{canonical, specified, to_v6};
use tidewall_stack::channels::{ChannelSet, DEFAULT_RECEIVE_LIMIT};
use tidewall_stack::ip::routes::Route;
use tidewall_stack::lock::lock;
use tidewall_stack::receiver::BETWEEN_LOOKS;
use tidewall_stack::threads::Waitable;
use tidewall_stack::timeout::Timeout;

use crate::udp::reservation::PortReservation;
use inner::{Ends, Receiving, SocketInner};

pub use mtu::MtuDiscover;
pub use ports::Udp;

/// Nonblocking receives without a result before the kernel socket is polled although none
/// has reported input.
const ASK_KERNEL_EVERY: u64 = 16;
/// Receives in a row that find datagrams in user space before the kernel socket is polled
/// all the same.
const ASK_KERNEL_AFTER: u64 = 64;

/// A received datagram, in the frame in which it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The payload, in place.
    pub payload: &'a [u8],
    /// The sender.
    pub source: SocketAddr,
    /// The address, which may be a group's, and the port to which it was sent.
    pub destination: SocketAddr,
    /// The source address for a reply, for [`UdpSocket::send_from`]: that of
    /// `destination` if it is a local one. For a multicast or broadcast datagram it is
    /// the address that the kernel chooses, unspecified if the kernel has not reported
    /// it.
    pub local: IpAddr,
    /// The index of the arrival interface; `None` for the stack's own
    /// ([`StackHandle::interface_index`]).
    pub interface: Option<u32>,
    /// Type of service (IPv4) or traffic class (IPv6): DSCP and ECN.
    pub traffic_class: u8,
    /// Hops that were left; 0 if unknown.
    pub hop_limit: u8,
}

/// Options of binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// SO_REUSEADDR: share the port with other sockets that set it too; datagrams go to
    /// the socket bound last.
    pub reuse_address: bool,
    /// SO_REUSEPORT, as above within one stack. Between processes the kernel's
    /// rule holds for datagrams that pass through it.
    pub reuse_port: bool,
    /// IPV6_V6ONLY: an IPv6 wildcard socket does not receive IPv4.
    pub only_v6: bool,
}

/// A UDP socket on a [`StackHandle`].
///
/// ```no_run
/// use tidewall::{EmbeddedConfig, Stack, UdpSocket};
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let socket = UdpSocket::bind(&stack, ([0, 0, 0, 0], 7).into())?;
/// let mut buffer = [0; 2048];
/// let (length, source) = socket.recv_from(&mut buffer)?;
/// socket.send_to(&buffer[..length], source)?;
/// # std::io::Result::Ok(())
/// ```
///
/// A bound kernel socket holds its port, so conflicts with other programs are detected
/// and peers on this host reach it too. Datagrams from the network wait in a channel of
/// the socket, and the receiving thread processes them. Multicast and broadcast stay with
/// the kernel: they are received and sent through the kernel socket, at the kernel's
/// cost.
///
/// A socket bound to any address can reply from the address that a request was sent to,
/// as with IP_PKTINFO on Linux: [`Received::local`] and [`UdpSocket::queue_from`].
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
    /// Number of receives that found datagrams in user space.
    own_receives: AtomicU64,
    /// Number of rounds when it was last queried.
    asked: AtomicU64,
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket")
            .field("local", &self.inner.ends().local)
            .finish_non_exhaustive()
    }
}

impl UdpSocket {
    /// Returns the object on which a thread that waits for several sockets sleeps.
    #[doc(hidden)]
    pub fn waitable(&self) -> &dyn Waitable {
        &*self.inner
    }

    /// Binds a socket. Port 0 lets the kernel choose.
    ///
    /// # Errors
    /// EADDRINUSE when any program on this host has the port. EADDRNOTAVAIL for an address
    /// that is not local. EACCES below 1024 without privilege. ENFILE when the stack's
    /// channels are all in use.
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

    /// Takes over a bound kernel socket that an application has created. The kernel socket
    /// holds the port from now on, and datagrams already queued there are received first.
    /// The new socket keeps its binding, its peer if any, O_NONBLOCK, and IP_TOS and IP_TTL
    /// (for IPv6, IPV6_TCLASS and IPV6_UNICAST_HOPS). Group memberships stay with the
    /// kernel.
    ///
    /// Others that share the kernel socket see that it reports the destination of each
    /// datagram (IP_PKTINFO, IP_RECVTOS and IP_RECVTTL are set).
    ///
    /// # Errors
    /// EINVAL for a socket that is not bound. EPROTONOSUPPORT for another protocol.
    /// EOPNOTSUPP for a stack without a kernel (in memory). Those of [`UdpSocket::bind`]
    /// and [`UdpSocket::connect`]. The socket is unchanged then.
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
        // The kernel socket has them already; frames that leave by the interface must
        // carry them as well.
        let options = &socket.inner.options;
        options.traffic_class.store(class as u8, Ordering::Relaxed);
        options.hop_limit.store(hops as u8, Ordering::Relaxed);
        if let Some(peer) = peer {
            socket.connect(peer)?;
        }
        // Its queued input arrived before anything watched it.
        Pollable::kernel_has_input(&*socket.inner);
        Ok(socket)
    }

    /// `reservation`: the kernel socket that has the port, if there is a kernel. Without one
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
            // Before any lock is taken, since this waits for a manager.
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
        // From here on dropping `socket` undoes the steps, and takes the lock itself.
        let listens = Udp::of(core).listen(core, &socket.inner);
        drop(binding);
        listens.map(|()| socket)
    }

    /// Returns the address to which the socket is bound; after [`UdpSocket::connect`] the
    /// one from which it sends.
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
    /// ENETUNREACH, EINVAL, EAFNOSUPPORT as the kernel reports; ENOBUFS when the flow
    /// table's bucket is full.
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

    /// Removes the peer (`connect` with AF_UNSPEC): datagrams of any sender are received
    /// again. Nothing changes without a peer.
    ///
    /// # Errors
    /// ENOBUFS as [`UdpSocket::bind`]; the kernel's errors.
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

    /// Returns the bytes of the next datagram; 0 if there is none (FIONREAD).
    pub fn next_length(&self) -> usize {
        let mut length = 0;
        match self.peek(true, |received| length = received.payload.len()) {
            Ok(_) => length,
            Err(error) => {
                // A call that receives or sends reports it.
                if error.kind() != io::ErrorKind::WouldBlock
                    && let Some(errno) = error.raw_os_error()
                {
                    self.inner.fail(errno);
                }
                0
            }
        }
    }

    /// Receives one datagram; a longer one is truncated to the buffer, as by Linux.
    ///
    /// # Errors
    /// EAGAIN when nonblocking or at the timeout, EINTR, and ICMP errors about a
    /// connected socket's flow (ECONNREFUSED, EHOSTUNREACH, …).
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
    /// Those of [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(length, _)| length)
    }

    /// Receives up to `limit` datagrams without copying: `each` sees them in the frames
    /// in which they arrived. Waits for the first unless nonblocking. Returns how many
    /// there were, at least one unless `limit` is 0 or receiving is shut.
    ///
    /// # Errors
    /// Those of [`UdpSocket::recv_from`]. Datagrams already passed to `each` are not lost
    /// to an error: the next call reports it.
    pub fn recv_batch(&self, limit: usize, each: impl FnMut(Received<'_>)) -> io::Result<usize> {
        self.receive_batch(limit, false, each)
    }

    /// As [`UdpSocket::recv_batch`]. With `at_once` it does not wait, even if the socket
    /// is blocking.
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

    /// As [`UdpSocket::receive_batch`] for one datagram, which stays the next to be
    /// received (MSG_PEEK). If another thread receives meanwhile, the datagram may be
    /// gone.
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

    /// Passes datagrams to `each` with their addresses in the socket's family.
    fn as_named(&self, mut each: impl FnMut(Received<'_>)) -> impl FnMut(Received<'_>) {
        let v6 = self.inner.ends().bound.is_ipv6();
        // A dual-stack socket shows IPv4 peers as Linux does; a link-local peer's address
        // states its link.
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
        // A call that does not block need not read the clock.
        let timeout = self.read_timeout().filter(|_| !nonblocking);
        let deadline = timeout.map(|timeout| core.clock.instant_now() + timeout);
        let mut polled = false;
        // A call that may return more checks after each step, and at the end.
        if limit <= BETWEEN_LOOKS {
            core.receiver.poll_if_due(core)?;
        }
        loop {
            let made = core.receiver.rounds_made();
            let mut asked = self.asked.swap(made, Ordering::Relaxed);
            if !core.netdev.has_kernel {
                // In memory, a call finds whatever was sent before it.
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

    /// Returns true now and then while datagrams keep arriving from the network. Peers on
    /// this host would starve if the kernel socket were polled only when there are none.
    fn must_ask_kernel(&self) -> bool {
        let received = self.own_receives.load(Ordering::Relaxed);
        if self.inner.reservation.is_none() || received < ASK_KERNEL_AFTER {
            return false;
        }
        self.own_receives.store(0, Ordering::Relaxed);
        true
    }

    /// Closes one half or both (`shutdown`): sending gives EPIPE, and receiving does not
    /// wait any more; [`UdpSocket::recv_batch`] then returns 0. Datagrams that arrive are
    /// still received, without waking a thread, as by Linux.
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
    /// The kernel socket's errors.
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
