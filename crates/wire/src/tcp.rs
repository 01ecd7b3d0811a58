//! TCP segments (RFC 9293 §3.1) and the options in use: maximum segment size
//! (RFC 9293 §3.7.1), window scale and timestamps (RFC 7323), selective
//! acknowledgement (RFC 2018), Fast Open (RFC 7413).

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

pub use crate::fast_open::FastOpen;
use crate::fast_open::{KIND as KIND_FAST_OPEN, KIND_EXPERIMENTAL};
use crate::transport::{Addresses, Checksum, ChecksumState, checksum_state};
use crate::{EmitError, Protocol};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The most bytes of a header, options included.
pub const HEADER_MAX: usize = 60;

/// Where in the header the checksum is.
pub const CHECKSUM_OFFSET: u16 = 16;

/// Why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Fewer than twenty bytes.
    Truncated,
    /// The data offset is below five words or beyond the segment's end.
    DataOffset,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the segment is shorter than a TCP header",
            Self::DataOffset => "the TCP data offset contradicts the segment's length",
        })
    }
}

impl std::error::Error for Error {}

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

/// The timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// The peer's clock as last seen (TSecr); meaningful with ACK.
    pub echo: u32,
}

/// Blocks of a SACK option (RFC 2018 §3), first and one past the last sequence
/// number each, in the order of the option.
///
/// A SYN has none: there the room is lent to a Fast Open option, so that every
/// other segment is spared it ([`Options::fast_open`]).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); Self::MAX],
    /// How many; with [`Self::LENT`], the length of a cookie.
    count: u8,
}

impl SackBlocks {
    /// The most blocks that fit.
    pub const MAX: usize = 4;
    /// The room has a Fast Open option.
    const LENT: u8 = 0x80;
    /// It is of the experimental form.
    const EXPERIMENTAL: u8 = 0x40;

