//! Transmission: queues frames in a device's ring and sends them.

pub mod circuits;
pub mod long;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewall_device::frame::{Frame, FrameMemory};
use tidewall_device::queue::{BURST, Flushed, Offload, Transmit};
use tidewall_protocol::tcp::{self, FourTuple, Link, Outgoing};
use tidewall_protocol::udp::{self, Checksum, HEADERS_V4, HEADERS_V6, Output, OutputError};
use tidewall_receive::poller::Origins;
use tidewall_wire::checksum::Sum;
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::{CHECKSUM_OFFSET as TCP_CHECKSUM_OFFSET, Header, PayloadChecksum};
use tidewall_wire::{ipv4, ipv6};

use long::LongCounts;

/// Payloads longer than this have their checksum computed by the device if it can: below,
/// asking costs more than computing.
const OFFLOAD_ABOVE: usize = 256;
/// Offset of the checksum in a UDP header (RFC 768).
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// A datagram's header fields.
#[derive(Clone, Copy, Debug)]
pub struct Heading {
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// The link address of the next hop.
    pub neighbour: MacAddress,
    /// The DSCP and ECN bits.
    pub traffic_class: u8,
    /// The TTL, or the hop limit.
    pub hop_limit: u8,
}

/// The transmitting half of a queue, with the frames it sends from.
pub struct Transmitter {
    device: Box<dyn Transmit>,
    memory: FrameMemory,
    free: Vec<Frame>,
    /// Frames that it began with.
    pool: usize,
    /// Returns received frames to their queues, if this transmitter sends them.
    origins: Option<Origin>,
    mac: MacAddress,
    /// IP datagram bytes that a frame holds, and that the link carries.
    mtu: usize,
    link_mtu: usize,
    /// Frames that the device has not accepted yet, and packets that long segments were
    /// split into since the last flush.
    waiting: u32,
    /// Frames given to it since its sent frames were last reclaimed.
    since_reclaim: u32,
    sent: Arc<AtomicU64>,
    /// Those of them whose checksum was left to the device.
    offloaded: u64,
    no_frame: u64,
    long: LongCounts,
    /// A packet longer than a frame, while it is being sent.
    beyond_frame: Vec<u8>,
}

/// See [`Transmitter::set_origins`].
struct Origin {
    queues: Arc<Origins>,
    /// Numbers of the frames that the transmitter began with.
    own: Range<u32>,
    /// Frames of others that it has and the device has not sent.
    handed: usize,
}

/// A received segment to be forwarded in place.
pub struct Forwarded<'a> {
    /// The frame that holds the segment.
    pub frame: Frame,
    /// Offset of the TCP header in its packet, in bytes.
    pub transport: usize,
    /// The part of the payload that is sent on, from the packet's first byte. It ends with the
    /// last piece that hangs on the frame, if any does.
    pub payload: Range<usize>,
    /// The sum of all of the payload, if it is known and all is sent on.
    pub sum: Option<Sum>,
    /// The link address of the next hop.
    pub neighbour: MacAddress,
    /// The TTL, or the hop limit.
    pub hop_limit: u8,
    /// The flow that the segment leaves with.
    pub flow: &'a FourTuple,
    /// The TCP header that it leaves with.
    pub header: &'a Header,
    /// The DSCP and ECN bits.
    pub traffic_class: u8,
}

/// Counters of a [`Transmitter`].
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Frames sent.
    pub sent: u64,
    /// Those of them whose checksum was left to the device.
    pub offloaded: u64,
    /// Sends refused for want of a frame.
    pub no_frame: u64,
    /// Segments longer than a packet.
    pub long: LongCounts,
}

