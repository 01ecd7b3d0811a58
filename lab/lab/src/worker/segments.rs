//! The worker that is both ends of connections whose segments are all the same (frames of
//! ACP, docs/acp.md), over the device crate only. A kernel's TCP cannot send such
//! segments as fast as the intermediary forwards them, whether that is a switch or a
//! kernel's TCP itself.
//!
//! It implements only as much of TCP as such a transfer needs. Peers open connections and
//! send the same frame repeatedly as far as windows allow. They restart at the first
//! unacknowledged frame if acknowledgments fail to arrive. Members accept frames in order
//! and acknowledge every [`ACKNOWLEDGE`]th one, and the rest when nothing more has
//! arrived. One thread serves all, and never sleeps. Segments longer than a frame of
//! memory leave by a packet socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::Received;
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{self, FourTuple, Link, Outgoing, SegmentInPieces};
use tidewall_wire::acp;
use tidewall_wire::checksum::Sum;
use tidewall_wire::pieces::{Behind, Pieces};
use tidewall_wire::tcp::{Flags, Header, Options, PayloadChecksum};
use tidewall_wire::udp::Checksum;

use super::forwarding::{ForwardSide, Side, flush};
use super::frames::FrameSegment;
use super::service::until_input_ends;

/// Segments in flight, of all connections: fewer than a veth's ring holds (256), so that
/// none is lost on the way.
const UNDER_WAY: u32 = 192;
/// Most frames of a connection that are acknowledged together: no more than half of a
/// window.
const ACKNOWLEDGE: u32 = 8;
/// Time without an acknowledgment after which a peer restarts at the first unacknowledged
/// frame.
const REPEAT: Duration = Duration::from_millis(20);
/// Time for connections to open.
const OPENING: Duration = Duration::from_secs(5);
/// Ethernet, IPv4 or IPv6, and the longest TCP header.
const HEADERS_MAX: usize = 14 + 40 + 60;
/// Shift of the windows that ends offer: they hold [`UNDER_WAY`] segments of 9,000 bytes,
/// of eight connections.
const WINDOW_SCALE: u8 = 2;
/// Segment size for Ethernet's MTU; ends with longer segments announce theirs.
const SEGMENT_SIZE: u16 = 1460;
/// Initial sequence numbers of peers and of members.
const INITIAL: u32 = 1 << 20;

/// Both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentJob {
    /// The peers' side, with one connection for each port, and the members', all at the
    /// first port. The first address of each counts.
    pub sides: [ForwardSide; 2],
    /// Address to which peers connect.
    pub server: SocketAddr,
    /// Payload of each segment.
    pub segment: FrameSegment,
}

/// The counts of segments so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCounts {
    /// Frames that members accepted, each once and in order.
    pub frames: u64,
    /// Segments that were sent again.
    pub repeated: u64,
    /// Time of rounds without work, ns: the ends waited for the intermediary.
    pub idle: u64,
}

/// Opens the connections and sends frames until the end of the input; answers the line
/// `frames` with [`SegmentCounts`].
pub(super) fn run(job: &SegmentJob) -> anyhow::Result<()> {
    let mut ends = Ends::open(job)?;
    ends.connect()?;
    let counts = ends.counts.clone();
    let frame = u64::from(job.segment.size);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let mut thread = Some(std::thread::spawn(move || ends.run(&stopped)));
    println!("ready");
    let answered = until_input_ends(|line| {
        if thread.as_ref().is_some_and(|it| it.is_finished())
            && let Some(thread) = thread.take()
        {
            thread.join().map_err(|_| anyhow!("the ends panicked"))??;
        }
        if line == "frames" {
            println!("{}", serde_json::to_string(&counts.read(frame))?);
        }
        Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    answered
}

#[derive(Default)]
struct Counts {
    /// Bytes of frames that members accepted: a kernel's TCP in between does not preserve
    /// frame boundaries.
    bytes: AtomicU64,
    repeated: AtomicU64,
    idle: AtomicU64,
}

impl Counts {
    fn read(&self, frame: u64) -> SegmentCounts {
        SegmentCounts {
            frames: self.bytes.load(Ordering::Relaxed) / frame.max(1),
            repeated: self.repeated.load(Ordering::Relaxed),
            idle: self.idle.load(Ordering::Relaxed),
        }
    }
}

struct Ends {
    peers: Port,
    members: Port,
    giving: Vec<Peer>,
    taking: Vec<Member>,
    payload: Vec<u8>,
    payload_sum: Sum,
    counts: Arc<Counts>,
}

/// One side's interface.
struct Port {
    side: Side,
    /// Free frames for sending.
    free: Vec<Frame>,
    batch: Vec<Received>,
    datagram: Vec<u8>,
}

/// A received frame, and the pieces attached to it.
struct InMemory<'a> {
    memory: &'a FrameMemory,
    frame: &'a Frame,
}

impl Behind for InMemory<'_> {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        self.memory.piece_behind(self.frame, number)
    }
}

