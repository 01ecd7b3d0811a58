//! Receiving: from the frames of a UDP socket's channels, and the datagrams outside them,
//! to the application's closure.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use tidewall_device::demux::layout::Kind;
use tidewall_device::frame::Frame;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::udp::{self, Datagram};
use tidewall_protocol::{DropReason, icmp};
use tidewall_readiness::poll_context::readied;
use tidewall_receive::poller::{Done, Shared};
use tidewall_stack::channel_frame::ChannelFrame;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_stack::receiver::BETWEEN_LOOKS;
use tidewall_stack::threads::woken_higher;

use super::Received;
use super::inner::{SocketInner, Waiting};

/// A datagram in a buffer of its size.
#[derive(Debug)]
pub(crate) struct Owned {
    payload: Box<[u8]>,
    source: SocketAddr,
    destination: SocketAddr,
    local: IpAddr,
    interface: Option<u32>,
    traffic_class: u8,
    hop_limit: u8,
    /// The queue whose credit it still holds.
    pub(super) credit: Option<usize>,
}

impl Owned {
    fn new(bytes: &[u8], found: &Datagram, credit: Option<usize>) -> Self {
        Owned {
            payload: bytes.get(found.payload.clone()).unwrap_or_default().into(),
            source: found.source,
            destination: found.destination,
            local: found.destination.ip(),
            interface: None,
            traffic_class: found.traffic_class,
            hop_limit: found.hop_limit,
            credit,
        }
    }

    pub(super) fn kernel_delivered(kernel_delivered: KernelDelivered, payload: &[u8]) -> Self {
        Owned {
            payload: payload.into(),
            source: kernel_delivered.source,
            destination: kernel_delivered.destination,
            local: kernel_delivered.destination.ip(),
            interface: None,
            traffic_class: 0,
            hop_limit: 0,
            credit: None,
        }
    }

    pub(super) fn copy(received: &Received<'_>, credit: Option<usize>) -> Self {
        Owned {
            payload: received.payload.into(),
            source: received.source,
            destination: received.destination,
            local: received.local,
            interface: received.interface,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            credit,
        }
    }

    pub(super) fn borrow(&self) -> Received<'_> {
        Received {
            payload: &self.payload,
            source: self.source,
            destination: self.destination,
            local: self.local,
            interface: self.interface,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
        }
    }
}

/// The result of protocol processing of a frame.
enum Outcome<'a> {
    /// A datagram in the frame.
    Borrowed(Received<'a>),
    /// A datagram that this frame, its last fragment, completed.
    Owned(Owned),
    /// Nothing for the application: dropped and counted, or kept.
    Nothing,
}

