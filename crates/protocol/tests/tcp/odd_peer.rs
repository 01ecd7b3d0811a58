//! The engine with a peer that is honest but odd, or not honest.

use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Congestion, Connection, Handshake, Shutdown, State, Timestamps,
};
use tidewall_wire::tcp::Flags;

use crate::link::{Frame, flow};
use crate::peer::{MSS, OURS, Peer};

/// The defaults, for segments of [`MSS`] bytes.
fn config(timestamps: bool) -> Config {
    Config {
        mss: MSS as u16 + if timestamps { 12 } else { 0 },
        timestamps,
        ..Config::default()
    }
}

fn peer_of(config: &Config) -> Peer {
    let mut peer = Peer::with_window(config, u16::MAX);
    peer.acknowledge();
    assert_eq!(peer.state(), State::Established);
    peer
}

fn stamp(value: u32) -> Option<Timestamps> {
    Some(Timestamps { value, echo: 0 })
}

/// A peer may answer everything but never open its window. It must not hold the memory of
/// a connection that its application has closed (RFC 6429 §4; "sockstress").
#[test]
fn a_closed_window_does_not_keep_an_orphan() {
    for fin_only in [false, true] {
        let mut peer = peer_of(&config(false));
        if !fin_only {
            peer.engine.write(&[1; 500]).unwrap();
            assert_eq!(peer.sent().len(), 1);
        }
        peer.engine.close(None, peer.now);
        peer.sent();
        peer.window = 0;
        let mut rounds = 0;
        while peer.state() != State::Closed {
            rounds += 1;
            assert!(rounds < 100, "kept for ever, {fin_only}");
            peer.acknowledge();
            peer.sent();
            peer.wait_for_timer();
            peer.sent();
        }
    }
}

/// One acknowledgment may cover a batch. How much it covers must not decide how far the
/// window falls (RFC 5681 equation 4, RFC 6675 §5).
#[test]
fn half_of_the_flight_is_kept_however_losses_are_reported() {
    for batched in [false, true] {
        let mut peer = peer_of(&Config {
            initial_window: 40,
            congestion: Congestion::NewReno,
            ..config(false)
        });
        peer.engine.write(&vec![0; 40_000]).unwrap();
        assert_eq!(peer.sent().len(), 40);
        // The first is lost.
        if batched {
            peer.selectively(1000, 40_000);
        } else {
            for end in 2..=40 {
                peer.selectively(1000, end * 1000);
                peer.sent();
            }
        }
        peer.sent();
        let info = peer.engine.info();
        assert_eq!(info.fast_recoveries, 1);
        assert!(
            (17_000..=21_000).contains(&info.slow_start_threshold),
            "{} of 40000 in flight, batched: {batched}",
            info.slow_start_threshold
        );
    }
}

/// After a timeout slow start ends at the threshold, whatever one acknowledgment
/// covers (RFC 5681 §3.1).
#[test]
fn slow_start_does_not_run_over_its_threshold() {
    let mut peer = peer_of(&Config {
        initial_window: 40,
        congestion: Congestion::NewReno,
        sack: false,
        ..config(false)
    });
    peer.engine.write(&vec![0; 40_000]).unwrap();
    assert_eq!(peer.sent().len(), 40);
    peer.wait_for_timer();
    assert_eq!(peer.sent().len(), 1);
    let threshold = peer.engine.info().slow_start_threshold;
    assert_eq!(threshold, 20_000);
    // Only the first and the 36th were lost.
    peer.acknowledgment = peer.acknowledgment.wrapping_add(35_000);
    peer.acknowledge();
    let window = peer.engine.info().congestion_window;
    assert!(
        window <= threshold + MSS as u32,
        "{window} over a threshold of {threshold}"
    );
}

/// The echo is the timestamp of the earliest segment that the acknowledgment covers.
/// Otherwise the peer would count our delay as part of the path (RFC 7323 §4.3).
#[test]
fn a_delayed_acknowledgment_echoes_the_first_timestamp() {
    let mut peer = peer_of(&config(true));
    peer.sent();
    peer.timestamps = stamp(1_000_100);
    peer.data(&[1; 400]);
    peer.timestamps = stamp(1_000_130);
    peer.data(&[2; 400]);
    let sent = peer.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.acknowledgment, peer.sequence);
    let echo = sent[0].header.options.timestamps.unwrap().echo;
    assert_eq!(echo, 1_000_100);
    // The next one echoes its own.
    peer.timestamps = stamp(1_000_200);
    peer.data(&[3; 400]);
    let sent = peer.sent();
    assert_eq!(sent[0].header.options.timestamps.unwrap().echo, 1_000_200);
}

