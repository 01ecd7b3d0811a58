//! Peers that attack: overlaps, contradictions, tiny fragments, bombs.

use super::*;

#[test]
fn an_overlap_condemns_its_datagram_until_its_time_is_up() {
    let overlaps = [
        // Teardrop: inside an existing fragment; RFC 3128: over its end; the same place
        // with other content; around it.
        Send {
            at: 8,
            payload: b"........",
            ..SEND
        },
        Send {
            at: 8,
            payload: b"................",
            ..SEND
        },
        Send {
            payload: b"FIRST fragment..",
            ..SEND
        },
        Send {
            payload: b"first fragment..and the rest of.",
            ..SEND
        },
    ];
    for fragment in FAMILIES {
        for overlap in overlaps {
            let mut reassembler = Reassembler::default();
            held(&mut reassembler, &fragment(SEND));
            assert_eq!(
                refused(&mut reassembler, &fragment(overlap)),
                DropReason::FragmentOverlap
            );
            assert_eq!(reassembler.bytes(), DATAGRAM_COST);
            let last = fragment(Send {
                at: 16,
                more: false,
                payload: b"end",
                ..SEND
            });
            assert_eq!(
                refused(&mut reassembler, &last),
                DropReason::FragmentRefused
            );
            assert_eq!(
                refused(&mut reassembler, &fragment(SEND)),
                DropReason::FragmentRefused
            );
            let counters = *reassembler.counters();
            assert_eq!(
                (counters.overlaps, counters.refused, counters.reassembled),
                (1, 2, 0)
            );
            assert_eq!(reassembler.expire(START + 60 * SECOND), 1);
            assert!(is_empty(&reassembler));
        }
    }
}

#[test]
fn contradicting_ends_condemn_a_datagram() {
    let last = Send {
        at: 32,
        more: false,
        payload: b"the end",
        ..SEND
    };
    let even = Send {
        payload: b"the end.",
        ..last
    };
    let cases = [
        // The same bytes, but no longer the last.
        [even, Send { more: true, ..even }],
        [last, Send { at: 40, ..last }],
        [last, Send { at: 24, ..last }],
        [
            last,
            Send {
                at: 32,
                more: true,
                payload: b"........",
                ..SEND
            },
        ],
        [
            last,
            Send {
                at: 48,
                more: true,
                payload: b"........",
                ..SEND
            },
        ],
        [Send { at: 48, ..SEND }, last],
        [
            Send {
                at: 32,
                payload: b"the end.",
                ..SEND
            },
            Send {
                payload: b"the end.",
                ..last
            },
        ],
    ];
    for fragment in FAMILIES {
        for [one, other] in cases {
            let mut reassembler = Reassembler::default();
            held(&mut reassembler, &fragment(one));
            assert_eq!(
                refused(&mut reassembler, &fragment(other)),
                DropReason::FragmentEnd
            );
            assert_eq!(
                refused(&mut reassembler, &fragment(SEND)),
                DropReason::FragmentRefused
            );
            assert_eq!(reassembler.counters().contradictions, 1);
        }
    }
}

#[test]
fn fragments_unsound_by_themselves_are_refused_and_leave_nothing() {
    let mut reassembler = Reassembler::default();
    for fragment in FAMILIES {
        let cases = [
            (
                Send {
                    payload: b"odd",
                    ..SEND
                },
                DropReason::FragmentLength,
            ),
            (
                Send {
                    at: 8,
                    payload: b"",
                    ..SEND
                },
                DropReason::FragmentEmpty,
            ),
            (
                Send {
                    at: 8,
                    more: false,
                    payload: b"",
                    ..SEND
                },
                DropReason::FragmentEmpty,
            ),
            // Ping of death: the last offset with one byte too many.
            (
                Send {
                    at: 65_528,
                    more: false,
                    payload: b"12345678",
                    ..SEND
                },
                DropReason::FragmentTooLarge,
            ),
        ];
        for (send, cause) in cases {
            assert_eq!(refused(&mut reassembler, &fragment(send)), cause);
        }
    }
    let mut damaged = SEND.v4();
    damaged[8] ^= 1;
    assert_eq!(
        refused(&mut reassembler, &damaged),
        DropReason::HeaderChecksum
    );
    assert_eq!(
        refused(&mut reassembler, &SEND.v4()[..30]),
        DropReason::Truncated
    );
    assert_eq!(
        refused(&mut reassembler, &SEND.v6()[..50]),
        DropReason::Truncated
    );
    assert_eq!(refused(&mut reassembler, &[]), DropReason::Truncated);
    assert_eq!(refused(&mut reassembler, &[0; 40]), DropReason::Version);
    let whole = Send {
        more: false,
        ..SEND
    }
    .v4();
    assert_eq!(refused(&mut reassembler, &whole), DropReason::NotFragment);
    assert!(is_empty(&reassembler));
    let counters = *reassembler.counters();
    assert_eq!((counters.fragments, counters.malformed), (14, 14));
}

