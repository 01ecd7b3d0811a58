//! From frames to segments, and from segments to their owners.

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::Kind;
use tidewall_device::frame::Frame;
use tidewall_device::queue::KernelDelivered;
use tidewall_protocol::DropReason;
use tidewall_protocol::icmp::{self, FlowError};
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::tcp::{self, Segment, TimeWaitReaction};
use tidewall_receive::poller::{Done, Shared};
use tidewall_stack::channel_frame::ChannelFrame;
use tidewall_stack::channel_frame::sender;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;
use tidewall_stack::protocol::Hold;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::udp::Addresses;

use super::Tcp;
use super::connection::flow_of;

/// A segment in a buffer of its own, which arrived in a channel of another owner.
struct Misdirected {
    bytes: Box<[u8]>,
    transport: usize,
    error: bool,
    neighbour: MacAddress,
    queue: usize,
}

/// Work to do once no connection is locked.
#[derive(Default)]
pub(crate) struct Deferred {
    misdirected: Vec<Misdirected>,
    reassembled: Vec<Reassembled>,
    /// Frames without an owner: of no kind that names a flow.
    unknown: u64,
    /// Frames that were left on the device must be processed now.
    pub(super) look: bool,
}

impl Deferred {
    /// Runs `work`, which may lock connections, and then the work that it deferred.
    #[inline]
    pub(crate) fn collect<R>(core: &Core, work: impl FnOnce(&mut Deferred) -> R) -> R {
        let mut deferred = Deferred::default();
        let result = work(&mut deferred);
        let Deferred {
            misdirected,
            reassembled,
            unknown,
            look,
        } = &deferred;
        if !misdirected.is_empty() || !reassembled.is_empty() || *unknown > 0 || *look {
            deferred.run(core);
        }
        result
    }

    #[cold]
    fn run(self, core: &Core) {
        for _ in 0..self.unknown {
            core.causes.protocol(DropReason::Protocol);
        }
        for misdirected in self.misdirected {
            Tcp::of(core).take_misdirected(core, &misdirected);
        }
        if !self.reassembled.is_empty() {
            core.ip.deliver(core, self.reassembled);
        }
        if self.look {
            core.take_waiting();
        }
    }

    /// Keeps a frame's segment for its owner.
    pub(crate) fn keep(&mut self, shared: &Shared, frame: &Frame) {
        let mut joined = Vec::new();
        let described = ChannelFrame::whole(shared, frame, &mut joined);
        let error = match described.kind() {
            Some(Kind::Datagram) => false,
            Some(Kind::IcmpError) => true,
            _ => {
                self.unknown += 1;
                return;
            }
        };
        self.misdirected.push(Misdirected {
            bytes: described.packet().unwrap_or_default().into(),
            transport: described.transport(),
            error,
            neighbour: sender(shared.memory().packet(frame)),
            queue: shared.queue() as usize,
        });
    }
}

/// The contents of a frame.
pub(crate) enum Content<'a> {
    /// A segment, with its frame.
    Segment(Segment<'a>, ChannelFrame<'a>),
    Error(FlowError),
    /// Dropped and counted, or kept for reassembly.
    Nothing,
}

