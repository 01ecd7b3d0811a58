//! Listeners.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener as KernelListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::set_socket_linger;

use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ChannelId, CookieMode, CookieOffer};
use tidewall_device::forked::{self, Unshared};
use tidewall_manager::client::Patience;
use tidewall_protocol::DropReason;
use tidewall_protocol::tcp::{self, Listener};
use tidewall_readiness::Events;
use tidewall_readiness::kernel_input::KernelInput;
use tidewall_readiness::registration::{Handle, Pollable};
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::address::{specified, to_v6};
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::helper::Helper;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::Waitable;
use tidewall_sys::ready_now;
use tidewall_wire::ethernet::MacAddress;

use super::Tcp;
use super::connection::{ConnectionInner, error};
use super::kernel_stream::KernelStream;
use super::stream::TcpStream;

mod bind;
pub(crate) mod holders;
mod opened;
mod protocol;
mod sharing;
#[cfg(test)]
mod tests;
mod waiting;

pub use bind::ListenOptions;
use bind::{defer_accept, hold};
use opened::Opened;

/// Frames that may wait for a listener, per queue, in addition to its backlog.
const CHANNEL_LIMIT: u32 = 256;
/// How long after an accept another one is expected.
const ACCEPTOR_TIMEOUT: Duration = Duration::from_secs(1);
/// Accepts in a row that find connections in user space before the kernel socket is
/// polled all the same.
const ASK_KERNEL_AFTER: u64 = 16;
/// Largest backlog (Linux's `net.core.somaxconn` may be set as high).
const BACKLOG_MAX: u32 = 65_535;

/// A TCP listener on a [`StackHandle`].
///
/// ```no_run
/// use std::io::{Read, Write};
/// use tidewall::{EmbeddedConfig, Stack, TcpListener};
///
/// let stack = Stack::embedded(EmbeddedConfig::new("eth0"))?;
/// let listener = TcpListener::bind(&stack, ([0, 0, 0, 0], 7).into())?;
/// for stream in listener.incoming() {
///     let mut stream = stream?;
///     std::thread::spawn(move || -> std::io::Result<()> {
///         let mut buffer = [0; 4096];
///         loop {
///             match stream.read(&mut buffer)? {
///                 0 => return Ok(()),
///                 length => stream.write_all(&buffer[..length])?,
///             }
///         }
///     });
/// }
/// # std::io::Result::Ok(())
/// ```
///
/// A listening kernel socket holds its port, so conflicts with other programs are
/// detected. Peers on this host connect to it too: accepting merges both.
pub struct TcpListener {
    inner: Arc<ListenerInner>,
    #[cfg(feature = "mio")]
    pub(crate) event_loop: tidewall_readiness::event_loop::Slot,
    // Dropped after `inner`'s use in Drop; keeps the device open.
    pub(crate) stack: StackHandle,
    nonblocking: AtomicBool,
    /// It is listening, so dropping it must undo that.
    begun: bool,
    /// Number of accepts in a row that found connections in user space.
    own_accepts: AtomicU64,
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener")
            .field("local", &self.inner.local)
            .finish_non_exhaustive()
    }
}

/// The state that a listener shares with the stack.
pub struct ListenerInner {
    timer: u32,
    /// The channel's id.
    id: ChannelId,
    /// The options that the driver's cookies encode.
    offer: CookieOffer,
    local: SocketAddr,
    /// It accepts IPv4 on an IPv6 wildcard address.
    both: bool,
    /// Other listeners may have the address, too (SO_REUSEPORT).
    shares: bool,
    /// Connections that may wait to be accepted.
    backlog: usize,
    state: Mutex<State, rank::Listener>,
    accepted: Mutex<VecDeque<Arc<ConnectionInner>>, rank::Leaf>,
    waiting: AtomicUsize,
    /// The driver's cookie mode.
    cookies: Mutex<CookieMode, rank::Leaf>,
    pub(crate) wait_queue: WaitQueue,
    /// The time until which an accepting thread is expected back, ns since the stack
    /// started; the largest number while one waits.
    acceptor_until: AtomicU64,
    kernel: Option<Unshared<KernelListener>>,
    kernel_input: KernelInput,
    /// Connections opened by a SYN whose handshake has ended, and those that were reset
    /// before: the protocol has not processed them yet.
    opened: AtomicU32,
    reset: AtomicU32,
    /// It is shut down,
    shut: AtomicBool,
    /// but the kernel socket is listening again ([`TcpListener::listen_again`]).
    again: AtomicBool,
    /// The kernel socket is the program's.
    adopted: AtomicBool,
    /// New connections are the kernel socket's.
    given_back: AtomicBool,
    /// They remain so, whatever other processes do.
    for_good: AtomicBool,
}

