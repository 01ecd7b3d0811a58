//! ICMP for IPv6 (RFC 4443). Its checksum covers the pseudo-header, so
//! addresses are needed where IPv4's are not.

use std::net::Ipv6Addr;

use super::{Error, Parts};
use crate::checksum::{self, Sum};
use crate::{EmitError, Protocol};

/// Message types (RFC 4443). Errors are below 128.
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod kind {
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    pub const ECHO_REQUEST: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
}

/// Codes of destination unreachable (RFC 4443 §3.1).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod unreachable {
    pub const NO_ROUTE: u8 = 0;
    pub const PROHIBITED: u8 = 1;
    pub const SCOPE: u8 = 2;
    pub const ADDRESS: u8 = 3;
    pub const PORT: u8 = 4;
    /// Of ingress or egress filters.
    pub const POLICY: u8 = 5;
    pub const REJECT: u8 = 6;
}

/// A checked view of an ICMPv6 message. Its checksum is not checked: ask
/// [`Packet::has_valid_checksum`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(Parts<'a>);

impl<'a> Packet<'a> {
    /// Takes what follows an IPv6 datagram's extension headers.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        Parts::new(bytes).map(Self)
    }

    /// The message type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.0.kind
    }

    /// The code within the type.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.0.code
    }

    /// True when the checksum is correct for these addresses.
    #[must_use]
    pub fn has_valid_checksum(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        pseudo_header(source, destination, self.0.bytes)
            .bytes(self.0.bytes)
            .is_valid()
    }

    /// What the message means.
    #[must_use]
    pub fn message(&self) -> Message<'a> {
        let Parts {
            kind,
            code,
            rest,
            body,
            ..
        } = self.0;
        let [a, b, c, d] = rest;
        match kind {
            kind::DESTINATION_UNREACHABLE => Message::DestinationUnreachable { code, quoted: body },
            kind::PACKET_TOO_BIG => Message::PacketTooBig {
                code,
                mtu: u32::from_be_bytes(rest),
                quoted: body,
            },
            kind::TIME_EXCEEDED => Message::TimeExceeded { code, quoted: body },
            kind::PARAMETER_PROBLEM => Message::ParameterProblem {
                code,
                pointer: u32::from_be_bytes(rest),
                quoted: body,
            },
            kind::ECHO_REQUEST | kind::ECHO_REPLY => Message::Echo {
                reply: kind == kind::ECHO_REPLY,
                identifier: u16::from_be_bytes([a, b]),
                sequence: u16::from_be_bytes([c, d]),
                data: body,
            },
            _ => Message::Other {
                kind,
                code,
                rest,
                body,
            },
        }
    }
}

fn pseudo_header(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Sum {
    // No message comes near 2^32 bytes; a length cut short would only make the
    // checksum wrong.
    let length = message.len() as u32;
    checksum::pseudo_header_v6(source, destination, Protocol::ICMPV6, length)
}

/// An ICMPv6 message. `quoted` is as much as fits of the datagram that the error
/// is about, from its IPv6 header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Type 1.
    DestinationUnreachable {
        /// Why, see [`mod@unreachable`].
        code: u8,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Type 2.
    PacketTooBig {
        /// Sent as zero, ignored when received.
        code: u8,
        /// The next hop's MTU in bytes.
        mtu: u32,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Type 3: hops (code 0) or reassembly time (code 1) used up.
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Type 4.
    ParameterProblem {
        /// Bad field (0), unknown next header (1), unknown option (2).
        code: u8,
        /// Offset of the bad byte in the quoted datagram.
        pointer: u32,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Types 128 and 129.
    Echo {
        /// True for type 129.
        reply: bool,
        /// Tells one pinger from another.
        identifier: u16,
        /// Counts requests.
        sequence: u16,
        /// What to send back.
        data: &'a [u8],
    },
    /// Any other type.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The second word of the header.
        rest: [u8; 4],
        /// What follows.
        body: &'a [u8],
    },
}

impl Message<'_> {
    /// Writes the message, checksum included, at the start of `buffer` and
    /// returns how many bytes that were.
    pub fn emit(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let (kind, code, rest, body) = match *self {
            Self::DestinationUnreachable { code, quoted } => {
                (kind::DESTINATION_UNREACHABLE, code, [0; 4], quoted)
            }
            Self::PacketTooBig { code, mtu, quoted } => {
                (kind::PACKET_TOO_BIG, code, mtu.to_be_bytes(), quoted)
            }
            Self::TimeExceeded { code, quoted } => (kind::TIME_EXCEEDED, code, [0; 4], quoted),
            Self::ParameterProblem {
                code,
                pointer,
                quoted,
            } => (kind::PARAMETER_PROBLEM, code, pointer.to_be_bytes(), quoted),
            Self::Echo {
                reply,
                identifier,
                sequence,
                data,
            } => {
                let [a, b] = identifier.to_be_bytes();
                let [c, d] = sequence.to_be_bytes();
                let kind = if reply {
                    kind::ECHO_REPLY
                } else {
                    kind::ECHO_REQUEST
                };
                (kind, 0, [a, b, c, d], data)
            }
            Self::Other {
                kind,
                code,
                rest,
                body,
            } => (kind, code, rest, body),
        };
        let message = super::emit_parts(kind, code, rest, body, buffer)?;
        let checksum = pseudo_header(source, destination, message)
            .bytes(message)
            .checksum();
        super::put_checksum(message, checksum);
        Ok(message.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOURCE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const DESTINATION: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn round_trip(message: Message<'_>) {
        let mut bytes = [0xaa; 300];
        let length = message.emit(SOURCE, DESTINATION, &mut bytes).unwrap();
        let packet = Packet::new(&bytes[..length]).unwrap();
        assert!(packet.has_valid_checksum(SOURCE, DESTINATION));
        assert!(!packet.has_valid_checksum(SOURCE, Ipv6Addr::LOCALHOST));
        assert_eq!(packet.message(), message);
    }

    #[test]
    fn short_messages_and_short_buffers_are_refused() {
        assert_eq!(Packet::new(&[3; 7]).unwrap_err(), Error::Truncated);
        let message = Message::PacketTooBig {
            code: 0,
            mtu: 1280,
            quoted: &[1, 2, 3],
        };
        assert_eq!(
            message.emit(SOURCE, DESTINATION, &mut [0; 10]),
            Err(EmitError::BufferTooSmall {
                needed: 11,
                available: 10
            })
        );
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            code: u8, pointer: u32, sequence: u16, reply: bool,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let quoted = &body[..];
            round_trip(Message::DestinationUnreachable { code, quoted });
            round_trip(Message::PacketTooBig { code, mtu: pointer, quoted });
            round_trip(Message::TimeExceeded { code, quoted });
            round_trip(Message::ParameterProblem { code, pointer, quoted });
            round_trip(Message::Echo { reply, identifier: 7, sequence, data: quoted });
            round_trip(Message::Other { kind: 137, code, rest: [1, 2, 3, 4], body: quoted });
        }
    }
}
