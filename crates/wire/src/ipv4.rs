//! IPv4 (RFC 791): header, options, fragment fields, header checksum.

use std::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::{EmitError, Protocol};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Bytes of the longest header.
pub const HEADER_MAX: usize = 60;

/// Bytes of the longest datagram, header included.
pub const DATAGRAM_MAX: usize = u16::MAX as usize;

/// Why bytes are not an IPv4 datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header, or than the total length.
    #[error("the datagram is shorter than its IPv4 header says")]
    Truncated,
    /// The version is not four.
    #[error("the IP version is not 4")]
    Version,
    /// The header length is below 20 bytes or above the total length.
    #[error("the IPv4 header length is out of range")]
    HeaderLength,
}

/// A checked view of an IPv4 datagram. Its checksum is not checked; use
/// [`Packet::has_valid_checksum`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks version and lengths of the datagram that starts `bytes`. Bytes
    /// after its total length (link padding) are left out.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let total = total_length(bytes)?;
        Self::of(bytes.get(..total).ok_or(Error::Truncated)?)
    }

    /// As [`Packet::new`], but accepts a datagram whose end is missing, as quoted in ICMP
    /// errors (RFC 792). The header must be whole.
    pub fn new_quoted(bytes: &'a [u8]) -> Result<Self, Error> {
        let total = total_length(bytes)?;
        Self::of(bytes.get(..total).unwrap_or(bytes))
    }

    #[inline]
    fn of(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let options_len = header_len
            .checked_sub(HEADER_LEN)
            .ok_or(Error::HeaderLength)?;
        let (options, payload) = rest.split_at_checked(options_len).ok_or(Error::Truncated)?;
        Ok(Self {
            header,
            options,
            payload,
        })
    }

    /// The type of service byte: differentiated services code point (six bits)
    /// and ECN (two bits).
    pub fn tos(&self) -> u8 {
        self.header[1]
    }

    /// Bytes of header and payload, from the header.
    pub fn total_length(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Distinguishes a datagram's fragments from another's.
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// True when routers may not fragment the datagram.
    pub fn dont_fragment(&self) -> bool {
        self.header[6] & 0x40 != 0
    }

    /// True for every fragment but the last.
    pub fn more_fragments(&self) -> bool {
        self.header[6] & 0x20 != 0
    }

    /// Position of the payload in the original datagram's payload.
    pub fn fragment_offset(&self) -> FragmentOffset {
        FragmentOffset(u16::from_be_bytes([self.header[6] & 0x1f, self.header[7]]))
    }

    /// True for a part of a datagram, the first and the last included.
    pub fn is_fragment(&self) -> bool {
        u16::from_be_bytes([self.header[6], self.header[7]]) & 0x3fff != 0
    }

    /// Remaining hops.
    pub fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// The payload's protocol.
    pub fn protocol(&self) -> Protocol {
        Protocol(self.header[9])
    }

    /// The header checksum as sent.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[10], self.header[11]])
    }

    /// True when the header checksum is correct.
    #[must_use]
    #[inline]
    pub fn has_valid_checksum(&self) -> bool {
        Sum::ZERO.bytes(self.header).bytes(self.options).is_valid()
    }

    /// The sender.
    pub fn source(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// The destination.
    pub fn destination(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Bytes of the header, 20 to 60.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// The bytes of the options, 0 to 40, a multiple of four.
    pub fn option_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The payload of the datagram, or of this fragment of it.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The total length of a datagram, checked against its header length.
#[inline]
fn total_length(bytes: &[u8]) -> Result<usize, Error> {
    let header = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(Error::Version);
    }
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_len < HEADER_LEN || header_len > total {
        return Err(Error::HeaderLength);
    }
    Ok(total)
}

/// Position of a fragment's payload, in units of eight bytes: 0 to 8191. IPv6 uses the
/// same unit and range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentOffset(u16);

impl FragmentOffset {
    /// The offset of the first fragment.
    pub const ZERO: Self = Self(0);

    /// Converts from bytes, which must be a multiple of eight and at most 65,528.
    #[must_use]
    pub const fn from_bytes(bytes: u16) -> Option<Self> {
        if bytes.is_multiple_of(8) {
            Some(Self(bytes / 8))
        } else {
            None
        }
    }

    /// The offset in bytes, at most 65,528.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        self.0 * 8
    }
}

