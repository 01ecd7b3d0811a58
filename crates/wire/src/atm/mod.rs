//! ATM: cells and virtual circuits, the adaptation layer for packets (AAL5), its
//! transport over Ethernet (an MPLS pseudowire), and the messages that set up circuits.
//!
//! ```text
//! ethernet ─► pseudowire ─► aal5::Pdu ─► llc ─► IPv4, arp
//!                     └──► cells (CellHeader, oam)     VPI 0, VCI 5: sscop ─► q2931
//! ```
//!
//! Read first: ITU-T I.361 (cells), I.432.1 §4.3 (header error control), I.363.5 (AAL5),
//! I.610 (OAM), Q.2110 (SSCOP), Q.2931 and the ATM Forum's UNI 3.1; RFC 4717, 2684, 2225.

pub mod aal5;
pub mod arp;
pub mod llc;
pub mod oam;
pub mod pseudowire;
pub mod q2931;
pub mod sscop;

use core::fmt;

use crate::EmitError;

/// Bytes of a cell, header error control included (I.361 §2).
pub const CELL_LEN: usize = 53;

/// Bytes of a cell's payload.
pub const CELL_PAYLOAD_LEN: usize = 48;

/// Bytes of a cell's header, header error control included.
pub const CELL_HEADER_LEN: usize = 5;

/// Bytes of an ATM end system address (an NSAP address, UNI 3.1 §5.1.3).
pub const NSAP_LEN: usize = 20;

/// An ATM end system address in the NSAP format.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsap(pub [u8; NSAP_LEN]);

impl fmt::Display for Nsap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nsap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not forty hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an ATM address: forty hexadecimal digits, with dots wherever they help")]
pub struct InvalidNsap;

impl core::str::FromStr for Nsap {
    type Err = InvalidNsap;

    fn from_str(text: &str) -> Result<Self, InvalidNsap> {
        let mut address = [0; NSAP_LEN];
        let mut count = 0;
        for digit in text.chars().filter(|character| *character != '.') {
            let value = digit.to_digit(16).ok_or(InvalidNsap)? as u8;
            let byte: &mut u8 = address.get_mut(count / 2).ok_or(InvalidNsap)?;
            *byte = *byte << 4 | value;
            count += 1;
        }
        if count != 2 * NSAP_LEN {
            return Err(InvalidNsap);
        }
        Ok(Self(address))
    }
}

/// The text was not a virtual path and a virtual channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a circuit such as 0.100")]
pub struct InvalidCircuit;

impl core::str::FromStr for Circuit {
    type Err = InvalidCircuit;

    /// Reads `VPI.VCI`.
    fn from_str(text: &str) -> Result<Self, InvalidCircuit> {
        let (vpi, vci) = text.split_once('.').ok_or(InvalidCircuit)?;
        match (vpi.parse(), vci.parse()) {
            (Ok(vpi), Ok(vci)) => Ok(Self { vpi, vci }),
            _ => Err(InvalidCircuit),
        }
    }
}

/// The name of a circuit on a link: virtual path and virtual channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circuit {
    /// Virtual path identifier: 0 to 255 between a user and the network (UNI), up to
    /// 4,095 in a pseudowire.
    pub vpi: u16,
    /// Virtual channel identifier. 0 to 31 are reserved for the layer itself (I.361
    /// §2.2.3, UNI 3.1 §3.2).
    pub vci: u16,
}

impl Circuit {
    /// The circuit of signalling (UNI 3.1 §3.2).
    pub const SIGNALLING: Self = Self { vpi: 0, vci: 5 };

    /// The first VCI available to users.
    pub const FIRST_USER_VCI: u16 = 32;
}

impl fmt::Display for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.vpi, self.vci)
    }
}

/// The payload type of a cell (I.361 §2.2.4), 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PayloadType(u8);

impl PayloadType {
    /// A user cell, not the last of a PDU, without congestion.
    pub const USER: Self = Self(0);
    /// A user cell, the last of an AAL5 PDU.
    pub const USER_LAST: Self = Self(1);
    /// An OAM cell of the segment (F5).
    pub const OAM_SEGMENT: Self = Self(4);
    /// An OAM cell between the ends (F5).
    pub const OAM_END_TO_END: Self = Self(5);

    /// Uses the lowest three bits; higher bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
    }

    /// The three bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True for user cells, false for cells of OAM and resource management.
    #[must_use]
    pub const fn is_user(self) -> bool {
        self.0 & 4 == 0
    }

    /// True for the last cell of an AAL5 PDU (I.363.5 §9.2.1.1).
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.0 & 5 == 1
    }

    /// True if a user cell met congestion (EFCI).
    #[must_use]
    pub const fn is_congested(self) -> bool {
        self.0 & 6 == 2
    }
}