struct State {
    protocol: Listener,
    options: ListenOptions,
    /// Empty once closed.
    channel: Option<ChannelSet>,
    /// The time at which its timer expires.
    armed: Duration,
    /// The origin of the segment that is being processed.
    origin: Origin,
    /// Connections that were put into the accept queue.
    established: u32,
    /// One per queue.
    opened: Box<[Opened]>,
}

/// The origin of a segment.
#[derive(Clone, Copy, Default)]
struct Origin {
    /// Its sender on the link.
    neighbour: MacAddress,
    queue: usize,
    /// Without a connection here it is not answered: it may be of one that the kernel
    /// has.
    silent: bool,
}

impl Origin {
    /// The form in which [`Listener::set_origin`] keeps it for each half-open connection.
    fn to_bits(self) -> u64 {
        let [a, b, c, d, e, f] = self.neighbour.0;
        u64::from_be_bytes([0, self.queue as u8, a, b, c, d, e, f])
    }

    fn from_bits(bits: u64) -> Self {
        let [_, queue, address @ ..] = bits.to_be_bytes();
        Origin {
            neighbour: MacAddress(address),
            queue: queue.into(),
            silent: false,
        }
    }
}

impl TcpListener {
    /// Listens with the default options. Port 0 lets the kernel choose.
    ///
    /// # Errors
    /// EADDRINUSE when any program on this host has the port. EADDRNOTAVAIL for an address
    /// that is not local. EACCES below 1024 without privilege. ENFILE when the stack's
    /// channels are all in use.
    pub fn bind(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(stack, address, ListenOptions::default())
    }

    /// Listens with options.
    ///
    /// # Errors
    /// Those of [`TcpListener::bind`]; EINVAL for a backlog or an option out of range.
    pub fn bind_with(
        stack: &StackHandle,
        address: SocketAddr,
        options: ListenOptions,
    ) -> io::Result<Self> {
        options.check()?;
        let core = stack.here()?;
        core.check_protocol::<Tcp>()?;
        Helper::start(core)?;
        let kernel = core.netdev.has_kernel.then(|| hold(address, &options));
        Self::begin(stack, options, kernel.transpose()?, address, false)
    }