thread_local! {
    /// Frames between removal and processing; kept so that a batch allocates nothing. A
    /// thread that is ending has lost it, and allocates.
    static FRAMES: RefCell<VecDeque<Frame>> = const { RefCell::new(VecDeque::new()) };
    /// The buffer into which a kernel datagram is read.
    static KERNEL: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl SocketInner {
    /// Returns true if a channel's contents begin with an ICMP error.
    pub(super) fn begins_with_error(&self) -> bool {
        let Some(mut waiting) = self.waiting.try_lock() else {
            return false;
        };
        waiting.channels.iter_mut().any(|channel| {
            let shared = channel.shared().clone();
            let kind = channel.look(|frame| ChannelFrame::new(&shared, frame).kind());
            kind == Some(Some(Kind::IcmpError))
        })
    }

    /// Moves everything that waits in frames into buffers of its size. Skips a socket
    /// that a thread is receiving from: it is not slow.
    pub(super) fn copy_waiting(&self, core: &Core) {
        let Some(mut waiting) = self.waiting.try_lock() else {
            return;
        };
        let mut others = Vec::new();
        let Waiting { channels, outside } = &mut *waiting;
        for (queue, channel) in channels.iter_mut().enumerate() {
            let shared = channel.shared().clone();
            let mut done = Done::default();
            let before = outside.len();
            let mut joined = Vec::new();
            while let Some(frame) = channel.remove() {
                let read = (&frame, &mut joined);
                outside.extend(self.copy(core, queue, &shared, read, &mut others));
                done.add(&shared, frame);
            }
            let kept = outside.len() - before;
            self.give_back(&shared, done, kept);
            core.causes.copied_out(kept as u64);
        }
        // They may belong to this socket.
        drop(waiting);
        core.ip.deliver(core, others);
    }

    /// Copies a frame's datagram into a buffer of its own, which keeps the frame's
    /// credit.
    fn copy(
        &self,
        core: &Core,
        queue: usize,
        shared: &Shared,
        read: (&Frame, &mut Vec<u8>),
        others: &mut Vec<Reassembled>,
    ) -> Option<Owned> {
        let credit = Some(queue);
        match self.process(core, shared, read, others) {
            Outcome::Borrowed(received) => Some(Owned::copy(&received, credit)),
            Outcome::Owned(owned) => Some(Owned { credit, ..owned }),
            Outcome::Nothing => None,
        }
    }

    /// Returns frames, and their credit except for that of `kept` datagrams.
    fn give_back(&self, shared: &Shared, done: Done, kept: usize) {
        shared.give_back(self.id(), done);
        if kept > 0 {
            shared.give_credit(self.id(), 0u32.wrapping_sub(kept as u32));
        }
    }

    /// Passes up to `limit` datagrams that wait in user space to `each`. Returns how
    /// many.
    pub(super) fn drain(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let mut given = self.drain_outside(core, limit, each);
        let mut step = BETWEEN_LOOKS;
        let woken = || (readied(), woken_higher());
        let before = woken();
        for queue in 0..core.receiver.queue_count() {
            while given < limit {
                let mut most = limit - given;
                if core.receiver.will_be_due() {
                    most = most.min(step);
                }
                let (taken, delivered) = self.drain_channel(core, queue, most, each);
                given += delivered;
                if taken > 0 && given < limit {
                    match core.receiver.poll_between(core, step) {
                        Ok(next) => step = next,
                        // The next call reports it.
                        Err(_) => return given,
                    }
                    if woken() != before {
                        // Another socket must not wait for the rest of a batch, nor a thread
                        // of higher priority.
                        return given;
                    }
                }
                if taken < most {
                    break;
                }
            }
        }
        given
    }

    fn drain_outside(
        &self,
        core: &Core,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let count = lock(&self.waiting).outside.len().min(limit);
        for given in 0..count {
            // One at a time: `each` may call us again, or panic.
            let Some(datagram) = lock(&self.waiting).outside.pop_front() else {
                return given;
            };
            self.peeked.store(false, Ordering::Relaxed);
            if let Some(queue) = datagram
                .credit
                .and_then(|queue| core.receiver.queues.get(queue))
            {
                queue.shared.give_credit(self.id(), 1);
            }
            self.counts.received.fetch_add(1, Ordering::Relaxed);
            each(datagram.borrow());
        }
        count
    }

    /// Puts a received datagram back as the next to be received.
    pub(super) fn put_back(&self, datagram: Owned) {
        lock(&self.waiting).outside.push_front(datagram);
        self.peeked.store(true, Ordering::Relaxed);
        self.counts.received.fetch_sub(1, Ordering::Relaxed);
        self.pass_wakeup();
    }

    /// Returns frames removed and datagrams delivered.
    fn drain_channel(
        &self,
        core: &Core,
        queue: usize,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> (usize, usize) {
        // `each` may call this socket again, so the scratch space is moved out, not
        // borrowed.
        let mut frames = FRAMES.try_with(RefCell::take).unwrap_or_default();
        {
            let mut waiting = lock(&self.waiting);
            if let Some(channel) = waiting.channels.get_mut(queue) {
                while frames.len() < limit
                    && let Some(frame) = channel.remove()
                {
                    frames.push_back(frame);
                }
            }
        }
        let taken = frames.len();
        let Some(handle) = core.receiver.queues.get(queue).filter(|_| taken > 0) else {
            let _ = FRAMES.try_with(|place| place.replace(frames));
            return (0, 0);
        };
        self.last_queue.store(queue, Ordering::Relaxed);
        let mut batch = Batch {
            socket: self,
            core,
            queue,
            shared: &handle.shared,
            frames,
            joined: Vec::new(),
            done: Done::default(),
            others: Vec::new(),
            delivered: 0,
        };
        batch.deliver(each);
        (taken, batch.delivered)
    }

    /// Runs the protocol on one frame of this socket's channel; `joined` is room for one
    /// in several pieces. Datagrams that it completes, perhaps for another socket, are
    /// added to `others`.
    #[inline]
    fn process<'a>(
        &self,
        core: &Core,
        shared: &'a Shared,
        (frame, joined): (&'a Frame, &'a mut Vec<u8>),
        others: &mut Vec<Reassembled>,
    ) -> Outcome<'a> {
        let described = ChannelFrame::whole(shared, frame, joined);
        let dropped = |cause: DropReason| {
            described.dropped(core, cause);
            Outcome::Nothing
        };
        let Some(bytes) = described.packet() else {
            return dropped(DropReason::Truncated);
        };
        let transport = described.transport();
        match described.kind() {
            Some(Kind::Datagram) => {
                let found = match udp::input(bytes, transport, &described.input_options(core)) {
                    Ok(found) => found,
                    Err(cause) => return dropped(cause),
                };
                described.trace(core, "delivered", || {
                    format!("{} bytes from {}", found.payload.len(), found.source)
                });
                Outcome::Borrowed(Received {
                    payload: bytes.get(found.payload.clone()).unwrap_or_default(),
                    source: found.source,
                    destination: found.destination,
                    local: found.destination.ip(),
                    interface: None,
                    traffic_class: found.traffic_class,
                    hop_limit: found.hop_limit,
                })
            }
            Some(Kind::FirstFragment) => {
                described.trace_fragment(core);
                core.ip
                    .first_fragment(core, bytes, self.id(), others)
                    .and_then(|datagram| self.reassembled(core, &datagram))
                    .map_or(Outcome::Nothing, Outcome::Owned)
            }
            Some(Kind::IcmpError) => match icmp::error(bytes, transport) {
                Ok(error) => {
                    described.count_icmp_error(core, error.errno);
                    if self.icmp_error(core, &error, bytes) {
                        Outcome::Nothing
                    } else {
                        dropped(DropReason::IcmpIgnored)
                    }
                }
                Err(cause) => dropped(cause),
            },
            Some(Kind::Fragment | Kind::Raw | Kind::Circuit) | None => {
                dropped(DropReason::Protocol)
            }
        }
    }

    /// Delivers a reassembled datagram; counts it if it is rejected.
    pub(super) fn reassembled(&self, core: &Core, datagram: &Reassembled) -> Option<Owned> {
        match udp::input(&datagram.bytes, datagram.transport, &core.ip.input_options) {
            Ok(found) => Some(Owned::new(&datagram.bytes, &found, None)),
            Err(cause) => {
                core.causes.protocol(cause);
                None
            }
        }
    }

    /// Passes up to `limit` datagrams that wait in the kernel to `each`.
    pub(super) fn drain_kernel(
        &self,
        limit: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let Some(reservation) = &self.reservation else {
            return Ok(0);
        };
        let mut buffer = KERNEL.try_with(RefCell::take).unwrap_or_default();
        buffer.resize(usize::from(u16::MAX), 0);
        let mut given = 0;
        let mut failed = None;
        while given < limit {
            match reservation.receive(&mut buffer) {
                Ok(datagram) => {
                    let ends = self.ends();
                    let address = datagram.destination.unwrap_or(ends.local.ip());
                    let any = || unspecified(address.is_ipv6());
                    given += 1;
                    self.counts.received.fetch_add(1, Ordering::Relaxed);
                    self.counts.through_kernel.fetch_add(1, Ordering::Relaxed);
                    each(Received {
                        payload: buffer.get(..datagram.length).unwrap_or_default(),
                        source: datagram.source,
                        destination: SocketAddr::new(address, ends.local.port()),
                        local: datagram.local.unwrap_or_else(any),
                        interface: Some(datagram.interface),
                        traffic_class: datagram.traffic_class,
                        hop_limit: datagram.hop_limit,
                    });
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
        match failed {
            Some(error) if given == 0 => Err(error),
            _ => Ok(given),
        }
    }
}

/// Frames removed from a channel for the application's closure. Whatever the closure
/// does, all of them and their credit are returned. If the closure panics, it has seen
/// its datagram, and those after it wait in buffers of their own.
struct Batch<'a> {
    socket: &'a SocketInner,
    core: &'a Core,
    queue: usize,
    shared: &'a Shared,
    /// Unfinished frames; the first is being read.
    frames: VecDeque<Frame>,
    /// Buffer in which a packet in several pieces is joined.
    joined: Vec<u8>,
    done: Done,
    /// Datagrams that are completed meanwhile, perhaps for another socket.
    others: Vec<Reassembled>,
    delivered: usize,
}

impl Batch<'_> {
    fn deliver(&mut self, each: &mut dyn FnMut(Received<'_>)) {
        while let Some(frame) = self.frames.front() {
            let others = &mut self.others;
            let read = (frame, &mut self.joined);
            match self.socket.process(self.core, self.shared, read, others) {
                Outcome::Borrowed(received) => {
                    self.delivered += 1;
                    each(received);
                }
                Outcome::Owned(owned) => {
                    self.delivered += 1;
                    each(owned.borrow());
                }
                Outcome::Nothing => {}
            }
            self.end_frame();
        }
    }

    /// Finishes the frame that is being read.
    fn end_frame(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.done.add(self.shared, frame);
        }
    }

    /// Moves what `each` has not seen to the next place to receive from.
    fn keep_rest(&mut self) -> usize {
        self.end_frame();
        let mut rest = Vec::with_capacity(self.frames.len());
        while let Some(frame) = self.frames.front() {
            let others = &mut self.others;
            let read = (frame, &mut self.joined);
            rest.extend(
                self.socket
                    .copy(self.core, self.queue, self.shared, read, others),
            );
            self.end_frame();
        }
        let kept = rest.len();
        let mut waiting = lock(&self.socket.waiting);
        for owned in rest.into_iter().rev() {
            waiting.outside.push_front(owned);
        }
        kept
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let kept = match self.frames.is_empty() {
            true => 0,
            false => self.keep_rest(),
        };
        let done = std::mem::take(&mut self.done);
        self.socket.give_back(self.shared, done, kept);
        let delivered = self.delivered as u64;
        self.socket
            .counts
            .received
            .fetch_add(delivered, Ordering::Relaxed);
        self.core
            .ip
            .deliver(self.core, std::mem::take(&mut self.others));
        let _ = FRAMES.try_with(|place| place.replace(std::mem::take(&mut self.frames)));
    }
}

/// Returns the unspecified address of a family.
fn unspecified(v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}
