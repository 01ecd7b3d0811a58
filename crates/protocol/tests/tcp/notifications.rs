//! Reports to an application about its bytes: `SO_TIMESTAMPING`, `MSG_ZEROCOPY`.

use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Connection, Notification, ThawError, TimestampEvent, TimestampKeys, Timestamping,
};
use tidewall_wire::tcp::{Flags, SackBlocks};

use crate::peer::{ACK, MSS, OURS, Peer, both, ms, plain};

const WRITES: Timestamping = Timestamping {
    scheduled: true,
    sent: true,
    acknowledged: true,
    received: false,
    keys: TimestampKeys::FromUnacknowledged,
};
const RECEIVED: Timestamping = Timestamping {
    received: true,
    scheduled: false,
    sent: false,
    acknowledged: false,
    keys: TimestampKeys::None,
};

fn request(peer: &mut Peer, config: Timestamping) {
    peer.engine.set_timestamping(config);
    assert_eq!(peer.engine.timestamping(), config);
}

/// One call that writes.
fn write(peer: &mut Peer, length: usize) {
    peer.write(length);
    peer.engine.end_write(length, false);
}

fn copy_free(peer: &mut Peer, length: usize) {
    peer.write(length);
    peer.engine.end_write(length, true);
}

fn all(peer: &mut Peer) -> Vec<Notification> {
    let waits = peer.engine.has_notifications();
    let taken: Vec<_> = std::iter::from_fn(|| peer.engine.take_notification()).collect();
    assert_eq!(waits, !taken.is_empty());
    assert!(!peer.engine.has_notifications());
    taken
}

/// The times among them, since the test began.
fn times(peer: &mut Peer) -> Vec<(TimestampEvent, u32, u64)> {
    let begin = Duration::from_secs(1000);
    let time = |reported: Notification| match reported {
        Notification::Time { event, key, at } => (event, key, (at - begin).as_millis() as u64),
        other => panic!("{other:?}"),
    };
    all(peer).into_iter().map(time).collect()
}

fn free(first: u32, last: u32) -> Notification {
    Notification::Free {
        first,
        last,
        copied: true,
    }
}

use TimestampEvent::{Acknowledged, Scheduled, Sent};

#[test]
fn a_write_is_reported_when_it_leaves_and_when_it_is_acknowledged() {
    let mut peer = Peer::past_quickack(&plain());
    request(&mut peer, WRITES);
    peer.now += ms(10);
    write(&mut peer, 2 * MSS);
    write(&mut peer, 2 * MSS);
    // Not before they leave.
    assert_eq!(times(&mut peer), []);
    peer.sent();
    assert_eq!(
        times(&mut peer),
        [
            (Scheduled, 1999, 10),
            (Sent, 1999, 10),
            (Scheduled, 3999, 10),
            (Sent, 3999, 10)
        ]
    );
    peer.now += ms(10);
    peer.give(ACK, 0, 1999, b"");
    assert_eq!(times(&mut peer), []);
    peer.give(ACK, 0, 2000, b"");
    assert_eq!(times(&mut peer), [(Acknowledged, 1999, 20)]);
    peer.now += ms(10);
    peer.give(ACK, 0, 4000, b"");
    assert_eq!(times(&mut peer), [(Acknowledged, 3999, 30)]);
    assert_eq!(peer.engine.notification_count(), 6);
}

#[test]
fn what_waits_for_the_window_is_reported_when_it_goes() {
    let mut peer = Peer::past_quickack(&plain());
    request(&mut peer, WRITES);
    // Ten segments may leave.
    write(&mut peer, 11 * MSS);
    peer.sent();
    assert_eq!(times(&mut peer), []);
    peer.now += ms(10);
    peer.window = 4000;
    peer.give(ACK, 0, 10 * MSS as u32, b"");
    assert_eq!(times(&mut peer), []);
    peer.sent();
    assert_eq!(
        times(&mut peer),
        [(Scheduled, 10_999, 10), (Sent, 10_999, 10)]
    );
    peer.now += ms(10);
    peer.give(ACK, 0, 11 * MSS as u32, b"");
    assert_eq!(times(&mut peer), [(Acknowledged, 10_999, 20)]);
}

