//! Handshakes: which members are asked, which peers are answered, and what a flood leaves
//! behind.

use std::net::SocketAddr;
use std::time::Duration;

use tidewall_switch::modules::Lost;
use tidewall_switch::{Config, Emission, FlowInfo, MemberId, Phase};
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
    // If repeated, it is answered again; members receive nothing until the peer has.
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
    // A peer without a cookie receives only RST.
    let guess = raw.peer(1, 77, Flags::ACK, &[]);
    assert_eq!((guess.len(), raw.resets(&guess)), (1, 1));
    // The acknowledgment was lost; the peer probes the closed window.
    let syns = raw.peer(0, 1, Flags::ACK, &[]);
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
fn the_table_of_connections_is_bounded() {
    let mut config = config();
    config.connections_max = 4;
    let mut raw = Raw::new(config, round_robin(Lost::Reset), 1);
    for port in 1..=10 {
        raw.syn_from(SocketAddr::from(([203, 0, 113, 1], port)));
    }
    assert_eq!(raw.switch.len(), 4);
    assert_eq!(raw.switch.counters().dropped_table_full, 6);
}

/// A port per connection, of which some stay free.
#[test]
fn there_are_no_more_connections_than_ports() {
    let mut config = config();
    config.ports = 40_000..=40_015;
    assert_eq!(config.connections(), 14);
    let mut raw = Raw::new(config, round_robin(Lost::Reset), 1);
    for port in 1..=20 {
        raw.syn_from(SocketAddr::from(([203, 0, 113, 1], port)));
    }
    assert_eq!(raw.switch.len(), 14);
    assert_eq!(raw.switch.counters().dropped_table_full, 6);
}

/// Each half-open connection costs a SYN to every member.
#[test]
fn the_more_members_the_earlier_cookies_begin() {
    for (members, most) in [(1, 64), (4, 64), (8, 32), (16, 16)] {
        let mut config = config();
        config.half_open_max = 64;
        let mut raw = Raw::new(config, round_robin(Lost::Reset), members);
        for port in 1..=100 {
            raw.syn_from(SocketAddr::from(([203, 0, 113, 1], port)));
        }
        assert_eq!(raw.switch.len(), most, "{members} members");
        assert_eq!(raw.switch.counters().cookies_sent, 100 - most as u64);
    }
}

/// A remembered connection that both ends have closed.
fn closed(config: Config) -> Raw {
    let mut raw = Raw::open_with(config, round_robin(Lost::Reset), 1);
    raw.peer(1, 1, Flags::ACK | Flags::FIN, &[]);
    raw.member(0, 1, 2, Flags::ACK | Flags::FIN, &[]);
    raw.peer(2, 2, Flags::ACK, &[]);
    assert!(raw.switch.flows().all(|flow| flow.phase == Phase::Closed));
    assert_eq!(raw.switch.len(), 1);
    raw
}

#[test]
fn what_has_ended_gives_way_to_what_begins() {
    let next = SocketAddr::from(([203, 0, 113, 1], 1));
    let mut few = config();
    few.connections_max = 1;
    // Or the one port towards members.
    let mut one = config();
    one.ports = 40_000..=40_000;
    for config in [few, one] {
        let mut raw = closed(config);
        let first = raw.members[0].0;
        let syns = raw.syn_from(next);
        assert_eq!(syns.len(), 1);
        assert_eq!(syns[0].flow.remote, first.remote);
        assert_eq!(raw.switch.counters().dropped_table_full, 0);
        assert_eq!(raw.switch.len(), 1);
        assert!(raw.switch.flows().all(|flow| flow.peer.remote == next));
    }
}

#[test]
fn nobody_waits_for_a_member_that_was_removed_before_it_answered() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 2);
    let syns = raw.syn(syn_options());
    assert_eq!(raw.answer_one(&syns[0], syn_options()), []);
    let mut emissions = Vec::new();
    let now = raw.now;
    raw.switch
        .remove_member(now, MemberId(1), &mut |emission| emissions.push(emission));
    let answers = emissions.iter().filter(|it| it.flow == raw.peer);
    let flags: Vec<_> = answers.map(|answer| answer.header.flags).collect();
    assert_eq!(flags, [Flags::SYN | Flags::ACK]);
}

#[test]
fn a_member_that_is_added_during_a_handshake_takes_part() {
    let mut raw = Raw::new(config(), round_robin(Lost::Reset), 1);
    let first = raw.syn(syn_options());
    let second = raw.add_member(2);
    assert_eq!(second.len(), 1);
    assert_eq!(
        raw.answer_one(&first[0], syn_options()),
        [],
        "both are asked"
    );
    assert_eq!(raw.answer_one(&second[0], syn_options()).len(), 1);
    // The peer is answered, and waits for no other member.
    let third = raw.add_member(3);
    assert_eq!(third.len(), 1);
    let opened = raw.peer(1, 1, Flags::ACK, &[]);
    assert_eq!(opened.len(), 2);
    let opened = raw.answer_one(&third[0], syn_options());
    assert_eq!(raw.to_member(2, &opened).len(), 1);
    let open = |flow: FlowInfo| flow.members.iter().filter(|member| member.open).count();
    assert_eq!(raw.switch.flows().map(open).sum::<usize>(), 3);
}

#[test]
fn an_end_waits_for_a_silent_member_as_long_as_that_is_asked() {
    let mut raw = Raw::open(1);
    assert_eq!(raw.add_member(2).len(), 1);
    let to_peer = |raw: &Raw, emissions: &[Emission]| {
        let ends = |it: &&Emission| it.flow == raw.peer && it.header.flags.contains(Flags::FIN);
        emissions.iter().filter(ends).count()
    };
    let fin = raw.member(0, 1, 1, Flags::ACK | Flags::FIN, &[]);
    assert_eq!(to_peer(&raw, &fin), 0);
    let begun = raw.now;
    loop {
        let due = raw.switch.next_deadline().expect("a SYN to repeat");
        let sent = raw.poll(due);
        if to_peer(&raw, &sent) > 0 {
            break;
        }
        assert!(raw.now < begun + 100 * SECOND);
    }
}
