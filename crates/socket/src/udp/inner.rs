//! What a UDP socket shares with the stack: its channels and what waits
//! outside them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::{Kind, METADATA_LENGTH, Metadata};
use tidewall_device::frame::Frame;
use tidewall_device::queue::Stray;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::udp::{self, Datagram};
use tidewall_protocol::{Drop as Cause, InputOptions, icmp, tcp};
use tidewall_receive::poller::{Channel, Done, Shared};

use super::{BindOptions, Received};
use crate::kernel::{Holder, KernelInput};
use crate::readiness::Events;
use crate::readiness::watch::Watch;
use crate::snapshot::Causes;
use crate::stack::{Core, lock};
use crate::wait::{WaitList, Waitable};

/// Datagrams that may wait outside the channels without credit (reassembled
/// ones and strays); their count is bounded by their makers' limits too.
const OUTSIDE_LIMIT: usize = 256;

/// A datagram in a buffer of its own size.
#[derive(Debug)]
pub(crate) struct Owned {
    payload: Box<[u8]>,
    source: SocketAddr,
    destination: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    /// Queue whose credit it still holds.
    credit: Option<usize>,
}

impl Owned {
    pub(crate) fn new(bytes: &[u8], found: &Datagram, credit: Option<usize>) -> Self {
        Owned {
            payload: bytes.get(found.payload.clone()).unwrap_or_default().into(),
            source: found.source,
            destination: found.destination,
            traffic_class: found.traffic_class,
            hop_limit: found.hop_limit,
            credit,
        }
    }

    fn copy(received: &Received<'_>, credit: Option<usize>) -> Self {
        Owned {
            payload: received.payload.into(),
            source: received.source,
            destination: received.destination,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            credit,
        }
    }

    fn borrow(&self) -> Received<'_> {
        Received {
            payload: &self.payload,
            source: self.source,
            destination: self.destination,
            local: self.destination.ip(),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
        }
    }
}

/// Address families whose datagrams a socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    pub(super) fn of(bound: SocketAddr, how: &BindOptions) -> Self {
        match bound.ip().to_canonical() {
            IpAddr::V4(_) => Families::V4,
            IpAddr::V6(address) if address.is_unspecified() && !how.only_v6 => Families::Both,
            IpAddr::V6(_) => Families::V6,
        }
    }
}

/// What the protocol made of a frame.
enum Outcome<'a> {
    /// A datagram in the frame.
    Borrowed(Received<'a>),
    /// A datagram whose last fragment this was.
    Owned(Owned),
    /// Nothing for the application: dropped and counted, or kept.
    Nothing,
}

struct Waiting {
    /// One a queue; empty once the socket is closed.
    channels: Vec<Channel>,
    outside: VecDeque<Owned>,
}

pub(crate) struct SocketInner {
    id: ChannelId,
    pub(crate) waiters: WaitList,
    pub(crate) watch: Watch,
    pub(super) holder: Option<Holder>,
    pub(super) ends: Mutex<Ends>,
    waiting: Mutex<Waiting>,
    kernel_input: KernelInput,
    /// Halves that are closed.
    shut: AtomicU8,
    pending_error: AtomicI32,
    pub(super) priority: AtomicU8,
    pub(super) traffic_class: AtomicU8,
    pub(super) hop_limit: AtomicU8,
    pub(super) limit: AtomicU32,
    families: Families,
    /// SO_REUSEADDR or SO_REUSEPORT, where no kernel socket knows it.
    pub(super) shares_port: bool,
    pub(super) last_queue: AtomicUsize,
    pub(super) received: AtomicU64,
    pub(super) through_kernel: AtomicU64,
}

/// Addresses of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) bound: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) peer: Option<SocketAddr>,
}