impl Tcp {
    /// Parses a frame of a TCP channel. `joined`: room for one in several pieces.
    #[inline]
    pub(crate) fn parse<'a>(
        &self,
        core: &Core,
        shared: &'a Shared,
        (frame, joined): (&'a Frame, &'a mut Vec<u8>),
        owner: ChannelId,
        deferred: &mut Deferred,
    ) -> Content<'a> {
        let described = ChannelFrame::whole(shared, frame, joined);
        let dropped = |cause: DropReason| {
            described.dropped(core, cause);
            Content::Nothing
        };
        let Some(bytes) = described.packet() else {
            return dropped(DropReason::Truncated);
        };
        match described.kind() {
            Some(Kind::Datagram) => {
                match tcp::input(bytes, described.transport(), &described.input_options(core)) {
                    Ok(segment) => {
                        described.trace(core, "delivered", || {
                            let header = &segment.header;
                            format!(
                                "{:?} {} bytes from {}",
                                header.flags,
                                segment.payload.len(),
                                segment.flow.remote
                            )
                        });
                        Content::Segment(segment, described)
                    }
                    Err(cause) => dropped(cause),
                }
            }
            Some(Kind::FirstFragment) => {
                described.trace_fragment(core);
                let complete =
                    core.ip
                        .first_fragment(core, bytes, owner, &mut deferred.reassembled);
                deferred.reassembled.extend(complete);
                Content::Nothing
            }
            Some(Kind::IcmpError) => match icmp::tcp_error(bytes, described.transport()) {
                Ok(error) => {
                    described.count_icmp_error(core, error.errno);
                    Content::Error(error)
                }
                Err(cause) => dropped(cause),
            },
            Some(Kind::Fragment | Kind::Raw | Kind::Circuit) | None => {
                dropped(DropReason::Protocol)
            }
        }
    }

    fn take_misdirected(&self, core: &Core, misdirected: &Misdirected) {
        let (bytes, transport) = (&misdirected.bytes, misdirected.transport);
        let taken = if misdirected.error {
            icmp::tcp_error(bytes, transport).map(|error| self.icmp_error(core, &error))
        } else {
            tcp::input(bytes, transport, &core.ip.input_options).map(|segment| {
                self.dispatch(
                    core,
                    &segment,
                    misdirected.neighbour,
                    misdirected.queue,
                    false,
                )
            })
        };
        if let Err(cause) = taken {
            core.causes.protocol(cause);
        }
    }

    /// Keeps a segment that was reassembled from fragments. The thread may hold locks
    /// that its connection needs, so a thread that sleeps in the stack, or calls it,
    /// processes the segment.
    pub(crate) fn keep_reassembled(&self, core: &Core, datagram: Reassembled) {
        lock(&self.pending.reassembled).push(datagram);
        self.defer_shared(core);
    }

    /// Runs the protocol on reassembled segments. Normal peers send none, so this path is
    /// not optimised.
    pub(super) fn take_reassembled(&self, core: &Core) {
        let datagrams = std::mem::take(&mut *lock(&self.pending.reassembled));
        for Reassembled {
            bytes, transport, ..
        } in datagrams
        {
            match tcp::input(&bytes, transport, &core.ip.input_options) {
                Ok(segment) => match self.flows.find(&segment.flow) {
                    Some(connection) => connection.input(core, &segment, 0),
                    None => core.causes.protocol(DropReason::TcpNoConnection),
                },
                Err(cause) => core.causes.protocol(cause),
            }
        }
    }

    /// Processes a segment that reached a helper socket during NAPI-id discovery.
    pub(crate) fn take_kernel_delivered(
        &self,
        core: &Core,
        kernel_delivered: KernelDelivered,
        bytes: &[u8],
    ) {
        let addresses = Addresses::new(
            kernel_delivered.source.ip(),
            kernel_delivered.destination.ip(),
        );
        let Some(addresses) = addresses else {
            return core.causes.protocol(DropReason::MartianSource);
        };
        let segment = match tcp::input_bare(bytes, addresses, &core.ip.input_options) {
            Ok(segment) => segment,
            Err(cause) => return core.causes.protocol(cause),
        };
        // The answer goes to the frame's own sender, since the kernel may not know the
        // neighbour yet. An example is a driver that resets its link when a program is
        // attached. The driver has not checked its owner. A segment without one here
        // may be of a connection that the kernel has with an adopted socket. When it is
        // retransmitted, it arrives there.
        self.dispatch(core, &segment, kernel_delivered.neighbour, 0, true);
        // The thread may send nothing of its own afterwards.
        core.send(Hold::Nothing);
    }

    /// Delivers a segment to its owner. No connection may be locked. `silent`: a segment
    /// without an owner is not answered with a reset.
    pub(crate) fn dispatch(
        &self,
        core: &Core,
        segment: &Segment<'_>,
        neighbour: MacAddress,
        queue: usize,
        silent: bool,
    ) {
        if let Some(connection) = self.flows.find(&segment.flow) {
            connection.input(core, segment, queue);
            return;
        }
        let reused = match self.time_wait_input(core, segment, neighbour, queue) {
            TimeWaitReaction::Handled => return,
            TimeWaitReaction::Reuse(sequence) => Some(sequence),
            TimeWaitReaction::Unknown => None,
        };
        if let Some(listener) = self.listener(segment.flow.local) {
            listener.take_segment(core, segment, reused, neighbour, queue, silent);
            return;
        }
        if !silent && let Some(reset) = tcp::reset_for(segment) {
            self.send_segment(core, &segment.flow, &reset, neighbour, queue);
        }
    }

    pub(crate) fn icmp_error(&self, core: &Core, error: &FlowError) {
        if let Some(connection) = self.flows.find(&flow_of(error)) {
            connection.icmp_error(core, error);
        }
    }

    /// Sends a segment that no connection owns. It is lost if there is no room: its cause
    /// will recur.
    pub(crate) fn send_segment(
        &self,
        core: &Core,
        flow: &tcp::FourTuple,
        outgoing: &tcp::Outgoing<'_>,
        neighbour: MacAddress,
        queue: usize,
    ) {
        let Some((queue, place)) = core.receiver.sending_queue(queue) else {
            return;
        };
        let queued =
            lock(&place.transmitter).queue_segment(neighbour, super::HOP_LIMIT, flow, outgoing);
        // The lack of a frame is counted there.
        if queued.is_err_and(|error| error.raw_os_error() != Some(libc::ENOBUFS)) {
            core.causes.protocol(DropReason::TcpUnsendable);
        }
        core.output.ring_doorbell(queue);
    }

    /// Delivers frames of a channel without an owner to their owners.
    pub(super) fn process_frames(
        &self,
        core: &Core,
        shared: &Shared,
        queue: usize,
        id: ChannelId,
        frames: &mut Vec<Frame>,
    ) {
        Deferred::collect(core, |deferred| {
            let mut done = Done::default();
            let mut joined = Vec::new();
            for frame in frames.drain(..) {
                match self.parse(core, shared, (&frame, &mut joined), id, deferred) {
                    Content::Segment(segment, _) => {
                        let neighbour = sender(shared.memory().packet(&frame));
                        self.dispatch(core, &segment, neighbour, queue, false);
                    }
                    Content::Error(error) => self.icmp_error(core, &error),
                    Content::Nothing => {}
                }
                done.add(shared, frame);
            }
            shared.give_back(id, done);
        });
    }
}
