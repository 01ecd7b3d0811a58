//! Instructions that the TCP engine spends per segment of the clean path, counted by
//! valgrind. The copying of payload by libc is left out, since it would hide the engine's
//! instructions.
//!
//! `cargo bench -p tidewall-protocol --bench instructions` compares them with
//! `benches/instructions.txt`; `-- --keep` writes that file. See
//! `tidewall_bench_instructions`.

use std::process::ExitCode;
use std::time::Duration;

use tidewall_bench_instructions::{Counter, Scenario};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{
    self, Checksum, Config, Connection, FourTuple, Handshake, Link, State,
};
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::{Flags, Header, Options, Timestamps};

const SCENARIOS: [Scenario; 4] = [
    ("bulk, a segment of 1448 bytes", bulk),
    ("request and response, an exchange", exchange),
    ("bulk with offload, 64 KiB", offload),
    ("a byte beyond a hole, one in two", small_ranges),
];

const WIRE: InputOptions = InputOptions {
    verified: true,
    checksum_offload_possible: false,
};

const LINK: Link = Link {
    source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
    destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
    hop_limit: 64,
    checksum: Checksum::Offload,
};

/// Two established ends, and the frame between them.
struct Pair {
    ends: [Connection; 2],
    now: Duration,
    frame: Vec<u8>,
}

impl Pair {
    fn new(config: &Config) -> Self {
        let flow = FourTuple {
            local: "192.0.2.1:40000".parse().expect("an address"),
            remote: "192.0.2.2:80".parse().expect("an address"),
        };
        let handshake = |flow, local_isn, remote_isn| Handshake {
            flow,
            local_isn,
            remote_isn,
            mss: 1460,
            window_scale: Some(7),
            local_window_scale: 7,
            sack: true,
            ecn: false,
            timestamps: Some(Timestamps { value: 1, echo: 1 }),
            timestamp_offset: 0,
            window: 65_535,
            round_trip: Some(Duration::from_micros(100)),
            fast_open: None,
        };
        let back = FourTuple {
            local: flow.remote,
            remote: flow.local,
        };
        let now = Duration::from_secs(1);
        Self {
            ends: [
                Connection::accept(&handshake(flow, 1000, 9000), config, now),
                Connection::accept(&handshake(back, 9000, 1000), config, now),
            ],
            now,
            frame: vec![0; 1 << 17],
        }
    }

    /// One end sends all it may to the other. Returns the number of segments.
    fn send(&mut self, from: usize) -> usize {
        let [first, second] = &mut self.ends;
        let (sender, receiver) = if from == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let (flow, now, frame) = (*sender.flow(), self.now, &mut self.frame);
        let mut sent = 0;
        sender.output(now, &mut |outgoing| {
            let length = tcp::output(frame, &LINK, &flow, outgoing).expect("room for a segment");
            let segment = tcp::input(&frame[HEADER_LEN..length], 20, &WIRE).expect("a segment");
            receiver.input(&segment, now);
            sent += 1;
            true
        });
        sent
    }

    /// Runs until neither end has anything to send at this time.
    fn quiesce(&mut self) {
        while self.send(0) + self.send(1) > 0 {}
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            if end.next_timeout().is_some_and(|at| at <= self.now) {
                end.timeout(self.now);
            }
        }
    }
}

/// A stream of writes of `length` bytes, `calls` of which make up one counted operation.
fn stream(config: &Config, length: usize, calls: usize, counter: &mut Counter) {
    let mut pair = Pair::new(config);
    let bytes = vec![7; length];
    let mut buffer = vec![0; 1 << 17];
    let mut sent = 0;
    while counter.next_round() {
        counter.count(calls, || {
            let written = pair.ends[0].write(&bytes).expect("room");
            assert_eq!(written, length);
            // Like a receiver that takes all segments of its channel, and then sends the
            // answers.
            while pair.ends[0].wants_output() {
                pair.send(0);
                pair.pass(Duration::from_micros(20));
                while let Ok(1..) = pair.ends[1].read(&mut buffer) {}
                pair.send(1);
            }
            pair.pass(Duration::from_millis(41));
            pair.quiesce();
        });
        sent += length as u64;
    }
    assert_eq!(pair.ends[0].state(), State::Established);
    assert_eq!(pair.ends[0].info().retransmissions, 0);
    assert_eq!(pair.ends[0].info().bytes_acknowledged, sent);
}

/// Ten full segments per round.
fn bulk(counter: &mut Counter) {
    stream(&Config::default(), 14_480, 10, counter);
}

fn offload(counter: &mut Counter) {
    let config = Config {
        offload: 65_000,
        ..Config::default()
    };
    stream(&config, 65_160, 1, counter);
}

fn exchange(counter: &mut Counter) {
    let mut pair = Pair::new(&Config {
        nodelay: true,
        ..Config::default()
    });
    let (request, response) = ([1; 100], [2; 1000]);
    let mut buffer = [0; 2000];
    while counter.next_round() {
        counter.count(1, || {
            pair.ends[0].write(&request).expect("room");
            pair.send(0);
            pair.pass(Duration::from_micros(10));
            assert_eq!(pair.ends[1].read(&mut buffer), Ok(request.len()));
            pair.ends[1].write(&response).expect("room");
            pair.send(1);
            pair.pass(Duration::from_micros(10));
            assert_eq!(pair.ends[0].read(&mut buffer), Ok(response.len()));
        });
    }
}

/// The worst that a hostile peer can cause: a thousand bytes, each beyond a hole of one,
/// the last of them first.
fn small_ranges(counter: &mut Counter) {
    const RANGES: u32 = 1000;
    let mut pair = Pair::new(&Config::default());
    let end = &mut pair.ends[1];
    let filling = [7; 2 * RANGES as usize];
    let mut buffer = [0; 2 * RANGES as usize];
    let mut sequence = 1001u32;
    let now = pair.now;
    while counter.next_round() {
        let flow = *end.flow();
        let mut segment = tcp::Segment {
            flow,
            header: Header {
                source_port: flow.remote.port(),
                destination_port: flow.local.port(),
                acknowledgment: 9001,
                flags: Flags::ACK,
                window: 512,
                options: Options {
                    timestamps: Some(Timestamps { value: 1, echo: 1 }),
                    ..Options::default()
                },
                ..Header::default()
            },
            payload: &[7],
            traffic_class: 0,
        };
        counter.count(RANGES as usize, || {
            for range in (0..RANGES).rev() {
                segment.header.sequence = sequence.wrapping_add(2 * range + 1);
                end.input(&segment, now);
            }
        });
        segment.header.sequence = sequence;
        segment.payload = &filling;
        end.input(&segment, now);
        end.output(now, &mut |_| true);
        sequence = sequence.wrapping_add(2 * RANGES);
        assert_eq!(end.read(&mut buffer), Ok(filling.len()));
        end.output(now, &mut |_| true);
    }
}

fn main() -> ExitCode {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
    tidewall_bench_instructions::count(file, &SCENARIOS)
}