    /// `kernel`: the kernel socket that has the port, if there is a kernel. Without one the
    /// stack chooses by `address`. `adopted`: it is the program's.
    fn begin(
        stack: &StackHandle,
        options: ListenOptions,
        kernel: Option<KernelListener>,
        address: SocketAddr,
        adopted: bool,
    ) -> io::Result<Self> {
        let core = stack.here()?;
        core.check_protocol::<Tcp>()?;
        let kernel = kernel.map(Unshared::new).transpose()?;
        let local = kernel.as_ref().map_or(Ok(address), |it| it.local_addr())?;
        let both = local.is_ipv6() && local.ip().is_unspecified() && !options.only_v6;
        let key = (!both).then_some(local.ip().to_canonical());
        let patience = match adopted {
            true => Patience::Prompt,
            false => Patience::Restart,
        };
        // Before any lock is taken, since this waits for a manager.
        let entered = kernel.as_ref().map(|kernel| {
            let holder = Some(kernel.as_fd());
            Entered::new(core, key, local.port(), holder, patience)
        });
        let entered = entered.transpose()?;
        let binding = lock(&core.binding);
        let (local, entered) = match entered {
            Some(entered) => (local, entered),
            None => {
                let local = Tcp::of(core).bind_without_kernel(core, address, options.reuse_port)?;
                let entered = Entered::new(core, key, local.port(), None, patience)?;
                (local, entered)
            }
        };
        let id = core.channels.allocate()?;
        let limit = CHANNEL_LIMIT.max(options.backlog.min(1024));
        let set = core.channels.open(&core.receiver.queues, id, limit)?;
        let opened = set.channels.iter().map(|_| Opened::new(limit)).collect();
        // Over IPv6 it is 20 bytes less.
        let config = options.stream.apply(Tcp::of(core).config(true));
        let mut protocol = Listener::new(&config, options.backlog, Tcp::of(core).secrets);
        protocol.set_fast_open(Tcp::of(core).fast_open.serving(&options));
        protocol.set_defer_accept(options.defer_accept);
        let offer = CookieOffer {
            window: config.syn_window(),
            window_scale: config.window_scaling.then(|| config.window_scale()),
            timestamps: config.timestamps,
            sack: config.sack,
            ecn: config.ecn != tcp::Ecn::Off,
        };
        let inner = core.timers.add(|timer| {
            Arc::new(ListenerInner {
                timer,
                id,
                offer,
                local,
                both,
                shares: options.reuse_port,
                backlog: options.backlog as usize,
                state: Mutex::new(State {
                    protocol,
                    options,
                    channel: Some(set),
                    armed: Duration::MAX,
                    origin: Origin::default(),
                    established: 0,
                    opened,
                }),
                accepted: Mutex::default(),
                waiting: AtomicUsize::new(0),
                cookies: Mutex::new(CookieMode::Off),
                wait_queue: WaitQueue::default(),
                acceptor_until: AtomicU64::new(0),
                kernel,
                kernel_input: KernelInput::default(),
                opened: AtomicU32::new(0),
                reset: AtomicU32::new(0),
                shut: AtomicBool::new(false),
                again: AtomicBool::new(false),
                adopted: AtomicBool::new(false),
                given_back: AtomicBool::new(false),
                for_good: AtomicBool::new(false),
            })
        });
        core.channels.set_endpoint(id.index(), Some(inner.clone()));
        Tcp::of(core).add_listener(&inner);
        let mut listener = TcpListener {
            inner,
            #[cfg(feature = "mio")]
            event_loop: Default::default(),
            stack: stack.clone(),
            nonblocking: AtomicBool::new(false),
            begun: false,
            own_accepts: AtomicU64::new(0),
        };
        // From here on dropping `listener` undoes the steps, and takes the lock itself.
        entered.keep();
        let listens = listener.inner.listen(core);
        drop(binding);
        listens?;
        listener.begun = true;
        Ok(listener)
    }

