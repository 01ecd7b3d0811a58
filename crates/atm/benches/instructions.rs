//! Instructions that a switch of cells spends per cell, and per PDU in a frame.

use std::hint::black_box;
use std::process::ExitCode;

use tidewall_atm::switch::{End, Mode, Port, Route, Switch};
use tidewall_bench_instructions::{Counter, Scenario};
use tidewall_wire::atm::pseudowire::{Cell, CellBuilder, FrameHeader, Label};
use tidewall_wire::atm::{Circuit, PayloadType, aal5};

const SCENARIOS: [Scenario; 4] = [
    ("a cell of 28 in a packet, to cells", cells_to_cells),
    ("a cell of a PDU in a frame, to cells", frame_to_cells),
    ("a cell of 28 in a packet, to frames", cells_to_frames),
    ("a PDU of 31 cells in its frame", in_place),
];

/// Cells that fit into an Ethernet MTU of 1,500 bytes.
const CELLS: u16 = 28;
const IN_FRAME: usize = 31;

fn circuit(number: u16) -> Circuit {
    Circuit {
        vpi: 0,
        vci: 32 + number,
    }
}

/// A thousand circuits from the first port to the second.
fn switch(from: Mode, to: Mode) -> Switch {
    let port = |mode| Port { mode, queue: 4096 };
    let mut switch = Switch::new(&[port(from), port(to)]);
    for number in 0..1000 {
        let end = |port, number| End {
            port,
            circuit: circuit(number),
        };
        let route = Route {
            from: end(0, number),
            to: end(1, 999 - number),
            priority: 1,
            aal5: true,
        };
        switch.add(route).expect("an entry");
    }
    switch
}

fn mode() -> Mode {
    Mode::Cells(Label::new(16).expect("a label"))
}

/// A packet of single cells, each of another circuit.
fn packet(round: u16) -> Vec<u8> {
    let mut bytes = vec![0; 1500];
    let Mode::Cells(label) = mode() else {
        return bytes;
    };
    let mut packet = CellBuilder::new(label, 0, &mut bytes).expect("room");
    for number in 0..CELLS {
        let cell = Cell {
            circuit: circuit((round * CELLS + number * 37) % 1000),
            payload_type: PayloadType::USER_LAST,
            low_priority: false,
            payload: &[7; 48],
        };
        packet.push(&cell).expect("room");
    }
    let length = packet.len();
    bytes.truncate(length);
    bytes
}

fn frame(number: u16) -> Vec<u8> {
    let mut bytes = vec![0; 8 + IN_FRAME * 48];
    let label = Label::of_circuit(circuit(number)).expect("a label");
    let pdu = FrameHeader::whole(label).emit(&mut bytes).expect("room");
    aal5::emit(&[7; IN_FRAME * 48 - 8], 0, pdu).expect("room");
    bytes
}

/// Passes packets in and out, of this many cells each.
fn switched(counter: &mut Counter, to: Mode, cells: u16, make: impl Fn(u16) -> Vec<u8>) {
    let from = if cells == CELLS { mode() } else { Mode::Frame };
    let mut switch = switch(from, to);
    let mut buffer = vec![0; 1500];
    let mut round = 0;
    while counter.next_round() {
        let packet = make(round % 30);
        round += 1;
        counter.count(cells.into(), || {
            switch.input(0, &packet);
            while let Some(length) = switch.transmit(1, &mut buffer) {
                black_box(&buffer[..length]);
            }
        });
    }
    assert_eq!(switch.counters().received, switch.counters().sent);
}

fn cells_to_cells(counter: &mut Counter) {
    switched(counter, mode(), CELLS, packet);
}

fn frame_to_cells(counter: &mut Counter) {
    switched(counter, mode(), IN_FRAME as u16, frame);
}

fn cells_to_frames(counter: &mut Counter) {
    switched(counter, Mode::Frame, CELLS, packet);
}

fn in_place(counter: &mut Counter) {
    let mut switch = switch(Mode::Frame, Mode::Frame);
    let mut round = 0;
    while counter.next_round() {
        let packet = frame(round % 1000);
        round += 1;
        counter.count(1, || {
            let passage = switch.passage(0, packet[..].into()).expect("nothing waits");
            black_box(&passage);
            switch.passed(passage);
        });
    }
}

fn main() -> ExitCode {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
    tidewall_bench_instructions::count(file, &SCENARIOS)
}
