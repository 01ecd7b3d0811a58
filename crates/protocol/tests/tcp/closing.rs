//! Closing (RFC 9293 §3.6), resets, silence.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, Errno, Keepalive, Shutdown, State};
use tidewall_wire::tcp::Flags;

use crate::peer::{ACK, Peer, RST, both, ms, plain};

const FIN: Flags = Flags(Flags::ACK.0 | Flags::FIN.0);

fn shut(peer: &mut Peer) {
    let now = peer.now;
    peer.engine.shutdown(Shutdown::Write, now).unwrap();
}

fn close(peer: &mut Peer) {
    let now = peer.now;
    peer.engine.close(None, now);
}

#[test]
fn closing_first_leads_to_time_wait() {
    let mut peer = Peer::established(&plain());
    close(&mut peer);
    assert_eq!(peer.state(), State::FinWait1);
    assert_eq!(peer.brief(), [(FIN, 0, 0, 0)]);
    peer.give(ACK, 0, 1, b"");
    assert_eq!(peer.state(), State::FinWait2);
    peer.give(FIN, 0, 1, b"");
    assert_eq!(peer.state(), State::TimeWait);
    assert_eq!(peer.engine.time_wait(), None, "the last ACK has not left");
    assert_eq!(peer.brief(), [(ACK, 1, 1, 0)]);
    let entry = peer.engine.time_wait().unwrap();
    assert_eq!(entry.flow, *peer.engine.flow());
    assert_eq!(entry.send_next, crate::peer::OURS.wrapping_add(2));
    assert_eq!(entry.receive_next, crate::peer::THEIRS.wrapping_add(2));
    // It acknowledges a repeated FIN, and restarts the wait.
    peer.wait(Duration::from_secs(50));
    peer.give(FIN, 0, 1, b"");
    assert_eq!(peer.brief(), [(ACK, 1, 1, 0)]);
    peer.wait(Duration::from_secs(50));
    assert_eq!(peer.state(), State::TimeWait);
    peer.wait(Duration::from_secs(11));
    assert_eq!(peer.state(), State::Closed);
    assert_eq!(peer.engine.next_timeout(), None);
}

/// No old duplicate or other segment ends TIME-WAIT early or prolongs it (RFC 1337),
/// except the repeated FIN.
#[test]
fn time_wait_takes_no_notice_of_resets_and_old_segments() {
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(FIN, 0, 1, b"");
    peer.sent();
    assert_eq!(peer.state(), State::TimeWait);
    for flags in [Flags::RST, both(Flags::RST, ACK)] {
        peer.give(flags, 1, 1, b"");
        assert_eq!(peer.state(), State::TimeWait);
    }
    peer.wait(Duration::from_secs(50));
    peer.give(ACK, 1, 1, b"");
    peer.sent();
    peer.wait(Duration::from_secs(11));
    assert_eq!(peer.state(), State::Closed);
}

/// TIME-WAIT belongs to the flow, whether or not the application has closed: unread data
/// stays readable.
#[test]
fn time_wait_does_not_wait_for_the_application() {
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(FIN, 0, 1, b"unread");
    assert_eq!(
        peer.engine.take_time_wait(),
        None,
        "the last ACK has not left"
    );
    peer.sent();
    let entry = peer.engine.take_time_wait().unwrap();
    assert_eq!(entry.flow, *peer.engine.flow());
    assert_eq!(peer.state(), State::Closed);
    assert_eq!(peer.engine.next_timeout(), None);
    assert!(peer.brief().is_empty());
    let mut buffer = [0; 16];
    assert_eq!(peer.engine.read(&mut buffer), Ok(6));
    assert_eq!(peer.engine.read(&mut buffer), Ok(0));
    assert_eq!(peer.engine.write(b"x"), Err(Errno::PIPE));
    assert_eq!(peer.engine.take_error(), None);
}

#[test]
fn closing_second_ends_with_the_last_ack() {
    let mut peer = Peer::established(&plain());
    peer.give(FIN, 4, 0, b"beyond a hole");
    assert_eq!(peer.state(), State::Established);
    peer.give(ACK, 0, 0, b"last");
    assert_eq!(peer.state(), State::CloseWait);
    assert_eq!(peer.brief().last().unwrap().2, 18, "data and FIN");
    let mut buffer = [0; 100];
    assert_eq!(peer.engine.read(&mut buffer), Ok(17));
    assert_eq!(&buffer[..17], b"lastbeyond a hole");
    assert_eq!(peer.engine.read(&mut buffer), Ok(0));
    assert!(peer.engine.readable() && peer.engine.receive_closed());
    // Half closed: we may still send.
    peer.write(5);
    shut(&mut peer);
    assert_eq!(peer.state(), State::LastAck);
    assert_eq!(peer.engine.write(b"x"), Err(Errno::PIPE));
    assert_eq!(peer.brief(), [(both(FIN, Flags::PSH), 0, 18, 5)]);
    peer.give(ACK, 18, 5, b"");
    assert_eq!(peer.state(), State::LastAck);
    peer.give(ACK, 18, 6, b"");
    assert_eq!(peer.state(), State::Closed);
    assert_eq!(peer.engine.take_error(), None);
}

