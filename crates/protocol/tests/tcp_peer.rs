//! The TCP engine against a peer that is honest but odd, or not honest: its
//! segments are written by hand.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tidewall_protocol::tcp::{
    Config, Congestion, Connection, FourTuple, Handshake, Segment, Shutdown, State, Timestamps,
};
use tidewall_wire::tcp::{Flags, Header, Options, SackBlocks};

const MSS: u16 = 1000;
const LOCAL_ISN: u32 = u32::MAX - 5000;
const REMOTE_ISN: u32 = u32::MAX - 3000;

/// A connection and the hand that writes its peer's segments.
struct Bench {
    connection: Connection,
    now: Duration,
    /// The peer's next sequence number, and what it acknowledges.
    sequence: u32,
    acknowledgment: u32,
    window: u16,
    /// The peer's clock, where timestamps are in use.
    clock: Option<u32>,
    sent: VecDeque<(Header, Vec<u8>)>,
}

#[derive(Clone, Copy)]
struct Peer {
    sack: bool,
    timestamps: bool,
}

const PLAIN: Peer = Peer {
    sack: false,
    timestamps: false,
};
const SACK: Peer = Peer {
    sack: true,
    timestamps: false,
};
const STAMPED: Peer = Peer {
    sack: true,
    timestamps: true,
};

impl Bench {
    fn new(peer: Peer, config: Config) -> Bench {
        let flow = FourTuple {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, 0, 0, 2], 5000)),
        };
        let now = Duration::from_secs(10);
        let clock = peer.timestamps.then_some(1_000_000);
        let handshake = Handshake {
            flow,
            local_isn: LOCAL_ISN,
            remote_isn: REMOTE_ISN,
            mss: MSS + if peer.timestamps { 12 } else { 0 },
            window_scale: None,
            local_window_scale: 0,
            sack: peer.sack,
            ecn: false,
            timestamps: clock.map(|value| Timestamps { value, echo: 0 }),
            timestamp_offset: 77,
            window: u16::MAX,
            round_trip: Some(Duration::from_millis(10)),
            fast_open: None,
        };
        let mut bench = Bench {
            connection: Connection::accept(&handshake, &config, now),
            now,
            sequence: REMOTE_ISN.wrapping_add(1),
            acknowledgment: LOCAL_ISN.wrapping_add(1),
            window: u16::MAX,
            clock,
            sent: VecDeque::new(),
        };
        bench.acknowledge();
        assert_eq!(bench.connection.state(), State::Established);
        bench
    }

    fn header(&self, flags: Flags) -> Header {
        Header {
            source_port: 5000,
            destination_port: 80,
            sequence: self.sequence,
            acknowledgment: self.acknowledgment,
            flags,
            window: self.window,
            options: Options {
                timestamps: self.clock.map(|value| Timestamps { value, echo: 0 }),
                ..Options::default()
            },
            ..Header::default()
        }
    }

    /// One segment, without what it brings about.
    fn give(&mut self, header: Header, payload: &[u8]) {
        let segment = Segment {
            flow: *self.connection.flow(),
            header,
            payload,
            traffic_class: 0,
        };
        self.connection.input(&segment, self.now);
    }

    fn output(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut sent = Vec::new();
        self.connection.output(self.now, &mut |outgoing| {
            sent.push((outgoing.header, outgoing.payload.concat()));
            true
        });
        self.sent.extend(sent.iter().cloned());
        sent
    }

    /// A bare acknowledgment of what it has.
    fn acknowledge(&mut self) {
        let header = self.header(Flags::ACK);
        self.give(header, &[]);
    }

    fn data(&mut self, payload: &[u8]) {
        let header = self.header(Flags::ACK);
        self.give(header, payload);
        self.sequence = self.sequence.wrapping_add(payload.len() as u32);
    }

    /// An acknowledgment that names what lies beyond a hole, in bytes from the
    /// first.
    fn selectively(&mut self, from: u32, to: u32) {
        let mut sack = SackBlocks::default();
        let first = LOCAL_ISN.wrapping_add(1);
        assert!(sack.push(first.wrapping_add(from), first.wrapping_add(to)));
        let mut header = self.header(Flags::ACK);
        header.options.sack = sack;
        self.give(header, &[]);
    }

    /// Moves the time to the next timer.
    fn expire(&mut self) -> bool {
        let Some(at) = self.connection.next_timeout() else {
            return false;
        };
        self.now = self.now.max(at);
        self.connection.timeout(self.now);
        true
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.connection.next_timeout().is_some_and(|at| at <= end) {
            self.expire();
            self.output();
        }
        self.now = end;
    }

    fn next(&self) -> u32 {
        self.sequence
    }
}

