//! TCP segments (RFC 9293 §3.1) and the options in use:
//!
//! - maximum segment size (RFC 9293 §3.7.1);
//! - window scale and timestamps (RFC 7323);
//! - selective acknowledgement (RFC 2018);
//! - Fast Open (RFC 7413);
//! - the option by which a connection carries frames ([`crate::acp`]).

mod options;

use core::fmt;

use crate::checksum::Sum;
pub use crate::fast_open::FastOpen;
use crate::pieces::Pieces;
use crate::transport::{
    Addresses, Checksum, ChecksumState, checksum_state, is_acceptable, is_acceptable_in_pieces,
};
use crate::{EmitError, Protocol};
pub use options::{Options, SackBlocks, Timestamps};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The most bytes of a header, options included.
pub const HEADER_MAX: usize = 60;

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: u16 = 16;

/// Why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer than twenty bytes.
    #[error("the segment is shorter than a TCP header")]
    Truncated,
    /// The data offset is below five words or beyond the segment's end.
    #[error("the TCP data offset contradicts the segment's length")]
    DataOffset,
}

/// The control bits (RFC 9293 §3.1, RFC 3168).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);
    /// None.
    pub const NONE: Self = Self(0);

    /// True when all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As tcpdump writes them.
        for (flag, letter) in [
            (Self::FIN, 'F'),
            (Self::SYN, 'S'),
            (Self::RST, 'R'),
            (Self::PSH, 'P'),
            (Self::ACK, '.'),
            (Self::URG, 'U'),
            (Self::ECE, 'E'),
            (Self::CWR, 'W'),
        ] {
            if self.contains(flag) {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// A checked view of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER_LEN],
    data_offset: usize,
}

impl<'a> Packet<'a> {
    /// Checks the lengths. `bytes` must end where the IP datagram does.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let data_offset = usize::from(header[12] >> 4) * 4;
        if data_offset < HEADER_LEN || data_offset > bytes.len() {
            return Err(Error::DataOffset);
        }
        Ok(Self {
            bytes,
            header,
            data_offset,
        })
    }

    /// The fields and options.
    #[expect(
        clippy::indexing_slicing,
        reason = "constant offsets below the header's 20 bytes"
    )]
    pub fn header(&self) -> Header {
        let header = self.header;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let double = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        Header {
            source_port: word(0),
            destination_port: word(2),
            sequence: double(4),
            acknowledgment: double(8),
            flags: Flags(header[13]),
            window: word(14),
            urgent: word(18),
            options: Options::parse(
                self.bytes
                    .get(HEADER_LEN..self.data_offset)
                    .unwrap_or_default(),
            ),
        }
    }

    /// Bytes of the header with options: the offset of the payload.
    pub fn header_len(&self) -> usize {
        self.data_offset
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.data_offset..).unwrap_or_default()
    }

    /// The sum of the payload, computed from the checksum and the header. RFC 1624 (eqn.
    /// 3) takes every word of the header out of the old checksum. The result is the
    /// payload's sum only if the checksum is [`ChecksumState::Valid`]. `None` if it is
    /// [`ChecksumState::LeftToOffload`].
    #[must_use]
    pub fn payload_sum(&self, addresses: Addresses) -> Option<Sum> {
        self.payload_sum_of(addresses, self.bytes.len())
    }

    /// As [`Packet::payload_sum`], for a segment of `length` bytes of which only the
    /// first are present.
    #[must_use]
    pub fn payload_sum_of(&self, addresses: Addresses, length: usize) -> Option<Sum> {
        let header = self.bytes.get(..self.data_offset).unwrap_or_default();
        let pseudo_header = addresses.pseudo_header(Protocol::TCP, length);
        let field = u16::from_be_bytes([self.header[16], self.header[17]]);
        // With the checksum, the sum of everything is zero.
        let sum = Sum::ZERO.word(pseudo_header.bytes(header).checksum());
        (field != pseudo_header.folded()).then_some(sum)
    }

    /// Compares the checksum with the segment and its addresses. Never
    /// [`ChecksumState::Absent`]: TCP always has one.
    #[must_use]
    pub fn checksum_state(&self, addresses: Addresses) -> ChecksumState {
        let field = u16::from_be_bytes([self.header[16], self.header[17]]);
        checksum_state(addresses, Protocol::TCP, self.bytes, field)
    }

    /// Whether the checksum is right, or left to a device if it `may_be_left`, which is
    /// tested first. The result equals [`ChecksumState::Valid`] or
    /// [`ChecksumState::LeftToOffload`] of [`Packet::checksum_state`], but the second
    /// case does not sum the payload.
    #[must_use]
    pub fn has_acceptable_checksum(&self, addresses: Addresses, may_be_left: bool) -> bool {
        let field = u16::from_be_bytes([self.header[16], self.header[17]]);
        is_acceptable(addresses, Protocol::TCP, self.bytes, field, may_be_left)
    }

    /// As [`Packet::has_acceptable_checksum`], if only the segment's first bytes are
    /// present: `whole` has all.
    #[must_use]
    pub fn has_acceptable_checksum_of(
        &self,
        whole: Pieces<'_>,
        addresses: Addresses,
        may_be_left: bool,
    ) -> bool {
        let field = u16::from_be_bytes([self.header[16], self.header[17]]);
        is_acceptable_in_pieces(addresses, Protocol::TCP, whole, field, may_be_left)
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Sequence number of the first byte of payload, or of SYN.
    pub sequence: u32,
    /// The next sequence number expected, with ACK.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: Flags,
    /// The window as sent, unscaled.
    pub window: u16,
    /// Urgent pointer, with URG.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Bytes of the header with its options.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes header and payload at the start of `buffer`, and returns the number of
    /// bytes. [`Checksum::None`] counts as [`Checksum::Software`].
    pub fn emit(
        &self,
        addresses: Addresses,
        payload: &[u8],
        checksum: Checksum,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let start = self.header_len();
        let (needed, available) = (start + payload.len(), buffer.len());
        buffer
            .get_mut(start..needed)
            .ok_or(EmitError::BufferTooSmall { needed, available })?
            .copy_from_slice(payload);
        self.emit_around(addresses, payload.len(), checksum, buffer)
    }

    /// As [`Header::emit`], for a payload of `payload_len` bytes that already
    /// lies at [`Header::header_len`] in the buffer.
    #[inline]
    pub fn emit_around(
        &self,
        addresses: Addresses,
        payload_len: usize,
        checksum: Checksum,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let segment = self.begin(payload_len, payload_len, buffer)?;
        let length = segment.len();
        let pseudo_header = addresses.pseudo_header(Protocol::TCP, length);
        let field = match checksum {
            Checksum::Offload => pseudo_header.folded(),
            Checksum::Software | Checksum::None => pseudo_header.bytes(segment).checksum(),
        };
        put_checksum(segment, field);
        Ok(length)
    }

    /// Writes the header at the start of `buffer`, to precede a payload that stays where
    /// it was received. The payload is not read. Returns the length of the header.
    ///
    /// # Errors
    /// As [`Header::emit`].
    pub fn emit_before(
        &self,
        addresses: Addresses,
        payload_len: usize,
        checksum: PayloadChecksum,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        let header = self.begin(payload_len, 0, buffer)?;
        let header_len = header.len();
        let pseudo_header = addresses.pseudo_header(Protocol::TCP, header_len + payload_len);
        let field = match checksum {
            PayloadChecksum::Sum(sum) => pseudo_header.bytes(header).sum(sum).checksum(),
            PayloadChecksum::Offload => pseudo_header.folded(),
        };
        put_checksum(header, field);
        Ok(header_len)
    }

    /// Writes the header of a segment with `payload_len` bytes of payload at the start of
    /// `buffer`, with a checksum field of zero. Returns the part of the buffer that holds
    /// the header and the `present` bytes after it.
    #[inline]
    fn begin<'b>(
        &self,
        payload_len: usize,
        present: usize,
        buffer: &'b mut [u8],
    ) -> Result<&'b mut [u8], EmitError> {
        let (options, options_len) = self.options.bytes();
        let header_len = HEADER_LEN + options_len;
        let limit = usize::from(u16::MAX) - header_len;
        if payload_len > limit {
            return Err(EmitError::PayloadTooLong {
                limit,
                length: payload_len,
            });
        }
        let needed = header_len + present;
        let available = buffer.len();
        let too_small = EmitError::BufferTooSmall { needed, available };
        let taken = buffer.get_mut(..needed).ok_or(too_small)?;
        self.write(taken, &options, options_len).ok_or(too_small)?;
        Ok(taken)
    }

    /// Writes everything but the checksum, whose field is zero.
    #[inline]
    fn write(&self, segment: &mut [u8], options: &[u8], options_len: usize) -> Option<()> {
        let (header, rest) = segment.split_first_chunk_mut::<HEADER_LEN>()?;
        let header_len = HEADER_LEN + options_len;
        header[..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        header[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        header[12] = ((header_len / 4) as u8) << 4;
        header[13] = self.flags.0;
        header[14..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..18].copy_from_slice(&[0, 0]);
        header[18..].copy_from_slice(&self.urgent.to_be_bytes());
        if let (Some(place), Some(options)) =
            (rest.get_mut(..options_len), options.get(..options_len))
        {
            place.copy_from_slice(options);
        }
        Some(())
    }
}

fn put_checksum(segment: &mut [u8], field: u16) {
    if let Some(place) = segment.get_mut(16..18) {
        place.copy_from_slice(&field.to_be_bytes());
    }
}

/// How a new header computes the checksum of an unchanged payload.
#[derive(Clone, Copy, Debug)]
pub enum PayloadChecksum {
    /// From the sum of the payload ([`Packet::payload_sum`]) and the new header.
    Sum(Sum),
    /// As the sum of the pseudo-header, for the device to finish.
    Offload,
}

/// `a < b` in the circular order of sequence numbers (RFC 9293 §3.4).
#[must_use]
pub const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests;
