//! Handshakes without an attack, and segments out of place.

use super::*;
use tidewall_protocol::DropReason;
use tidewall_protocol::errno;
use tidewall_protocol::icmp::FlowError;
use tidewall_protocol::tcp::{Connection, Ecn, State, defer_accept};

#[test]
fn a_handshake_agrees_on_what_both_offered() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    let (reaction, sent) = give(&mut listener, &syn(flow, 500), START);
    assert_eq!(reaction, Reaction::HalfOpen(flow));
    let [(to, answer)] = sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(to, flow);
    assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
    assert_eq!((answer.acknowledgment, answer.window), (501, 65_535));
    assert_eq!(answer.options.maximum_segment_size, Some(1460));
    assert_eq!(answer.options.window_scale, Some(7));
    assert!(answer.options.sack_permitted);
    assert_eq!(answer.options.timestamps.unwrap().echo, 7_000);
    let later = START + Duration::from_millis(30);
    let ack = ack_of(flow, &answer);
    let (reaction, sent) = give(&mut listener, &ack, later);
    assert!(sent.is_empty());
    let Reaction::Established(handshake) = reaction else {
        panic!("{reaction:?}")
    };
    assert_eq!(handshake.local_isn, answer.sequence);
    assert_eq!(handshake.remote_isn, 500);
    assert_eq!((handshake.mss, handshake.window), (1460, 502));
    assert_eq!(handshake.window_scale, Some(7));
    assert!(handshake.sack);
    assert_eq!(handshake.timestamps.unwrap().value, 7_100);
    assert_eq!(handshake.round_trip, Some(Duration::from_millis(30)));
    assert_eq!(listener.half_open_len(), 0);
    assert_eq!(listener.next_timeout(), None);
    let mut connection = Connection::accept(&handshake, &Config::default(), later);
    connection.input(&ack, later);
    assert_eq!(connection.state(), State::Established);
}

#[test]
fn what_one_side_does_not_offer_is_not_used() {
    let config = Config {
        timestamps: false,
        sack: false,
        window_scaling: false,
        ..Config::default()
    };
    let mut plain = Listener::new(&config, 16, SECRETS);
    let six = flow("[2001:db8::2]:9".parse().unwrap());
    let (_, sent) = give(&mut plain, &syn(six, 1), START);
    let options = sent[0].1.options;
    let expected = Options {
        maximum_segment_size: Some(1440),
        ..Options::default()
    };
    assert_eq!(options, expected);
    let bare = segment(six, Flags::SYN, 1, 0, Options::default());
    let mut full = listener(16);
    let (_, sent) = give(&mut full, &bare, START);
    assert_eq!(sent[0].1.options, expected);
    let (reaction, _) = give(&mut full, &ack_of(six, &sent[0].1), START);
    let Reaction::Established(handshake) = reaction else {
        panic!("{reaction:?}")
    };
    // RFC 9293 §3.7.1: the default over IPv6.
    assert_eq!((handshake.mss, handshake.window_scale), (1220, None));
    assert!(!handshake.sack && handshake.timestamps.is_none());
}

#[test]
fn congestion_notification_is_agreed_on_when_it_is_asked_for_and_wanted() {
    let asks = Flags::SYN | Flags::ECE | Flags::CWR;
    for (ecn, flags, class, agreed) in [
        (Ecn::Passive, asks, 0, true),
        (Ecn::Active, asks, 0xfc, true),
        (Ecn::Off, asks, 0, false),
        (Ecn::Passive, Flags::SYN, 0, false),
        (Ecn::Passive, Flags::SYN | Flags::ECE, 0, false),
        (Ecn::Passive, Flags::SYN | Flags::CWR, 0, false),
        // Mangled: no SYN is sent with a codepoint (RFC 3168 §6.1.1).
        (Ecn::Passive, asks, 1, false),
        (Ecn::Passive, asks, 2, false),
        (Ecn::Passive, asks, 3, false),
    ] {
        let config = Config {
            ecn,
            ..Config::default()
        };
        let mut listener = Listener::new(&config, 16, SECRETS);
        let flow = client(1, 1000);
        let mut syn = segment(flow, flags, 500, 0, linux(7_000));
        syn.traffic_class = class;
        let (_, first) = give(&mut listener, &syn, START);
        let (mut sent, _) = run_timers(&mut listener, START + SECOND);
        sent.push((START, first[0].1));
        assert_eq!(sent.len(), 2, "the answer, and once more");
        for (_, answer) in &sent {
            let expected = if agreed { Flags::ECE } else { Flags::NONE };
            assert_eq!(answer.flags, Flags::SYN | Flags::ACK | expected);
        }
        let (reaction, _) = give(&mut listener, &ack_of(flow, &sent[0].1), START + SECOND);
        let Reaction::Established(handshake) = reaction else {
            panic!("{reaction:?}")
        };
        assert_eq!(handshake.ecn, agreed, "{ecn:?} {flags:?} {class}");
        let connection = Connection::accept(&handshake, &config, START + SECOND);
        assert_eq!(connection.info().ecn, agreed);
    }
}