    /// Accepts a connection. Returns it and its peer's address.
    ///
    /// # Errors
    /// EAGAIN when nonblocking and no connection waits, EINTR, EINVAL once it is shut
    /// down, and the kernel socket's errors (EMFILE).
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let core = self.stack.here()?;
        let inner = &self.inner;
        core.helper.application_is_here();
        inner.acceptor_until.store(u64::MAX, Ordering::Relaxed);
        let result = self.accept_next(core);
        let until = (core.now() + ACCEPTOR_TIMEOUT).as_nanos() as u64;
        inner.acceptor_until.store(until, Ordering::Relaxed);
        result
    }

    fn accept_next(&self, core: &Core) -> io::Result<(TcpStream, SocketAddr)> {
        let inner = &self.inner;
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        let mut polled = false;
        loop {
            if inner.refuses() {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let ask = self.own_accepts.load(Ordering::Relaxed) >= ASK_KERNEL_AFTER;
            if ask || inner.kernel_input.is_noted() {
                self.own_accepts.store(0, Ordering::Relaxed);
                if let Some(found) = self.accept_from_kernel()? {
                    return Ok(found);
                }
            }
            if let Some(found) = self.accept_own() {
                self.own_accepts.fetch_add(1, Ordering::Relaxed);
                return Ok(found);
            }
            if inner.process_and_take(core) > 0 {
                continue;
            }
            if !inner.has_kernel_part() {
                core.netdev.check()?;
            }
            if nonblocking {
                // A selector polls, and queries the kernel.
                if !polled && !inner.wait_queue.is_polled() {
                    polled = true;
                    core.receiver.round(core, false)?;
                    core.before_sleep(core.now());
                    if let Some(found) = self.accept_from_kernel()? {
                        return Ok(found);
                    }
                    continue;
                }
                // The selector may not be about to query the kernel, so this call counts.
                self.own_accepts.fetch_add(1, Ordering::Relaxed);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            core.receiver.sleep(core, &[&**inner], None)?;
        }
    }

    fn accept_own(&self) -> Option<(TcpStream, SocketAddr)> {
        let core = self.stack.core();
        let connection = self.inner.pop()?;
        // There is room again: frames in the channel may proceed.
        let stream = TcpStream::own(connection, self.stack.clone(), self.inner.local.is_ipv6());
        let peer = stream.peer_address();
        Tcp::of(core).counters.accepted(false);
        if self.inner.has_unprocessed_frames() {
            self.inner.process(core);
        }
        // The rest is for another thread: if all arrived at once, only one was woken.
        if self.inner.waiting.load(Ordering::SeqCst) > 0 {
            self.inner.wait_queue.threads().wake_one();
        }
        Some((stream, peer))
    }

    fn accept_from_kernel(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let Some(kernel) = &self.inner.kernel else {
            return Ok(None);
        };
        // An adopted socket may be blocking, for the processes that share it.
        if self.inner.is_adopted() && ready_now(kernel.as_raw_fd(), libc::POLLIN) == 0 {
            self.inner.kernel_is_empty();
            return Ok(None);
        }
        match kernel.accept() {
            Ok((stream, _)) if lock(&self.inner.state).options.stream.framing.is_acp() => {
                // The peer is reset. There may be others: the noted input stays noted.
                let lingers = set_socket_linger(&stream, Some(Duration::ZERO));
                self.stack.core().causes.protocol(DropReason::TcpNotAcp);
                lingers.map_err(io::Error::from)?;
                Ok(None)
            }
            Ok((stream, peer)) => {
                let stream = KernelStream::new(stream);
                Tcp::of(self.stack.core()).counters.accepted(true);
                Ok(Some((TcpStream::kernel(stream, self.stack.clone()), peer)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.inner.kernel_is_empty();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Stops listening: connections that were not accepted are reset, and accepting gives
    /// EINVAL. It keeps the address until it is dropped. As by Linux, shutting the
    /// writing half alone changes nothing.
    ///
    /// # Errors
    /// ENOTCONN when it has been shut down before; the kernel's errors.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stack.here()?;
        if self.inner.refuses() {
            return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        }
        if how == Shutdown::Write {
            return Ok(());
        }
        let is_first = !self.inner.shut.swap(true, Ordering::SeqCst);
        let again = self.inner.again.swap(false, Ordering::SeqCst);
        if is_first {
            self.stop_listening();
        }
        if is_first || again {
            self.inner.wait_queue.notify(Events::STATE_CHANGED);
            if let Some(kernel) = &self.inner.kernel {
                rustix::net::shutdown(kernel.as_fd(), rustix::net::Shutdown::Read)?;
            }
        }
        Ok(())
    }

    /// `listen(2)` for a listener. After [`TcpListener::shutdown`] it accepts again, by its
    /// kernel socket alone; otherwise only that socket's backlog changes.
    ///
    /// # Errors
    /// EOPNOTSUPP after a shutdown without a kernel socket; the kernel's errors.
    pub fn listen_again(&self, backlog: i32) -> io::Result<()> {
        self.stack.here()?;
        let Some(kernel) = &self.inner.kernel else {
            return match self.inner.is_shut() {
                true => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
                false => Ok(()),
            };
        };
        rustix::net::listen(kernel.as_fd(), backlog)?;
        if self.inner.is_shut() && !self.inner.again.swap(true, Ordering::SeqCst) {
            // Its queued connections arrived before anything watched it.
            self.inner.kernel_input.note();
            self.inner.wait_queue.notify(Events::STATE_CHANGED);
        }
        Ok(())
    }

    fn stop_listening(&self) {
        let core = self.stack.core();
        // Peers whose last acknowledgment was not processed are connected, and are reset,
        // too.
        let _ = core.receiver.round(core, false);
        self.inner.process(core);
        self.inner.bequeath(core);
        core.timers.remove(self.inner.timer);
        let (set, half_open) = self.inner.close();
        for flow in half_open {
            core.tables
                .disconnect(Protocol::Tcp, flow.local, flow.remote);
        }
        // Their peers get a reset, as from Linux.
        while let Some(connection) = self.inner.pop() {
            connection.close(core, Some(Duration::ZERO));
        }
        core.flush();
        if let Some(set) = set {
            let _binding = lock(&core.binding);
            core.channels.set_endpoint(set.id.index(), None);
            core.channels.close(&core.receiver.queues, set);
        }
        Tcp::of(core)
            .ports
            .leave(&core.netdev.owner, self.inner.local.port());
    }

    /// Changes the initial options of connections accepted from now on, and Fast Open.
    /// The backlog and the binding stay.
    ///
    /// # Errors
    /// EINVAL for an option out of range.
    pub fn set_options(&self, options: &ListenOptions) -> io::Result<()> {
        options.stream.check().map_err(error)?;
        let core = self.stack.here()?;
        let old = std::mem::replace(&mut lock(&self.inner.state).options, *options);
        if old.defer_accept != options.defer_accept
            && let Some(kernel) = &self.inner.kernel
        {
            defer_accept(kernel.as_fd(), options.defer_accept)?;
        }
        self.inner.refresh(core);
        Ok(())
    }

    /// Returns the number of connections that wait to be accepted.
    pub fn waiting(&self) -> usize {
        self.inner.waiting.load(Ordering::Relaxed)
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.inner.local)
    }

    /// Makes accepting return EAGAIN when it would block. An adopted socket has the flag
    /// too, for the processes that share it.
    ///
    /// # Errors
    /// The kernel's errors for such a socket.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        match &self.inner.kernel {
            Some(kernel) if self.inner.is_adopted() => {
                Ok(ioctl_fionbio(kernel.as_fd(), nonblocking)?)
            }
            _ => Ok(()),
        }
    }

    /// Reports whether accepting returns EAGAIN when it would block.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Takes the pending error of the kernel socket, if any (SO_ERROR).
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.inner
            .kernel
            .as_ref()
            .map_or(Ok(None), |kernel| kernel.take_error())
    }

    /// Accepts connections one after the other, forever.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::from_fn(|| Some(self.accept().map(|(stream, _)| stream)))
    }
}

