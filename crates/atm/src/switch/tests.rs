use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tidewall_wire::atm::aal5::{self, Pdu};
use tidewall_wire::atm::pseudowire::{CellBuilder, FrameHeader};
use tidewall_wire::atm::{CELL_HEADER_LEN, CellHeader};

use super::*;

const CELLS: Mode = Mode::Cells(Label::new(16).unwrap());

fn circuit(vci: u16) -> Circuit {
    Circuit { vpi: 0, vci }
}

fn route(from: (usize, u16), to: (usize, u16)) -> Route {
    let end = |(port, vci)| End {
        port,
        circuit: circuit(vci),
    };
    Route {
        from: end(from),
        to: end(to),
        priority: 1,
        aal5: true,
    }
}

/// Ports of these modes; circuit 32 + n of port 0 is 132 + n of port 1.
fn switch(modes: [Mode; 2], queue: usize, circuits: u16) -> Switch {
    let mut switch = Switch::new(&modes.map(|mode| Port { mode, queue }));
    for n in 0..circuits {
        switch.add(route((0, 32 + n), (1, 132 + n))).unwrap();
    }
    switch
}

fn pdu(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; aal5::pdu_len(payload.len())];
    aal5::emit(payload, 0, &mut bytes).unwrap();
    bytes
}

/// A cell in a packet of a mode.
fn packet(mode: Mode, circuit: Circuit, payload_type: PayloadType, payload: &[u8; 48]) -> Vec<u8> {
    match mode {
        Mode::User => {
            let header = CellHeader::new(circuit, payload_type).unwrap();
            [&header.bytes()[..], payload].concat()
        }
        Mode::Cells(label) => {
            let mut buffer = [0; 60];
            let mut builder = CellBuilder::new(label, 0, &mut buffer).unwrap();
            let cell = pseudowire::Cell {
                circuit,
                payload_type,
                low_priority: false,
                payload,
            };
            builder.push(&cell).unwrap();
            let length = builder.len();
            buffer[..length].to_vec()
        }
        Mode::Frame if payload_type.is_user() => {
            let mut buffer = [0; 56];
            let header = FrameHeader {
                last: payload_type.is_last(),
                congested: payload_type.is_congested(),
                ..FrameHeader::whole(Label::of_circuit(circuit).unwrap())
            };
            header
                .emit(&mut buffer)
                .unwrap()
                .copy_from_slice(&payload[..]);
            buffer.to_vec()
        }
        Mode::Frame => {
            let mut buffer = [0; CircuitCell::LEN];
            let cell = CircuitCell {
                label: Label::of_circuit(circuit).unwrap(),
                payload_type,
                low_priority: false,
                payload,
            };
            cell.emit(&mut buffer).unwrap();
            buffer.to_vec()
        }
    }
}

/// The cells of a packet, read without the switch.
fn cells_of(mode: Mode, bytes: &[u8]) -> Vec<(Circuit, PayloadType, Vec<u8>)> {
    let mut cells = Vec::new();
    match mode {
        Mode::User => {
            for cell in bytes.chunks(CELL_LEN) {
                let cell = Cell::new(cell).unwrap();
                let (header, payload) = (cell.header(), cell.payload().to_vec());
                cells.push((header.circuit(), header.payload_type, payload));
            }
        }
        Mode::Cells(_) => {
            for cell in Packet::new(bytes).unwrap().cells().unwrap() {
                cells.push((cell.circuit, cell.payload_type, cell.payload.to_vec()));
            }
        }
        Mode::Frame => {
            let packet = Packet::new(bytes).unwrap();
            let circuit = packet.label().circuit().unwrap();
            if let Ok(cell) = packet.cell() {
                return vec![(circuit, cell.payload_type, cell.payload.to_vec())];
            }
            let frame = packet.frame().unwrap();
            let count = frame.bytes.len() / 48;
            for (number, cell) in frame.bytes.chunks(48).enumerate() {
                let last = frame.header.last && number + 1 == count;
                let bits = u8::from(frame.header.congested) << 1 | u8::from(last);
                cells.push((circuit, PayloadType::from_bits(bits), cell.to_vec()));
            }
        }
    }
    cells
}

fn put(switch: &mut Switch, mode: Mode, vci: u16, bytes: &[u8]) {
    for (payload_type, cell) in crate::reassembly::cells(bytes) {
        switch.input(0, &packet(mode, circuit(vci), payload_type, cell));
    }
}

fn drain(switch: &mut Switch, mode: Mode) -> Vec<(Circuit, PayloadType, Vec<u8>)> {
    let mut buffer = [0; 1500];
    let mut cells = Vec::new();
    while let Some(length) = switch.transmit(1, &mut buffer) {
        cells.extend(cells_of(mode, &buffer[..length]));
    }
    cells
}

