//! The bytes of segments: parses an IP datagram into a [`Segment`], and writes an
//! [`Outgoing`] as an Ethernet frame.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use tidewall_wire::ethernet::{self, MacAddress};
use tidewall_wire::pieces::Pieces;
use tidewall_wire::tcp::{self, Flags, Header, PayloadChecksum};
use tidewall_wire::udp::{Addresses, Checksum};
use tidewall_wire::{EmitError, Protocol, ipv4, ipv6};

use super::FourTuple;
use crate::{DropReason, InputOptions, ip};

/// A segment accepted by [`input`]: its lengths, header chain and checksum are right.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The connection to which it belongs, as seen from here.
    pub flow: FourTuple,
    /// Fields and options.
    pub header: Header,
    /// The payload.
    pub payload: &'a [u8],
    /// Type of service (IPv4) or traffic class (IPv6): DSCP and ECN.
    pub traffic_class: u8,
}

/// A [`Segment`] whose payload may lie in several pieces.
#[derive(Clone, Copy, Debug)]
pub struct SegmentInPieces<'a> {
    /// As [`Segment::flow`].
    pub flow: FourTuple,
    /// As [`Segment::header`].
    pub header: Header,
    /// As [`Segment::payload`].
    pub payload: Pieces<'a>,
    /// As [`Segment::traffic_class`].
    pub traffic_class: u8,
}

impl SegmentInPieces<'_> {
    /// As [`Segment::sequence_len`].
    pub fn sequence_len(&self) -> u32 {
        sequence_len(self.header.flags, self.payload.len())
    }

    /// Returns the same segment without its payload.
    pub fn bare(&self) -> Segment<'static> {
        Segment {
            flow: self.flow,
            header: self.header,
            payload: &[],
            traffic_class: self.traffic_class,
        }
    }
}

impl<'a> From<Segment<'a>> for SegmentInPieces<'a> {
    #[inline]
    fn from(segment: Segment<'a>) -> Self {
        SegmentInPieces {
            flow: segment.flow,
            header: segment.header,
            payload: segment.payload.into(),
            traffic_class: segment.traffic_class,
        }
    }
}

impl Segment<'_> {
    /// The number of sequence numbers it occupies (SEG.LEN of RFC 9293): payload, SYN and
    /// FIN.
    pub fn sequence_len(&self) -> u32 {
        sequence_len(self.header.flags, self.payload.len())
    }
}

fn sequence_len(flags: Flags, payload: usize) -> u32 {
    payload as u32 + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN))
}

/// Accepts or refuses a segment. `bytes` start at the IP header and hold at least the
/// datagram; `transport_offset` is the offset of the TCP header in the frame's metadata.
/// This checks lengths, header chain and checksums.
///
/// # Errors
/// The cause for which the segment is dropped.
#[inline]
pub fn input<'a>(
    bytes: &'a [u8],
    transport_offset: usize,
    options: &InputOptions,
) -> Result<Segment<'a>, DropReason> {
    let received = ip::input(bytes, transport_offset, [Protocol::TCP; 2])?;
    accept(
        received.transport,
        received.addresses,
        received.traffic_class,
        options,
    )
}

/// As [`input`], for a segment whose IP header was read elsewhere: `bytes` are the
/// segment, from its TCP header to its end.
pub fn input_bare<'a>(
    bytes: &'a [u8],
    addresses: Addresses,
    options: &InputOptions,
) -> Result<Segment<'a>, DropReason> {
    accept(bytes, addresses, 0, options)
}

/// As [`input`], for a datagram that may lie in several pieces: its headers must be in
/// the first.
///
/// # Errors
/// As [`input`].
pub fn input_in_pieces<'a>(
    bytes: Pieces<'a>,
    transport_offset: usize,
    options: &InputOptions,
) -> Result<SegmentInPieces<'a>, DropReason> {
    if let Some(bytes) = bytes.as_slice() {
        return input(bytes, transport_offset, options).map(SegmentInPieces::from);
    }
    let protocols = [Protocol::TCP; 2];
    let (received, length) =
        ip::input_beginning(bytes.first(), bytes.len(), transport_offset, protocols)?;
    let truncated = || DropReason::Truncated;
    let whole = bytes.get(transport_offset..transport_offset + length);
    let whole = whole.ok_or_else(truncated)?;
    let packet = packet(received.transport)?;
    if !options.verified
        && !packet.has_acceptable_checksum_of(
            whole,
            received.addresses,
            options.checksum_offload_possible,
        )
    {
        return Err(DropReason::TcpChecksum);
    }
    let (header, flow) = header(&packet, received.addresses)?;
    Ok(SegmentInPieces {
        flow,
        header,
        payload: whole
            .get(packet.header_len()..length)
            .ok_or_else(truncated)?,
        traffic_class: received.traffic_class,
    })
}

