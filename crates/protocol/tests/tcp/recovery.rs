//! Loss recovery: RACK-TLP (RFC 8985), PRR (RFC 6937, RFC 9937), F-RTO (RFC
//! 5682), undoing (RFC 4015, RFC 3708), NewReno (RFC 6582).

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Info, Timestamps};

use crate::link::{FAIR, Host, Link, pattern};
use crate::peer::{ACK, MSS, OURS, Peer, ms, plain};

const SEGMENT: u32 = 1448;
/// Open, disorder, reduced, recovery, loss.
const OPEN: u8 = 0;
const RECOVERY: u8 = 3;
const LOSS: u8 = 4;

fn at(segments: u32) -> u32 {
    OURS.wrapping_add(1 + segments * MSS as u32)
}

/// The segments sent now, by number; all are full.
fn sent(peer: &mut Peer) -> Vec<u32> {
    peer.sent()
        .iter()
        .map(|frame| {
            assert_eq!(frame.payload.len(), MSS);
            frame.header.sequence.wrapping_sub(at(0)) / MSS as u32
        })
        .collect()
}

/// Acknowledges `segments` segments, with blocks.
fn acknowledge(peer: &mut Peer, segments: u32, blocks: &[(u32, u32)]) {
    for &(start, end) in blocks {
        peer.sack.push(at(start), at(end));
    }
    peer.give(ACK, 0, segments * MSS as u32, b"");
}

/// `count` segments are sent, and 50 ms of a round trip of 100 ms have passed.
fn in_flight(config: &Config, count: usize) -> Peer {
    let mut peer = Peer::established(config);
    peer.write(count * MSS);
    assert_eq!(sent(&mut peer).len(), count.min(10));
    peer.now += ms(100);
    peer
}

fn segments(bytes: u32) -> u32 {
    bytes / MSS as u32
}

/// How long 42 segments and the end take, and the sender's statistics then.
fn transfer(fates: &[(u32, u32, Option<Duration>)], sack: bool) -> (Duration, Info) {
    let config = Config {
        sack,
        ..Config::default()
    };
    let hosts = [60_000, 0].map(|length| Host::new(config, pattern(length, 1)));
    let mut link = Link::new(hosts, FAIR, 5);
    link.fates = fates
        .iter()
        .map(|&(segment, times, delay)| (segment * SEGMENT, times, delay))
        .collect();
    link.run(Duration::from_secs(60));
    link.assert_delivered();
    (link.now - link.began, link.hosts[0].connection().info())
}

const ROUND_TRIP: Duration = Duration::from_millis(20);

#[test]
fn one_loss_anywhere_costs_round_trips_not_timeouts() {
    for sack in [true, false] {
        let (clean, info) = transfer(&[], sack);
        assert_eq!((info.retransmissions, info.loss_probes), (0, 0));
        for lost in [0, 1, 5, 9, 10, 20, 29, 35] {
            let (time, info) = transfer(&[(lost, 1, None)], sack);
            assert_eq!(info.timeouts, 0, "{lost}: {info:?}");
            assert_eq!(info.fast_recoveries, 1, "{lost}: {info:?}");
            assert!(
                time <= clean + 3 * ROUND_TRIP,
                "{lost}: {time:?}, {clean:?}"
            );
            let most = if sack { 1 } else { 2 };
            assert!(info.retransmissions <= most, "{lost}: {info:?}");
        }
    }
}

#[test]
fn the_last_segment_is_found_by_a_probe_in_two_round_trips() {
    let (clean, _) = transfer(&[], true);
    // The FIN goes with it.
    let (time, info) = transfer(&[(41, 1, None)], true);
    assert_eq!((info.timeouts, info.loss_probes), (0, 1), "{info:?}");
    // A lone segment's acknowledgment may be delayed.
    assert!(
        time <= clean + 3 * ROUND_TRIP + ms(205),
        "{time:?}, {clean:?}"
    );
    let (time, info) = transfer(&[(40, 1, None), (41, 1, None)], true);
    assert_eq!((info.timeouts, info.loss_probes), (0, 1), "{info:?}");
    assert!(
        time <= clean + 4 * ROUND_TRIP + ms(2),
        "{time:?}, {clean:?}"
    );
    // Without SACK there is no probe (RFC 8985 §7.1): the timeout finds it.
    let (_, info) = transfer(&[(41, 1, None)], false);
    assert_eq!((info.timeouts, info.loss_probes), (1, 0), "{info:?}");
    // The last ten.
    let lost: Vec<_> = (32..42).map(|segment| (segment, 1, None)).collect();
    let (time, info) = transfer(&lost, true);
    assert_eq!((info.timeouts, info.loss_probes), (0, 1), "{info:?}");
    assert_eq!(info.retransmissions, 10, "{info:?}");
    // The probe, then one, two, four and two, as the reduction allows.
    assert!(
        time <= clean + 7 * ROUND_TRIP + ms(2),
        "{time:?}, {clean:?}"
    );
}

