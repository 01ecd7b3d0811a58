//! Processing of received segments (RFC 9293 §3.8.6, §3.10.7): acknowledgments, windows,
//! order, timestamps, urgent data.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Errno, Timestamps};
use tidewall_wire::tcp::{Flags, SackBlocks};

use crate::peer::{ACK, MSS, Peer, THEIRS, both, ms, plain};

/// Acknowledged offsets of the segments sent now.
fn acknowledged(peer: &mut Peer) -> Vec<u32> {
    peer.brief().iter().map(|segment| segment.2).collect()
}

#[test]
fn the_first_segments_are_acknowledged_at_once_then_every_second() {
    let mut peer = Peer::established(&plain());
    let mut offset = 0;
    for _ in 0..16 {
        peer.give(ACK, offset, 0, &[1; MSS]);
        offset += MSS as u32;
        assert_eq!(acknowledged(&mut peer), [offset]);
    }
    peer.give(ACK, offset, 0, &[1; MSS]);
    assert_eq!(acknowledged(&mut peer), []);
    peer.give(ACK, offset + MSS as u32, 0, &[1; MSS]);
    offset += 2 * MSS as u32;
    assert_eq!(acknowledged(&mut peer), [offset]);
    // A single one is acknowledged after 40 ms.
    peer.give(ACK, offset, 0, &[1; MSS]);
    assert_eq!(peer.wait_for_timer(), ms(40));
    assert_eq!(acknowledged(&mut peer), [offset + MSS as u32]);
}

#[test]
fn an_acknowledgment_travels_with_an_answer() {
    let mut peer = Peer::established(&plain());
    peer.give(ACK, 0, 0, b"question");
    peer.write(6);
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 0, 8, 6)]);
    // From now on it waits for one.
    peer.give(ACK, 8, 6, b"another");
    assert_eq!(peer.brief(), []);
    peer.write(6);
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 6, 15, 6)]);
    assert_eq!(peer.engine.read(&mut [0; 99]), Ok(15));
}

#[test]
fn a_batch_in_order_is_one_acknowledgment() {
    let mut peer = Peer::past_quickack(&plain());
    for segment in 0..20 {
        peer.give(ACK, segment * MSS as u32, 0, &[segment as u8; MSS]);
    }
    assert_eq!(acknowledged(&mut peer), [20 * MSS as u32]);
    let received = peer.engine.received().concat();
    assert!(
        received
            .chunks(MSS)
            .enumerate()
            .all(|(at, chunk)| chunk == [at as u8; MSS])
    );
}

#[test]
fn what_lies_beyond_a_hole_is_kept_and_reported() {
    let mut peer = Peer::past_quickack(&plain());
    let at = |peer: &mut Peer| -> Vec<(u32, u32)> {
        let frames = peer.sent();
        let header = frames.last().expect("an acknowledgment").header;
        assert_eq!(header.acknowledgment, crate::peer::THEIRS.wrapping_add(1));
        let relative = |edge: u32| edge.wrapping_sub(crate::peer::THEIRS.wrapping_add(1));
        let blocks = header.options.sack.as_slice().iter();
        blocks
            .map(|block| (relative(block.0), relative(block.1)))
            .collect()
    };
    peer.give(ACK, 1000, 0, &[2; 1000]);
    assert_eq!(at(&mut peer), [(1000, 2000)]);
    peer.give(ACK, 5000, 0, &[6; 500]);
    // The latest first (RFC 2018 §4).
    assert_eq!(at(&mut peer), [(5000, 5500), (1000, 2000)]);
    peer.give(ACK, 1500, 0, &[2; 1000]);
    // The duplicate comes before all others (RFC 2883).
    assert_eq!(at(&mut peer), [(1500, 2000), (1000, 2500), (5000, 5500)]);
    assert!(!peer.engine.readable());
    peer.give(ACK, 0, 0, &[1; 1200]);
    assert_eq!(acknowledged(&mut peer), [2500]);
    peer.give(ACK, 2500, 0, &[3; 2500]);
    assert_eq!(acknowledged(&mut peer), [5500]);
    assert_eq!(peer.engine.received().concat().len(), 5500);
}

#[test]
fn a_peer_without_sack_gets_a_duplicate_for_each() {
    let mut peer = Peer::past_quickack(&Config {
        sack: false,
        ..plain()
    });
    for segment in 1..=4 {
        peer.give(ACK, segment * MSS as u32, 0, &[0; MSS]);
    }
    let sent = peer.sent();
    assert_eq!(sent.len(), 4);
    assert!(sent.iter().all(|frame| frame.header == sent[0].header));
}

