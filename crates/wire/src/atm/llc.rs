//! The payload of a PDU when one circuit carries several protocols: RFC 2684's LLC
//! encapsulation (§5).

use super::split;
use crate::EmitError;
use crate::ethernet::EtherType;

/// Bytes of an LLC and SNAP header.
pub const HEADER_LEN: usize = 8;

const SNAP: [u8; 3] = [0xaa, 0xaa, 0x03];
const ISO: [u8; 3] = [0xfe, 0xfe, 0x03];
const ETHERTYPE: [u8; 3] = [0, 0, 0];
const BRIDGED: [u8; 3] = [0x00, 0x80, 0xc2];

/// Why bytes are not an encapsulated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header.
    #[error("the PDU ends within its LLC header")]
    Truncated,
    /// An LLC header that is neither SNAP's nor ISO's.
    #[error("the LLC header is {:02x}-{:02x}-{:02x}", .0[0], .0[1], .0[2])]
    Llc([u8; 3]),
    /// A SNAP header of an unknown organisation.
    #[error("the SNAP header is of organisation {:02x}-{:02x}-{:02x}", .0[0], .0[1], .0[2])]
    Organisation([u8; 3]),
}

/// The payload of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// A routed protocol (§5.1): IPv4, ATMARP, IPv6.
    Routed(EtherType, &'a [u8]),
    /// A routed ISO protocol: the payload begins with its NLPID (§5.1).
    Iso(&'a [u8]),
    /// A bridged frame (§5.2), with its PID.
    Bridged(u16, &'a [u8]),
}

impl<'a> Payload<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (llc, rest) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
        match *llc {
            SNAP => {}
            ISO => return Ok(Self::Iso(rest)),
            other => return Err(Error::Llc(other)),
        }
        let (organisation, rest) = rest.split_first_chunk().ok_or(Error::Truncated)?;
        let (protocol, rest) = rest.split_first_chunk().ok_or(Error::Truncated)?;
        let protocol = u16::from_be_bytes(*protocol);
        match *organisation {
            ETHERTYPE => Ok(Self::Routed(EtherType(protocol), rest)),
            BRIDGED => Ok(Self::Bridged(protocol, rest)),
            other => Err(Error::Organisation(other)),
        }
    }
}

/// Writes the header of a routed protocol at the start of `buffer`, and returns the rest.
///
/// # Errors
/// [`EmitError::BufferTooSmall`].
#[expect(
    clippy::indexing_slicing,
    reason = "`split` returned exactly the bytes that are written"
)]
pub fn emit_routed(protocol: EtherType, buffer: &mut [u8]) -> Result<&mut [u8], EmitError> {
    let (header, rest) = split(buffer, HEADER_LEN)?;
    header[..3].copy_from_slice(&SNAP);
    header[3..6].copy_from_slice(&ETHERTYPE);
    header[6..].copy_from_slice(&protocol.0.to_be_bytes());
    Ok(rest)
}
