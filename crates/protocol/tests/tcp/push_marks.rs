//! Pushes (RFC 9293 §3.9.1.2) and records (`MSG_EOR`): which segments carry PSH, and
//! where they end.

use tidewall_protocol::tcp::{Config, Connection, Errno, SendFlags};
use tidewall_wire::tcp::{Flags, SackBlocks};

use crate::peer::{ACK, MSS, OURS, Peer, ms, plain};

const MORE: SendFlags = SendFlags {
    more: true,
    record: false,
};
const RECORD: SendFlags = SendFlags {
    more: false,
    record: true,
};

fn write(peer: &mut Peer, length: usize, flags: SendFlags) {
    let taken = peer.engine.write_with(&vec![7; length], flags);
    assert_eq!(taken, Ok(length));
}

/// The peer reports that it holds these, by the next segment given.
fn holds(peer: &mut Peer, first: u32, end: u32) {
    let mut blocks = SackBlocks::default();
    assert!(blocks.push(first, end));
    peer.sack = blocks;
}

/// For each segment that leaves now: its offset, its length, whether it is pushed.
fn sent(peer: &mut Peer) -> Vec<(u32, usize, bool)> {
    let mut segments = Vec::new();
    peer.engine.output(peer.now, &mut |outgoing| {
        let start = outgoing.header.sequence.wrapping_sub(OURS.wrapping_add(1));
        let pushed = outgoing.header.flags.contains(Flags::PSH);
        segments.push((start, outgoing.payload_len(), pushed));
        true
    });
    segments
}

#[test]
fn the_end_of_a_write_is_pushed_unless_more_follows() {
    let mut peer = Peer::established(&plain());
    write(&mut peer, MSS, MORE);
    assert_eq!(sent(&mut peer), [(0, MSS, false)]);
    write(&mut peer, MSS, SendFlags::default());
    assert_eq!(sent(&mut peer), [(1000, MSS, true)]);
    // Only the last of the waiting pushes counts.
    peer.window = 2000;
    peer.give(ACK, 0, 2000, b"");
    peer.write(MSS);
    peer.write(MSS);
    peer.write(MSS);
    // They are a burst, which is pushed where it hosts.
    assert_eq!(sent(&mut peer), [(2000, MSS, false), (3000, MSS, true)]);
    peer.give(ACK, 0, 4000, b"");
    assert_eq!(sent(&mut peer), [(4000, MSS, true)]);
}

#[test]
fn a_push_is_kept_when_its_segment_is_sent_again() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_nodelay(true);
    for length in [300, 400, 500, 600] {
        peer.write(length);
        assert_eq!(sent(&mut peer).len(), 1);
        peer.now += ms(1);
    }
    let frozen = peer.engine.freeze(peer.now);
    peer.engine = Connection::thaw(&frozen, peer.now).unwrap();
    peer.now += ms(50);
    holds(&mut peer, OURS.wrapping_add(1201), OURS.wrapping_add(1801));
    peer.give(ACK, 0, 300, b"");
    peer.wait(ms(200));
    let again = sent(&mut peer);
    // The two lost segments leave together; both were pushed.
    assert_eq!(again.first(), Some(&(300, 900, true)), "{again:?}");
}

#[test]
fn no_more_than_half_of_the_largest_window_leaves_without_a_push() {
    // Without bursts, which are pushed anyway.
    let mut peer = Peer::established(&Config {
        offload: MSS as u32,
        initial_window: 60,
        ..plain()
    });
    peer.write(60 * MSS);
    let pushed: Vec<_> = sent(&mut peer)
        .into_iter()
        .filter(|segment| segment.2)
        .map(|segment| segment.0)
        .collect();
    // Half of a window of 60,000 bytes.
    assert_eq!(pushed, [30_000, 59_000]);
}

#[test]
fn what_more_was_to_follow_leaves_when_something_is_acknowledged() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_nodelay(true);
    write(&mut peer, MSS + 100, MORE);
    assert_eq!(sent(&mut peer), [(0, MSS, false)]);
    peer.give(ACK, 0, 1000, b"");
    assert_eq!(sent(&mut peer), [(1000, 100, false)]);
    // Or when it has waited long enough; then it is pushed,
    peer.give(ACK, 0, 1100, b"");
    write(&mut peer, 10, MORE);
    assert_eq!(sent(&mut peer), []);
    assert_eq!(peer.wait_for_timer(), ms(200));
    assert_eq!(sent(&mut peer), [(1100, 10, true)]);
    // or when small segments are asked for.
    peer.give(ACK, 0, 1110, b"");
    write(&mut peer, 10, MORE);
    peer.engine.set_nodelay(true);
    assert_eq!(sent(&mut peer), [(1110, 10, false)]);
}

