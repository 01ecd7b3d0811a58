//! Sending what is forwarded.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Instant;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::Protocol;
use tidewall_protocol::tcp::{FourTuple, Outgoing};
use tidewall_stack::StackHandle;
use tidewall_stack::channel_frame::sender;
use tidewall_stack::core::Core;
use tidewall_stack::ip::recent::Recent;
use tidewall_stack::ip::routes::Neighbour;
use tidewall_stack::ip::transmit::Forwarded;
use tidewall_stack::lock::lock;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::{Header, Packet};
use tidewall_wire::udp::Addresses;

use super::{Arrived, Content};

/// Hops allowed to what is sent: the default of Linux (`ip_default_ttl`).
const HOP_LIMIT: u8 = 64;
/// Next hops kept from one batch of segments to the end of it, by the low bits of the
/// destination.
const NEIGHBOURS: usize = 16;

/// The headers of a segment that is sent.
#[derive(Clone, Copy, Debug)]
pub struct Heading {
    /// The ends, as seen from here: `local` sends. Ports are those of `header`.
    pub flow: FourTuple,
    /// Fields and options.
    pub header: Header,
    /// Type of service (IPv4) or traffic class (IPv6): DSCP and ECN.
    pub traffic_class: u8,
}

/// Counters of segments to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputCounters {
    /// Sent in the frame in which they arrived.
    pub in_place: u64,
    /// Copied into frames of the sender.
    pub copied: u64,
    /// Dropped: the next hop's link address is not known yet, and is being looked for.
    pub unresolved: u64,
    /// Dropped: the next hop is not known, and too many queries for others were made
    /// lately.
    pub unasked: u64,
    /// Dropped: no route leads there by that interface.
    pub unreachable: u64,
    /// Dropped: the device accepts no more now.
    pub full: u64,
    /// Dropped: longer than the interface's MTU, or between addresses of two families.
    pub refused: u64,
    /// Times that a device sent nothing because it was down; it sends its frames when it
    /// is up.
    pub down: u64,
}

/// Senders that are remembered at least.
const SENDERS: usize = 4096;

/// A next hop, by destination and, where there is one, the address that sends.
type Found = (IpAddr, Option<IpAddr>, MacAddress);

/// The reason that there is no next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is being resolved.
    Unresolved,
    /// It may not be queried now.
    Unasked,
    /// No route leads there.
    Unreachable,
}

/// The sending side of a forwarder.
pub struct Output {
    pub(super) interfaces: Vec<Interface>,
    /// Some have frames of a memory of their own.
    some_apart: bool,
    now: Instant,
    pub(super) counters: OutputCounters,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

pub(super) struct Interface {
    pub(super) stack: StackHandle,
    /// Next hops that were found in this batch.
    neighbours: [Option<Found>; NEIGHBOURS],
    /// Link addresses of those whom an answer may go to before the kernel knows them.
    senders: Recent<IpAddr, MacAddress>,
    /// Per queue: the device has frames to send.
    queued: Vec<bool>,
    /// The channel of admitted connections, and those.
    channel: Option<ChannelId>,
    admitted: HashSet<FourTuple>,
    /// One was admitted since it was last asked.
    has_admitted: bool,
    /// Its frames are of a memory of their own.
    apart: bool,
}

impl Output {
    pub(super) fn new<'a>(
        stacks: impl Iterator<Item = (&'a StackHandle, Option<ChannelId>)>,
    ) -> Self {
        let interface = |(stack, channel): (&StackHandle, _)| Interface::new(stack, channel, false);
        Output {
            interfaces: stacks.map(interface).collect(),
            some_apart: false,
            now: Instant::now(),
            counters: OutputCounters::default(),
        }
    }

    /// Sends by another stack on an interface, whose frames are of a memory of its own.
    pub(super) fn replace(
        &mut self,
        place: usize,
        stack: &StackHandle,
        channel: Option<ChannelId>,
    ) {
        if let Some(interface) = self.interfaces.get_mut(place) {
            *interface = Interface::new(stack, channel, true);
            self.some_apart = true;
        }
    }