fn config() -> Config {
    Config::default()
}

/// A peer that answers everything but never opens its window must not hold the
/// memory of a connection whose application is gone (RFC 6429 §4; "sockstress").
#[test]
fn a_closed_window_does_not_keep_an_orphan() {
    for fin_only in [false, true] {
        let mut bench = Bench::new(SACK, config());
        if !fin_only {
            bench.connection.write(&[1; 500]).unwrap();
            assert_eq!(bench.output().len(), 1);
        }
        bench.connection.close(None, bench.now);
        bench.output();
        bench.window = 0;
        let mut rounds = 0;
        while bench.connection.state() != State::Closed {
            rounds += 1;
            assert!(rounds < 100, "kept for ever, {fin_only}");
            bench.acknowledge();
            bench.output();
            assert!(bench.expire(), "no timer runs");
            bench.output();
        }
    }
}

/// One acknowledgment may tell of a whole batch: how much it tells must not
/// decide how far the window falls (RFC 5681 equation 4, RFC 6675 §5).
#[test]
fn half_of_the_flight_is_kept_however_losses_are_told() {
    for batched in [false, true] {
        let mut bench = Bench::new(
            SACK,
            Config {
                initial_window: 40,
                congestion: Congestion::NewReno,
                ..config()
            },
        );
        bench.connection.write(&vec![0; 40_000]).unwrap();
        assert_eq!(bench.output().len(), 40);
        // The first is lost.
        if batched {
            bench.selectively(1000, 40_000);
        } else {
            for end in 2..=40 {
                bench.selectively(1000, end * 1000);
                bench.output();
            }
        }
        bench.output();
        let info = bench.connection.info();
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
    let mut bench = Bench::new(
        PLAIN,
        Config {
            initial_window: 40,
            congestion: Congestion::NewReno,
            ..config()
        },
    );
    bench.connection.write(&vec![0; 40_000]).unwrap();
    assert_eq!(bench.output().len(), 40);
    bench.expire();
    assert_eq!(bench.output().len(), 1);
    let threshold = bench.connection.info().slow_start_threshold;
    assert_eq!(threshold, 20_000);
    // Only the first and the 36th were lost.
    bench.acknowledgment = bench.acknowledgment.wrapping_add(35_000);
    bench.acknowledge();
    let window = bench.connection.info().congestion_window;
    assert!(
        window <= threshold + u32::from(MSS),
        "{window} over a threshold of {threshold}"
    );
}

/// What is echoed is the timestamp of the earliest segment that the
/// acknowledgment covers, or the peer takes our delay for a short path (RFC 7323
/// §4.3).
#[test]
fn a_delayed_acknowledgment_echoes_the_first_timestamp() {
    let mut bench = Bench::new(STAMPED, config());
    bench.output();
    bench.clock = Some(1_000_100);
    bench.data(&[1; 400]);
    bench.clock = Some(1_000_130);
    bench.data(&[2; 400]);
    let sent = bench.output();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0.acknowledgment, bench.next());
    let echo = sent[0].0.options.timestamps.unwrap().echo;
    assert_eq!(echo, 1_000_100);
    // And the next one its own.
    bench.clock = Some(1_000_200);
    bench.data(&[3; 400]);
    let sent = bench.output();
    assert_eq!(sent[0].0.options.timestamps.unwrap().echo, 1_000_200);
}

