//! Ethernet II frames (IEEE 802.3 clause 3): addresses, EtherTypes, and 802.1Q
//! tags far enough to recognise them and their VLAN.

use core::fmt;
use core::str::FromStr;

use crate::EmitError;

/// Bytes of an untagged Ethernet header.
pub const HEADER_LEN: usize = 14;

/// Bytes that an 802.1Q tag adds, its inner EtherType included.
pub const TAG_LEN: usize = 4;

/// An Ethernet (EUI-48) address, in transmission order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not six two-digit hexadecimal numbers with colons between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address such as 02:00:5e:10:00:01")]
pub struct InvalidMacAddress;

impl FromStr for MacAddress {
    type Err = InvalidMacAddress;

    fn from_str(text: &str) -> Result<Self, InvalidMacAddress> {
        let mut address = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut address {
            let part = parts.next().ok_or(InvalidMacAddress)?;
            // from_str_radix alone would take "+1".
            if part.len() != 2 || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(InvalidMacAddress);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| InvalidMacAddress)?;
        }
        match parts.next() {
            None => Ok(Self(address)),
            Some(_) => Err(InvalidMacAddress),
        }
    }
}

/// An EtherType (IANA "IEEE 802 Numbers"). Values below 1536 are an IEEE 802.3
/// length instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// IEEE 802.1Q customer tag.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
    /// MPLS, unicast (RFC 5332 §3).
    pub const MPLS: Self = Self(0x8847);
    /// IEEE 802.1ad service tag.
    pub const SERVICE_VLAN: Self = Self(0x88a8);

    /// True for the two tag types.
    #[must_use]
    pub fn is_tag(self) -> bool {
        self == Self::VLAN || self == Self::SERVICE_VLAN
    }
}

/// Why bytes are not an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header, or the tag it announces, needs.
    #[error("the frame is shorter than its Ethernet header")]
    Truncated,
}

/// A checked view of an Ethernet frame, without its frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks that the header, and the first tag if there is one, is there.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, payload) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
        let frame = Self { header, payload };
        if frame.ethertype().is_tag() && payload.len() < TAG_LEN {
            return Err(Error::Truncated);
        }
        Ok(frame)
    }

    /// The destination.
    pub fn destination(&self) -> MacAddress {
        let [a, b, c, d, e, f, ..] = *self.header;
        MacAddress([a, b, c, d, e, f])
    }

    /// The station that sent the frame.
    pub fn source(&self) -> MacAddress {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.header;
        MacAddress([a, b, c, d, e, f])
    }

    /// The type field after the addresses; for a tagged frame, the tag's.
    pub fn ethertype(&self) -> EtherType {
        EtherType(u16::from_be_bytes([self.header[12], self.header[13]]))
    }

    /// The VLAN of the first tag, 0 to 4095, if the frame is tagged; 0 if the tag has
    /// only a priority.
    pub fn vlan(&self) -> Option<u16> {
        let tag = self.payload.first_chunk::<TAG_LEN>();
        let [high, low, ..] = *tag.filter(|_| self.ethertype().is_tag())?;
        Some(u16::from_be_bytes([high & 0x0f, low]))
    }

    /// The bytes after the 14-byte header: the tag first if the frame is tagged, and link
    /// padding last.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An untagged Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The destination.
    pub destination: MacAddress,
    /// The station that sends the frame.
    pub source: MacAddress,
    /// The type of the payload.
    pub ethertype: EtherType,
}

impl Header {
    /// The header of a frame (of its outermost type when it is tagged).
    #[must_use]
    pub fn of(frame: &Frame<'_>) -> Self {
        Self {
            destination: frame.destination(),
            source: frame.source(),
            ethertype: frame.ethertype(),
        }
    }

    /// Writes the header at the start of `buffer` and returns the rest of it.
    pub fn emit<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b mut [u8], EmitError> {
        let available = buffer.len();
        let Some((header, rest)) = buffer.split_first_chunk_mut::<HEADER_LEN>() else {
            return Err(EmitError::BufferTooSmall {
                needed: HEADER_LEN,
                available,
            });
        };
        header[..6].copy_from_slice(&self.destination.0);
        header[6..12].copy_from_slice(&self.source.0);
        header[12..].copy_from_slice(&self.ethertype.0.to_be_bytes());
        Ok(rest)
    }
}

#[cfg(test)]
mod tests;
