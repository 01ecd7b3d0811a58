//! Explicit congestion notification (RFC 3168).

use std::time::Duration;

use proptest::prelude::*;
use tidewall_protocol::tcp::{Config, Ecn, State};
use tidewall_wire::tcp::Flags;

use crate::link::{FAIR, Frame, Host, Link, Weather, pattern};
use crate::peer::{ACK, MSS, OURS, Peer, SYN, THEIRS, both, ms, plain};

const ECE: Flags = Flags::ECE;
const CWR: Flags = Flags::CWR;
/// Codepoints.
const ECT: u8 = 2;
const CE: u8 = 3;

fn with(ecn: Ecn) -> Config {
    Config { ecn, ..plain() }
}

/// An established connection with ECN, past the initial quick acknowledgments.
fn using() -> Peer {
    Peer::past_quickack(&with(Ecn::Active))
}

fn has(frame: &Frame, flag: Flags) -> bool {
    frame.header.flags.contains(flag)
}

/// Whether an active open agrees on ECN after an answer.
fn answered(config: &Config, answer: Flags) -> bool {
    let mut peer = Peer::connecting(config);
    peer.sent();
    peer.give_raw(answer, THEIRS, OURS.wrapping_add(1), b"");
    assert_eq!(peer.state(), State::Established);
    peer.engine.info().ecn
}

#[test]
fn it_is_asked_for_only_when_active_and_only_an_echo_alone_agrees() {
    for (ecn, flags) in [
        (Ecn::Off, SYN),
        (Ecn::Passive, SYN),
        (Ecn::Active, SYN | ECE | CWR),
    ] {
        let mut peer = Peer::connecting(&with(ecn));
        let [syn] = &peer.sent()[..] else { panic!() };
        assert_eq!((syn.header.flags, syn.traffic_class), (flags, 0));
        let active = ecn == Ecn::Active;
        assert_eq!(answered(&with(ecn), both(SYN, ACK) | ECE), active);
        assert!(!answered(&with(ecn), both(SYN, ACK)));
        // A peer that reflects flags it does not know (RFC 3168 §6.1.1).
        assert!(!answered(&with(ecn), both(SYN, ACK) | ECE | CWR));
        assert!(!answered(&with(ecn), both(SYN, ACK) | CWR));
    }
}

#[test]
fn a_syn_that_asked_without_an_answer_asks_no_more() {
    let mut peer = Peer::connecting(&with(Ecn::Active));
    peer.sent();
    for _ in 0..3 {
        peer.wait_for_timer();
        let [syn] = &peer.sent()[..] else { panic!() };
        assert_eq!(syn.header.flags, SYN);
    }
    // The answer to the first may still come.
    peer.give_raw(both(SYN, ACK) | ECE, THEIRS, OURS.wrapping_add(1), b"");
    assert!(peer.engine.info().ecn);
}

#[test]
fn crossed_syns_agree_when_both_ask() {
    for (ours, theirs, agreed) in [
        (Ecn::Active, SYN | ECE | CWR, true),
        (Ecn::Active, SYN, false),
        (Ecn::Active, SYN | ECE, false),
        (Ecn::Passive, SYN | ECE | CWR, false),
    ] {
        let mut peer = Peer::connecting(&with(ours));
        peer.sent();
        peer.give_raw(theirs, THEIRS, 0, b"");
        let [answer] = &peer.sent()[..] else { panic!() };
        assert_eq!(has(answer, ECE), agreed);
        assert!(!has(answer, CWR));
        peer.give(ACK, 0, 0, b"");
        assert_eq!(peer.engine.info().ecn, agreed);
    }
    let hosts = [0, 1].map(|end| {
        let config = Config {
            ecn: Ecn::Active,
            ..Config::default()
        };
        Host::new(config, pattern(5000, end))
    });
    let mut link = Link::simultaneous(hosts, FAIR, 1);
    link.run(Duration::from_secs(10));
    link.assert_delivered();
    for end in &mut link.hosts {
        assert!(end.connection().info().ecn);
    }
}

#[test]
fn only_data_sent_for_the_first_time_may_be_marked() {
    let mut peer = using();
    peer.engine.set_traffic_class(0xff);
    peer.write(2 * MSS);
    let classes = |peer: &mut Peer| -> Vec<u8> {
        let sent = peer.sent();
        sent.iter().map(|frame| frame.traffic_class).collect()
    };
    assert_eq!(classes(&mut peer), [0xfc | ECT; 2]);
    // Again after a timeout, and an acknowledgment.
    peer.wait_for_timer();
    assert_eq!(classes(&mut peer), [0xfc]);
    peer.give(ACK, 0, 2 * MSS as u32, &[1; 2 * MSS]);
    assert_eq!(classes(&mut peer), [0xfc]);
    // A probe of a closed window, and the segments that follow when it opens.
    peer.window = 0;
    peer.give(ACK, 2 * MSS as u32, 2 * MSS as u32, b"");
    peer.write(10);
    assert_eq!(classes(&mut peer), []);
    peer.wait_for_timer();
    assert_eq!(classes(&mut peer), [0xfc]);
    peer.window = 1000;
    peer.give(ACK, 2 * MSS as u32, 2 * MSS as u32, b"");
    assert_eq!(classes(&mut peer), [0xfc | ECT]);
    // A FIN alone.
    let now = peer.now;
    peer.give(ACK, 2 * MSS as u32, 2 * MSS as u32 + 10, b"");
    peer.engine
        .shutdown(tidewall_protocol::tcp::Shutdown::Write, now)
        .unwrap();
    assert_eq!(classes(&mut peer), [0xfc]);

    let mut peer = Peer::past_quickack(&plain());
    peer.write(MSS);
    assert_eq!(classes(&mut peer), [0], "not agreed on");
}

