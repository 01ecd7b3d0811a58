//! The common part of UDP and TCP: their checksum, which covers a pseudo-header of
//! addresses (RFC 768, RFC 9293 §3.1, RFC 8200 §8.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Protocol;
use crate::checksum::{self, Sum};
use crate::pieces::Pieces;

/// The state of the checksum field in a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// It is correct.
    Valid,
    /// It is zero: the sender computed none. Acceptable over IPv4 (RFC 768); over IPv6
    /// only for tunnels configured to expect it (RFC 6935).
    Absent,
    /// It is only the sum of the pseudo-header. A sender on the same host has left it to
    /// its device, and no device was in between (Linux `CHECKSUM_PARTIAL`).
    LeftToOffload,
    /// It is wrong.
    Invalid,
}

/// The value to write into the checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The whole checksum, computed here.
    Software,
    /// The sum of the pseudo-header, for the device to finish.
    Offload,
    /// Zero: no checksum. For IPv6 only in tunnels (RFC 6935).
    None,
}

/// The addresses of a datagram, both of one family; part of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4 source and destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 source and destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// Combines both addresses; `None` if their families differ.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6(source, destination)),
            _ => None,
        }
    }

    /// The sum of the pseudo-header. `length` is that of the transport header and its
    /// payload, in bytes, at most 65,535.
    #[inline]
    #[must_use]
    pub fn pseudo_header(self, protocol: Protocol, length: usize) -> Sum {
        match self {
            Self::V4(source, destination) => {
                checksum::pseudo_header_v4(source, destination, protocol, length as u16)
            }
            Self::V6(source, destination) => {
                checksum::pseudo_header_v6(source, destination, protocol, length as u32)
            }
        }
    }
}

/// The state of the checksum field of a datagram of `bytes`, header included.
#[inline]
pub(crate) fn checksum_state(
    addresses: Addresses,
    protocol: Protocol,
    bytes: &[u8],
    field: u16,
) -> ChecksumState {
    let pseudo_header = addresses.pseudo_header(protocol, bytes.len());
    if pseudo_header.bytes(bytes).is_valid() {
        ChecksumState::Valid
    } else if pseudo_header.folded() == field {
        ChecksumState::LeftToOffload
    } else {
        ChecksumState::Invalid
    }
}

/// Whether a datagram with this checksum field is accepted. With `may_be_left`, its
/// sender may have left the checksum to a virtual device. If it did, the payload is not
/// summed.
#[inline]
pub(crate) fn is_acceptable(
    addresses: Addresses,
    protocol: Protocol,
    bytes: &[u8],
    field: u16,
    may_be_left: bool,
) -> bool {
    let pseudo_header = addresses.pseudo_header(protocol, bytes.len());
    may_be_left && pseudo_header.folded() == field || pseudo_header.bytes(bytes).is_valid()
}

/// As [`is_acceptable`], for a datagram in several pieces.
pub(crate) fn is_acceptable_in_pieces(
    addresses: Addresses,
    protocol: Protocol,
    bytes: Pieces<'_>,
    field: u16,
    may_be_left: bool,
) -> bool {
    let pseudo_header = addresses.pseudo_header(protocol, bytes.len());
    may_be_left && pseudo_header.folded() == field || pseudo_header.sum(bytes.sum()).is_valid()
}
