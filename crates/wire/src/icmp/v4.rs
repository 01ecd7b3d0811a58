//! ICMP for IPv4 (RFC 792).

use super::{Error, Parts};
use crate::EmitError;
use crate::checksum::{self, Sum};

/// Message types (RFC 792).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod kind {
    pub const ECHO_REPLY: u8 = 0;
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    /// Deprecated by RFC 6633.
    pub const SOURCE_QUENCH: u8 = 4;
    pub const REDIRECT: u8 = 5;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of destination unreachable (RFC 792, RFC 1122 §3.2.2.1, RFC 1812 §5.2.7.1).
#[expect(missing_docs, reason = "the names are the meaning")]
pub mod unreachable {
    pub const NET: u8 = 0;
    pub const HOST: u8 = 1;
    pub const PROTOCOL: u8 = 2;
    pub const PORT: u8 = 3;
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

/// A checked view of an ICMP message. Its checksum is not checked: ask
/// [`Packet::has_valid_checksum`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a>(Parts<'a>);

impl<'a> Packet<'a> {
    /// Takes the whole payload of an IPv4 datagram.
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

    /// True when the checksum is correct.
    #[must_use]
    pub fn has_valid_checksum(&self) -> bool {
        Sum::ZERO.bytes(self.0.bytes).is_valid()
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
            kind::DESTINATION_UNREACHABLE => Message::DestinationUnreachable {
                code,
                // RFC 1191 §4: the low half, in what RFC 792 left unused.
                mtu: u16::from_be_bytes([c, d]),
                quoted: body,
            },
            kind::TIME_EXCEEDED => Message::TimeExceeded { code, quoted: body },
            kind::PARAMETER_PROBLEM => Message::ParameterProblem {
                code,
                pointer: a,
                quoted: body,
            },
            kind::ECHO | kind::ECHO_REPLY => Message::Echo {
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

/// An ICMP message. `quoted` is the start of the datagram that the error is
/// about, from its IPv4 header on; RFC 4884 extensions may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Type 3.
    DestinationUnreachable {
        /// Why, see [`mod@unreachable`].
        code: u8,
        /// The next hop's MTU in bytes where the code is "fragmentation
        /// needed"; zero from routers older than RFC 1191.
        mtu: u16,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Type 11: hops (code 0) or reassembly time (code 1) used up.
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Type 12.
    ParameterProblem {
        /// Zero when `pointer` points at the bad byte.
        code: u8,
        /// Offset of the bad byte in the quoted datagram.
        pointer: u8,
        /// The datagram.
        quoted: &'a [u8],
    },
    /// Types 8 and 0.
    Echo {
        /// True for type 0.
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
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (kind, code, rest, body) = match *self {
            Self::DestinationUnreachable { code, mtu, quoted } => {
                let [c, d] = mtu.to_be_bytes();
                (kind::DESTINATION_UNREACHABLE, code, [0, 0, c, d], quoted)
            }
            Self::TimeExceeded { code, quoted } => (kind::TIME_EXCEEDED, code, [0; 4], quoted),
            Self::ParameterProblem {
                code,
                pointer,
                quoted,
            } => (kind::PARAMETER_PROBLEM, code, [pointer, 0, 0, 0], quoted),
            Self::Echo {
                reply,
                identifier,
                sequence,
                data,
            } => {
                let [a, b] = identifier.to_be_bytes();
                let [c, d] = sequence.to_be_bytes();
                let kind = if reply { kind::ECHO_REPLY } else { kind::ECHO };
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
        let checksum = checksum::checksum(message);
        super::put_checksum(message, checksum);
        Ok(message.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(message: Message<'_>) {
        let mut bytes = [0xaa; 300];
        let length = message.emit(&mut bytes).unwrap();
        let packet = Packet::new(&bytes[..length]).unwrap();
        assert!(packet.has_valid_checksum());
        assert_eq!(packet.message(), message);
        bytes[length - 1] ^= 0x40;
        assert!(!Packet::new(&bytes[..length]).unwrap().has_valid_checksum());
    }

    #[test]
    fn short_messages_and_short_buffers_are_refused() {
        assert_eq!(Packet::new(&[3; 7]).unwrap_err(), Error::Truncated);
        let message = Message::TimeExceeded {
            code: 0,
            quoted: &[1, 2, 3],
        };
        assert_eq!(
            message.emit(&mut [0; 10]),
            Err(EmitError::BufferTooSmall {
                needed: 11,
                available: 10
            })
        );
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            code: u8, mtu: u16, pointer: u8, sequence: u16, reply: bool,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let quoted = &body[..];
            round_trip(Message::DestinationUnreachable { code, mtu, quoted });
            round_trip(Message::TimeExceeded { code, quoted });
            round_trip(Message::ParameterProblem { code, pointer, quoted });
            round_trip(Message::Echo { reply, identifier: mtu, sequence, data: quoted });
            round_trip(Message::Other { kind: kind::REDIRECT, code, rest: [1, 2, 3, 4], body: quoted });
        }
    }
}
