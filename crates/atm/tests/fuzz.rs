//! Fuzz targets: whatever comes, nothing panics, limits hold, and what came whole before is
//! taken again once it comes (`tidewall_fuzz` says how they are tried).

use std::time::Duration;

use bolero::check;
use tidewall_atm::reassembly::{self, Limits, Reassembly};
use tidewall_atm::signalling::{self, Event, Side, Signalling};
use tidewall_atm::sscop::{Config, Sscop, State};
use tidewall_fuzz::{Seed, Target};
use tidewall_wire::atm::q2931::{
    Bearer, CallReference, Cause, ConnectionIdentifier, Elements, MESSAGE_MAX, MessageType, Party,
    QosClasses, Restart, TrafficDescriptor,
};
use tidewall_wire::atm::{Circuit, Nsap, PayloadType, aal5};

/// Time for random inputs to one target in an ordinary test run.
const TIME: Duration = Duration::from_millis(400);

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

#[test]
fn fuzz_reassembly() {
    fuzz("reassembly", cells);
}

#[test]
fn fuzz_sscop() {
    fuzz("sscop", link);
}

#[test]
fn fuzz_signalling() {
    fuzz("signalling", calls);
}

fn fuzz(name: &'static str, test: fn(&[u8])) {
    let target = Target::new(name, &seeds(), test);
    check!(name = name)
        .with_test_time(TIME)
        .for_each(|bytes: &[u8]| target.input(bytes));
    target.finish();
}

/// Each byte a cell: its circuit, its payload type, its payload, and time that passes.
fn cells(bytes: &[u8]) {
    let limits = Limits {
        memory: 48 * 16,
        circuits: 4,
        patience: Duration::from_millis(40),
    };
    let circuit = |number: u8| Circuit {
        vpi: 0,
        vci: 32 + u16::from(number),
    };
    let mut reassembly = Reassembly::new(limits);
    for number in 0..3 {
        reassembly.open(circuit(number), 300).unwrap();
    }
    let mut now = Duration::ZERO;
    for byte in bytes {
        now += Duration::from_millis((byte >> 6).into());
        let payload_type = PayloadType::from_bits(byte >> 2);
        let _ = reassembly.cell(now, circuit(byte & 3), payload_type, &[*byte; 48]);
        assert!(reassembly.held() <= limits.memory);
    }
    reassembly.expire(now + limits.patience);
    assert_eq!(reassembly.held(), 0);
    // At the latest behind the last cell of what is passed over.
    let mut pdu = [0; 96];
    aal5::emit(&[1; 60], 0, &mut pdu).unwrap();
    let mut came = 0;
    for _ in 0..2 {
        for (payload_type, cell) in reassembly::cells(&pdu) {
            if let Ok(Some(pdu)) = reassembly.cell(now, circuit(0), payload_type, cell) {
                came += usize::from(pdu.payload() == [1; 60]);
            }
        }
    }
    assert!(came > 0);
}

/// PDUs behind a byte of their length in words, to a link that is up; then its peer brings
/// it up anew.
fn link(bytes: &[u8]) {
    let mut now = Duration::ZERO;
    let mut link = Sscop::new(Config::default());
    let mut peer = Sscop::new(Config {
        first_sequence: 100,
        ..Config::default()
    });
    link.establish(now);
    let mut rest = bytes;
    while let Some((&first, behind)) = rest.split_first() {
        let (pdu, behind) = behind.split_at(behind.len().min(usize::from(first & 31) * 4));
        rest = behind;
        link.pdu_received(now, pdu);
        let _ = link.send(pdu);
        now += Duration::from_millis(u64::from(first >> 5) * 100);
        link.handle_timeout(now);
        while link.poll_transmit(now).is_some() {}
        if first & 32 == 0 {
            while link.poll_event().is_some() {}
        }
    }
    peer.establish(now);
    for _ in 0..60 {
        while let Some(pdu) = peer.poll_transmit(now) {
            link.pdu_received(now, &pdu);
        }
        while let Some(pdu) = link.poll_transmit(now) {
            peer.pdu_received(now, &pdu);
        }
        now += Duration::from_millis(500);
        link.handle_timeout(now);
        peer.handle_timeout(now);
        if peer.state() == State::Idle {
            peer.establish(now);
        }
    }
    assert_eq!((link.state(), peer.state()), (State::Ready, State::Ready));
}

