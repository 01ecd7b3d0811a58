//! The path's MTU, found by sending (RFC 4821).

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::errno;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{Config, Connection, Handshake, Info, MtuProbing};

use crate::link::{FAIR, Host, Link, Weather, flow, pattern};
use crate::peer::{ACK, OURS, Peer, ms, plain};

const MINUTE: Duration = Duration::from_secs(60);

fn link(config: Config, length: usize) -> Link {
    let hosts = [
        Host::new(config, pattern(length, 0)),
        Host::new(Config::default(), Vec::new()),
    ];
    Link::new(hosts, FAIR, 3)
}

/// Makes one host send more.
fn more(link: &mut Link, length: usize) {
    let salt = link.hosts[0].to_send.len() as u8;
    link.hosts[0].to_send.extend(pattern(length, salt));
}

fn info(link: &mut Link) -> Info {
    link.hosts[0].connection().info()
}

/// The path carries `payload` bytes of payload and the 12 bytes of timestamps, which is
/// the most that a search finds.
fn found(info: &Info, payload: u32) -> bool {
    info.send_mss <= payload && info.send_mss + 8 > payload
}

#[test]
fn a_black_hole_from_the_beginning_is_found_and_measured() {
    for payload in [1400, 1188, 1013, 700, 480] {
        let mut link = link(Config::default(), 600_000);
        link.weather[0].payload_max = payload;
        link.run(5 * MINUTE);
        link.assert_delivered();
        let info = info(&mut link);
        assert!(found(&info, payload as u32), "{payload}: {info:?}");
        assert_eq!(info.path_mtu, info.send_mss + 12 + 40);
        assert!(info.timeouts <= 8, "{info:?}");
        // Each probe that was too large was retransmitted, and had no other effect.
        assert_eq!(link.hosts[0].error, None);
    }
}

/// All of it fits into the fallback size, which the path does not carry.
#[test]
fn little_data_gets_out_of_a_black_hole() {
    for (length, timestamps) in [(473, false), (1024, false), (700, true)] {
        let config = Config {
            timestamps,
            ..Config::default()
        };
        let mut link = link(config, length);
        link.weather[0].payload_max = 472;
        link.run(5 * MINUTE);
        link.assert_delivered();
        assert_eq!(link.hosts[0].error, None);
        assert!(info(&mut link).timeouts <= 8);
    }
}

#[test]
fn a_black_hole_in_mid_stream_is_found() {
    for sack in [true, false] {
        let config = Config {
            sack,
            ..Config::default()
        };
        let mut link = link(config, 300_000);
        link.hosts[0].closes = false;
        link.run_for(Duration::from_secs(5));
        assert_eq!(info(&mut link).send_mss, 1448);
        link.weather[0].payload_max = 1300;
        more(&mut link, 600_000);
        link.hosts[0].closes = true;
        link.run(5 * MINUTE);
        link.assert_delivered();
        let info = info(&mut link);
        assert!(found(&info, 1300), "{sack} {info:?}");
    }
}

#[test]
fn an_outage_costs_the_size_for_a_moment_only() {
    let mut link = link(Config::default(), 300_000);
    link.hosts[0].closes = false;
    link.run_for(ms(70));
    link.weather[0].loss = 100;
    link.run_for(Duration::from_secs(8));
    assert!(info(&mut link).send_mss < 1448);
    link.weather[0].loss = 0;
    more(&mut link, 600_000);
    link.hosts[0].closes = true;
    link.run(MINUTE);
    link.assert_delivered();
    assert_eq!(info(&mut link).send_mss, 1448);
}