#[test]
fn a_pdu_goes_from_every_mode_to_every_mode() {
    for from in [Mode::Frame, CELLS, Mode::User] {
        for to in [Mode::Frame, CELLS, Mode::User] {
            let mut switch = switch([from, to], 64, 2);
            let bytes = pdu(&[7; 500]);
            put(&mut switch, from, 33, &bytes);
            let cells = drain(&mut switch, to);
            assert!(cells.iter().all(|cell| cell.0 == circuit(133)));
            let joined = cells.iter().flat_map(|cell| cell.2.clone());
            assert_eq!(joined.collect::<Vec<_>>(), bytes, "{from:?} {to:?}");
            let lasts: Vec<_> = cells.iter().map(|cell| cell.1.is_last()).collect();
            assert_eq!(lasts.iter().position(|last| *last), Some(lasts.len() - 1));
            let counters = *switch.counters();
            assert_eq!((counters.received, counters.sent), (11, 11));
            assert!(!switch.is_waiting(1));
        }
    }
}

#[test]
fn cells_of_several_circuits_share_a_packet_and_oam_goes_on() {
    let mut switch = switch([CELLS, CELLS], 64, 3);
    for vci in 32..35 {
        put(&mut switch, CELLS, vci, &pdu(&[vci as u8; 60]));
    }
    let oam = packet(CELLS, circuit(33), PayloadType::OAM_END_TO_END, &[1; 48]);
    switch.input(0, &oam);
    let mut buffer = [0; 1500];
    let length = switch.transmit(1, &mut buffer).unwrap();
    assert_eq!(length, 8 + 7 * 52);
    let cells = cells_of(CELLS, &buffer[..length]);
    let order: Vec<_> = cells.iter().map(|cell| cell.0.vci).collect();
    assert_eq!(order, [132, 132, 133, 133, 133, 134, 134]);
    assert_eq!(cells[4].1, PayloadType::OAM_END_TO_END);
    assert_eq!(switch.counters().not_user, 1);
    assert_eq!(switch.transmit(1, &mut buffer), None);
}

#[test]
fn what_leads_nowhere_is_counted_by_cause() {
    let mut switch = switch([Mode::User, CELLS], 64, 1);
    let good = packet(Mode::User, circuit(32), PayloadType::USER_LAST, &[0; 48]);
    let mut damaged = good.clone();
    damaged[1] ^= 1;
    switch.input(0, &damaged);
    let other = packet(Mode::User, circuit(99), PayloadType::USER_LAST, &[0; 48]);
    switch.input(0, &other);
    switch.input(0, &good[..52]);
    switch.input(7, &good);
    switch.input(0, &good);
    let counters = switch.counters();
    for (reason, count) in [
        (DropReason::HeaderErrorControl, 1),
        (DropReason::NoCircuit, 1),
        (DropReason::Malformed, 2),
    ] {
        assert_eq!(counters.dropped(reason), count, "{reason:?}");
    }
    assert_eq!(switch.waiting(1), [0, 1, 0, 0]);
}

/// The HEC of output cells is right: [`Cell::new`] reads it. The published header of an
/// unassigned cell (I.432.1) begins with zeros.
#[test]
fn header_error_control_is_made() {
    let mut switch = switch([CELLS, Mode::User], 64, 1);
    switch.input(
        0,
        &packet(CELLS, circuit(32), PayloadType::USER_LAST, &[3; 48]),
    );
    let mut buffer = [0; CELL_LEN + 10];
    assert_eq!(switch.transmit(1, &mut buffer), Some(CELL_LEN));
    let hec = tidewall_wire::atm::header_error_control([0, 0, 0x08, 0x42]);
    assert_eq!(buffer[..CELL_HEADER_LEN], [0, 0, 0x08, 0x42, hec]);
}

#[test]
fn a_pdu_is_refused_whole_or_ends_with_its_last_cell() {
    // Three quarters of 16 are 12.
    let mut switch = switch([CELLS, CELLS], 16, 2);
    put(&mut switch, CELLS, 32, &pdu(&[1; 520]));
    assert_eq!(switch.waiting(1), [0, 11, 0, 0]);
    // The first circuit has more than its share of the waiting cells; the second has
    // none, and begins.
    let bytes = pdu(&[2; 500]);
    put(&mut switch, CELLS, 32, &bytes);
    assert_eq!(switch.counters().dropped(DropReason::EarlyDiscard), 1);
    assert_eq!(switch.counters().dropped(DropReason::Rest), 10);
    put(&mut switch, CELLS, 33, &bytes);
    assert_eq!(switch.waiting(1), [0, 16, 0, 0]);
    let cells = drain(&mut switch, CELLS);
    let second: Vec<_> = cells.iter().filter(|it| it.0 == circuit(133)).collect();
    assert_eq!(second.len(), 5);
    assert!(second[4].1.is_last(), "the receiver knows where it ends");
    assert_eq!(switch.counters().dropped(DropReason::QueueFull), 1);
    assert_eq!(switch.counters().dropped(DropReason::Rest), 10 + 5);
    assert!(switch.counters().marked > 0);
    // Everything is as in the beginning.
    put(&mut switch, CELLS, 32, &bytes);
    assert_eq!(drain(&mut switch, CELLS).len(), 11);
}