#[test]
fn what_the_device_has_no_room_for_has_not_left() {
    let mut peer = Peer::past_quickack(&Config {
        offload: 5500,
        ..plain()
    });
    request(&mut peer, WRITES);
    write(&mut peer, MSS);
    write(&mut peer, 4 * MSS);
    let now = peer.now;
    let mut room = 1;
    peer.engine.output(now, &mut |_| {
        room -= 1;
        room >= 0
    });
    // A burst of two segments included the first.
    assert_eq!(times(&mut peer), [(Scheduled, 999, 0), (Sent, 999, 0)]);
    peer.now += ms(1);
    peer.sent();
    assert_eq!(times(&mut peer), [(Scheduled, 4999, 1), (Sent, 4999, 1)]);
}

#[test]
fn two_writes_in_one_segment_are_two() {
    let mut peer = Peer::past_quickack(&plain());
    request(
        &mut peer,
        Timestamping {
            scheduled: false,
            ..WRITES
        },
    );
    write(&mut peer, 10);
    peer.sent();
    assert_eq!(times(&mut peer), [(Sent, 9, 0)]);
    // Nagle holds them.
    write(&mut peer, 10);
    write(&mut peer, 10);
    peer.sent();
    assert_eq!(times(&mut peer), []);
    peer.now += ms(5);
    peer.give(ACK, 0, 10, b"");
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 10, 0, 20)]);
    assert_eq!(
        times(&mut peer),
        [(Acknowledged, 9, 5), (Sent, 19, 5), (Sent, 29, 5)]
    );
}

#[test]
fn what_is_sent_again_is_not_reported_again_and_sack_acknowledges_nothing() {
    let mut peer = Peer::past_quickack(&plain());
    request(&mut peer, WRITES);
    write(&mut peer, 2 * MSS);
    write(&mut peer, 2 * MSS);
    peer.sent();
    assert_eq!(times(&mut peer).len(), 4);
    let start = OURS.wrapping_add(1 + 2 * MSS as u32);
    peer.sack = SackBlocks::default();
    assert!(peer.sack.push(start, start.wrapping_add(2 * MSS as u32)));
    peer.now += ms(100);
    peer.give(ACK, 0, 0, b"");
    let mut again = 0;
    while again == 0 {
        again = peer
            .sent()
            .iter()
            .filter(|it| !it.payload.is_empty())
            .count();
        if again == 0 {
            peer.wait_for_timer();
        }
    }
    assert_eq!(times(&mut peer), []);
    peer.now = Duration::from_secs(1001);
    peer.give(ACK, 0, 4 * MSS as u32, b"");
    assert_eq!(
        times(&mut peer),
        [(Acknowledged, 1999, 1000), (Acknowledged, 3999, 1000)]
    );
}

#[test]
fn keys_count_from_where_they_were_asked_for() {
    for (keys, expected) in [
        (TimestampKeys::None, [0, 0]),
        (TimestampKeys::FromUnacknowledged, [1199, 1299]),
        (TimestampKeys::FromWritten, [99, 199]),
    ] {
        let mut peer = Peer::past_quickack(&plain());
        peer.engine.set_nodelay(true);
        peer.write(MSS);
        peer.sent();
        peer.write(MSS);
        peer.sent();
        peer.give(ACK, 0, MSS as u32 - 100, b"");
        let only_sent = Timestamping {
            sent: true,
            keys,
            ..Timestamping::default()
        };
        request(&mut peer, only_sent);
        write(&mut peer, 100);
        // Asking for more does not restart the keys.
        request(
            &mut peer,
            Timestamping {
                scheduled: true,
                ..only_sent
            },
        );
        write(&mut peer, 100);
        peer.sent();
        let [first, second] = expected;
        assert_eq!(
            times(&mut peer),
            [(Sent, first, 0), (Scheduled, second, 0), (Sent, second, 0)],
            "{keys:?}"
        );
    }
}

