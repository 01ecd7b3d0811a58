//! Two engines deliver exactly the bytes sent, or report an error, and never
//! hang.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::tcp::{Config, Ecn, MtuProbing, State};

use crate::link::{FAIR, Host, Link, Weather, pattern};

const HOUR: Duration = Duration::from_secs(3600);

fn hosts(config: Config, lengths: [usize; 2]) -> [Host; 2] {
    [0, 1].map(|end| Host::new(config, pattern(lengths[end], end as u8)))
}

#[test]
fn both_ends_get_what_the_other_sent() {
    for lengths in [[0, 0], [1, 0], [100, 20_000], [500_000, 3_000_000]] {
        let mut link = Link::new(hosts(Config::default(), lengths), FAIR, 1);
        link.run(HOUR);
        link.assert_delivered();
        for end in &mut link.hosts {
            assert_eq!(end.error, None);
            let info = end.connection().info();
            assert_eq!(info.retransmissions, 0, "{info:?}");
            assert_eq!(info.segments_refused, 0, "{info:?}");
        }
        link.run_for(Duration::from_secs(100));
        for end in &mut link.hosts {
            assert_eq!(end.connection().state(), State::Closed);
        }
    }
}

/// Configurations that take different paths through the engine.
fn configs() -> impl Strategy<Value = Config> {
    (
        any::<[bool; 4]>(),
        prop::sample::select(vec![Ecn::Off, Ecn::Passive, Ecn::Active]),
        prop::sample::select(vec![
            MtuProbing::Off,
            MtuProbing::BlackHole,
            MtuProbing::Always,
        ]),
        prop::sample::select(vec![88u16, 536, 1460, 8960]),
        prop::sample::select(vec![2048u32, 10_000, 65_536, 131_072]),
        prop::sample::select(vec![0u32, 65_000]),
    )
        .prop_map(
            |(
                [timestamps, sack, window_scaling, nodelay],
                ecn,
                mtu_probing,
                mss,
                buffer,
                offload,
            )| Config {
                ecn,
                mtu_probing,
                mss,
                timestamps,
                sack,
                window_scaling,
                nodelay,
                receive_buffer: buffer,
                receive_buffer_max: if window_scaling { 1 << 20 } else { buffer },
                send_buffer: buffer,
                offload,
                ..Config::default()
            },
        )
}