    /// Adds a block; false when there is no room.
    pub fn push(&mut self, first: u32, end: u32) -> bool {
        match self.blocks.get_mut(usize::from(self.count)) {
            Some(place) => {
                *place = (first, end);
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The blocks.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        self.blocks
            .get(..usize::from(self.count))
            .unwrap_or_default()
    }

    /// True when there are none: the option is then left out.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0 || self.count >= Self::LENT
    }

    fn of_fast_open(option: &FastOpen) -> Self {
        let mut lent = Self::default();
        let cookie = option.cookie();
        let mut words = cookie.chunks(4).map(|bytes| {
            let mut word = [0; 4];
            for (place, byte) in word.iter_mut().zip(bytes) {
                *place = *byte;
            }
            u32::from_be_bytes(word)
        });
        for place in &mut lent.blocks {
            *place = (
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default(),
            );
        }
        lent.count = Self::LENT | cookie.len() as u8;
        if option.is_experimental() {
            lent.count |= Self::EXPERIMENTAL;
        }
        lent
    }

    fn fast_open(&self) -> Option<FastOpen> {
        if self.count < Self::LENT {
            return None;
        }
        let mut bytes = [0; FastOpen::MAX];
        let words = self.blocks.iter().flat_map(|&(first, end)| [first, end]);
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        let length = usize::from(self.count & !(Self::LENT | Self::EXPERIMENTAL));
        let cookie = bytes.get(..length).and_then(FastOpen::cookie_of);
        let experimental = self.count & Self::EXPERIMENTAL != 0;
        Some(
            cookie
                .unwrap_or(FastOpen::REQUEST)
                .with_experimental(experimental),
        )
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size, in bytes of payload; on SYN segments.
    pub maximum_segment_size: Option<u16>,
    /// Window scale, a shift count as sent (more than 14 is to be taken for 14,
    /// RFC 7323 §2.3); on SYN segments.
    pub window_scale: Option<u8>,
    /// The sender takes SACK options; on SYN segments.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// What the sender holds beyond a hole.
    pub sack: SackBlocks,
}

/// Kinds of options (IANA "TCP Option Kind Numbers").
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NO_OPERATION: u8 = 1;
    pub(super) const MAXIMUM_SEGMENT_SIZE: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

impl Options {
    /// Reads options as Linux does: unknown ones and ones of a wrong length are
    /// skipped, a length that leads beyond the header ends the reading. The last
    /// of several of a kind counts.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // What nearly every segment has, as RFC 7323 appendix A lays it out.
        if let &[
            kind::NO_OPERATION,
            kind::NO_OPERATION,
            kind::TIMESTAMPS,
            10,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
        ] = bytes
        {
            return Self {
                timestamps: Some(Timestamps {
                    value: u32::from_be_bytes([a, b, c, d]),
                    echo: u32::from_be_bytes([e, f, g, h]),
                }),
                ..Self::default()
            };
        }
        Self::parse_any(bytes)
    }

    fn parse_any(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        loop {
            let (kind, rest) = match bytes {
                [] | [kind::END, ..] => return options,
                [kind::NO_OPERATION, rest @ ..] => {
                    bytes = rest;
                    continue;
                }
                [kind, rest @ ..] => (*kind, rest),
            };
            let Some((&length, rest)) = rest.split_first() else {
                return options;
            };
            let Some((body, after)) = usize::from(length)
                .checked_sub(2)
                .and_then(|length| rest.split_at_checked(length))
            else {
                return options;
            };
            bytes = after;
            match (kind, body) {
                (kind::MAXIMUM_SEGMENT_SIZE, &[high, low]) => {
                    options.maximum_segment_size = Some(u16::from_be_bytes([high, low]));
                }
                (kind::WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift),
                (kind::SACK_PERMITTED, []) => options.sack_permitted = true,
                (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                    options.timestamps = Some(Timestamps {
                        value: u32::from_be_bytes([a, b, c, d]),
                        echo: u32::from_be_bytes([e, f, g, h]),
                    });
                }
                (kind::SACK, blocks) if blocks.len().is_multiple_of(8) => {
                    options.sack = SackBlocks::default();
                    for &[a, b, c, d, e, f, g, h] in blocks.as_chunks::<8>().0 {
                        options.sack.push(
                            u32::from_be_bytes([a, b, c, d]),
                            u32::from_be_bytes([e, f, g, h]),
                        );
                    }
                }
                (KIND_FAST_OPEN | KIND_EXPERIMENTAL, body) if options.sack.is_empty() => {
                    if let Some(option) = FastOpen::parse(kind, body) {
                        options.sack = SackBlocks::of_fast_open(&option);
                    }
                }
                _ => {}
            }
        }
    }

    /// A Fast Open cookie or a request for one; on SYN segments.
    #[must_use]
    #[inline]
    pub fn fast_open(&self) -> Option<FastOpen> {
        self.sack.fast_open()
    }

    /// With a Fast Open option, which takes the place of SACK blocks; `None` leaves
    /// everything as it is.
    #[must_use]
    pub fn with_fast_open(mut self, option: Option<FastOpen>) -> Self {
        if let Some(option) = &option {
            self.sack = SackBlocks::of_fast_open(option);
        }
        self
    }

    /// Bytes that the options take in a header, a multiple of four. SACK blocks
    /// that do not fit into 40 bytes beside the rest are left out.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        if self.only_timestamps().is_some() {
            return 12;
        }
        self.any_len()
    }

    fn any_len(&self) -> usize {
        self.len_without_sack()
            + match self.sack_count() {
                0 => 0,
                count => 4 + 8 * count,
            }
    }

    /// The timestamps, if there is nothing else, as in nearly every segment.
    #[inline]
    fn only_timestamps(&self) -> Option<Timestamps> {
        let more = self.maximum_segment_size.is_some()
            | self.window_scale.is_some()
            | self.sack_permitted
            | (self.sack.count != 0);
        self.timestamps.filter(|_| !more)
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len_without_sack(&self) -> usize {
        let mut length = 0;
        if self.maximum_segment_size.is_some() {
            length += 4;
        }
        if self.timestamps.is_some() {
            // SACK-permitted takes the place of the padding.
            length += 12;
        } else if self.sack_permitted {
            length += 4;
        }
        if self.window_scale.is_some() {
            length += 4;
        }
        if let Some(option) = self.fast_open() {
            length += option.len();
        }
        length
    }

    fn sack_count(&self) -> usize {
        let room = (HEADER_MAX - HEADER_LEN).saturating_sub(self.len_without_sack() + 4) / 8;
        self.sack.as_slice().len().min(room)
    }

    /// The options as Linux lays them out, so that a fast path for that layout
    /// (and a middlebox that knows no other) recognises them. Returns how many
    /// bytes of the array they are.
    #[inline]
    fn bytes(&self) -> ([u8; HEADER_MAX - HEADER_LEN], usize) {
        let mut bytes = [kind::NO_OPERATION; HEADER_MAX - HEADER_LEN];
        if let Some(timestamps) = self.only_timestamps() {
            bytes[2..4].copy_from_slice(&[kind::TIMESTAMPS, 10]);
            bytes[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            bytes[8..12].copy_from_slice(&timestamps.echo.to_be_bytes());
            return (bytes, 12);
        }
        self.any_bytes(bytes)
    }

    fn any_bytes(
        &self,
        mut bytes: [u8; HEADER_MAX - HEADER_LEN],
    ) -> ([u8; HEADER_MAX - HEADER_LEN], usize) {
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
            at += part.len();
        };
        if let Some(size) = self.maximum_segment_size {
            put(&[kind::MAXIMUM_SEGMENT_SIZE, 4]);
            put(&size.to_be_bytes());
        }
        match (self.timestamps, self.sack_permitted) {
            (Some(_), true) => put(&[kind::SACK_PERMITTED, 2]),
            (Some(_), false) => put(&[kind::NO_OPERATION; 2]),
            (None, true) => {
                put(&[kind::NO_OPERATION; 2]);
                put(&[kind::SACK_PERMITTED, 2]);
            }
            (None, false) => {}
        }
        if let Some(timestamps) = self.timestamps {
            put(&[kind::TIMESTAMPS, 10]);
            put(&timestamps.value.to_be_bytes());
            put(&timestamps.echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[kind::NO_OPERATION, kind::WINDOW_SCALE, 3, shift]);
        }
        let count = self.sack_count();
        if count > 0 {
            put(&[kind::NO_OPERATION; 2]);
            put(&[kind::SACK, (2 + 8 * count) as u8]);
            for (first, end) in self.sack.as_slice().iter().take(count) {
                put(&first.to_be_bytes());
                put(&end.to_be_bytes());
            }
        }
        if let Some(option) = self.fast_open() {
            option.write(&mut put);
        }
        (bytes, at)
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
    #[must_use]
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

    /// Bytes of header with options: where the payload begins.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.data_offset
    }

    /// What the segment carries.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.data_offset..).unwrap_or_default()
    }

    /// Compares the checksum with the segment and IPv4 addresses. Never
    /// [`ChecksumState::Absent`]: TCP always has one.
    #[must_use]
    pub fn checksum_v4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> ChecksumState {
        self.checksum_with(Addresses::V4(source, destination))
    }

    /// Compares the checksum with the segment and IPv6 addresses, as
    /// [`Packet::checksum_v4`].
    #[must_use]
    pub fn checksum_v6(&self, source: Ipv6Addr, destination: Ipv6Addr) -> ChecksumState {
        self.checksum_with(Addresses::V6(source, destination))
    }

    fn checksum_with(&self, addresses: Addresses) -> ChecksumState {
        let field = u16::from_be_bytes([self.header[16], self.header[17]]);
        checksum_state(addresses, Protocol::TCP, self.bytes, field)
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Of the first byte of payload, or of SYN.
    pub sequence: u32,
    /// The next sequence number expected, with ACK.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window as sent, unscaled.
    pub window: u16,
    /// Urgent pointer, with URG.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Bytes of the header with its options.
    #[must_use]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes header and payload at the start of `buffer` and returns how many
    /// bytes that were. [`Checksum::None`] is taken for [`Checksum::Software`].
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
        let (options, options_len) = self.options.bytes();
        let header_len = HEADER_LEN + options_len;
        let limit = usize::from(u16::MAX) - header_len;
        if payload_len > limit {
            return Err(EmitError::PayloadTooLong {
                limit,
                length: payload_len,
            });
        }
        let length = header_len + payload_len;
        let too_small = EmitError::BufferTooSmall {
            needed: length,
            available: buffer.len(),
        };
        let segment = buffer.get_mut(..length).ok_or(too_small)?;
        let (header, rest) = segment
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(too_small)?;
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
        let pseudo_header = addresses.pseudo_header(Protocol::TCP, length);
        let field = match checksum {
            Checksum::Offload => pseudo_header.folded(),
            Checksum::Software | Checksum::None => pseudo_header.bytes(segment).checksum(),
        };
        if let Some(place) = segment.get_mut(16..18) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        Ok(length)
    }
}

