//! IPv6 (RFC 8200): the header and a bounded walk of the extension headers.

use std::net::Ipv6Addr;

use crate::ipv4::FragmentOffset;
use crate::{EmitError, Protocol};

/// Bytes of the IPv6 header itself.
pub const HEADER_LEN: usize = 40;

/// Bytes of a fragment header (RFC 8200 §4.5).
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// The largest number of extension headers in a walk; a longer chain is an error. RFC
/// 8200 §4.1 defines seven places for them, and RFC 8504 §5.3 permits a limit of eight.
pub const EXTENSIONS_MAX: usize = 8;

/// Why bytes are not an IPv6 datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header, or than the payload length.
    #[error("the datagram is shorter than its IPv6 header says")]
    Truncated,
    /// The version is not six.
    #[error("the IP version is not 6")]
    Version,
}

/// A checked view of an IPv6 datagram.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks version and length of the datagram that starts `bytes`. Bytes after its
    /// payload length (link padding) are left out. Jumbograms (RFC 2675) are not
    /// supported: one reads as an empty payload.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let quoted = Self::new_quoted(bytes)?;
        if quoted.payload.len() < usize::from(quoted.payload_length()) {
            return Err(Error::Truncated);
        }
        Ok(quoted)
    }

    /// As [`Packet::new`], but accepts a datagram whose end is missing, as quoted in
    /// ICMPv6 errors (RFC 4443 §2.4).
    #[inline]
    pub fn new_quoted(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        if header[0] >> 4 != 6 {
            return Err(Error::Version);
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Ok(Self {
            header,
            payload: rest.get(..length).unwrap_or(rest),
        })
    }

    /// Differentiated services code point (six bits) and ECN (two bits).
    pub fn traffic_class(&self) -> u8 {
        self.header[0] << 4 | self.header[1] >> 4
    }

    /// The flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.header[1] & 0x0f, self.header[2], self.header[3]])
    }

    /// Bytes after the IPv6 header, extension headers included, from the header.
    pub fn payload_length(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The first header of the payload: an extension header or a transport.
    pub fn next_header(&self) -> Protocol {
        Protocol(self.header[6])
    }

    /// Remaining hops.
    pub fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// The sender.
    pub fn source(&self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.header[8..24]);
        octets.into()
    }

    /// The destination.
    pub fn destination(&self) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.header[24..]);
        octets.into()
    }

    /// The bytes after the IPv6 header, extension headers first.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Walks the extension headers.
    #[inline]
    pub fn extensions(&self) -> Result<Extensions, ExtensionError> {
        Extensions::walk(self.next_header(), self.payload)
    }
}

/// Why a chain of extension headers cannot be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// The payload ends within an extension header.
    #[error("the datagram ends within an extension header")]
    Truncated,
    /// More than [`EXTENSIONS_MAX`] headers.
    #[error("more extension headers than any honest datagram has")]
    TooMany,
    /// Hop-by-hop options that are not first (RFC 8200 §4.1).
    #[error("hop-by-hop options are not the first header")]
    HopByHopNotFirst,
    /// A second fragment header.
    #[error("a second fragment header")]
    SecondFragment,
}

/// A fragment header and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the fragment header from the IPv6 header's first byte.
    pub at: usize,
    /// Offset, from the IPv6 header's first byte, of the next-header byte that
    /// announces the fragment header: 6 when the IPv6 header does.
    pub announced_at: usize,
    /// The next header in the original datagram, from the fragment header.
    pub next_header: Protocol,
    /// Position of the fragment's payload in the fragmentable part.
    pub offset: FragmentOffset,
    /// True for every fragment but the last.
    pub more: bool,
    /// Distinguishes a datagram's fragments from another's.
    pub identification: u32,
}

impl Fragment {
    /// True for a whole datagram that nevertheless carries a fragment header (RFC 6946).
    pub fn is_atomic(&self) -> bool {
        self.offset == FragmentOffset::ZERO && !self.more
    }

    /// Writes the fragment header (not its position) at the start of `buffer`, and
    /// returns the rest of the buffer.
    pub fn emit<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b mut [u8], EmitError> {
        let available = buffer.len();
        let (header, rest) = buffer
            .split_first_chunk_mut::<FRAGMENT_HEADER_LEN>()
            .ok_or(EmitError::BufferTooSmall {
                needed: FRAGMENT_HEADER_LEN,
                available,
            })?;
        header[0] = self.next_header.0;
        header[1] = 0;
        header[2..4].copy_from_slice(&(self.offset.bytes() | u16::from(self.more)).to_be_bytes());
        header[4..].copy_from_slice(&self.identification.to_be_bytes());
        Ok(rest)
    }
}