#[test]
fn a_retransmission_that_is_lost_is_found_as_well() {
    let (clean, _) = transfer(&[], true);
    for lost in [0, 5, 12, 20] {
        let (time, info) = transfer(&[(lost, 2, None)], true);
        assert_eq!(info.timeouts, 0, "{lost}: {info:?}");
        assert_eq!(info.retransmissions, 2, "{lost}: {info:?}");
        assert!(
            time <= clean + 4 * ROUND_TRIP,
            "{lost}: {time:?}, {clean:?}"
        );
    }
}

#[test]
fn reordering_is_learned() {
    // Late by less than a quarter of a round trip, once: duplicates begin a recovery,
    // which is undone. After that, lateness is expected.
    let (_, info) = transfer(&[(3, 1, Some(ms(4)))], true);
    assert_eq!(
        (info.timeouts, info.congestion_state),
        (0, OPEN),
        "{info:?}"
    );
    assert!(
        info.retransmissions <= 1 && info.reordering_seen >= 1,
        "{info:?}"
    );
    let late: Vec<_> = [3, 12, 17, 22, 27, 33]
        .map(|segment| (segment, 1, Some(ms(4))))
        .into();
    let (_, info) = transfer(&late, true);
    assert!(info.retransmissions <= 1, "{info:?}");
    assert!(info.slow_start_threshold == u32::MAX || info.recoveries_undone == 1);
}

#[test]
fn a_probe_reveals_what_was_lost_before_it() {
    // As RFC 8985 §3.3 (figure 1), except that the reduction paces the retransmissions:
    // P1 to P3 are lost.
    let mut peer = Peer::established(&plain());
    peer.write(4 * MSS);
    assert_eq!(sent(&mut peer), [0, 1, 2, 3]);
    peer.now += ms(100);
    acknowledge(&mut peer, 1, &[]);
    assert_eq!(sent(&mut peer), []);
    // Two round trips later.
    let wait = peer.wait_for_timer();
    assert!(wait >= ms(200) && wait <= ms(203), "{wait:?}");
    assert_eq!(sent(&mut peer), [3]);
    peer.now += ms(100);
    acknowledge(&mut peer, 1, &[(3, 4)]);
    assert_eq!(peer.engine.info().lost, 2 * MSS as u32);
    assert_eq!(sent(&mut peer), [1]);
    peer.now += ms(100);
    acknowledge(&mut peer, 2, &[(3, 4)]);
    assert_eq!(sent(&mut peer), [2]);
    peer.now += ms(100);
    acknowledge(&mut peer, 4, &[]);
    let info = peer.engine.info();
    assert_eq!((info.timeouts, info.unacknowledged), (0, 0), "{info:?}");
    assert_eq!(info.congestion_state, OPEN);
}

#[test]
fn a_lost_retransmission_is_found_by_what_left_after_it() {
    let mut peer = in_flight(&plain(), 60);
    acknowledge(&mut peer, 0, &[(1, 6)]);
    assert_eq!(sent(&mut peer)[0], 0);
    // New data arrives a round trip later, but the retransmission does not.
    peer.now += ms(1);
    acknowledge(&mut peer, 0, &[(1, 10)]);
    let new = sent(&mut peer);
    assert!(!new.is_empty() && new.iter().all(|&segment| segment >= 10));
    peer.now += ms(100);
    acknowledge(&mut peer, 0, &[(1, 11)]);
    let mut again = sent(&mut peer);
    if !again.contains(&0) {
        let wait = peer.wait_for_timer();
        assert!(wait <= ms(27), "{wait:?}");
        again = sent(&mut peer);
    }
    assert!(again.contains(&0));
    let info = peer.engine.info();
    assert_eq!((info.timeouts, info.retransmissions), (0, 2));
}

