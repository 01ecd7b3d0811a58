//! Reassembly from the wire to the socket.

use std::net::Ipv6Addr;
use std::time::Duration;

use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{LinkConfig, Side};

use super::support::*;

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 % 251) as u8).collect()
}

fn cut(length: usize, identification: u32, size: usize) -> Vec<Fragment> {
    fragment(
        &datagram(at(NEAR4, 5000), service(), &payload(length)),
        identification,
        size,
    )
}

fn cut_v6(length: usize, identification: u32, size: usize) -> Vec<Fragment> {
    let whole = datagram(at(NEAR6, 5000), at(FAR6, SERVICE), &payload(length));
    fragment(&whole, identification, size)
}

fn inject(bed: &Bed, fragments: impl IntoIterator<Item = Fragment>) {
    for fragment in fragments {
        bed.inject(&fragment.frame);
    }
}

#[test]
fn fragments_in_any_order_become_their_datagram() {
    let orders: [fn(&mut Vec<Fragment>); 5] = [
        |_| {},
        |all| all.reverse(),
        // The first one last, the last one first.
        |all| all.rotate_left(1),
        |all| all.rotate_right(1),
        // Even places, then odd ones.
        |all| all.sort_by_key(|piece| (piece.start / 1480 % 2, piece.start)),
    ];
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    let mut identification = 0;
    for (place, order) in orders.iter().enumerate() {
        for make in [cut as fn(usize, u32, usize) -> Vec<Fragment>, cut_v6] {
            for length in [1473, 8192, 65_000] {
                identification += 1;
                let mut all = make(length, identification, 1440);
                order(&mut all);
                inject(&bed, all);
                let got = payloads(&socket);
                assert_eq!(got.len(), 1, "order {place}, {length} bytes");
                assert!(got[0] == payload(length), "order {place}, {length} bytes");
            }
        }
    }
    assert_eq!(bed.fragments("reassembled"), u64::from(identification));
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn datagrams_interleaved_with_others_and_with_whole_ones() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    let mut all: Vec<Fragment> = (1..=5)
        .flat_map(|n| cut(4000 + n, n as u32, 1000))
        .collect();
    let mut theirs = fragment(
        &datagram(at(NEAR4, 5000), at(FAR4, SERVICE + 1), b"01234567"),
        9,
        8,
    );
    all.append(&mut theirs);
    all.sort_by_key(|piece| piece.start);
    for (n, piece) in all.into_iter().enumerate() {
        bed.inject(&piece.frame);
        if n % 4 == 0 {
            bed.inject(&datagram(at(NEAR4, 5000), service(), b"whole"));
        }
    }
    let got = payloads(&socket);
    assert_eq!(got.iter().filter(|got| *got == b"whole").count(), 7);
    let mut lengths: Vec<usize> = got
        .iter()
        .map(Vec::len)
        .filter(|&length| length > 5)
        .collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [4001, 4002, 4003, 4004, 4005]);
    assert_eq!(payloads(&other), [b"01234567"]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_connected_socket_gets_its_peers_fragments_only() {
    let bed = Bed::new();
    let socket = bed.service();
    socket.connect(at(NEAR4, 5000)).unwrap();
    inject(&bed, cut(3000, 1, 1000));
    let stranger = datagram(at(OTHER4, 5000), service(), &payload(3000));
    inject(&bed, fragment(&stranger, 2, 1000));
    assert_eq!(drain(&socket), [(payload(3000), at(NEAR4, 5000))]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn duplicates_are_harmless() {
    let bed = Bed::new();
    let socket = bed.service();
    let all = cut(3000, 7, 1000);
    inject(&bed, [0, 1, 1, 0, 2].map(|n| all[n].clone()));
    assert_eq!(drain(&socket), []);
    inject(&bed, all[3..].iter().cloned());
    assert_eq!(payloads(&socket), [payload(3000)]);
    assert_eq!(bed.fragments("duplicates"), 2);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn overlaps_condemn_their_datagram() {
    for (v6, name) in [(false, "IPv4"), (true, "IPv6")] {
        let bed = Bed::new();
        let socket = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
        let whole = if v6 {
            datagram(at(NEAR6, 5000), at(FAR6, SERVICE), &payload(3000))
        } else {
            datagram(at(NEAR4, 5000), service(), &payload(3000))
        };
        let all = fragment(&whole, 7, 1000);
        bed.inject(&all[0].frame);
        // Eight bytes of the first are written again, differently.
        bed.inject(&slice(&whole, 7, 992, &[0xee; 1008], true).frame);
        inject(&bed, all[1..].iter().cloned());
        assert_eq!(drain(&socket), [], "{name}");
        assert_eq!(bed.fragments("overlaps"), 1, "{name}");
        assert!(bed.fragments("refused") >= 2, "{name}");
        // The next datagram of the same pair is not hurt.
        inject(&bed, fragment(&whole, 8, 1000));
        assert_eq!(payloads(&socket).len(), 1, "{name}");
        assert_eq!(bed.outstanding(), 0, "{name}");
    }
}

#[test]
fn contradicting_ends_condemn_their_datagram() {
    let bed = Bed::new();
    let socket = bed.service();
    let whole = datagram(at(NEAR4, 5000), service(), &payload(3000));
    let all = fragment(&whole, 7, 1000);
    bed.inject(&all[0].frame);
    bed.inject(&all[3].frame);
    bed.inject(&slice(&whole, 7, 4000, &[1; 8], false).frame);
    inject(&bed, all[1..3].iter().cloned());
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.fragments("contradictions"), 1);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn an_unfinished_datagram_is_given_up_in_time() {
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    inject(&bed, cut(3000, 1, 1000).into_iter().take(2));
    inject(&bed, cut_v6(3000, 1, 1000).into_iter().skip(1));
    assert_eq!(drain(&socket), []);
    // 30 s for IPv4, 60 s for IPv6.
    bed.advance(Duration::from_secs(29));
    inject(&bed, cut(3000, 2, 1000));
    assert_eq!(payloads(&socket).len(), 1);
    assert_eq!(bed.fragments("timeouts"), 0);
    bed.advance(Duration::from_secs(2));
    inject(&bed, cut(3000, 1, 1000).into_iter().skip(2));
    assert_eq!(drain(&socket), [], "a fragment came after its time");
    assert_eq!(bed.fragments("timeouts"), 1);
    bed.advance(Duration::from_secs(28));
    inject(&bed, cut_v6(3000, 1, 1000).into_iter().take(1));
    assert_eq!(payloads(&socket).len(), 1, "59 s are within IPv6's time");
    bed.advance(Duration::from_secs(60));
    // No more frames arrive: a sleeper drops the rest.
    assert!(
        bed.far
            .wait(&[&socket], Some(Duration::from_millis(1)))
            .unwrap()
            .is_empty()
    );
    assert_eq!(bed.fragments("timeouts"), 2);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn later_fragments_that_overtake_their_first_wait_for_it() {
    let bed = Bed::new();
    let socket = bed.service();
    let all = cut(3000, 1, 1000);
    inject(&bed, all[1..].iter().cloned());
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.driver(Counter::FragmentOrphan), 3);
    bed.inject(&all[0].frame);
    assert_eq!(payloads(&socket), [payload(3000)]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn fragments_of_the_kernels_datagrams_stay_with_the_kernel() {
    let bed = Bed::new();
    let socket = bed.service();
    let theirs = datagram(at(NEAR4, 5000), at(FAR4, 53), &payload(3000));
    inject(&bed, fragment(&theirs, 3, 1000));
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.link.take_kernel(Side::B).len(), 4);
    assert_eq!(bed.fragments("fragments"), 0);
}

#[test]
fn many_small_fragments_at_once_are_all_looked_at() {
    let bed = Bed::new();
    let socket = bed.service();
    // 126 fragments each, more at once than one batch of reassembly.
    let all: Vec<Vec<Fragment>> = (1..=2).map(|n| cut(1000, n, 8)).collect();
    bed.inject(&all[0][0].frame);
    bed.inject(&all[1][0].frame);
    assert_eq!(drain(&socket), []);
    inject(&bed, all[0][1..].iter().cloned());
    assert_eq!(payloads(&socket), [payload(1000)]);
    inject(&bed, all[1][1..].iter().cloned());
    assert_eq!(payloads(&socket), [payload(1000)]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_fragment_bomb_is_bounded_and_other_traffic_goes_on() {
    let bed = Bed::with(LinkConfig {
        queues: 1,
        ..LinkConfig::default()
    });
    let (client, socket) = (bed.near_socket(), bed.service());
    let whole = datagram(at(NEAR4, 5000), service(), &payload(65_000));
    for bomb in 0..3000u32 {
        // A first and a last fragment of ever new datagrams.
        bed.inject(&slice(&whole, bomb + 1, 0, &whole[34..1474], true).frame);
        bed.inject(&slice(&whole, bomb + 1, 64_000, &[0; 1000], false).frame);
        if bomb % 50 == 49 {
            client.send_to(b"honest", service()).unwrap();
            assert_eq!(payloads(&socket), [b"honest"], "after {bomb} bombs");
        }
    }
    let seen = bed.far.snapshot();
    assert_eq!(seen.counters.fragments["fragments"], 6000);
    // At most 1024 datagrams are held.
    assert!(
        seen.counters.fragments["evicted"] >= 3000 - 1024,
        "{:?}",
        seen.counters.fragments
    );
    assert_eq!(bed.outstanding(), 0);
    inject(&bed, cut(8000, 60_000, 1480));
    assert_eq!(payloads(&socket), [payload(8000)]);
}

#[test]
fn one_datagram_of_too_many_fragments_is_refused() {
    let bed = Bed::new();
    let socket = bed.service();
    inject(&bed, cut(2000, 1, 8));
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.fragments("too-many-fragments"), 1);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_socket_that_closes_takes_its_unfinished_datagrams_along() {
    let bed = Bed::new();
    let socket = bed.service();
    let all = cut(3000, 1, 1000);
    bed.inject(&all[0].frame);
    assert_eq!(drain(&socket), []);
    drop(socket);
    let again = bed.service();
    inject(&bed, all[1..].iter().cloned());
    assert_eq!(drain(&again), []);
    assert_eq!(bed.far.snapshot().counters.no_socket, 1);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_reassembled_datagram_with_a_bad_checksum_is_dropped() {
    let bed = Bed::new();
    let socket = bed.service();
    let mut all = cut(3000, 1, 1000);
    let last = all[1].frame.len() - 1;
    all[1].frame[last] ^= 0x55;
    inject(&bed, all);
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.protocol("udp-checksum"), 1);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn reassembled_datagrams_that_nobody_reads_are_bounded() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    // First fragments are processed in their owner's receive only.
    for n in 1..=200 {
        bed.inject(&cut(100, n, 64)[0].frame);
    }
    assert_eq!(drain(&socket), []);
    for n in 201..=300 {
        bed.inject(&cut(100, n, 64)[0].frame);
    }
    assert_eq!(drain(&socket), []);
    for n in 1..=300 {
        bed.inject(&cut(100, n, 64)[1].frame);
        if n % 50 == 0 {
            drain(&other);
        }
    }
    assert_eq!(bed.far.snapshot().counters.socket_full, 44);
    assert_eq!(payloads(&socket), vec![payload(100); 256]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn an_atomic_fragment_is_a_whole_datagram() {
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, at(FAR6, SERVICE));
    let whole = datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"RFC 6946");
    let atomic = slice(&whole, 5, 0, &whole[54..], false);
    bed.inject(&atomic.frame);
    assert_eq!(payloads(&socket), [b"RFC 6946"]);
    assert_eq!(bed.outstanding(), 0);
}
