//! SYNs that ask for a cookie or show one (RFC 7413).

use super::*;
use tidewall_protocol::tcp::{
    Connection, FastOpen, FastOpenKeys, FastOpenServer, Handshake, State,
};

const KEY: [u8; 16] = *b"key for a cookie";

fn server(queue: u32) -> FastOpenServer {
    FastOpenServer {
        queue,
        keys: FastOpenKeys {
            primary: KEY,
            backup: None,
        },
        without_cookie: false,
    }
}

fn fast(queue: u32) -> Listener {
    let mut listener = listener(128);
    listener.set_fast_open(Some(server(queue)));
    listener
}

fn syn_with(flow: FourTuple, option: FastOpen, payload: &'static [u8]) -> Segment<'static> {
    let mut syn = syn(flow, 500);
    syn.header.options = syn.header.options.with_fast_open(Some(option));
    syn.payload = payload;
    syn
}

/// Requests a cookie.
fn obtain(listener: &mut Listener, flow: FourTuple, request: FastOpen) -> Option<FastOpen> {
    let (reaction, sent) = give(listener, &syn_with(flow, request, b""), START);
    assert_eq!(reaction, Reaction::HalfOpen(flow));
    assert_eq!(sent[0].1.acknowledgment, 501);
    sent[0].1.options.fast_open()
}

fn opened(reaction: Reaction) -> Handshake {
    let Reaction::Established(handshake) = reaction else {
        panic!("{reaction:?}")
    };
    assert!(handshake.fast_open.is_some());
    handshake
}

#[test]
fn a_cookie_is_given_and_opens_a_connection() {
    for experimental in [false, true] {
        let mut listener = fast(16);
        let request = FastOpen::REQUEST.with_experimental(experimental);
        let cookie = obtain(&mut listener, client(1, 1000), request).unwrap();
        assert_eq!(cookie.cookie().len(), 8);
        assert_eq!(cookie.is_experimental(), experimental);
        // The cookie belongs to the address, not the port.
        let flow = client(1, 1001);
        let syn = syn_with(flow, cookie, b"request");
        let (reaction, sent) = give(&mut listener, &syn, START);
        assert!(sent.is_empty(), "the connection answers");
        let handshake = opened(reaction);
        assert_eq!(handshake.fast_open.unwrap().cookie, None);
        let mut connection = Connection::accept(&handshake, &Config::default(), START);
        connection.input(&syn, START);
        assert_eq!(connection.state(), State::SynReceived);
        assert_eq!(connection.received(), [&b"request"[..], b""]);
        let mut answers = Vec::new();
        connection.output(START, &mut |out| {
            answers.push(out.header);
            true
        });
        let [answer] = answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
        assert_eq!(answer.acknowledgment, 508);
        assert_eq!(answer.options.window_scale, Some(7));
        assert_eq!(answer.options.timestamps.unwrap().echo, 7_000);
        connection.input(&ack_of(flow, &answer), START);
        assert_eq!(connection.state(), State::Established);
    }
}

#[test]
fn another_address_has_another_cookie() {
    let mut listener = fast(16);
    let cookie = obtain(&mut listener, client(1, 1000), FastOpen::REQUEST).unwrap();
    let six = flow("[2001:db8::2]:9".parse().unwrap());
    for other in [client(2, 1000), six] {
        let (reaction, sent) = give(&mut listener, &syn_with(other, cookie, b"data"), START);
        assert_eq!(reaction, Reaction::HalfOpen(other));
        // Only the SYN is acknowledged, and the right cookie is reported.
        assert_eq!(sent[0].1.acknowledgment, 501);
        let right = sent[0].1.options.fast_open().unwrap();
        assert_ne!(right, cookie);
        let again = FourTuple {
            remote: SocketAddr::new(other.remote.ip(), 77),
            ..other
        };
        let (reaction, _) = give(&mut listener, &syn_with(again, right, b"data"), START);
        opened(reaction);
    }
}

#[test]
fn a_cookie_of_the_backup_key_is_taken_and_renewed() {
    let mut listener = fast(16);
    let old = obtain(&mut listener, client(1, 1000), FastOpen::REQUEST).unwrap();
    let mut changed = server(16);
    changed.keys = FastOpenKeys {
        primary: *b"the key that is.",
        backup: Some(KEY),
    };
    listener.set_fast_open(Some(changed));
    let (reaction, _) = give(&mut listener, &syn_with(client(1, 1001), old, b"x"), START);
    let new = opened(reaction).fast_open.unwrap().cookie.unwrap();
    assert_ne!(new, old);
    let (reaction, _) = give(&mut listener, &syn_with(client(1, 1002), new, b"x"), START);
    assert_eq!(opened(reaction).fast_open.unwrap().cookie, None);
    changed.keys.backup = None;
    listener.set_fast_open(Some(changed));
    let flow = client(1, 1003);
    let (reaction, sent) = give(&mut listener, &syn_with(flow, old, b"x"), START);
    assert_eq!(reaction, Reaction::HalfOpen(flow));
    assert_eq!(sent[0].1.options.fast_open(), Some(new));
}

#[test]
fn the_answer_that_is_repeated_has_no_cookie() {
    let mut listener = fast(16);
    obtain(&mut listener, client(1, 1000), FastOpen::REQUEST).unwrap();
    let (sent, _) = run_timers(&mut listener, START + SECOND);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].1.options.fast_open(), None);
}

#[test]
fn the_queue_is_bounded_and_a_reset_costs_its_place_for_a_minute() {
    let mut listener = fast(2);
    let cookie = obtain(&mut listener, client(1, 999), FastOpen::REQUEST).unwrap();
    let mut port = 1000;
    let mut open = |listener: &mut Listener, now| {
        port += 1;
        let (reaction, sent) = give(listener, &syn_with(client(1, port), cookie, b"x"), now);
        match reaction {
            Reaction::Established(_) => true,
            _ => {
                // As if there were no Fast Open.
                assert_eq!(sent[0].1.options.fast_open(), None);
                assert_eq!(sent[0].1.acknowledgment, 501);
                false
            }
        }
    };
    assert!(open(&mut listener, START) && open(&mut listener, START));
    assert!(!open(&mut listener, START));
    listener.fast_open_done(false, START);
    assert!(open(&mut listener, START));
    assert!(!open(&mut listener, START));
    listener.fast_open_done(true, START);
    assert!(!open(&mut listener, START + 59 * SECOND));
    assert!(open(&mut listener, START + 60 * SECOND));
    assert!(!open(&mut listener, START + 60 * SECOND));
}

#[test]
fn without_a_queue_there_is_no_fast_open() {
    let mut plain = listener(128);
    assert_eq!(obtain(&mut plain, client(1, 1), FastOpen::REQUEST), None);
    let mut none = fast(0);
    assert_eq!(obtain(&mut none, client(1, 1), FastOpen::REQUEST), None);
}

#[test]
fn a_cookie_may_be_needless() {
    let mut listener = listener(128);
    listener.set_fast_open(Some(FastOpenServer {
        without_cookie: true,
        ..server(16)
    }));
    let mut bare = syn(client(1, 1), 500);
    let (reaction, _) = give(&mut listener, &bare, START);
    assert_eq!(reaction, Reaction::HalfOpen(client(1, 1)));
    bare = syn(client(1, 2), 500);
    bare.payload = b"data";
    let (reaction, _) = give(&mut listener, &bare, START);
    opened(reaction);
}
