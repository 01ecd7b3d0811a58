//! The state that a UDP socket shares with the stack: its channels and the datagrams that
//! wait outside them.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use tidewall_device::demux::ChannelId;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_readiness::Events;
use tidewall_readiness::kernel_input::KernelInput;
use tidewall_readiness::registration::Pollable;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_receive::poller::Channel;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::{Waitable, Waker};

use super::BindOptions;
use super::mtu::{ErrorLook, MtuDiscover};
use super::receive::Owned;
use crate::udp::reservation::PortReservation;

/// Datagrams that may wait outside the channels without credit (reassembled ones and those that
/// the kernel delivered). The limits of their producers bound the count, too.
const OUTSIDE_LIMIT: usize = 256;

/// Address families whose datagrams a socket accepts.
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

pub(super) struct Waiting {
    /// One per queue; empty once the socket is closed.
    pub(super) channels: Vec<Channel>,
    pub(super) outside: VecDeque<Owned>,
}

/// The state that a UDP socket shares with its stack.
pub struct SocketInner {
    id: ChannelId,
    pub(crate) wait_queue: WaitQueue,
    pub(super) reservation: Option<PortReservation>,
    pub(super) ends: Mutex<Ends, rank::Leaf>,
    pub(super) waiting: Mutex<Waiting, rank::UdpReceive>,
    kernel_input: KernelInput,
    /// An already received datagram (MSG_PEEK) waits outside the channels, ahead of any
    /// from the kernel.
    pub(super) peeked: AtomicBool,
    /// Halves that are closed.
    shut: AtomicU8,
    pub(super) pending_error: AtomicI32,
    pub(super) options: SocketOptions,
    pub(super) error_look: ErrorLook,
    families: Families,
    /// SO_REUSEADDR or SO_REUSEPORT, if no kernel socket has it.
    pub(super) shares_port: bool,
    pub(super) last_queue: AtomicUsize,
    pub(super) counts: ReceiveCounts,
}

/// Options that the application has set.
pub(super) struct SocketOptions {
    pub(super) priority: AtomicU8,
    pub(super) traffic_class: AtomicU8,
    pub(super) hop_limit: AtomicU8,
    pub(super) mtu_discover: AtomicU8,
    /// Frames that may wait, per queue.
    pub(super) limit: AtomicU32,
}

/// Datagrams received, and how many of them arrived through the kernel.
#[derive(Default)]
pub(super) struct ReceiveCounts {
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

impl SocketInner {
    pub(super) fn new(
        id: ChannelId,
        reservation: Option<PortReservation>,
        local: SocketAddr,
        channels: Vec<Channel>,
        limit: u32,
        how: &BindOptions,
    ) -> Self {
        SocketInner {
            id,
            wait_queue: WaitQueue::default(),
            reservation,
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
            peeked: AtomicBool::new(false),
            shut: AtomicU8::new(0),
            pending_error: AtomicI32::new(0),
            options: SocketOptions {
                priority: AtomicU8::new(0),
                traffic_class: AtomicU8::new(0),
                hop_limit: AtomicU8::new(64),
                mtu_discover: AtomicU8::new(MtuDiscover::default() as u8),
                limit: AtomicU32::new(limit),
            },
            error_look: ErrorLook::default(),
            families: Families::of(local, how),
            shares_port: how.reuse_address || how.reuse_port,
            last_queue: AtomicUsize::new(0),
            counts: ReceiveCounts::default(),
        }
    }

    pub(crate) fn id(&self) -> ChannelId {
        self.id
    }

    pub(crate) fn ends(&self) -> Ends {
        *lock(&self.ends)
    }

    /// Returns the families whose datagrams it accepts when bound to any address.
    pub(super) fn families(&self) -> Families {
        self.families
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.ends().peer
    }

    /// Returns true if a kernel socket has the port, too.
    pub(crate) fn has_kernel_part(&self) -> bool {
        self.reservation.is_some()
    }