#[test]
fn a_probe_is_new_data_where_there_is_some() {
    let mut peer = Peer::established(&plain());
    peer.write(10 * MSS + 300);
    assert_eq!(sent(&mut peer).len(), 10);
    peer.wait_for_timer();
    let probe = peer.brief();
    assert_eq!(
        probe,
        [(ACK | tidewall_wire::tcp::Flags::PSH, 10_000, 0, 300)]
    );
    assert_eq!(peer.engine.info().loss_probes, 1);
    // One probe at a time: the timeout follows.
    peer.wait_for_timer();
    assert_eq!(sent(&mut peer), [0]);
    let info = peer.engine.info();
    assert_eq!((info.timeouts, info.loss_probes), (1, 1));
}

#[test]
fn one_segment_in_flight_waits_for_a_delayed_acknowledgment() {
    let mut peer = Peer::established(&plain());
    peer.write(MSS);
    assert_eq!(sent(&mut peer), [0]);
    // Twice the round trip of 100 ms and the shortest timeout, but no later than
    // the timeout.
    let wait = peer.wait_for_timer();
    assert_eq!(wait, ms(300).min(peer.engine.info().retransmission_timeout));
}

#[test]
fn a_probe_that_repaired_a_loss_reduces_the_window_and_one_that_did_not_does_not() {
    let probed = || {
        let mut peer = Peer::established(&plain());
        peer.write(4 * MSS);
        sent(&mut peer);
        peer.now += ms(100);
        acknowledge(&mut peer, 3, &[]);
        while sent(&mut peer).is_empty() {
            peer.wait_for_timer();
        }
        assert_eq!(peer.engine.info().loss_probes, 1);
        peer.now += ms(100);
        peer
    };
    let more = |peer: &mut Peer| {
        peer.write(MSS);
        assert_eq!(sent(peer), [4]);
        peer.now += ms(100);
        acknowledge(peer, 5, &[]);
        peer.engine.info()
    };
    // Acknowledged once: one of the two was lost.
    let mut peer = probed();
    acknowledge(&mut peer, 4, &[]);
    let info = more(&mut peer);
    assert_eq!(segments(info.slow_start_threshold), 7);
    assert_eq!(segments(info.congestion_window), 7);
    // The receiver reports that both have arrived, with D-SACK or without.
    for blocks in [&[(3, 4)][..], &[]] {
        let mut peer = probed();
        acknowledge(&mut peer, 4, &[]);
        acknowledge(&mut peer, 4, blocks);
        let info = more(&mut peer);
        assert_eq!(info.slow_start_threshold, u32::MAX, "{blocks:?}");
    }
}

#[test]
fn the_window_shrinks_in_proportion_to_what_arrives() {
    // Ten in flight, the first lost, CUBIC's threshold seven: seven are sent for ten.
    let mut peer = in_flight(&plain(), 60);
    let mut again = Vec::new();
    for end in 2..=10 {
        acknowledge(&mut peer, 0, &[(1, end)]);
        again.extend(sent(&mut peer));
        peer.now += ms(1);
        let info = peer.engine.info();
        if end > 7 {
            let flight = info.unacknowledged - info.sacked - info.lost + info.retransmitted;
            assert!(segments(flight) <= 8, "{end}: {info:?}");
        }
    }
    assert_eq!(again.iter().filter(|&&segment| segment == 0).count(), 1);
    assert_eq!(peer.engine.info().congestion_state, RECOVERY);
    peer.now += ms(100);
    // Recovery ends where it began: two left for the first duplicates.
    acknowledge(&mut peer, 12, &[]);
    let info = peer.engine.info();
    assert_eq!(info.congestion_state, OPEN);
    assert_eq!(segments(info.congestion_window), 7);
    assert_eq!(segments(info.slow_start_threshold), 7);
}

#[test]
fn limited_transmit_sends_new_data_for_the_first_duplicates() {
    for sack in [true, false] {
        let mut peer = in_flight(&Config { sack, ..plain() }, 60);
        let blocks: [&[(u32, u32)]; 2] = if sack {
            [&[(1, 2)], &[(1, 3)]]
        } else {
            [&[], &[]]
        };
        for (count, blocks) in blocks.into_iter().enumerate() {
            acknowledge(&mut peer, 0, blocks);
            assert_eq!(sent(&mut peer), [10 + count as u32], "{sack}");
        }
        assert_eq!(peer.engine.info().retransmissions, 0);
    }
}

#[test]
fn losses_between_sacked_ranges_need_no_three_duplicates() {
    // Two segments arrive beyond the hole and nothing more: the timer finds the loss.
    let mut peer = in_flight(&plain(), 3);
    acknowledge(&mut peer, 0, &[(1, 3)]);
    assert_eq!(sent(&mut peer), []);
    let wait = peer.wait_for_timer();
    // A quarter of the round trip, and ticks.
    assert_eq!(wait, ms(27));
    assert_eq!(sent(&mut peer), [0]);
    assert_eq!(peer.engine.info().fast_recoveries, 1);
}