#[test]
fn no_segment_crosses_the_end_of_a_record() {
    let mut peer = Peer::established(&plain());
    write(&mut peer, 1500, RECORD);
    write(&mut peer, 200, RECORD);
    peer.write(MSS);
    // Nagle's algorithm does not hold back a record that more data follows.
    assert_eq!(
        sent(&mut peer),
        [
            (0, 1000, false),
            (1000, 500, true),
            (1500, 200, true),
            (1700, 1000, true)
        ]
    );
    // Records are not merged in a retransmission at one time either.
    let frozen = peer.engine.freeze(peer.now);
    peer.engine = Connection::thaw(&frozen, peer.now).unwrap();
    peer.now += ms(100);
    holds(&mut peer, OURS.wrapping_add(1701), OURS.wrapping_add(2701));
    peer.give(ACK, 0, 1000, b"");
    peer.wait(ms(150));
    let again = sent(&mut peer);
    assert_eq!(again, [(1000, 500, true), (1500, 200, true)]);
}

#[test]
fn a_record_is_one_of_a_burst_of_the_device() {
    let mut peer = Peer::established(&Config {
        offload: 60_000,
        burst_min: 20,
        initial_window: 40,
        ..plain()
    });
    write(&mut peer, 3500, RECORD);
    write(&mut peer, 2000, RECORD);
    assert_eq!(sent(&mut peer), [(0, 3500, true), (3500, 2000, true)]);
}

#[test]
fn a_write_that_is_taken_in_part_ends_no_record() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_send_buffer(4000);
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    // A record takes eight bytes of the buffer.
    write(&mut peer, 992, RECORD);
    assert_eq!(peer.engine.write_with(&[7; 4000], RECORD), Ok(3000));
    assert_eq!(
        peer.engine.write_with(&[7; 1000], RECORD),
        Err(Errno::AGAIN)
    );
    assert!(!peer.engine.writable());
    peer.window = 60_000;
    peer.give(ACK, 0, 0, b"");
    sent(&mut peer);
    peer.give(ACK, 0, 3992, b"");
    assert_eq!(peer.engine.write_with(&[7; 4000], RECORD), Ok(4000));
    assert_eq!(peer.engine.write_with(b"", RECORD), Ok(0));
}

#[test]
fn many_small_records_are_bounded_by_the_buffer() {
    let mut peer = Peer::established(&plain());
    peer.engine.set_send_buffer(90_000);
    let mut count = 0;
    while peer.engine.write_with(&[1], RECORD).is_ok() {
        count += 1;
    }
    assert_eq!(count, 10_000);
    let mut acknowledged = 0;
    for _ in 0..20_000 {
        let segments = sent(&mut peer);
        assert!(segments.iter().all(|segment| segment.1 == 1 && segment.2));
        acknowledged += segments.len() as u32;
        peer.now += ms(1);
        peer.give(ACK, 0, acknowledged, b"");
        if acknowledged == count {
            break;
        }
    }
    assert_eq!(acknowledged, count);
    assert_eq!(peer.engine.info().retransmissions, 0);
}

#[test]
fn a_push_that_lies_in_a_segment_counts_for_it() {
    let mut peer = Peer::established(&plain());
    peer.write(10);
    assert_eq!(sent(&mut peer), [(0, 10, true)]);
    // Nagle's algorithm holds it back until more fills a segment.
    peer.write(100);
    assert_eq!(sent(&mut peer), []);
    write(&mut peer, 2000, MORE);
    assert_eq!(sent(&mut peer), [(10, MSS, false), (1010, MSS, true)]);
}

#[test]
fn the_end_of_a_record_is_pushed_although_more_follows() {
    let mut peer = Peer::established(&plain());
    let flags = SendFlags {
        more: true,
        record: true,
    };
    write(&mut peer, MSS, flags);
    assert_eq!(sent(&mut peer), [(0, MSS, true)]);
    write(&mut peer, 10, flags);
    assert_eq!(sent(&mut peer), []);
    peer.write(10);
    assert_eq!(sent(&mut peer), [(1000, 10, true)]);
}
