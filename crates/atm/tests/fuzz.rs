//! Fuzz targets. For any input nothing panics, limits hold, and a previously valid input
//! is accepted again (`tidewall_fuzz` describes how they are run).

use std::time::Duration;

use tidewall_atm::ip::{HEADER_LEN, segments};
use tidewall_atm::reassembly::{self, Limits, Reassembly};
use tidewall_atm::signalling::{self, Event, Side, Signalling};
use tidewall_atm::sscop::{Config, Sscop, State};
use tidewall_atm::switch::{End, Mode, Port, Route, Switch};
use tidewall_fuzz::Seed;
use tidewall_wire::atm::pseudowire::{FrameHeader, Label};
use tidewall_wire::atm::q2931::{
    Bearer, CallReference, Cause, ConnectionIdentifier, Elements, MESSAGE_MAX, MessageType, Party,
    QosClasses, Restart, TrafficDescriptor,
};
use tidewall_wire::atm::{Circuit, Nsap, PayloadType, aal5};
use tidewall_wire::udp::{Addresses, ChecksumState};
use tidewall_wire::{Protocol, ipv4, tcp, virtio_net};

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

#[test]
fn fuzz_switch() {
    fuzz("switch", switched);
}

#[test]
fn fuzz_segments() {
    fuzz("segments", long_segments);
}

tidewall_fuzz::targets!(seeds, TIME);