#[test]
fn both_may_close_at_once() {
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(FIN, 0, 0, b"");
    assert_eq!(peer.state(), State::Closing);
    assert_eq!(peer.brief(), [(ACK, 1, 1, 0)]);
    peer.give(ACK, 1, 1, b"");
    assert_eq!(peer.state(), State::TimeWait);
}

#[test]
fn a_half_closed_connection_still_receives() {
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(ACK, 0, 1, b"still");
    assert_eq!(peer.state(), State::FinWait2);
    assert_eq!(peer.engine.received().concat(), b"still");
    peer.wait(Duration::from_secs(1000));
    peer.sent();
    assert_eq!(peer.state(), State::FinWait2, "somebody still reads");
    peer.give(FIN, 5, 1, b" here");
    assert_eq!(peer.state(), State::TimeWait);
    let mut buffer = [0; 100];
    assert_eq!(peer.engine.read(&mut buffer), Ok(10));
    assert_eq!(peer.engine.read(&mut buffer), Ok(0));
}

#[test]
fn a_fin_is_sent_again() {
    let mut peer = Peer::established(&plain());
    peer.write(5);
    peer.sent();
    close(&mut peer);
    assert_eq!(peer.brief(), [(FIN, 5, 0, 0)]);
    peer.give(ACK, 0, 5, b"");
    peer.wait_for_timer();
    assert_eq!(peer.brief(), [(FIN, 5, 0, 0)]);
    // No peer needs to wait long: orphans are given up earlier.
    let mut again = 0;
    while peer.state() != State::Closed {
        peer.wait_for_timer();
        again += peer.sent().len();
    }
    assert_eq!(again, 8);
    assert_eq!(peer.engine.take_error(), None);
}

#[test]
fn closing_with_unread_data_resets() {
    let mut peer = Peer::established(&plain());
    peer.give(ACK, 0, 0, b"nobody reads this");
    peer.sent();
    close(&mut peer);
    assert_eq!(peer.state(), State::Closed);
    assert_eq!(peer.brief(), [(both(RST, ACK), 0, 17, 0)]);
    assert_eq!(peer.brief(), []);
}

#[test]
fn lingering_for_no_time_resets() {
    let mut peer = Peer::established(&plain());
    peer.write(10);
    let now = peer.now;
    peer.engine.close(Some(Duration::ZERO), now);
    assert_eq!(peer.brief(), [(both(RST, ACK), 0, 0, 0)]);
    // Any other linger time concerns the caller: the data is sent.
    let mut peer = Peer::established(&plain());
    peer.write(10);
    let now = peer.now;
    peer.engine.close(Some(Duration::from_secs(5)), now);
    assert_eq!(peer.brief(), [(both(FIN, Flags::PSH), 0, 0, 10)]);
}

#[test]
fn data_for_nobody_resets() {
    // Whether our FIN has arrived or not, the RST has the number that the peer expects.
    for seen in [1, 0] {
        let mut peer = Peer::established(&plain());
        close(&mut peer);
        peer.sent();
        peer.give(ACK, 0, seen, b"");
        peer.give(ACK, 0, seen, b"too late");
        assert_eq!(peer.state(), State::Closed);
        let sent = peer.brief();
        let sent: Vec<_> = sent
            .iter()
            .map(|&(flags, first, ..)| (flags, first))
            .collect();
        assert_eq!(sent, [(RST, seen)]);
    }
}

#[test]
fn fin_wait_2_ends_when_the_application_is_gone() {
    let mut peer = Peer::established(&plain());
    close(&mut peer);
    peer.sent();
    peer.give(ACK, 0, 1, b"");
    assert_eq!(peer.state(), State::FinWait2);
    peer.wait(Duration::from_secs(59));
    assert_eq!(peer.state(), State::FinWait2);
    peer.wait(Duration::from_secs(2));
    assert_eq!(peer.state(), State::Closed);
    // Shut down first, closed later: the time starts at the shutdown.
    let mut peer = Peer::established(&plain());
    shut(&mut peer);
    peer.sent();
    peer.give(ACK, 0, 1, b"");
    peer.wait(Duration::from_secs(100));
    close(&mut peer);
    peer.wait(Duration::from_secs(61));
    assert_eq!(peer.state(), State::Closed);
}

