//! Well-behaved peers and networks: any order, duplicates, time, congestion marks.

use super::*;

#[test]
fn two_fragments_over_ipv4_make_a_datagram_with_a_right_header() {
    let mut reassembler = Reassembler::default();
    let first = Send {
        extra: &[7, 3, 4],
        ..SEND
    }
    .v4();
    assert_eq!(reassembler.insert(START, &first, Some(42)), Ok(None));
    let last = Send {
        at: 16,
        more: false,
        payload: b"end",
        ..SEND
    }
    .v4();
    let whole = completes(&mut reassembler, &last);
    assert_eq!(whole.tag, Some(42));
    assert_eq!(whole.transport, 24);
    let packet = ipv4::Packet::new(&whole.bytes).unwrap();
    assert!(packet.has_valid_checksum() && !packet.is_fragment());
    assert_eq!(packet.option_bytes(), [7, 3, 4, 0]);
    assert_eq!(packet.payload(), b"first fragment..end");
    assert_eq!(usize::from(packet.total_length()), whole.bytes.len());
    assert!(is_empty(&reassembler));
    assert_eq!(
        *reassembler.counters(),
        Counters {
            fragments: 2,
            reassembled: 1,
            ..Counters::default()
        }
    );
}

#[test]
fn two_fragments_over_ipv6_make_a_datagram_without_the_fragment_header() {
    let mut reassembler = Reassembler::default();
    let extra = [Protocol::FRAGMENT.0, 0, 1, 4, 0, 0, 0, 0];
    let last = Send {
        at: 16,
        more: false,
        payload: b"end",
        ..SEND
    }
    .v6();
    assert_eq!(reassembler.insert(START, &last, Some(1)), Ok(None));
    let first = Send {
        extra: &extra,
        ..SEND
    }
    .v6();
    let whole = reassembler
        .insert(START, &first, Some(42))
        .unwrap()
        .unwrap();
    // A later fragment's tag is ignored, whatever its position.
    assert_eq!(whole.tag, Some(42));
    let packet = ipv6::Packet::new(&whole.bytes).unwrap();
    assert_eq!(usize::from(packet.payload_length()) + 40, whole.bytes.len());
    let found = packet.extensions().unwrap();
    assert_eq!(
        (found.protocol, found.transport),
        (Protocol::UDP, whole.transport)
    );
    assert_eq!(found.fragment, None);
    assert_eq!(
        (packet.flow_label(), packet.traffic_class()),
        (0x54321, 0x20)
    );
    assert_eq!(payload_of(&whole), b"first fragment..end");
    assert!(is_empty(&reassembler));
}

#[test]
fn an_atomic_fragment_is_whole_and_touches_nothing_in_progress() {
    let mut reassembler = Reassembler::default();
    held(&mut reassembler, &SEND.v6());
    let atomic = Send {
        more: false,
        payload: b"atomic!!",
        ..SEND
    }
    .v6();
    let whole = reassembler
        .insert(START, &atomic, Some(5))
        .unwrap()
        .unwrap();
    assert_eq!((payload_of(&whole), whole.tag), (&b"atomic!!"[..], Some(5)));
    assert_eq!(
        ipv6::Packet::new(&whole.bytes).unwrap().next_header(),
        Protocol::UDP
    );
    assert_eq!(reassembler.datagrams(), 1);
    assert_eq!(reassembler.counters().atomic, 1);
    let last = Send {
        at: 16,
        more: false,
        payload: b"end",
        ..SEND
    }
    .v6();
    assert_eq!(
        payload_of(&completes(&mut reassembler, &last)),
        b"first fragment..end"
    );
}

