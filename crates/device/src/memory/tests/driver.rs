//! The ends: rings, driver polls, interrupts, offload, up and down.

use std::io;

use zerocopy::IntoBytes;

use super::support::*;
use crate::demux::layout::Class;
use crate::frame::FRAME_SIZE;
use crate::memory::*;
use crate::queue::{Interrupt, Offload, Received};

/// `poll(2)`, as a program that sleeps on a queue calls it.
fn readable(descriptor: i32) -> bool {
    tidewall_sys::ready_now(descriptor, libc::POLLIN) != 0
}

#[test]
fn full_device_ring_drops_before_the_driver_sees() {
    let rings = Rings {
        device: 4,
        ..Rings::default()
    };
    let (link, mut a, mut b) = link(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    for sent in 0..6 {
        transmit(&mut a, &numbered(sent), None);
    }
    assert_eq!(numbers(&link, &mut b), [0, 1, 2, 3]);
    let counters = link.port_counters(Side::B);
    assert_eq!((counters.arrived, counters.device_full), (4, 2));
}

#[test]
fn poll_takes_no_more_than_its_budget() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    for sent in 0..100 {
        transmit(&mut a, &numbered(sent), None);
    }
    for (budget, expected) in [(1, 1), (16, 16), (64, 64), (64, 19)] {
        b.queues[0].receive.set_budget(budget).unwrap();
        poll(&mut b);
        assert_eq!(link.take_kernel(Side::B).len(), expected);
    }
    for budget in [0, 129] {
        assert!(b.queues[0].receive.set_budget(budget).is_err());
    }
}

#[test]
fn owned_datagram_is_received_with_metadata_below() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    let channel = own_port(&b.tables, PORT, 10);
    fill(&mut b, 2);
    let sent = datagram(PORT, b"hello");
    transmit(&mut a, &sent, None);
    poll(&mut b);
    let received = receive(&mut b);
    let [Received { frame, metadata }] = received.as_slice() else {
        panic!("{received:?}")
    };
    let memory = &b.queues[0].memory;
    assert_eq!(memory.packet(frame), sent);
    assert_eq!(frame.offset(), HEADROOM);
    assert_eq!((metadata.channel, metadata.credit), (channel, 1));
    assert_eq!(memory.below(frame, 24), metadata.as_bytes());
    assert!(link.take_kernel(Side::B).is_empty());
    assert_eq!(link.port_counters(Side::B).received, 1);
}

#[test]
fn redirect_that_fails_leaves_the_head_ahead() {
    let rings = Rings {
        receive: 3,
        ..Rings::default()
    };
    let (link, mut a, mut b) = link(LinkConfig {
        rings,
        mtu: 1800,
        ..LinkConfig::default()
    });
    let channel = own_port(&b.tables, PORT, 100);
    // Nothing to copy into, then the receive ring full, then a frame too long.
    transmit(&mut a, &datagram(PORT, b"no frame"), None);
    poll(&mut b);
    fill(&mut b, 8);
    for _ in 0..4 {
        transmit(&mut a, &datagram(PORT, b"x"), None);
    }
    poll(&mut b);
    let long = FRAME_SIZE - usize::from(HEADROOM) + 1 - 42;
    let received = receive(&mut b);
    transmit(&mut a, &datagram(PORT, &vec![0; long]), None);
    transmit(&mut a, &datagram(PORT, &vec![1; long - 1]), None);
    poll(&mut b);
    let after = receive(&mut b);
    assert_eq!((received.len(), after.len()), (3, 1));
    assert_eq!(received.last().unwrap().metadata.credit, 4);
    assert_eq!(after[0].metadata.credit, 7);
    assert_eq!(channel_head(&b.tables, channel), 7);
    let counters = link.port_counters(Side::B);
    assert_eq!(
        (
            counters.fill_empty,
            counters.receive_full,
            counters.too_long
        ),
        (1, 1, 1)
    );
    // The frame that met a full ring went back: 8 given, 4 received.
    for _ in 0..5 {
        transmit(&mut a, &datagram(PORT, b"y"), None);
    }
    poll(&mut b);
    let mut last = receive(&mut b);
    assert_eq!(last.len(), 3);
    poll(&mut b);
    transmit(&mut a, &datagram(PORT, b"z"), None);
    poll(&mut b);
    last.append(&mut receive(&mut b));
    assert_eq!(last.len(), 4);
    // Never two tokens for one frame.
    let mut indices: Vec<u32> = received
        .iter()
        .chain(&after)
        .chain(&last)
        .map(|one| one.frame.index())
        .collect();
    indices.extend(b.queues[0].frames.iter().map(|frame| frame.index()));
    let count = indices.len();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!((indices.len(), count), (1024, 1024));
}