#[test]
fn the_window_closes_and_opens_in_good_steps() {
    let mut peer = Peer::past_quickack(&Config {
        receive_buffer: 10_000,
        receive_buffer_max: 10_000,
        ..plain()
    });
    let window = |peer: &mut Peer| peer.sent().last().map(|frame| frame.header.window);
    for segment in 0..10 {
        peer.give(ACK, segment * MSS as u32, 0, &[0; MSS]);
    }
    assert_eq!(window(&mut peer), Some(0));
    // More than fits: none of it is kept, and the acknowledgment reports that to the
    // peer.
    peer.give(ACK, 10_000, 0, &[0; MSS]);
    assert_eq!(window(&mut peer), Some(0));
    // An acknowledgment is taken even so.
    peer.write(10);
    peer.sent();
    peer.give(ACK, 10_000, 10, b"");
    assert_eq!(peer.engine.info().unacknowledged, 0);
    // Reading a little opens nothing (RFC 9293 §3.8.6.2.2).
    peer.engine.consume(400);
    assert_eq!(window(&mut peer), None);
    peer.engine.consume(700);
    assert_eq!(window(&mut peer), Some(1100));
    peer.engine.consume(9000);
    assert_eq!(window(&mut peer), Some(10_000));
    assert_eq!(peer.engine.read(&mut [0; 10]), Err(Errno::AGAIN));
}

#[test]
fn old_and_overlapping_data_is_cut() {
    let mut peer = Peer::past_quickack(&plain());
    peer.give(ACK, 0, 0, b"abcdef");
    peer.give(ACK, 3, 0, b"defghi");
    assert_eq!(peer.engine.received().concat(), b"abcdefghi");
    peer.sent();
    // Wholly old data: the acknowledgment was lost, so one is sent at once.
    peer.give(ACK, 0, 0, b"abcdef");
    assert_eq!(acknowledged(&mut peer), [9]);
    peer.give(ACK, 0, 0, b"abcdef");
    assert_eq!(acknowledged(&mut peer), [9]);
    assert_eq!(peer.engine.received().concat(), b"abcdefghi");
}

#[test]
fn urgent_data_is_inline() {
    let mut peer = Peer::past_quickack(&plain());
    peer.give(both(ACK, Flags::URG), 0, 0, b"now!");
    assert_eq!(peer.engine.received().concat(), b"now!");
}

#[test]
fn reading_in_place_wraps_without_a_seam() {
    let mut peer = Peer::past_quickack(&plain());
    let mut expected = 0u8;
    let mut offset = 0;
    for round in 0..2000u32 {
        let bytes: Vec<u8> = (0..97).map(|at| (round * 97 + at) as u8).collect();
        peer.give(ACK, offset, 0, &bytes);
        offset += 97;
        peer.sent();
        let take = if round % 3 == 0 { 200 } else { 50 };
        let held = peer.engine.received().concat();
        for byte in &held[..take.min(held.len())] {
            assert_eq!(*byte, expected);
            expected = expected.wrapping_add(1);
        }
        peer.engine.consume(take.min(held.len()));
    }
    peer.engine.consume(usize::MAX);
    assert_eq!(peer.engine.received().concat(), b"");
}

#[test]
fn old_timestamps_are_refused_unless_very_old() {
    let mut peer = Peer::past_quickack(&Config {
        timestamps: true,
        ..plain()
    });
    peer.timestamps = Some(Timestamps {
        value: 600,
        echo: 0,
    });
    peer.give(ACK, 0, 0, b"first");
    let sent = {
        peer.now += ms(40);
        let now = peer.now;
        peer.engine.timeout(now);
        peer.sent()
    };
    assert_eq!(sent[0].header.options.timestamps.unwrap().echo, 600);
    peer.timestamps = Some(Timestamps {
        value: 599,
        echo: 0,
    });
    peer.give(ACK, 5, 0, b"older");
    assert_eq!(peer.engine.received().concat(), b"first");
    assert_eq!(acknowledged(&mut peer), [5], "RFC 7323 §5.3, R1");
    // Without a timestamp there is nothing to compare: the segment is accepted, as by
    // Linux, and the echo does not change.
    peer.timestamps = None;
    peer.give(ACK, 5, 0, b"none.");
    assert_eq!(peer.engine.received().concat(), b"firstnone.");
    let sent = {
        peer.now += ms(40);
        let now = peer.now;
        peer.engine.timeout(now);
        peer.sent()
    };
    assert_eq!(sent[0].header.options.timestamps.unwrap().echo, 600);
    // After 24 days the peer's clock may have wrapped.
    peer.now += Duration::from_secs(25 * 24 * 3600);
    peer.timestamps = Some(Timestamps {
        value: 599,
        echo: 0,
    });
    peer.give(ACK, 10, 0, b"wraps");
    assert_eq!(peer.engine.received().concat(), b"firstnone.wraps");
}

