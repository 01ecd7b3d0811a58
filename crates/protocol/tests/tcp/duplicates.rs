//! Reporting duplicates to the sender: D-SACK (RFC 2883). The first six tests are the
//! examples of its section 4, with its sequence numbers.

use tidewall_protocol::tcp::{Config, Shutdown, Timestamps};
use tidewall_wire::tcp::Flags;

use crate::peer::{ACK, MSS, Peer, THEIRS, both, ms, plain};

/// The acknowledgment field and the blocks of the one segment that is sent now, as
/// offsets.
fn reported(peer: &mut Peer) -> (u32, Vec<(u32, u32)>) {
    let sent = peer.sent();
    let [frame] = &sent[..] else {
        panic!("{sent:?}")
    };
    let relative = |sequence: u32| sequence.wrapping_sub(THEIRS.wrapping_add(1));
    let blocks = frame.header.options.sack.as_slice().iter();
    let blocks = blocks.map(|block| (relative(block.0), relative(block.1)));
    (relative(frame.header.acknowledgment), blocks.collect())
}

/// Passes a segment of the bytes from `first` up to `end`.
fn give(peer: &mut Peer, first: u32, end: u32) {
    peer.give(ACK, first, 0, &vec![1; (end - first) as usize]);
}

/// Passes a segment and returns the answer.
fn answer(peer: &mut Peer, first: u32, end: u32) -> (u32, Vec<(u32, u32)>) {
    give(peer, first, end);
    reported(peer)
}

/// The peer has everything below `expected`.
fn expecting(expected: u32) -> Peer {
    let mut peer = Peer::established(&plain());
    give(&mut peer, 0, expected);
    peer.sent();
    peer
}

#[test]
fn example_1_a_duplicate_segment() {
    let mut peer = expecting(3000);
    assert_eq!(answer(&mut peer, 3000, 3500), (3500, vec![]));
    assert_eq!(answer(&mut peer, 3500, 4000), (4000, vec![]));
    assert_eq!(answer(&mut peer, 3000, 3500), (4000, vec![(3000, 3500)]));
}

#[test]
fn example_2_an_out_of_order_segment_and_a_duplicate_segment() {
    let mut peer = expecting(3000);
    give(&mut peer, 3000, 3500);
    give(&mut peer, 3500, 4000);
    peer.sent();
    assert_eq!(answer(&mut peer, 4500, 5000), (4000, vec![(4500, 5000)]));
    assert_eq!(
        answer(&mut peer, 3000, 3500),
        (4000, vec![(3000, 3500), (4500, 5000)])
    );
}

#[test]
fn example_3_a_duplicate_of_an_out_of_order_segment() {
    let mut peer = expecting(4000);
    assert_eq!(answer(&mut peer, 4500, 5000), (4000, vec![(4500, 5000)]));
    assert_eq!(answer(&mut peer, 5000, 5500), (4000, vec![(4500, 5500)]));
    assert_eq!(
        answer(&mut peer, 5000, 5500),
        (4000, vec![(5000, 5500), (4500, 5500)])
    );
}

#[test]
fn example_4_a_single_duplicate_subsegment() {
    let mut peer = expecting(1000);
    assert_eq!(answer(&mut peer, 2000, 2500), (1000, vec![(2000, 2500)]));
    assert_eq!(answer(&mut peer, 1000, 1500), (1500, vec![(2000, 2500)]));
    assert_eq!(answer(&mut peer, 1000, 2000), (2500, vec![(1000, 1500)]));
}

#[test]
fn example_5_two_duplicate_subsegments_that_are_then_in_order() {
    let mut peer = expecting(1000);
    assert_eq!(answer(&mut peer, 3000, 3500), (1000, vec![(3000, 3500)]));
    assert_eq!(answer(&mut peer, 1000, 1500), (1500, vec![(3000, 3500)]));
    assert_eq!(
        answer(&mut peer, 2000, 2500),
        (1500, vec![(2000, 2500), (3000, 3500)])
    );
    // The first of both.
    assert_eq!(
        answer(&mut peer, 1000, 2500),
        (2500, vec![(1000, 1500), (3000, 3500)])
    );
}

#[test]
fn example_6_two_duplicate_subsegments_beyond_a_hole() {
    let mut peer = expecting(1000);
    assert_eq!(answer(&mut peer, 3500, 4000), (1000, vec![(3500, 4000)]));
    assert_eq!(
        answer(&mut peer, 1500, 2000),
        (1000, vec![(1500, 2000), (3500, 4000)])
    );
    assert_eq!(
        answer(&mut peer, 2500, 3000),
        (1000, vec![(2500, 3000), (1500, 2000), (3500, 4000)])
    );
    assert_eq!(
        answer(&mut peer, 1500, 3000),
        (1000, vec![(1500, 2000), (1500, 3000), (3500, 4000)])
    );
}

#[test]
fn a_segment_that_overlaps_what_is_beyond_it_tells_the_first_overlap() {
    let mut peer = expecting(1000);
    give(&mut peer, 1500, 2000);
    give(&mut peer, 2500, 3000);
    peer.sent();
    // Both holes are filled; a copy of each range's bytes came with it.
    assert_eq!(answer(&mut peer, 1000, 2700), (3000, vec![(1500, 2000)]));
}