    /// Whether a frame that came by one interface cannot leave by the other where it lies.
    pub(super) fn are_apart(&self, from: usize, to: usize) -> bool {
        let is_apart = |place: usize| self.interfaces.get(place).is_some_and(|it| it.apart);
        self.some_apart && (is_apart(from) || is_apart(to))
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> OutputCounters {
        self.counters
    }

    /// A batch begins: what was asked of the kernel before may have changed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.now = now;
        for interface in &mut self.interfaces {
            interface.neighbours = [None; NEIGHBOURS];
        }
    }

    /// True while frames wait for a device or for their way back.
    pub(super) fn is_sending(&self) -> bool {
        self.interfaces
            .iter()
            .filter(|it| it.is_there())
            .any(|interface| {
                let queues = &interface.stack.core().receiver.queues;
                interface.queued.contains(&true)
                    || queues.iter().any(|it| lock(&it.transmitter).handed() > 0)
            })
    }

    /// Has the devices take what was put out, and gives frames that were sent back to
    /// the queues that received them. [`Forwarder::receive`] ends with it.
    ///
    /// [`Forwarder::receive`]: super::Forwarder::receive
    pub fn flush(&mut self) {
        for interface in self.interfaces.iter_mut().filter(|it| it.is_there()) {
            let queues = &interface.stack.core().receiver.queues;
            for (queue, queued) in queues.iter().zip(&mut interface.queued) {
                let mut transmitter = lock(&queue.transmitter);
                // A full completion ring keeps a device from sending.
                if transmitter.handed() > 0 {
                    transmitter.reclaim();
                }
                while *queued {
                    match transmitter.flush() {
                        Ok(flushed) if flushed.left > 0 && !flushed.full => {}
                        Ok(flushed) => {
                            *queued = flushed.left > 0;
                            break;
                        }
                        Err(_) => {
                            *queued = false;
                            self.counters.down += 1;
                        }
                    }
                }
                if transmitter.handed() > 0 {
                    transmitter.reclaim();
                }
            }
        }
    }

    /// Forwards a segment by interface `to`, with new headers before the part of its payload
    /// at `payload`. If possible it is forwarded in place, and its content is then gone from
    /// `arrived`. A segment that cannot be sent is dropped and counted.
    pub fn forward(
        &mut self,
        to: usize,
        heading: &Heading,
        arrived: &mut Arrived<'_>,
        payload: Range<usize>,
    ) {
        let hint = arrived.hint(to, heading.flow.remote.ip());
        let Some(neighbour) = self.neighbour(to, &heading.flow, hint) else {
            return;
        };
        let are_apart = self.are_apart(arrived.interface, to);
        let (
            Content::InFrame {
                frame,
                shared,
                place,
            },
            false,
        ) = (&mut arrived.content, are_apart)
        else {
            // Its bytes are the kernel's, or of another memory: there is no frame to send.
            self.copy_to(to, neighbour, heading, arrived, payload);
            return;
        };
        let Some(taken) = frame.take() else {
            return;
        };
        if place.labelled {
            *frame = Some(taken);
            return;
        }
        let packet = shared.memory().packet(&taken);
        let here = packet.len().min(place.end);
        let segment = packet.get(place.transport..here).unwrap_or_default();
        let Ok(segment) = Packet::new(segment) else {
            *frame = Some(taken);
            return;
        };
        let length = place.end - place.transport;
        let start = place.transport + segment.header_len();
        let whole = payload == (0..length - segment.header_len());
        let payload_in_frame = start + payload.start..(start + payload.end).min(place.end);
        if shared.memory().has_pieces(&taken) {
            // All that hangs on the frame leaves with it.
            let leaves = payload_in_frame.start < here
                && payload_in_frame.end == shared.memory().whole_len(&taken);
            if !leaves {
                *frame = Some(taken);
                self.copy_to(to, neighbour, heading, arrived, payload);
                return;
            }
        }
        let addresses = addresses(packet, place.network);
        let sum = addresses.filter(|_| whole);
        let forwarded = Forwarded {
            transport: place.transport,
            payload: payload_in_frame,
            sum: sum.and_then(|addresses| segment.payload_sum_of(addresses, length)),
            neighbour,
            hop_limit: HOP_LIMIT,
            flow: &heading.flow,
            header: &heading.header,
            traffic_class: heading.traffic_class,
            frame: taken,
        };
        let Some(interface) = self.interfaces.get_mut(to) else {
            *frame = Some(forwarded.frame);
            return;
        };
        let sent = interface.transmit(shared.queue() as usize, |transmitter| {
            transmitter.forward(forwarded)
        });
        match sent {
            Some(Ok(())) => self.counters.in_place += 1,
            Some(Err((back, error))) => {
                *frame = Some(back);
                self.count(&error);
            }
            None => self.counters.unreachable += 1,
        }
    }

