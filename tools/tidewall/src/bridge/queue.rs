//! Bytes on their way, and the frames that a bridge makes of them.

use tidewall_wire::acp;

/// Beyond so many bytes that wait to be sent nothing more is read for them.
pub const QUEUE_MAX: usize = 256 << 10;

/// Bytes in order; the first ones go first.
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
            // No byte is moved more often than once for each that went.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// What stands before the bytes in each frame between two bridges; 8 bytes:
///
/// ```text
/// | id, 4 bytes, big endian | version 1 | flags | route, 2 bytes, big endian | route | bytes |
/// ```
///
/// The switch sees frames of many requests and keeps no order between members, so each
/// reply has the id of its request. `route` bytes behind the header are read by the
/// switch's module alone: a command that gives the key, before a part of one that is
/// too long for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: u32,
    /// Nothing follows of this request or reply.
    pub last: bool,
    pub route: u16,
}

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = 8;
const VERSION: u8 = 1;
const LAST: u8 = 1;

impl Header {
    pub fn bytes(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = self.id.to_be_bytes();
        let [high, low] = self.route.to_be_bytes();
        [a, b, c, d, VERSION, u8::from(self.last) * LAST, high, low]
    }

    /// The header of a frame, and the bytes behind header and route.
    pub fn parse(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = payload.split_first_chunk::<HEADER_LEN>()?;
        let [a, b, c, d, version, flags, high, low] = *header;
        let route = u16::from_be_bytes([high, low]);
        let bytes = rest.get(usize::from(route)..)?;
        let header = Self {
            id: u32::from_be_bytes([a, b, c, d]),
            last: flags & LAST != 0,
            route,
        };
        (version == VERSION && flags & !LAST == 0).then_some((header, bytes))
    }
}

/// Puts bytes of one request or reply behind the frames in the queue: in as many
/// frames as they take, each with the route. False, with nothing done, if a frame has
/// no room beside the route.
pub fn push_frames(
    frames: &mut Queue,
    frame_max: usize,
    id: u32,
    ends: bool,
    route: &[u8],
    bytes: &[u8],
) -> bool {
    let before = HEADER_LEN + route.len();
    let room = frame_max.min(acp::PAYLOAD_MAX).saturating_sub(before);
    let (Ok(route_len), 1..) = (u16::try_from(route.len()), room) else {
        return false;
    };
    let mut rest = bytes;
    loop {
        let (now, later) = rest.split_at(room.min(rest.len()));
        rest = later;
        // `before + now` is at most PAYLOAD_MAX.
        if let Some(frame) = acp::Header::data(before + now.len()) {
            frames.push(&frame.bytes());
        }
        let header = Header {
            id,
            last: ends && rest.is_empty(),
            route: route_len,
        };
        frames.push(&header.bytes());
        frames.push(route);
        frames.push(now);
        if rest.is_empty() {
            return true;
        }
    }
}

/// How a stream of bytes is made of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Messages {
    /// Values of RESP (Redis)
    Resp,
    /// Each behind its length, 4 bytes, big endian
    Length,
}

/// The most bytes of a message behind its length.
const LENGTH_MAX: u64 = tidewall_wire::resp::BULK_MAX;

/// Finds the end of each message, wherever the bytes are cut.
#[derive(Debug)]
pub enum Scanner {
    Resp(tidewall_wire::resp::Scanner),
    /// Of the message's length so many bytes have come, with this value.
    Length(u8, u64),
    /// So many bytes of the message are missing.
    Body(u64),
}

impl Scanner {
    pub const fn new(messages: Messages) -> Self {
        match messages {
            Messages::Resp => Self::Resp(tidewall_wire::resp::Scanner::new()),
            Messages::Length => Self::Length(0, 0),
        }
    }

    /// As [`tidewall_wire::resp::Scanner::scan`].
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
