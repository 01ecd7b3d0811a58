//! ACP: the frames in a TCP segment when both ends have agreed that segments hold only
//! whole frames (Yocum et al., "Anypoint", USITS 2003).
//!
//! ```text
//!  0        1        2        3        4
//!  +--------+--------+--------+--------+- - - - - -+--------+- -
//!  |  0xAC  |  type  |     length      |  payload  |  0xAC  |
//!  +--------+--------+--------+--------+- - - - - -+--------+- -
//! ```
//!
//! The first header is at the segment's first byte of payload. Its length field counts
//! the payload after the header, and so leads to the next header. An end requests ACP
//! with [`Options::acp`](crate::tcp::Options::acp) on its SYN.

use core::ops::Range;

use crate::EmitError;
use crate::pieces::Pieces;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 4;

/// The largest payload that the length field can express; a segment is nearly always
/// smaller.
pub const PAYLOAD_MAX: usize = u16::MAX as usize;

/// The version that [`Options::acp`](crate::tcp::Options::acp) announces.
pub const VERSION: u8 = 1;

/// The first byte of every header.
pub const MAGIC: u8 = 0xac;

/// Distinguishes ACP from other experiments that share its TCP option (RFC 6994).
pub(crate) const EXPERIMENT: [u8; 2] = [0xac, 0x90];

/// Kind of the TCP option (RFC 4727, RFC 6994).
pub(crate) const OPTION_KIND: u8 = 253;

/// Bytes of the TCP option, without padding.
pub(crate) const OPTION_LEN: u8 = 5;

/// Why bytes are not whole frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than a header.
    #[error("the segment ends within a frame's header")]
    Truncated,
    /// A header does not begin with [`MAGIC`].
    #[error("a frame begins with {0:#04x} and not with 0xac")]
    Magic(u8),
    /// A type that is neither data nor null.
    #[error("a frame is of the unknown type {0}")]
    Type(u8),
    /// The length extends beyond the segment.
    #[error("a frame of {length} bytes lies in a segment with {available} more")]
    Length {
        /// Bytes of payload according to the header.
        length: u16,
        /// Bytes present after the header.
        available: usize,
    },
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The application's data.
    Data = 0,
    /// Takes sequence numbers and carries nothing; applications never see it.
    Null = 1,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The purpose of the frame.
    pub kind: Kind,
    /// Bytes of payload after the header.
    pub length: u16,
}

impl Header {
    /// The header of a frame of data; `None` for more than [`PAYLOAD_MAX`] bytes.
    #[must_use]
    pub fn data(length: usize) -> Option<Self> {
        let length = u16::try_from(length).ok()?;
        let kind = Kind::Data;
        Some(Self { kind, length })
    }

    /// The header of a null frame that takes `size` bytes, itself included; `None` for
    /// less than a header or more than the longest frame.
    #[must_use]
    pub fn null(size: usize) -> Option<Self> {
        let length = u16::try_from(size.checked_sub(HEADER_LEN)?).ok()?;
        let kind = Kind::Null;
        Some(Self { kind, length })
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`Error::Magic`] and [`Error::Type`].
    #[inline]
    pub const fn parse([magic, kind, high, low]: [u8; HEADER_LEN]) -> Result<Self, Error> {
        if magic != MAGIC {
            return Err(Error::Magic(magic));
        }
        let kind = match kind {
            0 => Kind::Data,
            1 => Kind::Null,
            other => return Err(Error::Type(other)),
        };
        let length = u16::from_be_bytes([high, low]);
        Ok(Self { kind, length })
    }

    /// The header's bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> [u8; HEADER_LEN] {
        let [high, low] = self.length.to_be_bytes();
        [MAGIC, self.kind as u8, high, low]
    }

    /// Bytes of the frame, its header included.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> usize {
        HEADER_LEN + self.length as usize
    }
}

/// A whole frame in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Offset of its header from the segment's first byte.
    pub offset: usize,
    /// Its purpose.
    pub kind: Kind,
    /// The payload after the header.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Bytes of the frame, its header included.
    #[must_use]
    pub const fn size(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }
}