    /// Sends a segment with this payload by interface `to`, in a frame of the sending queue.
    /// `hint`: the segment that it answers. If the kernel knows no next hop for the answer,
    /// the sender of that segment is used. A segment that cannot be sent is dropped and
    /// counted.
    pub fn send(
        &mut self,
        to: usize,
        heading: &Heading,
        payload: &[u8],
        hint: Option<&Arrived<'_>>,
    ) {
        let remote = heading.flow.remote.ip();
        let link = hint.and_then(|arrived| arrived.hint(to, remote));
        let queue = hint.map_or(0, Arrived::queue);
        if let Some(neighbour) = self.neighbour(to, &heading.flow, link) {
            self.send_to(to, neighbour, heading, payload, queue);
        }
    }

    /// Sends a segment by interface `to` that answers none: by the queue that sends for the
    /// queue of this number. Dropped and counted what cannot be sent.
    pub fn send_by(&mut self, to: usize, queue: usize, heading: &Heading, payload: &[u8]) {
        if let Some(neighbour) = self.neighbour(to, &heading.flow, None) {
            self.send_to(to, neighbour, heading, payload, queue);
        }
    }

    /// Sends a part of an arrived payload in a frame of the sending queue.
    fn copy_to(
        &mut self,
        to: usize,
        neighbour: MacAddress,
        heading: &Heading,
        arrived: &Arrived<'_>,
        payload: Range<usize>,
    ) {
        let part = arrived.payload().get(payload).unwrap_or(Pieces::EMPTY);
        if let Some(part) = part.as_slice() {
            return self.send_to(to, neighbour, heading, part, 0);
        }
        let mut joined = Vec::with_capacity(part.len());
        part.append_to(&mut joined);
        self.send_to(to, neighbour, heading, &joined, arrived.queue());
    }

    fn send_to(
        &mut self,
        to: usize,
        neighbour: MacAddress,
        heading: &Heading,
        payload: &[u8],
        queue: usize,
    ) {
        let outgoing = Outgoing {
            header: heading.header,
            payload: [payload, &[]],
            segment_size: u16::MAX,
            traffic_class: heading.traffic_class,
        };
        let Some(interface) = self.interfaces.get_mut(to) else {
            return;
        };
        let sent = interface.transmit(queue, |transmitter| {
            let length = payload.len() + heading.header.header_len() + ip_len(&heading.flow);
            if length > transmitter.packet_max() {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
            }
            if length > transmitter.mtu() {
                return transmitter.send_long(neighbour, HOP_LIMIT, &heading.flow, &outgoing);
            }
            transmitter.queue_segment(neighbour, HOP_LIMIT, &heading.flow, &outgoing)
        });
        match sent {
            Some(Ok(())) => self.counters.copied += 1,
            Some(Err(error)) => self.count(&error),
            None => self.counters.unreachable += 1,
        }
    }

