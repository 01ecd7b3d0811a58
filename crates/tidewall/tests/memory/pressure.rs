//! Frame memory runs short, and slow receivers meet fast ones.

use tidewall::UdpSocket;
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{LinkConfig, Side};

use super::support::*;

fn send(bed: &Bed, port: u16, from: u32, count: u32) {
    for n in from..from + count {
        bed.inject(&datagram(at(NEAR4, 5000), at(FAR4, port), &number(n)));
    }
}

fn sockets(bed: &Bed, count: u16) -> Vec<UdpSocket> {
    (0..count)
        .map(|n| nonblocking(&bed.far, anywhere(SERVICE + n)))
        .collect()
}

#[test]
fn a_full_channel_does_not_stop_another() {
    let bed = Bed::new();
    let sockets = sockets(&bed, 2);
    let (slow, quick) = (&sockets[0], &sockets[1]);
    slow.set_receive_limit(32).unwrap();
    for round in 0..40 {
        send(&bed, SERVICE, round * 50, 50);
        send(&bed, SERVICE + 1, round * 10, 10);
        assert_eq!(
            numbers(quick),
            (round * 10..round * 10 + 10).collect::<Vec<_>>()
        );
    }
    assert_eq!(bed.driver(Counter::ChannelFull), 40 * 50 - 32);
    assert_eq!(numbers(slow), (0..32).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn slow_sockets_that_hold_all_memory_are_copied_out_and_nobody_loses() {
    // Half of the memory would be enough for one and a half of these channels.
    let bed = Bed::with(LinkConfig {
        frames: 1024,
        ..LinkConfig::default()
    });
    let sockets = sockets(&bed, 6);
    let (quick, slow) = sockets.split_last().unwrap();
    let quick_port = SERVICE + 5;
    for round in 0..40u32 {
        for n in 0..5u16 {
            send(&bed, SERVICE + n, round * 10, 10);
        }
        send(&bed, quick_port, round * 10, 10);
        assert_eq!(
            numbers(quick),
            (round * 10..round * 10 + 10).collect::<Vec<_>>(),
            "round {round}"
        );
    }
    let counters = bed.link.port_counters(Side::B);
    assert_eq!((counters.fill_empty, counters.device_full), (0, 0));
    let snapshot = bed.far.snapshot();
    assert!(snapshot.counters.copied_out > 0);
    for seen in &snapshot.sockets[..5] {
        assert_eq!(
            (seen.occupancy, seen.dropped_full),
            (400, 0),
            "{}",
            seen.local
        );
    }
    // Copied out, they count against their limit as before.
    send(&bed, SERVICE, 400, 120);
    drain(quick);
    assert_eq!(bed.far.snapshot().sockets[0].dropped_full, 8);
    for (n, socket) in slow.iter().enumerate() {
        let until = if n == 0 { 512 } else { 400 };
        assert_eq!(
            numbers(socket),
            (0..until).collect::<Vec<_>>(),
            "socket {n}"
        );
    }
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_socket_that_closes_gives_back_what_was_copied_out() {
    let bed = Bed::with(LinkConfig {
        frames: 512,
        ..LinkConfig::default()
    });
    let mut sockets = sockets(&bed, 2);
    for round in 0..8 {
        send(&bed, SERVICE, round * 50, 50);
        drain(&sockets[1]);
    }
    assert!(bed.far.snapshot().counters.copied_out > 0);
    assert_eq!(bed.far.snapshot().sockets[0].occupancy, 400);
    sockets.remove(0);
    assert_eq!(bed.outstanding(), 0);
    let again = bed.service();
    send(&bed, SERVICE, 0, 100);
    assert_eq!(numbers(&again), (0..100).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn datagrams_stay_in_order_across_copying_out() {
    let bed = Bed::with(LinkConfig {
        frames: 256,
        ..LinkConfig::default()
    });
    let sockets = sockets(&bed, 2);
    let mut expected = 0;
    let mut next = 0;
    for round in 0..60 {
        send(&bed, SERVICE, next, 30);
        next += 30;
        drain(&sockets[1]);
        // Read a part only, so that copies and frames stand in one queue.
        let part = 20 + round % 15;
        sockets[0]
            .recv_batch(part, |received| {
                assert_eq!(read_number(received.payload), expected);
                expected += 1;
            })
            .unwrap();
    }
    assert!(bed.far.snapshot().counters.copied_out > 0);
    assert_eq!(numbers(&sockets[0]), (expected..next).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn fragments_are_copied_out_like_everything_else() {
    let bed = Bed::with(LinkConfig {
        frames: 256,
        ..LinkConfig::default()
    });
    let sockets = sockets(&bed, 2);
    let payload = |n: u32| [number(n), vec![n as u8; 900]].concat();
    let fragments: Vec<Vec<Fragment>> = (0..150)
        .map(|n| {
            fragment(
                &datagram(at(NEAR4, 5000), service(), &payload(n)),
                n + 1,
                480,
            )
        })
        .collect();
    // A first fragment that waits for its second while others complete.
    for (n, cut) in fragments.iter().enumerate() {
        bed.inject(&cut[0].frame);
        if n > 0 {
            bed.inject(&fragments[n - 1][1].frame);
        }
        if n % 20 == 19 {
            drain(&sockets[1]);
        }
    }
    bed.inject(&fragments[149][1].frame);
    drain(&sockets[1]);
    let got: Vec<u32> = payloads(&sockets[0])
        .iter()
        .map(|whole| {
            assert_eq!(*whole, payload(read_number(whole)));
            read_number(whole)
        })
        .collect();
    assert!(bed.far.snapshot().counters.copied_out > 0 || bed.fragments("reassembled") == 150);
    let mut unique = got.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), got.len(), "a datagram came twice");
    assert_eq!(got.len(), 150);
    assert_eq!(bed.outstanding(), 0);
}

/// A datagram may become whole while another first fragment of the same socket
/// is being copied out.
#[test]
fn copying_out_may_complete_a_datagram_of_the_same_socket() {
    let bed = Bed::with(LinkConfig {
        frames: 300,
        ..LinkConfig::default()
    });
    let sockets = sockets(&bed, 2);
    let cut = |n: u32, size: usize| {
        let payload = [number(n), vec![n as u8; 1000]].concat();
        fragment(&datagram(at(NEAR4, 5000), service(), &payload), n, size)
    };
    // 125 later fragments wait for their datagram's first one.
    let many = cut(1, 8);
    for piece in &many[1..100] {
        bed.inject(&piece.frame);
    }
    bed.inject(&many[0].frame);
    for piece in &many[100..] {
        bed.inject(&piece.frame);
    }
    for n in 2..60 {
        let pair = cut(n, 504);
        bed.inject(&pair[0].frame);
        bed.inject(&pair[1].frame);
        bed.inject(&pair[2].frame);
        if n % 10 == 0 {
            drain(&sockets[1]);
        }
    }
    drain(&sockets[1]);
    let mut got = numbers(&sockets[0]);
    got.sort_unstable();
    assert_eq!(got, (1..60).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}