#[test]
fn a_fin_beyond_a_hole_is_reported() {
    let fin = both(ACK, Flags::FIN);
    let at = |offset: u32| THEIRS.wrapping_add(1).wrapping_add(offset);
    let mut peer = Peer::past_quickack(&plain());
    // With data (RFC 2018 §3: sequence numbers), and alone.
    peer.give(fin, 10, 0, b"end");
    let blocks = |peer: &mut Peer| {
        let sent = peer.sent().pop().unwrap();
        sent.header.options.sack.as_slice().to_vec()
    };
    assert_eq!(blocks(&mut peer), [(at(10), at(14))]);
    peer.give(ACK, 0, 0, b"0123456789");
    let last = peer.sent().pop().unwrap().header;
    assert_eq!(last.acknowledgment, at(14));
    assert!(last.options.sack.is_empty());
    let mut peer = Peer::past_quickack(&plain());
    peer.give(fin, 10, 0, b"");
    assert_eq!(blocks(&mut peer), [(at(10), at(11))]);
    peer.give(ACK, 5, 0, b"56");
    assert_eq!(blocks(&mut peer), [(at(5), at(7)), (at(10), at(11))]);
}

#[test]
fn it_is_known_when_data_last_came() {
    let mut peer = Peer::past_quickack(&plain());
    peer.wait(ms(900));
    assert_eq!(peer.engine.since_received(peer.now), ms(900));
    peer.give(ACK, 0, 0, b"data");
    peer.now += ms(7);
    peer.give(ACK, 4, 0, b"");
    assert_eq!(peer.engine.since_received(peer.now), ms(7));
}

#[test]
fn an_idle_connection_holds_no_buffers() {
    let mut peer = Peer::past_quickack(&plain());
    assert!(peer.engine.is_idle());
    peer.give(ACK, 0, 0, b"GET / HTTP/1.1\r\n\r\n");
    assert!(!peer.engine.is_idle());
    peer.write(1300);
    peer.engine.consume(18);
    peer.sent();
    peer.give(ACK, 18, 1300, b"");
    assert!(peer.engine.is_idle(), "small buffers go at once");
    for segment in 0..30 {
        peer.give(ACK, 18 + segment * MSS as u32, 1300, &[0; MSS]);
    }
    peer.sent();
    peer.engine.consume(30_000);
    peer.sent();
    assert!(!peer.engine.is_idle());
    peer.wait(Duration::from_secs(3));
    assert!(peer.engine.is_idle(), "large ones after a while");
    assert_eq!(peer.sack, SackBlocks::default());
    // Without a buffer or timer, a connection is this large.
    let size = size_of_val(&peer.engine);
    assert!(size <= 928, "{size}");
}

/// The data that a sender may have in transit if segments wait in a queue of 16.
fn on_the_way(peer: &mut Peer) -> usize {
    let sent = peer.sent();
    let last = sent.last().expect("an acknowledgment");
    usize::from(last.header.window)
}

#[test]
fn the_window_keeps_to_the_place_where_segments_wait() {
    const PLACE: usize = 16;
    let mut peer = Peer::past_quickack(&Config {
        receive_buffer: 65_535,
        ..plain()
    });
    peer.engine.set_receive_room(PLACE as u16);
    let mut offset = 0;
    let mut give = |peer: &mut Peer, segments: usize| {
        for _ in 0..segments {
            peer.give(ACK, offset, 0, &[0; MSS]);
            offset += MSS as u32;
        }
        let now = peer.now;
        peer.engine.segments_taken(segments, now);
        peer.engine.consume(usize::MAX);
    };
    // A window announced before the limit was set stays valid. Over half of the queue is
    // full each time.
    let mut narrowest = usize::MAX;
    for _ in 0..20 {
        give(&mut peer, PLACE / 2 + 1);
        narrowest = narrowest.min(on_the_way(&mut peer));
    }
    assert!(narrowest <= PLACE * MSS * 3 / 4, "{narrowest}");
    // A sender that is limited by a round trip, and a receiver that comes often.
    let mut widest = 0;
    for _ in 0..200 {
        give(&mut peer, 2);
        widest = widest.max(on_the_way(&mut peer));
    }
    assert!(widest > PLACE * MSS * 2, "{widest}");
    // The receiver was away, and the queue was full.
    give(&mut peer, PLACE);
    peer.sent();
    for _ in 0..100 {
        give(&mut peer, 2);
        if on_the_way(&mut peer) <= PLACE * MSS * 3 / 4 {
            return;
        }
    }
    panic!("the window stays wide");
}