/// A use of a port, which ends when this is dropped, unless it is kept.
struct Entered<'a> {
    core: &'a Core,
    port: Option<u16>,
}

impl<'a> Entered<'a> {
    fn new(
        core: &'a Core,
        key: Option<IpAddr>,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
        patience: Patience,
    ) -> io::Result<Self> {
        let ports = &Tcp::of(core).ports;
        ports.enter(&core.netdev.owner, key, port, None, holder, patience)?;
        let port = Some(port);
        Ok(Entered { core, port })
    }

    /// Passes the use on: dropping this does not end it.
    fn keep(mut self) {
        self.port = None;
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(port) = self.port {
            Tcp::of(self.core)
                .ports
                .leave(&self.core.netdev.owner, port);
        }
    }
}

impl Handle for TcpListener {
    type Shared = ListenerInner;

    fn stack(&self) -> &StackHandle {
        &self.stack
    }

    fn shared(&self) -> &Arc<ListenerInner> {
        &self.inner
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let Ok(core) = self.stack.here() else { return };
        self.inner.wait_queue.close();
        Tcp::of(core).remove_listener(&self.inner);
        if !self.inner.shut.swap(true, Ordering::SeqCst) {
            self.stop_listening();
        }
        if let Some(kernel) = &self.inner.kernel
            && self.begun
        {
            let shared = self.inner.is_adopted() && forked::is_shared();
            core.netdev.owner.close_listener(kernel.as_fd(), shared);
        }
    }
}

impl ListenerInner {
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the binding as a key of the driver's tables.
    fn key(&self) -> Option<IpAddr> {
        (!self.both).then_some(self.local.ip().to_canonical())
    }

