//! SSCOP's PDUs (ITU-T Q.2110 §7.2). Header fields of other protocols are trailer fields
//! here: they are counted from a PDU's end. The length of a PDU is a multiple of four
//! bytes.
//!
//! ```text
//! +------ - - ------+---------+----------+------+--------+---------------+
//! | data, 0 to 4096 | 0 to 3  | 4 or 8   |PL| S |  type  | N(S), N(MR) … |
//! +------ - - ------+---------+----------+------+--------+---------------+
//! ```

use core::fmt;

use super::split;
use crate::EmitError;

/// The largest data of one PDU: the value of k in UNI 3.1 and Q.2130.
pub const DATA_MAX: usize = 4096;

/// The largest number of elements in a list of missing PDUs (Q.2110 §7.7).
pub const LIST_MAX: usize = 67;

/// Bytes of the longest PDU.
pub const PDU_MAX: usize = DATA_MAX + 8;

/// A sequence number of 24 bits; 0 follows the highest (Q.2110 §7.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sequence(u32);

impl Sequence {
    /// Uses the lowest 24 bits.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, 0 to 16,777,215.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The sequence number `count` later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// How far this is ahead of `base`, 0 to 16,777,215; comparisons use this distance.
    #[must_use]
    pub const fn since(self, base: Self) -> u32 {
        self.0.wrapping_sub(base.0) & 0xff_ffff
    }

    const fn parse([_, a, b, c]: [u8; 4]) -> Self {
        Self(u32::from_be_bytes([0, a, b, c]))
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why bytes are not a PDU (Q.2110 calls each "invalid", and its error is U).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a multiple of four bytes, none, or not the length of the type.
    #[error("{0} bytes are not an SSCOP PDU of its type")]
    Length(usize),
    /// An undefined type.
    #[error("unknown type {0}")]
    Type(u8),
    /// More data than [`DATA_MAX`], or more elements than [`LIST_MAX`].
    #[error("{0} bytes of data or list are over the limit")]
    TooLong(usize),
}

/// Missing PDUs in a STAT: the first missing, then the first present after it, and so on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct List<'a>(&'a [[u8; 4]]);

impl<'a> List<'a> {
    /// The elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Sequence> + ExactSizeIterator + 'a {
        self.0.iter().map(|element| Sequence::parse(*element))
    }

