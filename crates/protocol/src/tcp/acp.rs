//! ACP: a connection that carries frames, in segments that hold only whole frames
//! (`tidewall_wire::acp` has their format).
//!
//! When sending, a frame is a record of [`push_marks`](super::push_marks): a segment
//! begins and ends at record boundaries, new or retransmitted. When receiving, frames are
//! found as bytes arrive in order, wherever segments began. A frame is no longer than a
//! segment, so neither end ever holds part of a frame that cannot be completed.
//!
//! Timestamps and Fast Open are not used: a middlebox may make one connection of several,
//! and their clocks mean nothing to each other. SACK blocks leave only in segments
//! without payload, since a frame may fill the others. The path's MTU is not probed,
//! since a frame cannot be cut for that.

use core::ops::Deref;

use tidewall_wire::acp::{HEADER_LEN, Header, Kind, VERSION};
use tidewall_wire::tcp::{self, Options};

use super::connection::{Connection, Pending, count};
use super::plan::Plan;
use super::push_marks::RECORD_SPACE;
use super::{Config, Errno, MtuProbing};

/// Bytes of a frame's header, as a length in sequence numbers.
const HEADER: u32 = HEADER_LEN as u32;

/// The kind of data that a connection carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Framing {
    /// A stream of bytes: TCP.
    #[default]
    Stream = 0,
    /// Frames; the peer must agree to it in the handshake. A peer that does not is
    /// refused with an RST; connecting fails with EPROTONOSUPPORT.
    Acp = 1,
    /// Frames, and the peer need not confirm it: an end over a kernel TCP socket cannot
    /// send the option. A peer that does not speak ACP fails by its first bytes.
    AcpUnconfirmed = 2,
}

impl Framing {
    /// True if frames are carried.
    pub const fn is_acp(self) -> bool {
        !matches!(self, Self::Stream)
    }

    /// Replaces a stream with frames; leaves other values unchanged.
    #[must_use]
    pub const fn or_acp(self) -> Self {
        match self {
            Self::Stream => Self::Acp,
            framing => framing,
        }
    }

    /// Whether a SYN or SYN-ACK with these options comes from an acceptable peer.
    pub(super) fn takes(self, options: &Options) -> bool {
        self != Self::Acp || is_offered(options)
    }
}

/// Whether we confirm the option in the answer to a SYN with these options.
pub(super) fn answers(config: &Config, options: &Options) -> bool {
    config.framing.is_acp() && is_offered(options)
}

/// Whether the sender of these options speaks our version of ACP.
fn is_offered(options: &Options) -> bool {
    options.acp() == Some(VERSION)
}

impl Config {
    /// Removes the options that a connection of frames does not use.
    pub(super) fn framed(self) -> Self {
        if !self.framing.is_acp() {
            return self;
        }
        let least = buffer_min(self.mss);
        Self {
            timestamps: false,
            nodelay: true,
            mtu_probing: MtuProbing::Off,
            receive_buffer: self.receive_buffer.max(least),
            receive_buffer_max: self.receive_buffer_max.max(least),
            send_buffer: self.send_buffer.max(least),
            send_buffer_max: self.send_buffer_max.max(least),
            ..self
        }
    }
}

/// The smallest receive buffer of a connection of frames: two frames of the longest kind.
/// Windows are offered in steps of a segment, so one frame must remain, and the peer does
/// not send frames in part. The send buffer holds one frame and its bookkeeping.
pub(super) const fn buffer_min(mss: u16) -> u32 {
    2 * mss as u32
}

/// Bytes of the send buffer that a frame of `size` bytes, header included, takes until it
/// is acknowledged.
const fn frame_space(size: usize) -> u32 {
    size as u32 + RECORD_SPACE
}

