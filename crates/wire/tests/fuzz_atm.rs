//! Fuzz targets of the ATM formats, like those of `fuzz.rs`.

use core::net::Ipv4Addr;
use std::time::Duration;

use tidewall_fuzz::Seed;
use tidewall_wire::atm::aal5::{self, Crc32};
use tidewall_wire::atm::arp::{self, Number, Operation, Party};
use tidewall_wire::atm::oam::Loopback;
use tidewall_wire::atm::pseudowire::{self, CellBuilder, FrameHeader, Label};
use tidewall_wire::atm::q2931::{self, CallReference, Elements, MessageType};
use tidewall_wire::atm::sscop::{self, Sequence};
use tidewall_wire::atm::{Cell, CellHeader, Circuit, Nsap, PayloadType, llc};
use tidewall_wire::ethernet::EtherType;

/// Time for random inputs to each target in an ordinary test run.
const TIME: Duration = Duration::from_millis(400);

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

#[test]
fn fuzz_atm_cell() {
    fuzz("atm_cell", cell);
}

#[test]
fn fuzz_atm_aal5() {
    fuzz("atm_aal5", pdu);
}

#[test]
fn fuzz_atm_pseudowire() {
    fuzz("atm_pseudowire", pseudowire);
}

#[test]
fn fuzz_atm_arp() {
    fuzz("atm_arp", arp);
}

#[test]
fn fuzz_atm_sscop() {
    fuzz("atm_sscop", sscop);
}

#[test]
fn fuzz_atm_q2931() {
    fuzz("atm_q2931", q2931);
}

tidewall_fuzz::targets!(seeds, TIME);

fn cell(bytes: &[u8]) {
    if let Ok(cell) = Cell::new(bytes) {
        assert_eq!(cell.header().bytes(), bytes[..5]);
        if let Ok(loopback) = Loopback::parse(cell.payload()) {
            assert_eq!(Loopback::parse(&loopback.bytes()), Ok(loopback));
        }
    }
}

fn pdu(bytes: &[u8]) {
    let read = aal5::Pdu::new(bytes);
    if let Some(earlier) = bytes.len().checked_sub(48) {
        let crc = Crc32::new().update(&bytes[..earlier]);
        let continued = aal5::Pdu::continued(bytes, crc);
        assert_eq!(
            read.map(|pdu| pdu.payload()),
            continued.map(|pdu| pdu.payload())
        );
    }
    let Ok(pdu) = read else {
        return;
    };
    let mut again = vec![0; bytes.len()];
    let length = aal5::emit(pdu.payload(), pdu.user_to_user(), &mut again).unwrap();
    // A pad need not be zero.
    let trailer = length - 8;
    assert_eq!(again[trailer..trailer + 4], bytes[trailer..trailer + 4]);
    if let Ok(llc::Payload::Routed(protocol, payload)) = llc::Payload::parse(pdu.payload()) {
        let mut header = vec![0; llc::HEADER_LEN + payload.len()];
        let rest = llc::emit_routed(protocol, &mut header).unwrap();
        rest.copy_from_slice(payload);
        assert_eq!(header, pdu.payload());
    }
}

fn pseudowire(bytes: &[u8]) {
    let Ok(packet) = pseudowire::Packet::new(bytes) else {
        return;
    };
    if let Ok(frame) = packet.frame() {
        let mut again = vec![0; bytes.len()];
        let rest = frame.header.emit(&mut again).unwrap();
        rest.copy_from_slice(frame.bytes);
        let packet = pseudowire::Packet::new(&again).unwrap();
        assert_eq!(packet.frame().unwrap().header, frame.header);
        assert_eq!(packet.frame().unwrap().bytes, frame.bytes);
    }
    if let Ok(cells) = packet.cells() {
        let mut again = vec![0; bytes.len()];
        let mut builder = CellBuilder::new(packet.label(), 0, &mut again).unwrap();
        for cell in cells.clone() {
            builder.push(&cell).unwrap();
        }
        assert_eq!(builder.len(), bytes.len());
        let packet = pseudowire::Packet::new(&again).unwrap();
        assert!(packet.cells().unwrap().eq(cells));
    }
}

fn arp(bytes: &[u8]) {
    if let Ok(packet) = arp::Packet::parse(bytes) {
        let mut again = [0; arp::MAX_LEN];
        let length = packet.emit(&mut again).unwrap();
        assert_eq!(arp::Packet::parse(&again[..length]), Ok(packet));
    }
}

fn sscop(bytes: &[u8]) {
    if let Ok(pdu) = sscop::Pdu::parse(bytes) {
        let mut again = vec![0; sscop::PDU_MAX];
        let length = pdu.emit(&mut again).unwrap();
        assert_eq!(sscop::Pdu::parse(&again[..length]), Ok(pdu));
    }
}

