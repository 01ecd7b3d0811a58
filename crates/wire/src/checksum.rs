//! The Internet checksum (RFC 1071), its incremental update (RFC 1624) and the
//! pseudo-headers of UDP and ICMPv6 (RFC 768, RFC 8200 §8.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Protocol;

/// A one's-complement sum in progress.
///
/// Words are added in the machine's own byte order and swapped once at the end
/// (RFC 1071 §2B), so that the loop over bytes is a plain sum of `u32` into
/// `u64`, which the compiler turns into vector code.
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
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        sum += u64::from(u32::from_ne_bytes(last));
        Self(self.0 + (sum >> 32) + (sum & 0xffff_ffff)).settle()
    }

    /// Adds one 16-bit number.
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be())).settle()
    }

    /// Adds one 32-bit number, as two 16-bit words.
    #[must_use]
    pub fn double_word(self, word: u32) -> Self {
        Self(self.0 + u64::from(word.to_be())).settle()
    }

    /// Every step ends here, so that the sum stays below 2^33 and no step can
    /// overflow.
    fn settle(self) -> Self {
        Self((self.0 >> 32) + (self.0 & 0xffff_ffff))
    }

    /// The sum folded to 16 bits and *not* complemented: what a sender leaves in
    /// the checksum field when the device is to finish the checksum
    /// (Linux `CHECKSUM_PARTIAL`).
    #[must_use]
    pub fn folded(self) -> u16 {
        // At most 2^32 after the first folding, 0x1fffe after the second.
        let sum = self.settle().0;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be(sum as u16)
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = Sum::ZERO.bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.checksum(), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // RFC 1624 §4: HC = 0xDD2F, m = 0x5555, m' = 0x3285 must give 0x0000,
        // where RFC 1141's formula gave 0xFFFF.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn an_odd_last_byte_is_the_high_half_of_its_word() {
        assert_eq!(Sum::ZERO.bytes(&[0xab]).folded(), 0xab00);
        assert_eq!(Sum::ZERO.bytes(&[1, 2, 3]).folded(), 0x0402);
    }

    #[test]
    fn the_pseudo_headers_are_the_sum_of_their_bytes() {
        let v4 = pseudo_header_v4(
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(198, 51, 100, 2),
            Protocol::UDP,
            1480,
        );
        let bytes = [192, 0, 2, 1, 198, 51, 100, 2, 0, 17, 5, 200];
        assert_eq!(v4.folded(), Sum::ZERO.bytes(&bytes).folded());

        let source: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let destination: Ipv6Addr = "2001:db8::2".parse().unwrap();
        let v6 = pseudo_header_v6(source, destination, Protocol::ICMPV6, 0x1_0002);
        let mut bytes = Vec::from(source.octets());
        bytes.extend(destination.octets());
        bytes.extend([0, 1, 0, 2, 0, 0, 0, 58]);
        assert_eq!(v6.folded(), Sum::ZERO.bytes(&bytes).folded());
    }

    proptest! {
        #[test]
        fn agrees_with_an_independent_crate(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(checksum(&bytes).to_be_bytes(), internet_checksum::checksum(&bytes));
        }

        #[test]
        fn pieces_of_even_length_may_be_added_apart(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            cut in any::<prop::sample::Index>(),
        ) {
            let cut = cut.index(bytes.len() / 2 + 1) * 2;
            let (head, tail) = bytes.split_at(cut);
            prop_assert_eq!(Sum::ZERO.bytes(head).bytes(tail).checksum(), checksum(&bytes));
        }

        #[test]
        fn an_update_equals_a_new_computation(
            mut bytes in prop::collection::vec(any::<u8>(), 2..100),
            at in any::<prop::sample::Index>(),
            new: u16,
        ) {
            let at = at.index(bytes.len() / 2) * 2;
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let before = checksum(&bytes);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            let after = checksum(&bytes);
            let updated = update(before, old, new);
            // All-zero bytes have two representations of zero (RFC 1624 §3).
            if bytes.iter().any(|byte| *byte != 0) {
                prop_assert_eq!(updated, after);
            }
        }

        #[test]
        fn appending_the_checksum_makes_the_sum_valid(
            bytes in prop::collection::vec(any::<u8>(), 0..100)
        ) {
            let even = bytes.len() & !1;
            let mut bytes = bytes[..even].to_vec();
            let check = checksum(&bytes);
            bytes.extend(check.to_be_bytes());
            prop_assert!(Sum::ZERO.bytes(&bytes).is_valid());
        }
    }
}