/// A connection, seen from its peer.
struct Peer {
    flow: FourTuple,
    open: bool,
    acked: u32,
    next: u32,
    /// First sequence number beyond the window.
    edge: u32,
    /// Shift of the received windows.
    scale: u8,
    /// The sequence number that it acknowledges.
    received: u32,
    /// Time of the last acknowledgment, or retransmission.
    since: Instant,
}

/// A connection, seen from its member.
struct Member {
    flow: FourTuple,
    /// The next expected sequence number.
    next: u32,
    /// Frames that are not acknowledged.
    due: u32,
}

fn header(flow: &FourTuple, sequence: u32, acknowledgment: u32, flags: Flags) -> Header {
    Header {
        source_port: flow.local.port(),
        destination_port: flow.remote.port(),
        sequence,
        acknowledgment,
        flags,
        window: u16::MAX,
        ..Header::default()
    }
}

/// Returns the options of a SYN from an end that sends and accepts segments of this many
/// bytes.
fn syn_options(segment: usize) -> Options {
    let longest = u16::try_from(segment).unwrap_or(u16::MAX);
    Options {
        maximum_segment_size: Some(longest.max(SEGMENT_SIZE)),
        window_scale: Some(WINDOW_SCALE),
        ..Options::default()
    }
    .with_acp(Some(acp::VERSION))
}

impl Port {
    fn open(side: &ForwardSide) -> anyhow::Result<Self> {
        let mut side = Side::open(side, None, 0)?;
        ensure!(
            side.queues.len() == 1,
            "an interface of one queue is needed"
        );
        let mut free = Vec::new();
        for queue in &mut side.queues {
            free = queue.frames.split_off(queue.frames.len() / 2);
        }
        Ok(Port {
            side,
            free,
            batch: Vec::new(),
            datagram: Vec::new(),
        })
    }

    fn link(&self) -> Link {
        let [receiver, own] = self.side.link;
        Link {
            source_mac: own,
            destination_mac: receiver,
            hop_limit: 64,
            checksum: Checksum::Software,
        }
    }

    /// Queues a segment with a payload of this sum, or sends it if it is longer than a
    /// frame; returns false without room.
    fn give(
        &mut self,
        flow: &FourTuple,
        header: Header,
        payload: &[u8],
        sum: Sum,
    ) -> anyhow::Result<bool> {
        let memory = self.side.queues.first().map(|it| it.memory.frame_size());
        if memory.is_some_and(|size| payload.len() + 2 * HEADERS_MAX <= size) {
            return self.send(flow, header, payload);
        }
        let link = self.link();
        let mut room = [0; HEADERS_MAX];
        let sum = (payload.len(), PayloadChecksum::Sum(sum));
        let written = tcp::output_before(&mut room, &link, flow, &header, 0, sum)?;
        let headers = room.get(HEADERS_MAX - written..).unwrap_or_default();
        let Some(queue) = self.side.queues.first_mut() else {
            return Ok(false);
        };
        match queue.transmit.send_frame([headers, payload]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => Ok(false),
            sent => Ok(sent.map(|()| true)?),
        }
    }

    /// Queues a segment; returns false without room.
    fn send(&mut self, flow: &FourTuple, header: Header, payload: &[u8]) -> anyhow::Result<bool> {
        let link = self.link();
        let Some(queue) = self.side.queues.first_mut() else {
            return Ok(false);
        };
        let Some(mut frame) = self.free.pop() else {
            return Ok(false);
        };
        let outgoing = Outgoing {
            header,
            payload: [payload, &[]],
            segment_size: u16::MAX,
            traffic_class: 0,
        };
        let headroom = queue.transmit.headroom();
        frame.set_extent(headroom, u16::MAX);
        let length = tcp::output(queue.memory.packet_mut(&mut frame), &link, flow, &outgoing)?;
        frame.set_extent(headroom, length as u16);
        let refused = queue.transmit.transmit(frame, None).err();
        let is_queued = refused.is_none();
        self.free.extend(refused);
        Ok(is_queued)
    }

    fn flush(&mut self) -> io::Result<()> {
        for queue in &mut self.side.queues {
            flush(queue.transmit.as_mut())?;
            queue.transmit.reclaim(&mut self.free);
        }
        Ok(())
    }