/// `a < b` in the circular order of sequence numbers (RFC 9293 §3.4).
#[must_use]
pub const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options() -> impl Strategy<Value = Options> {
        let sack = prop::collection::vec(any::<(u32, u32)>(), 0..4);
        let timestamps = prop::option::of(any::<(u32, u32)>());
        let cookie = (0usize..=7, any::<[u8; 16]>(), any::<bool>());
        let fast_open = cookie.prop_map(|(words, bytes, experimental)| {
            // 4 to 16 bytes, or none.
            let length = if words == 0 { 0 } else { 2 + 2 * words };
            let option = FastOpen::cookie_of(&bytes[..length]).unwrap_or(FastOpen::REQUEST);
            option.with_experimental(experimental)
        });
        (
            any::<Option<u16>>(),
            any::<Option<u8>>(),
            any::<bool>(),
            timestamps,
            sack,
            prop::option::of(fast_open),
        )
            .prop_map(|(size, scale, permitted, timestamps, blocks, fast_open)| {
                let mut options = Options {
                    maximum_segment_size: size,
                    window_scale: scale,
                    sack_permitted: permitted,
                    timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                    sack: SackBlocks::default(),
                };
                // As many as fit: SYN segments carry none in practice.
                for (first, end) in blocks {
                    let before = options;
                    options.sack.push(first, end);
                    if options.sack_count() < options.sack.as_slice().len() {
                        options = before;
                    }
                }
                options.with_fast_open(fast_open)
            })
    }

    /// The short way for timestamps alone reads and writes what the long one
    /// does.
    #[test]
    fn timestamps_alone_are_no_exception() {
        let options = Options {
            timestamps: Some(Timestamps {
                value: 0x0102_0304,
                echo: u32::MAX,
            }),
            ..Options::default()
        };
        let clear = [kind::NO_OPERATION; HEADER_MAX - HEADER_LEN];
        let (bytes, length) = options.bytes();
        assert_eq!((bytes, length), options.any_bytes(clear));
        assert_eq!(Options::parse(&bytes[..length]), options);
        assert_eq!(Options::parse_any(&bytes[..length]), options);
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            options in options(),
            ports: (u16, u16), numbers: (u32, u32), flags: u8, window: u16, urgent: u16,
            source: [u8; 4], destination: [u8; 4],
            payload in prop::collection::vec(any::<u8>(), 0..100),
            offload: bool,
        ) {
            let header = Header {
                source_port: ports.0,
                destination_port: ports.1,
                sequence: numbers.0,
                acknowledgment: numbers.1,
                flags: Flags(flags),
                window,
                urgent,
                options,
            };
            let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
            let checksum = if offload { Checksum::Offload } else { Checksum::Software };
            let mut bytes = vec![0xaa; header.header_len() + payload.len()];
            let length = header
                .emit(Addresses::V4(source, destination), &payload, checksum, &mut bytes)
                .unwrap();
            prop_assert_eq!(length, bytes.len());
            let packet = Packet::new(&bytes).unwrap();
            prop_assert_eq!(packet.header(), header);
            prop_assert_eq!(packet.payload(), &payload[..]);
            let state = packet.checksum_v4(source, destination);
            prop_assert!(state == ChecksumState::Valid || offload && state == ChecksumState::LeftToOffload);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(packet) = Packet::new(&bytes) {
                prop_assert!(packet.header_len() + packet.payload().len() == bytes.len());
                let header = packet.header();
                prop_assert!(header.options.sack.as_slice().len() <= SackBlocks::MAX);
            } else {
                prop_assert!(bytes.len() < 20 || bytes[12] >> 4 < 5 || usize::from(bytes[12] >> 4) * 4 > bytes.len());
            }
        }

        #[test]
        fn sequence_numbers_are_ordered_round_the_circle(a: u32, distance in 1u32..0x8000_0000) {
            prop_assert!(before(a, a.wrapping_add(distance)));
            prop_assert!(!before(a.wrapping_add(distance), a) || distance == 0x8000_0000);
            prop_assert!(!before(a, a));
        }
    }

    #[test]
    fn options_are_laid_out_as_linux_does() {
        let options = Options {
            maximum_segment_size: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        };
        let (bytes, length) = options.bytes();
        assert_eq!(
            bytes[..length],
            [
                2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7
            ]
        );
    }

    #[test]
    fn fast_open_is_laid_out_as_linux_does() {
        let written = |option: FastOpen| {
            let options = Options::default().with_fast_open(Some(option));
            let (bytes, length) = options.bytes();
            assert_eq!(Options::parse(&bytes[..length]), options);
            bytes[..length].to_vec()
        };
        assert_eq!(written(FastOpen::REQUEST), [34, 2, 1, 1]);
        let experimental = FastOpen::REQUEST.with_experimental(true);
        assert_eq!(written(experimental), [254, 4, 0xf9, 0x89]);
        let cookie = FastOpen::cookie_of(&[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(written(cookie), [34, 8, 1, 2, 3, 4, 5, 6]);
        assert_eq!(
            written(cookie.with_experimental(true)),
            [254, 10, 0xf9, 0x89, 1, 2, 3, 4, 5, 6, 1, 1]
        );
        // With all that a SYN has, the longest cookie just fits.
        let options = Options {
            maximum_segment_size: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        }
        .with_fast_open(FastOpen::cookie_of(&[9; 16]).map(|option| option.with_experimental(true)));
        let (bytes, length) = options.bytes();
        assert_eq!((length, options.len()), (40, 40));
        assert_eq!(Options::parse(&bytes), options);
    }

    #[test]
    fn cookies_of_a_wrong_length_are_no_option() {
        for length in [1, 2, 3, 5, 7, 15, 17, 18, 20] {
            let mut bytes = vec![34, 2 + length as u8];
            bytes.extend(core::iter::repeat_n(7, length));
            assert_eq!(Options::parse(&bytes).fast_open(), None, "{length}");
            assert_eq!(FastOpen::cookie_of(&bytes[2..]), None, "{length}");
        }
        // Another experiment.
        assert_eq!(Options::parse(&[254, 4, 0xf9, 0x88]).fast_open(), None);
        assert_eq!(Options::parse(&[254, 2]).fast_open(), None);
        // It does not undo what was said before.
        let options = Options::parse(&[34, 2, 1, 1, 34, 3, 9]);
        assert_eq!(options.fast_open(), Some(FastOpen::REQUEST));
    }

    #[test]
    fn options_of_a_wrong_length_are_skipped() {
        // A length of zero would be read forever; one beyond the end, elsewhere.
        for bad in [&[2, 0, 5, 180][..], &[2, 1], &[3, 9, 1], &[8]] {
            assert_eq!(Options::parse(bad), Options::default(), "{bad:?}");
        }
        let options = Options::parse(&[2, 3, 9, 254, 4, 1, 2, 1, 3, 3, 20, 0, 2, 4, 5, 180]);
        assert_eq!(options.window_scale, Some(20));
        assert_eq!(options.maximum_segment_size, None);
    }
}