/// A probe's sequence number is not acceptable, so its acknowledgment is not read. The
/// probe cannot replace an acknowledgment that is due.
#[test]
fn a_probe_does_not_swallow_an_acknowledgment() {
    let mut peer = peer_of(&config(false));
    peer.window = 0;
    peer.acknowledge();
    peer.engine.write(&[1; 5000]).unwrap();
    peer.sent();
    let probe_at = peer.engine.next_timeout().unwrap();
    peer.now = probe_at;
    peer.data(&[7; 100]);
    peer.engine.timeout(peer.now);
    let next = peer.sequence;
    let sent = peer.sent();
    let first = OURS.wrapping_add(1);
    assert!(
        sent.iter()
            .any(|Frame { header, .. }| header.sequence == first && header.acknowledgment == next),
        "{sent:?}"
    );
}

/// RFC 5961 §4.2: every SYN in a synchronized state is answered. Only then does a peer
/// that has restarted reset the old connection.
#[test]
fn every_syn_is_challenged() {
    for timestamps in [false, true] {
        for offset in [0, 5, 1 << 30, u32::MAX] {
            let mut peer = peer_of(&config(timestamps));
            peer.sent();
            let mut header = peer.header(Flags::SYN);
            header.acknowledgment = 0;
            header.sequence = header.sequence.wrapping_add(offset);
            header.options.timestamps = None;
            peer.give_header(header, &[]);
            let sent = peer.sent();
            assert_eq!(sent.len(), 1, "offset {offset}, timestamps {timestamps}");
            assert_eq!(sent[0].header.flags, Flags::ACK);
            assert_eq!(sent[0].header.acknowledgment, peer.sequence);
            assert_eq!(peer.state(), State::Established);
        }
    }
}

/// RFC 5482: the user timeout ends the connection when it expires, not when the
/// retransmission timer happens to expire next.
#[test]
fn the_user_timeout_is_kept() {
    let limit = Duration::from_secs(10);
    let mut peer = peer_of(&Config {
        user_timeout: Some(limit),
        ..config(false)
    });
    peer.engine.write(b"anybody there?").unwrap();
    peer.sent();
    let start = peer.now;
    while peer.state() != State::Closed {
        peer.wait_for_timer();
        peer.sent();
    }
    let took = peer.now - start;
    assert!(
        took >= limit && took <= limit + Duration::from_millis(1500),
        "{took:?}"
    );
}

/// RFC 5961 §3, §4, §5: no segment of a blind attacker ends the connection or changes its
/// data. Nor does it cause more than a few answers.
#[test]
fn blind_segments_change_nothing() {
    let mut peer = peer_of(&config(true));
    peer.sent();
    let mut answers = 0;
    // Spread over the sequence space; none hits the exact number.
    for guess in 0..20_000u32 {
        let mut header = peer.header(Flags::RST);
        header.sequence = guess.wrapping_mul(214_748).wrapping_add(1);
        header.options.timestamps = None;
        if header.sequence == peer.sequence {
            continue;
        }
        match guess % 4 {
            0 => {}
            1 => header.flags = Flags::SYN,
            2 => header.flags = Flags::RST | Flags::ACK,
            _ => {
                header.flags = Flags::ACK;
                header.acknowledgment = guess.wrapping_mul(7919);
            }
        }
        let payload: &[u8] = if guess % 4 == 3 { b"evil" } else { b"" };
        peer.give_header(header, payload);
        answers += peer.sent().len();
    }
    assert_eq!(peer.state(), State::Established);
    assert!(
        answers <= 2,
        "{answers} answers to a blind attacker at once"
    );
    // The connection works as before.
    peer.data(b"good");
    let mut buffer = [0; 16];
    assert_eq!(peer.engine.read(&mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"good");
}

/// Two ends that disagree about everything answer each other at most twice per second.
#[test]
fn acknowledgments_do_not_storm() {
    let mut peer = peer_of(&Config {
        sack: false,
        ..config(false)
    });
    peer.sent();
    let mut answers = 0;
    for _ in 0..10_000 {
        let mut header = peer.header(Flags::ACK);
        header.sequence = header.sequence.wrapping_sub(100_000);
        header.acknowledgment = header.acknowledgment.wrapping_add(100_000);
        peer.give_header(header, &[]);
        answers += peer.sent().len();
        peer.now += Duration::from_millis(1);
    }
    assert!((1..=21).contains(&answers), "{answers}");
    assert_eq!(peer.state(), State::Established);
}

/// Segments at the far end of the window, one byte each, in every order. Memory stays
/// within the announced window, and announced data is delivered.
#[test]
fn ranges_cost_no_more_than_the_window() {
    let mut peer = peer_of(&config(false));
    peer.sent();
    let window = peer.engine.info().receive_window;
    let start = peer.sequence;
    for offset in (1..window).rev().step_by(2) {
        let mut header = peer.header(Flags::ACK);
        header.sequence = start.wrapping_add(offset);
        peer.give_header(header, &[offset as u8]);
        peer.sent();
    }
    let bytes: Vec<u8> = (0..window).map(|n| n as u8).collect();
    for chunk in bytes.chunks(1000) {
        peer.data(chunk);
        peer.sent();
    }
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length) = peer.engine.read(&mut buffer) {
        got.extend_from_slice(&buffer[..length]);
    }
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
}