#[test]
fn an_answer_is_repeated_with_backoff_and_then_forgotten() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    let (_, first) = give(&mut listener, &syn(flow, 500), START);
    let (sent, forgotten) = run_timers(&mut listener, START + 100 * SECOND);
    let times: Vec<_> = sent.iter().map(|(at, _)| (*at - START).as_secs()).collect();
    assert_eq!(times, [1, 3, 7, 15, 31]);
    for (_, answer) in &sent {
        assert_eq!(answer.sequence, first[0].1.sequence);
    }
    assert_eq!(forgotten, [flow]);
    assert_eq!(listener.half_open_len(), 0);
    // If it is acknowledged after a repetition, the round trip is ambiguous (RFC 6298
    // §3).
    give(&mut listener, &syn(flow, 500), START + 100 * SECOND);
    let (sent, _) = run_timers(&mut listener, START + 101 * SECOND);
    let (reaction, _) = give(
        &mut listener,
        &ack_of(flow, &sent[0].1),
        START + 102 * SECOND,
    );
    let Reaction::Established(handshake) = reaction else {
        panic!("{reaction:?}")
    };
    assert_eq!(handshake.round_trip, None);
}

#[test]
fn a_repeated_syn_is_answered_alike_but_not_without_end() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    let (_, first) = give(&mut listener, &syn(flow, 500), START);
    let mut answers = 0;
    for millisecond in 1..1000 {
        let now = START + Duration::from_millis(millisecond);
        let (reaction, sent) = give(&mut listener, &syn(flow, 500), now);
        assert_eq!(reaction, Reaction::Nothing);
        for (_, answer) in sent {
            assert_eq!(answer.sequence, first[0].1.sequence);
            answers += 1;
        }
    }
    assert_eq!(answers, 1);
    // Its life is not prolonged either.
    for second in 1..100 {
        let now = START + SECOND * second;
        give(&mut listener, &syn(flow, 500), now);
        if !run_timers(&mut listener, now).1.is_empty() {
            assert!(second < 70);
            return;
        }
    }
    panic!("never forgotten");
}

#[test]
fn another_syn_of_the_flow_is_challenged_and_the_reset_it_provokes_ends_it() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    let (_, first) = give(&mut listener, &syn(flow, 500), START);
    // The client has rebooted.
    let now = START + SECOND / 2;
    let (reaction, sent) = give(&mut listener, &syn(flow, 90_000), now);
    assert_eq!(reaction, Reaction::Dropped(DropReason::TcpHalfOpen));
    let challenge = sent[0].1;
    assert_eq!(challenge.flags, Flags::ACK);
    assert_eq!(challenge.acknowledgment, 501);
    assert_eq!(challenge.sequence, first[0].1.sequence.wrapping_add(1));
    let reset = segment(
        flow,
        Flags::RST,
        challenge.acknowledgment,
        0,
        Options::default(),
    );
    let (reaction, _) = give(&mut listener, &reset, now);
    assert_eq!(reaction, Reaction::Forgotten(flow));
    assert_eq!(listener.half_open_len(), 0);
}

#[test]
fn a_blind_reset_must_hit_exactly() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    give(&mut listener, &syn(flow, 500), START);
    let now = START + SECOND / 2;
    let mut challenges = 0;
    for sequence in [0, 500, 502, 60_000, 65_501, 1 << 31] {
        for flags in [Flags::RST, Flags::RST | Flags::ACK] {
            let reset = segment(flow, flags, sequence, 7, Options::default());
            let (reaction, sent) = give(&mut listener, &reset, now);
            assert_eq!(reaction, Reaction::Dropped(DropReason::TcpHalfOpen));
            challenges += sent.len();
        }
    }
    assert_eq!((listener.half_open_len(), challenges), (1, 1));
}