    /// Makes the driver deliver segments that begin connections to its address here, and no
    /// longer to others that have the address.
    fn listen(&self, core: &Core) -> io::Result<()> {
        core.tables
            .listen_tcp(self.key(), self.local.port(), self.id, &self.offer)
    }

    /// Returns true when it accepts connections to a local address.
    pub(crate) fn takes(&self, address: IpAddr) -> bool {
        match specified(self.local) {
            Some(own) => own == address,
            None => self.both || self.local.is_ipv4() == address.is_ipv4(),
        }
    }

    /// Returns the connections that wait to be accepted, the half-open ones, and whether
    /// the driver answers with cookies.
    pub(crate) fn counts(&self) -> (usize, usize, bool) {
        let state = lock(&self.state);
        (
            self.waiting.load(Ordering::Relaxed),
            state.protocol.half_open_len(),
            *lock(&self.cookies) == CookieMode::Answer,
        )
    }

    /// Returns the number of its channel, while it is open.
    pub(crate) fn channel(&self) -> Option<u16> {
        let state = lock(&self.state);
        state.channel.as_ref().map(|set| set.id.index())
    }

    /// Returns true when accepting would not block, as far as is known.
    fn may_accept(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 || self.kernel_input.is_noted() || self.refuses()
    }

    /// Returns true while the kernel has connections.
    fn kernel_has_connections(&self) -> bool {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.is_there(descriptor, &self.wait_queue)
    }

    /// Records that the kernel had none.
    fn kernel_is_empty(&self) {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.forget(descriptor, &self.wait_queue);
    }

    /// Returns true once it is shut down ([`TcpListener::shutdown`]).
    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// Returns true if a kernel socket listens, too.
    pub(crate) fn has_kernel_part(&self) -> bool {
        self.kernel.is_some()
    }

    /// Returns true while accepting is EINVAL: neither it nor its kernel socket is
    /// listening.
    fn refuses(&self) -> bool {
        self.is_shut() && !self.again.load(Ordering::SeqCst)
    }

    /// Wakes and notifies all waiters: it has failed.
    pub(crate) fn notify_failure(&self) {
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Reports whether a thread is expected to accept. If not, the driver does not answer
    /// a flood: LRP's rule for a socket whose owner does not keep up. Frames that fit the
    /// channel are still answered, at the helper's pace.
    fn has_acceptor(&self, core: &Core) -> bool {
        let sharers = Tcp::of(core).sharers(self);
        self.is_accepted_from(core) || sharers.iter().any(|it| it.is_accepted_from(core))
    }

    fn is_accepted_from(&self, core: &Core) -> bool {
        let until = self.acceptor_until.load(Ordering::Relaxed);
        self.wait_queue.is_polled() || u128::from(until) > core.now().as_nanos()
    }

    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) >= self.backlog
    }

    /// Queues a connection to be accepted.
    fn push(&self, connection: Arc<ConnectionInner>) {
        self.enter(&mut lock(&self.accepted), connection);
    }

    fn enter(
        &self,
        accepted: &mut VecDeque<Arc<ConnectionInner>>,
        connection: Arc<ConnectionInner>,
    ) {
        accepted.push_back(connection);
        self.waiting.store(accepted.len(), Ordering::SeqCst);
    }

    /// Wakes a thread that may accept.
    fn announce(&self, wakes: bool) {
        if wakes {
            self.wait_queue.threads().wake_one();
        }
        self.wait_queue.notify_registrations(Events::DATA_CAME);
    }

    fn pop(&self) -> Option<Arc<ConnectionInner>> {
        let mut accepted = lock(&self.accepted);
        let connection = accepted.pop_front();
        self.waiting.store(accepted.len(), Ordering::SeqCst);
        connection
    }
}

/// Shows an IPv4 address as a dual-stack socket does.
pub(crate) fn as_bound(address: SocketAddr, v6: bool) -> SocketAddr {
    if v6 { to_v6(address) } else { address }
}

/// Returns the time until a deadline; `None` if it has passed.
pub(crate) fn left(deadline: Instant) -> Option<Duration> {
    deadline
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
}
