//! AAL5's common part (ITU-T I.363.5 §9.2): a payload of 1 to 65,535 bytes, zeros, and a
//! trailer. Together they fill whole cells.
//!
//! ```text
//! +--------- - - ---------+-------------+--------+-----+--------+--------+
//! | payload, 1 to 65,535  | pad, 0 to 47| UU (1) | CPI | length | CRC-32 |
//! +--------- - - ---------+-------------+--------+-----+--------+--------+
//! ```

#[allow(unsafe_code)]
mod raw_fold;

use super::CELL_PAYLOAD_LEN;
use crate::EmitError;

/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 8;

/// The largest payload that the length field can express.
pub const PAYLOAD_MAX: usize = u16::MAX as usize;

/// The longest PDU, 1,366 cells.
pub const PDU_MAX: usize = pdu_len(PAYLOAD_MAX);

/// Bytes of the PDU of a payload, in whole cells.
#[must_use]
pub const fn pdu_len(payload: usize) -> usize {
    (payload + TRAILER_LEN).div_ceil(CELL_PAYLOAD_LEN) * CELL_PAYLOAD_LEN
}

/// Why bytes are not a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a number of whole cells, none, or more than those of the longest PDU.
    #[error("{0} bytes are not an AAL5 PDU, which is 1 to 1,366 times 48")]
    Size(usize),
    /// The CRC-32 does not match: cells were lost, damaged or belong to another PDU.
    #[error("the PDU's CRC-32 is {found:#010x} and not {expected:#010x}")]
    Crc {
        /// The CRC-32 of the bytes.
        expected: u32,
        /// The CRC-32 in the trailer.
        found: u32,
    },
    /// The common part indicator is not 0, the only defined value.
    #[error("the PDU's common part indicator is {0} and not 0")]
    CommonPart(u8),
    /// The length requires another number of cells.
    #[error("the PDU's trailer says {length} bytes, and it has {pdu}")]
    Length {
        /// The length in the trailer.
        length: u16,
        /// Bytes of the PDU.
        pdu: usize,
    },
    /// Length 0: the sender has aborted the PDU (I.363.5 §9.2.1.2).
    #[error("the sender has given the PDU up")]
    Aborted,
}

/// A checked view of a PDU.
#[derive(Clone, Copy, Debug)]
pub struct Pdu<'a> {
    payload: &'a [u8],
    user_to_user: u8,
}

impl<'a> Pdu<'a> {
    /// Checks size, CRC-32, common part indicator and length, in this order.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        Self::with_crc(bytes, |covered| Crc32::new().update(covered))
    }

    /// As [`Pdu::new`], if the CRC-32 of all but the last cell is known.
    ///
    /// # Errors
    /// [`Error`].
    pub fn continued(bytes: &'a [u8], of_earlier_cells: Crc32) -> Result<Self, Error> {
        Self::with_crc(bytes, |covered| {
            let earlier = bytes.len() - CELL_PAYLOAD_LEN;
            of_earlier_cells.update(covered.get(earlier..).unwrap_or_default())
        })
    }

    fn with_crc(bytes: &'a [u8], crc: impl Fn(&[u8]) -> Crc32) -> Result<Self, Error> {
        let pdu = bytes.len();
        if !pdu.is_multiple_of(CELL_PAYLOAD_LEN) || pdu > PDU_MAX {
            return Err(Error::Size(pdu));
        }
        let (covered, trailer) = bytes.split_last_chunk::<4>().ok_or(Error::Size(pdu))?;
        let expected = crc(covered).value();
        let found = u32::from_be_bytes(*trailer);
        if found != expected {
            return Err(Error::Crc { expected, found });
        }
        let (rest, &[user_to_user, common_part, high, low]) =
            covered.split_last_chunk::<4>().ok_or(Error::Size(pdu))?;
        if common_part != 0 {
            return Err(Error::CommonPart(common_part));
        }
        let length = u16::from_be_bytes([high, low]);
        if length == 0 {
            return Err(Error::Aborted);
        }
        match rest.get(..length.into()) {
            Some(payload) if pdu_len(length.into()) == pdu => Ok(Self {
                payload,
                user_to_user,
            }),
            _ => Err(Error::Length { length, pdu }),
        }
    }

    /// The payload, 1 to 65,535 bytes.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The user-to-user byte that the other end put into the trailer.
    #[must_use]
    pub const fn user_to_user(&self) -> u8 {
        self.user_to_user
    }
}