/// The result of a walk of the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extensions {
    /// The first header that cannot be walked: the transport, ESP, "no next header", or
    /// an unknown one. For a fragment other than the first, the original's next header
    /// according to the fragment header.
    pub protocol: Protocol,
    /// Offset of that header, or of such a fragment's payload, from the IPv6
    /// header's first byte.
    pub transport: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
}

impl Extensions {
    /// Walks the payload (the bytes after the 40-byte header), starting from the
    /// datagram's first next-header value. At most [`EXTENSIONS_MAX`] steps.
    #[inline]
    pub fn walk(first: Protocol, payload: &[u8]) -> Result<Self, ExtensionError> {
        let mut protocol = first;
        let mut announced_at = 6;
        let mut at = 0;
        let mut fragment = None;
        // One turn more than the permitted headers: the last one only finds the
        // transport.
        for step in 0..=EXTENSIONS_MAX {
            let length = match protocol {
                Protocol::HOP_BY_HOP if step > 0 => return Err(ExtensionError::HopByHopNotFirst),
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {
                    // RFC 8200 §4.3: units of eight bytes, not counting the first.
                    |unit: u8| (usize::from(unit) + 1) * 8
                }
                // RFC 4302 §2.2: units of four bytes, minus two.
                Protocol::AUTHENTICATION => |unit: u8| (usize::from(unit) + 2) * 4,
                Protocol::FRAGMENT => |_| FRAGMENT_HEADER_LEN,
                _ => {
                    return Ok(Self {
                        protocol,
                        transport: HEADER_LEN + at,
                        fragment,
                    });
                }
            };
            if step == EXTENSIONS_MAX {
                break;
            }
            let rest = payload.get(at..).ok_or(ExtensionError::Truncated)?;
            let (next, unit) = match rest {
                [next, unit, ..] => (*next, *unit),
                _ => return Err(ExtensionError::Truncated),
            };
            let header = rest.get(..length(unit)).ok_or(ExtensionError::Truncated)?;
            if protocol == Protocol::FRAGMENT {
                if fragment.is_some() {
                    return Err(ExtensionError::SecondFragment);
                }
                let found = parse_fragment(header, at, announced_at)?;
                fragment = Some(found);
                if found.offset != FragmentOffset::ZERO {
                    // The rest is the middle of the original payload.
                    return Ok(Self {
                        protocol: found.next_header,
                        transport: HEADER_LEN + at + FRAGMENT_HEADER_LEN,
                        fragment,
                    });
                }
            }
            announced_at = HEADER_LEN + at;
            at += header.len();
            protocol = Protocol(next);
        }
        Err(ExtensionError::TooMany)
    }
}

fn parse_fragment(
    header: &[u8],
    at: usize,
    announced_at: usize,
) -> Result<Fragment, ExtensionError> {
    let [next, _, a, b, c, d, e, f] = *header
        .first_chunk::<FRAGMENT_HEADER_LEN>()
        .ok_or(ExtensionError::Truncated)?;
    let field = u16::from_be_bytes([a, b]);
    Ok(Fragment {
        at: HEADER_LEN + at,
        announced_at,
        next_header: Protocol(next),
        offset: FragmentOffset::from_bytes(field & !7).unwrap_or_default(),
        more: field & 1 != 0,
        identification: u32::from_be_bytes([c, d, e, f]),
    })
}

/// An IPv6 header, without the payload length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// The flow label; its low 20 bits are sent.
    pub flow_label: u32,
    /// The first header of the payload.
    pub next_header: Protocol,
    /// The hop limit.
    pub hop_limit: u8,
    /// The sender.
    pub source: Ipv6Addr,
    /// The destination.
    pub destination: Ipv6Addr,
}

impl Header {
    /// The header of a datagram.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            next_header: packet.next_header(),
            hop_limit: packet.hop_limit(),
            source: packet.source(),
            destination: packet.destination(),
        }
    }

    /// Writes the header at the start of `buffer` for a payload of
    /// `payload_len` bytes and returns the rest of the buffer.
    #[inline]
    pub fn emit<'b>(
        &self,
        payload_len: usize,
        buffer: &'b mut [u8],
    ) -> Result<&'b mut [u8], EmitError> {
        let length = u16::try_from(payload_len).map_err(|_| EmitError::PayloadTooLong {
            limit: usize::from(u16::MAX),
            length: payload_len,
        })?;
        let available = buffer.len();
        let (header, rest) =
            buffer
                .split_first_chunk_mut::<HEADER_LEN>()
                .ok_or(EmitError::BufferTooSmall {
                    needed: HEADER_LEN,
                    available,
                })?;
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&length.to_be_bytes());
        header[6] = self.next_header.0;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.octets());
        header[24..].copy_from_slice(&self.destination.octets());
        Ok(rest)
    }
}

#[cfg(test)]
mod tests;
