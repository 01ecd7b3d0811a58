//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): the errors that quote a datagram, and
//! echo. Both have the same form. They differ in types, codes and the coverage of the
//! checksum.

pub mod v4;
pub mod v6;

use crate::checksum::Sum;
use crate::transport::Addresses;
use crate::{EmitError, Protocol};

/// Bytes before an error's quoted datagram or an echo's data.
pub const HEADER_LEN: usize = 8;

/// Why bytes are not an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer than eight bytes.
    #[error("the message is shorter than an ICMP header")]
    Truncated,
}

/// An ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The type; see [`v4::kind`] and [`v6::kind`].
    pub kind: u8,
    /// The code within the type.
    pub code: u8,
    /// The second word of the header. In an echo it is identifier and sequence number; in
    /// a parameter problem it locates the bad byte. Otherwise see [`Message::mtu_v4`] and
    /// [`Message::mtu_v6`].
    pub rest: [u8; 4],
    /// An echo's data, or the start of the datagram that an error concerns, from its IP
    /// header on; RFC 4884 extensions may follow it.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Takes the whole payload of an IPv4 datagram, or the bytes after an IPv6 datagram's
    /// extension headers. The checksum is not checked; use [`has_valid_checksum`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, body) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let [kind, code, _, _, a, b, c, d] = *header;
        Ok(Self {
            kind,
            code,
            rest: [a, b, c, d],
            body,
        })
    }

    /// The next hop's MTU in bytes, in [`v4::unreachable::FRAGMENTATION_NEEDED`]: the low
    /// half of the word that RFC 792 left unused (RFC 1191 §4). Zero from older routers.
    pub fn mtu_v4(&self) -> u16 {
        self.sequence()
    }

    /// The next hop's MTU in bytes, in [`v6::kind::PACKET_TOO_BIG`].
    pub fn mtu_v6(&self) -> u32 {
        u32::from_be_bytes(self.rest)
    }

    /// The sequence number of an echo.
    pub fn sequence(&self) -> u16 {
        let [_, _, high, low] = self.rest;
        u16::from_be_bytes([high, low])
    }

    /// Writes the message, checksum included, at the start of `buffer`. Returns the
    /// number of bytes written. The addresses' family is the message's.
    pub fn emit(&self, addresses: Addresses, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let needed = HEADER_LEN + self.body.len();
        let available = buffer.len();
        let too_small = EmitError::BufferTooSmall { needed, available };
        let message = buffer.get_mut(..needed).ok_or(too_small)?;
        let (header, body) = message
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(too_small)?;
        let [a, b, c, d] = self.rest;
        *header = [self.kind, self.code, 0, 0, a, b, c, d];
        body.copy_from_slice(self.body);
        let checksum = covered(addresses, message).bytes(message).checksum();
        if let Some(field) = message.get_mut(2..4) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
        Ok(needed)
    }
}

/// True when a message's checksum is correct for these addresses; only IPv6's checksum
/// covers them.
#[must_use]
pub fn has_valid_checksum(addresses: Addresses, message: &[u8]) -> bool {
    covered(addresses, message).bytes(message).is_valid()
}

/// The sum of the bytes that the checksum covers beside the message.
fn covered(addresses: Addresses, message: &[u8]) -> Sum {
    match addresses {
        Addresses::V4(..) => Sum::ZERO,
        Addresses::V6(..) => addresses.pseudo_header(Protocol::ICMPV6, message.len()),
    }
}

#[cfg(test)]
mod tests;
