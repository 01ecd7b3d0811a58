//! UDP (RFC 768; RFC 1122 §4.1; over IPv6 RFC 8200 §8.1).
//!
//! [`input`] runs once per datagram in the receiver's own context. It allocates nothing
//! and touches each byte once, for the checksum. [`output()`] writes a whole Ethernet
//! frame.

mod output;
#[cfg(test)]
mod tests;

use core::ops::Range;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use tidewall_wire::Protocol;
use tidewall_wire::udp::{Addresses, HEADER_LEN, Packet};

use crate::ip;
pub use crate::{DropReason, InputOptions};
pub use output::{HEADERS_V4, HEADERS_V6, Output, OutputError, output, output_around};
pub use tidewall_wire::udp::Checksum;

/// A datagram that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The sender. An IPv6 scope id is zero: the caller knows the interface.
    pub source: SocketAddr,
    /// The local address and port to which it was sent.
    pub destination: SocketAddr,
    /// Position of its payload in the bytes passed to [`input`].
    pub payload: Range<usize>,
    /// Type of service (IPv4) or traffic class (IPv6): DSCP and ECN.
    pub traffic_class: u8,
    /// Remaining hops.
    pub hop_limit: u8,
}

/// The checksum rules of RFC 768, RFC 8200 §8.1 and of virtual devices.
#[inline]
fn verify_checksum(
    packet: &Packet<'_>,
    addresses: Addresses,
    options: &InputOptions,
) -> Result<(), DropReason> {
    let may_be_left = options.checksum_offload_possible;
    match (packet.checksum(), addresses) {
        (0, Addresses::V4(..)) => Ok(()),
        (0, Addresses::V6(..)) => Err(DropReason::UdpNoChecksum),
        _ if packet.has_acceptable_checksum(addresses, may_be_left) => Ok(()),
        _ => Err(DropReason::UdpChecksum),
    }
}

/// Accepts or refuses a datagram. `bytes` start at the IP header and hold at least the
/// datagram; `transport_offset` is the offset of the UDP header in the frame's metadata.
/// This checks lengths, header chain and checksums.
///
/// A datagram whose UDP length is shorter than the IP payload is accepted without the
/// rest, as by Linux. Source port zero is accepted too (RFC 768: no answer wanted).
// As a function call, it costs a sixth of the time to receive a datagram.
#[inline(always)]
pub fn input(
    bytes: &[u8],
    transport_offset: usize,
    options: &InputOptions,
) -> Result<Datagram, DropReason> {
    let received = ip::input(bytes, transport_offset, [Protocol::UDP; 2])?;
    // With fewer than eight bytes the lengths contradict each other just as well.
    let packet = Packet::new(received.transport).map_err(|_| DropReason::UdpLength)?;
    let (source_port, destination_port) = (packet.source_port(), packet.destination_port());
    let (source, destination) = match received.addresses {
        Addresses::V4(source, destination) => (
            SocketAddr::V4(SocketAddrV4::new(source, source_port)),
            SocketAddr::V4(SocketAddrV4::new(destination, destination_port)),
        ),
        Addresses::V6(source, destination) => (
            SocketAddr::V6(SocketAddrV6::new(source, source_port, 0, 0)),
            SocketAddr::V6(SocketAddrV6::new(destination, destination_port, 0, 0)),
        ),
    };
    if !options.verified {
        verify_checksum(&packet, received.addresses, options)?;
    }
    let start = transport_offset + HEADER_LEN;
    Ok(Datagram {
        source,
        destination,
        payload: start..start + packet.payload().len(),
        traffic_class: received.traffic_class,
        hop_limit: received.hop_limit,
    })
}