impl Transmitter {
    pub(crate) fn new(
        device: Box<dyn Transmit>,
        memory: FrameMemory,
        free: Vec<Frame>,
        mac: MacAddress,
        mtu: usize,
    ) -> Self {
        let mut transmitter = Transmitter {
            device,
            memory,
            pool: free.len(),
            free,
            origins: None,
            mac,
            mtu,
            link_mtu: mtu,
            waiting: 0,
            since_reclaim: 0,
            sent: Arc::default(),
            offloaded: 0,
            no_frame: 0,
            long: LongCounts::default(),
            beyond_frame: Vec::new(),
        };
        transmitter.set_link(mac, mtu);
        transmitter
    }

    /// Sets the link address to send from, and the longest datagram: its `mtu`, or what a
    /// frame allows.
    pub fn set_link(&mut self, mac: MacAddress, mtu: usize) {
        let headroom = usize::from(self.device.headroom());
        self.mac = mac;
        self.link_mtu = mtu;
        self.mtu = mtu.min(
            self.memory
                .frame_size()
                .saturating_sub(HEADER_LEN + headroom),
        );
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.sent.load(Ordering::Relaxed),
            offloaded: self.offloaded,
            no_frame: self.no_frame,
            long: self.long,
        }
    }

    /// Returns the number of datagrams sent, for readers without the lock.
    pub fn sent(&self) -> Arc<AtomicU64> {
        self.sent.clone()
    }

    /// Queues one datagram.
    ///
    /// # Errors
    /// ENOBUFS when every frame is on its way; EMSGSIZE, EAFNOSUPPORT, EINVAL
    /// for what cannot be written.
    pub fn queue(&mut self, heading: &Heading, payload: &[u8]) -> io::Result<()> {
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        let offloaded = payload.len() > OFFLOAD_ABOVE && self.device.checksum_offload();
        let headroom = self.device.headroom();
        frame.set_extent(headroom, u16::MAX);
        let output = Output {
            source_mac: self.mac,
            destination_mac: heading.neighbour,
            source: heading.source,
            destination: heading.destination,
            traffic_class: heading.traffic_class,
            hop_limit: heading.hop_limit,
            identification: 0,
            checksum: if offloaded {
                Checksum::Offload
            } else {
                Checksum::Software
            },
        };
        let length = match udp::output(self.memory.packet_mut(&mut frame), &output, payload) {
            Ok(length) => length,
            Err(error) => {
                self.free.push(frame);
                return Err(output_error(error));
            }
        };
        frame.set_extent(headroom, length as u16);
        let headers = if heading.destination.is_ipv4() {
            HEADERS_V4
        } else {
            HEADERS_V6
        };
        let offload = offloaded.then_some(Offload {
            checksum_start: (headers - tidewall_wire::udp::HEADER_LEN) as u16,
            checksum_offset: UDP_CHECKSUM_OFFSET,
        });
        self.send(frame, offload)
    }

    /// Queues one segment.
    ///
    /// # Errors
    /// As [`Transmitter::queue`]; EMSGSIZE for one that is longer than the MTU.
    pub fn queue_segment(
        &mut self,
        neighbour: MacAddress,
        hop_limit: u8,
        flow: &FourTuple,
        outgoing: &Outgoing<'_>,
    ) -> io::Result<()> {
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        let offloaded = outgoing.payload_len() > OFFLOAD_ABOVE && self.device.checksum_offload();
        let headroom = self.device.headroom();
        frame.set_extent(headroom, u16::MAX);
        let link = Link {
            source_mac: self.mac,
            destination_mac: neighbour,
            hop_limit,
            checksum: if offloaded {
                Checksum::Offload
            } else {
                Checksum::Software
            },
        };
        let length = match tcp::output(self.memory.packet_mut(&mut frame), &link, flow, outgoing) {
            Ok(length) => length,
            Err(error) => {
                self.free.push(frame);
                return Err(io::Error::from_raw_os_error(segment_errno(&error)));
            }
        };
        if length - HEADER_LEN > self.mtu {
            self.free.push(frame);
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        frame.set_extent(headroom, length as u16);
        let network = if flow.remote.is_ipv4() {
            ipv4::HEADER_LEN
        } else {
            ipv6::HEADER_LEN
        };
        let offload = Offload {
            checksum_start: (HEADER_LEN + network) as u16,
            checksum_offset: TCP_CHECKSUM_OFFSET,
        };
        self.send(frame, offloaded.then_some(offload))
    }

    /// Returns the longest IP datagram in one frame, in bytes; the kernel must fragment a
    /// longer one.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Bytes of an IP datagram on the link.
    pub fn link_mtu(&self) -> usize {
        self.link_mtu
    }

    /// Allows frames that other queues, or this one, have received to be sent, too: they
    /// return by `queues`.
    pub fn set_origins(&mut self, queues: Arc<Origins>) {
        let numbers = || self.free.iter().map(Frame::index);
        let own = numbers().min().unwrap_or(0)..numbers().max().map_or(0, |last| last + 1);
        self.origins = Some(Origin {
            queues,
            own,
            handed: 0,
        });
    }

    /// Queues a received segment in place, with new headers.
    ///
    /// # Errors
    /// With the frame: EMSGSIZE, EAFNOSUPPORT, and ENOBUFS when the ring is full.
    pub fn forward(&mut self, forwarded: Forwarded<'_>) -> Result<(), (Frame, io::Error)> {
        let Forwarded {
            mut frame,
            payload,
            sum,
            flow,
            header,
            ..
        } = forwarded;
        let headroom = usize::from(self.device.headroom());
        let begin = usize::from(frame.offset());
        // The rest is in the pieces that hang on the frame.
        let here = payload.end.min(frame.length().into());
        let behind = payload.end - here;
        let (start, end) = (begin + payload.start, begin + here);
        if headroom > start || payload.start < forwarded.transport {
            return Err((frame, io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let packet = (frame.offset(), frame.length());
        let behind_sum = match sum {
            None if behind > 0 => self.sum_behind(&frame),
            _ => Sum::ZERO,
        };
        frame.set_extent(headroom as u16, (end - headroom) as u16);
        let bytes = self.memory.packet_mut(&mut frame);
        let (room, payload) = match bytes.split_at_mut_checked(start - headroom) {
            Some((room, payload)) => (room, &*payload),
            None => (&mut [][..], &[][..]),
        };
        let by_device = sum.is_none() && self.device.checksum_offload();
        let checksum = match sum {
            Some(sum) => PayloadChecksum::Sum(sum),
            None if by_device => PayloadChecksum::Offload,
            None => {
                let is_odd = payload.len() % 2 == 1;
                let behind = if is_odd {
                    behind_sum.shifted()
                } else {
                    behind_sum
                };
                PayloadChecksum::Sum(Sum::ZERO.bytes(payload).sum(behind))
            }
        };
        let link = Link {
            source_mac: self.mac,
            destination_mac: forwarded.neighbour,
            hop_limit: forwarded.hop_limit,
            checksum: Checksum::Software,
        };
        let class = forwarded.traffic_class;
        let in_frame = payload.len();
        let payload = (in_frame + behind, checksum);
        let most = if behind > 0 { self.link_mtu } else { self.mtu };
        let written = tcp::output_before(room, &link, flow, header, class, payload);
        let headers = match written {
            Ok(headers) if headers - HEADER_LEN + payload.0 <= most => headers,
            refused => {
                frame.set_extent(packet.0, packet.1);
                let errno = refused.map_or_else(|error| segment_errno(&error), |_| libc::EMSGSIZE);
                return Err((frame, io::Error::from_raw_os_error(errno)));
            }
        };
        frame.set_extent((start - headers) as u16, (headers + in_frame) as u16);
        let offload = by_device.then_some(Offload {
            checksum_start: (headers - header.header_len()) as u16,
            checksum_offset: TCP_CHECKSUM_OFFSET,
        });
        self.attempt(frame, |device, frame| device.transmit(frame, offload))?;
        self.offloaded += u64::from(by_device);
        if let Some(origins) = &mut self.origins {
            origins.handed += 1;
        }
        Ok(())
    }

    /// Returns the checksum of the pieces attached to a frame.
    #[cold]
    fn sum_behind(&self, frame: &Frame) -> Sum {
        let (mut sum, mut at) = (Sum::ZERO, 0);
        let pieces = (0..).map_while(|number| self.memory.piece_behind(frame, number));
        for piece in pieces {
            let own = Sum::ZERO.bytes(piece);
            sum = sum.sum(if at % 2 == 1 { own.shifted() } else { own });
            at += piece.len();
        }
        sum
    }

    /// Frames of queues that are still to go back to them.
    pub fn handed(&self) -> usize {
        self.origins.as_ref().map_or(0, |origins| origins.handed)
    }

    /// Takes back what the device has sent.
    pub fn reclaim(&mut self) {
        self.since_reclaim = 0;
        let before = self.free.len();
        self.device.reclaim(&mut self.free);
        let Some(origins) = self.origins.as_mut().filter(|it| it.handed > 0) else {
            return;
        };
        let own = origins.own.clone();
        let sent = self
            .free
            .extract_if(before.., |frame| !own.contains(&frame.index()));
        let mut count = 0;
        origins.queues.give_back(sent.inspect(|_| count += 1));
        origins.handed = origins.handed.saturating_sub(count);
    }

    fn send(&mut self, frame: Frame, offload: Option<Offload>) -> io::Result<()> {
        self.give(frame, |device, frame| device.transmit(frame, offload))?;
        self.offloaded += u64::from(offload.is_some());
        Ok(())
    }

    fn give(
        &mut self,
        frame: Frame,
        transmit: impl Fn(&mut dyn Transmit, Frame) -> Result<(), Frame>,
    ) -> io::Result<()> {
        self.attempt(frame, transmit).map_err(|(frame, error)| {
            self.free.push(frame);
            error
        })
    }

    /// Puts a frame into the device's ring, after a flush if it is full.
    fn attempt(
        &mut self,
        frame: Frame,
        transmit: impl Fn(&mut dyn Transmit, Frame) -> Result<(), Frame>,
    ) -> Result<(), (Frame, io::Error)> {
        if let Err(frame) = transmit(&mut *self.device, frame) {
            // A full completion ring stops the device too.
            self.reclaim();
            if let Err(error) = self.flush() {
                return Err((frame, error));
            }
            if let Err(frame) = transmit(&mut *self.device, frame) {
                self.no_frame += 1;
                return Err((frame, io::Error::from_raw_os_error(libc::ENOBUFS)));
            }
        }
        self.waiting += 1;
        self.since_reclaim += 1;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Frames that connections may still queue before the next flush.
    pub fn room(&self) -> u32 {
        BURST.saturating_sub(self.waiting)
    }

    /// Sends a burst of the queued frames, and returns what is left.
    pub fn flush(&mut self) -> io::Result<Flushed> {
        let flushed = self.device.flush()?;
        self.waiting = flushed.left;
        Ok(flushed)
    }

    /// Returns a free frame. It prefers one that was sent lately, which the processor's
    /// caches may still hold.
    fn frame(&mut self) -> io::Result<Option<Frame>> {
        if self.since_reclaim >= BURST {
            self.reclaim();
        }
        if let Some(frame) = self.free.pop() {
            return Ok(Some(frame));
        }
        self.reclaim();
        if self.free.is_empty() {
            self.flush()?;
            self.reclaim();
        }
        Ok(self.free.pop())
    }
}

fn segment_errno(error: &tcp::OutputError) -> i32 {
    match error {
        tcp::OutputError::AddressFamily => libc::EAFNOSUPPORT,
        _ => libc::EMSGSIZE,
    }
}

fn output_error(error: OutputError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}
