//! The network header: what every transport engine needs from it and writes before its
//! own header.

mod output;
pub mod reassembly;

use std::net::{Ipv4Addr, Ipv6Addr};

use tidewall_wire::ipv6::ExtensionError;
use tidewall_wire::udp::Addresses;
use tidewall_wire::{Protocol, ipv4, ipv6};

use crate::DropReason;
pub(crate) use output::{Output, output};

/// A whole datagram's network header, parsed and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub addresses: Addresses,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// The bytes after the network headers, without link padding.
    pub transport: &'a [u8],
}

/// Reads the network header of a whole datagram. The frame's metadata puts its transport
/// header at `transport_offset`. The metadata only states where to look; the code checks
/// all of it.
///
/// `protocols` are the expected protocols over IPv4 and over IPv6.
// Inlined for the same reason as `udp::input`.
#[inline(always)]
pub(crate) fn input(
    bytes: &[u8],
    transport_offset: usize,
    protocols: [Protocol; 2],
) -> Result<Received<'_>, DropReason> {
    let [over_v4, over_v6] = protocols;
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => input_v4(bytes, transport_offset, over_v4),
        Some(6) => input_v6(bytes, transport_offset, over_v6),
        Some(_) => Err(DropReason::Version),
        None => Err(DropReason::Truncated),
    }
}

#[inline]
fn input_v4(
    bytes: &[u8],
    transport_offset: usize,
    protocol: Protocol,
) -> Result<Received<'_>, DropReason> {
    let packet = ipv4::Packet::new(bytes).map_err(cause_v4)?;
    accept_v4(&packet, transport_offset, protocol)
}

/// As [`input`], for a datagram of `available` bytes of which only the first are in
/// `bytes`. Also returns the length of the transport in bytes.
pub(crate) fn input_beginning(
    bytes: &[u8],
    available: usize,
    transport_offset: usize,
    protocols: [Protocol; 2],
) -> Result<(Received<'_>, usize), DropReason> {
    let [over_v4, over_v6] = protocols;
    let (received, length) = match bytes.first().map(|byte| byte >> 4) {
        Some(4) => {
            let packet = ipv4::Packet::new_quoted(bytes).map_err(cause_v4)?;
            let received = accept_v4(&packet, transport_offset, over_v4)?;
            (received, usize::from(packet.total_length()))
        }
        Some(6) => {
            let packet = ipv6::Packet::new_quoted(bytes).map_err(cause_v6)?;
            let received = accept_v6(&packet, transport_offset, over_v6)?;
            let length = ipv6::HEADER_LEN + usize::from(packet.payload_length());
            (received, length)
        }
        Some(_) => return Err(DropReason::Version),
        None => return Err(DropReason::Truncated),
    };
    match length.checked_sub(transport_offset) {
        Some(transport) if length <= available => Ok((received, transport)),
        _ => Err(DropReason::Truncated),
    }
}

#[inline]
fn accept_v4<'a>(
    packet: &ipv4::Packet<'a>,
    transport_offset: usize,
    protocol: Protocol,
) -> Result<Received<'a>, DropReason> {
    if !packet.has_valid_checksum() {
        return Err(DropReason::HeaderChecksum);
    }
    if packet.is_fragment() {
        return Err(DropReason::Fragment);
    }
    if packet.protocol() != protocol {
        return Err(DropReason::Protocol);
    }
    if packet.header_len() != transport_offset {
        return Err(DropReason::TransportOffset);
    }
    let source = packet.source();
    if is_martian_v4(source) {
        return Err(DropReason::MartianSource);
    }
    Ok(Received {
        addresses: Addresses::V4(source, packet.destination()),
        traffic_class: packet.tos(),
        hop_limit: packet.ttl(),
        transport: packet.payload(),
    })
}

#[inline]
fn input_v6(
    bytes: &[u8],
    transport_offset: usize,
    protocol: Protocol,
) -> Result<Received<'_>, DropReason> {
    let packet = ipv6::Packet::new(bytes).map_err(cause_v6)?;
    accept_v6(&packet, transport_offset, protocol)
}

#[inline]
fn accept_v6<'a>(
    packet: &ipv6::Packet<'a>,
    transport_offset: usize,
    protocol: Protocol,
) -> Result<Received<'a>, DropReason> {
    let found = packet.extensions().map_err(cause_extensions)?;
    // An atomic fragment is a whole datagram (RFC 6946).
    if found.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
        return Err(DropReason::Fragment);
    }
    if found.protocol != protocol {
        return Err(DropReason::Protocol);
    }
    if found.transport != transport_offset {
        return Err(DropReason::TransportOffset);
    }
    let source = packet.source();
    if is_martian_v6(source) {
        return Err(DropReason::MartianSource);
    }
    let transport = packet
        .payload()
        .get(found.transport - ipv6::HEADER_LEN..)
        .ok_or(DropReason::Truncated)?;
    Ok(Received {
        addresses: Addresses::V6(source, packet.destination()),
        traffic_class: packet.traffic_class(),
        hop_limit: packet.hop_limit(),
        transport,
    })
}

/// Sources that Linux refuses from a link: groups, broadcast, "this network", loopback
/// (RFC 1122 §3.2.1.3). An answer to one of them would go to many hosts or to this one.
fn is_martian_v4(source: Ipv4Addr) -> bool {
    let [first, ..] = source.octets();
    first == 0 || first == 127 || source.is_multicast() || source.is_broadcast()
}

/// As for IPv4 (RFC 4291 §2.7, §2.5.3, §2.5.2). IPv4-mapped addresses are
/// refused too, as Linux does: they stand for IPv4 peers everywhere above.
fn is_martian_v6(source: Ipv6Addr) -> bool {
    source.is_multicast()
        || source.is_loopback()
        || source.is_unspecified()
        || source.to_ipv4_mapped().is_some()
}

pub(crate) fn cause_v4(error: ipv4::Error) -> DropReason {
    match error {
        ipv4::Error::Truncated => DropReason::Truncated,
        ipv4::Error::Version => DropReason::Version,
        ipv4::Error::HeaderLength => DropReason::HeaderLength,
    }
}

pub(crate) fn cause_v6(error: ipv6::Error) -> DropReason {
    match error {
        ipv6::Error::Truncated => DropReason::Truncated,
        ipv6::Error::Version => DropReason::Version,
    }
}

pub(crate) fn cause_extensions(error: ExtensionError) -> DropReason {
    match error {
        ExtensionError::Truncated => DropReason::Truncated,
        ExtensionError::TooMany
        | ExtensionError::HopByHopNotFirst
        | ExtensionError::SecondFragment => DropReason::ExtensionHeaders,
    }
}
