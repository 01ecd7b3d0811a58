//! A fuzz target of the whole machine. Bytes are read as a script of segments from the
//! peer and the members, of members that join and leave, and of time.

use std::path::Path;
use std::time::Duration;

use bolero::check;
use tidewall_protocol::tcp::{FourTuple, Secrets, Segment};
use tidewall_simulator::random::Random;
use tidewall_switch::modules::{HashOfKey, LeastOutstanding, Lost, Module, RoundRobin, Speed};
use tidewall_switch::{Config, Emission, Member, MemberId, Payload, Switch};
use tidewall_wire::acp;
use tidewall_wire::tcp::{Flags, Header, Options};

/// Time for random inputs in an ordinary test run.
const TIME: Duration = Duration::from_millis(2000);
const MEMBERS: u8 = 3;
const ISN: u32 = u32::MAX - 100;
/// In the first byte of a script.
const WITH_SACK: u8 = 8;

struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }
}

struct Machine {
    now: Duration,
    switch: Switch,
    peer: FourTuple,
    /// Connections to members, and the switch's initial numbers.
    members: Vec<(FourTuple, u32)>,
    isn: u32,
    /// All ends accept SACK, and segments have blocks.
    sack: bool,
}

impl Machine {
    fn new(choice: u8) -> Self {
        let mut config = Config::new("192.0.2.1:80".parse().expect("an address"));
        config.ring = 8;
        config.half_open_max = 1;
        config.kernel_ends = choice & 4 != 0;
        let secrets = Secrets {
            sequence: [1; 16],
            cookie: [2; 16],
        };
        let module = move || -> Box<dyn Module> {
            match choice & 3 {
                0 => Box::new(RoundRobin::new(Lost::Resend)),
                1 => Box::new(LeastOutstanding::new(Lost::Reset)),
                2 => Box::new(Speed::new(Lost::Resend)),
                _ => Box::new(HashOfKey::new(0..2, Lost::Resend)),
            }
        };
        let mut machine = Self {
            now: Duration::from_secs(1),
            switch: Switch::new(config, secrets, Box::new(module)).expect("a configuration"),
            peer: FourTuple {
                local: "192.0.2.1:80".parse().expect("an address"),
                remote: "198.51.100.7:40000".parse().expect("an address"),
            },
            members: Vec::new(),
            isn: 0,
            sack: choice & WITH_SACK != 0,
        };
        for number in 0..MEMBERS {
            machine.add_member(number);
        }
        machine
    }

    fn add_member(&mut self, number: u8) {
        let member = Member {
            address: format!("10.0.1.{number}:6379").parse().expect("an address"),
            local: "10.0.0.1".parse().expect("an address"),
        };
        let now = self.now;
        self.act(&[], |switch, emit| {
            let _ = switch.add_member(now, member, emit);
        });
    }

    /// Runs an operation on the switch, and checks what it sends.
    fn act(&mut self, payload: &[u8], act: impl FnOnce(&mut Switch, &mut dyn FnMut(Emission))) {
        let mut emissions = Vec::new();
        act(&mut self.switch, &mut |emission| emissions.push(emission));
        assert!(emissions.len() <= 300, "what one event causes is bounded");
        for emission in emissions {
            let header = &emission.header;
            match &emission.payload {
                Payload::None => {}
                Payload::Received(range) => {
                    let bytes = payload.get(range.clone()).expect("bytes of the segment");
                    assert!(
                        !bytes.is_empty() && acp::Frames::new(bytes).all(|frame| frame.is_ok())
                    );
                }
                Payload::Null(size) => assert!(acp::Header::null(*size).is_some()),
            }
            let blocks = header.options.sack.as_slice();
            assert!(blocks.is_empty() || self.sack && emission.payload == Payload::None);
            let beyond = |at: u32| at.wrapping_sub(header.acknowledgment) as i32;
            assert!(
                blocks
                    .iter()
                    .all(|&(first, end)| 0 < beyond(first) && beyond(first) < beyond(end))
            );
            if header.flags.contains(Flags::SYN) {
                if emission.flow.local == self.peer.local {
                    self.isn = header.sequence;
                } else {
                    self.members.retain(|(flow, _)| *flow != emission.flow);
                    self.members.push((emission.flow, header.sequence));
                }
            }
        }
        for flow in self.switch.flows() {
            assert!(
                flow.ring_in <= 8 && flow.ring_out <= 8 && flow.holes <= 24,
                "{flow:?}"
            );
            assert!(flow.members.iter().all(|end| end.gaps <= 64), "{flow:?}");
        }
        if let Some(next) = self.switch.next_deadline() {
            assert!(next + Duration::from_secs(1) >= self.now || self.switch.is_empty());
        }
    }