#[test]
fn it_is_reported_once_and_copies_that_touch_are_reported_together() {
    let mut peer = expecting(4000);
    give(&mut peer, 1000, 2000);
    give(&mut peer, 2000, 3000);
    assert_eq!(reported(&mut peer), (4000, vec![(1000, 3000)]));
    // It is not repeated with later segments.
    assert_eq!(answer(&mut peer, 4000, 4100), (4100, vec![]));
    // Duplicates that are not adjacent: the last one is reported.
    give(&mut peer, 0, 500);
    give(&mut peer, 1000, 1500);
    assert_eq!(reported(&mut peer), (4100, vec![(1000, 1500)]));
    // A duplicate below RCV.NXT and one beyond it touch only by number.
    give(&mut peer, 5000, 6000);
    peer.sent();
    give(&mut peer, 3000, 4100);
    give(&mut peer, 5000, 6000);
    assert_eq!(
        reported(&mut peer),
        (4100, vec![(5000, 6000), (5000, 6000)])
    );
}

#[test]
fn a_copy_wakes_from_delaying_acknowledgments() {
    let mut peer = Peer::past_quickack(&plain());
    give(&mut peer, 0, 100);
    assert_eq!(peer.brief(), []);
    peer.wait(ms(40));
    peer.sent();
    // The sender has lost acknowledgments, or is in a hurry (as Linux).
    assert_eq!(answer(&mut peer, 0, 100), (100, vec![(0, 100)]));
    for step in 1..10 {
        assert_eq!(
            answer(&mut peer, step * 100, step * 100 + 100),
            (step * 100 + 100, vec![])
        );
    }
}

#[test]
fn it_leaves_with_data_too_and_takes_its_part_of_the_segment() {
    let mut peer = Peer::past_quickack(&Config {
        offload: 60_000,
        burst_min: 5,
        nodelay: true,
        ..plain()
    });
    give(&mut peer, 0, 500);
    peer.sent();
    give(&mut peer, 0, 500);
    peer.write(5 * MSS);
    let now = peer.now;
    let mut sent = Vec::new();
    peer.engine.output(now, &mut |outgoing| {
        sent.push((
            outgoing.payload_len(),
            outgoing.header.options.sack.as_slice().len(),
            outgoing.header.options.len(),
        ));
        true
    });
    // Only one segment of the burst reports it.
    assert_eq!(sent, [(MSS - 12, 1, 12), (4 * MSS + 12, 0, 0)]);
}

#[test]
fn beside_timestamps_there_is_room_for_two_more() {
    let mut peer = Peer::past_quickack(&Config {
        timestamps: true,
        ..plain()
    });
    let stamp = Timestamps {
        value: 500,
        echo: 0,
    };
    peer.timestamps = Some(stamp);
    for first in [1000, 3000, 5000, 7000] {
        give(&mut peer, first, first + 500);
    }
    peer.sent();
    give(&mut peer, 5000, 5500);
    let frame = peer.sent().pop().unwrap();
    let options = frame.header.options;
    // Three of the four blocks fit.
    assert_eq!(options.len(), 12 + 4 + 3 * 8);
    assert_eq!(options.sack.as_slice()[0], options.sack.as_slice()[1]);
    // An old timestamp also shows a copy (RFC 2883 §4.3).
    peer.timestamps = Some(Timestamps {
        value: 499,
        ..stamp
    });
    give(&mut peer, 5000, 5500);
    assert_eq!(
        reported(&mut peer).1[..2],
        [(5000, 5500), (7000, 7500)],
        "of what is beyond a hole, nothing"
    );
    peer.timestamps = Some(stamp);
    give(&mut peer, 0, 1000);
    peer.sent();
    peer.timestamps = Some(Timestamps {
        value: 499,
        ..stamp
    });
    assert_eq!(answer(&mut peer, 1000, 2000).1[0], (1000, 1500));
}

#[test]
fn a_fin_that_comes_again_is_reported() {
    let mut peer = Peer::established(&plain());
    peer.give(both(ACK, Flags::FIN), 0, 0, b"last");
    assert_eq!(reported(&mut peer), (5, vec![]));
    peer.give(both(ACK, Flags::FIN), 0, 0, b"last");
    assert_eq!(reported(&mut peer), (5, vec![(0, 5)]));
    let now = peer.now;
    peer.engine.shutdown(Shutdown::Write, now).unwrap();
    peer.sent();
    peer.give(both(ACK, Flags::FIN), 4, 0, b"");
    assert_eq!(reported(&mut peer), (5, vec![(4, 5)]));
}

#[test]
fn without_sack_nothing_is_reported() {
    let mut peer = Peer::established(&Config {
        sack: false,
        ..plain()
    });
    give(&mut peer, 0, 500);
    peer.sent();
    assert_eq!(answer(&mut peer, 0, 500), (500, vec![]));
    peer.write(MSS);
    assert_eq!(peer.sent()[0].payload.len(), MSS);
}