thread_local! {
    /// Frames between removal and processing; kept so that a batch allocates
    /// nothing. A thread that is ending has lost it, and allocates.
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    /// Where a kernel datagram is read.
    static KERNEL: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl SocketInner {
    pub(super) fn new(
        id: ChannelId,
        holder: Option<Holder>,
        local: SocketAddr,
        channels: Vec<Channel>,
        limit: u32,
        how: &BindOptions,
    ) -> Self {
        SocketInner {
            id,
            waiters: WaitList::default(),
            watch: Watch::default(),
            holder,
            ends: Mutex::new(Ends {
                bound: local,
                local,
                peer: None,
            }),
            waiting: Mutex::new(Waiting {
                channels,
                outside: VecDeque::new(),
            }),
            kernel_input: KernelInput::default(),
            shut: AtomicU8::new(0),
            pending_error: AtomicI32::new(0),
            priority: AtomicU8::new(0),
            traffic_class: AtomicU8::new(0),
            hop_limit: AtomicU8::new(64),
            limit: AtomicU32::new(limit),
            families: Families::of(local, how),
            shares_port: how.reuse_address || how.reuse_port,
            last_queue: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            through_kernel: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.id
    }

    pub(crate) fn ends(&self) -> Ends {
        *lock(&self.ends)
    }

    /// Families whose datagrams it takes when bound to any address.
    pub(super) fn families(&self) -> Families {
        self.families
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.ends().peer
    }

    pub(crate) fn priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Datagrams received, and how many of them came through the kernel.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.received.load(Ordering::Relaxed),
            self.through_kernel.load(Ordering::Relaxed),
        )
    }

    /// Most frames that may wait, a queue.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// True when a receive call would not wait.
    pub(crate) fn has_input(&self) -> bool {
        self.pending_error.load(Ordering::Relaxed) != 0
            || self.has_datagrams()
            || self.is_shut(Shutdown::Read)
    }

    fn has_datagrams(&self) -> bool {
        self.kernel_is_ready() || self.has_own_datagrams()
    }

    fn has_own_datagrams(&self) -> bool {
        let waiting = lock(&self.waiting);
        !waiting.outside.is_empty()
            || waiting
                .channels
                .iter()
                .any(|channel| !channel.looks_empty())
    }

    /// Has an error for whoever receives or sends next.
    pub(crate) fn fail(&self, errno: i32) {
        self.pending_error.store(errno, Ordering::Relaxed);
        self.waiters.wake_all();
        self.watch.notify(Events::STATE_CHANGED);
    }

    /// Closes a half, and tells everybody.
    pub(super) fn shut(&self, how: Shutdown) {
        self.shut.fetch_or(halves(how), Ordering::SeqCst);
        self.waiters.wake_all();
        self.watch.notify(Events::STATE_CHANGED);
    }

    /// True when that is closed, of both something.
    pub(super) fn is_shut(&self, how: Shutdown) -> bool {
        self.shut.load(Ordering::SeqCst) & halves(how) != 0
    }

    pub(super) fn take_error(&self) -> Option<io::Error> {
        if self.pending_error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.pending_error.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Would this socket receive such a datagram?
    pub(crate) fn wants(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let ends = self.ends();
        let address = ends.bound.ip().to_canonical();
        ends.local.port() == destination.port()
            && (address.is_unspecified() || address == destination.ip())
            && ends.peer.is_none_or(|peer| same(peer, source))
    }

    pub(crate) fn push_stray(&self, stray: Stray, payload: &[u8]) {
        let owned = Owned {
            payload: payload.into(),
            source: stray.source,
            destination: stray.destination,
            traffic_class: 0,
            hop_limit: 0,
            credit: None,
        };
        lock(&self.waiting).outside.push_back(owned);
        self.has_frames();
    }

    pub(crate) fn push_reassembled(&self, owned: Owned, causes: &Causes) {
        {
            let mut waiting = lock(&self.waiting);
            if waiting.outside.len() >= OUTSIDE_LIMIT {
                causes.socket_full();
                return;
            }
            waiting.outside.push_back(owned);
        }
        self.has_frames();
    }

    /// What it is ready for now: sending waits for a frame at worst.
    pub(crate) fn events(&self) -> Events {
        let failed = self.pending_error.load(Ordering::Relaxed) != 0;
        let events = Events::WRITABLE | Events::WRBAND;
        let events = events.with_if(Events::ERR, failed);
        let ended = self.is_shut(Shutdown::Read);
        let both = ended && self.is_shut(Shutdown::Write);
        let readable = ended || self.has_own_datagrams() || self.kernel_has_datagrams();
        events
            .with_if(Events::READABLE, readable)
            .with_if(Events::RDHUP, ended)
            .with_if(Events::HUP, both)
    }

    /// True while the kernel has datagrams.
    fn kernel_has_datagrams(&self) -> bool {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.is_there(descriptor, &self.watch)
    }

    /// The kernel had none.
    fn kernel_is_empty(&self) {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.forget(descriptor, &self.watch);
    }

    /// Something came: of those who receive one is woken, and whoever watches it.
    pub(crate) fn has_frames(&self) {
        self.waiters.wake_next();
        self.watch.notify(Events::DATA_CAME);
    }

    /// What was sent has left: on Linux the space that it took is back, which whoever
    /// asks for changes is told.
    pub(super) fn note_sent(&self) {
        self.watch.notify(Events::SPACE_CAME);
    }

    /// A receiver has what it wanted: what is left is another's, who was woken
    /// for none of it if it all came at once.
    pub(super) fn hand_on(&self) {
        if !self.waiters.is_empty() && self.has_input() {
            self.waiters.wake_next();
        }
    }

    /// Moves everything that waits in frames into buffers of its own size.
    /// Leaves a socket alone that is being received from: it is not slow.
    pub(crate) fn copy_out(&self, core: &Core) {
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut others = Vec::new();
        let Waiting { channels, outside } = &mut *waiting;
        for (queue, channel) in channels.iter_mut().enumerate() {
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let mut kept = 0;
            while let Some(frame) = channel.remove() {
                match self.process(core, &shared, &frame, &mut others) {
                    Outcome::Borrowed(received) => {
                        outside.push_back(Owned::copy(&received, Some(queue)));
                        kept += 1;
                    }
                    Outcome::Owned(owned) => {
                        outside.push_back(Owned {
                            credit: Some(queue),
                            ..owned
                        });
                        kept += 1;
                    }
                    Outcome::Nothing => {}
                }
                done.add(&shared, frame);
            }
            shared.give_back(self.id, done);
            // Those datagrams wait still, so they keep their credit.
            shared.give_credit(self.id, 0u32.wrapping_sub(kept));
            core.causes.copied_out(u64::from(kept));
        }
        // They may be ours.
        drop(waiting);
        core.hand_out(others);
    }

    /// Gives up to `limit` datagrams that wait in user space to `each`. Returns
    /// how many.
    pub(super) fn drain(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let mut given = self.drain_outside(core, limit, each);
        for queue in 0..core.queue_count() {
            while given < limit {
                let (taken, delivered) = self.drain_channel(core, queue, limit - given, each);
                given += delivered;
                if taken == 0 {
                    break;
                }
            }
        }
        if given > 0 {
            self.received.fetch_add(given as u64, Ordering::Relaxed);
        }
        given
    }

    fn drain_outside(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let owned: Vec<Owned> = {
            let mut waiting = lock(&self.waiting);
            if waiting.outside.is_empty() {
                return 0;
            }
            let count = waiting.outside.len().min(limit);
            waiting.outside.drain(..count).collect()
        };
        for datagram in &owned {
            each(datagram.borrow());
            if let Some(queue) = datagram.credit.and_then(|queue| core.queues.get(queue)) {
                queue.shared.give_credit(self.id, 1);
            }
        }
        owned.len()
    }

    /// Returns frames taken and datagrams delivered.
    fn drain_channel(
        &self,
        core: &Core,
        queue: usize,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> (usize, usize) {
        // `each` may call us again, so the scratch space is taken, not borrowed.
        let mut frames = FRAMES.try_with(RefCell::take).unwrap_or_default();
        {
            let mut waiting = lock(&self.waiting);
            if let Some(channel) = waiting.channels.get_mut(queue) {
                while frames.len() < limit
                    && let Some(frame) = channel.remove()
                {
                    frames.push(frame);
                }
            }
        }
        let taken = frames.len();
        let mut delivered = 0;
        if let Some(handle) = core.queues.get(queue).filter(|_| taken > 0) {
            self.last_queue.store(queue, Ordering::Relaxed);
            let mut done = Done::default();
            let mut others = Vec::new();
            for frame in frames.drain(..) {
                match self.process(core, &handle.shared, &frame, &mut others) {
                    Outcome::Borrowed(received) => {
                        delivered += 1;
                        each(received);
                    }
                    Outcome::Owned(owned) => {
                        delivered += 1;
                        each(owned.borrow());
                    }
                    Outcome::Nothing => {}
                }
                done.add(&handle.shared, frame);
            }
            handle.shared.give_back(self.id, done);
            core.hand_out(others);
        }
        let _ = FRAMES.try_with(|place| place.replace(frames));
        (taken, delivered)
    }

    /// Runs the protocol on one frame of our channel. Datagrams that become
    /// whole by the way, perhaps another socket's, are added to `others`.
    #[inline]
    fn process<'a>(
        &self,
        core: &Core,
        shared: &'a Shared,
        frame: &'a Frame,
        others: &mut Vec<Reassembled>,
    ) -> Outcome<'a> {
        let metadata = Metadata::from_bytes(shared.memory().below(frame, METADATA_LENGTH));
        let packet = shared.memory().packet(frame);
        let range = usize::from(metadata.network)..usize::from(metadata.end);
        let transport = usize::from(metadata.transport.saturating_sub(metadata.network));
        let dropped = |cause: Cause| {
            core.trace
                .line(metadata.trace, "dropped", || cause.name().to_owned());
            core.causes.protocol(cause);
            Outcome::Nothing
        };
        let Some(bytes) = packet.get(range) else {
            return dropped(Cause::Truncated);
        };
        match metadata.kind() {
            Some(Kind::Datagram) => {
                let options = InputOptions {
                    verified: core.architecture.verifies_eagerly(),
                    ..core.input_options
                };
                let found = match udp::input(bytes, transport, &options) {
                    Ok(found) => found,
                    Err(cause) => return dropped(cause),
                };
                core.trace.line(metadata.trace, "delivered", || {
                    format!("{} bytes from {}", found.payload.len(), found.source)
                });
                Outcome::Borrowed(Received {
                    payload: bytes.get(found.payload.clone()).unwrap_or_default(),
                    source: found.source,
                    destination: found.destination,
                    local: found.destination.ip(),
                    traffic_class: found.traffic_class,
                    hop_limit: found.hop_limit,
                })
            }
            Some(Kind::FirstFragment) => {
                core.trace
                    .line(metadata.trace, "fragment", || "first fragment".to_owned());
                core.first_fragment(bytes, self.id, others)
                    .and_then(|datagram| core.whole(&datagram))
                    .map_or(Outcome::Nothing, Outcome::Owned)
            }
            Some(Kind::IcmpError) => match icmp::error(bytes, transport) {
                Ok(error) => {
                    let ours = self.peer().is_some_and(|peer| same(peer, error.remote));
                    core.trace.line(metadata.trace, "icmp-error", || {
                        format!("errno {}", error.errno)
                    });
                    core.causes.icmp_error();
                    if error.is_reported(ours, false) {
                        self.pending_error.store(error.errno, Ordering::Relaxed);
                    }
                    Outcome::Nothing
                }
                Err(cause) => dropped(cause),
            },
            Some(Kind::Fragment | Kind::Raw) | None => dropped(Cause::Protocol),
        }
    }

    /// Gives up to `limit` datagrams that wait in the kernel to `each`.
    pub(super) fn drain_kernel(
        &self,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let Some(holder) = &self.holder else {
            return Ok(0);
        };
        let mut buffer = KERNEL.try_with(RefCell::take).unwrap_or_default();
        buffer.resize(usize::from(u16::MAX), 0);
        let mut given = 0;
        let mut failed = None;
        while given < limit {
            match holder.receive(&mut buffer) {
                Ok(datagram) => {
                    let ends = self.ends();
                    let address = datagram.destination.unwrap_or(ends.local.ip());
                    let any = || unspecified(address.is_ipv6());
                    each(Received {
                        payload: buffer.get(..datagram.length).unwrap_or_default(),
                        source: datagram.source,
                        destination: SocketAddr::new(address, ends.local.port()),
                        local: datagram.local.unwrap_or_else(any),
                        traffic_class: datagram.traffic_class,
                        hop_limit: datagram.hop_limit,
                    });
                    given += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.kernel_is_empty();
                    break;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let _ = KERNEL.try_with(|place| place.replace(buffer));
        self.received.fetch_add(given as u64, Ordering::Relaxed);
        self.through_kernel
            .fetch_add(given as u64, Ordering::Relaxed);
        match failed {
            Some(error) if given == 0 => Err(error),
            _ => Ok(given),
        }
    }

    /// True when poll(2) has said that the kernel socket has input.
    pub(super) fn kernel_is_ready(&self) -> bool {
        self.kernel_input.is_noted()
    }

    /// Takes the channels out, to close them; gives credit of what waits
    /// outside them back.
    pub(super) fn close(&self, core: &Core) -> Vec<Channel> {
        let mut waiting = lock(&self.waiting);
        for datagram in waiting.outside.drain(..) {
            if let Some(queue) = datagram.credit.and_then(|queue| core.queues.get(queue)) {
                queue.shared.give_credit(self.id, 1);
            }
        }
        std::mem::take(&mut waiting.channels)
    }
}

/// The unspecified address of a family.
fn unspecified(v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Halves as bits: reading, writing.
fn halves(how: Shutdown) -> u8 {
    match how {
        Shutdown::Read => 1,
        Shutdown::Write => 2,
        Shutdown::Both => 3,
    }
}

/// Compares addresses as the wire does: IPv4-mapped is IPv4.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

/// Somebody who receives, and so takes what comes.
pub(super) struct Receiving<'a>(pub(super) &'a SocketInner);

impl Waitable for Receiving<'_> {
    fn waiters(&self) -> &WaitList {
        &self.0.waiters
    }

    fn has_input(&self) -> bool {
        self.0.has_input()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn kernel_descriptor(&self) -> i32 {
        Waitable::kernel_descriptor(self.0)
    }

    fn kernel_has_input(&self) {
        Waitable::kernel_has_input(self.0);
    }
}

impl Waitable for SocketInner {
    fn waiters(&self) -> &WaitList {
        &self.waiters
    }

    fn has_input(&self) -> bool {
        self.has_input()
    }

    fn kernel_descriptor(&self) -> i32 {
        // poll(2) leaves a negative descriptor alone.
        self.holder.as_ref().map_or(-1, Holder::descriptor)
    }

    fn kernel_has_input(&self) {
        self.kernel_input.note();
    }
}

impl Core {
    /// The protocol's checks alone, for the softirq of host architectures.
    pub(crate) fn verify(&self, shared: &Shared, frame: &Frame, metadata: &Metadata) -> bool {
        if metadata.kind() != Some(Kind::Datagram) {
            return true;
        }
        let packet = shared.memory().packet(frame);
        let bytes = packet.get(usize::from(metadata.network)..usize::from(metadata.end));
        let transport = usize::from(metadata.transport.saturating_sub(metadata.network));
        let bytes = bytes.unwrap_or_default();
        let checked = if metadata.protocol == libc::IPPROTO_TCP as u8 {
            tcp::input(bytes, transport, &self.input_options).map(drop)
        } else {
            udp::input(bytes, transport, &self.input_options).map(drop)
        };
        match checked {
            Ok(()) => true,
            Err(cause) => {
                self.causes.protocol(cause);
                false
            }
        }
    }
}