/// Additional state of a connection of frames; other connections have none.
#[derive(Clone, Copy)]
pub(super) struct AcpState {
    /// The peer's SYN or SYN-ACK need not have the option.
    pub(super) unconfirmed: bool,
    /// The longest frame that is accepted, header included: a segment as we announce it.
    pub(super) largest: u16,
    /// Bytes have arrived that are not a frame.
    pub(super) broken: bool,
    /// The owner has not been notified of it.
    pub(super) reports: bool,
    /// Unread bytes, from the first on, that form whole frames. The first of them is a
    /// frame of data.
    pub(super) whole: u32,
    /// Frames of data among them.
    pub(super) frames: u32,
}

impl AcpState {
    pub(super) fn new(config: &Config, mss: u16) -> Option<Box<Self>> {
        config.framing.is_acp().then(|| {
            Box::new(Self {
                unconfirmed: config.framing == Framing::AcpUnconfirmed,
                largest: mss,
                broken: false,
                reports: false,
                whole: 0,
                frames: 0,
            })
        })
    }
}

// ---- Handshake ----------------------------------------------------------------

impl Connection {
    /// True for a connection of frames.
    #[inline]
    pub fn is_framed(&self) -> bool {
        self.acp.is_some()
    }

    /// The version that our SYN offers.
    pub(super) fn acp_offer(&self) -> Option<u8> {
        self.is_framed().then_some(VERSION)
    }

    /// Ends the attempt to connect to a peer that should speak ACP and does not. Returns
    /// true if it did so.
    pub(super) fn refuses_without_acp(&mut self, header: &tcp::Header, acknowledges: bool) -> bool {
        let required = self.acp.as_ref().is_some_and(|acp| !acp.unconfirmed);
        if !required || is_offered(&header.options) {
            return false;
        }
        self.fail(Errno::PROTONOSUPPORT);
        if acknowledges {
            self.send.reset_sequence = header.acknowledgment;
            self.pending.add(Pending::RESET_ANSWER);
        }
        true
    }
}

// ---- Sending ------------------------------------------------------------------

impl Connection {
    /// The largest payload of a frame now, in bytes: a segment less the header. It
    /// shrinks when the path turns out to carry less.
    pub fn frame_max(&self) -> usize {
        usize::from(self.send.mss).saturating_sub(HEADER_LEN)
    }

    /// How much of the send buffer must be free before a writer is notified, in bytes:
    /// the longest frame's space.
    pub(super) fn least_room(&self) -> u32 {
        if self.is_framed() {
            frame_space(self.send.mss.into())
        } else {
            1
        }
    }

    /// Takes a frame to be sent whole, its payload in pieces. With `more`, another frame
    /// follows at once, which may share its segment (`MSG_MORE`).
    ///
    /// # Errors
    /// Returns:
    /// - [`Errno::MSGSIZE`] for more than [`Connection::frame_max`];
    /// - [`Errno::AGAIN`] when the buffer has no room for all of it, enough waits to be
    ///   sent, or the handshake is not complete;
    /// - [`Errno::INVAL`] for a connection that carries a stream;
    /// - otherwise as [`Connection::write`].
    pub fn write_frame<P: Deref<Target = [u8]>>(
        &mut self,
        pieces: &[P],
        more: bool,
    ) -> Result<(), Errno> {
        self.check_writable()?;
        if !self.is_framed() {
            return Err(Errno::INVAL);
        }
        if !self.can_hold_data() {
            return Err(Errno::AGAIN);
        }
        let length = pieces.iter().map(|piece| piece.len()).sum();
        let header = Header::data(length)
            .filter(|_| length <= self.frame_max())
            .ok_or(Errno::MSGSIZE)?;
        let space = frame_space(header.size());
        let limited = self.config.not_sent_low_water != u32::MAX;
        self.no_space = self.held().saturating_add(space) > self.send_limit()
            || limited && self.room_by_low_water() == 0;
        if self.no_space {
            return Err(Errno::AGAIN);
        }
        self.send.buffer.push(&header.bytes());
        for piece in pieces {
            self.send.buffer.push(piece);
        }
        self.send.write_seq = self.send.write_seq.wrapping_add(header.size() as u32);
        self.more = more;
        self.push();
        self.send.push_marks.end_record(self.send.write_seq);
        Ok(())
    }

