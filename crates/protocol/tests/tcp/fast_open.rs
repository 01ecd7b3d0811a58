//! Data in the SYN (RFC 7413), client and server.

use tidewall_protocol::tcp::{
    Config, Connection, Errno, FastOpen, FastOpenAnswer, FastOpenFailure, FastOpenForm,
    FastOpenPeer, Handshake, Notification, Segment, State, TimestampEvent, TimestampKeys,
    Timestamping,
};
use tidewall_wire::tcp::{Flags, Header, Options};

use crate::link::{Frame, flow};
use crate::peer::{ACK, MSS, OURS, Peer, RST, SYN, THEIRS, both, ms, plain};
use std::time::Duration;

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

fn cookie() -> FastOpen {
    FastOpen::cookie_of(b"a cookie").unwrap()
}

fn known() -> FastOpenPeer {
    FastOpenPeer {
        cookie: Some(cookie()),
        mss: Some(MSS as u16),
        ..FastOpenPeer::default()
    }
}

fn client(config: &Config, known: &FastOpenPeer) -> Peer {
    let mut peer = Peer::connecting(config);
    peer.engine = Connection::connect_fast(flow(false), OURS, 0, config, known, false, peer.now);
    peer
}

/// A segment with a Fast Open option.
fn give_option(peer: &mut Peer, acknowledged: u32, option: Option<FastOpen>, payload: &[u8]) {
    let flow = *peer.engine.flow();
    let segment = Segment {
        flow,
        header: Header {
            source_port: flow.remote.port(),
            destination_port: flow.local.port(),
            sequence: THEIRS,
            acknowledgment: OURS.wrapping_add(1 + acknowledged),
            flags: SYN_ACK,
            window: peer.window,
            urgent: 0,
            options: Options {
                maximum_segment_size: Some(900),
                ..Options::default().with_fast_open(option)
            },
        },
        payload,
        traffic_class: 0,
    };
    peer.engine.input(&segment, peer.now);
}

fn only(frames: &[Frame]) -> &Frame {
    let [frame] = frames else {
        panic!("{} segments", frames.len())
    };
    frame
}

#[test]
fn a_client_asks_for_a_cookie_and_remembers_it() {
    let mut memory = FastOpenPeer::default();
    let mut peer = client(&plain(), &memory);
    assert_eq!(peer.engine.write(b"early"), Err(Errno::AGAIN));
    let sent = peer.sent();
    assert_eq!(
        only(&sent).header.options.fast_open(),
        Some(FastOpen::REQUEST)
    );
    assert!(only(&sent).payload.is_empty());
    assert_eq!(peer.engine.take_fast_open_outcome(), None);
    give_option(&mut peer, 0, Some(cookie()), b"");
    assert_eq!(peer.state(), State::Established);
    memory.learn(&peer.engine.take_fast_open_outcome().unwrap());
    assert_eq!(peer.engine.take_fast_open_outcome(), None);
    assert_eq!((memory.cookie, memory.mss), (Some(cookie()), Some(900)));
    let info = peer.engine.info();
    assert_eq!(info.fast_open_failure, FastOpenFailure::CookieUnavailable);
    assert!(!info.syn_data);
}

#[test]
fn both_forms_of_the_option_are_tried() {
    let mut memory = FastOpenPeer::default();
    for (form, experimental) in [
        (FastOpenForm::Experimental, false),
        (FastOpenForm::Neither, true),
        (FastOpenForm::Neither, false),
    ] {
        let mut peer = client(&plain(), &memory);
        let option = only(&peer.sent()).header.options.fast_open().unwrap();
        assert!(option.is_request());
        assert_eq!(option.is_experimental(), experimental);
        give_option(&mut peer, 0, None, b"");
        memory.learn(&peer.engine.take_fast_open_outcome().unwrap());
        assert_eq!(memory.form, form);
    }
}