    fn count(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE | libc::EAFNOSUPPORT) => self.counters.refused += 1,
            _ => self.counters.full += 1,
        }
    }

    /// Gives the segments of one connection, which come by `interface`, a channel apart
    /// from all else that comes to its port. Without room in the driver's table they go
    /// on coming as before.
    pub fn admit(&mut self, interface: usize, flow: &FourTuple) {
        let Some(interface) = self.interfaces.get_mut(interface) else {
            return;
        };
        let Some(channel) = interface
            .channel
            .filter(|_| !interface.admitted.contains(flow))
        else {
            return;
        };
        let tables = &interface.stack.core().tables;
        let entered = tables.connect(Protocol::Tcp, flow.local, flow.remote, channel);
        if entered.is_ok() {
            interface.admitted.insert(*flow);
            interface.has_admitted = true;
        }
    }

    /// Whether a connection was admitted since the last call.
    pub(super) fn take_admission(&mut self, interface: usize) -> bool {
        let interface = self.interfaces.get_mut(interface);
        interface.is_some_and(|it| std::mem::take(&mut it.has_admitted))
    }

    /// How many connections of an interface are admitted.
    pub fn admitted(&self, interface: usize) -> usize {
        let interface = self.interfaces.get(interface);
        interface.map_or(0, |interface| interface.admitted.len())
    }

    /// Takes back what [`Output::admit`] gave, but for connections of which `lives` says
    /// that they live.
    pub fn retain(&mut self, interface: usize, lives: impl Fn(&FourTuple) -> bool) {
        let Some(interface) = self.interfaces.get_mut(interface) else {
            return;
        };
        let tables = &interface.stack.core().tables;
        interface.admitted.retain(|flow| {
            let stays = lives(flow);
            if !stays {
                tables.disconnect(Protocol::Tcp, flow.local, flow.remote);
            }
            stays
        });
    }

    /// Remembers the link address that a segment came from. Segments to its sender go there
    /// while the kernel resolves the next hop, also if they answer no segment. A segment of
    /// another host may cause the answer to a SYN.
    pub fn remember_sender(&mut self, arrived: &Arrived<'_>) {
        let Some((remote, neighbour)) = arrived.sender() else {
            return;
        };
        if let Some(interface) = self.interfaces.get_mut(arrived.interface) {
            interface.senders.insert(remote, neighbour);
        }
    }

    pub(super) fn resolve(&mut self, to: usize, remote: IpAddr, local: IpAddr) {
        if let Some(interface) = self.interfaces.get(to) {
            let routes = &interface.stack.core().ip.routes;
            // It asks the kernel, if the answer is not known.
            lock(routes).neighbour(remote, Some(local), None, Instant::now());
        }
    }

    /// The link address of the next hop of a segment; counted if there is none.
    fn neighbour(
        &mut self,
        to: usize,
        flow: &FourTuple,
        hint: Option<MacAddress>,
    ) -> Option<MacAddress> {
        let found = self.next_hop(to, flow.remote.ip(), Some(flow.local.ip()), hint);
        self.counted(found)
    }

    /// Returns the address that was found; counts the cause if there is none.
    pub(super) fn counted(&mut self, found: Result<MacAddress, Missing>) -> Option<MacAddress> {
        match found {
            Ok(neighbour) => return Some(neighbour),
            Err(Missing::Unresolved) => self.counters.unresolved += 1,
            Err(Missing::Unasked) => self.counters.unasked += 1,
            Err(Missing::Unreachable) => self.counters.unreachable += 1,
        }
        None
    }

    /// The link address of the next hop to `remote`; `hint` where the kernel knows none yet.
    pub(super) fn next_hop(
        &mut self,
        to: usize,
        remote: IpAddr,
        local: Option<IpAddr>,
        hint: Option<MacAddress>,
    ) -> Result<MacAddress, Missing> {
        let interface = self.interfaces.get_mut(to).ok_or(Missing::Unreachable)?;
        let core = interface.stack.core();
        let place = slot(remote);
        let kept = interface.neighbours.get(place).copied().flatten();
        if let Some((.., neighbour)) = kept.filter(|it| (it.0, it.1) == (remote, local)) {
            return Ok(neighbour);
        }
        let found = lock(&core.ip.routes).neighbour(remote, local, hint, self.now);
        let neighbour = match found {
            Neighbour::Known { neighbour, .. } => neighbour,
            Neighbour::Kernel => return Err(Missing::Unreachable),
            // Not kept: the kernel's answer comes soon.
            Neighbour::Resolving { .. } | Neighbour::Unasked => {
                let sender = interface.senders.get(&remote).copied();
                return sender.ok_or(match found {
                    Neighbour::Unasked => Missing::Unasked,
                    _ => Missing::Unresolved,
                });
            }
        };
        if let Some(kept) = interface.neighbours.get_mut(place) {
            *kept = Some((remote, local, neighbour));
        }
        Ok(neighbour)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        for interface in 0..self.interfaces.len() {
            self.retain(interface, |_| false);
        }
    }
}