    /// Returns the unsent frames that may be sent now. Something is unsent, and the
    /// window is not closed.
    #[cold]
    pub(super) fn plan_frames(&self) -> Option<Plan> {
        let (nxt, marks) = (self.send.nxt, &self.send.push_marks);
        let first = marks.first_record(nxt)?.wrapping_sub(nxt);
        let mss = self.payload_max();
        if first > mss {
            return Some(Plan::TooLong);
        }
        let usable = self.send.window_end().wrapping_sub(nxt);
        if first > usable {
            return None;
        }
        let pipe = self.pipe();
        let allowed = self.congestion.window().saturating_sub(pipe);
        let most = mss.min(usable).min(allowed);
        let length = match marks.last_record(nxt, nxt.wrapping_add(most)) {
            Some(end) => end.wrapping_sub(nxt),
            None if pipe == 0 => first,
            None => return None,
        };
        let all = length == self.unsent();
        (!all || length == mss || self.may_send_small()).then_some(Plan::New { length })
    }

    /// Whole frames from `sequence` on, at most up to `end`, to be retransmitted.
    #[cold]
    pub(super) fn retransmission_of_frames(&self, sequence: u32, end: u32) -> Plan {
        let length = self.frames_from(sequence, end.wrapping_sub(sequence));
        if length > self.payload_max() {
            return Plan::TooLong;
        }
        Plan::Retransmit { sequence, length }
    }

    /// Bytes of the frames from `sequence` on that fit into `most`; at least the first
    /// frame's.
    fn frames_from(&self, sequence: u32, most: u32) -> u32 {
        let marks = &self.send.push_marks;
        marks
            .last_record(sequence, sequence.wrapping_add(most))
            .or_else(|| marks.first_record(sequence))
            .map_or(most, |end| end.wrapping_sub(sequence))
    }

    /// Bytes of the first unacknowledged segment, at most.
    pub(super) fn head_segment(&self) -> u32 {
        let mss = self.send.mss.into();
        if self.is_framed() {
            self.frames_from(self.send.una, mss)
        } else {
            mss
        }
    }

    /// True when the peer's window is too small for the next frame, which counts as
    /// closed.
    pub(super) fn is_window_closed(&self) -> bool {
        let usable = self.send.wnd.saturating_sub(self.send.outstanding());
        let next = match &self.acp {
            None => 1,
            Some(_) => self.frames_from(self.send.nxt, 0).max(1),
        };
        usable < next
    }

    /// Ends the connection: an accepted frame has become too long for the path and cannot
    /// be cut.
    #[cold]
    pub(super) fn end_for_frame_too_long(&mut self) {
        self.fail(Errno::MSGSIZE);
        self.pending.add(Pending::RESET);
    }
}

// ---- Receiving ----------------------------------------------------------------

impl Connection {
    /// True while no unread frame is whole.
    #[inline]
    pub(super) fn lacks_frame(&self) -> bool {
        self.acp.as_ref().is_some_and(|acp| acp.frames == 0)
    }

    fn frame_header(&self, offset: u32) -> Option<[u8; HEADER_LEN]> {
        let [first, second] = self.receive.assembler.unread_at(offset, HEADER);
        let mut bytes = [0; HEADER_LEN];
        let mut pieces = first.iter().chain(second);
        for place in &mut bytes {
            *place = *pieces.next()?;
        }
        Some(bytes)
    }

    /// The header of the first frame. The frame is whole.
    fn first_frame(&self) -> Option<Header> {
        let whole = self.acp.as_ref().is_some_and(|acp| acp.whole > 0);
        let bytes = self.frame_header(0).filter(|_| whole)?;
        Header::parse(bytes).ok()
    }