#[test]
fn the_first_priority_is_served_first() {
    let port = Port {
        mode: CELLS,
        queue: 64,
    };
    let mut switch = Switch::new(&[port, port]);
    for (vci, priority) in [(32, 3), (33, 0)] {
        let route = Route {
            priority,
            ..route((0, vci), (1, vci))
        };
        switch.add(route).unwrap();
        put(&mut switch, CELLS, vci, &pdu(&[1; 200]));
    }
    assert_eq!(switch.waiting(1), [5, 0, 0, 5]);
    let cells = drain(&mut switch, CELLS);
    let vcis: Vec<_> = cells.iter().map(|cell| cell.0.vci).collect();
    assert_eq!(vcis, [[33; 5], [32; 5]].concat());
}

#[test]
fn entries_contradict_nothing() {
    let mut switch = switch([Mode::Frame, Mode::User], 16, 4);
    let of = |from, to| route(from, to);
    let vpi = |vpi| End {
        port: 0,
        circuit: Circuit { vpi, vci: 32 },
    };
    for (route, error) in [
        (of((2, 60), (1, 60)), RouteError::NoPort(2)),
        (of((0, 32), (1, 60)), RouteError::FromInUse(circuit(32))),
        (of((1, 60), (1, 132)), RouteError::ToInUse(circuit(132))),
        (of((0, 60), (1, 60)), RouteError::TooMany { queue: 16 }),
        (
            Route {
                from: vpi(15),
                ..of((0, 60), (0, 60))
            },
            RouteError::Circuit(vpi(15).circuit),
        ),
        (
            Route {
                priority: 4,
                ..of((0, 60), (0, 60))
            },
            RouteError::Priority,
        ),
    ] {
        assert_eq!(switch.add(route), Err(error));
    }
    put(&mut switch, Mode::Frame, 32, &pdu(&[1; 100]));
    assert!(switch.remove(route((0, 32), (1, 132)).from));
    assert!(!switch.remove(route((0, 32), (1, 132)).from));
    assert_eq!(switch.counters().dropped(DropReason::Removed), 3);
    assert!(!switch.is_waiting(1));
    switch.add(route((0, 60), (1, 60))).unwrap();
    assert_eq!(switch.routes().count(), 4);
}

#[test]
fn what_is_in_frames_passes_while_nothing_waits() {
    let mut switch = switch([Mode::Frame, Mode::Frame], 64, 2);
    let bytes = pdu(&[1; 200]);
    let cells: Vec<_> = crate::reassembly::cells(&bytes)
        .map(|(kind, cell)| packet(Mode::Frame, circuit(32), kind, cell))
        .collect();
    let passage = switch.passage(0, cells[0][..].into()).unwrap();
    assert_eq!(passage.port, 1);
    assert_eq!(passage.label, Label::of_circuit(circuit(132)).unwrap());
    switch.passed(passage);
    // The device had no room: the rest of the PDU waits, with later cells behind it.
    switch.input(0, &cells[1]);
    for cell in &cells[2..] {
        assert!(switch.passage(0, cell[..].into()).is_none());
        switch.input(0, cell);
    }
    let other = packet(Mode::Frame, circuit(33), PayloadType::USER_LAST, &[0; 48]);
    assert!(switch.passage(0, other[..].into()).is_none());
    assert_eq!(drain(&mut switch, Mode::Frame).len(), 4);
    let passage = switch.passage(0, other[..].into()).unwrap();
    switch.passed(passage);
    let oam = packet(Mode::Frame, circuit(33), PayloadType::OAM_SEGMENT, &[0; 48]);
    let passage = switch.passage(0, oam[..].into()).unwrap();
    switch.passed(passage);
    let counters = switch.counters();
    assert_eq!(
        (counters.received, counters.sent, counters.passed),
        (7, 7, 3)
    );
    assert_eq!(counters.not_user, 1);
}

