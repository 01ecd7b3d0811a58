//! ATM over MPLS (RFC 4717) in two of its modes, after a label stack entry (RFC 3032),
//! both with a control word. The *AAL5 PDU frame mode* carries whole AAL5 PDUs, with a
//! label per circuit. The *N-to-one cell mode* carries cells of any circuits of a link.
//!
//! ```text
//! +-------+----+-+-----+--------------+
//! | label | TC |S| TTL | control word |  AAL5 PDU, or cells of 4 + 48 bytes
//! +-------+----+-+-----+--------------+
//! ```

use super::{CELL_PAYLOAD_LEN, Circuit, PayloadType, split};
use crate::EmitError;

/// Bytes of a label stack entry.
pub const LABEL_LEN: usize = 4;

/// Bytes of a control word.
pub const CONTROL_WORD_LEN: usize = 4;

/// Bytes of label and control word.
pub const HEADER_LEN: usize = LABEL_LEN + CONTROL_WORD_LEN;

/// Bytes of a cell in the N-to-one mode: it has no header error control.
pub const CELL_LEN: usize = 4 + CELL_PAYLOAD_LEN;

/// Why bytes are not a pseudowire packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than label and control word.
    #[error("the frame ends before its control word does")]
    Truncated,
    /// More labels follow this one.
    #[error("the label is not the last of its stack")]
    NotBottom,
    /// The control word does not begin with four zero bits (RFC 4385 §3).
    #[error("the control word is {0:#010x}: not that of data")]
    ControlWord(u32),
    /// A cell instead of a PDU.
    #[error("a cell on a circuit that carries AAL5 PDUs")]
    NotFrame,
    /// A PDU, or a cell with its own VCI, instead of a cell of the circuit.
    #[error("not a cell of the circuit")]
    NotCell,
    /// Not a number of whole cells, or none.
    #[error("{0} bytes of cells, which have 52 each")]
    Cells(usize),
}

/// A label, 0 to 1,048,575 (RFC 3032 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(u32);

impl Label {
    /// The first label that is not reserved (RFC 7274 §2).
    pub const FIRST: u32 = 16;

    /// `None` for more than 20 bits.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value >> 20 != 0 {
            return None;
        }
        Some(Self(value))
    }

    /// The label of a circuit in the frame mode, unless both ends agree on another. It
    /// has 1 + VPI in the upper 4 bits and the VCI in the lower 16, so that no label is
    /// reserved. `None` for a VPI over [`Label::VPI_MAX`].
    #[must_use]
    pub const fn of_circuit(circuit: Circuit) -> Option<Self> {
        if circuit.vpi > Self::VPI_MAX {
            return None;
        }
        Some(Self((circuit.vpi as u32 + 1) << 16 | circuit.vci as u32))
    }

    /// The circuit to which [`Label::of_circuit`] gives this label; `None` for labels
    /// under 65,536.
    #[must_use]
    pub const fn circuit(self) -> Option<Circuit> {
        let path = self.0 >> 16;
        if path == 0 {
            return None;
        }
        Some(Circuit {
            vpi: path as u16 - 1,
            vci: self.0 as u16,
        })
    }

    /// The highest VPI for which [`Label::of_circuit`] has a label.
    pub const VPI_MAX: u16 = 14;

    /// The number.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The stack entry, as the last of its stack.
    #[must_use]
    pub const fn entry(self) -> [u8; LABEL_LEN] {
        // A pseudowire is one hop here, and 2 is the lowest value that RFC 4717
        // recommends.
        (self.0 << 12 | 1 << 8 | 2).to_be_bytes()
    }
}

