//! Packs cells from the queues of a port into packets.

use std::collections::VecDeque;

use tidewall_wire::atm::pseudowire::{
    self, CellBuilder, CircuitCell, FrameHeader, HEADER_LEN, Label,
};
use tidewall_wire::atm::{CELL_HEADER_LEN, CELL_LEN, CELL_PAYLOAD_LEN, CellHeader, Circuit};

use super::queue::Waiting;
use super::{Entry, Mode, Switch};

impl Switch {
    /// Writes the next packet of a port at the start of `buffer`, and returns its length;
    /// `None` if nothing waits, or `buffer` is too short for a cell.
    ///
    /// A packet of cells has as many as `buffer` has room for, of one circuit after the
    /// other; one of the frame mode has those of one circuit, up to the end of its PDU.
    pub fn transmit(&mut self, port: usize, buffer: &mut [u8]) -> Option<usize> {
        let mode = self.ports.get(port)?.mode;
        let (cells, length) = match mode {
            Mode::Frame => self.transmit_frame(port, buffer)?,
            Mode::Cells(label) => {
                let mut packet = CellBuilder::new(label, 0, buffer).ok()?;
                let cells = self.transmit_cells(port, |circuit, cell| {
                    let cell = pseudowire::Cell {
                        circuit,
                        payload_type: cell.payload_type,
                        low_priority: cell.low_priority,
                        payload: &cell.payload,
                    };
                    packet.push(&cell).is_ok()
                });
                (cells, packet.len())
            }
            Mode::User => {
                let mut places = buffer.as_chunks_mut::<CELL_LEN>().0.iter_mut();
                let cells = self.transmit_cells(port, |circuit, cell| {
                    let header = CellHeader::new(circuit, cell.payload_type);
                    let (Some(mut header), Some(place)) = (header, places.next()) else {
                        return false;
                    };
                    header.low_priority = cell.low_priority;
                    let (head, payload) = place.split_at_mut(CELL_HEADER_LEN);
                    head.copy_from_slice(&header.bytes());
                    payload.copy_from_slice(&cell.payload);
                    true
                });
                (cells, cells * CELL_LEN)
            }
        };
        self.counters.sent += cells as u64;
        (cells > 0).then_some(length)
    }

    /// Passes cells to `put` in the order in which they leave, until it has no room.
    /// Returns how many it accepted.
    fn transmit_cells(
        &mut self,
        port: usize,
        mut put: impl FnMut(Circuit, &Waiting) -> bool,
    ) -> usize {
        let Some(port) = self.ports.get_mut(port) else {
            return 0;
        };
        let mut sent = 0;
        for queue in &mut port.queues {
            while let Some(place) = queue.next() {
                let Some(Some(entry)) = self.entries.get_mut(place) else {
                    break;
                };
                let circuit = entry.route.to.circuit;
                let mut taken = 0;
                while let Some(cell) = entry.cells.front() {
                    if !put(circuit, cell) {
                        break;
                    }
                    entry.cells.pop_front();
                    taken += 1;
                }
                sent += taken;
                if taken == 0 {
                    return sent;
                }
                queue.served(taken, !entry.cells.is_empty());
            }
        }
        sent
    }

    /// Returns cells and bytes.
    fn transmit_frame(&mut self, port: usize, buffer: &mut [u8]) -> Option<(usize, usize)> {
        let queues = &mut self.ports.get_mut(port)?.queues;
        let queue = queues.iter_mut().find(|queue| queue.len() > 0)?;
        let Entry { route, cells, .. } = self.entries.get_mut(queue.next()?)?.as_mut()?;
        let label = Label::of_circuit(route.to.circuit)?;
        let first = cells.front()?;
        let (count, length) = if route.aal5 && first.payload_type.is_user() {
            part(cells, label, buffer)?
        } else {
            let cell = CircuitCell {
                label,
                payload_type: first.payload_type,
                low_priority: first.low_priority,
                payload: &first.payload,
            };
            cell.emit(buffer).ok()?;
            (1, CircuitCell::LEN)
        };
        cells.drain(..count);
        queue.served(count, !cells.is_empty());
        Some((count, length))
    }
}

/// Writes the cells of the first PDU as a frame, and returns their number and its length.
/// Congestion is that of the last, and priority is low if one cell's is (RFC 4717).
fn part(cells: &VecDeque<Waiting>, label: Label, buffer: &mut [u8]) -> Option<(usize, usize)> {
    let most = buffer.len().checked_sub(HEADER_LEN)? / CELL_PAYLOAD_LEN;
    let mut header = FrameHeader {
        last: false,
        ..FrameHeader::whole(label)
    };
    let mut count = 0;
    let places = buffer.get_mut(HEADER_LEN..)?.as_chunks_mut().0;
    let user = cells.iter().take_while(|cell| cell.payload_type.is_user());
    for (cell, place) in user.zip(places.iter_mut().take(most)) {
        *place = cell.payload;
        header.last = cell.payload_type.is_last();
        header.congested = cell.payload_type.is_congested();
        header.low_priority |= cell.low_priority;
        count += 1;
        if header.last {
            break;
        }
    }
    if count == 0 {
        return None;
    }
    header.emit(buffer).ok()?;
    Some((count, HEADER_LEN + count * CELL_PAYLOAD_LEN))
}