/// For a connection that sends messages, none of which is large enough for a probe.
#[test]
fn after_an_outage_messages_are_whole_segments_again() {
    for length in [300, 900, 1400] {
        // One reduction, two, and more.
        for outage in [2400, 4800, 19_200].map(Duration::from_millis) {
            let mut link = link(Config::default(), length);
            link.hosts[0].closes = false;
            link.run_for(Duration::from_secs(1));
            link.weather[0].loss = 100;
            more(&mut link, length);
            link.run_for(outage);
            link.weather[0].loss = 0;
            link.run_for(Duration::from_secs(60));
            // The congestion window has to grow first.
            more(&mut link, length);
            link.run_for(Duration::from_secs(5));
            // Data that a bad path loses is retransmitted.
            let sent = |link: &mut Link| {
                let info = info(link);
                info.segments_sent - info.retransmissions
            };
            let before = sent(&mut link);
            more(&mut link, length);
            link.run_for(Duration::from_secs(5));
            let sent = sent(&mut link) - before;
            assert_eq!(sent, 1, "messages of {length} bytes after {outage:?}");
        }
    }
}

/// A connection whose messages do not fit returns to the size that got through, and stays
/// there.
#[test]
fn a_black_hole_stalls_messages_twice_at_most() {
    // Found after several reductions, and after one.
    for payload in [400, 1100] {
        let mut link = link(Config::default(), 1400);
        link.hosts[0].closes = false;
        link.run_for(Duration::from_secs(1));
        link.weather[0].payload_max = payload;
        for _ in 0..5 {
            more(&mut link, 1400);
            link.run_for(Duration::from_secs(30));
        }
        assert!(info(&mut link).timeouts <= 12, "{:?}", info(&mut link));
        link.hosts[0].closes = true;
        link.run(MINUTE);
        link.assert_delivered();
    }
}

#[test]
fn a_path_that_carries_more_again_is_used() {
    let mut link = link(Config::default(), 600_000);
    link.hosts[0].closes = false;
    link.weather[0].payload_max = 1188;
    link.run_for(2 * MINUTE);
    let now = info(&mut link);
    assert!(found(&now, 1188), "{now:?}");
    link.weather[0].payload_max = usize::MAX;
    more(&mut link, 600_000);
    link.run_for(MINUTE);
    assert!(found(&info(&mut link), 1188), "not yet");
    link.run_for(8 * MINUTE);
    more(&mut link, 600_000);
    link.hosts[0].closes = true;
    link.run(MINUTE);
    link.assert_delivered();
    let now = info(&mut link);
    assert_eq!((now.send_mss, now.path_mtu), (1448, 1500));
}

fn too_big(link: &mut Link, mtu: u32) {
    let flow = *link.hosts[0].connection().flow();
    let error = FlowError {
        local: flow.local,
        remote: flow.remote,
        errno: errno::EMSGSIZE,
        hard: true,
        mtu: Some(mtu),
        offender: "203.0.113.1".parse().unwrap(),
        kind: 3,
        code: 4,
        sequence: Some(link.first_in_flight(0)),
    };
    let now = link.now;
    link.hosts[0].connection().icmp_error(&error, now);
}

#[test]
fn what_icmp_has_said_is_doubted_after_ten_minutes() {
    for (probing, later) in [
        (MtuProbing::BlackHole, 1448),
        (MtuProbing::Always, 1448),
        (MtuProbing::Off, 1448),
    ] {
        let config = Config {
            mtu_probing: probing,
            ..Config::default()
        };
        let mut link = link(config, 3_000_000);
        link.hosts[0].closes = false;
        link.run_for(ms(200));
        // A forged error, since the path carries everything.
        too_big(&mut link, 68);
        assert_eq!(info(&mut link).send_mss, 524);
        link.run_for(5 * MINUTE);
        more(&mut link, 100_000);
        link.run_for(MINUTE);
        assert_eq!(info(&mut link).send_mss, 524);
        link.run_for(5 * MINUTE);
        more(&mut link, 2_000_000);
        link.hosts[0].closes = true;
        link.run(MINUTE);
        link.assert_delivered();
        let now = info(&mut link);
        assert_eq!(now.send_mss, later, "{probing:?} {now:?}");
        assert_eq!(now.timeouts, 0, "{probing:?} {now:?}");
    }
}