    /// Hands over each received segment; returns true if there were any.
    fn receive(
        &mut self,
        mut each: impl FnMut(&mut Self, &SegmentInPieces<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut batch = std::mem::take(&mut self.batch);
        self.side.take(0, &mut batch, &mut self.datagram)?;
        let memory = self.side.queues.first().map(|it| it.memory.clone());
        let any = !batch.is_empty();
        for Received { frame, metadata } in batch.drain(..) {
            let [network, transport, end] =
                [metadata.network, metadata.transport, metadata.end].map(usize::from);
            let checked = InputOptions {
                // Both ends and the intermediary are on this host.
                checksum_offload_possible: true,
                verified: false,
            };
            let in_memory = memory.as_ref().map(|memory| InMemory {
                memory,
                frame: &frame,
            });
            let bytes = in_memory.as_ref().and_then(|it| {
                let packet = Pieces::new(it.memory.packet(it.frame), it, end)?;
                packet.get(network..end)
            });
            let segment = bytes.map(|it| tcp::input_in_pieces(it, transport - network, &checked));
            // A damaged segment is retransmitted.
            if let Some(Ok(segment)) = segment {
                each(self, &segment)?;
            }
            if let Some(queue) = self.side.queues.first_mut() {
                queue.frames.push(frame);
            }
        }
        self.batch = batch;
        Ok(any)
    }
}

impl Peer {
    fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Peer {
            flow: FourTuple { local, remote },
            open: false,
            acked: INITIAL,
            next: INITIAL,
            edge: INITIAL,
            scale: 0,
            received: 0,
            since: Instant::now(),
        }
    }

    /// Processes an acknowledgment, or the answer to its SYN; returns the reply, if any.
    fn hear(&mut self, heard: &Header, now: Instant) -> anyhow::Result<Option<Header>> {
        if !self.open && !heard.flags.contains(Flags::SYN) {
            // The kernel still knows a connection of these ports, of ends that are gone.
            // This reset makes it forget that (RFC 9293, 3.10.7.3), and the next SYN
            // begins a new one.
            let reset = header(&self.flow, heard.acknowledgment, 0, Flags::RST);
            return Ok(Some(reset).filter(|_| !heard.flags.contains(Flags::RST)));
        }
        ensure!(!heard.flags.contains(Flags::RST), "a connection was reset");
        let answers = heard.flags.contains(Flags::SYN | Flags::ACK);
        if answers {
            self.received = heard.sequence.wrapping_add(1);
            if !self.open {
                (self.open, self.next) = (true, INITIAL + 1);
                self.scale = heard.options.window_scale.unwrap_or(0).min(14);
            }
        }
        let newly = heard.acknowledgment.wrapping_sub(self.acked);
        if self.open && newly <= self.next.wrapping_sub(self.acked) {
            if newly > 0 {
                (self.acked, self.since) = (heard.acknowledgment, now);
            }
            let scale = if answers { 0 } else { self.scale };
            let window = u32::from(heard.window) << scale;
            let edge = heard.acknowledgment.wrapping_add(window);
            if edge.wrapping_sub(self.edge) < 1 << 31 {
                self.edge = edge;
            }
        }
        let ack = header(&self.flow, INITIAL + 1, self.received, Flags::ACK);
        Ok(answers.then_some(ack))
    }

    /// Returns the next segment, if no more than `most` bytes are then in flight.
    fn give(&mut self, length: u32, most: u32) -> Option<Header> {
        let end = self.next.wrapping_add(length);
        let fits = end.wrapping_sub(self.acked) <= most
            && end.wrapping_sub(self.acked) <= self.edge.wrapping_sub(self.acked);
        let given = header(&self.flow, self.next, self.received, Flags::ACK);
        (self.open && fits).then_some(given)
    }
}

impl Ends {
    fn open(job: &SegmentJob) -> anyhow::Result<Self> {
        let [peers, members] = &job.sides;
        let address = peers.addresses.first().context("peers without address")?;
        let payload = job.segment.bytes()?;
        let peer = |&port: &u16| Peer::new((*address, port).into(), job.server);
        Ok(Ends {
            giving: peers.ports.iter().map(peer).collect(),
            taking: Vec::new(),
            peers: Port::open(peers)?,
            members: Port::open(members)?,
            payload_sum: Sum::ZERO.bytes(&payload),
            payload,
            counts: Arc::default(),
        })
    }

