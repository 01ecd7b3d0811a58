//! Loopback cells of OAM (ITU-T I.610 §10.2.3), which the other end of a circuit returns.
//!
//! ```text
//! | 1 | 8 | indication | correlation tag (4) | location (16) | source (16) | 0x6a × 8 | CRC-10 |
//! ```

use super::CELL_PAYLOAD_LEN;

/// Type and function: fault management, loopback.
const LOOPBACK: u8 = 0x18;

/// Value of unused bytes (I.610 §10.1).
const UNUSED: u8 = 0x6a;

/// Why a payload is not that of a loopback cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The CRC-10 does not match.
    #[error("the OAM cell is damaged: its CRC-10 is {found:#05x} and not {expected:#05x}")]
    Crc {
        /// The CRC-10 of the payload.
        expected: u16,
        /// The CRC-10 in the payload.
        found: u16,
    },
    /// Another type or function.
    #[error("an OAM cell of type and function {0:#04x}")]
    Function(u8),
}

/// The fields of a loopback cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loopback {
    /// True in a request; the point that returns the cell sets it to false.
    pub to_be_returned: bool,
    /// Identifies the cell to its sender.
    pub tag: u32,
    /// The point that returns it: ones for the end of the circuit, zeros for every point.
    pub location: [u8; 16],
    /// The point that sent it; ones if unspecified.
    pub source: [u8; 16],
}

impl Loopback {
    /// A cell that the other end of the circuit returns.
    #[must_use]
    pub const fn request(tag: u32) -> Self {
        Self {
            to_be_returned: true,
            tag,
            location: [0xff; 16],
            source: [0xff; 16],
        }
    }

    /// An end's answer; `None` for an answer and for a cell addressed to another point.
    #[must_use]
    pub fn reply(&self) -> Option<Self> {
        let ours = self.location == [0xff; 16] || self.location == [0; 16];
        (self.to_be_returned && ours).then_some(Self {
            to_be_returned: false,
            ..*self
        })
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parse(payload: &[u8; CELL_PAYLOAD_LEN]) -> Result<Self, Error> {
        let found = u16::from_be_bytes([payload[46], payload[47]]) & 0x3ff;
        let expected = crc10(&payload[..46], payload[46] >> 2);
        if found != expected {
            return Err(Error::Crc { expected, found });
        }
        if payload[0] != LOOPBACK {
            return Err(Error::Function(payload[0]));
        }
        let mut location = [0; 16];
        let mut source = [0; 16];
        location.copy_from_slice(&payload[6..22]);
        source.copy_from_slice(&payload[22..38]);
        Ok(Self {
            to_be_returned: payload[1] & 1 != 0,
            tag: u32::from_be_bytes([payload[2], payload[3], payload[4], payload[5]]),
            location,
            source,
        })
    }

    /// The payload.
    #[must_use]
    pub fn bytes(&self) -> [u8; CELL_PAYLOAD_LEN] {
        let mut payload = [UNUSED; CELL_PAYLOAD_LEN];
        payload[0] = LOOPBACK;
        payload[1] = u8::from(self.to_be_returned);
        payload[2..6].copy_from_slice(&self.tag.to_be_bytes());
        payload[6..22].copy_from_slice(&self.location);
        payload[22..38].copy_from_slice(&self.source);
        let crc = crc10(&payload[..46], 0);
        payload[46..].copy_from_slice(&crc.to_be_bytes());
        payload
    }
}

/// The remainder by x¹⁰ + x⁹ + x⁵ + x⁴ + x + 1 of bytes followed by six bits (I.610
/// §10.1).
fn crc10(bytes: &[u8], six: u8) -> u16 {
    let whole = bytes.iter().fold(0, |crc, byte| shifted(crc, *byte, 8));
    shifted(whole, six, 6)
}

fn shifted(mut crc: u16, value: u8, bits: u32) -> u16 {
    crc ^= u16::from(value) << (10 - bits);
    for _ in 0..bits {
        crc = crc << 1 ^ if crc & 0x200 != 0 { 0x233 } else { 0 };
    }
    crc & 0x3ff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catalogues of CRCs use "123456789" as the check value (CRC-10/ATM: 0x199).
    #[test]
    fn the_published_value() {
        let crc = b"123456789"
            .iter()
            .fold(0, |crc, byte| shifted(crc, *byte, 8));
        assert_eq!(crc, 0x199);
    }

    #[test]
    fn a_loopback_comes_back_once() {
        let request = Loopback::request(0x0102_0304);
        let read = Loopback::parse(&request.bytes()).unwrap();
        assert_eq!(read, request);
        let reply = read.reply().unwrap();
        assert_eq!(Loopback::parse(&reply.bytes()).unwrap(), reply);
        assert_eq!(reply.reply(), None);
        let elsewhere = Loopback {
            location: [1; 16],
            ..request
        };
        assert_eq!(elsewhere.reply(), None);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = Loopback::request(7).bytes();
        for bit in 0..CELL_PAYLOAD_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            let result = Loopback::parse(&damaged);
            assert!(matches!(result, Err(Error::Crc { .. })), "{bit} {result:?}");
        }
    }
}
