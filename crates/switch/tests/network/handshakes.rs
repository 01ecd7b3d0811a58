//! Beginnings: who is asked, who is answered, and what a flood leaves behind.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall_switch::Phase;
use tidewall_switch::modules::Lost;
use tidewall_wire::tcp::{Flags, Options};

use super::bed::{Bed, config, delayed, round_robin};
use super::end::State;
use super::raw::{Raw, data, syn_options};
use super::transfer::{check_all, frame};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn members_answer_before_the_peer_is_answered() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 2);
    let syns = raw.syn(syn_options());
    assert_eq!(syns.len(), 2);
    for syn in &syns {
        assert_eq!(
            syn.header.options.maximum_segment_size,
            Some(900),
            "the peer's, which is the smaller"
        );
        assert!(!syn.header.options.sack_permitted && syn.header.options.acp().is_some());
    }
    assert_eq!(raw.answer_one(&syns[0], syn_options()), []);
    let small = Options {
        maximum_segment_size: Some(600),
        ..syn_options()
    };
    let answer = raw.answer_one(&syns[1], small);
    let [answer] = &answer[..] else {
        panic!("{answer:?}");
    };
    assert_eq!(answer.header.flags, Flags::SYN | Flags::ACK);
    assert_eq!(
        answer.header.options.maximum_segment_size,
        Some(600),
        "the smallest"
    );
    assert_eq!(answer.header.options.acp(), Some(1));
    assert_eq!(
        answer.header.options.window_scale, None,
        "the peer offered none"
    );
    assert_eq!(answer.header.window, super::raw::WINDOW);
    // Repeated, it is answered again; and members hear nothing until the peer has.
    let again = raw.syn(syn_options());
    assert_eq!(again.len(), 1);
    let opened = raw.peer(1, 1, Flags::ACK, &data(b"first"));
    assert_eq!(raw.to_member(0, &opened).len(), 1, "{opened:?}");
    assert_eq!(raw.to_member(1, &opened).len(), 1);
}

#[test]
fn a_repeated_syn_asks_those_again_who_have_not_answered() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 3);
    let syns = raw.syn(syn_options());
    raw.answer_one(&syns[1], syn_options());
    let again = raw.syn(syn_options());
    let asked: Vec<_> = again.iter().map(|emission| emission.flow).collect();
    assert_eq!(asked, [syns[0].flow, syns[2].flow]);
    // So does a timer.
    let again = raw.poll(raw.now + 2 * SECOND);
    assert_eq!(again.len(), 2);
}

#[test]
fn who_does_not_ask_for_acp_is_refused_unless_kernel_ends_are_taken() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 1);
    let plain = Options {
        maximum_segment_size: Some(900),
        ..Options::default()
    };
    let refused = raw.syn(plain);
    assert_eq!((refused.len(), raw.resets(&refused)), (1, 1));
    assert_eq!(raw.switch.counters().dropped_refused, 1);
    let mut config = config();
    config.kernel_ends = true;
    let mut raw = Raw::new(config, round_robin(Lost::Reset), 1);
    let syns = raw.syn(plain);
    let answer = raw.answer_one(&syns[0], plain);
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0].header.options.acp(), None);
}

#[test]
fn a_member_that_refuses_or_is_silent_is_done_without() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        3,
        delayed(Duration::from_millis(1)),
        3,
    );
    bed.hosts[0].refuses = true;
    bed.hosts[1].alive = false;
    bed.peer.write(&frame(0, 50));
    bed.run_until(200 * SECOND, |bed| bed.got() == 1);
    check_all(&bed, &[frame(0, 50)]);
    assert_eq!(bed.switch.counters().members_lost, 2);
    bed.hosts[1].alive = true;
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        2,
        delayed(Duration::from_millis(1)),
        3,
    );
    bed.hosts.iter_mut().for_each(|host| host.refuses = true);
    bed.run_until(SECOND, |bed| bed.peer.state == State::Reset);
    assert!(bed.switch.is_empty());
}

#[test]
fn a_flood_is_answered_with_cookies_and_a_peer_gets_through() {
    let mut config = config();
    config.half_open_max = 16;
    let mut raw = Raw::open_with(config, round_robin(Lost::Reset), 2);
    raw.members.clear();
    let peer = SocketAddr::from(([198, 51, 100, 9], 5000));
    for number in 0..2000u32 {
        let octets = number.to_be_bytes();
        let remote = SocketAddr::from(([203, 0, octets[2], octets[3]], 1024));
        let emissions = raw.syn_from(remote);
        assert!(emissions.len() <= 2);
        assert!(raw.switch.len() <= 1 + 16);
    }
    assert_eq!(raw.switch.counters().cookies_sent, 2000 - 16);
    let answer = raw.syn_from(peer);
    let [answer] = &answer[..] else {
        panic!("one answer: {answer:?}");
    };
    assert_eq!(
        (answer.header.window, answer.header.options.acp()),
        (0, Some(1))
    );
    let size = answer.header.options.maximum_segment_size;
    assert_eq!(size, Some(900), "as members have said before");
    raw.isn = answer.header.sequence;
    // Who has no cookie gets nothing but RST.
    let guess = raw.peer(1, 77, Flags::ACK, &[]);
    assert_eq!((guess.len(), raw.resets(&guess)), (1, 1));
    let syns = raw.peer(1, 1, Flags::ACK, &[]);
    assert_eq!(syns.len(), 2);
    let opened = raw.answer(&syns);
    assert_eq!(
        raw.acks(&opened),
        [1],
        "the window is announced: {opened:?}"
    );
    let given = raw.peer(1, 1, Flags::ACK, &data(b"through"));
    assert_eq!(raw.to_member(0, &given).len(), 1);
    // The half-open ones end by themselves.
    raw.poll(raw.now + 200 * SECOND);
    assert_eq!(raw.switch.len(), 2);
    assert!(raw.switch.flows().all(|flow| flow.phase == Phase::Open));
}

#[test]
fn the_table_of_connections_is_bounded_and_lingering_ones_give_way() {
    let mut config = config();
    config.connections_max = 4;
    let mut raw = Raw::new(config, round_robin(Lost::Reset), 1);
    for port in 1..=10 {
        raw.syn_from(SocketAddr::from(([203, 0, 113, 1], port)));
    }
    assert_eq!(raw.switch.len(), 4);
    assert_eq!(raw.switch.counters().dropped_table_full, 6);
}