#[test]
fn armed_interrupt_polls_once_and_wakes() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    own_port(&b.tables, PORT, 100);
    fill(&mut b, 100);
    let descriptor = b.queues[0].receive.descriptors()[0];
    let arm = |b: &mut LinkPort| b.queues[0].receive.poll(Interrupt::Armed).unwrap();

    // Masked: frames wait in the device and wake no thread.
    transmit(&mut a, &datagram(PORT, b"masked"), None);
    assert!(!readable(descriptor));
    poll(&mut b);
    assert_eq!(receive(&mut b).len(), 1);

    arm(&mut b);
    assert!(!readable(descriptor));
    // A frame for the kernel reaches it without waking the owner.
    transmit(&mut a, &numbered(1), None);
    assert_eq!(
        (link.take_kernel(Side::B).len(), readable(descriptor)),
        (1, false)
    );
    transmit(&mut a, &datagram(PORT, b"wakes"), None);
    assert!(readable(descriptor));
    // Fired, so masked: the next one waits for a poll.
    transmit(&mut a, &datagram(PORT, b"waits"), None);
    assert_eq!(link.port_counters(Side::B).interrupts, 2);
    assert_eq!(receive(&mut b).len(), 1);
    assert!(!readable(descriptor));

    // Arming with work left wakes at once.
    b.queues[0].receive.set_budget(1).unwrap();
    transmit(&mut a, &datagram(PORT, b"more"), None);
    arm(&mut b);
    assert!(readable(descriptor));
    assert_eq!(receive(&mut b).len(), 1);
    arm(&mut b);
    assert!(readable(descriptor));
    assert_eq!(receive(&mut b).len(), 1);
    arm(&mut b);
    assert!(!readable(descriptor));
}