#[test]
fn only_calls_that_asked_and_wrote_are_reported() {
    let mut peer = Peer::past_quickack(&plain());
    write(&mut peer, MSS);
    request(&mut peer, WRITES);
    peer.engine.end_write(0, true);
    peer.sent();
    peer.give(ACK, 0, MSS as u32, b"");
    assert_eq!(times(&mut peer), []);
    write(&mut peer, MSS);
    request(&mut peer, Timestamping::default());
    write(&mut peer, MSS);
    peer.sent();
    // As it was when it was written.
    assert_eq!(times(&mut peer), [(Scheduled, 1999, 0), (Sent, 1999, 0)]);
    // A call that ends after its bytes have left is too late, and is counted.
    request(&mut peer, WRITES);
    peer.write(MSS);
    peer.sent();
    peer.engine.end_write(MSS, false);
    peer.give(ACK, 0, 4 * MSS as u32, b"");
    assert_eq!(times(&mut peer), [(Acknowledged, 1999, 0)]);
    assert_eq!(peer.engine.notifications_lost(), 1);
}

#[test]
fn copied_memory_is_free_at_once_and_reported_in_ranges() {
    let mut peer = Peer::past_quickack(&plain());
    copy_free(&mut peer, 10);
    assert_eq!(all(&mut peer), []);
    peer.engine.set_zero_copy(true);
    assert!(peer.engine.zero_copy());
    peer.engine.end_write(0, true);
    write(&mut peer, 10);
    assert_eq!(all(&mut peer), []);
    copy_free(&mut peer, 10);
    assert_eq!(peer.engine.notification_count(), 1);
    copy_free(&mut peer, 10);
    // Reported again, as one.
    assert_eq!(peer.engine.notification_count(), 2);
    assert_eq!(all(&mut peer), [free(0, 1)]);
    copy_free(&mut peer, 10);
    assert_eq!(all(&mut peer), [free(2, 2)]);
}

#[test]
fn ranges_end_where_something_else_was_reported() {
    let mut peer = Peer::past_quickack(&plain());
    peer.engine.set_nodelay(true);
    peer.engine.set_zero_copy(true);
    request(
        &mut peer,
        Timestamping {
            sent: true,
            ..Timestamping::default()
        },
    );
    for _ in 0..2 {
        copy_free(&mut peer, 10);
        copy_free(&mut peer, 10);
        peer.sent();
    }
    let sent = Notification::Time {
        event: Sent,
        key: 0,
        at: peer.now,
    };
    assert_eq!(
        all(&mut peer),
        [free(0, 1), sent, sent, free(2, 3), sent, sent]
    );
}

#[test]
fn the_queue_is_bounded_counts_what_it_loses_and_keeps_memory() {
    let mut peer = Peer::past_quickack(&plain());
    peer.engine.set_nodelay(true);
    peer.engine.set_zero_copy(true);
    request(
        &mut peer,
        Timestamping {
            sent: true,
            ..WRITES
        },
    );
    // More writes than marks, in one segment.
    for _ in 0..1030 {
        write(&mut peer, 1);
    }
    assert_eq!(peer.engine.notifications_lost(), 6);
    peer.sent();
    // 1024 marks, two times each, for 1024 places.
    assert_eq!(peer.engine.notifications_lost(), 6 + 1024);
    for _ in 0..3 {
        copy_free(&mut peer, 1);
    }
    let taken = all(&mut peer);
    assert_eq!(taken.len(), 1025);
    assert_eq!(taken.last(), Some(&free(0, 2)));
    peer.sent();
    peer.give(ACK, 0, 1033, b"");
    // Acknowledged writes have freed their marks.
    assert_eq!(times(&mut peer).len(), 1024);
    write(&mut peer, 1);
    peer.sent();
    assert_eq!(times(&mut peer).len(), 2);
}

#[test]
fn what_was_reported_outlives_the_connection() {
    let mut peer = Peer::past_quickack(&plain());
    request(&mut peer, WRITES);
    write(&mut peer, MSS);
    peer.sent();
    peer.give(both(Flags::RST, ACK), 0, 0, b"");
    assert_eq!(times(&mut peer), [(Scheduled, 999, 0), (Sent, 999, 0)]);
    peer.engine.set_zero_copy(true);
    peer.engine.end_write(0, true);
    assert_eq!(all(&mut peer), []);
}