    /// A list of elements encoded as in a PDU.
    #[must_use]
    pub const fn new(elements: &'a [[u8; 4]]) -> Self {
        Self(elements)
    }
}

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The content of a PDU. `sequence` is N(SQ), which distinguishes a repeated request from
/// a new one. `credit` is N(MR), the first number that its sender would not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are named as in Q.2110 §7.3")]
pub enum Pdu<'a> {
    /// BGN: begin a connection.
    Begin {
        sequence: u8,
        credit: Sequence,
        data: &'a [u8],
    },
    /// BGAK: the connection has begun.
    BeginAcknowledge { credit: Sequence, data: &'a [u8] },
    /// BGREJ: the connection was rejected.
    BeginReject { data: &'a [u8] },
    /// END: the connection is over. `by_protocol` is set if an error ends it, not the
    /// user.
    End { by_protocol: bool, data: &'a [u8] },
    /// ENDAK: acknowledges END.
    EndAcknowledge,
    /// RS: restart, with nothing in transit.
    Resynchronize {
        sequence: u8,
        credit: Sequence,
        data: &'a [u8],
    },
    /// RSAK: acknowledges RS.
    ResynchronizeAcknowledge { credit: Sequence },
    /// ER: restart after an error.
    Recover { sequence: u8, credit: Sequence },
    /// ERAK: acknowledges ER.
    RecoverAcknowledge { credit: Sequence },
    /// SD: numbered data.
    Data { number: Sequence, data: &'a [u8] },
    /// POLL: asks which numbers below `next` have arrived.
    Poll { poll: Sequence, next: Sequence },
    /// STAT: an answer to a poll. `expected` is N(R): all numbers below it have arrived.
    Status {
        missing: List<'a>,
        poll: Sequence,
        credit: Sequence,
        expected: Sequence,
    },
    /// USTAT: numbers from `first` up to `end`, exclusive, have just been found missing.
    UnsolicitedStatus {
        first: Sequence,
        end: Sequence,
        credit: Sequence,
        expected: Sequence,
    },
    /// UD: unnumbered data.
    UnnumberedData { data: &'a [u8] },
    /// MD: management data.
    ManagementData { data: &'a [u8] },
}

const BGN: u8 = 1;
const BGAK: u8 = 2;
const END: u8 = 3;
const ENDAK: u8 = 4;
const RS: u8 = 5;
const RSAK: u8 = 6;
const BGREJ: u8 = 7;
const SD: u8 = 8;
const ER: u8 = 9;
const POLL: u8 = 10;
const STAT: u8 = 11;
const USTAT: u8 = 12;
const UD: u8 = 13;
const MD: u8 = 14;
const ERAK: u8 = 15;

/// The bit of END that reports what ends it.
const BY_PROTOCOL: u8 = 0x10;

impl<'a> Pdu<'a> {
    /// Reads a PDU, which must fill `bytes`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let wrong = Error::Length(bytes.len());
        let (words, rest) = bytes.as_chunks::<4>();
        let (&last, before) = words.split_last().ok_or(wrong)?;
        if !rest.is_empty() {
            return Err(wrong);
        }
        let kind = last[0] & 0x0f;
        let number = Sequence::parse(last);
        let pad = usize::from(last[0] >> 6);
        let data = |trailer: usize| {
            let length = (bytes.len().checked_sub(trailer + pad)).ok_or(wrong)?;
            if length > DATA_MAX {
                return Err(Error::TooLong(length));
            }
            bytes.get(..length).ok_or(wrong)
        };
        // The four bytes before the last, if there are no others.
        let only = || match *before {
            [word] => Ok(word),
            _ => Err(wrong),
        };
        let sequence = |at: usize| {
            let word = before.len().checked_sub(at).and_then(|at| before.get(at));
            word.copied().ok_or(wrong)
        };
        Ok(match kind {
            BGN => Self::Begin {
                data: data(8)?,
                sequence: sequence(1)?[3],
                credit: number,
            },
            BGAK => Self::BeginAcknowledge {
                data: data(8)?,
                credit: number,
            },
            BGREJ => Self::BeginReject { data: data(8)? },
            END => Self::End {
                by_protocol: last[0] & BY_PROTOCOL != 0,
                data: data(8)?,
            },
            ENDAK => {
                only()?;
                Self::EndAcknowledge
            }
            RS => Self::Resynchronize {
                data: data(8)?,
                sequence: sequence(1)?[3],
                credit: number,
            },
            RSAK => {
                only()?;
                Self::ResynchronizeAcknowledge { credit: number }
            }
            ER => Self::Recover {
                sequence: only()?[3],
                credit: number,
            },
            ERAK => {
                only()?;
                Self::RecoverAcknowledge { credit: number }
            }
            SD => Self::Data {
                number,
                data: data(4)?,
            },
            POLL => Self::Poll {
                poll: Sequence::parse(only()?),
                next: number,
            },
            STAT => {
                let (list, fields) = before.split_last_chunk::<2>().ok_or(wrong)?;
                if list.len() > LIST_MAX {
                    return Err(Error::TooLong(list.len() * 4));
                }
                Self::Status {
                    missing: List(list),
                    poll: Sequence::parse(fields[0]),
                    credit: Sequence::parse(fields[1]),
                    expected: number,
                }
            }
            USTAT => {
                let [first, end, credit] = *before else {
                    return Err(wrong);
                };
                Self::UnsolicitedStatus {
                    first: Sequence::parse(first),
                    end: Sequence::parse(end),
                    credit: Sequence::parse(credit),
                    expected: number,
                }
            }
            UD => Self::UnnumberedData { data: data(4)? },
            MD => Self::ManagementData { data: data(4)? },
            other => return Err(Error::Type(other)),
        })
    }

    /// The data, and the contents of the last eight bytes: type, the number beside it,
    /// and the four bytes before, if present.
    fn parts(&self) -> (&'a [u8], u8, Sequence, Option<u32>) {
        let none = Sequence::default();
        match *self {
            Self::Begin {
                sequence,
                credit,
                data,
            } => (data, BGN, credit, Some(sequence.into())),
            Self::BeginAcknowledge { credit, data } => (data, BGAK, credit, Some(0)),
            Self::BeginReject { data } => (data, BGREJ, none, Some(0)),
            Self::End { by_protocol, data } => {
                let flag = if by_protocol { BY_PROTOCOL } else { 0 };
                (data, END | flag, none, Some(0))
            }
            Self::EndAcknowledge => (&[], ENDAK, none, Some(0)),
            Self::Resynchronize {
                sequence,
                credit,
                data,
            } => (data, RS, credit, Some(sequence.into())),
            Self::ResynchronizeAcknowledge { credit } => (&[], RSAK, credit, Some(0)),
            Self::Recover { sequence, credit } => (&[], ER, credit, Some(sequence.into())),
            Self::RecoverAcknowledge { credit } => (&[], ERAK, credit, Some(0)),
            Self::Data { number, data } => (data, SD, number, None),
            Self::Poll { poll, next } => (&[], POLL, next, Some(poll.value())),
            Self::Status {
                missing,
                credit,
                expected,
                ..
            } => (
                missing.0.as_flattened(),
                STAT,
                expected,
                Some(credit.value()),
            ),
            Self::UnsolicitedStatus {
                credit, expected, ..
            } => (&[], USTAT, expected, Some(credit.value())),
            Self::UnnumberedData { data } => (data, UD, none, None),
            Self::ManagementData { data } => (data, MD, none, None),
        }
    }

    /// Writes the PDU at the start of `buffer`, and returns its length.
    ///
    /// # Errors
    /// [`EmitError`]; [`EmitError::PayloadTooLong`] also for a list over [`LIST_MAX`].
    #[expect(
        clippy::indexing_slicing,
        reason = "four fields at most are added, and `split` returned `length` bytes"
    )]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (data, kind, number, second) = self.parts();
        let limit = match self {
            Self::Status { .. } => LIST_MAX * 4,
            _ => DATA_MAX,
        };
        if data.len() > limit {
            let length = data.len();
            return Err(EmitError::PayloadTooLong { limit, length });
        }
        let mut fields = [[0; 4]; 4];
        let mut count = 0;
        let mut add = |value: u32| {
            fields[count] = value.to_be_bytes();
            count += 1;
        };
        match *self {
            Self::Status { poll, .. } => add(poll.value()),
            Self::UnsolicitedStatus { first, end, .. } => {
                add(first.value());
                add(end.value());
            }
            _ => {}
        }
        if let Some(value) = second {
            add(value);
        }
        let padded = data.len().next_multiple_of(4);
        let pad = (padded - data.len()) as u8;
        add(u32::from(kind | pad << 6) << 24 | number.value());
        let length = padded + 4 * count;
        let (pdu, _) = split(buffer, length)?;
        pdu[..data.len()].copy_from_slice(data);
        pdu[data.len()..padded].fill(0);
        pdu[padded..].copy_from_slice(fields[..count].as_flattened());
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
