//! A misbehaving neighbour of a cell switch, beside circuits and calls of others. Needs
//! root; skipped without.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::star::Star;
use common::{Service, text, tidewall};
use serde_json::Value;
use tidewall::EmbeddedConfig;
use tidewall::forward::Forwarder;
use tidewall_atm::sscop::{Config, Sscop};
use tidewall_wire::atm::pseudowire::{FrameHeader, HEADER_LEN, Label, Packet};
use tidewall_wire::atm::q2931::{
    Bearer, CallReference, Cause, Elements, MESSAGE_MAX, MessageType, QosClasses, TrafficDescriptor,
};
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, Circuit, Nsap, aal5};

/// Duration of the attack: several times SSCOP's timers.
const ATTACK: Duration = Duration::from_secs(8);
/// Concurrent calls of the neighbour's port that the switch accepts.
const CALLS: usize = 40;

/// A host's number.
fn nsap(host: usize) -> String {
    format!("470005{host:02x}{:032x}", 0)
}

/// The neighbour: everything goes on circuit 0.5, or on circuits that lead nowhere.
struct Neighbour {
    forwarder: Forwarder,
    link: Sscop,
    began: Instant,
    random: u64,
}

impl Neighbour {
    fn next(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.random >> 33
    }

    /// Sends a part of a PDU on a circuit.
    fn part(&mut self, circuit: Circuit, cells: &[u8], last: bool) {
        let mut frame = vec![0; HEADER_LEN + cells.len()];
        let header = FrameHeader {
            last,
            ..FrameHeader::whole(Label::of_circuit(circuit).unwrap())
        };
        header.emit(&mut frame).unwrap().copy_from_slice(cells);
        let switch = "10.99.2.1".parse().unwrap();
        self.forwarder.output().send_labelled(0, switch, &frame);
    }

    fn payload(&mut self, bytes: &[u8]) {
        let mut pdu = vec![0; aal5::pdu_len(bytes.len())];
        aal5::emit(bytes, 0, &mut pdu).unwrap();
        self.part(Circuit::SIGNALLING, &pdu, true);
    }

    fn say(&mut self, reference: u32, to_origin: bool, kind: MessageType, said: &Elements) {
        let reference = CallReference::new(reference, to_origin).unwrap();
        let mut bytes = [0; MESSAGE_MAX];
        let length = said.emit(reference, kind, &mut bytes).unwrap();
        // If the ring is full, it is one of many that wait.
        let _ = self.link.send(&bytes[..length]);
    }

    /// Receives frames, and sends the link's output.
    fn turn(&mut self) {
        let Neighbour {
            forwarder,
            link,
            began,
            ..
        } = self;
        let now = began.elapsed();
        forwarder.wait(Some(Duration::from_millis(1))).unwrap();
        forwarder.receive_batch(|_, arrived| {
            let packet = arrived.and_then(|it| it.labelled()?.as_slice().map(<[u8]>::to_vec));
            let Some(bytes) = packet else { return };
            let frame = Packet::new(&bytes).and_then(|it| it.frame());
            if let Some(pdu) = frame.ok().and_then(|it| aal5::Pdu::new(it.bytes).ok()) {
                link.pdu_received(now, pdu.payload());
            }
        });
        link.handle_timeout(now);
        while link.poll_event().is_some() {}
        for _ in 0..64 {
            let Some(pdu) = self.link.poll_transmit(now) else {
                break;
            };
            self.payload(&pdu);
        }
        self.forwarder.output().flush();
    }

    /// Sends one of each forbidden message.
    fn attack(&mut self, step: u32) {
        let setup = Elements {
            traffic: Some(TrafficDescriptor::best_effort()),
            bearer: Some(Bearer::data()),
            qos: Some(QosClasses::default()),
            called: Some(nsap(1).parse::<Nsap>().unwrap().into()),
            calling: Some(nsap(0).parse::<Nsap>().unwrap().into()),
            ..Elements::default()
        };
        let because = Elements {
            cause: Some(Cause::new(Cause::NORMAL)),
            call_state: Some(11),
            ..Elements::default()
        };
        // Set-ups, one of them repeatedly, and releases of other hosts' call references.
        self.say(step + 10, false, MessageType::Setup, &setup);
        self.say(1, false, MessageType::Setup, &setup);
        let other = self.next() as u32 % 50 + 1;
        for kind in [
            MessageType::Release,
            MessageType::ReleaseComplete,
            MessageType::Status,
            MessageType::Connect,
        ] {
            self.say(other, true, kind, &because);
            self.say(other + 100_000, false, kind, &because);
        }
        // PDUs that never end, and cells of no circuit.
        let cells = [step as u8; 20 * CELL_PAYLOAD_LEN];
        self.part(Circuit::SIGNALLING, &cells, false);
        let vci = self.next() as u16 % 1000 + 10_000;
        self.part(Circuit { vpi: 0, vci }, &cells, true);
        // PDUs that SSCOP does not expect: any type, with arbitrary numbers.
        let length = [4, 8, 12, 40][self.next() as usize % 4];
        let mut bytes: Vec<u8> = (0..length).map(|_| self.next() as u8).collect();
        let kind = 4 + self.next() as u8 % 12;
        if let Some(byte) = bytes.iter_mut().rev().nth(3) {
            *byte = *byte & 0xf0 | kind;
        }
        self.payload(&bytes);
    }
}