/// The frames of a segment's payload in order, null frames included. The iterator ends
/// after an error, since later frames cannot be found.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Frames<'a> {
    /// Reads the frames of a segment's payload.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            offset: 0,
        }
    }

    fn read(&self) -> Result<(Frame<'a>, &'a [u8]), Error> {
        let (header, behind) = self
            .rest
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let Header { kind, length } = Header::parse(*header)?;
        let (payload, rest) = behind
            .split_at_checked(length.into())
            .ok_or(Error::Length {
                length,
                available: behind.len(),
            })?;
        let offset = self.offset;
        let frame = Frame {
            offset,
            kind,
            payload,
        };
        Ok((frame, rest))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        let rest = read.map_or(&[][..], |(_, rest)| rest);
        self.offset += self.rest.len() - rest.len();
        self.rest = rest;
        Some(read.map(|(frame, _)| frame))
    }
}

impl core::iter::FusedIterator for Frames<'_> {}

/// The position of a whole frame in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBounds {
    /// Offset of its header's first byte from the segment's first byte.
    pub offset: usize,
    /// The header.
    pub header: Header,
}

impl FrameBounds {
    /// Bytes of the frame, its header included.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> usize {
        self.header.size()
    }

    /// The position of the payload in the segment.
    #[must_use]
    #[inline]
    pub const fn payload(&self) -> Range<usize> {
        self.offset + HEADER_LEN..self.offset + self.size()
    }
}

/// As [`Frames`], for a payload that may lie in several pieces: returns the frames'
/// bounds.
#[derive(Clone, Debug)]
pub struct FramesInPieces<'a> {
    rest: Pieces<'a>,
    offset: usize,
}

impl<'a> FramesInPieces<'a> {
    /// Reads a segment's payload.
    #[inline]
    #[must_use]
    pub const fn new(payload: Pieces<'a>) -> Self {
        Self {
            rest: payload,
            offset: 0,
        }
    }

    #[inline]
    fn read(&self) -> Result<(FrameBounds, Pieces<'a>), Error> {
        let header = Header::parse(self.rest.first_chunk().ok_or(Error::Truncated)?)?;
        let rest = self.rest.get(header.size()..self.rest.len());
        let rest = rest.ok_or(Error::Length {
            length: header.length,
            available: self.rest.len() - HEADER_LEN,
        })?;
        let offset = self.offset;
        Ok((FrameBounds { offset, header }, rest))
    }
}

impl Iterator for FramesInPieces<'_> {
    type Item = Result<FrameBounds, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        let rest = read.map_or(Pieces::EMPTY, |(_, rest)| rest);
        self.offset += self.rest.len() - rest.len();
        self.rest = rest;
        Some(read.map(|(frame, _)| frame))
    }
}

impl core::iter::FusedIterator for FramesInPieces<'_> {}

/// Appends frames to a buffer, which is a segment's payload.
#[derive(Debug)]
pub struct Builder<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Builder<'a> {
    /// Starts at the beginning of `buffer`, whose length is the limit of the segment.
    pub const fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// Bytes of the frames in the buffer.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// True while there is no frame.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends a frame of data.
    ///
    /// # Errors
    /// [`EmitError`]; the buffer's content is unchanged.
    pub fn data(&mut self, payload: &[u8]) -> Result<(), EmitError> {
        let header = Header::data(payload.len()).ok_or(EmitError::PayloadTooLong {
            limit: PAYLOAD_MAX,
            length: payload.len(),
        })?;
        self.place(header)?.copy_from_slice(payload);
        Ok(())
    }

    /// Appends a null frame with `length` zeros after its header.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; the buffer's content is unchanged.
    pub fn null(&mut self, length: u16) -> Result<(), EmitError> {
        let kind = Kind::Null;
        self.place(Header { kind, length })?.fill(0);
        Ok(())
    }

    /// Appends a header, and returns the space for its payload.
    fn place(&mut self, header: Header) -> Result<&mut [u8], EmitError> {
        let needed = self.used + header.size();
        let available = self.buffer.len();
        let (first, payload) = self
            .buffer
            .get_mut(self.used..needed)
            .and_then(|place| place.split_first_chunk_mut::<HEADER_LEN>())
            .ok_or(EmitError::BufferTooSmall { needed, available })?;
        *first = header.bytes();
        self.used = needed;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests;
