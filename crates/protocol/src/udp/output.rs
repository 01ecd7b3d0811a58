//! Writing UDP datagrams as Ethernet frames.

use std::net::SocketAddr;

use tidewall_wire::ethernet::{self, MacAddress};
use tidewall_wire::udp::{self, Addresses, Checksum};
use tidewall_wire::{EmitError, Protocol, ipv4, ipv6};

use crate::ip;

/// Bytes before the payload of a datagram over IPv4: Ethernet, IP and UDP.
pub const HEADERS_V4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;

/// Bytes before the payload of a datagram over IPv6: Ethernet, IP and UDP.
pub const HEADERS_V6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// Everything about a datagram to be sent except its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The sending interface's address.
    pub source_mac: MacAddress,
    /// The next hop's address.
    pub destination_mac: MacAddress,
    /// The local address and port.
    pub source: SocketAddr,
    /// The peer's address and port, of the same family.
    pub destination: SocketAddr,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// The hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
    /// IPv4's identification; may always be zero, since the datagram is sent
    /// with don't-fragment set (RFC 6864 §4.1). Not used for IPv6.
    pub identification: u16,
    /// The place where the UDP checksum is computed.
    pub checksum: Checksum,
}

/// Why a datagram could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// Source and destination are of different families.
    #[error("source and destination differ in address family")]
    AddressFamily,
    /// The payload is longer than the protocol permits.
    #[error("the payload is over {limit} bytes")]
    MessageTooLong {
        /// The largest payload in bytes.
        limit: usize,
    },
    /// The frame is too short for headers and payload.
    #[error("a frame of {needed} bytes does not fit {available}")]
    FrameTooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes the frame has.
        available: usize,
    },
    /// IPv6 needs a UDP checksum (RFC 8200 §8.1).
    #[error("UDP over IPv6 needs a checksum")]
    ChecksumRequired,
}

impl OutputError {
    /// The errno that a Linux socket returns in this case.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::AddressFamily => crate::errno::EAFNOSUPPORT,
            Self::MessageTooLong { .. } | Self::FrameTooSmall { .. } => crate::errno::EMSGSIZE,
            Self::ChecksumRequired => crate::errno::EINVAL,
        }
    }
}

/// Writes Ethernet, IP and UDP headers and the payload at the start of `frame`. Returns
/// the number of bytes written.
///
/// IPv4 datagrams are sent with don't-fragment set, as by Linux's default
/// (`IP_PMTUDISC_WANT`). The caller must keep to the path MTU, and must check the
/// destination port, which Linux does not permit to be zero. The flow label is zero. With
/// [`Checksum::Offload`] the field gets the sum of the pseudo-header, as
/// `CHECKSUM_PARTIAL` and AF_XDP's `XDP_TXMD_FLAGS_CHECKSUM` require.
#[inline]
pub fn output(frame: &mut [u8], output: &Output, payload: &[u8]) -> Result<usize, OutputError> {
    let headers = headers_len(output);
    let available = frame.len();
    match frame
        .get_mut(headers..)
        .and_then(|rest| rest.get_mut(..payload.len()))
    {
        Some(place) => {
            place.copy_from_slice(payload);
            output_around(frame, output, payload.len())
        }
        // The error depends on more than the frame.
        None => match output_around(frame, output, payload.len()) {
            Ok(_) => Err(OutputError::FrameTooSmall {
                needed: headers.saturating_add(payload.len()),
                available,
            }),
            Err(error) => Err(error),
        },
    }
}

/// As [`output`], for a payload of `payload_len` bytes that is already in the frame,
/// after the headers: at [`HEADERS_V4`] or [`HEADERS_V6`].
#[inline]
pub fn output_around(
    frame: &mut [u8],
    output: &Output,
    payload_len: usize,
) -> Result<usize, OutputError> {
    let addresses = Addresses::new(output.source.ip(), output.destination.ip())
        .ok_or(OutputError::AddressFamily)?;
    let headers = headers_len(output);
    let limit = match addresses {
        // IPv4's total length counts its own header, IPv6's does not.
        Addresses::V4(..) => ipv4::DATAGRAM_MAX - ipv4::HEADER_LEN - udp::HEADER_LEN,
        Addresses::V6(..) if output.checksum == Checksum::None => {
            return Err(OutputError::ChecksumRequired);
        }
        Addresses::V6(..) => udp::PAYLOAD_MAX,
    };
    if payload_len > limit {
        return Err(OutputError::MessageTooLong { limit });
    }
    let (needed, available) = (headers + payload_len, frame.len());
    if needed > available {
        return Err(OutputError::FrameTooSmall { needed, available });
    }
    write(frame, output, addresses, payload_len).map_err(|error| match error {
        // Both were ruled out above, for the whole frame at once.
        EmitError::PayloadTooLong { .. } => OutputError::MessageTooLong { limit },
        EmitError::BufferTooSmall { .. } => OutputError::FrameTooSmall { needed, available },
    })?;
    Ok(needed)
}

fn headers_len(output: &Output) -> usize {
    if output.destination.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}

#[inline]
fn write(
    frame: &mut [u8],
    output: &Output,
    addresses: Addresses,
    payload_len: usize,
) -> Result<(), EmitError> {
    let network = ip::Output {
        source_mac: output.source_mac,
        destination_mac: output.destination_mac,
        traffic_class: output.traffic_class,
        hop_limit: output.hop_limit,
        identification: output.identification,
        protocol: Protocol::UDP,
    };
    let rest = ip::output(frame, &network, addresses, udp::HEADER_LEN + payload_len)?;
    let header = udp::Header {
        source_port: output.source.port(),
        destination_port: output.destination.port(),
    };
    header.emit_around(addresses, payload_len, output.checksum, rest)?;
    Ok(())
}