#[test]
fn a_peer_that_keeps_its_window_closed_cannot_hold_an_orphan() {
    let mut peer = Peer::established(&plain());
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    peer.write(1000);
    close(&mut peer);
    peer.sent();
    let began = peer.now;
    while peer.state() != State::Closed {
        peer.wait_for_timer();
        if !peer.sent().is_empty() {
            peer.give(ACK, 0, 0, b"");
        }
    }
    assert!(peer.now - began < Duration::from_secs(300));
    assert_eq!(peer.engine.info().not_sent, 0);
}

#[test]
fn a_peer_that_never_takes_the_fin_cannot_hold_an_orphan() {
    let mut peer = Peer::established(&plain());
    peer.window = 0;
    peer.give(ACK, 0, 0, b"");
    close(&mut peer);
    assert_eq!(peer.brief(), [(FIN, 0, 0, 0)]);
    let began = peer.now;
    while peer.state() != State::Closed {
        peer.wait_for_timer();
        if !peer.sent().is_empty() {
            peer.give(ACK, 0, 0, b"");
        }
    }
    assert!(peer.now - began < Duration::from_secs(300));
}

#[test]
fn aborting_is_seen_by_the_peer() {
    let mut peer = Peer::established(&plain());
    peer.write(10);
    peer.engine.abort();
    assert_eq!(peer.brief(), [(both(RST, ACK), 0, 0, 0)]);
    assert_eq!(peer.state(), State::Closed);
    let mut peer = Peer::connecting(&plain());
    peer.sent();
    peer.engine.abort();
    assert_eq!(peer.brief(), []);
}

#[test]
fn a_reset_is_reported_after_what_was_received() {
    let mut peer = Peer::established(&plain());
    peer.give(ACK, 0, 0, b"data");
    peer.give(RST, 4, 0, b"");
    assert_eq!(peer.state(), State::Closed);
    let mut buffer = [0; 10];
    assert_eq!(peer.engine.read(&mut buffer), Ok(4));
    assert_eq!(peer.engine.read(&mut buffer), Err(Errno::CONNRESET));
    assert_eq!(peer.engine.read(&mut buffer), Ok(0));
    // After its FIN, it is a broken pipe (as Linux).
    let mut peer = Peer::established(&plain());
    peer.give(FIN, 0, 0, b"");
    peer.give(RST, 1, 0, b"");
    assert_eq!(peer.engine.take_error(), Some(Errno::PIPE));
}

#[test]
fn a_silent_peer_is_probed_and_given_up() {
    let keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(10),
        count: 3,
    };
    let config = Config {
        keepalive: Some(keepalive),
        ..plain()
    };
    let mut peer = Peer::established(&config);
    assert!(peer.engine.is_idle());
    // Any segment restarts the time, without touching the timer.
    peer.wait(Duration::from_secs(50));
    peer.give(ACK, 0, 0, b"");
    peer.wait(Duration::from_secs(55));
    assert_eq!(peer.brief(), []);
    peer.wait(Duration::from_secs(6));
    assert_eq!(peer.brief(), [(ACK, u32::MAX, 0, 0)]);
    peer.give(ACK, 0, 0, b"");
    peer.wait(Duration::from_secs(59));
    assert_eq!(peer.brief(), []);
    let mut probes = 0;
    while peer.state() == State::Established {
        peer.wait_for_timer();
        probes += peer
            .brief()
            .iter()
            .filter(|sent| sent.1 == u32::MAX)
            .count();
    }
    assert_eq!(probes, 3);
    assert_eq!(peer.engine.take_error(), Some(Errno::TIMEDOUT));

    let mut peer = Peer::established(&plain());
    peer.wait(Duration::from_secs(100));
    let now = peer.now;
    peer.engine.set_keepalive(Some(keepalive), now);
    assert_eq!(peer.engine.keepalive(), Some(keepalive));
    assert!(peer.engine.next_timeout().unwrap() <= now + ms(60_000));
    peer.engine.set_keepalive(None, now);
    assert_eq!(peer.engine.next_timeout(), None);
}

#[test]
fn shutting_down_for_reading_ends_reading_only_here() {
    let mut peer = Peer::established(&plain());
    let now = peer.now;
    assert!(!peer.engine.readable());
    peer.engine.shutdown(Shutdown::Read, now).unwrap();
    assert!(peer.engine.readable());
    assert_eq!(peer.engine.read(&mut [0; 10]), Ok(0));
    assert_eq!(peer.brief(), []);
    // As on Linux, data that still arrives can be read.
    peer.give(ACK, 0, 0, b"data");
    assert_eq!(peer.engine.read(&mut [0; 10]), Ok(4));
    let mut connecting = Peer::connecting(&plain());
    assert_eq!(
        connecting.engine.shutdown(Shutdown::Both, now),
        Err(Errno::NOTCONN)
    );
}