/// Why bytes are not a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// A length other than 53 bytes.
    #[error("a cell has 53 bytes, not {0}")]
    Length(usize),
    /// The header error control does not match.
    #[error("the cell's header is damaged: its HEC is {found:#04x} and not {expected:#04x}")]
    HeaderErrorControl {
        /// The value for this header.
        expected: u8,
        /// The value in the header.
        found: u8,
    },
}

/// The header of a cell between a user and the network (I.361 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHeader {
    /// Generic flow control, 0 to 15; 0 if it is not used.
    gfc: u8,
    circuit: Circuit,
    /// The payload type.
    pub payload_type: PayloadType,
    /// Cell loss priority: true for cells that are dropped first.
    pub low_priority: bool,
}

impl CellHeader {
    /// A header without flow control; `None` if the VPI is over 255.
    #[must_use]
    pub const fn new(circuit: Circuit, payload_type: PayloadType) -> Option<Self> {
        if circuit.vpi > 0xff {
            return None;
        }
        Some(Self {
            gfc: 0,
            circuit,
            payload_type,
            low_priority: false,
        })
    }

    /// The circuit to which the cell belongs.
    #[must_use]
    pub const fn circuit(&self) -> Circuit {
        self.circuit
    }

    /// Generic flow control, 0 to 15.
    #[must_use]
    pub const fn gfc(&self) -> u8 {
        self.gfc
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`CellError::HeaderErrorControl`]; errors are never corrected.
    pub fn parse(bytes: [u8; CELL_HEADER_LEN]) -> Result<Self, CellError> {
        let [a, b, c, d, found] = bytes;
        let expected = header_error_control([a, b, c, d]);
        if found != expected {
            return Err(CellError::HeaderErrorControl { expected, found });
        }
        let word = u32::from_be_bytes([a, b, c, d]);
        Ok(Self {
            gfc: a >> 4,
            circuit: Circuit {
                vpi: (word >> 20 & 0xff) as u16,
                vci: (word >> 4 & 0xffff) as u16,
            },
            payload_type: PayloadType::from_bits((word >> 1) as u8),
            low_priority: word & 1 != 0,
        })
    }

    /// The header's bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; CELL_HEADER_LEN] {
        let word = u32::from(self.gfc) << 28
            | u32::from(self.circuit.vpi) << 20
            | u32::from(self.circuit.vci) << 4
            | u32::from(self.payload_type.bits()) << 1
            | u32::from(self.low_priority);
        let [a, b, c, d] = word.to_be_bytes();
        [a, b, c, d, header_error_control([a, b, c, d])]
    }
}

/// A checked view of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    header: CellHeader,
    payload: &'a [u8; CELL_PAYLOAD_LEN],
}

impl<'a> Cell<'a> {
    /// Checks length and header.
    ///
    /// # Errors
    /// [`CellError`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, CellError> {
        let wrong = CellError::Length(bytes.len());
        let (header, payload) = bytes.split_first_chunk().ok_or(wrong)?;
        let payload = payload.try_into().map_err(|_| wrong)?;
        let header = CellHeader::parse(*header)?;
        Ok(Self { header, payload })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> CellHeader {
        self.header
    }

    /// The payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8; CELL_PAYLOAD_LEN] {
        self.payload
    }
}

/// The header error control of a cell's first four bytes: the remainder by x⁸ + x² + x +
/// 1, plus 0x55 (I.432.1 §4.3.2).
#[must_use]
#[expect(
    clippy::indexing_slicing,
    reason = "a byte indexes 256 entries; the loop ends at the header's length"
)]
pub const fn header_error_control(header: [u8; 4]) -> u8 {
    let mut remainder = 0;
    let mut index = 0;
    while index < header.len() {
        remainder = HEC[(remainder ^ header[index]) as usize];
        index += 1;
    }
    remainder ^ 0x55
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
static HEC: [u8; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let mut remainder = value as u8;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 0x80 != 0;
            remainder <<= 1;
            if carry {
                remainder ^= 0x07;
            }
            bit += 1;
        }
        table[value] = remainder;
        value += 1;
    }
    table
};

/// The first `needed` bytes of a buffer, and the rest.
fn split(buffer: &mut [u8], needed: usize) -> Result<(&mut [u8], &mut [u8]), EmitError> {
    let available = buffer.len();
    buffer
        .split_at_mut_checked(needed)
        .ok_or(EmitError::BufferTooSmall { needed, available })
}

#[cfg(test)]
mod tests;