#[test]
fn a_first_fragment_must_hold_the_transport_header() {
    // Destination options after the fragment header fill the whole fragment.
    let mut first = Send {
        payload: &[17, 0, 1, 4, 0, 0, 0, 0],
        ..SEND
    }
    .v6();
    first[40] = Protocol::DESTINATION_OPTIONS.0;
    let mut reassembler = Reassembler::default();
    assert_eq!(
        refused(&mut reassembler, &first),
        DropReason::FragmentHeaders
    );
    // With the flag even such fragments are cut.
    first[49] = 1;
    assert_eq!(refused(&mut reassembler, &first), DropReason::Truncated);
    assert!(is_empty(&reassembler));
}

#[test]
fn the_longest_datagram_passes_and_one_byte_more_does_not() {
    for (fragment, limit) in [(FAMILIES[0], 65_515), (FAMILIES[1], 65_535)] {
        let payload: Vec<u8> = (0..limit + 1).map(|at| (at % 251) as u8).collect();
        let mut reassembler = Reassembler::default();
        for at in (0..64_000).step_by(1280) {
            held(
                &mut reassembler,
                &fragment(Send {
                    at,
                    payload: &payload[at..at + 1280],
                    ..SEND
                }),
            );
        }
        let last = |end: usize| {
            fragment(Send {
                at: 64_000,
                more: false,
                payload: &payload[64_000..end],
                ..SEND
            })
        };
        assert_eq!(
            refused(&mut reassembler, &last(limit + 1)),
            DropReason::FragmentTooLarge
        );
        let whole = completes(&mut reassembler, &last(limit));
        assert_eq!(payload_of(&whole), &payload[..limit]);
    }
    // Without options in the last fragment the datagram seems to fit; with the first's
    // options it does not.
    let payload = vec![0; 65_515];
    let mut reassembler = Reassembler::default();
    held(
        &mut reassembler,
        &Send {
            at: 32_000,
            more: false,
            payload: &payload[32_000..],
            ..SEND
        }
        .v4(),
    );
    let first = Send {
        extra: &[1; 4],
        payload: &payload[..32_000],
        ..SEND
    }
    .v4();
    assert_eq!(
        refused(&mut reassembler, &first),
        DropReason::FragmentTooLarge
    );
    assert!(is_empty(&reassembler));
}

#[test]
fn tiny_fragments_end_at_the_limit_of_a_datagram() {
    let limits = Limits {
        fragments: 16,
        ..Limits::default()
    };
    for fragment in FAMILIES {
        let mut reassembler = Reassembler::new(limits);
        for at in (8..136).step_by(8) {
            held(
                &mut reassembler,
                &fragment(Send {
                    at,
                    payload: b"tiny....",
                    ..SEND
                }),
            );
        }
        let more = fragment(Send {
            at: 800,
            payload: b"tiny....",
            ..SEND
        });
        assert_eq!(refused(&mut reassembler, &more), DropReason::FragmentCount);
        assert_eq!(reassembler.bytes(), DATAGRAM_COST);
        assert_eq!(reassembler.counters().too_many_fragments, 1);
    }
}

#[test]
fn a_bomb_of_first_fragments_stays_within_limits_and_the_newest_survive() {
    let limits = Limits {
        datagrams: 100,
        bytes: 200_000,
        ..Limits::default()
    };
    let payload = [0; 1480];
    for fragment in FAMILIES {
        let mut reassembler = Reassembler::new(limits);
        for id in 0..5000 {
            held(
                &mut reassembler,
                &fragment(Send {
                    id,
                    payload: &payload,
                    ..SEND
                }),
            );
            assert!(reassembler.datagrams() <= 100 && reassembler.bytes() <= 200_000);
        }
        let inside = reassembler.datagrams() as u64;
        assert!(inside >= 80);
        assert_eq!(reassembler.counters().evicted, 5000 - inside);
        let last = fragment(Send {
            id: 4999,
            at: 1480,
            more: false,
            payload: b"end",
            ..SEND
        });
        assert_eq!(payload_of(&completes(&mut reassembler, &last)).len(), 1483);
    }
}

#[test]
fn the_datagram_being_added_to_is_not_what_gives_way() {
    // Space for two datagrams with one small and one large fragment each.
    let bytes = 2 * (DATAGRAM_COST + 2 * FRAGMENT_COST + 2000);
    let mut reassembler = Reassembler::new(Limits {
        bytes,
        ..Limits::default()
    });
    held(&mut reassembler, &SEND.v4());
    held(&mut reassembler, &Send { id: 8, ..SEND }.v4());
    // The older datagram grows beyond the free space: the younger is evicted.
    held(
        &mut reassembler,
        &Send {
            at: 16,
            payload: &[1; 4400],
            ..SEND
        }
        .v4(),
    );
    assert_eq!(
        (reassembler.datagrams(), reassembler.counters().evicted),
        (1, 1)
    );
    // The datagram grows beyond all space: it can never be completed, and is dropped
    // itself.
    let more = Send {
        at: 4416,
        payload: &[1; 4400],
        ..SEND
    }
    .v4();
    assert_eq!(refused(&mut reassembler, &more), DropReason::FragmentMemory);
    assert!(is_empty(&reassembler));
    let mut closed = Reassembler::new(Limits {
        datagrams: 0,
        ..Limits::default()
    });
    assert_eq!(refused(&mut closed, &SEND.v4()), DropReason::FragmentMemory);
    assert!(is_empty(&closed));
}