fn packet(bytes: &[u8]) -> Result<tcp::Packet<'_>, DropReason> {
    tcp::Packet::new(bytes).map_err(|error| match error {
        tcp::Error::Truncated => DropReason::Truncated,
        tcp::Error::DataOffset => DropReason::TcpDataOffset,
    })
}

#[inline]
fn accept<'a>(
    bytes: &'a [u8],
    addresses: Addresses,
    traffic_class: u8,
    options: &InputOptions,
) -> Result<Segment<'a>, DropReason> {
    let packet = packet(bytes)?;
    if !options.verified
        && !packet.has_acceptable_checksum(addresses, options.checksum_offload_possible)
    {
        return Err(DropReason::TcpChecksum);
    }
    let (header, flow) = header(&packet, addresses)?;
    Ok(Segment {
        flow,
        header,
        payload: packet.payload(),
        traffic_class,
    })
}

#[inline]
fn header(
    packet: &tcp::Packet<'_>,
    addresses: Addresses,
) -> Result<(Header, FourTuple), DropReason> {
    let header = packet.header();
    if header.source_port == 0 || header.destination_port == 0 {
        return Err(DropReason::TcpPort);
    }
    let flow = match addresses {
        Addresses::V4(source, destination) => FourTuple {
            local: SocketAddr::V4(SocketAddrV4::new(destination, header.destination_port)),
            remote: SocketAddr::V4(SocketAddrV4::new(source, header.source_port)),
        },
        Addresses::V6(source, destination) => FourTuple {
            local: SocketAddr::V6(SocketAddrV6::new(
                destination,
                header.destination_port,
                0,
                0,
            )),
            remote: SocketAddr::V6(SocketAddrV6::new(source, header.source_port, 0, 0)),
        },
    };
    Ok((header, flow))
}

/// A segment to be sent, or several that share a header (see [`Outgoing::segment_size`]).
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Fields and options of the first segment; the last segment carries PSH and FIN.
    pub header: Header,
    /// The payload, in up to two pieces.
    pub payload: [&'a [u8]; 2],
    /// Payload bytes of a full segment. The payload is longer only if
    /// [`Config::offload`](super::Config::offload) allows it; the device then cuts it
    /// into segments of this size.
    pub segment_size: u16,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
}

impl Outgoing<'_> {
    /// True for several segments that share a header.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.payload_len() > usize::from(self.segment_size)
    }

    /// True for a segment that occupies sequence numbers: with payload, SYN or FIN.
    #[inline]
    pub fn has_sequence(&self) -> bool {
        let flags = self.header.flags;
        self.payload_len() > 0 || flags.contains(Flags::SYN) || flags.contains(Flags::FIN)
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        let [first, second] = self.payload;
        first.len() + second.len()
    }
}

/// The link by which a segment leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The sending interface's address.
    pub source_mac: MacAddress,
    /// The next hop's address.
    pub destination_mac: MacAddress,
    /// The hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
    /// The place where the checksum is computed; [`Checksum::None`] counts as
    /// [`Checksum::Software`].
    pub checksum: Checksum,
}

/// Why a segment could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// The ends of the flow are of different families.
    #[error("the ends differ in address family")]
    AddressFamily,
    /// Payload and headers are longer than an IP datagram.
    #[error("the segment is longer than an IP datagram")]
    TooLong,
    /// The frame is too short for headers and payload.
    #[error("a frame of {needed} bytes does not fit {available}")]
    FrameTooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes the frame has.
        available: usize,
    },
}