impl Interface {
    fn new(stack: &StackHandle, channel: Option<ChannelId>, apart: bool) -> Self {
        Interface {
            stack: stack.clone(),
            neighbours: [None; NEIGHBOURS],
            senders: Recent::new(SENDERS),
            queued: vec![false; stack.core().receiver.queues.len()],
            channel,
            admitted: HashSet::new(),
            has_admitted: false,
            apart,
        }
    }

    /// Returns false once the interface is gone.
    fn is_there(&self) -> bool {
        self.stack.core().netdev.check().is_ok()
    }

    /// Runs something on the transmitter of the queue that sends for queue `number`;
    /// `None` if there is none.
    pub(super) fn transmit<T>(
        &mut self,
        number: usize,
        run: impl FnOnce(&mut tidewall_stack::ip::transmit::Transmitter) -> T,
    ) -> Option<T> {
        if !self.is_there() {
            return None;
        }
        let core: &Core = self.stack.core();
        let (number, queue) = core.receiver.sending_queue(number)?;
        let result = run(&mut lock(&queue.transmitter));
        if let Some(queued) = self.queued.get_mut(number) {
            *queued = true;
        }
        Some(result)
    }
}

impl Arrived<'_> {
    /// The link address that it came from, if it came from `remote` by interface `to`.
    fn hint(&self, to: usize, remote: IpAddr) -> Option<MacAddress> {
        if to != self.interface {
            return None;
        }
        let (from, neighbour) = self.sender()?;
        (from == remote).then_some(neighbour)
    }

    /// The addresses that it came from, of IP and of the link.
    fn sender(&self) -> Option<(IpAddr, MacAddress)> {
        match &self.content {
            Content::InFrame {
                frame,
                shared,
                place,
            } => {
                let packet = shared.memory().packet(frame.as_ref()?);
                let from = match addresses(packet, place.network)? {
                    Addresses::V4(source, _) => IpAddr::V4(source),
                    Addresses::V6(source, _) => IpAddr::V6(source),
                };
                Some((from, sender(packet)))
            }
            Content::Bytes { from, .. } => Some((from.source.ip(), from.neighbour)),
        }
    }
}

/// The addresses of the datagram whose IP header is at `network`.
fn addresses(packet: &[u8], network: usize) -> Option<Addresses> {
    let bytes = packet.get(network..)?;
    if bytes.first()? >> 4 == 4 {
        let source = *bytes.get(12..)?.first_chunk::<4>()?;
        let destination = *bytes.get(16..)?.first_chunk::<4>()?;
        return Some(Addresses::V4(source.into(), destination.into()));
    }
    let source = *bytes.get(8..)?.first_chunk::<16>()?;
    let destination = *bytes.get(24..)?.first_chunk::<16>()?;
    Some(Addresses::V6(source.into(), destination.into()))
}

/// Bytes of the IP header before a segment of this flow.
fn ip_len(flow: &FourTuple) -> usize {
    match flow.remote.is_ipv4() {
        true => tidewall_wire::ipv4::HEADER_LEN,
        false => tidewall_wire::ipv6::HEADER_LEN,
    }
}

/// Returns the slot of a destination's next hop.
fn slot(remote: IpAddr) -> usize {
    let last = match remote {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    usize::from(last) % NEIGHBOURS
}
