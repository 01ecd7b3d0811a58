//! Formats only: the bytes of Ethernet, IPv4, IPv6, UDP, TCP, ACP, ICMP, ICMPv6 and ATM,
//! parsed and emitted. Also RESP, which is read to steer frames by it, and Linux's header
//! before a frame of a tun or tap.
//!
//! Does not live here: state, sockets, clocks, allocation on the path of a packet, and
//! any decision about a packet (that is `tidewall-protocol`).
//!
//! Each protocol has two types. A *view* (`Packet`, `Frame`) returns one field at a time
//! from bytes whose lengths its constructor has checked; the constructor's error names
//! the cause. A *value* (`Header`, `Message`) holds only the meaning and cannot hold
//! anything that the format cannot express. So it can always be emitted into a buffer
//! that is long enough.
//!
//! ```text
//! ethernet::Frame ─► ipv4::Packet ───────────────────► udp::Packet, tcp::Packet ─► acp::Frames
//!                ├─► ipv6::Packet ─► ipv6::Extensions ─► icmp::Message ─► quoted datagram
//!                └─► atm (a map of its own)
//! ```
//!
//! Read first: RFC 791 and 1122 (IPv4), RFC 8200 (IPv6), RFC 768 and 6935 (UDP),
//! RFC 9293, 7323 and 2018 (TCP),
//! RFC 792 and 4443 (ICMP), RFC 1071 and 1624 (checksum).
#![deny(unsafe_code)]
// Frames and peers reach this code: they could cause any panic in it.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

pub mod acp;
pub mod atm;
pub mod checksum;
pub mod ethernet;
mod fast_open;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod pieces;
pub mod resp;
pub mod tcp;
mod transport;
pub mod udp;
pub mod virtio_net;

use core::fmt;

/// Why a value could not be emitted. The buffer's contents are unspecified after an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The buffer has fewer bytes than the format needs.
    #[error("{needed} bytes needed, the buffer has {available}")]
    BufferTooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes that the buffer has.
        available: usize,
    },
    /// The payload is longer than the format's length field can express.
    #[error("a payload of {length} bytes is over the format's limit of {limit}")]
    PayloadTooLong {
        /// The largest payload that can be expressed, in bytes.
        limit: usize,
        /// Bytes of the given payload.
        length: usize,
    },
}

/// An Internet protocol number, as in IPv4's protocol and IPv6's next header
/// field (IANA "Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: Self = Self(44);
    /// Encapsulating security payload (RFC 4303).
    pub const ESP: Self = Self(50);
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: Self = Self(51);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6 "no next header" (RFC 8200 §4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HOP_BY_HOP => f.write_str("hop-by-hop options"),
            Self::ICMP => f.write_str("ICMP"),
            Self::TCP => f.write_str("TCP"),
            Self::UDP => f.write_str("UDP"),
            Self::ROUTING => f.write_str("routing header"),
            Self::FRAGMENT => f.write_str("fragment header"),
            Self::ESP => f.write_str("ESP"),
            Self::AUTHENTICATION => f.write_str("AH"),
            Self::ICMPV6 => f.write_str("ICMPv6"),
            Self::NO_NEXT_HEADER => f.write_str("no next header"),
            Self::DESTINATION_OPTIONS => f.write_str("destination options"),
            Self(number) => write!(f, "protocol {number}"),
        }
    }
}
