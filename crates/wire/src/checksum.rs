//! The Internet checksum (RFC 1071), its incremental update (RFC 1624) and the
//! pseudo-headers of UDP and ICMPv6 (RFC 768, RFC 8200 §8.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Protocol;

/// A one's-complement sum in progress.
///
/// Words are added in the machine's native byte order and swapped once at the end (RFC
/// 1071 §2B). Four are added at a time, with the carry added at the other end (§1, §2C).
/// The loop over bytes is a plain sum of `u32` into `u64`, which the compiler vectorizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds bytes, the last one padded with a zero byte if their number is odd.
    /// So bytes may be added in pieces only if every piece but the last has an
    /// even length.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum = 0u64;
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let (pair, odd) = rest.as_chunks::<2>();
        if let [pair] = pair {
            sum += u64::from(u16::from_ne_bytes(*pair));
        }
        if let [odd] = odd {
            sum += u64::from(u16::from_ne_bytes([*odd, 0]));
        }
        self.add(sum)
    }

    /// Adds one 16-bit number.
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        self.add(word.to_be().into())
    }

    /// Adds one 32-bit number, as two 16-bit words.
    #[must_use]
    pub fn double_word(self, word: u32) -> Self {
        self.add(word.to_be().into())
    }

    /// Adds another sum, of bytes at an even offset.
    #[must_use]
    pub fn sum(self, other: Self) -> Self {
        self.add(other.0)
    }

    /// The sum of the same bytes at an odd offset (RFC 1071 §2B).
    #[must_use]
    pub fn shifted(self) -> Self {
        Self::ZERO.word(self.folded().swap_bytes())
    }

    /// Adds four words at once. With a carry the sum is below 2^64 - 1, so adding it
    /// causes no further carry.
    #[inline]
    fn add(self, words: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(words);
        Self(sum + u64::from(carry))
    }

    /// The sum folded to 16 bits and *not* complemented. A sender leaves it in the
    /// checksum field if the device is to finish the checksum (Linux `CHECKSUM_PARTIAL`).
    #[must_use]
    pub fn folded(self) -> u16 {
        let (sum, carry) = (self.0 as u32).overflowing_add((self.0 >> 32) as u32);
        let sum = sum + u32::from(carry);
        let (sum, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
        u16::from_be(sum + u16::from(carry))
    }

    /// The checksum: the complement of the folded sum. Zero when the summed
    /// bytes hold a correct checksum.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// True when the summed bytes, checksum field included, are undamaged.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }
}

/// The checksum of `bytes`, whose own checksum field must be zero.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).checksum()
}

/// The new checksum of a header in which one 16-bit word changed from `old` to
/// `new` (RFC 1624, equation 3).
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).checksum()
}

/// The sum of the IPv4 pseudo-header (RFC 768): `length` is that of the
/// transport header and its payload, in bytes.
#[must_use]
pub fn pseudo_header_v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: Protocol,
    length: u16,
) -> Sum {
    Sum::ZERO
        .double_word(source.to_bits())
        .double_word(destination.to_bits())
        .word(u16::from(protocol.0))
        .word(length)
}

/// The sum of the IPv6 pseudo-header (RFC 8200 §8.1): `length` is that of the
/// upper-layer header and its payload, in bytes.
#[must_use]
pub fn pseudo_header_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: Protocol,
    length: u32,
) -> Sum {
    Sum::ZERO
        .bytes(&source.octets())
        .bytes(&destination.octets())
        .double_word(length)
        .double_word(u32::from(protocol.0))
}

#[cfg(test)]
mod tests;
