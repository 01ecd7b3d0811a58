//! Instructions that the switch spends per frame.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use tidewall_bench_instructions::{Counter, Scenario};
use tidewall_protocol::tcp::{FourTuple, Secrets, SegmentInPieces};
use tidewall_switch::modules::{Lost, Module, RoundRobin};
use tidewall_switch::{Config, Emission, Member, Switch};
use tidewall_wire::acp;
use tidewall_wire::tcp::{Flags, Header, Options};

const SCENARIOS: [Scenario; 2] = [
    ("a frame of 64 bytes in, and its acknowledgment", inbound),
    ("a frame of 64 bytes out, and its acknowledgment", outbound),
];

/// Initial sequence number of every end.
const INITIAL: u32 = 1000;

/// An open connection over four members.
struct Opened {
    switch: Switch,
    peer: FourTuple,
    /// The switch's number towards the peer.
    initial: u32,
    members: Vec<(FourTuple, u32)>,
    now: Duration,
}

fn header(flow: &FourTuple, sequence: u32, acknowledgment: u32, flags: Flags) -> Header {
    Header {
        source_port: flow.remote.port(),
        destination_port: flow.local.port(),
        sequence,
        acknowledgment,
        flags,
        window: u16::MAX,
        ..Header::default()
    }
}

impl Opened {
    fn new() -> Self {
        let config = Config::new("192.0.2.1:80".parse().expect("an address"));
        let peer = FourTuple {
            local: config.address,
            remote: "198.51.100.7:40000".parse().expect("an address"),
        };
        let secrets = Secrets {
            sequence: [1; 16],
            cookie: [2; 16],
        };
        let module = || Box::new(RoundRobin::new(Lost::Reset)) as Box<dyn Module>;
        let mut opened = Self {
            switch: Switch::new(config, secrets, Box::new(module)).expect("a configuration"),
            peer,
            initial: 0,
            members: Vec::new(),
            now: Duration::from_secs(1),
        };
        for number in 1..=4 {
            let member = Member {
                address: format!("10.0.1.{number}:6379").parse().expect("an address"),
                local: "10.0.0.1".parse().expect("an address"),
            };
            let added = opened.switch.add_member(opened.now, member, &mut |_| ());
            added.expect("a member");
        }
        let options = Options {
            maximum_segment_size: Some(1460),
            ..Options::default()
        };
        let options = options.with_acp(Some(acp::VERSION));
        let mut syn = header(&peer, INITIAL, 0, Flags::SYN);
        syn.options = options;
        for emission in opened.put(peer, syn, &[]) {
            let began = emission.header.sequence;
            opened.members.push((emission.flow, began));
            let flags = Flags::SYN | Flags::ACK;
            let mut answer = header(&emission.flow, INITIAL, began.wrapping_add(1), flags);
            answer.options = options;
            for emission in opened.put(emission.flow, answer, &[]) {
                opened.initial = emission.header.sequence;
            }
        }
        let ack = header(
            &peer,
            INITIAL + 1,
            opened.initial.wrapping_add(1),
            Flags::ACK,
        );
        opened.put(peer, ack, &[]);
        assert_eq!(opened.switch.counters().connections, 1);
        opened
    }

    fn put(&mut self, flow: FourTuple, header: Header, payload: &[u8]) -> Vec<Emission> {
        let mut emissions = Vec::new();
        self.input(flow, header, payload, &mut |emission| {
            emissions.push(emission)
        });
        emissions
    }

    fn input(
        &mut self,
        flow: FourTuple,
        header: Header,
        payload: &[u8],
        emit: &mut dyn FnMut(Emission),
    ) {
        let segment = SegmentInPieces {
            flow,
            header,
            payload: payload.into(),
            traffic_class: 0,
        };
        self.switch.input_in_pieces(self.now, &segment, emit);
    }
}

/// A frame whose segment is 64 bytes on Ethernet is of ten bytes; here of 64.
fn frame() -> Vec<u8> {
    let mut bytes = acp::Header::null(64).expect("a frame").bytes().to_vec();
    bytes[1] = acp::Kind::Data as u8;
    bytes.resize(64, 7);
    bytes
}

fn inbound(counter: &mut Counter) {
    let mut opened = Opened::new();
    let (frame, peer) = (frame(), opened.peer);
    let acknowledged = opened.initial.wrapping_add(1);
    let mut sequence = INITIAL + 1;
    while counter.next_round() {
        counter.count(4, || {
            for member in 0..4 {
                let segment = header(&peer, sequence, acknowledged, Flags::ACK);
                let mut sent = 0;
                opened.input(peer, segment, &frame, &mut |emission| {
                    black_box(&emission);
                    sent += 1;
                });
                assert_eq!(sent, 1);
                sequence = sequence.wrapping_add(64);
                let (flow, next) = &mut opened.members[member];
                *next = next.wrapping_add(64);
                let (flow, next) = (*flow, next.wrapping_add(1));
                let ack = header(&flow, INITIAL + 1, next, Flags::ACK);
                opened.input(flow, ack, &[], &mut |emission| {
                    black_box(&emission);
                    sent += 1;
                });
                assert_eq!(sent, 2);
            }
        });
    }
}

fn outbound(counter: &mut Counter) {
    let mut opened = Opened::new();
    let (frame, peer) = (frame(), opened.peer);
    let mut sequences = [INITIAL + 1; 4];
    let mut acknowledged = opened.initial.wrapping_add(1);
    while counter.next_round() {
        counter.count(4, || {
            for (member, sequence) in sequences.iter_mut().enumerate() {
                let (flow, next) = opened.members[member];
                let segment = header(&flow, *sequence, next.wrapping_add(1), Flags::ACK);
                let mut sent = 0;
                opened.input(flow, segment, &frame, &mut |emission| {
                    black_box(&emission);
                    sent += 1;
                });
                *sequence = sequence.wrapping_add(64);
                acknowledged = acknowledged.wrapping_add(64);
                let ack = header(&peer, INITIAL + 1, acknowledged, Flags::ACK);
                opened.input(peer, ack, &[], &mut |emission| {
                    black_box(&emission);
                    sent += 1;
                });
                assert_eq!(sent, 2);
            }
        });
    }
}

fn main() -> ExitCode {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
    tidewall_bench_instructions::count(file, &SCENARIOS)
}