#[test]
fn what_icmp_says_of_a_probe_ends_the_search_there() {
    let config = Config {
        mtu_probing: MtuProbing::Always,
        ..Config::default()
    };
    let mut link = link(config, 3_000_000);
    link.weather[0].payload_max = 1088;
    link.run_for(ms(70));
    let before = info(&mut link).send_mss;
    assert!(before <= 1088);
    too_big(&mut link, 1140);
    link.run(5 * MINUTE);
    link.assert_delivered();
    assert!(found(&info(&mut link), 1088), "{:?}", info(&mut link));
}

#[test]
fn without_probing_a_black_hole_is_one() {
    let config = Config {
        mtu_probing: MtuProbing::Off,
        user_timeout: Some(MINUTE),
        ..Config::default()
    };
    let mut link = link(config, 300_000);
    link.weather[0].payload_max = 1188;
    link.hosts[1].closes = false;
    link.run_for(2 * MINUTE);
    assert!(link.hosts[0].error.is_some() && link.hosts[1].received.is_empty());
}

#[test]
fn over_ipv6_no_search_goes_below_what_every_path_carries() {
    for (mtu_probing, first, then) in [
        (MtuProbing::Always, 1220, 1220),
        (MtuProbing::BlackHole, 1440, 1220),
    ] {
        let handshake = Handshake {
            flow: flow(true),
            local_isn: OURS,
            remote_isn: 1,
            mss: 1440,
            window_scale: None,
            local_window_scale: 0,
            sack: true,
            ecn: false,
            timestamps: None,
            timestamp_offset: 0,
            window: 60_000,
            round_trip: Some(ms(100)),
            fast_open: None,
        };
        let config = Config {
            mtu_probing,
            ..plain()
        };
        let mut peer = Peer::established(&config);
        let config = Config {
            mss: 1440,
            ..config
        };
        peer.engine = Connection::accept(&handshake, &config, peer.now);
        assert_eq!(peer.engine.info().send_mss, first);
        peer.write(10_000);
        for _ in 0..10 {
            peer.sent();
            peer.wait_for_timer();
        }
        assert_eq!(peer.engine.info().send_mss, then);
        assert_eq!(peer.engine.info().path_mtu, then + 60);
    }
}

/// An engine that probes from the beginning, and the data acknowledged so far.
fn probing(offload: u32) -> (Peer, u32) {
    let mut peer = Peer::established(&Config {
        mss: 4000,
        mtu_probing: MtuProbing::Always,
        offload,
        nodelay: true,
        ..plain()
    });
    assert_eq!(peer.engine.info().send_mss, 1024);
    // Few segments: none is a probe.
    let offset = 10 * 1024;
    peer.write(10 * 1024);
    assert!(peer.sent().iter().all(|frame| frame.payload.len() == 1024));
    peer.now += ms(50);
    peer.give(ACK, 0, offset, b"");
    (peer, offset)
}

#[test]
fn a_probe_is_one_segment_and_its_acknowledgment_raises_the_size() {
    for offload in [0, 60_000] {
        let (mut peer, offset) = probing(offload);
        peer.write(9 * 1024);
        let now = peer.now;
        let mut sent = Vec::new();
        peer.engine.output(now, &mut |outgoing| {
            sent.push((outgoing.payload_len(), outgoing.segment_size));
            true
        });
        // Half way between 1024 and 4000.
        assert_eq!(sent[0], (2512, 2512), "{sent:?}");
        assert!(sent[1..].iter().all(|segment| segment.1 == 1024));
        // One at a time.
        peer.write(9 * 1024);
        assert!(peer.sent().iter().all(|frame| frame.payload.len() <= 1024));
        peer.give(ACK, 0, offset + 2512, b"");
        assert_eq!(peer.engine.info().send_mss, 2512);
    }
}