/// A peer that names a tiny segment size makes us send small packets, not
/// packets without data.
#[test]
fn a_tiny_segment_size_is_not_believed() {
    for mss in [0, 1, 11, 12, 13, 48] {
        let handshake = Handshake {
            flow: flow(false),
            local_isn: 1,
            remote_isn: 2,
            mss,
            window_scale: Some(14),
            local_window_scale: 7,
            sack: true,
            ecn: false,
            timestamps: Some(Timestamps::default()),
            timestamp_offset: 0,
            window: u16::MAX,
            round_trip: None,
            fast_open: None,
        };
        let now = Duration::ZERO;
        let mut connection = Connection::accept(&handshake, &config(true), now);
        connection.write(&[0; 2000]).unwrap();
        let mut packets = 0;
        connection.output(now, &mut |outgoing| {
            assert!(outgoing.payload_len() >= 64, "{}", outgoing.payload_len());
            packets += 1;
            true
        });
        assert!(packets >= 1);
    }
}

/// Data in flight beyond a window that has shrunk is retransmitted when it opens, and the
/// bytes are right (RFC 9293 §3.8.6).
#[test]
fn a_window_may_shrink_and_open_again() {
    let mut peer = peer_of(&config(false));
    let bytes: Vec<u8> = (0..30_000u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(peer.engine.write(&bytes), Ok(bytes.len()));
    peer.sent();
    peer.window = 0;
    peer.acknowledge();
    peer.sent();
    let first = OURS.wrapping_add(1);
    let mut got: Vec<u8> = Vec::new();
    // Nothing beyond the window was accepted; the peer accepts 700 bytes at a time.
    let mut rounds = 0;
    while got.len() < bytes.len() {
        rounds += 1;
        assert!(rounds < 500, "{} bytes", got.len());
        peer.window = 700;
        peer.acknowledge();
        let mut sent = peer.sent();
        if sent.is_empty() {
            peer.wait_for_timer();
            sent = peer.sent();
        }
        for Frame {
            header, payload, ..
        } in sent
        {
            let offset = header.sequence.wrapping_sub(first) as usize;
            if offset == got.len() {
                let taken = payload.len().min(700);
                got.extend_from_slice(&payload[..taken]);
                peer.acknowledgment = first.wrapping_add(got.len() as u32);
            }
        }
    }
    assert!(got == bytes);
    peer.window = u16::MAX;
    peer.acknowledge();
    assert_eq!(peer.engine.info().unacknowledged, 0);
}

/// After we half-close, the peer continues; a FIN beyond a hole waits for the hole.
#[test]
fn a_fin_beyond_a_hole_waits() {
    let mut peer = peer_of(&config(false));
    peer.engine.shutdown(Shutdown::Write, peer.now).unwrap();
    let sent = peer.sent();
    assert!(
        sent.iter()
            .any(|frame| frame.header.flags.contains(Flags::FIN))
    );
    peer.acknowledgment = peer.acknowledgment.wrapping_add(1);
    peer.acknowledge();
    assert_eq!(peer.state(), State::FinWait2);
    let start = peer.sequence;
    let mut fin = peer.header(Flags::ACK | Flags::FIN);
    fin.sequence = start.wrapping_add(5);
    peer.give_header(fin, b"world");
    peer.sent();
    assert_eq!(peer.state(), State::FinWait2);
    assert!(!peer.engine.readable());
    let header = peer.header(Flags::ACK);
    peer.give_header(header, b"hello");
    let sent = peer.sent();
    assert_eq!(
        sent.last().unwrap().header.acknowledgment,
        start.wrapping_add(11)
    );
    let mut buffer = [0; 16];
    assert_eq!(peer.engine.read(&mut buffer), Ok(10));
    assert_eq!(&buffer[..10], b"helloworld");
    assert_eq!(peer.engine.read(&mut buffer), Ok(0));
    assert_eq!(peer.state(), State::TimeWait);
    peer.wait(Duration::from_secs(61));
    assert_eq!(peer.state(), State::Closed);
}