    /// Waits until every connection is open.
    fn connect(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + OPENING;
        let mut asked = None::<Instant>;
        let options = syn_options(self.payload.len());
        while self.giving.iter().any(|peer| !peer.open) {
            let now = Instant::now();
            ensure!(now < end, "connections do not open within {OPENING:?}");
            if asked.is_none_or(|asked| now - asked > REPEAT) {
                asked = Some(now);
                for peer in self.giving.iter().filter(|peer| !peer.open) {
                    let syn = header(&peer.flow, INITIAL, 0, Flags::SYN);
                    let syn = Header { options, ..syn };
                    self.peers.send(&peer.flow, syn, &[])?;
                }
                self.peers.flush()?;
            }
            self.receive(now)?;
        }
        Ok(())
    }

    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut now = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let gave = self.give(now)?;
            let received = self.receive(now)?;
            if !gave && !received {
                // Frames that a veth delivers while its receiver sleeps are handled on
                // this processor, in ksoftirqd after a while.
                std::thread::sleep(Duration::from_micros(5));
            }
            let began = std::mem::replace(&mut now, Instant::now());
            if !gave && !received {
                let idle = (now - began).as_nanos() as u64;
                self.counts.idle.fetch_add(idle, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Sends everything that may be in flight; returns true if that was anything.
    fn give(&mut self, now: Instant) -> anyhow::Result<bool> {
        let length = self.payload.len() as u32;
        let each = UNDER_WAY / self.giving.len().max(1) as u32;
        let mut any = false;
        for peer in &mut self.giving {
            let under_way = peer.next.wrapping_sub(peer.acked);
            if under_way > 0 && now.duration_since(peer.since) > REPEAT {
                let again = under_way / length.max(1);
                (peer.next, peer.since) = (peer.acked, now);
                self.counts
                    .repeated
                    .fetch_add(again.into(), Ordering::Relaxed);
            }
            while let Some(header) = peer.give(length, each * length) {
                let sum = self.payload_sum;
                if !self.peers.give(&peer.flow, header, &self.payload, sum)? {
                    break;
                }
                if peer.next == peer.acked {
                    peer.since = now;
                }
                peer.next = peer.next.wrapping_add(length);
                any = true;
            }
        }
        self.peers.flush()?;
        Ok(any)
    }

    /// Receives frames on both sides; returns true if there were any.
    fn receive(&mut self, now: Instant) -> anyhow::Result<bool> {
        let giving = &mut self.giving;
        let heard = self.peers.receive(|port, segment| {
            let peer = giving.iter_mut().find(|peer| peer.flow == segment.flow);
            let Some(peer) = peer else { return Ok(()) };
            if let Some(answer) = peer.hear(&segment.header, now)? {
                port.send(&peer.flow, answer, &[])?;
            }
            Ok(())
        })?;
        let (taking, counts) = (&mut self.taking, &self.counts);
        let frame = self.payload.len().max(1) as u32;
        let window = u32::from(u16::MAX) << WINDOW_SCALE;
        let acknowledge = (window / frame / 2).clamp(1, ACKNOWLEDGE);
        let options = syn_options(self.payload.len());
        let took = self.members.receive(|port, segment| {
            let known = taking.iter().position(|it| it.flow == segment.flow);
            if segment.header.flags.contains(Flags::SYN) {
                let next = segment.header.sequence.wrapping_add(1);
                let flow = segment.flow;
                let answer = header(&flow, INITIAL, next, Flags::SYN | Flags::ACK);
                if known.is_none() {
                    taking.push(Member { flow, next, due: 0 });
                }
                port.send(&flow, Header { options, ..answer }, &[])?;
            } else if let Some(member) = known.and_then(|known| taking.get_mut(known))
                && !segment.payload.is_empty()
            {
                let bytes = member.take(segment, frame);
                counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                if bytes == 0 || member.due >= acknowledge {
                    member.acknowledge(port)?;
                }
            }
            Ok(())
        })?;
        if !took {
            for member in taking.iter_mut().filter(|member| member.due > 0) {
                member.acknowledge(&mut self.members)?;
            }
        }
        self.peers.flush()?;
        self.members.flush()?;
        Ok(heard || took)
    }
}

impl Member {
    /// Returns how many expected bytes a segment has brought. Frames have `frame` bytes
    /// each.
    fn take(&mut self, segment: &SegmentInPieces<'_>, frame: u32) -> u64 {
        if segment.header.sequence != self.next {
            return 0;
        }
        self.next = self.next.wrapping_add(segment.payload.len() as u32);
        // The switch may have joined several.
        self.due += segment.payload.len() as u32 / frame;
        segment.payload.len() as u64
    }

    fn acknowledge(&mut self, port: &mut Port) -> anyhow::Result<()> {
        self.due = 0;
        let ack = header(&self.flow, INITIAL + 1, self.next, Flags::ACK);
        port.send(&self.flow, ack, &[])?;
        Ok(())
    }
}