#[test]
fn data_travels_with_the_syn() {
    let mut peer = client(&plain(), &known());
    // Forty bytes less than a segment, for options of middleboxes.
    assert_eq!(peer.engine.write(&[7; 2000]), Ok(MSS - 40));
    assert_eq!(peer.engine.write(b"more"), Err(Errno::AGAIN));
    let sent = peer.sent();
    let syn = only(&sent);
    assert_eq!((syn.header.flags, syn.header.sequence), (SYN, OURS));
    assert_eq!(syn.header.options.fast_open(), Some(cookie()));
    assert_eq!(syn.payload.len(), 960);
    assert_eq!(peer.engine.write(b"more"), Err(Errno::AGAIN));
    give_option(&mut peer, 960, None, b"answer");
    assert_eq!(peer.state(), State::Established);
    let mut buffer = [0; 10];
    assert_eq!(peer.engine.read(&mut buffer), Ok(6));
    assert_eq!(peer.brief(), [(ACK, 960, 6, 0)]);
    let info = peer.engine.info();
    assert!(info.syn_data);
    assert_eq!(info.fast_open_failure, FastOpenFailure::None);
    assert_eq!((info.bytes_acknowledged, info.retransmissions), (960, 0));
    // The valid cookie is kept.
    let mut memory = known();
    memory.learn(&peer.engine.take_fast_open_outcome().unwrap());
    assert_eq!(memory.cookie, Some(cookie()));
    peer.write(10);
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 960, 6, 10)]);
}

#[test]
fn a_cookie_that_nobody_asked_for_is_not_kept() {
    let mut peer = Peer::connecting(&plain());
    let none = FastOpenPeer::default();
    peer.engine = Connection::connect_fast(flow(false), OURS, 0, &plain(), &none, true, peer.now);
    assert_eq!(peer.engine.write(&[7; 500]), Ok(500));
    assert_eq!(only(&peer.sent()).header.options.fast_open(), None);
    give_option(&mut peer, 500, Some(cookie()), b"");
    assert!(peer.engine.info().syn_data);
    let mut memory = none;
    memory.learn(&peer.engine.take_fast_open_outcome().unwrap());
    assert_eq!((memory.cookie, memory.mss), (None, Some(900)));
    assert_eq!(memory.form, FastOpenForm::Standard, "and none was refused");
}

#[test]
fn what_the_syn_ack_leaves_out_is_sent_again_at_once() {
    for taken in [0, 400] {
        let mut peer = client(&plain(), &known());
        peer.write(960);
        peer.sent();
        let fresh = FastOpen::cookie_of(b"another!").unwrap();
        give_option(&mut peer, taken, Some(fresh), b"");
        assert_eq!(peer.state(), State::Established);
        let rest = 960 - taken as usize;
        // The peer names a maximum of 900.
        let expected = if rest > 900 {
            vec![(ACK, taken, 0, 900), (both(ACK, Flags::PSH), 900, 0, 60)]
        } else {
            vec![(both(ACK, Flags::PSH), taken, 0, rest)]
        };
        assert_eq!(peer.brief(), expected);
        let info = peer.engine.info();
        assert_eq!(info.fast_open_failure, FastOpenFailure::DataNotAcknowledged);
        assert!(!info.syn_data);
        // That loss was not congestion.
        assert_eq!(info.congestion_window, 9000);
        assert_eq!(info.slow_start_threshold, u32::MAX);
        let mut memory = known();
        memory.learn(&peer.engine.take_fast_open_outcome().unwrap());
        assert_eq!(memory.cookie, Some(fresh));
        peer.give(ACK, 0, 960, b"");
        assert_eq!(peer.brief(), []);
        assert_eq!(peer.engine.next_timeout(), None);
    }
}

#[test]
fn the_syn_ack_is_acknowledged_with_what_a_writer_holds() {
    let mut peer = client(&plain(), &known());
    assert_eq!(peer.engine.write(&[7; 2000]), Ok(960));
    peer.engine.set_writer_waiting();
    peer.sent();
    give_option(&mut peer, 960, None, b"");
    assert_eq!(peer.brief(), []);
    peer.write(500);
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 960, 0, 500)]);
    // If the data does not come, the acknowledgment waits no longer than any other.
    let mut peer = client(&plain(), &known());
    peer.write(100);
    peer.engine.set_writer_waiting();
    peer.sent();
    give_option(&mut peer, 100, None, b"");
    assert_eq!(peer.wait_for_timer(), ms(40));
    assert_eq!(peer.brief(), [(ACK, 100, 0, 0)]);
}

#[test]
fn an_acknowledgment_beyond_the_data_is_refused() {
    let mut peer = client(&plain(), &known());
    peer.write(100);
    peer.sent();
    give_option(&mut peer, 101, None, b"");
    assert_eq!(peer.state(), State::SynSent);
    assert_eq!(only(&peer.sent()).header.flags, RST);
}

