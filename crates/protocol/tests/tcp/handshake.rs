//! Opening (RFC 9293 §3.5).

use tidewall_protocol::errno;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{Config, Errno, Shutdown, State, Timestamps};
use tidewall_wire::tcp::{Flags, Options};

use crate::link::{FAIR, Host, Link, flow, pattern};
use crate::peer::{ACK, OURS, Peer, RST, SYN, THEIRS, both, ms, plain};
use std::time::Duration;

#[test]
fn the_syn_offers_what_the_configuration_says() {
    let mut peer = Peer::connecting(&Config::default());
    assert_eq!(peer.engine.state(), State::SynSent);
    assert_eq!(peer.engine.write(b"early"), Err(Errno::AGAIN));
    assert_eq!(peer.engine.read(&mut [0; 10]), Err(Errno::AGAIN));
    assert!(!peer.engine.readable() && !peer.engine.writable());
    let [syn] = &peer.sent()[..] else { panic!() };
    assert_eq!((syn.header.flags, syn.header.sequence), (SYN, OURS));
    assert_eq!(syn.header.window, 65_535);
    assert_eq!(
        syn.header.options,
        Options {
            maximum_segment_size: Some(1460),
            // The scale that expresses 6 MiB, as on Linux.
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 1_000_000,
                echo: 0
            }),
            ..Options::default()
        }
    );
}

#[test]
fn a_syn_is_sent_again_and_then_given_up() {
    let mut peer = Peer::connecting(&plain());
    assert_eq!(peer.sent().len(), 1);
    let mut waited = Vec::new();
    while peer.state() == State::SynSent {
        waited.push(peer.wait_for_timer().as_secs());
        for again in peer.sent() {
            assert_eq!((again.header.flags, again.header.sequence), (SYN, OURS));
        }
    }
    // Linux's schedule: 127 seconds in all.
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64]);
    assert_eq!(peer.engine.take_error(), Some(Errno::TIMEDOUT));
    assert_eq!(peer.engine.take_error(), None);
    assert_eq!(peer.engine.next_timeout(), None);
}

#[test]
fn a_refusal_is_reported_once() {
    let mut peer = Peer::connecting(&plain());
    // Not before the SYN has left, and not for another number.
    peer.give_raw(both(RST, ACK), 0, OURS.wrapping_add(1), b"");
    assert_eq!(peer.sent().len(), 1);
    peer.give_raw(both(RST, ACK), 0, OURS.wrapping_add(2), b"");
    peer.give_raw(RST, 0, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::SynSent);
    peer.give_raw(both(RST, ACK), 0, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::Closed);
    assert!(peer.engine.readable() && peer.engine.writable());
    assert_eq!(peer.engine.read(&mut [0; 9]), Err(Errno::CONNREFUSED));
    assert_eq!(peer.engine.read(&mut [0; 9]), Ok(0));
    assert_eq!(peer.engine.write(b"x"), Err(Errno::PIPE));
    assert_eq!(peer.sent().len(), 0);
}

#[test]
fn an_old_connection_of_the_peer_is_reset() {
    // RFC 9293 §3.5.1, figure 9: the peer is still in an old connection.
    let mut peer = Peer::connecting(&plain());
    peer.sent();
    peer.give_raw(ACK, 300, 100, b"");
    let [reset] = &peer.sent()[..] else { panic!() };
    assert_eq!((reset.header.flags, reset.header.sequence), (RST, 100));
    assert_eq!(peer.state(), State::SynSent);
}

#[test]
fn a_syn_ack_completes_the_handshake() {
    let mut peer = Peer::connecting(&plain());
    peer.sent();
    peer.now += ms(30);
    peer.give_raw(both(SYN, ACK), THEIRS, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::Established);
    assert_eq!(peer.engine.info().round_trip, ms(30));
    // The acknowledgment travels with data if there is some.
    peer.write(10);
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 0, 0, 10)]);
    // No option was answered, so none is used.
    let info = peer.engine.info();
    assert!(!info.timestamps && !info.sack);
    assert_eq!((info.send_mss, info.send_window_scale), (536, 0));
}

