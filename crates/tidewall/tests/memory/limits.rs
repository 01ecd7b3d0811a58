//! The bound on each channel, kept by the driver, and credit that comes back
//! whatever happens.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use tidewall::{Received, TcpListener, UdpSocket};
use tidewall_device::demux::layout::{Counter, OWNERS, Protocol};
use tidewall_device::memory::{Impairments, LinkConfig, Rings, Side};

use super::support::*;

fn send(bed: &Bed, range: std::ops::Range<u32>) {
    for n in range {
        bed.inject(&datagram(at(NEAR4, 5000), service(), &number(n)));
    }
}

#[test]
fn the_driver_drops_over_the_receive_limit_and_counts_it() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    assert_eq!(socket.receive_limit(), 512);
    socket.set_receive_limit(8).unwrap();
    assert_eq!(socket.receive_limit(), 8);
    send(&bed, 0..20);
    assert_eq!(drain(&other), []);
    let snapshot = bed.far.snapshot();
    let seen = &snapshot.sockets[0];
    assert_eq!((seen.occupancy, seen.limit, seen.dropped_full), (8, 8, 12));
    assert_eq!(snapshot.queues[0].driver["channel-full"], 12);
    assert_eq!(snapshot.queues[0].driver["channel"], 8);
    assert_eq!(numbers(&socket), (0..8).collect::<Vec<_>>());
    let snapshot = bed.far.snapshot();
    assert_eq!(snapshot.sockets[0].occupancy, 0);
    assert_eq!(snapshot.sockets[0].received, 8);
    assert_eq!(snapshot.queues[0].delivered, 8);
    // All of the credit is back.
    send(&bed, 20..28);
    assert_eq!(numbers(&socket), (20..28).collect::<Vec<_>>());
    assert_eq!(bed.far.snapshot().sockets[0].dropped_full, 12);
}

#[test]
fn credit_comes_back_one_by_one() {
    let bed = Bed::new();
    let socket = bed.service();
    socket.set_receive_limit(4).unwrap();
    let mut buffer = [0; 4];
    send(&bed, 0..4);
    for n in 0..100 {
        assert_eq!(socket.recv(&mut buffer).unwrap(), 4);
        assert_eq!(read_number(&buffer), n);
        send(&bed, n + 4..n + 5);
    }
    assert_eq!(bed.driver(Counter::ChannelFull), 0);
    drain(&socket);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_limit_may_change_while_datagrams_wait() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    send(&bed, 0..10);
    drain(&other);
    socket.set_receive_limit(2).unwrap();
    send(&bed, 10..11);
    drain(&other);
    assert_eq!(bed.driver(Counter::ChannelFull), 1);
    socket.set_receive_limit(11).unwrap();
    send(&bed, 11..13);
    let expected: Vec<u32> = (0..10).chain([11]).collect();
    drain(&other);
    assert_eq!(numbers(&socket), expected);
    assert_eq!(bed.outstanding(), 0);
}

/// The device gives its frames out in order: with all of them it would touch them all.
#[test]
fn a_polled_device_receives_into_few_frames_again_and_again() {
    let bed = Bed::with(LinkConfig {
        frames: 8192,
        ..LinkConfig::default()
    });
    let socket = bed.service();
    let mut used = BTreeSet::new();
    let mut received = 0;
    for burst in 0..300u32 {
        send(&bed, burst * 64..(burst + 1) * 64);
        // Frames that it received for a sleeping thread come first.
        let steady = burst >= 200;
        let mut each = |datagram: Received<'_>| {
            if steady {
                used.insert(datagram.payload.as_ptr().addr());
            }
        };
        while let Ok(count) = socket.recv_batch(64, &mut each) {
            received += count;
        }
    }
    assert_eq!(received, 300 * 64);
    // The device's frames, and a burst that is being read.
    assert!((64..=1024 + 64).contains(&used.len()), "{}", used.len());
    assert_eq!(bed.outstanding(), 0);
}