fn weathers() -> impl Strategy<Value = Weather> {
    (0u8..25, 0u8..20, 0u8..40, 0u64..200, 0u64..300).prop_map(
        |(loss, duplication, reorder, delay, jitter)| Weather {
            loss,
            duplication,
            reorder,
            delay: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter),
            payload_max: usize::MAX,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// The guarantee of the engine: over any link, between any two configurations, at any
    /// reading speed.
    #[test]
    fn a_hostile_link_changes_nothing(
        configs in [configs(), configs()], weather in [weathers(), weathers()],
        lengths in [0usize..60_000, 0usize..60_000],
        reading in [(1usize..5000, 0u64..50), (1usize..5000, 0u64..50)],
        seed: u64, simultaneous in prop::bool::weighted(0.2),
        freezes in prop::bool::weighted(0.3),
    ) {
        let hosts = [0, 1].map(|at| {
            let mut end = Host::new(configs[at], pattern(lengths[at], at as u8));
            (end.read_at_once, end.read_pause) = (reading[at].0, Duration::from_millis(reading[at].1));
            end
        });
        let mut link = if simultaneous {
            Link::simultaneous(hosts, weather[0], seed)
        } else {
            Link::new(hosts, weather[0], seed)
        };
        link.weather = weather;
        link.marks = [weather[0].loss, weather[1].duplication];
        link.freezes = freezes;
        link.run(10 * HOUR);
        link.assert_delivered();
    }

    /// A link that only loses a little never makes either end give up.
    #[test]
    fn a_fair_link_delivers_all(
        configs in [configs(), configs()], lengths in [0usize..200_000, 0usize..200_000],
        seed: u64, loss in 0u8..3,
    ) {
        let hosts = [0, 1].map(|at| Host::new(configs[at], pattern(lengths[at], at as u8)));
        let mut link = Link::new(hosts, Weather { loss, reorder: 5, ..FAIR }, seed);
        link.run(HOUR);
        link.assert_delivered();
        prop_assert_eq!((link.hosts[0].error, link.hosts[1].error), (None, None));
    }
}

#[test]
fn losses_are_repaired_without_a_timeout() {
    // One segment of each window is lost: SACK and NewReno both fill the hole in
    // a round trip.
    for sack in [true, false] {
        let config = Config {
            sack,
            ..Config::default()
        };
        let mut link = Link::new(hosts(config, [2_000_000, 0]), FAIR, 7);
        link.weather[0].loss = 1;
        link.run(HOUR);
        link.assert_delivered();
        let info = link.hosts[0].connection().info();
        assert!(info.fast_recoveries > 2, "{info:?}");
        assert!(info.timeouts <= info.fast_recoveries / 2, "{info:?}");
        assert!(
            info.retransmissions < 100,
            "1 % of 1,400 segments were lost: {info:?}"
        );
    }
}

#[test]
fn a_lower_path_mtu_is_survived_with_and_without_being_reported() {
    use tidewall_protocol::errno;
    use tidewall_protocol::icmp::{FlowError, MTU_MIN_V4};
    let mut link = Link::new(hosts(Config::default(), [300_000, 0]), FAIR, 3);
    link.weather[0].payload_max = 1000;
    link.run_for(Duration::from_secs(2));
    assert!(link.hosts[1].received.is_empty());
    let end = &mut link.hosts[0];
    let flow = *end.connection().flow();
    let sequence = end.connection().info().unacknowledged;
    assert!(sequence > 0);
    let error = FlowError {
        local: flow.local,
        remote: flow.remote,
        errno: errno::EMSGSIZE,
        hard: true,
        mtu: Some(1052),
        offender: "203.0.113.1".parse().unwrap(),
        kind: 3,
        code: 4,
        sequence: None,
    };
    // A router that quotes nothing in flight is a forger.
    for sequence in [None, Some(0), Some(u32::MAX / 2)] {
        let error = FlowError {
            sequence,
            mtu: Some(MTU_MIN_V4),
            ..error
        };
        end.connection().icmp_error(&error, link.now);
    }
    assert_eq!(end.connection().info().send_mss, 1448);
    let first = link.first_in_flight(0);
    let error = FlowError {
        sequence: Some(first),
        ..error
    };
    let now = link.now;
    link.hosts[0].connection().icmp_error(&error, now);
    assert_eq!(link.hosts[0].connection().info().send_mss, 1000);
    link.run(HOUR);
    link.assert_delivered();
    assert_eq!(link.hosts[0].error, None);
}

#[test]
fn a_batch_is_acknowledged_once() {
    let mut link = Link::new(hosts(Config::default(), [0, 1_000_000]), FAIR, 5);
    link.run(HOUR);
    let sent = link.hosts[0].connection().info().segments_sent;
    let received = link.hosts[0].connection().info().segments_received;
    assert!(
        sent * 4 < received,
        "{sent} acknowledgments of {received} segments that came in bursts"
    );
}

#[test]
fn the_receive_buffer_grows_while_it_is_read_fast() {
    let slow = Weather {
        delay: Duration::from_millis(50),
        ..FAIR
    };
    let mut link = Link::new(hosts(Config::default(), [20_000_000, 0]), slow, 5);
    link.run(HOUR);
    link.assert_delivered();
    let info = link.hosts[1].connection().info();
    assert!(info.receive_buffer > 500_000, "{info:?}");
    let time = link.now - link.began;
    assert!(
        time < Duration::from_secs(6),
        "20 MB at 100 ms took {time:?}, {info:?}"
    );
}