/// Writes the PDU of a payload at the start of `buffer`, and returns its bytes.
///
/// # Errors
/// [`EmitError`]. [`EmitError::PayloadTooLong`] also for an empty payload: a length of 0
/// would mark the PDU as aborted.
#[expect(
    clippy::indexing_slicing,
    reason = "`pdu` is at most the buffer's length"
)]
pub fn emit(payload: &[u8], user_to_user: u8, buffer: &mut [u8]) -> Result<usize, EmitError> {
    let length = pdu_len(payload.len());
    let pdu = buffer.len().min(length);
    let begin = PartialPdu::default();
    let written = emit_part(payload, user_to_user, begin, &mut buffer[..pdu])?.written;
    if written < length {
        return Err(EmitError::BufferTooSmall {
            needed: length,
            available: pdu,
        });
    }
    Ok(length)
}

/// Writes the next cells of a payload's PDU: as many as fit into `part` and remain of the
/// PDU. For a PDU that is sent in several frames.
///
/// # Errors
/// [`EmitError::PayloadTooLong`] as in [`emit`].
#[expect(
    clippy::indexing_slicing,
    reason = "`length` is at most the part's length, and a part with a trailer has 48 bytes"
)]
pub fn emit_part(
    payload: &[u8],
    user_to_user: u8,
    before: PartialPdu,
    part: &mut [u8],
) -> Result<PartialPdu, EmitError> {
    if payload.is_empty() || payload.len() > PAYLOAD_MAX {
        return Err(EmitError::PayloadTooLong {
            limit: PAYLOAD_MAX,
            length: payload.len(),
        });
    }
    let PartialPdu { crc, written } = before;
    let left = pdu_len(payload.len()).saturating_sub(written);
    let length = left.min(part.len() / CELL_PAYLOAD_LEN * CELL_PAYLOAD_LEN);
    let part = &mut part[..length];
    let rest = payload.get(written..).unwrap_or_default();
    let (data, pad) = part.split_at_mut(rest.len().min(length));
    data.copy_from_slice(&rest[..data.len()]);
    pad.fill(0);
    let written = written + length;
    match part.last_chunk_mut::<TRAILER_LEN>() {
        Some(trailer) if length == left => {
            trailer[0] = user_to_user;
            trailer[2..4].copy_from_slice(&(payload.len() as u16).to_be_bytes());
            let covered = length - 4;
            let crc = crc.update(&part[..covered]);
            part[covered..].copy_from_slice(&crc.value().to_be_bytes());
            Ok(PartialPdu { crc, written })
        }
        _ => Ok(PartialPdu {
            crc: crc.update(part),
            written,
        }),
    }
}

/// Progress of [`emit_part`]; by default nothing is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialPdu {
    crc: Crc32,
    written: usize,
}

impl PartialPdu {
    /// Bytes written, in whole cells.
    #[must_use]
    pub const fn written(&self) -> usize {
        self.written
    }
}

/// The CRC-32 of the bytes so far (I.363.5 §9.2.1.2: highest bit first, starting from
/// ones, complemented).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32(u32);

impl Default for Crc32 {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32 {
    /// The CRC-32 of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self(u32::MAX)
    }

    /// Appends more bytes.
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        match raw_fold::fold(self.0, bytes) {
            Some((folded, rest)) => Self(0).by_tables(&folded).by_tables(rest),
            None => self.by_tables(bytes),
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a byte indexes 256 entries")]
    fn by_tables(self, bytes: &[u8]) -> Self {
        let mut crc = self.0;
        let (eights, rest) = bytes.as_chunks::<8>();
        for &[a, b, c, d, e, f, g, h] in eights {
            // Eight bytes at a time: each uses the table of its distance to the end.
            let [a, b, c, d] = (crc ^ u32::from_be_bytes([a, b, c, d])).to_be_bytes();
            crc = 0;
            for (table, byte) in TABLES.iter().zip([h, g, f, e, d, c, b, a]) {
                crc ^= table[usize::from(byte)];
            }
        }
        for byte in rest {
            crc = crc << 8 ^ TABLES[0][usize::from((crc >> 24) as u8 ^ byte)];
        }
        Self(crc)
    }

    /// The value that goes into a trailer.
    #[must_use]
    pub const fn value(self) -> u32 {
        !self.0
    }
}

/// The polynomial of IEEE 802.3.
const POLYNOMIAL: u32 = 0x04c1_1db7;

/// Remainders by the polynomial: for a byte followed by `index` zero bytes.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
static TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = crc << 1 ^ if crc >> 31 != 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut index = 1;
    while index < 8 {
        let mut byte = 0;
        while byte < 256 {
            let shorter = tables[index - 1][byte];
            tables[index][byte] = shorter << 8 ^ tables[0][(shorter >> 24) as usize];
            byte += 1;
        }
        index += 1;
    }
    tables
};

#[cfg(test)]
mod tests;