#[test]
fn a_probe_waits_for_data_enough_and_window() {
    // Too little data.
    let (mut peer, _) = probing(0);
    peer.write(6000);
    assert!(peer.sent().iter().all(|frame| frame.payload.len() <= 1024));
    // Too little window.
    let (mut peer, offset) = probing(0);
    peer.window = 6000;
    peer.give(ACK, 0, offset, b"");
    peer.write(20_000);
    assert!(peer.sent().iter().all(|frame| frame.payload.len() <= 1024));
}

#[test]
fn a_lost_probe_is_no_congestion() {
    let (mut peer, offset) = probing(0);
    peer.write(9 * 1024);
    let sent = peer.sent();
    assert_eq!(sent[0].payload.len(), 2512);
    let before = peer.engine.info();
    peer.now += ms(50);
    let at = |offset: u32| OURS.wrapping_add(1 + offset);
    for followers in 1..=4 {
        let end = offset + 2512 + followers * 1024;
        peer.sack.push(at(offset + 2512), at(end));
        peer.give(ACK, 0, offset, b"");
    }
    let again = peer.brief();
    // In ordinary segments.
    assert_eq!(
        again[..3],
        [
            (ACK, offset, 0, 1024),
            (ACK, offset + 1024, 0, 1024),
            (ACK, offset + 2048, 0, 464)
        ]
    );
    let after = peer.engine.info();
    assert_eq!(after.slow_start_threshold, before.slow_start_threshold);
    assert!(after.congestion_window >= before.congestion_window);
    assert_eq!((after.fast_recoveries, after.send_mss), (0, 1024));
    // All of it arrives; the next probe is smaller.
    peer.now += ms(50);
    let end = offset + 9 * 1024;
    peer.give(ACK, 0, end, b"");
    peer.write(9 * 1024);
    assert_eq!(peer.sent()[0].payload.len(), 1024 + (2511 - 1024) / 2);
}

#[test]
fn a_probe_lost_with_others_shows_nothing() {
    let (mut peer, offset) = probing(0);
    peer.write(9 * 1024);
    assert_eq!(peer.sent()[0].payload.len(), 2512);
    // Nothing arrives: the timeout retransmits it in ordinary segments.
    while peer.engine.info().timeouts == 0 {
        peer.wait_for_timer();
        for frame in peer.sent() {
            assert!(frame.payload.len() <= 1024);
        }
    }
    peer.now += ms(50);
    let end = offset + 9 * 1024;
    peer.give(ACK, 0, end, b"");
    peer.sent();
    assert_eq!(peer.engine.info().send_mss, 1024);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// For any path that carries 512 bytes or more, whenever that changes, every byte
    /// arrives.
    #[test]
    fn any_path_delivers_all(
        paths in prop::collection::vec((460usize..1500, 0u64..8000), 1..4),
        length in 0usize..400_000, loss in 0u8..4, offload: bool, sack: bool,
        timestamps: bool, freezes: bool, seed: u64,
        probing in prop::sample::select(vec![MtuProbing::BlackHole, MtuProbing::Always]),
    ) {
        let config = Config {
            mtu_probing: probing,
            offload: if offload { 60_000 } else { 0 },
            sack,
            timestamps,
            ..Config::default()
        };
        let hosts = [
            Host::new(config, pattern(length, 0)),
            Host::new(config, pattern(length / 4, 1)),
        ];
        let mut link = Link::new(hosts, Weather { loss, reorder: 3, ..FAIR }, seed);
        link.freezes = freezes;
        for (payload, time) in paths {
            for weather in &mut link.weather {
                weather.payload_max = payload + if timestamps { 0 } else { 12 };
            }
            link.run_for(ms(time));
        }
        // Without timestamps the timeout stays backed off until data that was sent once
        // is acknowledged.
        link.run(60 * MINUTE);
        link.assert_delivered();
        prop_assert_eq!((link.hosts[0].error, link.hosts[1].error), (None, None));
    }
}
