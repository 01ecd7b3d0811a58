//! Queued bytes, and the frames that a bridge makes of them.

use tidewall_wire::acp;

/// Waiting bytes beyond which nothing more is read for a queue.
pub const QUEUE_MAX: usize = 256 << 10;

/// Bytes in order, first in, first out.
#[derive(Debug, Default)]
pub struct Queue {
    bytes: Vec<u8>,
    start: usize,
}

impl Queue {
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops the first bytes.
    pub fn consume(&mut self, length: usize) {
        self.start = self.bytes.len().min(self.start + length);
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
            self.bytes.shrink_to(QUEUE_MAX);
        } else if self.start >= self.bytes.len() / 2 {
            // Each byte is moved at most once for each byte sent.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// The header before the bytes of each frame between two bridges: 8 bytes, and 4 more
/// behind the route if the frame continues a message.
///
/// ```text
/// | id, 4 bytes, big endian | version 2 | flags | route, 2 bytes, big endian |
/// | route | offset | bytes |
/// ```
///
/// The switch sees frames of many requests and keeps no order between members, so each
/// reply carries the id of its request. Only the switch's module reads the `route` bytes
/// behind the header. They are a command that names the key, and precede each part of a
/// command too long for one frame.
///
/// The switch steers each frame by itself. If members come or go between two frames of a
/// command, the later frame may reach another member than the first. The offset shows
/// each member whether a frame follows its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: u32,
    /// The request or reply ends with this frame.
    pub last: bool,
    pub route: u16,
    /// Bytes of the request or reply that precede this frame, modulo 2^32; `None`: it
    /// begins here.
    pub offset: Option<u32>,
}

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = 8;
const VERSION: u8 = 2;
const LAST: u8 = 1;
const GOES_ON: u8 = 2;
/// Bytes of an offset.
pub const OFFSET_LEN: usize = 4;

impl Header {
    /// Returns the bytes before the route.
    fn bytes(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = self.id.to_be_bytes();
        let [high, low] = self.route.to_be_bytes();
        let last = if self.last { LAST } else { 0 };
        let flags = last | if self.offset.is_some() { GOES_ON } else { 0 };
        [a, b, c, d, VERSION, flags, high, low]
    }

    /// Appends header, route and bytes to the queue.
    pub fn push(self, route: &[u8], bytes: &[u8], to: &mut Queue) {
        to.push(&self.bytes());
        to.push(route);
        if let Some(offset) = self.offset {
            to.push(&offset.to_be_bytes());
        }
        to.push(bytes);
    }

    /// Returns the offset at which the next frame of the message continues; `None` after
    /// its last.
    pub fn next_offset(self, bytes: usize) -> Option<u32> {
        let next = self.offset.unwrap_or(0).wrapping_add(bytes as u32);
        (!self.last).then_some(next)
    }

    /// Parses the header of a frame; returns it and the message's bytes.
    pub fn parse(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = payload.split_first_chunk::<HEADER_LEN>()?;
        let [a, b, c, d, version, flags, high, low] = *header;
        let route = u16::from_be_bytes([high, low]);
        let mut bytes = rest.get(usize::from(route)..)?;
        let mut offset = None;
        if flags & GOES_ON != 0 {
            let (at, rest) = bytes.split_first_chunk::<OFFSET_LEN>()?;
            (offset, bytes) = (Some(u32::from_be_bytes(*at)), rest);
        }
        let header = Self {
            id: u32::from_be_bytes([a, b, c, d]),
            last: flags & LAST != 0,
            route,
            offset,
        };
        (version == VERSION && flags & !(LAST | GOES_ON) == 0).then_some((header, bytes))
    }
}

/// Appends bytes of one request or reply to the queue, in as many frames as they need,
/// each with the route. `offset` is their position in the message, `None` at its
/// beginning, and is advanced to the next bytes. Returns false, and does nothing, if a
/// frame has no room beside the route.
pub fn push_frames(
    frames: &mut Queue,
    frame_max: usize,
    id: u32,
    offset: &mut Option<u32>,
    ends: bool,
    route: &[u8],
    bytes: &[u8],
) -> bool {
    let before = |goes_on: bool| HEADER_LEN + route.len() + usize::from(goes_on) * OFFSET_LEN;
    let room = |goes_on| {
        frame_max
            .min(acp::PAYLOAD_MAX)
            .saturating_sub(before(goes_on))
    };
    let first = room(offset.is_some());
    let fits = first > 0 && (bytes.len() <= first || room(true) > 0);
    let (Ok(route_len), true) = (u16::try_from(route.len()), fits) else {
        return false;
    };
    let mut rest = bytes;
    loop {
        let goes_on = offset.is_some();
        let (now, later) = rest.split_at(room(goes_on).min(rest.len()));
        rest = later;
        // `before + now` is at most PAYLOAD_MAX.
        if let Some(frame) = acp::Header::data(before(goes_on) + now.len()) {
            frames.push(&frame.bytes());
        }
        let header = Header {
            id,
            last: ends && rest.is_empty(),
            route: route_len,
            offset: *offset,
        };
        header.push(route, now, frames);
        *offset = header.next_offset(now.len());
        if rest.is_empty() {
            return true;
        }
    }
}

/// How a byte stream is divided into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Messages {
    /// Values of RESP (Redis)
    Resp,
    /// Bytes behind their length, 4 bytes, big endian
    Length,
}

/// Most bytes of a message behind its length.
const LENGTH_MAX: u64 = tidewall_wire::resp::BULK_MAX;

/// Finds the end of each message, however the bytes are divided.
#[derive(Debug)]
pub enum Scanner {
    Resp(tidewall_wire::resp::Scanner),
    /// The number of length bytes received, and their value.
    Length(u8, u64),
    /// Bytes of the message still missing.
    Body(u64),
}

impl Scanner {
    pub const fn new(messages: Messages) -> Self {
        match messages {
            Messages::Resp => Self::Resp(tidewall_wire::resp::Scanner::new()),
            Messages::Length => Self::Length(0, 0),
        }
    }

    /// Scans as [`tidewall_wire::resp::Scanner::scan`] does.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, bool), String> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let ended = match self {
                Self::Resp(scanner) => {
                    return scanner.scan(bytes).map_err(|error| error.to_string());
                }
                Self::Length(came, length) => {
                    *length = *length << 8 | u64::from(rest.first().copied().unwrap_or_default());
                    *came += 1;
                    at += 1;
                    if *came < 4 {
                        continue;
                    }
                    if *length > LENGTH_MAX {
                        return Err(format!("a message of {length} bytes"));
                    }
                    let ended = *length == 0;
                    *self = Self::Body(*length);
                    ended
                }
                Self::Body(missing) => {
                    let taken = usize::try_from(*missing).map_or(rest.len(), |n| n.min(rest.len()));
                    *missing -= taken as u64;
                    at += taken;
                    *missing == 0
                }
            };
            if ended {
                *self = Self::Length(0, 0);
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }
}