#[test]
fn kernel_list_is_bounded_and_tells_queue_and_time() {
    let rings = Rings {
        kernel: 2,
        ..Rings::default()
    };
    let (link, mut a, mut b) = link(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    for sent in 0..3 {
        transmit(&mut a, &numbered(sent), None);
    }
    link.advance_to(ms(4));
    poll(&mut b);
    let frame = |number| KernelFrame {
        queue: 0,
        class: Some(Class::Forwarded),
        time: ms(4),
        bytes: numbered(number),
    };
    assert_eq!(link.take_kernel(Side::B), [frame(0), frame(1)]);
    let counters = link.port_counters(Side::B);
    assert_eq!((counters.kernel, counters.kernel_full), (2, 1));
}

#[test]
fn down_end_reports_and_loses() {
    let (link, mut a, mut b) = link(LinkConfig::default());
    transmit(&mut a, &numbered(0), None);
    b.queues[0].receive.poll(Interrupt::Armed).unwrap();
    let descriptor = b.queues[0].receive.descriptors()[0];
    transmit(&mut b, &numbered(0), None);
    link.set_down(Side::B, true);
    assert!(readable(descriptor), "a sleeper finds out");
    transmit(&mut a, &numbered(1), None);
    let down = |result: io::Result<()>| result.unwrap_err().raw_os_error() == Some(libc::ENETDOWN);
    assert!(down(b.queues[0].receive.poll(Interrupt::Masked)));
    let frame = b.queues[0].frames.pop().unwrap();
    b.queues[0].transmit.transmit(frame, None).unwrap();
    assert!(down(b.queues[0].transmit.flush().map(drop)));
    link.send(Side::B, &numbered(5));
    assert_eq!(link.wire_counters(Side::B).sent, 1);
    assert_eq!(link.port_counters(Side::B).down, 1);
    // Taking A down loses what its device ring held.
    link.set_down(Side::A, true);
    assert_eq!(link.port_counters(Side::A).down, 1);

    link.set_down(Side::B, false);
    link.set_down(Side::A, false);
    link.take_kernel(Side::B);
    transmit(&mut a, &numbered(2), None);
    assert_eq!(numbers(&link, &mut b), [2]);
}

#[test]
fn full_transmit_and_completion_rings_push_back() {
    let rings = Rings {
        transmit: 3,
        completion: 2,
        ..Rings::default()
    };
    let (link, _a, mut b) = link(LinkConfig {
        rings,
        ..LinkConfig::default()
    });
    let queue = &mut b.queues[0];
    for _ in 0..3 {
        let mut frame = queue.frames.pop().unwrap();
        frame.set_extent(100, 60);
        queue.transmit.transmit(frame, None).unwrap();
    }
    let refused = queue.frames.pop().unwrap();
    let refused = queue.transmit.transmit(refused, None).unwrap_err();
    queue.frames.push(refused);
    queue.transmit.flush().unwrap();
    assert_eq!(link.wire_counters(Side::B).sent, 2);
    queue.transmit.reclaim(&mut queue.frames);
    assert_eq!(queue.frames.len(), 1023);
    queue.transmit.flush().unwrap();
    queue.transmit.reclaim(&mut queue.frames);
    assert_eq!(
        (link.wire_counters(Side::B).sent, queue.frames.len()),
        (3, 1024)
    );
}

#[test]
fn offload_finishes_the_checksum_on_the_wire() {
    let sent = datagram(PORT, b"odd");
    let udp = 34;
    let mut partial = sent.clone();
    // A sender leaves the sum of the pseudo-header, not complemented.
    let pseudo = tidewall_wire::checksum::Sum::ZERO
        .bytes(&partial[26..34])
        .word(17)
        .word((partial.len() - udp) as u16);
    partial[udp + 6..udp + 8].copy_from_slice(&pseudo.folded().to_be_bytes());
    let offload = Offload {
        checksum_start: udp as u16,
        checksum_offset: 6,
    };
    for honoured in [true, false] {
        let config = LinkConfig {
            checksum_offload: honoured,
            ..LinkConfig::default()
        };
        let (link, mut a, _b) = link(config);
        assert_eq!(a.queues[0].transmit.checksum_offload(), honoured);
        let tap = link.tap();
        transmit(&mut a, &partial, Some(offload));
        let [captured] = tap.take().try_into().unwrap();
        assert_eq!(captured.bytes == sent, honoured);
        // A request outside the frame is refused, and the frame comes back.
        transmit(
            &mut a,
            &partial,
            Some(Offload {
                checksum_start: 60,
                checksum_offset: 6,
            }),
        );
        assert_eq!(link.wire_counters(Side::A).invalid, u64::from(honoured));
        assert_eq!(a.queues[0].frames.len(), 1024);
    }
}

#[test]
fn what_the_driver_answers_goes_back_over_the_wire() {
    use crate::demux::layout::Protocol;
    use crate::demux::{CookieMode, CookieOffer, CookieParameters};
    let (link, mut a, mut b) = link(LinkConfig::default());
    let (port, local) = (80, "10.0.0.2".parse().unwrap());
    b.tables.trusted.set_locals(&[local]).unwrap();
    b.tables
        .trusted
        .own_port(Protocol::Tcp, None, port, 0)
        .unwrap();
    let offer = CookieOffer {
        window: 1000,
        window_scale: None,
        timestamps: false,
        sack: false,
        ecn: false,
    };
    let channel = crate::demux::ChannelId::new(1, 1);
    b.tables
        .embedded
        .listen_tcp(None, port, channel, &offer)
        .unwrap();
    b.tables.embedded.set_cookie_parameters(&CookieParameters {
        key: [1; 16],
        epoch: Duration::ZERO,
        mss: [1460, 1440],
        hop_limit: 64,
    });
    b.tables
        .embedded
        .set_cookies(port, CookieMode::Answer)
        .unwrap();
    let mut syn = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    syn.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
    syn.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    syn.extend([
        4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0,
    ]);
    link.inject(Side::B, &syn);
    poll(&mut b);
    poll(&mut a);
    let [frame] = &link.take_kernel(Side::A)[..] else {
        panic!("one frame comes back")
    };
    assert_eq!(frame.bytes[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(frame.bytes[47], 0x12);
    assert_eq!(
        b.tables
            .trusted
            .counter(0, crate::demux::layout::Counter::CookieSent),
        1
    );
}
