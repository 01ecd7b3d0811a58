//! Fast Open between two engines, over links that lose and reorder.

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::tcp::{
    Config, FastOpen, FastOpenFailure, FastOpenKeys, FastOpenPeer, FastOpenServer, State,
};

use crate::link::{FAIR, Host, Link, Weather, flow, pattern, reversed};
use crate::peer::ms;

const HOUR: Duration = Duration::from_secs(3600);
const KEY: [u8; 16] = *b"the server's key";
const OLD_KEY: [u8; 16] = *b"the key till now";

fn server(backup: Option<[u8; 16]>) -> Option<FastOpenServer> {
    Some(FastOpenServer {
        queue: 8,
        keys: FastOpenKeys {
            primary: KEY,
            backup,
        },
        without_cookie: false,
    })
}

/// A client with the cookie made by a key.
fn known(key: [u8; 16]) -> FastOpenPeer {
    let keys = FastOpenKeys {
        primary: key,
        backup: None,
    };
    FastOpenPeer {
        cookie: keys.cookie(&reversed(flow(false)), false),
        mss: Some(1460),
        ..FastOpenPeer::default()
    }
}

fn hosts(lengths: [usize; 2]) -> [Host; 2] {
    [0, 1].map(|end| Host::new(Config::default(), pattern(lengths[end], end as u8)))
}

/// Runs until both ends have everything. Returns when end 0 had its answer, since the
/// beginning.
fn run(link: &mut Link) -> Duration {
    let wanted = link.hosts[1].to_send.len();
    while link.hosts[0].received.len() < wanted {
        assert!(
            link.step() && link.now - link.began < HOUR,
            "{}",
            link.describe()
        );
        link.flush();
    }
    let answered = link.now - link.began;
    link.run(HOUR);
    link.assert_delivered();
    for end in &link.hosts {
        assert_eq!(end.error, None);
    }
    answered
}

fn cookie_now(link: &mut Link) -> Option<FastOpen> {
    let outcome = link.hosts[0].connection().take_fast_open_outcome();
    outcome.expect("the SYN was answered").cookie
}

#[test]
fn an_answer_takes_one_round_trip() {
    let mut link = Link::fast(hosts([1000, 5000]), FAIR, 1, &known(KEY), server(None));
    assert_eq!(run(&mut link), ms(20));
    for end in &mut link.hosts {
        let info = end.connection().info();
        assert!(info.syn_data);
        assert_eq!(info.retransmissions, 0);
    }
    assert_eq!(cookie_now(&mut link), None);
    // Without Fast Open, it is two.
    let mut link = Link::fast(hosts([1000, 5000]), FAIR, 1, &known(KEY), None);
    assert_eq!(run(&mut link), ms(40));
    let info = link.hosts[0].connection().info();
    assert_eq!(info.fast_open_failure, FastOpenFailure::DataNotAcknowledged);
}

#[test]
fn what_does_not_fit_into_the_syn_follows() {
    let lengths = [200_000, 100_000];
    let mut link = Link::fast(hosts(lengths), FAIR, 2, &known(KEY), server(None));
    run(&mut link);
    for (end, length) in link.hosts.iter_mut().zip(lengths) {
        let info = end.connection().info();
        // The SYN, and at least every full segment after it.
        assert!(info.delivered as usize > length / 1460, "{info:?}");
        assert!(info.syn_data);
        assert_eq!(
            (info.retransmissions, info.bytes_acknowledged),
            (0, length as u64)
        );
    }
}