#[test]
fn a_syn_that_is_sent_again_is_an_ordinary_one() {
    let mut peer = client(&plain(), &known());
    peer.write(100);
    peer.sent();
    for _ in 0..2 {
        peer.wait_for_timer();
        assert!(!peer.engine.take_fast_open_black_hole());
        let sent = peer.sent();
        let again = only(&sent);
        assert_eq!((again.header.flags, again.header.sequence), (SYN, OURS));
        assert_eq!(again.header.options.fast_open(), None);
        assert!(again.payload.is_empty());
    }
    // The third timeout in a row.
    peer.wait_for_timer();
    assert!(peer.engine.take_fast_open_black_hole());
    assert!(!peer.engine.take_fast_open_black_hole());
    peer.sent();
    give_option(&mut peer, 0, None, b"");
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 0, 0, 100)]);
    let outcome = peer.engine.take_fast_open_outcome().unwrap();
    assert!(outcome.syn_lost);
    let mut memory = known();
    memory.learn(&outcome);
    assert_eq!((memory.losses, memory.cookie), (1, Some(cookie())));
    let info = peer.engine.info();
    assert_eq!(info.fast_open_failure, FastOpenFailure::SynRetransmitted);
}

#[test]
fn a_client_survives_freezing_in_every_moment() {
    let refreeze = |peer: &mut Peer| {
        let frozen = peer.engine.freeze(peer.now);
        peer.engine = Connection::thaw(&frozen, peer.now).unwrap();
        assert_eq!(peer.engine.freeze(peer.now), frozen);
    };
    let mut peer = client(&plain(), &known());
    refreeze(&mut peer);
    peer.write(100);
    refreeze(&mut peer);
    let sent = peer.sent();
    assert_eq!(only(&sent).header.options.fast_open(), Some(cookie()));
    assert_eq!(only(&sent).payload, [7; 100]);
    refreeze(&mut peer);
    give_option(&mut peer, 0, Some(cookie()), b"");
    refreeze(&mut peer);
    let outcome = peer.engine.take_fast_open_outcome().unwrap();
    assert_eq!(outcome.cookie, Some(cookie()));
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 0, 0, 100)]);
}

/// A connection opened by a SYN with data.
fn server(config: &Config, payload: &[u8]) -> Peer {
    let mut peer = Peer::established(config);
    let handshake = Handshake {
        flow: flow(false),
        local_isn: OURS,
        remote_isn: THEIRS,
        mss: MSS as u16,
        window_scale: None,
        local_window_scale: 0,
        sack: true,
        ecn: false,
        timestamps: None,
        timestamp_offset: 0,
        window: 60_000,
        round_trip: None,
        fast_open: Some(FastOpenAnswer::default()),
    };
    peer.engine = Connection::accept(&handshake, config, peer.now);
    peer.give_raw(SYN, THEIRS, 0, payload);
    peer
}

fn syn_ack_of(frame: &Frame) -> (Flags, u32, u32) {
    let header = &frame.header;
    assert!(frame.payload.is_empty());
    (
        header.flags,
        header.sequence.wrapping_sub(OURS),
        header.acknowledgment.wrapping_sub(THEIRS),
    )
}

#[test]
fn a_server_answers_before_the_handshake_is_complete() {
    let mut peer = server(&plain(), b"request");
    assert!(peer.engine.is_fast_opening() && peer.engine.readable());
    let mut buffer = [0; 10];
    assert_eq!(peer.engine.read(&mut buffer), Ok(7));
    peer.write(1500);
    let sent = peer.sent();
    assert_eq!(syn_ack_of(&sent[0]), (SYN_ACK, 0, 8));
    let rest: Vec<_> = sent[1..]
        .iter()
        .map(|frame| {
            (
                frame.header.sequence.wrapping_sub(OURS),
                frame.payload.len(),
            )
        })
        .collect();
    assert_eq!(rest, [(1, 1000), (1001, 500)]);
    assert!(peer.engine.info().syn_data);
    peer.now += ms(50);
    peer.give(ACK, 7, 1000, b"");
    assert_eq!(peer.state(), State::Established);
    assert!(!peer.engine.is_fast_opening());
    let info = peer.engine.info();
    assert_eq!((info.round_trip_min, info.unacknowledged), (ms(50), 500));
    peer.give(ACK, 7, 1500, b"");
    assert_eq!(peer.brief(), []);
}