/// The options of a header to be emitted: at most 40 bytes, padded with
/// end-of-list bytes to a multiple of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    len: u8,
    bytes: [u8; HEADER_MAX - HEADER_LEN],
}

impl Default for Options {
    fn default() -> Self {
        Self::NONE
    }
}

impl Options {
    /// No options.
    pub const NONE: Self = Self {
        len: 0,
        bytes: [0; HEADER_MAX - HEADER_LEN],
    };

    /// Takes encoded options; `None` if they are longer than 40 bytes.
    #[must_use]
    pub fn new(options: &[u8]) -> Option<Self> {
        let mut bytes = Self::NONE.bytes;
        bytes.get_mut(..options.len())?.copy_from_slice(options);
        Some(Self {
            len: options.len().next_multiple_of(4) as u8,
            bytes,
        })
    }

    /// The padded options, 0 to 40 bytes, a multiple of four.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// An IPv4 header, without the fields that depend on options and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Distinguishes a datagram's fragments from another's; any value if `dont_fragment`
    /// is set (RFC 6864 §4.1).
    pub identification: u16,
    /// Routers may not fragment.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Position of the payload.
    pub fragment_offset: FragmentOffset,
    /// The time to live, in hops.
    pub ttl: u8,
    /// The payload's protocol.
    pub protocol: Protocol,
    /// The sender.
    pub source: Ipv4Addr,
    /// The destination.
    pub destination: Ipv4Addr,
    /// Options, usually none.
    pub options: Options,
}

impl Header {
    /// The header of a datagram. Trailing bytes of options are kept unchanged.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            tos: packet.tos(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
            more_fragments: packet.more_fragments(),
            fragment_offset: packet.fragment_offset(),
            ttl: packet.ttl(),
            protocol: packet.protocol(),
            source: packet.source(),
            destination: packet.destination(),
            options: Options::new(packet.option_bytes()).unwrap_or_default(),
        }
    }

    /// Bytes of the header, 20 to 60.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + usize::from(self.options.len)
    }

    /// Writes the header, checksum included, at the start of `buffer` for a payload of
    /// `payload_len` bytes. Returns the rest of the buffer.
    #[inline]
    pub fn emit<'b>(
        &self,
        payload_len: usize,
        buffer: &'b mut [u8],
    ) -> Result<&'b mut [u8], EmitError> {
        let header_len = self.header_len();
        let limit = DATAGRAM_MAX - header_len;
        let too_long = EmitError::PayloadTooLong {
            limit,
            length: payload_len,
        };
        let total = payload_len.checked_add(header_len).ok_or(too_long)?;
        let total = u16::try_from(total).map_err(|_| too_long)?;
        let available = buffer.len();
        let too_small = EmitError::BufferTooSmall {
            needed: header_len,
            available,
        };
        let (fixed, rest) = buffer
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(too_small)?;
        let (options, rest) = rest
            .split_at_mut_checked(usize::from(self.options.len))
            .ok_or(too_small)?;
        options.copy_from_slice(self.options.as_bytes());
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        fixed[0] = 0x40 | (header_len / 4) as u8;
        fixed[1] = self.tos;
        fixed[2..4].copy_from_slice(&total.to_be_bytes());
        fixed[4..6].copy_from_slice(&self.identification.to_be_bytes());
        fixed[6..8].copy_from_slice(&(flags | self.fragment_offset.0).to_be_bytes());
        fixed[8] = self.ttl;
        fixed[9] = self.protocol.0;
        fixed[10..12].copy_from_slice(&[0, 0]);
        fixed[12..16].copy_from_slice(&self.source.octets());
        fixed[16..].copy_from_slice(&self.destination.octets());
        let checksum = Sum::ZERO.bytes(fixed).bytes(options).checksum();
        fixed[10..12].copy_from_slice(&checksum.to_be_bytes());
        Ok(rest)
    }
}

#[cfg(test)]
mod tests;
