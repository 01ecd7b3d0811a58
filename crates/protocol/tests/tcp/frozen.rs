//! Freezing to bytes and thawing elsewhere.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Connection, Shutdown, State, ThawError};
use tidewall_wire::tcp::Flags;

use crate::link::{FAIR, Host, Link, Weather, pattern};
use crate::peer::{ACK, MSS, OURS, Peer, both, plain};

#[test]
fn a_transfer_goes_on_where_it_was() {
    // Handed over after about every tenth event, amid losses.
    let hosts = [
        Host::new(Config::default(), pattern(300_000, 1)),
        Host::new(Config::default(), pattern(300_000, 2)),
    ];
    let weather = Weather {
        loss: 3,
        reorder: 10,
        ..FAIR
    };
    let mut link = Link::new(hosts, weather, 11);
    link.freezes = true;
    link.run(Duration::from_secs(600));
    link.assert_delivered();
    assert_eq!((link.hosts[0].error, link.hosts[1].error), (None, None));
}

#[test]
fn a_clock_that_counts_from_elsewhere_changes_nothing() {
    let mut peer = Peer::past_quickack(&Config {
        timestamps: true,
        ..plain()
    });
    peer.write(3 * MSS);
    peer.give(ACK, 0, 0, b"unread");
    peer.give(ACK, 2000, 0, b"beyond");
    peer.give(ACK, 4000, 0, b"another");
    let before = peer.sent().last().unwrap().header;
    let timer = peer.engine.next_timeout().unwrap() - peer.now;
    let info = peer.engine.info();
    let frozen = peer.engine.freeze(peer.now);
    for now in [
        Duration::ZERO,
        Duration::from_secs(5),
        Duration::from_secs(90_000_000),
    ] {
        let thawed = Connection::thaw(&frozen, now).unwrap();
        assert_eq!(thawed.info(), info);
        assert_eq!(thawed.next_timeout(), Some(now + timer));
        let data: usize = thawed.received().concat().len();
        assert_eq!(data, 6);
        // A duplicate asks for the same acknowledgment, with the same clock.
        let mut other = Peer::past_quickack(&plain());
        (other.engine, other.now) = (thawed, now);
        other.timestamps = Some(tidewall_wire::tcp::Timestamps {
            value: 501,
            echo: 0,
        });
        other.give(ACK, 0, 0, b"unread");
        let after = other.sent().pop().unwrap().header;
        assert_eq!(
            after.options.timestamps.unwrap().value,
            before.options.timestamps.unwrap().value
        );
        // Beside the duplicate itself (RFC 2883).
        assert_eq!(
            after.options.sack.as_slice()[1..],
            *before.options.sack.as_slice()
        );
    }
}

#[test]
fn every_state_can_be_frozen() {
    let freeze = |peer: &Peer, state| {
        assert_eq!(peer.state(), state);
        let frozen = peer.engine.freeze(peer.now);
        let thawed = Connection::thaw(&frozen, peer.now).unwrap();
        assert_eq!(thawed.state(), state);
        assert_eq!(thawed.freeze(peer.now), frozen);
        assert_eq!(thawed.wants_output(), peer.engine.wants_output());
    };
    let fin = both(ACK, Flags::FIN);
    let shut = |peer: &mut Peer| {
        let now = peer.now;
        peer.engine.shutdown(Shutdown::Write, now).unwrap();
    };
    let mut peer = Peer::connecting(&plain());
    freeze(&peer, State::SynSent);
    peer.sent();
    freeze(&peer, State::SynSent);
    peer.give_raw(Flags::SYN, 77, 0, b"");
    freeze(&peer, State::SynReceived);
    let mut peer = Peer::established(&plain());
    freeze(&peer, State::Established);
    peer.write(100);
    shut(&mut peer);
    freeze(&peer, State::FinWait1);
    peer.sent();
    freeze(&peer, State::FinWait1);
    peer.give(ACK, 0, 101, b"");
    freeze(&peer, State::FinWait2);
    peer.give(fin, 0, 101, b"last");
    freeze(&peer, State::TimeWait);
    peer.sent();
    freeze(&peer, State::TimeWait);
    let mut peer = Peer::established(&plain());
    peer.give(fin, 0, 0, b"last");
    freeze(&peer, State::CloseWait);
    peer.write(10);
    shut(&mut peer);
    freeze(&peer, State::LastAck);
    peer.sent();
    peer.give(ACK, 5, 11, b"");
    freeze(&peer, State::Closed);
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(fin, 0, 0, b"");
    freeze(&peer, State::Closing);
    peer.engine.abort();
    freeze(&peer, State::Closed);
    assert_eq!(peer.sent()[0].header.sequence, OURS.wrapping_add(2));
}

#[test]
fn damaged_bytes_are_refused() {
    let mut peer = Peer::established(&plain());
    peer.write(100);
    let now = peer.now;
    let frozen = peer.engine.freeze(now);
    for at in 0..frozen.len() {
        let mut damaged = frozen.clone();
        damaged[at] ^= 0x40;
        let expected = if at < 4 {
            ThawError::Version
        } else {
            ThawError::Damaged
        };
        assert_eq!(
            Connection::thaw(&damaged, now).err(),
            Some(expected),
            "{at}"
        );
        let cut = Connection::thaw(&frozen[..at], now).err();
        assert_eq!(cut, Some(expected), "{at}");
    }
    assert_eq!(
        Connection::thaw(&[frozen, vec![0]].concat(), now).err(),
        Some(ThawError::Damaged)
    );
}