#[test]
fn a_wrong_acknowledgment_is_reset_and_the_right_one_still_taken() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    let (_, first) = give(&mut listener, &syn(flow, 500), START);
    let ack = ack_of(flow, &first[0].1);
    let mut wrong = ack;
    wrong.header.acknowledgment = wrong.header.acknowledgment.wrapping_add(1);
    let (reaction, sent) = give(&mut listener, &wrong, START);
    assert_eq!(reaction, Reaction::Dropped(DropReason::TcpHalfOpen));
    assert_eq!(sent[0].1.flags, Flags::RST);
    assert_eq!(sent[0].1.sequence, wrong.header.acknowledgment);
    // Outside the window, or with a timestamp from before the SYN's.
    let mut outside = ack;
    outside.header.sequence = 501 + 65_535;
    let mut old = ack;
    old.header.options.timestamps.as_mut().unwrap().value = 6_999;
    for segment in [outside, old] {
        let (reaction, _) = give(&mut listener, &segment, START);
        assert_eq!(reaction, Reaction::Dropped(DropReason::TcpHalfOpen));
    }
    // With data beyond a lost ACK it still completes the handshake.
    let mut data = ack;
    data.header.sequence = 501 + 1448;
    data.payload = b"later data";
    let (reaction, _) = give(&mut listener, &data, START);
    assert!(matches!(reaction, Reaction::Established(_)), "{reaction:?}");
}

#[test]
fn what_belongs_to_nothing_is_reset_or_dropped() {
    let mut listener = listener(128);
    let flow = client(1, 1000);
    for (flags, reset) in [
        (Flags::ACK, true),
        (Flags::SYN | Flags::ACK, true),
        (Flags::FIN | Flags::ACK, true),
        (Flags::RST, false),
        (Flags::RST | Flags::ACK, false),
        (Flags::FIN, false),
        (Flags::NONE, false),
        (Flags::SYN | Flags::FIN, false),
    ] {
        let unexpected = segment(flow, flags, 1, 2, Options::default());
        let (reaction, sent) = give(&mut listener, &unexpected, START);
        assert_eq!(
            reaction,
            Reaction::Dropped(DropReason::TcpNoConnection),
            "{flags:?}"
        );
        assert_eq!(!sent.is_empty(), reset, "{flags:?}");
    }
    // From itself to itself.
    let own = SERVER.parse().unwrap();
    let land = FourTuple {
        local: own,
        remote: own,
    };
    let (reaction, sent) = give(&mut listener, &syn(land, 1), START);
    assert_eq!(reaction, Reaction::Dropped(DropReason::MartianSource));
    assert!(sent.is_empty());
}

#[test]
fn with_a_full_accept_queue_nothing_begins_or_completes() {
    let mut listener = listener(2);
    let (one, two) = (client(1, 1000), client(2, 1000));
    let (_, first) = give(&mut listener, &syn(one, 500), START);
    listener.set_accept_queue(2, 2);
    assert!(listener.is_full());
    let overflow = Reaction::Dropped(DropReason::TcpListenOverflow);
    let ack = ack_of(one, &first[0].1);
    assert_eq!(give(&mut listener, &ack, START).0, overflow);
    assert_eq!(give(&mut listener, &syn(two, 1), START).0, overflow);
    // The answer is repeated, and so is its ACK once there is room.
    listener.set_accept_queue(1, 2);
    let (sent, _) = run_timers(&mut listener, START + SECOND);
    assert_eq!(sent.len(), 1);
    let (reaction, _) = give(&mut listener, &ack, START + SECOND);
    assert!(matches!(reaction, Reaction::Established(_)));
}

#[test]
fn closing_forgets_every_half_open_connection() {
    let mut listener = listener(64);
    let flows: Vec<_> = (0..8).map(|port| client(1, 1000 + port)).collect();
    for &flow in &flows {
        give(&mut listener, &syn(flow, 1), START);
    }
    let mut forgotten = Vec::new();
    listener.close(&mut |flow| forgotten.push(*flow));
    assert_eq!(forgotten, flows);
    assert_eq!(listener.next_timeout(), None);
}

#[test]
fn an_icmp_error_that_quotes_our_answer_ends_a_half_open_connection() {
    let error = |flow: FourTuple, errno, sequence| FlowError {
        local: flow.local,
        remote: flow.remote,
        errno,
        hard: false,
        mtu: None,
        offender: flow.remote.ip(),
        kind: 3,
        code: 1,
        sequence,
    };
    let mut listener = listener(16);
    let flow = client(1, 1000);
    let (_, sent) = give(&mut listener, &syn(flow, 500), START);
    let isn = sent[0].1.sequence;
    for refused in [
        error(client(1, 1001), errno::EHOSTUNREACH, Some(isn)),
        error(flow, errno::EHOSTUNREACH, Some(isn.wrapping_add(1))),
        error(flow, errno::EHOSTUNREACH, None),
        error(flow, errno::EMSGSIZE, Some(isn)),
    ] {
        assert_eq!(listener.icmp_error(&refused), Reaction::Nothing);
        assert_eq!(listener.half_open_len(), 1);
    }
    let reported = error(flow, errno::EHOSTUNREACH, Some(isn));
    assert_eq!(listener.icmp_error(&reported), Reaction::Forgotten(flow));
    assert_eq!(listener.half_open_len(), 0);
    assert_eq!(listener.next_timeout(), None);
    // Later segments of its peer belong to no connection.
    let (_, sent) = give(&mut listener, &ack_of(flow, &sent[0].1), START);
    assert_eq!(sent[0].1.flags, Flags::RST);
}

