//! Sending on circuits: AAL5 PDUs and cells behind a label (RFC 4717), in Ethernet.

use std::io;

use tidewall_device::frame::Frame;
use tidewall_wire::EmitError;
use tidewall_wire::atm::CELL_PAYLOAD_LEN;
use tidewall_wire::atm::aal5::{PartialPdu, emit_part, pdu_len};
use tidewall_wire::atm::pseudowire::{
    CircuitCell, FrameHeader, HEADER_LEN as LABELLED, LABEL_LEN, Label,
};
use tidewall_wire::ethernet::{EtherType, HEADER_LEN, Header, MacAddress};

use super::Transmitter;

/// A received frame of a circuit to be forwarded in place.
pub struct Relabelled {
    /// The frame that holds the packet.
    pub frame: Frame,
    /// Offset of the label in its packet, in bytes.
    pub network: usize,
    /// Offset of the packet's end, in bytes.
    pub end: usize,
    /// The link address of the next hop.
    pub neighbour: MacAddress,
    /// The label that it leaves with.
    pub label: Label,
}

impl Transmitter {
    /// Queues one PDU in one frame of the link if it fits, otherwise its cells in as few
    /// frames as they need. Label, control word and cells of a frame are no longer than
    /// the interface's MTU. A frame of the link that is longer than a memory frame leaves
    /// at once by a packet socket, if there is one.
    ///
    /// # Errors
    /// - ENOBUFS when not all frames for it are free.
    /// - EMSGSIZE for a payload that AAL5 does not accept or that needs more frames than
    ///   there are.
    /// - EMSGSIZE for an MTU that no cell fits into.
    ///
    /// On an error no frame is sent, except when the packet socket accepts one frame and
    /// rejects another.
    pub fn queue_pdu(
        &mut self,
        neighbour: MacAddress,
        header: &FrameHeader,
        payload: &[u8],
    ) -> io::Result<()> {
        let pdu = pdu_len(payload.len());
        let cells = self.packet_max().saturating_sub(LABELLED) / CELL_PAYLOAD_LEN;
        let in_frame = (cells * CELL_PAYLOAD_LEN).min(pdu);
        if in_frame == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let frames = pdu.div_ceil(in_frame);
        if frames > self.pool {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if LABELLED + in_frame <= self.mtu {
            self.reserve(frames)?;
        }
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

    /// Queues a received frame of a circuit in place, with another label.
    ///
    /// # Errors
    /// With the frame, as it was behind its Ethernet header: EMSGSIZE over the MTU and
    /// without room for an Ethernet header, ENOBUFS when the ring is full.
    pub fn relabel(&mut self, of: Relabelled) -> Result<(), (Frame, io::Error)> {
        let Relabelled {
            mut frame,
            network,
            end,
            ..
        } = of;
        let refused = io::Error::from_raw_os_error(libc::EMSGSIZE);
        let (offset, length) = (frame.offset(), frame.length());
        let length_behind = end.saturating_sub(network);
        let has_pieces = self.memory.has_pieces(&frame);
        if has_pieces && end != self.memory.whole_len(&frame) {
            // The pieces on the frame leave with it, and have an end of their own.
            return Err((frame, refused));
        }
        let here = end.min(length.into()).saturating_sub(network);
        let most = if has_pieces { self.link_mtu } else { self.mtu };
        let begin = (usize::from(offset) + network).checked_sub(HEADER_LEN);
        let begin = begin.filter(|&begin| begin >= self.device.headroom().into());
        let Some(begin) = begin.filter(|_| length_behind <= most) else {
            return Err((frame, refused));
        };
        frame.set_extent(begin as u16, (HEADER_LEN + here) as u16);
        let header = Header {
            destination: of.neighbour,
            source: self.mac,
            ethertype: EtherType::MPLS,
        };
        let before = match header.emit(self.memory.packet_mut(&mut frame)) {
            Ok(rest) => rest.first_chunk_mut::<LABEL_LEN>(),
            Err(_) => None,
        };
        let Some(before) = before.map(|entry| std::mem::replace(entry, of.label.entry())) else {
            frame.set_extent(offset, length);
            return Err((frame, refused));
        };
        let sent = self.attempt(frame, |device, frame| device.transmit(frame, None));
        if let Err((mut frame, error)) = sent {
            let bytes = self.memory.packet_mut(&mut frame).get_mut(HEADER_LEN..);
            if let Some(entry) = bytes.and_then(|it| it.first_chunk_mut()) {
                *entry = before;
            }
            frame.set_extent(offset, length);
            return Err((frame, error));
        }
        if let Some(origins) = &mut self.origins {
            origins.handed += 1;
        }
        Ok(())
    }

    /// Queues what follows the Ethernet header of a frame of circuits.
    ///
    /// # Errors
    /// ENOBUFS when every frame is on its way, EMSGSIZE over the MTU.
    pub fn queue_bytes(&mut self, neighbour: MacAddress, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.packet_max() {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if bytes.len() > self.mtu {
            let mut link = [0; HEADER_LEN];
            let header = self.header_to(neighbour);
            let written = header.emit(&mut link).map(drop);
            written.map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
            return self.send_beyond_frame([&link, bytes]);
        }
        self.queue_labelled(neighbour, bytes.len(), |buffer| {
            let available = buffer.len();
            let place = buffer.get_mut(..bytes.len());
            let place = place.ok_or(EmitError::BufferTooSmall {
                needed: bytes.len(),
                available,
            })?;
            place.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Queues one cell.
    ///
    /// # Errors
    /// ENOBUFS when every frame is on its way.
    pub fn queue_cell(&mut self, neighbour: MacAddress, cell: &CircuitCell<'_>) -> io::Result<()> {
        self.queue_labelled(neighbour, CircuitCell::LEN, |bytes| cell.emit(bytes))
    }

    /// Ensures that so many frames are free.
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
        if length > self.mtu {
            return self.send_labelled(neighbour, length, emit);
        }
        let Some(mut frame) = self.frame()? else {
            self.no_frame += 1;
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        };
        frame.set_extent(self.device.headroom(), (HEADER_LEN + length) as u16);
        let header = self.header_to(neighbour);
        let bytes = self.memory.packet_mut(&mut frame);
        match header.emit(bytes).and_then(emit) {
            Ok(value) => self.send(frame, None).map(|()| value),
            Err(_) => {
                self.free.push(frame);
                Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
            }
        }
    }

    /// As [`Transmitter::queue_labelled`], for a frame longer than a memory frame.
    fn send_labelled<V>(
        &mut self,
        neighbour: MacAddress,
        length: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<V, EmitError>,
    ) -> io::Result<V> {
        let header = self.header_to(neighbour);
        let mut bytes = std::mem::take(&mut self.beyond_frame);
        bytes.resize(HEADER_LEN + length, 0);
        let emitted = header.emit(&mut bytes).and_then(emit);
        let sent = match emitted {
            Ok(value) => self.send_beyond_frame([&bytes, &[]]).map(|()| value),
            Err(_) => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
        };
        // Kept for its memory.
        self.beyond_frame = bytes;
        sent
    }

    fn header_to(&self, neighbour: MacAddress) -> Header {
        Header {
            destination: neighbour,
            source: self.mac,
            ethertype: EtherType::MPLS,
        }
    }
}