#[test]
#[ignore = "the neighbour, run by the other"]
fn end_neighbour() {
    let mut forwarder = Forwarder::open(vec![EmbeddedConfig::new("out")]).unwrap();
    let own = Label::of_circuit(Circuit::SIGNALLING).unwrap();
    forwarder.claim_label(0, own).unwrap();
    let mut neighbour = Neighbour {
        forwarder,
        link: Sscop::new(Config::default()),
        began: Instant::now(),
        random: 1,
    };
    println!("attacks");
    let mut step = 0;
    while neighbour.began.elapsed() < ATTACK {
        let now = neighbour.began.elapsed();
        neighbour.link.establish(now);
        for _ in 0..8 {
            neighbour.attack(step);
            step += 1;
        }
        neighbour.turn();
    }
    println!("{step} steps");
}

/// Returns a host's command with calls.
fn call(star: &Star, what: &str, host: usize, more: &[&str]) -> Command {
    let (hop, number) = (format!("10.99.{host}.1"), nsap(host));
    let end = ["atm", what, "--interface", "out", "--next-hop", &hop];
    let all = [&end[..], &["--number", &number], more].concat();
    Bed::command(&star.ends[host], &all)
}

/// Forged releases, replayed and flooding set-ups, an abused signalling link, PDUs that
/// never end and cells of no circuit. A circuit beside it loses nothing, and calls beside
/// it are set up. The neighbour's resources are bounded and counted.
#[test]
fn a_bad_neighbour_of_the_switch_harms_nobody_else() {
    let test = "a_bad_neighbour_of_the_switch_harms_nobody_else";
    let Some(star) = Star::or_skip(test, "at", 4) else {
        return;
    };
    let file = star.place.name("cells.toml");
    let port = |host: usize| {
        let calls = if host == 2 { CALLS } else { 1000 };
        format!(
            "[[port]]
interface = 'tw-in{host}'
next-hop = '10.99.{host}.2'
signalling = 'network'
numbers = ['47.0005.{host:02x}']
calls = {calls}
"
        )
    };
    let ports: String = (0..4).map(port).collect();
    fs::write(&file, ports).unwrap();
    let switch = Service::start(Bed::command(&star.switch, &["atm", "switch", &file]));
    let receive = Service::start(call(&star, "receive", 1, &[]));
    let to = nsap(1);
    let to = ["--to", &to];
    let rest = ["--size", "700", "--count", "80", "--interval", "0.1s"];
    let mut good = call(&star, "send", 0, &[&to[..], &rest].concat());
    let good = good.stdout(Stdio::piped()).spawn().unwrap();
    let program = std::env::current_exe().unwrap();
    let arguments = [
        "--exact",
        "end_neighbour",
        "--ignored",
        "--nocapture",
        "--quiet",
    ];
    let neighbour = Bed::other(&star.ends[2], program.to_str().unwrap(), &arguments);
    let mut neighbour = Service::start(neighbour);
    neighbour.line_with("attacks");
    // Others call beside it, and the neighbour does not exceed its limits.
    let began = Instant::now();
    let mut called = 0;
    while began.elapsed() < ATTACK * 3 / 4 {
        let other = call(&star, "send", 3, &[&to[..], &["--size", "300"]].concat()).output();
        let other = other.unwrap();
        assert!(other.status.success(), "{other:?}");
        called += 1;
        let shown = tidewall(&["atm", "show", &switch.id(), "--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let calls = shown["switch"]["calls"].as_array().unwrap().iter();
        let bad = calls.filter(|call| call["ends"][0]["interface"] == "tw-in2");
        assert!(bad.count() <= CALLS, "{shown}");
    }
    neighbour.ended();
    let good = good.wait_with_output().unwrap();
    assert!(good.status.success(), "{good:?}");
    let heard = receive.end();
    let of = |bytes: usize| {
        let begins = format!("{bytes} bytes: ");
        heard
            .lines()
            .filter(|line| line.starts_with(&begins))
            .count()
    };
    assert_eq!((of(700), of(300)), (80, called), "{heard}");
    let totals = switch.end();
    for cause in [
        "dropped-signalling ",
        "calls-no-resources ",
        "calls-number-withheld ",
    ] {
        assert!(totals.contains(cause), "{cause}is not in {totals}");
    }
    assert!(!text(&good.stderr).contains("panicked"));
}