/// A checked view of the bytes after the Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    label: Label,
    control_word: u32,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks for one label and a control word of data.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::NotBottom`], [`Error::ControlWord`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let (entry, rest) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
        let entry = u32::from_be_bytes(*entry);
        if entry & 1 << 8 == 0 {
            return Err(Error::NotBottom);
        }
        let (control_word, payload) = rest.split_first_chunk().ok_or(Error::Truncated)?;
        let control_word = u32::from_be_bytes(*control_word);
        if control_word >> 28 != 0 {
            return Err(Error::ControlWord(control_word));
        }
        Ok(Self {
            label: Label(entry >> 12),
            control_word,
            payload,
        })
    }

    /// The label.
    #[must_use]
    pub const fn label(&self) -> Label {
        self.label
    }

    /// In the frame mode: the PDU, or the part of it in this packet.
    ///
    /// # Errors
    /// [`Error::NotFrame`] and [`Error::Cells`].
    pub fn frame(&self) -> Result<Frame<'a>, Error> {
        Ok(Frame {
            header: self.frame_header(self.payload.len())?,
            bytes: self.payload,
        })
    }

    /// In the frame mode: the header of a packet with `length` bytes after it, of which
    /// only the first may be present.
    ///
    /// # Errors
    /// As [`Packet::frame`].
    pub fn frame_header(&self, length: usize) -> Result<FrameHeader, Error> {
        let specific = self.control_word as u8;
        if specific & FRAME == 0 {
            return Err(Error::NotFrame);
        }
        if length == 0 || !length.is_multiple_of(CELL_PAYLOAD_LEN) {
            return Err(Error::Cells(length));
        }
        Ok(FrameHeader {
            label: self.label,
            sequence: (self.control_word >> 8) as u16,
            last: specific & LAST != 0,
            congested: specific & CONGESTED != 0,
            low_priority: specific & LOW_PRIORITY != 0,
        })
    }

    /// In the frame mode: a cell of the circuit, in the form of the one-to-one mode (RFC
    /// 4717 §10 and §11). OAM cells are sent in this form beside PDUs.
    ///
    /// # Errors
    /// [`Error::NotCell`] and [`Error::Cells`].
    pub fn cell(&self) -> Result<CircuitCell<'a>, Error> {
        let specific = self.control_word as u8;
        if specific & (FRAME | VCI_PRESENT) != 0 {
            return Err(Error::NotCell);
        }
        let length = self.payload.len();
        let payload = self.payload.try_into().map_err(|_| Error::Cells(length))?;
        Ok(CircuitCell {
            label: self.label,
            payload_type: PayloadType::from_bits(specific >> 1),
            low_priority: specific & LOW_PRIORITY != 0,
            payload,
        })
    }

    /// In the N-to-one mode: the cells.
    ///
    /// # Errors
    /// [`Error::Cells`].
    pub fn cells(&self) -> Result<Cells<'a>, Error> {
        let (cells, rest) = self.payload.as_chunks::<CELL_LEN>();
        if cells.is_empty() || !rest.is_empty() {
            return Err(Error::Cells(self.payload.len()));
        }
        Ok(Cells(cells.iter()))
    }
}

/// The bits of the frame mode's control word (RFC 4717).
const FRAME: u8 = 0x80;
const VCI_PRESENT: u8 = 0x40;
const LAST: u8 = 0x04;
const CONGESTED: u8 = 0x02;
const LOW_PRIORITY: u8 = 0x01;

/// The header before a PDU in the frame mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The circuit's label.
    pub label: Label,
    /// Sequence number of the packet; 0 if packets are not numbered (RFC 4385 §3).
    pub sequence: u16,
    /// The last cell of the PDU is present (U); without it, more of the PDU follows.
    pub last: bool,
    /// A cell met congestion (E).
    pub congested: bool,
    /// All cells are dropped first (C).
    pub low_priority: bool,
}

impl FrameHeader {
    /// The header of a whole PDU.
    #[must_use]
    pub const fn whole(label: Label) -> Self {
        Self {
            label,
            sequence: 0,
            last: true,
            congested: false,
            low_priority: false,
        }
    }

    /// Writes label and control word at the start of `buffer`, and returns the rest of it.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[expect(
        clippy::indexing_slicing,
        reason = "`split` returned exactly the bytes that are written"
    )]
    pub fn emit<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b mut [u8], EmitError> {
        let (header, rest) = split(buffer, HEADER_LEN)?;
        let flag = |set, bit| if set { bit } else { 0 };
        let specific = FRAME
            | flag(self.last, LAST)
            | flag(self.congested, CONGESTED)
            | flag(self.low_priority, LOW_PRIORITY);
        let word = u32::from(self.sequence) << 8 | u32::from(specific);
        header[..LABEL_LEN].copy_from_slice(&self.label.entry());
        header[LABEL_LEN..].copy_from_slice(&word.to_be_bytes());
        Ok(rest)
    }
}

/// A PDU, or part of one, in the frame mode.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The header before it.
    pub header: FrameHeader,
    /// Payloads of whole cells, 48 bytes each.
    pub bytes: &'a [u8],
}

/// A cell of a circuit in the frame mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitCell<'a> {
    /// The circuit's label.
    pub label: Label,
    /// The payload type.
    pub payload_type: PayloadType,
    /// The cell is dropped first.
    pub low_priority: bool,
    /// The payload.
    pub payload: &'a [u8; CELL_PAYLOAD_LEN],
}

impl CircuitCell<'_> {
    /// Bytes that [`CircuitCell::emit`] writes.
    pub const LEN: usize = HEADER_LEN + CELL_PAYLOAD_LEN;

    /// Writes label, control word and payload at the start of `buffer`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[expect(
        clippy::indexing_slicing,
        reason = "`split` returned exactly the bytes that are written"
    )]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), EmitError> {
        let (packet, _) = split(buffer, Self::LEN)?;
        let specific = self.payload_type.bits() << 1 | u8::from(self.low_priority);
        packet[..LABEL_LEN].copy_from_slice(&self.label.entry());
        packet[LABEL_LEN..HEADER_LEN].copy_from_slice(&u32::from(specific).to_be_bytes());
        packet[HEADER_LEN..].copy_from_slice(self.payload);
        Ok(())
    }
}

/// A cell in the N-to-one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The cell's circuit; the VPI has 12 bits here (RFC 4717).
    pub circuit: Circuit,
    /// The payload type.
    pub payload_type: PayloadType,
    /// The cell is dropped first.
    pub low_priority: bool,
    /// The payload.
    pub payload: &'a [u8; CELL_PAYLOAD_LEN],
}

impl<'a> Cell<'a> {
    fn parse(bytes: &'a [u8; CELL_LEN]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk()?;
        let word = u32::from_be_bytes(*header);
        Some(Self {
            circuit: Circuit {
                vpi: (word >> 20) as u16,
                vci: (word >> 4) as u16,
            },
            payload_type: PayloadType::from_bits((word >> 1) as u8),
            low_priority: word & 1 != 0,
            payload: payload.try_into().ok()?,
        })
    }
}

/// The cells of a packet in order.
#[derive(Clone, Debug)]
pub struct Cells<'a>(core::slice::Iter<'a, [u8; CELL_LEN]>);

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Cell::parse(self.0.next()?)
    }
}

/// Appends cells to a buffer that holds the bytes after the Ethernet header.
#[derive(Debug)]
pub struct CellBuilder<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> CellBuilder<'a> {
    /// Writes label and control word.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[expect(
        clippy::indexing_slicing,
        reason = "`split` returned exactly the bytes that are written"
    )]
    pub fn new(label: Label, sequence: u16, buffer: &'a mut [u8]) -> Result<Self, EmitError> {
        let (header, _) = split(buffer, HEADER_LEN)?;
        header[..LABEL_LEN].copy_from_slice(&label.entry());
        // Flags and length are 0: each cell has its own header, and no packet is so short
        // that Ethernet pads it.
        header[LABEL_LEN..].copy_from_slice(&u32::from(sequence).to_be_bytes());
        Ok(Self {
            buffer,
            used: HEADER_LEN,
        })
    }

    /// Appends a cell. The lower 12 bits of the VPI are sent.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; the buffer's content is unchanged.
    #[expect(
        clippy::indexing_slicing,
        reason = "`split` returned exactly the bytes that are written"
    )]
    pub fn push(&mut self, cell: &Cell<'_>) -> Result<(), EmitError> {
        let (place, _) = split(
            self.buffer.get_mut(self.used..).unwrap_or_default(),
            CELL_LEN,
        )?;
        let word = u32::from(cell.circuit.vpi) << 20
            | u32::from(cell.circuit.vci) << 4
            | u32::from(cell.payload_type.bits()) << 1
            | u32::from(cell.low_priority);
        place[..4].copy_from_slice(&word.to_be_bytes());
        place[4..].copy_from_slice(cell.payload);
        self.used += CELL_LEN;
        Ok(())
    }

    /// Bytes in the buffer, label and control word included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// True while there is no cell.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == HEADER_LEN
    }
}

#[cfg(test)]
mod tests;