#[test]
fn only_the_syn_ack_is_sent_again_until_the_client_is_known() {
    let mut peer = server(&plain(), b"request");
    peer.write(100);
    assert_eq!(peer.sent().len(), 2);
    let mut waited = Vec::new();
    while peer.state() == State::SynReceived {
        waited.push(peer.wait_for_timer().as_secs());
        let sent = peer.sent();
        if peer.state() == State::SynReceived {
            assert_eq!(syn_ack_of(only(&sent)), (SYN_ACK, 0, 8));
        }
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64]);
    assert_eq!(peer.engine.take_error(), Some(Errno::TIMEDOUT));

    let mut peer = server(&plain(), b"request");
    peer.write(100);
    peer.sent();
    peer.wait_for_timer();
    peer.sent();
    peer.give(ACK, 7, 0, b"");
    assert_eq!(peer.state(), State::Established);
    // Its data was lost with the SYN-ACK.
    assert_eq!(peer.brief(), [(both(ACK, Flags::PSH), 0, 7, 100)]);
}

#[test]
fn a_copy_of_the_syn_is_answered_seldom() {
    let mut peer = server(&plain(), b"request");
    peer.sent();
    peer.give_raw(SYN, THEIRS, 0, b"request");
    assert_eq!(syn_ack_of(only(&peer.sent())), (SYN_ACK, 0, 8));
    peer.give_raw(SYN, THEIRS, 0, b"request");
    assert_eq!(peer.sent().len(), 0);
    peer.now += Duration::from_millis(500);
    peer.give_raw(SYN, THEIRS, 0, b"request");
    assert_eq!(peer.sent().len(), 1);
    let mut buffer = [0; 20];
    assert_eq!(peer.engine.read(&mut buffer), Ok(7));
}

#[test]
fn a_reset_ends_what_a_syn_has_opened() {
    let mut peer = server(&plain(), b"request");
    peer.sent();
    peer.give(RST, 6, 0, b"");
    assert!(peer.engine.is_fast_opening(), "of another sequence number");
    peer.give(RST, 7, 0, b"");
    assert_eq!(peer.state(), State::Closed);
    assert!(!peer.engine.is_fast_opening());
    let mut buffer = [0; 20];
    assert_eq!(peer.engine.read(&mut buffer), Ok(7));
    assert_eq!(peer.engine.read(&mut buffer), Err(Errno::CONNRESET));
}

#[test]
fn what_is_closed_early_is_still_answered() {
    let mut peer = server(&plain(), b"");
    peer.write(10);
    peer.engine.close(None, peer.now);
    let sent = peer.sent();
    assert_eq!(syn_ack_of(&sent[0]), (SYN_ACK, 0, 1));
    assert!(sent[1].header.flags.contains(Flags::FIN));
    assert_eq!(peer.engine.info().state, State::FinWait1);
    peer.give(ACK, 0, 11, b"");
    assert_eq!(peer.state(), State::FinWait2);
    // With unread data the client is reset.
    let mut peer = server(&plain(), b"request");
    peer.sent();
    peer.engine.close(None, peer.now);
    assert!(only(&peer.sent()).header.flags.contains(RST));
    assert_eq!(peer.state(), State::Closed);
}

#[test]
fn data_with_the_syn_has_times_and_a_number() {
    // All of it is accepted, or none; then it is retransmitted, which is not visible
    // here.
    for taken in [500, 0] {
        let mut peer = client(&plain(), &known());
        peer.engine.set_zero_copy(true);
        peer.engine.set_timestamping(Timestamping {
            sent: true,
            acknowledged: true,
            keys: TimestampKeys::FromWritten,
            ..Timestamping::default()
        });
        peer.write(500);
        peer.engine.end_write(500, true);
        let mut reported = Vec::new();
        let begin = peer.now;
        peer.sent();
        peer.now += ms(10);
        give_option(&mut peer, taken, None, b"");
        reported.extend(std::iter::from_fn(|| peer.engine.take_notification()));
        if taken == 0 {
            assert_eq!(peer.sent().last().unwrap().payload.len(), 500);
            peer.now += ms(10);
            peer.give(ACK, 0, 500, b"");
        }
        let end = peer.now;
        reported.extend(std::iter::from_fn(|| peer.engine.take_notification()));
        let time = |event, at| Notification::Time {
            event,
            key: 499,
            at,
        };
        let free = Notification::Free {
            first: 0,
            last: 0,
            copied: true,
        };
        let times = [
            time(TimestampEvent::Sent, begin),
            time(TimestampEvent::Acknowledged, end),
        ];
        assert_eq!(reported, [free, times[0], times[1]]);
    }
}