/// When the data last read had arrived, since the test began.
fn arrived(peer: &mut Peer, read: usize) -> Option<u64> {
    let mut buffer = vec![0; read];
    assert_eq!(peer.engine.read(&mut buffer), Ok(read));
    let at = peer.engine.read_timestamp()?;
    Some((at - Duration::from_secs(1000)).as_millis() as u64)
}

#[test]
fn what_is_read_has_a_time() {
    let mut peer = Peer::past_quickack(&plain());
    peer.give(ACK, 0, 0, &[1; 10]);
    request(&mut peer, RECEIVED);
    for offset in [10, 20, 30] {
        peer.now += ms(1);
        peer.give(ACK, offset, 0, &[1; 10]);
    }
    // Data from before it was asked for.
    assert_eq!(arrived(&mut peer, 5), None);
    assert_eq!(arrived(&mut peer, 5), None);
    // Partially, to its end, and beyond.
    assert_eq!(arrived(&mut peer, 4), Some(1));
    assert_eq!(arrived(&mut peer, 6), Some(1));
    assert_eq!(arrived(&mut peer, 11), Some(3));
    // Data beyond a hole cannot be read.
    peer.give(ACK, 50, 0, &[1; 10]);
    peer.now += ms(4);
    peer.give(ACK, 40, 0, &[1; 10]);
    assert_eq!(arrived(&mut peer, 9), Some(3));
    assert_eq!(arrived(&mut peer, 20), Some(7));
    request(&mut peer, Timestamping::default());
    peer.give(ACK, 60, 0, &[1; 10]);
    assert_eq!(arrived(&mut peer, 10), None);
}

#[test]
fn moments_of_arrival_are_bounded() {
    let mut peer = Peer::past_quickack(&plain());
    request(&mut peer, RECEIVED);
    for offset in 0..300 {
        peer.give(ACK, offset, 0, &[1]);
        peer.now += ms(1);
    }
    assert_eq!(arrived(&mut peer, 255), Some(254));
    assert_eq!(arrived(&mut peer, 1), Some(299));
    assert_eq!(arrived(&mut peer, 44), Some(299));
}

#[test]
fn all_of_it_is_handed_over() {
    let mut peer = Peer::past_quickack(&plain());
    peer.engine.set_zero_copy(true);
    request(
        &mut peer,
        Timestamping {
            received: true,
            ..WRITES
        },
    );
    copy_free(&mut peer, 10 * MSS);
    peer.sent();
    copy_free(&mut peer, MSS);
    peer.give(ACK, 0, 0, &[1; 10]);
    peer.now += ms(5);
    peer.give(ACK, 10, 0, &[1; 10]);
    assert_eq!(arrived(&mut peer, 10), Some(0));
    let frozen = peer.engine.freeze(peer.now);
    let now = Duration::from_secs(7000);
    let thawed = Connection::thaw(&frozen, now).unwrap();
    assert_eq!(thawed.freeze(now), frozen);
    assert_eq!(thawed.read_timestamp(), Some(now - ms(5)));
    assert_eq!(
        thawed.notification_count(),
        peer.engine.notification_count()
    );
    (peer.engine, peer.now) = (thawed, now);
    let sent = |event, key, at| Notification::Time { event, key, at };
    let left = now - ms(5);
    assert_eq!(
        all(&mut peer),
        [
            free(0, 0),
            sent(Scheduled, 9999, left),
            sent(Sent, 9999, left),
            free(1, 1)
        ]
    );
    peer.give(ACK, 20, 10_000, b"");
    peer.sent();
    assert_eq!(
        all(&mut peer),
        [
            sent(Acknowledged, 9999, now),
            sent(Scheduled, 10_999, now),
            sent(Sent, 10_999, now)
        ]
    );
    copy_free(&mut peer, 1);
    assert_eq!(all(&mut peer), [free(2, 2)]);
}

#[test]
fn an_earlier_version_is_refused() {
    let peer = Peer::past_quickack(&plain());
    let mut frozen = peer.engine.freeze(peer.now);
    frozen[0] = 9;
    let thawed = Connection::thaw(&frozen, peer.now);
    assert_eq!(thawed.err(), Some(ThawError::Version));
}