/// Each byte is a cell: its circuit, its payload type, its payload, and the time that
/// passes.
fn cells(bytes: &[u8]) {
    let limits = Limits {
        memory: 48 * 16,
        circuits: 4,
        timeout: Duration::from_millis(40),
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
    reassembly.expire(now + limits.timeout);
    assert_eq!(reassembly.held(), 0);
    // At the latest after the last cell of what is skipped.
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

/// Packets, each after a byte with its port and the number of cells that leave, and one
/// with its length. Every port leads to the next one. Queues keep their limits, no cell
/// is lost uncounted, and once everything has left a PDU passes whole.
fn switched(bytes: &[u8]) {
    const QUEUE: usize = 16;
    let modes = [
        Mode::Frame,
        Mode::Cells(Label::new(16).unwrap()),
        Mode::User,
    ];
    let mut switch = Switch::new(&modes.map(|mode| Port { mode, queue: QUEUE }));
    let end = |port, vci| End {
        port,
        circuit: Circuit { vpi: 0, vci },
    };
    for port in 0..modes.len() {
        for vci in 32..35 {
            let route = Route {
                from: end(port, vci),
                to: end((port + 1) % modes.len(), vci + 1),
                priority: usize::from(vci % 2),
                aal5: vci != 34,
            };
            switch.add(route).unwrap();
        }
    }
    let mut buffer = [0; 700];
    let mut rest = bytes;
    while let Some((&[first, length], behind)) = rest.split_first_chunk() {
        let (packet, behind) = behind.split_at(behind.len().min(length.into()));
        rest = behind;
        let port = usize::from(first) % modes.len();
        match switch.passage(port, packet.into()) {
            Some(passage) => switch.passed(passage),
            None => switch.input(port, packet),
        }
        for _ in 0..first >> 4 {
            let room = buffer.len() - usize::from(length);
            switch.transmit((port + 1) % modes.len(), &mut buffer[..room]);
        }
        for port in 0..modes.len() {
            assert!(switch.waiting(port).iter().all(|cells| *cells <= QUEUE));
        }
    }
    for port in 0..modes.len() {
        while switch.transmit(port, &mut buffer).is_some() {}
        assert!(!switch.is_waiting(port));
    }
    let counters = switch.counters();
    // The first is of packets.
    let dropped: u64 = counters.dropped.iter().skip(1).sum();
    assert_eq!(counters.received, counters.sent + dropped);
    // At the latest after the end of the PDU in progress.
    let mut frame = [0; 8 + 96];
    let label = Label::of_circuit(Circuit { vpi: 0, vci: 33 }).unwrap();
    let pdu = FrameHeader::whole(label).emit(&mut frame).unwrap();
    aal5::emit(&[1; 60], 0, pdu).unwrap();
    switch.input(0, &frame);
    while switch.transmit(1, &mut buffer).is_some() {}
    switch.input(0, &frame);
    assert_eq!(switch.transmit(1, &mut buffer), Some(8 + 2 * 52));
}

/// A kernel's packet, after the bytes of each split, or after the position of its
/// checksum. The resulting packets are complete and no longer than asked, and joined they
/// have as much data.
fn long_segments(bytes: &[u8]) {
    let Some((&[high, low], packet)) = bytes.split_first_chunk() else {
        return;
    };
    let step = u16::from_be_bytes([high, low]);
    let payload = [&[0; HEADER_LEN][..], packet].concat();
    let unfinished = virtio_net::Header {
        checksum: Some(virtio_net::Unfinished {
            start: high.into(),
            offset: low.into(),
        }),
        segments: None,
    };
    let _ = segments::cut(&unfinished, &mut payload.clone(), |piece| {
        assert_eq!(piece.len(), payload.len());
    });
    let long = virtio_net::Header {
        checksum: None,
        segments: Some(virtio_net::Segments {
            kind: virtio_net::Kind::TCP_V4,
            headers: 0,
            payload: step,
        }),
    };
    let mut pieces = Vec::new();
    let cut = segments::cut(&long, &mut payload.clone(), |piece| {
        pieces.push(piece[HEADER_LEN..].to_vec());
    });
    assert_eq!(cut.is_err(), pieces.is_empty());
    for piece in &pieces {
        let ip = ipv4::Packet::new(piece).unwrap();
        let tcp = tcp::Packet::new(ip.payload()).unwrap();
        let addresses = Addresses::V4(ip.source(), ip.destination());
        assert!(ip.has_valid_checksum());
        assert_eq!(tcp.checksum_state(addresses), ChecksumState::Valid);
        assert!(tcp.payload().len() <= usize::from(step));
    }
    if cut.is_ok() {
        let cut: usize = pieces.iter().map(|piece| data_of(piece)).sum();
        assert_eq!(cut, data_of(packet));
    }
    // Between packets that fit together, one that may not.
    pieces.insert(pieces.len() / 2, packet.to_vec());
    let (mut packets, mut data) = (0, 0);
    let mut write = |_: &virtio_net::Header, packet: &[u8], of: u32| {
        packets += of as usize;
        data += data_of(packet);
    };
    let mut joiner = segments::Joiner::default();
    for piece in &pieces {
        joiner.add(piece, &mut write);
    }
    joiner.flush(&mut write);
    assert_eq!(packets, pieces.len());
    assert_eq!(data, pieces.iter().map(|piece| data_of(piece)).sum());
}

/// Bytes of TCP data in a packet; 0 if it is not TCP.
fn data_of(packet: &[u8]) -> usize {
    let ip = ipv4::Packet::new(packet).ok();
    let ip = ip.filter(|ip| ip.protocol() == Protocol::TCP && !ip.is_fragment());
    let data = |ip: ipv4::Packet<'_>| Some(tcp::Packet::new(ip.payload()).ok()?.payload().len());
    ip.and_then(data).unwrap_or(0)
}

/// PDUs, each after a byte with its length in words, to a link that is up; then its peer
/// brings it up again.
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

/// Messages, each after two bytes with their length, to a user's side whose link is up.
/// For any messages, calls keep their limit, and a RESTART of the link leaves none.
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

/// Packets as [`switched`] takes them: a PDU, ended or not, and cells.
fn switch_packets(last: bool) -> Vec<u8> {
    let label = Label::of_circuit(Circuit { vpi: 0, vci: 32 }).unwrap();
    let mut frame = vec![0; 8 + 96];
    let header = FrameHeader {
        last,
        ..FrameHeader::whole(label)
    };
    aal5::emit(&[1; 60], 0, header.emit(&mut frame).unwrap()).unwrap();
    let cells = |vci: u8, payload_type: u8| {
        let word = u32::from(vci) << 4 | u32::from(payload_type) << 1;
        let cell = [&word.to_be_bytes()[..], &[5; 48]].concat();
        [&[0, 1, 1, 2, 0, 0, 0, 0][..], &cell, &cell].concat()
    };
    let packets = [
        (0x10, frame),
        (0x01, cells(33, u8::from(last))),
        (0x21, cells(32, 5)),
    ];
    let parts = packets.map(|(first, packet)| [&[first, packet.len() as u8][..], &packet].concat());
    parts.concat()
}

/// A cut, and 100 bytes of a connection, as [`long_segments`] takes them.
fn segment(step: u16) -> Vec<u8> {
    let ip = b"\x45\0\0\x8c\0\x01\x40\0\x40\x06\0\0\x0a\x09\0\x01\x0a\x09\0\x02";
    let tcp = b"\x9c\x40\0\x50\0\0\0\x01\0\0\0\x07\x50\x18\x02\0\0\0\0\0";
    [&step.to_be_bytes()[..], ip, tcp, &[7; 100]].concat()
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
        ("segments", "in-three", segment(40)),
        ("segments", "uncut", segment(1460)),
        ("switch", "pdu-and-oam", switch_packets(true)),
        ("switch", "never-ends", switch_packets(false).repeat(12)),
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
