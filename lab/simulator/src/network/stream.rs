//! Streams of bytes that differ from position to position and from flow to flow, so that
//! a misplaced byte is detected.

use std::sync::LazyLock;

use crate::random::Random;

/// A prime: neither a power of two nor a segment size divides it.
const PERIOD: usize = 65_521;

/// Two periods, so that any bytes of one period's length are contiguous.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0x7469_6465_7761_6c6c);
    let period: Vec<u8> = (0..PERIOD).map(|_| random.bits() as u8).collect();
    [&period[..], &period[..]].concat()
});

/// One direction of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    start: u64,
}

impl Stream {
    pub(super) fn new(salt: u64) -> Self {
        Self {
            start: Random::new(salt).below(PERIOD as u64),
        }
    }

    /// The bytes from an offset on: as many as requested, or a period.
    pub(super) fn at(self, offset: u64, length: u64) -> &'static [u8] {
        let from = ((self.start + offset % PERIOD as u64) % PERIOD as u64) as usize;
        let length = length.min(PERIOD as u64) as usize;
        BYTES.get(from..from + length).unwrap_or_default()
    }

    /// Whether the bytes are those from an offset on.
    pub(super) fn matches(self, mut offset: u64, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let expected = self.at(offset, bytes.len() as u64);
            let (piece, rest) = bytes.split_at(expected.len());
            if piece != expected {
                return false;
            }
            offset += piece.len() as u64;
            bytes = rest;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_at_the_wrong_place_shows() {
        let stream = Stream::new(5);
        let mut bytes = Vec::new();
        while bytes.len() < 200_000 {
            bytes.extend_from_slice(stream.at(bytes.len() as u64, 1460));
        }
        assert!(stream.matches(0, &bytes));
        assert!(stream.matches(100_000, &bytes[100_000..]));
        assert!(!stream.matches(1460, &bytes));
        assert!(!stream.matches(0, &bytes[1..]));
        assert!(!Stream::new(6).matches(0, &bytes));
        bytes[150_000] ^= 1;
        assert!(!stream.matches(0, &bytes));
    }
}