#[test]
fn echoes_older_than_the_retransmission_undo_a_recovery() {
    let config = Config {
        timestamps: true,
        mss: MSS as u16 + 12,
        ..plain()
    };
    let mut peer = in_flight(&config, 10);
    let clock = |peer: &Peer| peer.now.as_millis() as u32;
    let first = clock(&peer) - 100;
    let stamp = |peer: &mut Peer, echo| {
        peer.timestamps = Some(Timestamps { value: 600, echo });
    };
    stamp(&mut peer, first);
    acknowledge(&mut peer, 0, &[(1, 4)]);
    assert_eq!(sent(&mut peer), [0]);
    assert_eq!(segments(peer.engine.info().slow_start_threshold), 7);
    peer.now += ms(2);
    // The first segment was late: its acknowledgment echoes its timestamp.
    stamp(&mut peer, first);
    acknowledge(&mut peer, 10, &[]);
    let info = peer.engine.info();
    assert_eq!(info.slow_start_threshold, u32::MAX);
    assert_eq!((info.recoveries_undone, info.congestion_state), (1, OPEN));
    assert!(segments(info.congestion_window) >= 10);
    // Had it been lost, the echo would be that of the retransmission.
    let mut peer = in_flight(&config, 10);
    stamp(&mut peer, first);
    acknowledge(&mut peer, 0, &[(1, 4)]);
    assert_eq!(sent(&mut peer), [0]);
    let again = clock(&peer);
    peer.now += ms(100);
    stamp(&mut peer, again);
    acknowledge(&mut peer, 10, &[]);
    let info = peer.engine.info();
    assert_eq!(segments(info.slow_start_threshold), 7);
    assert_eq!(info.recoveries_undone, 0);
}

#[test]
fn a_duplicate_for_each_retransmission_undoes_a_recovery() {
    let mut peer = in_flight(&plain(), 10);
    acknowledge(&mut peer, 0, &[(2, 8)]);
    assert_eq!(sent(&mut peer), [0, 1]);
    peer.now += ms(10);
    // Both were late.
    acknowledge(&mut peer, 10, &[]);
    assert_eq!(segments(peer.engine.info().slow_start_threshold), 7);
    peer.now += ms(90);
    acknowledge(&mut peer, 10, &[(0, 1)]);
    assert_eq!(segments(peer.engine.info().slow_start_threshold), 7);
    acknowledge(&mut peer, 10, &[(1, 2)]);
    let info = peer.engine.info();
    assert_eq!((info.slow_start_threshold, info.duplicates), (u32::MAX, 2));
    assert_eq!(info.recoveries_undone, 1);
}

/// All data in flight times out; then the first segment is sent.
fn timed_out(config: &Config, count: usize) -> Peer {
    let mut peer = in_flight(config, count);
    loop {
        peer.wait_for_timer();
        let sent = sent(&mut peer);
        if peer.engine.info().timeouts == 1 {
            assert_eq!(sent, [0]);
            break;
        }
    }
    let info = peer.engine.info();
    assert_eq!(info.congestion_state, LOSS);
    assert_eq!(segments(info.congestion_window), 1);
    peer
}

#[test]
fn a_timeout_that_was_spurious_is_undone_by_what_was_sent_once() {
    for sack in [true, false] {
        let mut peer = timed_out(&Config { sack, ..plain() }, 60);
        let next = segments(peer.engine.info().unacknowledged);
        peer.now += ms(10);
        // The first segment was not lost but late.
        acknowledge(&mut peer, 1, &[]);
        // F-RTO sends new data instead of data assumed lost.
        assert_eq!(sent(&mut peer), [next, next + 1]);
        peer.now += ms(1);
        acknowledge(&mut peer, 2, &[]);
        let info = peer.engine.info();
        assert_eq!(info.spurious_timeouts, 1, "{sack}: {info:?}");
        assert_eq!((info.slow_start_threshold, info.lost), (u32::MAX, 0));
        assert!(segments(info.congestion_window) >= 10, "{info:?}");
        let more = sent(&mut peer);
        assert!(more.iter().all(|&segment| segment >= 10), "{more:?}");
    }
}