/// Writes Ethernet, IP and TCP headers and the payload at the start of `frame`. Returns
/// the number of bytes written. IPv4 datagrams are sent with don't-fragment set (RFC
/// 1191).
///
/// With [`Checksum::Offload`] the field gets the sum of the pseudo-header, as
/// `CHECKSUM_PARTIAL`, virtio-net and AF_XDP require.
///
/// # Errors
/// See [`OutputError`]; the frame's contents are then undefined.
#[inline]
pub fn output(
    frame: &mut [u8],
    link: &Link,
    flow: &FourTuple,
    outgoing: &Outgoing<'_>,
) -> Result<usize, OutputError> {
    let addresses =
        Addresses::new(flow.local.ip(), flow.remote.ip()).ok_or(OutputError::AddressFamily)?;
    let ip_len = match addresses {
        Addresses::V4(..) => ipv4::HEADER_LEN,
        Addresses::V6(..) => ipv6::HEADER_LEN,
    };
    let transport = ethernet::HEADER_LEN + ip_len;
    let start = transport + outgoing.header.header_len();
    let payload_len = outgoing.payload_len();
    let (needed, available) = (start + payload_len, frame.len());
    let too_small = OutputError::FrameTooSmall { needed, available };
    let frame = frame.get_mut(..needed).ok_or(too_small)?;
    let [first, second] = outgoing.payload;
    if let Some((head, tail)) = frame
        .get_mut(start..)
        .and_then(|place| place.split_at_mut_checked(first.len()))
    {
        head.copy_from_slice(first);
        tail.copy_from_slice(second);
    }
    write(frame, link, outgoing, addresses, needed - transport).map_err(|error| match error {
        EmitError::PayloadTooLong { .. } => OutputError::TooLong,
        EmitError::BufferTooSmall { .. } => too_small,
    })?;
    Ok(needed)
}

/// Writes Ethernet, IP and TCP headers into the last bytes of `room`, so that they
/// precede a payload that stays where it was received. Returns the number of bytes
/// written. [`Link::checksum`] is ignored.
///
/// # Errors
/// See [`OutputError`].
pub fn output_before(
    room: &mut [u8],
    link: &Link,
    flow: &FourTuple,
    header: &Header,
    traffic_class: u8,
    (payload_len, checksum): (usize, PayloadChecksum),
) -> Result<usize, OutputError> {
    let addresses =
        Addresses::new(flow.local.ip(), flow.remote.ip()).ok_or(OutputError::AddressFamily)?;
    let ip_len = match addresses {
        Addresses::V4(..) => ipv4::HEADER_LEN,
        Addresses::V6(..) => ipv6::HEADER_LEN,
    };
    let header_len = header.header_len();
    let (needed, available) = (ethernet::HEADER_LEN + ip_len + header_len, room.len());
    let too_small = OutputError::FrameTooSmall { needed, available };
    let headers = available
        .checked_sub(needed)
        .and_then(|start| room.get_mut(start..))
        .ok_or(too_small)?;
    let network = network(link, traffic_class);
    let emitted = ip::output(headers, &network, addresses, header_len + payload_len)
        .and_then(|rest| header.emit_before(addresses, payload_len, checksum, rest));
    emitted.map_err(|error| match error {
        EmitError::PayloadTooLong { .. } => OutputError::TooLong,
        EmitError::BufferTooSmall { .. } => too_small,
    })?;
    Ok(needed)
}

fn network(link: &Link, traffic_class: u8) -> ip::Output {
    ip::Output {
        source_mac: link.source_mac,
        destination_mac: link.destination_mac,
        traffic_class,
        hop_limit: link.hop_limit,
        // May be zero with don't-fragment set (RFC 6864 §4.1).
        identification: 0,
        protocol: Protocol::TCP,
    }
}

#[inline]
fn write(
    frame: &mut [u8],
    link: &Link,
    outgoing: &Outgoing<'_>,
    addresses: Addresses,
    segment_len: usize,
) -> Result<(), EmitError> {
    let network = network(link, outgoing.traffic_class);
    let rest = ip::output(frame, &network, addresses, segment_len)?;
    outgoing
        .header
        .emit_around(addresses, outgoing.payload_len(), link.checksum, rest)?;
    Ok(())
}

/// The RST that answers a segment of no connection (RFC 9293 §3.5.2, group 1); `None` for
/// a segment that is itself an RST.
#[must_use]
pub fn reset_for(segment: &Segment<'_>) -> Option<Outgoing<'static>> {
    reset_to(&segment.header, segment.sequence_len())
}

/// As [`reset_for`], for a segment that occupies `sequence_len` sequence numbers.
pub fn reset_to(header: &Header, sequence_len: u32) -> Option<Outgoing<'static>> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let (sequence, acknowledgment, flags) = if header.flags.contains(Flags::ACK) {
        (header.acknowledgment, 0, Flags::RST)
    } else {
        let end = header.sequence.wrapping_add(sequence_len);
        (0, end, Flags::RST | Flags::ACK)
    };
    Some(Outgoing {
        header: Header {
            source_port: header.destination_port,
            destination_port: header.source_port,
            sequence,
            acknowledgment,
            flags,
            ..Header::default()
        },
        payload: [&[]; 2],
        segment_size: 0,
        traffic_class: 0,
    })
}

#[cfg(test)]
mod tests;