/// A probe's sequence number is not acceptable, so its acknowledgment is not
/// read: it cannot stand for one that is due.
#[test]
fn a_probe_does_not_swallow_an_acknowledgment() {
    let mut bench = Bench::new(SACK, config());
    bench.window = 0;
    bench.acknowledge();
    bench.connection.write(&[1; 5000]).unwrap();
    bench.output();
    let probe_at = bench.connection.next_timeout().unwrap();
    bench.now = probe_at;
    bench.data(&[7; 100]);
    bench.connection.timeout(bench.now);
    let next = bench.next();
    let sent = bench.output();
    let first = LOCAL_ISN.wrapping_add(1);
    assert!(
        sent.iter()
            .any(|(header, _)| header.sequence == first && header.acknowledgment == next),
        "{sent:?}"
    );
}

/// RFC 5961 §4.2: a SYN in a synchronized state is answered, whatever it looks
/// like: a peer that has restarted resets the old connection only then.
#[test]
fn every_syn_is_challenged() {
    for peer in [PLAIN, STAMPED] {
        for offset in [0, 5, 1 << 30, u32::MAX] {
            let mut bench = Bench::new(peer, config());
            bench.output();
            let mut header = bench.header(Flags::SYN);
            header.acknowledgment = 0;
            header.sequence = header.sequence.wrapping_add(offset);
            header.options.timestamps = None;
            bench.give(header, &[]);
            let sent = bench.output();
            assert_eq!(
                sent.len(),
                1,
                "offset {offset}, timestamps {}",
                peer.timestamps
            );
            assert_eq!(sent[0].0.flags, Flags::ACK);
            assert_eq!(sent[0].0.acknowledgment, bench.next());
            assert_eq!(bench.connection.state(), State::Established);
        }
    }
}

/// RFC 5482: the user timeout ends the connection when it is over, not when the
/// retransmission timer happens to expire next.
#[test]
fn the_user_timeout_is_kept() {
    let limit = Duration::from_secs(10);
    let mut bench = Bench::new(
        SACK,
        Config {
            user_timeout: Some(limit),
            ..config()
        },
    );
    bench.connection.write(b"anybody there?").unwrap();
    bench.output();
    let start = bench.now;
    while bench.connection.state() != State::Closed {
        assert!(bench.expire());
        bench.output();
    }
    let took = bench.now - start;
    assert!(
        took >= limit && took <= limit + Duration::from_millis(1500),
        "{took:?}"
    );
}