fn q2931(bytes: &[u8]) {
    let Ok(message) = q2931::Message::new(bytes) else {
        return;
    };
    let (elements, _) = message.elements();
    let Some(kind) = MessageType::from_number(message.kind()) else {
        return;
    };
    let mut again = [0; q2931::MESSAGE_MAX];
    let length = elements
        .emit(message.reference(), kind, &mut again)
        .unwrap();
    let message = q2931::Message::new(&again[..length]).unwrap();
    let (read, faults) = message.elements();
    assert_eq!(read, elements);
    assert_eq!(faults.iter().count(), 0);
}

fn seeds() -> Vec<Seed> {
    let circuit = Circuit { vpi: 1, vci: 32 };
    let cell_of = |payload_type, payload: &[u8; 48]| {
        let header = CellHeader::new(circuit, payload_type).unwrap();
        [&header.bytes()[..], payload].concat()
    };
    let pdu_of = |payload: &[u8]| {
        let mut pdu = vec![0; aal5::pdu_len(payload.len())];
        aal5::emit(payload, 0, &mut pdu).unwrap();
        pdu
    };
    let mut routed = [0; 60];
    llc::emit_routed(EtherType::IPV4, &mut routed).unwrap();
    let mut frame = vec![0; pseudowire::HEADER_LEN];
    let label = Label::new(100).unwrap();
    FrameHeader::whole(label).emit(&mut frame).unwrap();
    frame.extend(pdu_of(b"in a frame"));
    let mut cells = vec![0; pseudowire::HEADER_LEN + 2 * pseudowire::CELL_LEN];
    let mut builder = CellBuilder::new(label, 1, &mut cells).unwrap();
    for payload_type in [PayloadType::USER, PayloadType::USER_LAST] {
        builder
            .push(&pseudowire::Cell {
                circuit,
                payload_type,
                low_priority: false,
                payload: &[5; 48],
            })
            .unwrap();
    }
    let request = arp::Packet {
        operation: Operation::Request,
        source: Party {
            number: Number::Nsap(Nsap([0x47; 20])),
            address: Some(Ipv4Addr::new(192, 0, 2, 1)),
        },
        target: Party {
            number: Number::E164(arp::Digits::new(b"15551234").unwrap(), Some(Nsap([1; 20]))),
            address: None,
        },
    };
    let mut asked = vec![0; request.len()];
    request.emit(&mut asked).unwrap();
    let setup = Elements {
        aal: Some(q2931::Aal::Five {
            forward_max: Some(9180),
            backward_max: Some(9180),
        }),
        traffic: Some(q2931::TrafficDescriptor::best_effort()),
        bearer: Some(q2931::Bearer::data()),
        called: Some(q2931::Party::from(Nsap([0x47; 20]))),
        calling: Some(q2931::Party::from(Nsap([0x48; 20]))),
        low_layer: q2931::Opaque::new(&[0xcc]),
        qos: Some(q2931::QosClasses::default()),
        connection: Some(q2931::ConnectionIdentifier::exclusive(circuit)),
        cause: Some(q2931::Cause::new(16).with(b"308")),
        ..Elements::default()
    };
    let mut call = vec![0; q2931::MESSAGE_MAX];
    let reference = CallReference::new(1, false).unwrap();
    let length = setup
        .emit(reference, MessageType::Setup, &mut call)
        .unwrap();
    call.truncate(length);
    let sscop_of = |pdu: sscop::Pdu<'_>| {
        let mut bytes = vec![0; 64];
        let length = pdu.emit(&mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    };
    let number = Sequence::new(3);
    let seeds = [
        ("atm_q2931", "setup", call),
        (
            "atm_q2931",
            "unknown-element",
            b"\x09\x03\0\0\x01\x7d\x80\0\x05\x42\x91\0\x01\x05".to_vec(),
        ),
        (
            "atm_sscop",
            "begin",
            sscop_of(sscop::Pdu::Begin {
                sequence: 1,
                credit: number,
                data: b"abc",
            }),
        ),
        (
            "atm_sscop",
            "status",
            sscop_of(sscop::Pdu::Status {
                missing: sscop::List::new(&[[0, 0, 0, 3], [0, 0, 0, 5]]),
                poll: number,
                credit: number,
                expected: number,
            }),
        ),
        ("atm_cell", "user", cell_of(PayloadType::USER, &[1; 48])),
        (
            "atm_cell",
            "loopback",
            cell_of(PayloadType::OAM_END_TO_END, &Loopback::request(7).bytes()),
        ),
        ("atm_aal5", "one-cell", pdu_of(&[1; 40])),
        ("atm_aal5", "routed", pdu_of(&routed)),
        ("atm_aal5", "no-length", vec![0; 48]),
        ("atm_pseudowire", "frame", frame),
        ("atm_pseudowire", "cells", cells),
        ("atm_arp", "request", asked),
    ];
    seeds.map(Seed::from).to_vec()
}
