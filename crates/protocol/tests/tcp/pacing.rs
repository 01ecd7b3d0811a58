//! Pacing: new data leaves in bursts, and no faster than configured.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Congestion};

use crate::link::{FAIR, Host, Link, pattern};
use crate::peer::{ACK, MSS, Peer, ms, plain};

fn paced() -> Config {
    Config {
        pacing: true,
        ..plain()
    }
}

/// Makes the engine send what it may within `time`. Returns the times, and the number of
/// segments.
fn bursts(peer: &mut Peer, time: Duration) -> Vec<(Duration, usize)> {
    let (began, end) = (peer.now, peer.now + time);
    let mut bursts = Vec::new();
    loop {
        let sent = peer.sent().len();
        if sent > 0 {
            bursts.push((peer.now - began, sent));
        }
        match peer.engine.next_timeout() {
            Some(at) if at <= end => {
                peer.wait_for_timer();
            }
            _ => break,
        }
    }
    peer.now = end;
    bursts
}

/// Sends the initial window; all of it is acknowledged 100 ms later, so that twice as
/// much may be sent.
fn second_round(config: &Config) -> Peer {
    let mut peer = Peer::established(config);
    peer.write(40 * MSS);
    assert_eq!(peer.sent().len(), 10, "the initial window is not paced");
    peer.now += ms(100);
    peer.give(ACK, 0, 10 * MSS as u32, b"");
    assert_eq!(peer.engine.info().congestion_window, 20 * MSS as u32);
    peer
}

#[test]
fn in_slow_start_a_window_takes_half_a_round_trip() {
    let mut peer = second_round(&plain());
    assert_eq!(bursts(&mut peer, ms(90)), [(ms(0), 20)], "off by default");
    let mut peer = second_round(&paced());
    // Twice 20 segments in 100 ms: 2.5 ms each, two at a time.
    assert_eq!(peer.engine.info().pacing_rate, 400_000);
    let bursts = bursts(&mut peer, ms(90));
    assert_eq!(bursts.len(), 10, "{bursts:?}");
    assert!(bursts.iter().all(|burst| burst.1 == 2), "{bursts:?}");
    let last = bursts[9].0;
    assert!(last >= ms(43) && last <= ms(46), "{bursts:?}");
}

#[test]
fn near_the_threshold_and_beyond_a_window_takes_five_sixths() {
    let mut peer = second_round(&Config {
        congestion: Congestion::NewReno,
        sack: false,
        ..paced()
    });
    bursts(&mut peer, ms(90));
    peer.now += ms(200);
    while peer.engine.info().timeouts == 0 {
        peer.wait_for_timer();
        peer.sent();
    }
    let info = peer.engine.info();
    assert_eq!(info.congestion_window, MSS as u32);
    assert_eq!(info.slow_start_threshold, 10 * MSS as u32);
    // A duplicate of the segment that F-RTO sent shows that everything was lost: the
    // window starts at one segment.
    peer.give(ACK, 0, 11 * MSS as u32, b"");
    peer.sent();
    peer.give(ACK, 0, 11 * MSS as u32, b"");
    peer.sent();
    for (acknowledged, window) in [(12, 3), (13, 4), (14, 5), (15, 6), (18, 9)] {
        peer.give(ACK, 0, acknowledged * MSS as u32, b"");
        let info = peer.engine.info();
        assert_eq!(info.congestion_window / MSS as u32, window);
        let percent = if window < 5 { 200 } else { 120 };
        let micros = info.round_trip.as_micros() as u64;
        let flight = u64::from(info.congestion_window.max(info.unacknowledged));
        assert_eq!(info.pacing_rate, flight * percent * 10_000 / micros);
        peer.sent();
    }
}

#[test]
fn a_short_path_is_not_paced() {
    let mut peer = Peer::established(&paced());
    let mut offset = 0;
    for _ in 0..60 {
        peer.write(200);
        offset += 200;
        assert_eq!(peer.sent().len(), 1);
        peer.now += Duration::from_micros(100);
        peer.give(ACK, 0, offset, b"");
        peer.now += ms(20);
    }
    assert!(peer.engine.info().round_trip < ms(1));
    peer.write(30 * MSS);
    let sent = peer.sent().len();
    assert!(sent >= 10, "{sent}");
    // The tail-loss probe comes later.
    assert_eq!(bursts(&mut peer, ms(2)), []);
}