    /// Finds frames that have become whole. Bytes that are not a frame end the
    /// connection: the peer is reset, and the reader gets EPROTO after the whole frames.
    #[cold]
    pub(super) fn scan_frames(&mut self) {
        while let Some(acp) = &self.acp {
            let unread = self.receive.assembler.unread();
            let (offset, largest) = (acp.whole, usize::from(acp.largest));
            let Some(bytes) = self.frame_header(offset) else {
                return;
            };
            let header = match Header::parse(bytes) {
                Ok(header) if header.size() <= largest => header,
                _ if acp.broken => return,
                _ => return self.end_for_broken_frame(),
            };
            let size = header.size() as u32;
            if unread.wrapping_sub(offset) < size {
                return;
            }
            let Some(acp) = &mut self.acp else { return };
            let data = header.kind == Kind::Data;
            if data || acp.whole > 0 {
                acp.whole += size;
                acp.frames += u32::from(data);
            } else {
                self.consume(size as usize);
            }
        }
    }

    /// Whether the peer's FIN, which is in order, lies within a frame.
    pub(super) fn ends_within_frame(&self) -> bool {
        let unread = self.receive.assembler.unread();
        self.acp.as_ref().is_some_and(|acp| acp.whole != unread)
    }

    #[cold]
    pub(super) fn end_for_broken_frame(&mut self) {
        if let Some(acp) = &mut self.acp {
            (acp.broken, acp.reports) = (true, true);
        }
        count(&mut self.counters.segments_refused);
        self.fail(Errno::PROTO);
        self.pending.add(Pending::RESET);
    }

    /// True, once, when the connection has ended because bytes arrived that are not a
    /// frame: [`DropReason::AcpFraming`](crate::DropReason::AcpFraming).
    pub fn take_framing_error(&mut self) -> bool {
        let acp = self.acp.as_deref_mut();
        acp.is_some_and(|acp| core::mem::take(&mut acp.reports))
    }

    /// The payload of the first waiting frame, in up to two pieces; `None` while no frame
    /// is whole. Null frames are never returned.
    pub fn frame(&self) -> Option<[&[u8]; 2]> {
        let length = self.first_frame()?.length.into();
        Some(self.receive.assembler.unread_at(HEADER, length))
    }

    /// Removes the first frame, which was read.
    pub fn consume_frame(&mut self) {
        loop {
            let Some(header) = self.first_frame() else {
                return;
            };
            let size = header.size() as u32;
            if let Some(acp) = &mut self.acp {
                acp.whole = acp.whole.saturating_sub(size);
                acp.frames -= u32::from(header.kind == Kind::Data);
            }
            self.consume(size as usize);
            // Null frames after it are removed with it.
            if self
                .first_frame()
                .is_none_or(|next| next.kind == Kind::Data)
            {
                return;
            }
        }
    }

    /// Reads a frame and returns the length of its payload. As much is copied as `buffer`
    /// holds; the rest is lost. `None` is the end of the peer's data.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] while no frame is whole. Once, the error that ended the
    /// connection: EPROTO for bytes that are not a frame.
    pub fn read_frame(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        let Some(pieces) = self.frame() else {
            return self.nothing_to_read().map(|()| None);
        };
        let mut length = 0;
        for piece in pieces {
            let rest = buffer.get_mut(length..).unwrap_or_default();
            let copied = piece.len().min(rest.len());
            if let (Some(place), Some(piece)) = (rest.get_mut(..copied), piece.get(..copied)) {
                place.copy_from_slice(piece);
            }
            length += piece.len();
        }
        self.consume_frame();
        Ok(Some(length))
    }

    /// Returns why there is nothing to read; no error at the end of the peer's data.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn nothing_to_read(&mut self) -> Result<(), Errno> {
        // Linux reports a reset that came after the end to writers only, and as
        // SO_ERROR.
        if self.receive.finished {
            return Ok(());
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.receive.closed || self.state == super::State::Closed {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }
}
