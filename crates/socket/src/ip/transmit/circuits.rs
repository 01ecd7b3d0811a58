//! Sending on circuits: AAL5 PDUs and cells behind a label (RFC 4717), in Ethernet.

use std::io;

use tidewall_wire::EmitError;
use tidewall_wire::atm::CELL_PAYLOAD_LEN;
use tidewall_wire::atm::aal5::{PartialPdu, emit_part, pdu_len};
use tidewall_wire::atm::pseudowire::{CircuitCell, FrameHeader, HEADER_LEN as LABELLED};
use tidewall_wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddress};

use super::Transmitter;

impl Transmitter {
    /// Queues one PDU: in one frame if it fits, else its cells in as few as they need.
    /// Label, control word and cells of a frame are no longer than the interface's MTU.
    ///
    /// # Errors
    /// ENOBUFS when not all frames for it are free, EMSGSIZE for a payload that AAL5 does
    /// not take or that needs more frames than there are, or an MTU that no cell fits into;
    /// nothing of it is sent then.
    pub(crate) fn queue_pdu(
        &mut self,
        neighbour: MacAddress,
        header: &FrameHeader,
        payload: &[u8],
    ) -> io::Result<()> {
        let pdu = pdu_len(payload.len());
        let cells = self.mtu.saturating_sub(LABELLED) / CELL_PAYLOAD_LEN;
        let in_frame = (cells * CELL_PAYLOAD_LEN).min(pdu);
        if in_frame == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let frames = pdu.div_ceil(in_frame);
        if frames > self.pool {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.reserve(frames)?;
        let mut so_far = PartialPdu::default();
        while so_far.written() < pdu {
            let length = in_frame.min(pdu - so_far.written());
            let header = FrameHeader {
                last: so_far.written() + length == pdu,
                ..*header
            };
            so_far = self.queue_labelled(neighbour, LABELLED + length, |bytes| {
                emit_part(payload, 0, so_far, header.emit(bytes)?)
            })?;
        }
        Ok(())
    }

    /// Queues one cell.
    ///
    /// # Errors
    /// ENOBUFS when every frame is on its way.
    pub(crate) fn queue_cell(
        &mut self,
        neighbour: MacAddress,
        cell: &CircuitCell<'_>,
    ) -> io::Result<()> {
        self.queue_labelled(neighbour, CircuitCell::LEN, |bytes| cell.emit(bytes))
    }

    /// Sees that so many frames are free.
    fn reserve(&mut self, frames: usize) -> io::Result<()> {
        if self.free.len() >= frames {
            return Ok(());
        }
        self.reclaim();
        if self.free.len() < frames {
            self.flush()?;
            self.reclaim();
        }
        if self.free.len() < frames {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        Ok(())
    }

    /// Queues a frame of `length` bytes behind the Ethernet header, which `emit` writes.
    fn queue_labelled<V>(
        &mut self,
        neighbour: MacAddress,
        length: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<V, EmitError>,
    ) -> io::Result<V> {
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        frame.set_extent(self.device.headroom(), (HEADER_LEN + length) as u16);
        let header = Header {
            destination: neighbour,
            source: self.mac,
            ethertype: EtherType::MPLS,
        };
        let bytes = self.memory.packet_mut(&mut frame);
        match header.emit(bytes).and_then(emit) {
            Ok(value) => self.send(frame, None).map(|()| value),
            Err(_) => {
                self.free.push(frame);
                Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
            }
        }
    }
}
