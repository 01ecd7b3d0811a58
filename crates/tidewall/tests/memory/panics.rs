//! Closures of the application that panic, in a program that goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidewall::UdpSocket;
use tidewall_device::memory::LinkConfig;

use super::support::*;

/// Receives a batch whose closure panics at datagram `at`, from 0; the numbers
/// that it saw.
fn receive_until(socket: &UdpSocket, at: usize) -> Vec<u32> {
    let mut seen = Vec::new();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        socket.recv_batch(64, |received| {
            seen.push(read_number(received.payload));
            if seen.len() > at {
                // As panic!, without a message.
                resume_unwind(Box::new("the application"));
            }
        })
    }));
    assert!(ended.is_err());
    seen
}

fn send(bed: &Bed, port: u16, numbers: std::ops::Range<u32>) {
    for n in numbers {
        bed.inject(&datagram(at(NEAR4, 5000), at(FAR4, port), &number(n)));
    }
}

#[test]
fn a_closure_that_panics_costs_no_frame_no_credit_and_no_datagram() {
    let bed = Bed::with(LinkConfig {
        frames: 512,
        ..LinkConfig::default()
    });
    let service = bed.service();
    service.set_receive_limit(128).unwrap();
    // More panics, with more behind each, than there are frames or credits.
    for round in 0..40u32 {
        let first = round * 100;
        send(&bed, SERVICE, first..first + 100);
        let mut seen = Vec::new();
        for at in [0, 9, 40] {
            seen.extend(receive_until(&service, at));
        }
        seen.extend(numbers(&service));
        assert_eq!(seen, (first..first + 100).collect::<Vec<_>>());
        assert_eq!(bed.outstanding(), 0);
    }
    let snapshot = bed.far.snapshot();
    assert_eq!(snapshot.sockets[0].received, 4000);
    assert_eq!(snapshot.sockets[0].dropped_full, 0);
}

#[test]
fn what_waits_outside_the_channels_survives_a_panic_too() {
    let bed = Bed::with(LinkConfig {
        frames: 512,
        ..LinkConfig::default()
    });
    let slow = bed.service();
    let quick = nonblocking(&bed.far, anywhere(SERVICE + 1));
    for round in 0..8 {
        send(&bed, SERVICE, round * 50..round * 50 + 50);
        drain(&quick);
    }
    assert!(bed.far.snapshot().counters.copied_out > 0);
    let mut seen = receive_until(&slow, 0);
    seen.extend(receive_until(&slow, 5));
    seen.extend(numbers(&slow));
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_datagram_of_another_socket_that_became_whole_reaches_it_all_the_same() {
    let bed = Bed::new();
    let (one, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    let cut = |port: u16, identification: u32| {
        let payload = [number(identification), vec![7; 900]].concat();
        let whole = datagram(at(NEAR4, 5000), at(FAR4, port), &payload);
        fragment(&whole, identification, 480)
    };
    let (ours, theirs) = (cut(SERVICE, 1), cut(SERVICE + 1, 2));
    // The other socket's last fragment waits in the channel of fragments, which
    // reading our first fragment empties.
    bed.inject(&theirs[0].frame);
    assert_eq!(numbers(&other), [0u32; 0]);
    bed.inject(&ours[1].frame);
    bed.inject(&ours[0].frame);
    bed.inject(&theirs[1].frame);
    assert_eq!(receive_until(&one, 0), [1]);
    assert_eq!(numbers(&other), [2]);
    assert_eq!(bed.outstanding(), 0);
}