#[test]
fn a_mark_is_echoed_until_the_sender_has_heard() {
    let mut peer = using();
    // The delayed acknowledgment becomes a quick one.
    peer.class = CE;
    peer.give(ACK, 0, 0, &[1; 100]);
    let [first] = &peer.sent()[..] else { panic!() };
    assert!(has(first, ECE));
    assert!(peer.engine.info().ecn_seen);
    // On every segment that acknowledges, also with data.
    for step in 1..5 {
        peer.class = ECT;
        peer.give(ACK, step * 100, (step - 1) * 10, &[1; 100]);
        peer.write(10);
        let sent = peer.sent();
        assert!(!sent.is_empty() && sent.iter().all(|frame| has(frame, ECE)));
    }
    // A pure acknowledgment with CWR would suffice (as Linux); this one has data, and is
    // answered at once.
    peer.class = ECT;
    peer.give(ACK | CWR, 500, 40, &[1; 100]);
    let [last] = &peer.sent()[..] else { panic!() };
    assert!(!has(last, ECE));
    // Marked and CWR at once: there is a new mark.
    peer.class = CE;
    peer.give(ACK | CWR, 600, 40, &[1; 100]);
    assert!(has(&peer.sent()[0], ECE));
    peer.give(ACK | CWR, 700, 40, b"");
    peer.give(ACK, 700, 40, &[1; 100]);
    peer.wait(ms(40));
    assert!(peer.sent().iter().all(|frame| !has(frame, ECE)));
}

#[test]
fn marks_beyond_a_hole_count_and_those_on_copies_do_not() {
    let mut peer = using();
    peer.class = ECT;
    peer.give(ACK, 0, 0, &[1; 100]);
    peer.class = CE;
    peer.give(ACK, 0, 0, &[1; 100]);
    assert!(peer.sent().iter().all(|frame| !has(frame, ECE)));
    peer.class = CE;
    peer.give(ACK, 200, 0, &[1; 100]);
    assert!(peer.sent().iter().all(|frame| has(frame, ECE)));
    // Without agreement, marks mean nothing.
    let mut peer = Peer::past_quickack(&plain());
    peer.class = CE;
    peer.give(ACK, 0, 0, &[1; 2 * MSS]);
    assert!(peer.sent().iter().all(|frame| !has(frame, ECE)));
    assert!(!peer.engine.info().ecn_seen);
}

#[test]
fn what_may_not_be_marked_is_acknowledged_at_once_once_marks_were_possible() {
    let mut peer = using();
    peer.class = ECT;
    peer.give(ACK, 0, 0, &[1; 100]);
    assert_eq!(peer.brief(), []);
    // Probably a retransmission: the sender waits for it.
    peer.give(ACK, 100, 0, &[1; 100]);
    assert_eq!(peer.brief(), [(ACK, 0, 200, 0)]);
}

#[test]
fn an_echo_reduces_the_window_once_a_round_trip_and_is_answered() {
    let mut peer = using();
    peer.write(80 * MSS);
    assert_eq!(peer.sent().len(), 10);
    let window = peer.engine.info().congestion_window;
    for count in 1..=5 {
        peer.give(ACK | ECE, 0, count * MSS as u32, b"");
    }
    let info = peer.engine.info();
    assert!(info.congestion_window <= window * 3 / 4, "{info:?}");
    assert!(info.congestion_window >= window / 2 - MSS as u32);
    assert_eq!(info.delivered_ce, 5);
    assert_eq!((info.fast_recoveries, info.retransmissions), (0, 0));
    let reduced = info.slow_start_threshold;
    let mut reported = 0;
    for count in 6..=10 {
        peer.give(ACK | ECE, 0, count * MSS as u32, b"");
        for frame in peer.sent() {
            reported += usize::from(has(&frame, CWR));
            assert_eq!(frame.traffic_class, ECT);
        }
    }
    assert_eq!(reported, 1, "only the first new data has CWR");
    assert_eq!(peer.engine.info().slow_start_threshold, reduced);
    // Data sent since belongs to another window.
    peer.give(ACK | ECE, 0, 11 * MSS as u32, b"");
    assert!(peer.engine.info().slow_start_threshold < reduced);
    // Without data in flight an echo means nothing.
    let mut peer = using();
    let threshold = peer.engine.info().slow_start_threshold;
    peer.give(ACK | ECE, 0, 0, b"");
    assert_eq!(peer.engine.info().slow_start_threshold, threshold);
    // Without agreement it means nothing either.
    let mut peer = Peer::past_quickack(&plain());
    peer.write(10 * MSS);
    peer.sent();
    peer.give(ACK | ECE, 0, MSS as u32, b"");
    assert_eq!(peer.engine.info().slow_start_threshold, threshold);
    assert_eq!(peer.engine.info().delivered_ce, 0);
}