    /// Returns the datagrams received, and how many of them arrived through the kernel.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.counts.received.load(Ordering::Relaxed),
            self.counts.through_kernel.load(Ordering::Relaxed),
        )
    }

    /// Returns the most frames that may wait, per queue.
    pub(crate) fn limit(&self) -> u32 {
        self.options.limit.load(Ordering::Relaxed)
    }

    /// Returns true when a receive call would not block.
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

    /// Fails the next call that receives or sends.
    pub(crate) fn fail(&self, errno: i32) {
        self.pending_error.store(errno, Ordering::Relaxed);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Closes a half, and wakes all waiters.
    pub(super) fn shut(&self, how: Shutdown) {
        self.shut.fetch_or(halves(how), Ordering::SeqCst);
        self.wait_queue.notify(Events::STATE_CHANGED);
    }

    /// Returns true when a half is closed; for both, when either is.
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

    /// Reports whether this socket would receive such a datagram.
    pub(crate) fn wants(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let ends = self.ends();
        let address = ends.bound.ip().to_canonical();
        let of_family = self.families() == Families::Both
            || address.is_ipv4() == destination.ip().to_canonical().is_ipv4();
        ends.local.port() == destination.port()
            && (address.is_unspecified() && of_family || address == destination.ip())
            && ends.peer.is_none_or(|peer| same(peer, source))
    }

    pub(crate) fn push_kernel_delivered(&self, kernel_delivered: KernelDelivered, payload: &[u8]) {
        let owned = Owned::kernel_delivered(kernel_delivered, payload);
        lock(&self.waiting).outside.push_back(owned);
        self.notify_input();
    }

    /// Returns true while the kernel has datagrams.
    fn kernel_has_datagrams(&self) -> bool {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.is_there(descriptor, &self.wait_queue)
    }

    /// Records that the kernel had no datagrams.
    pub(super) fn kernel_is_empty(&self) {
        let descriptor = self.kernel_descriptor();
        self.kernel_input.forget(descriptor, &self.wait_queue);
    }

    /// Called when input arrived: wakes one receiver, and notifies the watchers.
    fn notify_input(&self) {
        self.wait_queue.notify_one(Events::DATA_CAME);
    }

    /// Called when send space was freed: notifies EPOLLOUT watchers.
    pub(super) fn note_sent(&self) {
        self.wait_queue.notify_registrations(Events::SPACE_CAME);
    }

    /// Called when a receiver has finished: wakes another for the rest. If all arrived at
    /// once, only one was woken.
    pub(super) fn pass_wakeup(&self) {
        if !self.wait_queue.threads().is_empty() && self.has_input() {
            self.wait_queue.threads().wake_one();
        }
    }

    /// Returns true when poll(2) has reported input on the kernel socket.
    pub(super) fn kernel_is_ready(&self) -> bool {
        self.kernel_input.is_noted()
    }

    /// Removes the channels, to close them; returns the credit of datagrams that wait
    /// outside them.
    pub(super) fn close(&self, core: &Core) -> Vec<Channel> {
        let mut waiting = lock(&self.waiting);
        for datagram in waiting.outside.drain(..) {
            if let Some(queue) = datagram
                .credit
                .and_then(|queue| core.receiver.queues.get(queue))
            {
                queue.shared.give_credit(self.id, 1);
            }
        }
        std::mem::take(&mut waiting.channels)
    }
}

/// Converts halves into bits: reading, writing.
fn halves(how: Shutdown) -> u8 {
    match how {
        Shutdown::Read => 1,
        Shutdown::Write => 2,
        Shutdown::Both => 3,
    }
}

/// Compares addresses as on the wire: IPv4-mapped is IPv4.
pub(super) fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

/// A blocked receiver; exclusive, because the datagram that wakes it is consumed.
pub(super) struct Receiving<'a>(pub(super) &'a SocketInner);

impl Waitable for Receiving<'_> {
    fn enter(&self, waker: &Arc<Waker>) {
        self.0.wait_queue.enter(waker, true);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.0.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.0.has_input()
    }

    fn kernel_descriptor(&self) -> i32 {
        Waitable::kernel_descriptor(self.0)
    }

    fn kernel_has_input(&self) {
        Waitable::kernel_has_input(self.0);
    }
}

impl Endpoint for SocketInner {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        // An ICMP error is no datagram: a waiter for readiness receives it as an error.
        if self.peer().is_some() && self.begins_with_error() {
            self.copy_waiting(core);
            return self.wait_queue.notify(Events::STATE_CHANGED);
        }
        self.notify_input();
    }

    fn on_reassembled(&self, core: &Core, id: ChannelId, datagram: Reassembled) {
        if self.id != id {
            return core.causes.no_socket();
        }
        let Some(owned) = self.reassembled(core, &datagram) else {
            return;
        };
        {
            let mut waiting = lock(&self.waiting);
            if waiting.outside.len() >= OUTSIDE_LIMIT {
                return core.causes.socket_full();
            }
            waiting.outside.push_back(owned);
        }
        self.notify_input();
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        self.copy_waiting(core);
    }

    fn priority(&self) -> u8 {
        self.options.priority.load(Ordering::Relaxed)
    }
}

impl Pollable for SocketInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    // Sending waits for a frame at worst.
    fn events(&self) -> Events {
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

    fn kernel_has_input(&self) {
        self.kernel_input.note();
    }
}

impl Waitable for SocketInner {
    fn enter(&self, waker: &Arc<Waker>) {
        self.wait_queue.enter(waker, false);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.has_input()
    }

    fn kernel_descriptor(&self) -> i32 {
        // poll(2) ignores a negative descriptor.
        self.reservation
            .as_ref()
            .map_or(-1, PortReservation::descriptor)
    }

    fn kernel_has_input(&self) {
        self.kernel_input.note();
    }
}