#[test]
fn answers_are_repeated_as_often_as_is_set() {
    for (retries, waits) in [
        (0, vec![]),
        (2, vec![1, 2]),
        (9, vec![1, 2, 4, 8, 16, 32, 64, 120, 120]),
    ] {
        let config = Config {
            syn_ack_retries: retries,
            ..Config::default()
        };
        let mut listener = Listener::new(&config, 16, SECRETS);
        let flow = client(1, 1000);
        give(&mut listener, &syn(flow, 500), START);
        let (sent, forgotten) = run_timers(&mut listener, START + 1000 * SECOND);
        let mut last = START;
        let waited: Vec<u64> = sent
            .iter()
            .map(|(at, _)| (*at - std::mem::replace(&mut last, *at)).as_secs())
            .collect();
        assert_eq!((waited, forgotten), (waits, vec![flow]));
    }
}

#[test]
fn an_answer_that_is_sent_again_goes_where_its_syn_came_from() {
    let mut listener = listener(128);
    let [one, two] = [1, 2].map(|n| client(n, 1000));
    for (flow, origin) in [(one, 11), (two, 22)] {
        listener.set_origin(origin);
        give(&mut listener, &syn(flow, 500), START);
    }
    let again = |listener: &mut Listener, now| {
        let mut sent = Vec::new();
        let send = &mut |flow: &FourTuple, _: &Outgoing<'_>, origin| sent.push((*flow, origin));
        listener.timeout(now, send, &mut |_| {});
        sent
    };
    let now = START + SECOND;
    assert_eq!(again(&mut listener, now), [(one, 11), (two, 22)]);
    // A SYN that arrives by another path shows that the path has changed.
    listener.set_origin(33);
    give(&mut listener, &syn(one, 500), now + SECOND);
    assert_eq!(
        again(&mut listener, now + 2 * SECOND),
        [(one, 33), (two, 22)]
    );
}

#[test]
fn a_deferred_connection_waits_for_data_or_its_time() {
    for seconds in [1, 3, 10] {
        let timeouts = defer_accept::timeouts_of(seconds);
        let mut listener = listener(128);
        listener.set_defer_accept(timeouts);
        let [sends, silent] = [client(1, 1000), client(2, 1000)];
        let acks = [sends, silent].map(|flow| {
            let (_, sent) = give(&mut listener, &syn(flow, 500), START);
            let ack = ack_of(flow, &sent[0].1);
            let (reaction, sent) = give(&mut listener, &ack, START);
            assert_eq!((reaction, sent.len()), (Reaction::Nothing, 0));
            ack
        });
        let data = Segment {
            payload: b"request",
            ..acks[0]
        };
        let (reaction, _) = give(&mut listener, &data, START + SECOND / 2);
        let Reaction::Established(handshake) = reaction else {
            panic!("{reaction:?}")
        };
        assert_eq!(handshake.round_trip, None, "the time is the client's");
        // Only the last timeout asks the silent client for another acknowledgment.
        let end = START + Duration::from_secs(defer_accept::seconds_of(timeouts) as u64);
        let (sent, _) = run_timers(&mut listener, end);
        let times: Vec<_> = sent.iter().map(|it| it.0).collect();
        assert_eq!(times, [end]);
        let (reaction, _) = give(&mut listener, &acks[1], end);
        assert!(matches!(reaction, Reaction::Established(_)), "{reaction:?}");
        assert_eq!(listener.half_open_len(), 0);
    }
}

#[test]
fn seconds_of_deferred_connections_are_rounded_as_by_linux() {
    let pairs = [
        (-1, 0),
        (0, 0),
        (1, 1),
        (2, 3),
        (3, 3),
        (10, 15),
        (200, 247),
    ];
    for (asked, read) in pairs {
        let timeouts = defer_accept::timeouts_of(asked);
        assert_eq!(defer_accept::seconds_of(timeouts), read, "of {asked}");
    }
    assert_eq!(defer_accept::timeouts_of(i32::MAX), u8::MAX);
}