#[test]
fn nothing_is_sent_faster_than_asked() {
    for pacing in [false, true] {
        let config = Config {
            pacing_rate_max: Some(100_000),
            pacing,
            ..plain()
        };
        let mut peer = Peer::established(&config);
        assert_eq!(peer.engine.pacing_rate_max(), Some(100_000));
        peer.write(40 * MSS);
        // The initial window, too: two segments per 20 ms.
        let sent = bursts(&mut peer, ms(99));
        let expected: Vec<_> = (0..5).map(|at| (ms(20 * at), 2)).collect();
        for (burst, expected) in sent.iter().zip(&expected) {
            assert_eq!(burst.1, expected.1, "{sent:?}");
            assert!(burst.0.abs_diff(expected.0) <= ms(1), "{sent:?}");
        }
        assert_eq!(sent.len(), 5);
        peer.give(ACK, 0, 10 * MSS as u32, b"");
        peer.engine.set_pacing_rate_max(None);
        peer.engine.set_pacing(false);
        peer.wait(ms(21));
        assert_eq!(peer.sent().len(), 20);
    }
}

#[test]
fn a_pause_earns_no_more_than_a_burst() {
    for slow_start_after_idle in [true, false] {
        pauses_earn_no_more_than_a_burst(&Config {
            pacing_rate_max: Some(1_000_000),
            slow_start_after_idle,
            ..plain()
        });
    }
}

fn pauses_earn_no_more_than_a_burst(config: &Config) {
    let mut peer = Peer::established(config);
    let mut offset = 0;
    for pause in [
        ms(1),
        ms(150),
        Duration::from_secs(3),
        // Microseconds wrap after 71 minutes.
        Duration::from_secs(36 * 60),
        Duration::from_secs(50 * 60),
        Duration::from_secs(71 * 60),
        Duration::from_secs(110 * 60),
        Duration::from_secs(5000),
    ] {
        peer.now += pause;
        peer.write(8 * MSS);
        let sent = bursts(&mut peer, ms(20));
        // A segment per millisecond.
        assert!(
            sent[0].1 <= 3 && sent.len() >= 3,
            "{sent:?} after {pause:?}"
        );
        assert!(sent.last().unwrap().0 <= ms(8), "{sent:?} after {pause:?}");
        offset += 8 * MSS as u32;
        peer.give(ACK, 0, offset, b"");
    }
}

/// The first burst of written data on a path of 100 ms with a window of 40 segments.
/// Twice that window per round trip is 800 bytes per millisecond.
fn first_burst(config: Config) -> usize {
    let mut peer = Peer::established(&Config {
        offload: 64_000,
        initial_window: 40,
        ..config
    });
    peer.write(40 * MSS);
    let mut first = None;
    peer.engine.output(peer.now, &mut |outgoing| {
        first.get_or_insert(outgoing.payload_len());
        true
    });
    first.unwrap()
}

#[test]
fn a_burst_of_the_device_is_a_millisecond_s_worth() {
    // At least two segments, unless configured otherwise.
    assert_eq!(first_burst(plain()), 2 * MSS);
    let config = |burst_min, pacing_rate_max| Config {
        burst_min,
        pacing_rate_max,
        ..plain()
    };
    assert_eq!(first_burst(config(1, None)), MSS);
    assert_eq!(first_burst(config(7, None)), 7 * MSS);
    assert_eq!(first_burst(config(0, Some(100_000))), MSS);
}

#[test]
fn a_burst_grows_with_the_rate_and_the_nearer_the_peer_is() {
    let burst = |window, round_trip| {
        let mut peer = Peer::established(&Config {
            offload: 64_000,
            initial_window: window,
            ..plain()
        });
        // The handshake's 100 ms no longer count.
        for byte in 0..100 {
            peer.write(1);
            peer.sent();
            peer.wait(round_trip);
            peer.give(ACK, 0, byte + 1, b"");
        }
        peer.write(40 * MSS);
        let mut first = None;
        peer.engine.output(peer.now, &mut |outgoing| {
            first.get_or_insert(outgoing.payload_len());
            true
        });
        first.unwrap()
    };
    // Twice the window per round trip is 12 MB/s; four halvings leave 4000 bytes.
    assert_eq!(burst(30, Duration::from_micros(2500)), 15 * MSS);
    // Less than one halving: everything except the window's limit.
    assert_eq!(burst(60, Duration::from_micros(400)), 30 * MSS);
    assert_eq!(burst(30, ms(5)), 12 * MSS);
}

#[test]
fn a_transfer_takes_the_time_that_the_rate_says() {
    for freezes in [false, true] {
        let config = Config {
            pacing: true,
            pacing_rate_max: Some(500_000),
            ..Config::default()
        };
        let hosts = [1_000_000, 0].map(|length| Host::new(config, pattern(length, 1)));
        let mut link = Link::new(hosts, FAIR, 1);
        link.freezes = freezes;
        link.run(Duration::from_secs(10));
        link.assert_delivered();
        let time = link.now - link.began;
        assert!(time > ms(1950) && time < ms(2200), "{time:?}");
    }
}