    fn segment(&mut self, flow: FourTuple, theirs: u32, script: &mut Script<'_>) -> Option<()> {
        let flags = match script.byte()? % 8 {
            0 => Flags::SYN,
            1 => Flags::SYN | Flags::ACK,
            2 => Flags::RST,
            3 => Flags::FIN | Flags::ACK,
            4 => Flags(script.byte()?),
            _ => Flags::ACK,
        };
        // Near the current positions: frames are of 4 to 19 bytes here.
        let sequence = ISN.wrapping_add(script.byte()?.into());
        let acknowledgment = theirs.wrapping_add(script.byte()?.into());
        let shape = script.byte()?;
        let mut payload = Vec::new();
        for _ in 0..shape & 7 {
            let length = script.byte()? & 15;
            payload.extend([0xac, u8::from(shape & 64 != 0), 0, length]);
            payload.resize(payload.len() + usize::from(length), 1);
        }
        if shape & 0x98 == 0x98
            && let Some(byte) = payload.last_mut()
        {
            *byte = script.byte()?;
        }
        let window = u16::from(script.byte()?) * 8;
        let mut options = Options {
            maximum_segment_size: Some(600),
            window_scale: (shape & 16 != 0).then_some(2),
            sack_permitted: self.sack,
            ..Options::default()
        };
        if self.sack && !flags.contains(Flags::SYN) {
            for _ in 0..script.byte().unwrap_or(0) & 3 {
                let mut place = || Some(theirs.wrapping_add(script.byte()?.into()));
                options.sack.push(place()?, place()?);
            }
        } else {
            options = options.with_acp((shape & 32 == 0).then_some(acp::VERSION));
        }
        let header = Header {
            source_port: flow.remote.port(),
            destination_port: flow.local.port(),
            sequence,
            acknowledgment,
            flags,
            window,
            options,
            ..Header::default()
        };
        let segment = Segment {
            flow,
            header,
            payload: &payload,
            traffic_class: 0,
        };
        let now = self.now;
        self.act(&payload, |switch, emit| switch.input(now, &segment, emit));
        Some(())
    }

    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        match script.byte()? {
            0..120 => self.segment(self.peer, self.isn, script)?,
            choice @ 120..230 => {
                let count = self.members.len().max(1);
                if let Some(&(flow, isn)) = self.members.get(usize::from(choice - 120) % count) {
                    self.segment(flow, isn, script)?;
                }
            }
            230..240 => {
                self.now += Duration::from_millis(u64::from(script.byte()?) * 50);
                let now = self.now;
                self.act(&[], |switch, emit| switch.poll(now, emit));
            }
            240..244 => self.add_member(script.byte()? % 8),
            choice => {
                let id = MemberId(script.byte()? % 8);
                let now = self.now;
                self.act(&[], |switch, emit| {
                    if choice % 2 == 0 {
                        switch.remove_member(now, id, emit);
                    } else {
                        switch.fail_member(now, id, emit);
                    }
                });
            }
        }
        Some(())
    }
}

/// Opens a connection regularly; the script determines the rest.
fn run(bytes: &[u8]) {
    let mut script = Script { bytes };
    let Some(choice) = script.byte() else {
        return;
    };
    let mut machine = Machine::new(choice);
    let opening: &[u8] = &[
        // The peer's SYN, three answers, the peer's acknowledgment.
        0, 0, 0, 0, 0, 255, //
        120, 1, 0, 1, 0, 255, //
        121, 1, 0, 1, 0, 255, //
        122, 1, 0, 1, 0, 255, //
        0, 5, 1, 1, 0, 255,
    ];
    let mut opening = Script { bytes: opening };
    while machine.step(&mut opening).is_some() {}
    assert_eq!(machine.switch.counters().connections, 1);
    while machine.step(&mut script).is_some() {}
    // Whatever happened, time ends everything.
    let now = machine.now + Duration::from_secs(24 * 3600);
    for hours in 0..4 {
        machine.now = now + Duration::from_secs(hours * 3600);
        let at = machine.now;
        machine.act(&[], |switch, emit| switch.poll(at, emit));
    }
    assert!(
        machine.switch.is_empty(),
        "{:?}",
        machine.switch.flows().next()
    );
}

#[test]
fn fuzz_input() {
    let time = std::env::var("BOLERO_RANDOM_TEST_TIME_MS").ok();
    let time = time
        .and_then(|time| time.parse().ok())
        .map_or(TIME, Duration::from_millis);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__/input/corpus");
    for entry in std::fs::read_dir(corpus).expect("a corpus") {
        run(&std::fs::read(entry.expect("an entry").path()).expect("a seed"));
    }
    check!()
        .with_test_time(time)
        .with_max_len(600)
        .for_each(|bytes: &[u8]| {
            run(bytes);
            run(&grown(bytes));
        });
}

/// A long script seeded by `bytes`: random bytes alone are short, and most of their
/// segments are nowhere near the connection.
fn grown(bytes: &[u8]) -> Vec<u8> {
    let seed = bytes.iter().fold(0u64, |seed, &byte| {
        seed.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte)
    });
    let mut random = Random::new(seed);
    let mut script = vec![random.bits() as u8];
    let sack = script[0] & WITH_SACK != 0;
    for _ in 0..40 + random.below(80) {
        let rarely = random.below(100);
        if rarely < 3 {
            script.extend([230 + random.below(26) as u8, random.bits() as u8]);
            continue;
        }
        let who = if random.chance(0.5) {
            0
        } else {
            120 + random.below(6) as u8
        };
        let kind = if rarely < 6 { random.bits() as u8 } else { 5 };
        let frames = random.below(4) as u8;
        // Multiples of eight, so that earlier positions are hit again.
        let place = |random: &mut Random| 1 + 8 * random.below(16) as u8;
        script.extend([who, kind, place(&mut random), place(&mut random), frames]);
        script.extend((0..frames).map(|_| 4 + 8 * random.below(2) as u8));
        script.push(255);
        if sack && kind == 5 {
            let blocks = random.below(4) as u8;
            script.push(blocks);
            script.extend((0..2 * blocks).map(|_| place(&mut random)));
        }
    }
    script
}