#[test]
fn what_says_that_the_window_was_reduced_is_one_segment() {
    let mut peer = Peer::past_quickack(&Config {
        offload: 60_000,
        ..with(Ecn::Active)
    });
    peer.write(80 * MSS);
    peer.sent();
    peer.give(ACK | ECE, 0, 9 * MSS as u32, b"");
    let mut bursts = Vec::new();
    let now = peer.now;
    peer.engine.output(now, &mut |outgoing| {
        bursts.push((outgoing.payload_len(), outgoing.header.flags.contains(CWR)));
        true
    });
    assert_eq!(bursts[0], (MSS, true));
    assert!(bursts[1].0 > MSS && !bursts[1].1, "{bursts:?}");
}

#[test]
fn a_loss_is_reported_like_a_mark_and_marks_of_its_window_do_not_count_again() {
    let mut peer = using();
    peer.write(80 * MSS);
    peer.sent();
    peer.sack.push(
        OURS.wrapping_add(1 + MSS as u32),
        OURS.wrapping_add(1 + 6 * MSS as u32),
    );
    peer.give(ACK | ECE, 0, 0, b"");
    let reduced = peer.engine.info().slow_start_threshold;
    let sent = peer.sent();
    let again: Vec<_> = sent
        .iter()
        .filter(|frame| frame.header.sequence == OURS.wrapping_add(1))
        .collect();
    assert!(again.len() == 1 && again[0].traffic_class == 0 && !has(again[0], CWR));
    for count in 6..=10 {
        peer.give(ACK | ECE, 0, count * MSS as u32, b"");
        peer.sent();
    }
    assert_eq!(peer.engine.info().slow_start_threshold, reduced);
}

#[test]
fn a_marked_transfer_is_slowed_and_loses_nothing() {
    let config = Config {
        ecn: Ecn::Active,
        ..Config::default()
    };
    let hosts = [
        Host::new(config, pattern(2_000_000, 0)),
        Host::new(Config::default(), Vec::new()),
    ];
    let mut link = Link::new(hosts, FAIR, 5);
    link.marks = [2, 2];
    link.trace = Some(Vec::new());
    link.run(Duration::from_secs(600));
    link.assert_delivered();
    let (sender, receiver) = (
        link.hosts[0].connection().info(),
        link.hosts[1].connection().info(),
    );
    assert!(sender.ecn && receiver.ecn && receiver.ecn_seen && !sender.ecn_seen);
    assert_eq!((sender.retransmissions, sender.timeouts), (0, 0));
    assert!(sender.delivered_ce > 10, "{sender:?}");
    assert!(sender.slow_start_threshold < 100_000, "{sender:?}");
    let trace = link.trace.take().unwrap();
    let reported = trace
        .iter()
        .filter(|(_, from, frame)| *from == 0 && frame.header.flags.contains(CWR));
    assert!(reported.count() > 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Marks, losses, and freezing in between: every byte arrives, and the two ends agree
    /// whatever they request.
    #[test]
    fn marks_on_a_hostile_link_change_nothing(
        ecn in prop::sample::select(vec![
            [Ecn::Active, Ecn::Active], [Ecn::Active, Ecn::Passive],
            [Ecn::Passive, Ecn::Active], [Ecn::Active, Ecn::Off],
        ]),
        lengths in [0usize..100_000, 0usize..100_000], marks in [0u8..30, 0u8..30],
        loss in 0u8..8, simultaneous: bool, freezes: bool, seed: u64,
    ) {
        let hosts = [0, 1].map(|at| {
            let config = Config { ecn: ecn[at], offload: 40_000 * at as u32, ..Config::default() };
            Host::new(config, pattern(lengths[at], at as u8))
        });
        let weather = Weather { loss, reorder: 5, ..FAIR };
        let mut link = if simultaneous {
            Link::simultaneous(hosts, weather, seed)
        } else {
            Link::new(hosts, weather, seed)
        };
        link.marks = marks;
        link.freezes = freezes;
        link.run(Duration::from_secs(3600));
        link.assert_delivered();
        let agreed = [0, 1].map(|at| link.hosts[at].connection().info().ecn);
        if !simultaneous {
            prop_assert_eq!(agreed[0], agreed[1]);
        }
    }
}
