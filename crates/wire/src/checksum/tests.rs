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

/// Whether adding four words at once gives the sum of adding them one by one.
fn adds_as_words_do(first: u64, second: u64) -> bool {
    let apart = |words: u64| Sum::ZERO.bytes(&words.to_ne_bytes());
    Sum(first).add(second).folded() == apart(first).sum(apart(second)).folded()
}

#[test]
fn each_carry_comes_back_at_the_other_end() {
    let edges = [
        0,
        1,
        0xffff,
        u64::MAX >> 32,
        u64::MAX << 32,
        u64::MAX - 1,
        u64::MAX,
    ];
    for first in edges {
        for second in edges {
            assert!(adds_as_words_do(first, second), "{first:x} {second:x}");
        }
    }
    assert_eq!(Sum(u64::MAX).add(1).folded(), u16::from_be(1));
}

proptest! {
    #[test]
    fn four_words_are_added_as_one_by_one(first: u64, second: u64) {
        prop_assert!(adds_as_words_do(first, second));
    }

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