#[test]
fn unreachable_ends_an_attempt_but_no_connection() {
    let error = FlowError {
        local: flow(false).local,
        remote: flow(false).remote,
        errno: errno::EHOSTUNREACH,
        hard: false,
        mtu: None,
        offender: "203.0.113.1".parse().unwrap(),
        kind: 3,
        code: 1,
        sequence: Some(OURS),
    };
    let mut peer = Peer::connecting(&plain());
    peer.sent();
    let forged = FlowError {
        sequence: Some(OURS - 1),
        ..error
    };
    let now = peer.now;
    peer.engine.icmp_error(&forged, now);
    assert_eq!(peer.state(), State::SynSent);
    peer.engine.icmp_error(&error, now);
    assert_eq!(peer.engine.take_error(), Some(Errno(errno::EHOSTUNREACH)));

    let mut peer = Peer::established(&plain());
    peer.write(10);
    peer.sent();
    let sequence = Some(OURS.wrapping_add(1));
    for errno in [errno::EHOSTUNREACH, errno::ECONNREFUSED] {
        let now = peer.now;
        peer.engine.icmp_error(
            &FlowError {
                errno,
                hard: true,
                sequence,
                ..error
            },
            now,
        );
        assert_eq!(peer.state(), State::Established);
    }
    // The error reported after a timeout (as Linux).
    while peer.state() == State::Established {
        peer.wait_for_timer();
        peer.sent();
    }
    assert_eq!(peer.engine.take_error(), Some(Errno(errno::ECONNREFUSED)));
}

#[test]
fn both_may_open_at_once() {
    let hosts = [0, 1].map(|end| Host::new(Config::default(), pattern(5000, end)));
    let mut link = Link::simultaneous(hosts, FAIR, 1);
    link.run(Duration::from_secs(10));
    link.assert_delivered();
    assert_eq!(link.hosts[0].error, None);
    let info = link.hosts[0].connection().info();
    assert!(info.sack && info.timestamps);
    assert_eq!((info.send_window_scale, info.receive_window_scale), (7, 7));
}

#[test]
fn a_simultaneous_open_can_be_closed_or_refused_half_way() {
    let mut peer = Peer::connecting(&plain());
    peer.sent();
    peer.give_raw(SYN, THEIRS, 0, b"");
    assert_eq!(peer.state(), State::SynReceived);
    assert_eq!(
        peer.brief(),
        [(both(SYN, ACK), u32::MAX, 0, 0)],
        "the SYN again, with an acknowledgment"
    );
    let now = peer.now;
    peer.engine.shutdown(Shutdown::Write, now).unwrap();
    peer.give(ACK, 0, 0, b"");
    assert_eq!(peer.state(), State::FinWait1);
    assert_eq!(peer.brief(), [(both(ACK, Flags::FIN), 0, 0, 0)]);

    let mut peer = Peer::connecting(&plain());
    peer.sent();
    peer.give_raw(SYN, THEIRS, 0, b"");
    peer.sent();
    // An acknowledgment of data never sent.
    peer.give(ACK, 0, 5, b"");
    let [reset] = &peer.sent()[..] else { panic!() };
    assert_eq!(reset.header.flags, RST);
    peer.give(RST, 0, 0, b"");
    assert_eq!(peer.engine.take_error(), Some(Errno::CONNREFUSED));
}

#[test]
fn nothing_acknowledges_a_syn_that_has_not_left() {
    let mut peer = Peer::connecting(&plain());
    peer.give_raw(SYN, THEIRS, 0, b"");
    assert_eq!(peer.state(), State::SynReceived);
    for acknowledgment in [OURS, OURS.wrapping_add(1)] {
        peer.give_raw(ACK, THEIRS.wrapping_add(1), acknowledgment, b"");
        assert_eq!(peer.state(), State::SynReceived);
    }
    assert!(peer.brief().contains(&(both(SYN, ACK), u32::MAX, 0, 0)));
    peer.give(ACK, 0, 0, b"");
    assert_eq!(peer.state(), State::Established);
}