#[test]
fn datagrams_with_different_keys_do_not_mix() {
    for fragment in FAMILIES {
        let mut reassembler = Reassembler::default();
        held(&mut reassembler, &fragment(SEND));
        let last = Send {
            at: 16,
            more: false,
            payload: b"end",
            ..SEND
        };
        held(&mut reassembler, &fragment(Send { id: 8, ..last }));
        assert_eq!(reassembler.datagrams(), 2);
        assert_eq!(
            payload_of(&completes(&mut reassembler, &fragment(last))).len(),
            19
        );
    }
    // One identification in both families is two datagrams.
    let mut reassembler = Reassembler::default();
    held(&mut reassembler, &SEND.v4());
    held(&mut reassembler, &SEND.v6());
    assert_eq!(reassembler.datagrams(), 2);
}

#[test]
fn an_exact_duplicate_is_ignored() {
    for fragment in FAMILIES {
        let mut reassembler = Reassembler::default();
        held(&mut reassembler, &fragment(SEND));
        assert_eq!(
            refused(&mut reassembler, &fragment(SEND)),
            DropReason::FragmentDuplicate
        );
        let last = Send {
            at: 24,
            more: false,
            payload: b"end",
            ..SEND
        };
        held(&mut reassembler, &fragment(last));
        assert_eq!(
            refused(&mut reassembler, &fragment(last)),
            DropReason::FragmentDuplicate
        );
        let middle = Send {
            at: 16,
            payload: b"a middle",
            ..SEND
        };
        let whole = completes(&mut reassembler, &fragment(middle));
        assert_eq!(payload_of(&whole), b"first fragment..a middleend");
        assert_eq!(reassembler.counters().duplicates, 2);
    }
}

#[test]
fn time_ends_a_datagram_after_30_or_60_seconds() {
    let mut reassembler = Reassembler::default();
    assert_eq!(reassembler.next_expiry(), None);
    reassembler.insert(START, &SEND.v6(), None).unwrap();
    reassembler
        .insert(START + SECOND, &SEND.v4(), None)
        .unwrap();
    assert_eq!(reassembler.next_expiry(), Some(START + 31 * SECOND));
    assert_eq!(reassembler.expire(START + 30 * SECOND), 0);
    assert_eq!(reassembler.expire(START + 31 * SECOND), 1);
    assert_eq!(reassembler.next_expiry(), Some(START + 60 * SECOND));
    // A last fragment that arrives too late starts a new datagram.
    let last = Send {
        at: 16,
        more: false,
        payload: b"end",
        ..SEND
    }
    .v6();
    assert_eq!(
        reassembler.insert(START + 60 * SECOND, &last, None),
        Ok(None)
    );
    assert_eq!(
        (reassembler.datagrams(), reassembler.counters().timeouts),
        (1, 2)
    );
    // A clock that goes back stands still.
    assert_eq!(reassembler.insert(START, &SEND.v4(), None), Ok(None));
    assert_eq!(reassembler.next_expiry(), Some(START + 90 * SECOND));
}

#[test]
fn congestion_marks_are_combined_as_rfc_3168_says() {
    for fragment in FAMILIES {
        let combine = |one: u8, other: u8| {
            let mut reassembler = Reassembler::default();
            held(&mut reassembler, &fragment(Send { ecn: one, ..SEND }));
            let last = Send {
                ecn: other,
                at: 16,
                more: false,
                payload: b"end",
                ..SEND
            };
            let outcome = reassembler.insert(START, &fragment(last), None);
            assert!(is_empty(&reassembler));
            outcome.map(|whole| {
                let bytes = whole.unwrap().bytes;
                match ipv4::Packet::new(&bytes) {
                    Ok(packet) => packet.tos(),
                    Err(_) => ipv6::Packet::new(&bytes).unwrap().traffic_class(),
                }
            })
        };
        assert_eq!(combine(0, 0), Ok(0x20));
        assert_eq!(combine(2, 2), Ok(0x22));
        assert_eq!(combine(2, 3), Ok(0x23));
        assert_eq!(combine(3, 1), Ok(0x23));
        assert_eq!(combine(1, 2), Ok(0x21));
        assert_eq!(combine(0, 3), Err(DropReason::FragmentEcn));
        assert_eq!(combine(2, 0), Err(DropReason::FragmentEcn));
    }
}