#[test]
fn a_timeout_that_was_not_repairs_the_rest() {
    for sack in [true, false] {
        let mut peer = timed_out(&Config { sack, ..plain() }, 60);
        let next = segments(peer.engine.info().unacknowledged);
        peer.now += ms(100);
        acknowledge(&mut peer, 1, &[]);
        assert_eq!(sent(&mut peer), [next, next + 1]);
        peer.now += ms(100);
        // Only the new data arrives.
        let blocks = [(next, next + 1)];
        acknowledge(&mut peer, 1, if sack { &blocks } else { &[] });
        assert_eq!(sent(&mut peer)[0], 1, "{sack}");
        let info = peer.engine.info();
        assert_eq!((info.spurious_timeouts, info.congestion_state), (0, LOSS));
        assert!(info.slow_start_threshold < u32::MAX);
    }
}

#[test]
fn nothing_new_to_send_means_the_ordinary_repair() {
    let mut peer = timed_out(&plain(), 10);
    peer.now += ms(100);
    acknowledge(&mut peer, 1, &[]);
    assert_eq!(sent(&mut peer), [1, 2]);
    peer.now += ms(100);
    acknowledge(&mut peer, 3, &[]);
    assert_eq!(sent(&mut peer), [3, 4, 5, 6]);
    peer.now += ms(100);
    acknowledge(&mut peer, 10, &[]);
    let info = peer.engine.info();
    assert_eq!((info.congestion_state, info.unacknowledged), (OPEN, 0));
    assert_eq!(segments(info.slow_start_threshold), 7);
}

#[test]
fn a_receiver_that_takes_back_what_it_said_is_sent_everything() {
    let mut peer = in_flight(&plain(), 10);
    acknowledge(&mut peer, 0, &[(2, 8)]);
    assert_eq!(sent(&mut peer), [0, 1]);
    peer.now += ms(100);
    // The receiver has dropped its data, and acknowledges only the holes.
    acknowledge(&mut peer, 2, &[]);
    assert_eq!(sent(&mut peer), []);
    // The receiver gets half a round trip; then all data counts as lost.
    assert_eq!(peer.wait_for_timer(), ms(50));
    assert_eq!(sent(&mut peer), [2]);
    let info = peer.engine.info();
    assert_eq!((info.sacked, info.timeouts), (0, 1));
    peer.now += ms(100);
    acknowledge(&mut peer, 3, &[]);
    assert_eq!(sent(&mut peer), [3, 4]);
}

#[test]
fn a_delay_spike_costs_no_window() {
    // For half a second in mid-transfer nothing arrives; F-RTO or the timestamps show
    // that nothing was lost.
    for (timestamps, sack) in [(true, true), (false, true), (true, false), (false, false)] {
        let config = Config {
            timestamps,
            sack,
            ..Config::default()
        };
        let hosts = [3_000_000, 0].map(|length| Host::new(config, pattern(length, 1)));
        let mut link = Link::new(hosts, FAIR, 5);
        link.run_for(ms(130));
        let window = link.hosts[0].connection().info().congestion_window;
        link.weather[0].delay = ms(600);
        link.run_for(ms(25));
        link.weather[0].delay = ms(590);
        link.run_for(ms(585));
        link.weather[0].delay = ms(10);
        link.run(Duration::from_secs(60));
        link.assert_delivered();
        let info = link.hosts[0].connection().info();
        assert!(info.timeouts >= 1, "{info:?}");
        assert!(info.recoveries_undone >= 1, "{timestamps} {sack}: {info:?}");
        assert!(
            info.congestion_window >= window,
            "{timestamps} {sack}: {info:?}"
        );
        assert!(info.retransmissions <= 10, "{timestamps} {sack}: {info:?}");
    }
}

#[test]
fn duplicates_of_an_old_recovery_begin_none_without_sack() {
    // RFC 6582 §3.2, step 1.
    let mut peer = in_flight(
        &Config {
            sack: false,
            ..plain()
        },
        60,
    );
    for _ in 0..3 {
        acknowledge(&mut peer, 0, &[]);
    }
    assert!(sent(&mut peer).contains(&0));
    peer.now += ms(100);
    let end = segments(peer.engine.info().unacknowledged);
    acknowledge(&mut peer, end, &[]);
    sent(&mut peer);
    assert_eq!(peer.engine.info().congestion_state, RECOVERY);
    let recoveries = peer.engine.info().fast_recoveries;
    for _ in 0..5 {
        acknowledge(&mut peer, end, &[]);
        sent(&mut peer);
    }
    let info = peer.engine.info();
    assert_eq!(
        (info.fast_recoveries, info.retransmissions),
        (recoveries, 1)
    );
    acknowledge(&mut peer, end + 1, &[]);
    assert_eq!(peer.engine.info().congestion_state, OPEN);
}
