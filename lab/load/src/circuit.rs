//! Circuits: frames of PDUs, and a client end that sends requests over one.
//!
//! Circuit 0.PORT stands for the port of a destination.

use std::io;

use tidewall::{AtmSocket, Circuit, EmbeddedConfig, Stack};
use tidewall_wire::EmitError;
use tidewall_wire::atm::pseudowire::{self, Cell, CellBuilder, FrameHeader, Label};
use tidewall_wire::atm::{CELL_PAYLOAD_LEN, PayloadType, aal5};
use tidewall_wire::ethernet::{self, EtherType};

use crate::neighbour::Path;
use crate::spec::{BlastSpec, Content, PingSpec, invalid};

/// Label of the packets of cells.
const CELLS: Label = match Label::new(Label::FIRST) {
    Some(label) => label,
    None => unreachable!(),
};

const fn circuit(port: u16) -> Circuit {
    Circuit { vpi: 0, vci: port }
}

/// Returns the frames of one PDU of zeros, all of the same length except the last.
pub(crate) fn frames(spec: &BlastSpec, path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let header = ethernet::Header {
        destination: path.destination_mac,
        source: path.link.mac,
        ethertype: EtherType::MPLS,
    };
    let mut pdu = vec![0; aal5::pdu_len(spec.payload.into())];
    let room = (path.link.mtu as usize).saturating_sub(pseudowire::HEADER_LEN);
    let frame = |packet: &[u8]| -> Result<Vec<u8>, EmitError> {
        let mut frame = vec![0; ethernet::HEADER_LEN + packet.len()];
        header.emit(&mut frame)?.copy_from_slice(packet);
        Ok(frame)
    };
    let mut made = || -> Result<Vec<Vec<u8>>, EmitError> {
        aal5::emit(&vec![0; spec.payload.into()], 0, &mut pdu)?;
        match spec.content {
            Content::Cells => cells(spec.destination.port(), &pdu, room / pseudowire::CELL_LEN),
            _ => parts(spec.destination.port(), &pdu, room / CELL_PAYLOAD_LEN),
        }?
        .iter()
        .map(|packet| frame(packet))
        .collect()
    };
    made().map_err(|error| invalid(error.to_string()))
}

/// Splits the PDU in frame mode, into packets of this many cells.
fn parts(port: u16, pdu: &[u8], cells: usize) -> Result<Vec<Vec<u8>>, EmitError> {
    let label = Label::of_circuit(circuit(port)).unwrap_or(CELLS);
    let mut parts = pdu.chunks(cells.max(1) * CELL_PAYLOAD_LEN).peekable();
    let mut packets = Vec::new();
    while let Some(part) = parts.next() {
        let header = FrameHeader {
            last: parts.peek().is_none(),
            ..FrameHeader::whole(label)
        };
        let mut packet = vec![0; pseudowire::HEADER_LEN + part.len()];
        header.emit(&mut packet)?.copy_from_slice(part);
        packets.push(packet);
    }
    Ok(packets)
}

/// Returns its cells in the N-to-one mode, this many per packet.
fn cells(port: u16, pdu: &[u8], most: usize) -> Result<Vec<Vec<u8>>, EmitError> {
    let (all, _) = pdu.as_chunks::<CELL_PAYLOAD_LEN>();
    let last = all.len().saturating_sub(1);
    let mut packets = Vec::new();
    for (number, some) in all.chunks(most.max(1)).enumerate() {
        let mut packet = vec![0; pseudowire::HEADER_LEN + some.len() * pseudowire::CELL_LEN];
        let mut builder = CellBuilder::new(CELLS, 0, &mut packet)?;
        for (place, payload) in some.iter().enumerate() {
            builder.push(&Cell {
                circuit: circuit(port),
                payload_type: match number * most.max(1) + place == last {
                    true => PayloadType::USER_LAST,
                    false => PayloadType::USER,
                },
                low_priority: false,
                payload,
            })?;
        }
        packets.push(packet);
    }
    Ok(packets)
}

/// One end of a circuit, on its own stack.
pub(crate) struct CircuitEnd {
    socket: AtmSocket,
    // Dropped last.
    _stack: Stack,
}

impl CircuitEnd {
    /// Takes the interface that the kernel's route to the destination uses.
    pub(crate) fn open(spec: &PingSpec) -> io::Result<Self> {
        let to = spec.destination;
        let route = crate::neighbour::route(to.ip(), None)?;
        let stack = Stack::embedded(EmbeddedConfig::new(&route.interface).control(false))?;
        stack.attach_atm(to.ip())?;
        let socket = AtmSocket::bind(&stack, circuit(to.port()))?;
        socket.set_nonblocking(true)?;
        Ok(CircuitEnd {
            socket,
            _stack: stack,
        })
    }

    pub(crate) fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.socket.send(payload)
    }

    pub(crate) fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(buffer)
    }
}

#[cfg(test)]
mod tests {
    use tidewall_wire::atm::pseudowire::Packet;

    use super::*;
    use crate::spec::SenderKind;

    fn of(content: Content, payload: u16) -> Vec<Vec<u8>> {
        let spec = BlastSpec {
            content,
            payload,
            ..BlastSpec::new(SenderKind::Skb, "10.0.0.2:100".parse().unwrap())
        };
        spec.check().unwrap();
        frames(&spec, &Path::of_tests()).unwrap()
    }

    #[test]
    fn a_pdu_goes_in_parts_of_whole_cells() {
        for (payload, lengths) in [(40, vec![48]), (1480, vec![1488]), (1481, vec![1488, 48])] {
            let frames = of(Content::Pdus, payload);
            let mut pdu = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                let packet = Packet::new(&frame[ethernet::HEADER_LEN..]).unwrap();
                assert_eq!(packet.label().circuit(), Some(circuit(100)));
                let part = packet.frame().unwrap();
                assert_eq!(part.bytes.len(), lengths[number]);
                assert_eq!(part.header.last, number + 1 == frames.len());
                pdu.extend_from_slice(part.bytes);
            }
            let read = aal5::Pdu::new(&pdu).unwrap();
            assert_eq!(read.payload().len(), usize::from(payload));
        }
    }

    #[test]
    fn its_cells_are_the_same_pdu() {
        let frames = of(Content::Cells, 1480);
        assert_eq!(frames.len(), 2, "28 and 3 cells");
        let mut pdu = Vec::new();
        let mut last = Vec::new();
        for frame in &frames {
            let packet = Packet::new(&frame[ethernet::HEADER_LEN..]).unwrap();
            for cell in packet.cells().unwrap() {
                assert_eq!(cell.circuit, circuit(100));
                pdu.extend_from_slice(cell.payload);
                last.push(cell.payload_type == PayloadType::USER_LAST);
            }
        }
        assert_eq!(last.iter().position(|&last| last), Some(30));
        assert_eq!(aal5::Pdu::new(&pdu).unwrap().payload().len(), 1480);
    }
}
