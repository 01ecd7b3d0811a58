use super::*;

fn label(value: u32) -> Label {
    Label::new(value).unwrap()
}

#[test]
fn a_label_has_twenty_bits() {
    assert_eq!(label(0xf_ffff).value(), 0xf_ffff);
    assert_eq!(Label::new(0x10_0000), None);
}

#[test]
fn a_circuit_has_a_label_that_is_not_reserved() {
    let of = |vpi, vci| Label::of_circuit(Circuit { vpi, vci });
    assert_eq!(of(0, 5), Label::new(0x1_0005));
    assert_eq!(of(14, 65_535), Label::new(0xf_ffff));
    assert_eq!(of(15, 0), None);
    assert!(of(0, 0).unwrap().value() >= Label::FIRST);
    let circuit = Circuit { vpi: 14, vci: 77 };
    let label = Label::of_circuit(circuit).unwrap();
    assert_eq!(label.circuit(), Some(circuit));
    assert_eq!(super::Label::new(0xffff).unwrap().circuit(), None);
}

#[test]
fn a_cell_beside_pdus() {
    let cell = CircuitCell {
        label: label(0x1_0064),
        payload_type: PayloadType::OAM_END_TO_END,
        low_priority: true,
        payload: &[7; 48],
    };
    let mut buffer = [0; CircuitCell::LEN];
    cell.emit(&mut buffer).unwrap();
    assert_eq!(buffer[..8], [0x10, 0x06, 0x41, 2, 0, 0, 0, 0x0b]);
    let packet = Packet::new(&buffer).unwrap();
    assert_eq!(packet.frame().unwrap_err(), Error::NotFrame);
    assert_eq!(packet.cell(), Ok(cell));
    let longer = [&buffer[..], &[0]].concat();
    let cells = Packet::new(&longer).unwrap().cell();
    assert_eq!(cells, Err(Error::Cells(49)));
    // A PDU, and a cell with a VCI.
    for specific in [0x84, 0x4b] {
        buffer[7] = specific;
        let cell = Packet::new(&buffer).unwrap().cell();
        assert_eq!(cell, Err(Error::NotCell));
    }
}

#[test]
fn a_whole_pdu_in_a_frame() {
    let mut buffer = [7; HEADER_LEN + 96];
    let header = FrameHeader::whole(label(100));
    let rest = header.emit(&mut buffer).unwrap();
    assert_eq!(rest.len(), 96);
    assert_eq!(buffer[..8], [0x00, 0x06, 0x41, 2, 0, 0, 0, 0x84]);
    let packet = Packet::new(&buffer).unwrap();
    assert_eq!(packet.label(), label(100));
    let frame = packet.frame().unwrap();
    assert_eq!(frame.header, header);
    assert_eq!(frame.bytes, [7; 96]);
}

#[test]
fn what_is_no_frame_has_its_cause() {
    let mut buffer = [0; HEADER_LEN + 48];
    FrameHeader::whole(label(100)).emit(&mut buffer).unwrap();
    let error = |bytes: &[u8]| {
        Packet::new(bytes)
            .and_then(|packet| packet.frame())
            .unwrap_err()
    };
    assert_eq!(error(&buffer[..7]), Error::Truncated);
    assert_eq!(error(&buffer[..8]), Error::Cells(0));
    assert_eq!(error(&buffer[..55]), Error::Cells(47));
    let with = |at: usize, value: u8| {
        let mut changed = buffer;
        changed[at] = value;
        changed
    };
    assert_eq!(error(&with(2, 0x40)), Error::NotBottom);
    assert_eq!(error(&with(4, 0x10)), Error::ControlWord(0x1000_0084));
    assert_eq!(error(&with(7, 0)), Error::NotFrame);
    assert!(FrameHeader::whole(label(1)).emit(&mut [0; 7]).is_err());
}

#[test]
fn cells_of_several_circuits() {
    let mut buffer = [0; HEADER_LEN + 2 * CELL_LEN];
    let cells = [(1, 32, 0, false), (0xfff, 0xffff, 5, true)].map(|(vpi, vci, kind, low)| Cell {
        circuit: Circuit { vpi, vci },
        payload_type: PayloadType::from_bits(kind),
        low_priority: low,
        payload: &[9; CELL_PAYLOAD_LEN],
    });
    let mut builder = CellBuilder::new(label(17), 3, &mut buffer).unwrap();
    assert!(builder.is_empty());
    for cell in &cells {
        builder.push(cell).unwrap();
    }
    assert!(builder.push(&cells[0]).is_err());
    assert_eq!(builder.len(), HEADER_LEN + 2 * CELL_LEN);
    let packet = Packet::new(&buffer).unwrap();
    let read: Vec<Cell<'_>> = packet.cells().unwrap().collect();
    assert_eq!(read, cells);
    assert_eq!(buffer[8..12], [0x00, 0x10, 0x02, 0x00]);
    let error = Packet::new(&buffer[..HEADER_LEN + 51])
        .unwrap()
        .cells()
        .unwrap_err();
    assert_eq!(error, Error::Cells(51));
}