#[test]
fn a_lost_syn_or_answer_costs_its_timeout() {
    for (lost, opened) in [
        ([1, 0], false),
        ([0, 1], true),
        ([1, 1], false),
        ([2, 2], false),
    ] {
        let mut link = Link::fast(hosts([1000, 3000]), FAIR, 3, &known(KEY), server(None));
        link.lost_syns = lost;
        let answered = run(&mut link);
        assert!(
            answered >= Duration::from_secs(1) && answered < Duration::from_secs(16),
            "{lost:?}: {answered:?}"
        );
        assert_eq!(
            link.hosts[1].connection().info().syn_data,
            opened,
            "{lost:?}"
        );
        let outcome = link.hosts[0].connection().take_fast_open_outcome().unwrap();
        // A server that accepted the data reports it, whichever answer arrives.
        assert_eq!(outcome.syn_lost, !opened, "{lost:?}");
    }
}

#[test]
fn a_stale_cookie_costs_what_none_would_and_brings_a_new_one() {
    let mut link = Link::fast(hosts([1000, 3000]), FAIR, 4, &known(OLD_KEY), server(None));
    assert_eq!(run(&mut link), ms(40));
    assert!(!link.hosts[1].connection().info().syn_data);
    let fresh = cookie_now(&mut link);
    assert_eq!(fresh, known(KEY).cookie);
    // The next connection shows that.
    let peer = FastOpenPeer {
        cookie: fresh,
        ..known(OLD_KEY)
    };
    let mut link = Link::fast(hosts([1000, 3000]), FAIR, 4, &peer, server(None));
    assert_eq!(run(&mut link), ms(20));
}

#[test]
fn while_a_key_goes_out_of_use_its_cookies_are_taken_and_replaced() {
    let rotated = server(Some(OLD_KEY));
    let mut link = Link::fast(hosts([1000, 3000]), FAIR, 5, &known(OLD_KEY), rotated);
    assert_eq!(run(&mut link), ms(20));
    assert!(link.hosts[1].connection().info().syn_data);
    assert_eq!(cookie_now(&mut link), known(KEY).cookie);
}

#[test]
fn data_that_overtakes_the_syn_is_not_lost_for_good() {
    // A later answer overtakes the SYN-ACK.
    let weather = Weather {
        reorder: 60,
        jitter: ms(50),
        ..FAIR
    };
    for seed in 0..50 {
        let mut link = Link::fast(
            hosts([3000, 8000]),
            weather,
            seed,
            &known(KEY),
            server(None),
        );
        run(&mut link);
    }
}

#[test]
fn a_path_too_narrow_for_the_syn_gets_an_ordinary_one() {
    let narrow = Weather {
        payload_max: 1000,
        ..FAIR
    };
    let config = Config {
        mss: 1000,
        ..Config::default()
    };
    let server_end = Host::new(config, pattern(3000, 1));
    let client = Host::new(Config::default(), pattern(1400, 0));
    let mut link = Link::fast([client, server_end], narrow, 6, &known(KEY), server(None));
    run(&mut link);
    assert!(!link.hosts[1].connection().info().syn_data);
}

/// A valid cookie, one of an outgoing key, a stale one, none.
fn peers() -> impl Strategy<Value = FastOpenPeer> {
    prop::sample::select(vec![
        known(KEY),
        known(OLD_KEY),
        known([9; 16]),
        FastOpenPeer::default(),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn whatever_the_link_does_everything_arrives(
        (loss, duplication, reorder) in (0u8..25, 0u8..20, 0u8..50),
        lost in any::<[bool; 2]>(),
        lengths in (0usize..6000, 0usize..20_000),
        peer in peers(),
        (freezes, listens) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let weather = Weather { loss, duplication, reorder, ..FAIR };
        let serves = if listens { server(Some(OLD_KEY)) } else { None };
        let mut link = Link::fast(hosts([lengths.0, lengths.1]), weather, seed, &peer, serves);
        link.lost_syns = lost.map(u32::from);
        link.freezes = freezes;
        link.run(HOUR * 10);
        link.assert_delivered();
        for end in &mut link.hosts {
            if end.error.is_none() {
                prop_assert!(!matches!(
                    end.connection().state(),
                    State::SynSent | State::SynReceived
                ));
            }
        }
    }
}
