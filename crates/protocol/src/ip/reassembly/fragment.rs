//! Reads one fragment and makes every check that needs no other fragment.

use std::net::{Ipv4Addr, Ipv6Addr};

use tidewall_wire::{Protocol, ipv4, ipv6};

use super::Reassembled;
use crate::DropReason;
use crate::ip::{cause_extensions, cause_v4, cause_v6};

/// Bytes of a transport header that a first fragment must contain (RFC 7112). An IPv4
/// fragment cannot have fewer, since its length is a multiple of eight.
const TRANSPORT_MIN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// The key that all fragments of one datagram share (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    V4 {
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: Protocol,
        identification: u16,
    },
    V6 {
        source: Ipv6Addr,
        destination: Ipv6Addr,
        identification: u32,
    },
}

impl Key {
    pub(super) fn family(&self) -> Family {
        match self {
            Self::V4 { .. } => Family::V4,
            Self::V6 { .. } => Family::V6,
        }
    }
}

/// One fragment that has passed the checks of this module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment<'a> {
    pub key: Key,
    /// Offset of the payload in the datagram, in bytes.
    pub offset: usize,
    pub more: bool,
    /// ECN field, 0 to 3.
    pub ecn: u8,
    /// The network header that all fragments repeat: up to the fragment header
    /// for IPv6.
    pub header: &'a [u8],
    /// For IPv6: which byte of `header` announces the fragment header, and its
    /// replacement value.
    pub announced: Option<(usize, Protocol)>,
    /// For IPv6's first fragment: offset of the transport header in its payload.
    pub transport: usize,
    /// Never empty.
    pub payload: &'a [u8],
}

impl Fragment<'_> {
    pub(super) fn end(&self) -> usize {
        self.offset + self.payload.len()
    }
}

/// The result of parsing.
pub(super) enum Parsed<'a> {
    Fragment(Fragment<'a>),
    /// An IPv6 atomic fragment: already whole (RFC 6946), and never mixed with other
    /// fragments of the same key.
    Atomic(Reassembled),
}

pub(super) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, DropReason> {
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => parse_v4(bytes).map(Parsed::Fragment),
        Some(6) => parse_v6(bytes),
        Some(_) => Err(DropReason::Version),
        None => Err(DropReason::Truncated),
    }
}

fn parse_v4(bytes: &[u8]) -> Result<Fragment<'_>, DropReason> {
    let packet = ipv4::Packet::new(bytes).map_err(cause_v4)?;
    if !packet.has_valid_checksum() {
        return Err(DropReason::HeaderChecksum);
    }
    if !packet.is_fragment() {
        return Err(DropReason::NotFragment);
    }
    let fragment = Fragment {
        key: Key::V4 {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            identification: packet.identification(),
        },
        offset: usize::from(packet.fragment_offset().bytes()),
        more: packet.more_fragments(),
        ecn: packet.tos() & 3,
        header: bytes
            .get(..packet.header_len())
            .ok_or(DropReason::Truncated)?,
        announced: None,
        transport: 0,
        payload: packet.payload(),
    };
    check(&fragment, fragment.header.len())?;
    Ok(fragment)
}

fn parse_v6(bytes: &[u8]) -> Result<Parsed<'_>, DropReason> {
    let packet = ipv6::Packet::new(bytes).map_err(cause_v6)?;
    let found = packet.extensions().map_err(cause_extensions)?;
    let header = found.fragment.ok_or(DropReason::NotFragment)?;
    let end = ipv6::HEADER_LEN + packet.payload().len();
    let payload_at = header.at + ipv6::FRAGMENT_HEADER_LEN;
    let fragment = Fragment {
        key: Key::V6 {
            source: packet.source(),
            destination: packet.destination(),
            identification: header.identification,
        },
        offset: usize::from(header.offset.bytes()),
        more: header.more,
        ecn: packet.traffic_class() & 3,
        header: bytes.get(..header.at).ok_or(DropReason::Truncated)?,
        announced: Some((header.announced_at, header.next_header)),
        transport: found.transport - payload_at,
        payload: bytes.get(payload_at..end).ok_or(DropReason::Truncated)?,
    };
    if header.is_atomic() {
        return atomic(&fragment).map(Parsed::Atomic);
    }
    // The payload length counts extension headers, not the IPv6 header.
    check(&fragment, fragment.header.len() - ipv6::HEADER_LEN)?;
    if fragment.offset == 0 && found.transport + TRANSPORT_MIN > end {
        return Err(DropReason::FragmentHeaders);
    }
    Ok(Parsed::Fragment(fragment))
}

/// The length field includes `counted` bytes of the header.
fn check(fragment: &Fragment<'_>, counted: usize) -> Result<(), DropReason> {
    if fragment.payload.is_empty() {
        return Err(DropReason::FragmentEmpty);
    }
    if fragment.more && !fragment.payload.len().is_multiple_of(8) {
        return Err(DropReason::FragmentLength);
    }
    if counted + fragment.end() > usize::from(u16::MAX) {
        return Err(DropReason::FragmentTooLarge);
    }
    Ok(())
}

fn atomic(fragment: &Fragment<'_>) -> Result<Reassembled, DropReason> {
    let mut bytes = Vec::with_capacity(fragment.header.len() + fragment.payload.len());
    bytes.extend_from_slice(fragment.header);
    bytes.extend_from_slice(fragment.payload);
    finish_v6(&mut bytes, fragment.announced, None)?;
    let transport = fragment.header.len() + fragment.transport;
    Ok(Reassembled {
        bytes,
        transport,
        tag: None,
    })
}

/// Corrects the IPv6 header of a reassembled datagram: length, next header, and
/// "congestion experienced" if a fragment had it.
pub(super) fn finish_v6(
    bytes: &mut [u8],
    announced: Option<(usize, Protocol)>,
    ecn: Option<u8>,
) -> Result<(), DropReason> {
    let length = bytes
        .len()
        .checked_sub(ipv6::HEADER_LEN)
        .ok_or(DropReason::Truncated)?;
    let length = u16::try_from(length).map_err(|_| DropReason::FragmentTooLarge)?;
    if let Some(field) = bytes.get_mut(4..6) {
        field.copy_from_slice(&length.to_be_bytes());
    }
    if let Some((at, next)) = announced
        && let Some(field) = bytes.get_mut(at)
    {
        *field = next.0;
    }
    if let (Some(ecn), Some(field)) = (ecn, bytes.get_mut(1)) {
        // The traffic class straddles bytes 0 and 1; ECN is its low two bits.
        *field |= ecn << 4;
    }
    Ok(())
}

/// Corrects the IPv4 header of a reassembled datagram: length, fragment fields,
/// "congestion experienced", checksum.
pub(super) fn finish_v4(
    header: &[u8],
    payload_len: usize,
    ecn: Option<u8>,
    bytes: &mut [u8],
) -> Result<(), DropReason> {
    // Set the length to the header's own, so that the view accepts it.
    let mut alone = header.to_vec();
    if let Some(field) = alone.get_mut(2..4) {
        field.copy_from_slice(&(header.len() as u16).to_be_bytes());
    }
    let packet = ipv4::Packet::new(&alone).map_err(cause_v4)?;
    let header = ipv4::Header {
        tos: packet.tos() | ecn.unwrap_or(0),
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: ipv4::FragmentOffset::ZERO,
        ..ipv4::Header::of(&packet)
    };
    header
        .emit(payload_len, bytes)
        .map_err(|_| DropReason::FragmentTooLarge)?;
    Ok(())
}
