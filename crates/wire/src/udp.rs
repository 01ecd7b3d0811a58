//! UDP (RFC 768), over IPv4 and over IPv6 (RFC 8200 §8.1, RFC 6935).

pub use crate::transport::{Addresses, Checksum, ChecksumState};
use crate::transport::{checksum_state, is_acceptable};
use crate::{EmitError, Protocol};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;

/// The largest payload that UDP's length field can express, in bytes.
pub const PAYLOAD_MAX: usize = u16::MAX as usize - HEADER_LEN;

/// Why bytes are not a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer than eight bytes.
    #[error("the datagram is shorter than a UDP header")]
    Truncated,
    /// The length field is below eight or exceeds the bytes present.
    #[error("the UDP length contradicts the datagram's")]
    Length,
}

/// A checked view of a UDP datagram: exactly as many bytes as its length field states.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER_LEN],
}

impl<'a> Packet<'a> {
    /// Checks the lengths. Bytes after the datagram's end are left out: like Linux, this
    /// accepts a UDP length shorter than the IP payload.
    ///
    /// A length of zero is refused; RFC 2675 defines it only in jumbograms.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if length < HEADER_LEN {
            return Err(Error::Length);
        }
        let bytes = bytes.get(..length).ok_or(Error::Length)?;
        Ok(Self { bytes, header })
    }

    /// The sender's port; zero when it expects no answer.
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// The receiver's port.
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Bytes of header and payload, at least eight.
    pub fn length(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The checksum field as sent.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Compares the checksum with the datagram and its addresses.
    #[must_use]
    #[inline]
    pub fn checksum_state(&self, addresses: Addresses) -> ChecksumState {
        match self.checksum() {
            0 => ChecksumState::Absent,
            field => checksum_state(addresses, Protocol::UDP, self.bytes, field),
        }
    }

    /// As [`crate::tcp::Packet::has_acceptable_checksum`], for a datagram that has a checksum.
    #[must_use]
    #[inline]
    pub fn has_acceptable_checksum(&self, addresses: Addresses, may_be_left: bool) -> bool {
        let field = self.checksum();
        is_acceptable(addresses, Protocol::UDP, self.bytes, field, may_be_left)
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }
}

/// A UDP header, without the fields that depend on the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
}

impl Header {
    /// The header of a datagram.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            source_port: packet.source_port(),
            destination_port: packet.destination_port(),
        }
    }

    /// Writes header and payload at the start of `buffer`, and returns the number of
    /// bytes.
    pub fn emit(
        &self,
        addresses: Addresses,
        payload: &[u8],
        checksum: Checksum,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let available = buffer.len();
        // `emit_around` detects a payload that is too long for UDP.
        if let Some(body) = buffer
            .get_mut(HEADER_LEN..)
            .and_then(|rest| rest.get_mut(..payload.len()))
        {
            body.copy_from_slice(payload);
        } else if payload.len() <= PAYLOAD_MAX {
            let needed = HEADER_LEN + payload.len();
            return Err(EmitError::BufferTooSmall { needed, available });
        }
        self.emit_around(addresses, payload.len(), checksum, buffer)
    }

    /// As [`Header::emit`], for a payload of `payload_len` bytes that already
    /// lies at [`HEADER_LEN`] in the buffer.
    #[inline]
    pub fn emit_around(
        &self,
        addresses: Addresses,
        payload_len: usize,
        checksum: Checksum,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        if payload_len > PAYLOAD_MAX {
            return Err(EmitError::PayloadTooLong {
                limit: PAYLOAD_MAX,
                length: payload_len,
            });
        }
        let length = HEADER_LEN + payload_len;
        let length16 = length as u16;
        let too_small = EmitError::BufferTooSmall {
            needed: length,
            available: buffer.len(),
        };
        let datagram = buffer.get_mut(..length).ok_or(too_small)?;
        let (header, payload) = datagram
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(too_small)?;
        header[..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..6].copy_from_slice(&length16.to_be_bytes());
        header[6..].copy_from_slice(&[0, 0]);
        let pseudo_header = || addresses.pseudo_header(Protocol::UDP, length);
        let field = match checksum {
            Checksum::Software => match pseudo_header().bytes(header).bytes(payload).checksum() {
                // A computed zero is sent as all ones, since zero means "none" (RFC 768).
                0 => 0xffff,
                other => other,
            },
            Checksum::Offload => pseudo_header().folded(),
            Checksum::None => 0,
        };
        header[6..].copy_from_slice(&field.to_be_bytes());
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