/// The property test's payload of a circuit: PDUs whose payload identifies them.
fn payload(vci: u16, number: u32, cells: usize) -> Vec<u8> {
    let mut payload = vec![vci as u8; cells * 48 - 8];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Frame), Just(CELLS), Just(Mode::User)]
}

proptest! {
    /// PDUs of several circuits arrive with their cells interleaved in any order, and a
    /// port sends now and then. Each received PDU is a whole sent one, in order, or a
    /// beginning of one and its last cell, which AAL5 rejects. Nothing arrives of a PDU
    /// that was refused at its first cell. No queue exceeds its limit.
    #[test]
    fn no_pdu_is_mixed_and_none_comes_without_its_end(
        from in modes(),
        to in modes(),
        queue in 16usize..40,
        pdus in prop::collection::vec((0u16..4, 1usize..24), 1..80),
        turns in prop::collection::vec((0usize..4, 0usize..8), 1..2000),
        room in 61usize..1500,
    ) {
        let mut switch = switch([from, to], queue, 4);
        let mut sending: [VecDeque<(PayloadType, [u8; 48])>; 4] = Default::default();
        let mut sent: [Vec<Vec<u8>>; 4] = Default::default();
        for (number, (circuit, cells)) in pdus.iter().enumerate() {
            let vci = usize::from(*circuit);
            let bytes = pdu(&payload(*circuit, number as u32, *cells));
            sending[vci].extend(crate::reassembly::cells(&bytes).map(|(kind, cell)| (kind, *cell)));
            sent[vci].push(bytes);
        }
        let mut came: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        let mut partial: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        let mut buffer = vec![0; room];
        let left = sending.each_ref().map(VecDeque::len);
        let rest = (0..4).flat_map(|vci| std::iter::repeat_n((vci, 1), left[vci]));
        for (vci, transmit) in turns.into_iter().chain(rest) {
            if let Some((kind, cell)) = sending[vci].pop_front() {
                let name = circuit(32 + vci as u16);
                let bytes = packet(from, name, kind, &cell);
                match switch.passage(0, bytes[..].into()) {
                    // Every other one finds no room at the device.
                    Some(passage) if cell[5] % 2 == 0 => {
                        switch.passed(passage);
                        let out = circuit(132 + vci as u16);
                        take(&mut came, &mut partial, vec![(out, kind, cell.to_vec())]);
                    }
                    _ => switch.input(0, &bytes),
                }
            }
            let waiting: usize = switch.waiting(1).iter().sum();
            prop_assert!(waiting <= queue);
            for _ in 0..transmit {
                if let Some(length) = switch.transmit(1, &mut buffer) {
                    take(&mut came, &mut partial, cells_of(to, &buffer[..length]));
                }
            }
        }
        while let Some(length) = switch.transmit(1, &mut buffer) {
            take(&mut came, &mut partial, cells_of(to, &buffer[..length]));
        }
        // Every PDU ended, so that nothing is without its last cell.
        prop_assert!(partial.values().all(Vec::is_empty));
        let mut arrived = 0;
        for (vci, sent) in sent.iter().enumerate() {
            let mut left = sent.iter();
            for bytes in came.remove(&(132 + vci as u16)).unwrap_or_default() {
                arrived += bytes.len() / 48;
                // The PDU that it belongs to, later than the one before.
                let of = left.find(|it| it[..4] == bytes[..4]);
                // A part of one cell would be a last one, whose first were refused:
                // never.
                let of = of.expect("a PDU that was sent, in its order");
                if Pdu::new(&bytes).is_ok() {
                    prop_assert_eq!(&bytes, of);
                } else {
                    let cells = bytes.len() / 48;
                    prop_assert!(cells >= 2 && bytes.len() < of.len());
                    prop_assert_eq!(&bytes[..48 * (cells - 1)], &of[..48 * (cells - 1)]);
                    prop_assert_eq!(&bytes[48 * (cells - 1)..], &of[of.len() - 48..]);
                }
            }
        }
        let counters = switch.counters();
        let dropped: u64 = counters.dropped.iter().sum();
        prop_assert_eq!(counters.received, counters.sent + dropped);
        prop_assert_eq!(counters.sent, arrived as u64);
    }
}

/// Reassembles PDUs from cells as a receiver does.
fn take(
    came: &mut BTreeMap<u16, Vec<Vec<u8>>>,
    partial: &mut BTreeMap<u16, Vec<u8>>,
    cells: Vec<(Circuit, PayloadType, Vec<u8>)>,
) {
    for (circuit, kind, cell) in cells {
        let under_way = partial.entry(circuit.vci).or_default();
        under_way.extend(cell);
        if kind.is_last() {
            came.entry(circuit.vci)
                .or_default()
                .push(std::mem::take(under_way));
        }
    }
}
