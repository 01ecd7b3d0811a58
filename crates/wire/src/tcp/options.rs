//! TCP options, parsed and laid out as by Linux.

use core::fmt;

use super::{HEADER_LEN, HEADER_MAX};
use crate::acp;
use crate::fast_open::{FastOpen, KIND as KIND_FAST_OPEN, KIND_EXPERIMENTAL};

/// The timestamps option (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// The peer's last clock value (TSecr); meaningful with ACK.
    pub echo: u32,
}

/// Blocks of a SACK option (RFC 2018 §3) in the order of the option. Each has the first
/// sequence number and the one after the last.
///
/// A SYN has none: there a Fast Open or ACP option uses the space. So all other segments
/// need no space for it ([`Options::fast_open`], [`Options::acp`]).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); Self::MAX],
    /// Number of blocks. With [`Self::LENT`] it is the length of a cookie; with
    /// [`Self::ACP`] its value does not matter.
    count: u8,
}

impl SackBlocks {
    /// The most blocks that fit.
    pub const MAX: usize = 4;
    /// The space holds a Fast Open or ACP option.
    const LENT: u8 = 0x80;
    /// The Fast Open option has the experimental form.
    const EXPERIMENTAL: u8 = 0x40;
    /// It is an ACP option; the first block holds its version.
    const ACP: u8 = Self::LENT | 0x20;

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
    pub fn as_slice(&self) -> &[(u32, u32)] {
        self.blocks
            .get(..usize::from(self.count))
            .unwrap_or_default()
    }

    /// True if there are none: the option is then left out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0 || self.count >= Self::LENT
    }

    fn of_acp(version: u8) -> Self {
        let mut lent = Self::default();
        lent.blocks[0].0 = version.into();
        lent.count = Self::ACP;
        lent
    }

    fn acp(&self) -> Option<u8> {
        (self.count == Self::ACP).then_some(self.blocks[0].0 as u8)
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
        if self.count < Self::LENT || self.count == Self::ACP {
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
    /// Window scale, a shift count as sent (more than 14 counts as 14, RFC 7323 §2.3); on
    /// SYN segments.
    pub window_scale: Option<u8>,
    /// The sender accepts SACK options; on SYN segments.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// The data that the sender holds beyond a hole.
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
    /// Parses options as Linux does. Unknown options and those of a wrong length are
    /// skipped; a length that extends beyond the header ends the parsing. The last of
    /// several options of one kind counts.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        // The options of nearly every segment, laid out as in RFC 7323 appendix A.
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

    pub(super) fn parse_any(mut bytes: &[u8]) -> Self {
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
                (acp::OPTION_KIND, &[high, low, version])
                    if options.sack.is_empty() && [high, low] == acp::EXPERIMENT =>
                {
                    options.sack = SackBlocks::of_acp(version);
                }
                (KIND_FAST_OPEN | KIND_EXPERIMENTAL, body)
                    if options.sack.is_empty() && options.acp().is_none() =>
                {
                    if let Some(option) = FastOpen::parse(kind, body) {
                        options.sack = SackBlocks::of_fast_open(&option);
                    }
                }
                _ => {}
            }
        }
    }

    /// A Fast Open cookie or a request for one; on SYN segments.
    #[inline]
    pub fn fast_open(&self) -> Option<FastOpen> {
        self.sack.fast_open()
    }

    /// Sets a Fast Open option, which takes the place of SACK blocks; `None` changes
    /// nothing.
    #[must_use]
    pub fn with_fast_open(mut self, option: Option<FastOpen>) -> Self {
        if let Some(option) = &option {
            self.sack = SackBlocks::of_fast_open(option);
        }
        self
    }

    /// The version of ACP that the sender requests or agrees to ([`acp::VERSION`]); on
    /// SYN segments. If a SYN also has a Fast Open option, that is ignored: connections
    /// of frames are not opened by Fast Open.
    #[inline]
    pub fn acp(&self) -> Option<u8> {
        self.sack.acp()
    }

    /// Sets an ACP option, which takes the place of SACK blocks and of a Fast Open
    /// option; `None` changes nothing.
    #[must_use]
    pub fn with_acp(mut self, version: Option<u8>) -> Self {
        if let Some(version) = version {
            self.sack = SackBlocks::of_acp(version);
        }
        self
    }

    /// Bytes that the options take in a header, a multiple of four. SACK blocks that do
    /// not fit into 40 bytes beside the others are left out.
    #[inline]
    pub fn len(&self) -> usize {
        if self.only_timestamps().is_some() {
            return 12;
        }
        self.any_len()
    }

    pub(super) fn any_len(&self) -> usize {
        self.len_without_sack()
            + match self.sack_count() {
                0 => 0,
                count => 4 + 8 * count,
            }
    }

    /// The timestamps, if there is no other option, as in nearly every segment.
    #[inline]
    pub(super) fn only_timestamps(&self) -> Option<Timestamps> {
        let more = self.maximum_segment_size.is_some()
            | self.window_scale.is_some()
            | self.sack_permitted
            | (self.sack.count != 0);
        self.timestamps.filter(|_| !more)
    }

    /// True when there are none.
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
        if self.acp().is_some() {
            length += usize::from(acp::OPTION_LEN).next_multiple_of(4);
        }
        length
    }

    pub(super) fn sack_count(&self) -> usize {
        let room = (HEADER_MAX - HEADER_LEN).saturating_sub(self.len_without_sack() + 4) / 8;
        self.sack.as_slice().len().min(room)
    }

    /// The options as Linux lays them out, so that a fast path for that layout (and a
    /// middlebox that knows no other) recognises them. Also returns the number of bytes
    /// used.
    #[inline]
    pub(super) fn bytes(&self) -> ([u8; HEADER_MAX - HEADER_LEN], usize) {
        let mut bytes = [kind::NO_OPERATION; HEADER_MAX - HEADER_LEN];
        if let Some(timestamps) = self.only_timestamps() {
            bytes[2..4].copy_from_slice(&[kind::TIMESTAMPS, 10]);
            bytes[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            bytes[8..12].copy_from_slice(&timestamps.echo.to_be_bytes());
            return (bytes, 12);
        }
        self.any_bytes(bytes)
    }

    pub(super) fn any_bytes(
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
        if let Some(version) = self.acp() {
            put(&[acp::OPTION_KIND, acp::OPTION_LEN]);
            put(&acp::EXPERIMENT);
            put(&[version]);
            put(&[kind::NO_OPERATION; 3]);
        }
        (bytes, at)
    }
}
