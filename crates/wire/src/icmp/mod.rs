//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): the errors that quote a
//! datagram, and echo.

pub mod v4;
pub mod v6;

use core::fmt;

/// Bytes before an error's quoted datagram or an echo's data.
pub const HEADER_LEN: usize = 8;

/// Why bytes are not an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Fewer than eight bytes.
    Truncated,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message is shorter than an ICMP header"),
        }
    }
}

impl std::error::Error for Error {}

/// The fields that every message has, cut out of its bytes.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    bytes: &'a [u8],
    kind: u8,
    code: u8,
    rest: [u8; 4],
    body: &'a [u8],
}

impl<'a> Parts<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, body) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let [kind, code, _, _, a, b, c, d] = *header;
        Ok(Self {
            bytes,
            kind,
            code,
            rest: [a, b, c, d],
            body,
        })
    }
}

/// Writes a message with a zero checksum and returns its bytes.
fn emit_parts<'b>(
    kind: u8,
    code: u8,
    rest: [u8; 4],
    body: &[u8],
    buffer: &'b mut [u8],
) -> Result<&'b mut [u8], crate::EmitError> {
    let needed = HEADER_LEN + body.len();
    let available = buffer.len();
    let too_small = crate::EmitError::BufferTooSmall { needed, available };
    let message = buffer.get_mut(..needed).ok_or(too_small)?;
    let (header, to) = message
        .split_first_chunk_mut::<HEADER_LEN>()
        .ok_or(too_small)?;
    let [a, b, c, d] = rest;
    *header = [kind, code, 0, 0, a, b, c, d];
    to.copy_from_slice(body);
    Ok(message)
}

/// Puts the checksum into a message that [`emit_parts`] wrote.
fn put_checksum(message: &mut [u8], checksum: u16) {
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}