/// Messages behind two bytes of their length, to a user's side whose link is up: whatever
/// they are, calls keep their limit, and a RESTART of the link leaves none.
fn calls(bytes: &[u8]) {
    let mut now = Duration::ZERO;
    let mut config = signalling::Config::new(Side::User);
    config.calls = 8;
    let mut user = Signalling::new(config);
    let mut peer = Sscop::new(Config::default());
    peer.establish(now);
    let mut rest = bytes;
    while let Some((&[high, low], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high & 1, low]));
        let (message, behind) = behind.split_at(behind.len().min(length));
        rest = behind;
        let _ = peer.send(message);
        exchange(now, &mut user, &mut peer);
        while let Some(event) = user.poll_event() {
            let _ = match event {
                Event::Setup(id, _) if high & 2 == 0 => user.accept(now, id, &Elements::default()),
                Event::Setup(id, _) => user.proceeding(now, id, None),
                Event::Releasing(id, cause) => user.release(now, id, cause),
                _ => Ok(()),
            };
        }
        if high & 4 != 0 {
            let _ = user.setup(now, call());
        }
        now += Duration::from_millis(u64::from(high >> 3) * 100);
        user.handle_timeout(now);
        peer.handle_timeout(now);
        assert!(user.calls() <= 8);
    }
    let _ = user.restart(now, Restart::Link, None);
    assert_eq!(user.calls(), 0);
}

fn exchange(now: Duration, user: &mut Signalling, peer: &mut Sscop) {
    loop {
        let mut quiet = true;
        while let Some(pdu) = user.poll_transmit(now) {
            peer.pdu_received(now, &pdu);
            quiet = false;
        }
        while let Some(pdu) = peer.poll_transmit(now) {
            user.pdu_received(now, &pdu);
            quiet = false;
        }
        while peer.poll_event().is_some() {}
        if quiet {
            return;
        }
    }
}

fn call() -> Elements {
    Elements {
        traffic: Some(TrafficDescriptor::best_effort()),
        bearer: Some(Bearer::data()),
        qos: Some(QosClasses::default()),
        called: Some(Party::from(Nsap([0x47; 20]))),
        connection: Some(ConnectionIdentifier::exclusive(Circuit { vpi: 0, vci: 40 })),
        ..Elements::default()
    }
}

/// A message as [`calls`] takes it.
fn message(flags: u8, to_origin: bool, kind: MessageType, elements: &Elements) -> Vec<u8> {
    let mut bytes = [0; MESSAGE_MAX];
    let reference = CallReference::new(1, to_origin).unwrap();
    let length = elements.emit(reference, kind, &mut bytes).unwrap();
    let mut message = vec![flags | (length >> 8) as u8, length as u8];
    message.extend(&bytes[..length]);
    message
}

fn seeds() -> Vec<Seed> {
    let release = Elements {
        cause: Some(Cause::new(Cause::NORMAL)),
        ..Elements::default()
    };
    let none = Elements::default();
    let incoming = [
        message(0, false, MessageType::Setup, &call()),
        message(0, false, MessageType::ConnectAcknowledge, &none),
        message(0, false, MessageType::Release, &release),
    ];
    let outgoing = [
        message(4, false, MessageType::StatusEnquiry, &none),
        message(0, true, MessageType::CallProceeding, &call()),
        message(0, true, MessageType::Connect, &none),
        message(0xf8, true, MessageType::Release, &release),
    ];
    let seeds = [
        ("signalling", "incoming", incoming.concat()),
        ("signalling", "outgoing", outgoing.concat()),
        ("reassembly", "whole", vec![0, 0, 4, 1, 5]),
        ("reassembly", "never-ends", vec![0x40; 40]),
        (
            "sscop",
            "up-and-data",
            b"\x02\0\0\0\0\x02\0\0\x20\x02msg!\x08\0\0\0\x02msg!\x08\0\0\x02\x02\0\0\0\x01\x0a\0\0\x03"
                .to_vec(),
        ),
        (
            "sscop",
            "begin-and-lies",
            b"\x02\0\0\0\x05\x01\0\0\x08\x03\0\0\0\x09\0\0\0\x08\x0b\xff\xff\xff\x04\0\0\0\0\0\0\0\x01\0\0\0\x09\x0c\0\0\0"
                .to_vec(),
        ),
    ];
    seeds.map(Seed::from).to_vec()
}
