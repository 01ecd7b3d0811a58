//! ATMARP and InATMARP (RFC 2225 §8): the ATM address of an IPv4 address.

use core::net::Ipv4Addr;

use super::{NSAP_LEN, Nsap, split};
use crate::EmitError;

/// ATM Forum's hardware type (RFC 2225 §8.1).
const HARDWARE: u16 = 0x0013;
const IPV4: u16 = 0x0800;
const FIXED_LEN: usize = 12;

/// The longest packet: two addresses of 20 bytes with subaddresses.
pub const MAX_LEN: usize = FIXED_LEN + 2 * (2 * NSAP_LEN + 4);

/// The bit of a type and length that means E.164, not NSAP.
const E164: u8 = 0x40;
const E164_MAX: usize = 15;

/// Why bytes are not an ATMARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the packet's lengths require.
    #[error("the packet is shorter than its fields")]
    Truncated,
    /// Hardware other than ATM or a protocol other than IPv4.
    #[error("hardware type {0:#06x} and protocol type {1:#06x}, not ATM and IPv4")]
    Types(u16, u16),
    /// An operation that RFC 2225 does not define.
    #[error("unknown operation {0}")]
    Operation(u16),
    /// An address length that is invalid for its kind.
    #[error("an address of type and length {0:#04x}")]
    AddressLength(u8),
}

/// The request or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Asks which end has the target's IPv4 address.
    Request = 1,
    /// The source has it.
    Reply = 2,
    /// Asks which end is at the other side of this circuit.
    InverseRequest = 8,
    /// The source is at this side.
    InverseReply = 9,
    /// The server does not know the target.
    Unknown = 10,
}

/// An ATM number in one of the three forms of RFC 2225 §8.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Number {
    /// Not stated.
    #[default]
    None,
    /// An NSAP address.
    Nsap(Nsap),
    /// An E.164 number, optionally followed by an NSAP address.
    E164(Digits, Option<Nsap>),
}

/// The digits of an E.164 number: 1 to 15 ASCII characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    bytes: [u8; E164_MAX],
    length: u8,
}

impl Digits {
    /// `None` unless there are 1 to 15 bytes.
    #[must_use]
    pub fn new(digits: &[u8]) -> Option<Self> {
        let mut bytes = [0; E164_MAX];
        bytes.get_mut(..digits.len())?.copy_from_slice(digits);
        let length = u8::try_from(digits.len())
            .ok()
            .filter(|length| *length > 0)?;
        Some(Self { bytes, length })
    }

    /// The digits.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or_default()
    }
}

impl Number {
    /// Type and length of the number and of the subaddress.
    fn lengths(&self) -> [u8; 2] {
        match self {
            Self::None => [0, 0],
            Self::Nsap(_) => [NSAP_LEN as u8, 0],
            Self::E164(digits, sub) => {
                let sub = sub.map_or(0, |_| NSAP_LEN as u8);
                [E164 | digits.length, sub]
            }
        }
    }

    fn take(kind: u8, sub: u8, rest: &mut &[u8]) -> Result<Self, Error> {
        let number = take(rest, (kind & 0x3f).into())?;
        let sub = match sub {
            0 => None,
            20 => Some(nsap(take(rest, NSAP_LEN)?)?),
            other => return Err(Error::AddressLength(other)),
        };
        match (kind, sub) {
            (0, None) => Ok(Self::None),
            (20, None) => Ok(Self::Nsap(nsap(number)?)),
            (kind, sub) if kind & !0x3f == E164 => Digits::new(number)
                .map(|digits| Self::E164(digits, sub))
                .ok_or(Error::AddressLength(kind)),
            _ => Err(Error::AddressLength(kind)),
        }
    }

    fn append(&self, put: &mut impl FnMut(&[u8])) {
        match self {
            Self::None => {}
            Self::Nsap(address) => put(&address.0),
            Self::E164(digits, sub) => {
                put(digits.as_bytes());
                if let Some(address) = sub {
                    put(&address.0);
                }
            }
        }
    }
}

fn nsap(bytes: &[u8]) -> Result<Nsap, Error> {
    bytes.try_into().map(Nsap).map_err(|_| Error::Truncated)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(Error::Truncated)?;
    *rest = behind;
    Ok(taken)
}

/// One end of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// The ATM number.
    pub number: Number,
    /// The IPv4 address; `None` if it is not stated.
    pub address: Option<Ipv4Addr>,
}

impl Party {
    fn take(lengths: [u8; 2], protocol: u8, rest: &mut &[u8]) -> Result<Self, Error> {
        let number = Number::take(lengths[0], lengths[1], rest)?;
        let address = match protocol {
            0 => None,
            4 => {
                let bytes: [u8; 4] = take(rest, 4)?.try_into().map_err(|_| Error::Truncated)?;
                Some(Ipv4Addr::from(bytes)).filter(|address| !address.is_unspecified())
            }
            other => return Err(Error::AddressLength(other)),
        };
        Ok(Self { number, address })
    }
}

/// An ATMARP or InATMARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The operation.
    pub operation: Operation,
    /// The sender.
    pub source: Party,
    /// The party that is asked for, or answered.
    pub target: Party,
}

impl Packet {
    /// Reads a packet; bytes after it are ignored.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (fixed, mut rest) = bytes
            .split_first_chunk::<FIXED_LEN>()
            .ok_or(Error::Truncated)?;
        let [h0, h1, p0, p1, shtl, sstl, o0, o1, spln, thtl, tstl, tpln] = *fixed;
        let types = (u16::from_be_bytes([h0, h1]), u16::from_be_bytes([p0, p1]));
        if types != (HARDWARE, IPV4) {
            return Err(Error::Types(types.0, types.1));
        }
        let operation = match u16::from_be_bytes([o0, o1]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            8 => Operation::InverseRequest,
            9 => Operation::InverseReply,
            10 => Operation::Unknown,
            other => return Err(Error::Operation(other)),
        };
        let source = Party::take([shtl, sstl], spln, &mut rest)?;
        let target = Party::take([thtl, tstl], tpln, &mut rest)?;
        Ok(Self {
            operation,
            source,
            target,
        })
    }

    /// Bytes of the packet, at most [`MAX_LEN`].
    #[must_use]
    pub fn len(&self) -> usize {
        let mut length = FIXED_LEN;
        self.append(&mut |part| length += part.len());
        length
    }

    /// Always false: a packet has bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the packet at the start of `buffer`, and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`].
    #[expect(
        clippy::indexing_slicing,
        reason = "`split` returned `len()` bytes, which is what `append` writes"
    )]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (packet, _) = split(buffer, self.len())?;
        let [shtl, sstl] = self.source.number.lengths();
        let [thtl, tstl] = self.target.number.lengths();
        let [h0, h1] = HARDWARE.to_be_bytes();
        let [p0, p1] = IPV4.to_be_bytes();
        let [o0, o1] = (self.operation as u16).to_be_bytes();
        let fixed = [h0, h1, p0, p1, shtl, sstl, o0, o1, 4, thtl, tstl, 4];
        packet[..FIXED_LEN].copy_from_slice(&fixed);
        let mut at = FIXED_LEN;
        self.append(&mut |part| {
            packet[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        });
        Ok(at)
    }

    fn append(&self, put: &mut impl FnMut(&[u8])) {
        for party in [&self.source, &self.target] {
            party.number.append(put);
            // Zeros mean that the address is not known (RFC 2225 §8.1).
            put(&party.address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        }
    }
}

#[cfg(test)]
mod tests;