/// RFC 5961 §3, §4, §5: nothing that a blind attacker can send ends the
/// connection, changes its data, or has it answer more than a few times.
#[test]
fn blind_segments_change_nothing() {
    let mut bench = Bench::new(STAMPED, config());
    bench.output();
    let mut answers = 0;
    // Spread over the sequence space; none hits the exact number.
    for guess in 0..20_000u32 {
        let mut header = bench.header(Flags::RST);
        header.sequence = guess.wrapping_mul(214_748).wrapping_add(1);
        header.options.timestamps = None;
        if header.sequence == bench.next() {
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
        bench.give(header, payload);
        answers += bench.output().len();
    }
    assert_eq!(bench.connection.state(), State::Established);
    assert!(
        answers <= 2,
        "{answers} answers to a blind attacker at once"
    );
    // And it works as ever.
    bench.data(b"good");
    let mut buffer = [0; 16];
    assert_eq!(bench.connection.read(&mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"good");
}

/// Two ends that do not agree about anything answer each other at most twice a
/// second.
#[test]
fn acknowledgments_do_not_storm() {
    let mut bench = Bench::new(PLAIN, config());
    bench.output();
    let mut answers = 0;
    for _ in 0..10_000 {
        let mut header = bench.header(Flags::ACK);
        header.sequence = header.sequence.wrapping_sub(100_000);
        header.acknowledgment = header.acknowledgment.wrapping_add(100_000);
        bench.give(header, &[]);
        answers += bench.output().len();
        bench.now += Duration::from_millis(1);
    }
    assert!((1..=21).contains(&answers), "{answers}");
    assert_eq!(bench.connection.state(), State::Established);
}

/// Segments at the far end of the window, one byte each, in every order: memory
/// stays what the window promised, and what was promised is delivered.
#[test]
fn islands_cost_no_more_than_the_window() {
    let mut bench = Bench::new(SACK, config());
    bench.output();
    let window = bench.connection.info().receive_window;
    let start = bench.next();
    for island in (1..window).rev().step_by(2) {
        let mut header = bench.header(Flags::ACK);
        header.sequence = start.wrapping_add(island);
        bench.give(header, &[island as u8]);
        bench.output();
    }
    let bytes: Vec<u8> = (0..window).map(|n| n as u8).collect();
    for chunk in bytes.chunks(1000) {
        bench.data(chunk);
        bench.output();
    }
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length) = bench.connection.read(&mut buffer) {
        got.extend_from_slice(&buffer[..length]);
    }
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
}

/// A peer that names a tiny segment size makes us send small packets, not
/// packets without data.
#[test]
fn a_tiny_segment_size_is_not_believed() {
    for mss in [0, 1, 11, 12, 13, 48] {
        let flow = FourTuple {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, 0, 0, 2], 5000)),
        };
        let handshake = Handshake {
            flow,
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
        let mut connection = Connection::accept(&handshake, &config(), now);
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

/// What is in flight beyond a window that has shrunk is sent again when it
/// opens, and the bytes are right (RFC 9293 §3.8.6).
#[test]
fn a_window_may_shrink_and_open_again() {
    let mut bench = Bench::new(SACK, config());
    let bytes: Vec<u8> = (0..30_000u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(bench.connection.write(&bytes), Ok(bytes.len()));
    bench.output();
    bench.window = 0;
    bench.acknowledge();
    bench.output();
    let first = LOCAL_ISN.wrapping_add(1);
    let mut got: Vec<u8> = Vec::new();
    // Nothing beyond the window was taken; the peer takes 700 bytes at a time.
    let mut rounds = 0;
    while got.len() < bytes.len() {
        rounds += 1;
        assert!(rounds < 500, "{} bytes", got.len());
        bench.window = 700;
        bench.acknowledge();
        let mut sent = bench.output();
        if sent.is_empty() {
            assert!(bench.expire());
            sent = bench.output();
        }
        for (header, payload) in sent {
            let offset = header.sequence.wrapping_sub(first) as usize;
            if offset == got.len() {
                let taken = payload.len().min(700);
                got.extend_from_slice(&payload[..taken]);
                bench.acknowledgment = first.wrapping_add(got.len() as u32);
            }
        }
    }
    assert!(got == bytes);
    bench.window = u16::MAX;
    bench.acknowledge();
    assert_eq!(bench.connection.info().unacknowledged, 0);
}

/// Half closed by us, the peer goes on; a FIN beyond a hole waits for the hole.
#[test]
fn a_fin_beyond_a_hole_waits() {
    let mut bench = Bench::new(SACK, config());
    bench
        .connection
        .shutdown(Shutdown::Write, bench.now)
        .unwrap();
    let sent = bench.output();
    assert!(
        sent.iter()
            .any(|(header, _)| header.flags.contains(Flags::FIN))
    );
    bench.acknowledgment = bench.acknowledgment.wrapping_add(1);
    bench.acknowledge();
    assert_eq!(bench.connection.state(), State::FinWait2);
    let start = bench.sequence;
    let mut fin = bench.header(Flags::ACK | Flags::FIN);
    fin.sequence = start.wrapping_add(5);
    bench.give(fin, b"world");
    bench.output();
    assert_eq!(bench.connection.state(), State::FinWait2);
    assert!(!bench.connection.readable());
    let header = bench.header(Flags::ACK);
    bench.give(header, b"hello");
    let sent = bench.output();
    assert_eq!(
        sent.last().unwrap().0.acknowledgment,
        start.wrapping_add(11)
    );
    let mut buffer = [0; 16];
    assert_eq!(bench.connection.read(&mut buffer), Ok(10));
    assert_eq!(&buffer[..10], b"helloworld");
    assert_eq!(bench.connection.read(&mut buffer), Ok(0));
    assert_eq!(bench.connection.state(), State::TimeWait);
    bench.wait(Duration::from_secs(61));
    assert_eq!(bench.connection.state(), State::Closed);
}