/// Runs bursts into rings too small for them.
fn lossy(rings: Rings) -> (Bed, u64) {
    // Less memory than rings would have room for, so that a fill ring of its
    // own size is what limits.
    let bed = Bed::with(LinkConfig {
        rings,
        frames: 4096,
        ..LinkConfig::default()
    });
    let socket = bed.service();
    let mut next = 0;
    let mut last = None;
    for _ in 0..50 {
        send(&bed, next..next + 64);
        next += 64;
        for n in numbers(&socket) {
            assert!(last.is_none_or(|last| last < n), "{n} after {last:?}");
            last = Some(n);
        }
        assert_eq!(bed.far.snapshot().sockets[0].occupancy, 0);
    }
    let lost = bed.far.snapshot().queues[0].lost_in_ring;
    // The channel admits a full load again, as far as the rings hold it.
    send(&bed, next..next + 4);
    assert_eq!(numbers(&socket), (next..next + 4).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
    drop(socket);
    (bed, lost)
}

#[test]
fn a_short_fill_ring_loses_nothing_late() {
    let (bed, lost) = lossy(Rings {
        fill: 5,
        ..Rings::default()
    });
    let counters = bed.link.port_counters(Side::B);
    assert_eq!((lost, counters.fill_empty), (0, 0), "{counters:?}");
    let early = bed.driver(Counter::ApplicationFull);
    assert!(early > 1000, "{early}");
}

#[test]
fn a_full_receive_ring_leaks_no_credit() {
    let (bed, lost) = lossy(Rings {
        receive: 7,
        ..Rings::default()
    });
    let counters = bed.link.port_counters(Side::B);
    assert!(counters.receive_full > 1000, "{counters:?}");
    assert_eq!(lost, counters.receive_full);
}

#[test]
fn a_channel_whose_whole_credit_was_lost_opens_again() {
    // Nothing can be delivered at all, so no gap ever shows.
    let rings = Rings {
        receive: 0,
        ..Rings::default()
    };
    let bed = Bed::with(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    let socket = bed.service();
    socket.set_receive_limit(16).unwrap();
    for _ in 0..5 {
        send(&bed, 0..20);
        assert_eq!(drain(&socket), []);
        assert_eq!(bed.outstanding(), 0);
    }
    assert_eq!(bed.link.port_counters(Side::B).receive_full, 5 * 16);
    let snapshot = bed.far.snapshot();
    assert_eq!(snapshot.queues[0].lost_in_ring, 5 * 16);
    assert_eq!(snapshot.sockets[0].dropped_full, 5 * 4);
}

#[test]
fn redirects_that_fail_on_one_channel_do_not_touch_the_account_of_another() {
    let rings = Rings {
        receive: 4,
        ..Rings::default()
    };
    let bed = Bed::with(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    let (one, two) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    one.set_receive_limit(8).unwrap();
    two.set_receive_limit(8).unwrap();
    let mut got = [0, 0];
    for round in 0..40 {
        for n in 0..16u16 {
            let port = SERVICE + u16::from((n + round) % 3 == 0);
            bed.inject(&datagram(
                at(NEAR4, 5000),
                at(FAR4, port),
                &number(u32::from(n)),
            ));
        }
        got[0] += drain(&one).len();
        got[1] += drain(&two).len();
        assert_eq!(bed.outstanding(), 0, "round {round}");
    }
    assert!(got[0] > 0 && got[1] > 0, "{got:?}");
}

#[test]
fn a_lossy_wire_delivers_what_it_carried_once_and_in_order() {
    let config = LinkConfig {
        a_to_b: Impairments {
            loss: 0.3,
            ..Impairments::default()
        },
        ..LinkConfig::default()
    };
    let bed = Bed::with(config);
    let (client, socket) = (bed.near_socket(), bed.service());
    let mut got = Vec::new();
    for n in 0..500 {
        client.send_to(&number(n), service()).unwrap();
        if n % 40 == 39 {
            got.extend(numbers(&socket));
        }
    }
    got.extend(numbers(&socket));
    assert!(got.is_sorted_by(|a, b| a < b));
    let lost = bed.link.wire_counters(Side::A).lost;
    assert!(lost > 50);
    assert_eq!(got.len() as u64, 500 - lost);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_wire_that_repeats_and_reorders_changes_nothing_for_the_accounts() {
    let config = LinkConfig {
        a_to_b: Impairments {
            duplicate: 0.2,
            reorder: 0.2,
            delay: Duration::from_millis(2),
            ..Impairments::default()
        },
        ..LinkConfig::default()
    };
    let bed = Bed::with(config);
    let (client, socket) = (bed.near_socket(), bed.service());
    let mut got = Vec::new();
    for n in 0..300 {
        client.send_to(&number(n), service()).unwrap();
        bed.advance(Duration::from_millis(1));
        got.extend(numbers(&socket));
    }
    bed.advance(Duration::from_secs(1));
    got.extend(numbers(&socket));
    let wire = bed.link.wire_counters(Side::A);
    assert!(wire.duplicated > 20 && wire.reordered > 20, "{wire:?}");
    assert_eq!(got.len() as u64, 300 + wire.duplicated);
    assert!(!got.is_sorted());
    got.sort_unstable();
    got.dedup();
    assert_eq!(got, (0..300).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_full_transmit_ring_is_eagain_and_recovers() {
    let rings = Rings {
        completion: 4,
        transmit: 4,
        ..Rings::default()
    };
    let bed = Bed::with(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    let (client, socket) = (bed.near_socket(), bed.service());
    // Completions are taken only when frames run out or the ring is full.
    let mut sent = 0;
    for n in 0..64 {
        match client.queue_to(&number(n), service()) {
            Ok(()) => sent += 1,
            Err(error) => assert_eq!(errno(error), libc::EAGAIN),
        }
    }
    client.flush().unwrap();
    let before = numbers(&socket);
    assert!(before.len() <= sent);
    for n in 0..64 {
        let _ = client.send_to(&number(n), service());
    }
    assert!(
        !numbers(&socket).is_empty(),
        "transmission stopped for good"
    );
    assert!(bed.near.snapshot().queues[0].transmitted >= 64);
}

/// As when a remote party has filled a table: the call must fail, and the stack
/// go on.
#[test]
fn a_bind_that_finds_no_room_fails_and_leaves_the_stack_usable() {
    let bed = Bed::new();
    for port in 0..OWNERS as u16 {
        bed.tables
            .trusted
            .own_port(Protocol::Udp, Some(SECOND4.into()), port + 10_000, 0)
            .unwrap();
    }
    let stack = bed.far.clone();
    let (done, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let errors = [
            UdpSocket::bind(&stack, (FAR4, SERVICE).into()).map(drop),
            TcpListener::bind(&stack, (FAR4, SERVICE).into()).map(drop),
        ];
        let errors = errors.map(|bound| bound.unwrap_err().raw_os_error());
        // A socket that needs no separate entry still gets one.
        let any = (Ipv4Addr::UNSPECIFIED, SERVICE).into();
        drop(UdpSocket::bind(&stack, any).unwrap());
        drop(TcpListener::bind(&stack, any).unwrap());
        done.send(errors).unwrap();
    });
    let errors = seen.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(errors, [Some(libc::ENOBUFS); 2]);
}
