//! The application's operations on a connection: read, write, query.

use super::connection::Connection;
use super::timers::Timer;
use super::{Errno, FourTuple, State};

/// Flags of a write, as of `send(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// More follows at once (`MSG_MORE`). Data that does not fill a segment waits for the
    /// next write, for an acknowledgment, or for 200 ms. Nothing is pushed except the end
    /// of a record.
    pub more: bool,
    /// A record ends with the last byte (`MSG_EOR`). No segment carries bytes from before
    /// and after it, retransmitted or not. The flag counts only once all bytes are
    /// accepted.
    ///
    /// The peer is not notified (TCP has no records), but it sees records in segments of
    /// their own as long as no middlebox merges segments. Each record takes eight bytes
    /// of the send buffer until it is acknowledged.
    pub record: bool,
}

impl Connection {
    /// True when a read would not return [`Errno::AGAIN`]: data (a whole frame, where
    /// frames are carried), the end of the stream, or an error.
    #[inline]
    pub fn readable(&self) -> bool {
        self.receive.assembler.unread() > 0 && !self.lacks_frame()
            || self.receive.finished
            || self.receive.closed
            || self.error.is_some()
            || self.state == State::Closed
    }

    /// True when a third of the send buffer is free and less than half of
    /// [`Connection::not_sent_low_water`] is unsent, as on Linux. On a connection of
    /// frames the longest frame must fit, too. Also true when a write would fail.
    #[inline]
    pub fn writable(&self) -> bool {
        if self.send.closed || self.error.is_some() || self.state == State::Closed {
            return true;
        }
        let (held, limit) = (self.held(), self.send_limit());
        let mark = self.config.not_sent_low_water;
        self.can_hold_data()
            && held + held / 2 <= limit
            && held.wrapping_add(self.send.least_room) <= limit
            && (mark == u32::MAX || self.unsent() < mark.div_ceil(2))
    }

    /// True while no waiter needs the next acknowledgment. All was sent, there is room to
    /// write, nothing is missing, and an end that lacks a segment reports it (SACK).
    #[inline]
    #[must_use]
    pub fn acknowledgments_may_wait(&self) -> bool {
        self.sack
            && !matches!(
                self.state,
                State::Closed | State::SynSent | State::SynReceived
            )
            && self.unsent() == 0
            && self.send.closed == self.fin_sent()
            && self.send.wnd > 0
            && self.recovery.is_quiet()
            && self.error_queue.is_none()
            && self.writable()
    }

    /// True when the application has written data that is not acknowledged yet.
    #[must_use]
    pub fn has_written(&self) -> bool {
        self.held() > 0
    }

    /// Bytes of the send buffer in use.
    #[inline]
    pub(super) fn held(&self) -> u32 {
        self.send
            .buffer
            .len()
            .wrapping_add(self.send.push_marks.space())
    }

    #[inline]
    pub(super) fn can_hold_data(&self) -> bool {
        matches!(self.state, State::Established | State::CloseWait) || self.is_fast_opening()
    }

    /// Data in order that is not read, in up to two pieces.
    pub fn received(&self) -> [&[u8]; 2] {
        self.receive.assembler.unread_slices()
    }

    /// Sequence number after the data received in order, the peer's FIN included. It
    /// moves when there is something new to read.
    #[inline]
    pub fn rcv_nxt(&self) -> u32 {
        self.next_expected()
    }

    /// Removes up to `bytes` of [`Connection::received`], which were read.
    pub fn consume(&mut self, bytes: usize) {
        let bytes = self.receive.assembler.consume(bytes);
        if bytes > 0 {
            self.after_read(bytes);
            if self.error_queue.is_some() {
                self.note_read();
            }
        }
    }

    /// Reads data in order; `Ok(0)` is the end of the stream (or an empty `buffer`).
    ///
    /// # Errors
    /// [`Errno::AGAIN`] when there is no data yet; once, the error that ended the
    /// connection.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut copied = 0;
        for piece in self.received() {
            let Some(place) = buffer.get_mut(copied..) else {
                break;
            };
            let length = piece.len().min(place.len());
            let (Some(place), Some(piece)) = (place.get_mut(..length), piece.get(..length)) else {
                break;
            };
            place.copy_from_slice(piece);
            copied += length;
        }
        if copied > 0 {
            self.consume(copied);
            return Ok(copied);
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        self.nothing_to_read().map(|()| 0)
    }

    /// Accepts as many bytes to send as the buffer holds, and pushes them.
    ///
    /// # Errors
    /// Returns:
    /// - [`Errno::AGAIN`] when the buffer holds none, enough waits to be sent
    ///   ([`Connection::set_not_sent_low_water`]), or the handshake is not complete and
    ///   the SYN takes no data ([`Connection::connect_fast`]);
    /// - once, the error that ended the connection;
    /// - then, and after a shutdown for writing, [`Errno::PIPE`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let taken = self.take(bytes)?;
        self.more = false;
        if taken > 0 {
            self.push();
        }
        Ok(taken)
    }

    /// As [`Connection::write`], with flags. When it accepts less than all, the flags do
    /// not count: the accepted bytes are pushed.
    ///
    /// # Errors
    /// As [`Connection::write`].
    pub fn write_with(&mut self, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        let taken = self.take(bytes)?;
        self.end_part(taken, taken == bytes.len(), flags);
        Ok(taken)
    }

    /// Accepts up to `wanted` bytes that `fill` writes directly into the send buffer's
    /// memory, which comes in up to two pieces. Returns the number of bytes, as `fill`
    /// reports it. Bytes that `fill` did not have do not count as bytes without room.
    ///
    /// # Errors
    /// As [`Connection::write`]; those of `fill`, when nothing is taken.
    pub fn write_from<E: From<Errno>>(
        &mut self,
        wanted: usize,
        flags: SendFlags,
        fill: impl FnOnce([&mut [u8]; 2]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let room = self.room_to_write()?.min(wanted);
        self.no_space = room < wanted;
        if room == 0 && wanted > 0 {
            return Err(Errno::AGAIN.into());
        }
        let taken = self.send.buffer.push_with(room, fill)?;
        self.send.write_seq = self.send.write_seq.wrapping_add(taken as u32);
        self.end_part(taken, taken == wanted, flags);
        Ok(taken)
    }

    /// Records what the flags of the last write mean.
    #[inline]
    fn end_part(&mut self, taken: usize, complete: bool, flags: SendFlags) {
        self.more = flags.more && complete;
        let record = flags.record && complete && taken > 0;
        if taken > 0 && !self.more || record {
            self.push();
        }
        if record {
            self.send.push_marks.end_record(self.send.write_seq);
        }
    }

    #[inline]
    pub(super) fn check_writable(&mut self) -> Result<(), Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.send.closed || self.state == State::Closed {
            return Err(Errno::PIPE);
        }
        Ok(())
    }

    /// Bytes that the send buffer accepts now.
    #[inline]
    fn room_to_write(&mut self) -> Result<usize, Errno> {
        self.check_writable()?;
        let room = if self.can_hold_data() {
            let room = self.send_limit().saturating_sub(self.held());
            if self.config.not_sent_low_water == u32::MAX {
                room
            } else {
                room.min(self.room_by_low_water())
            }
        } else {
            let room = self.syn_room();
            if room == 0 {
                return Err(Errno::AGAIN);
            }
            room
        };
        Ok(room as usize)
    }

    #[inline]
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let room = self.room_to_write()?;
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.no_space = taken.len() < bytes.len();
        if taken.is_empty() && !bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        self.send.buffer.push(taken);
        self.send.write_seq = self.send.write_seq.wrapping_add(taken.len() as u32);
        Ok(taken.len())
    }

    /// Bytes that may be written under [`Connection::not_sent_low_water`].
    #[cold]
    pub(super) fn room_by_low_water(&self) -> u32 {
        let burst = self.largest_burst();
        let mark = self.config.not_sent_low_water;
        let limit = mark.div_ceil(burst).saturating_mul(burst);
        self.may_leave()
            .saturating_add(limit)
            .saturating_sub(self.unsent())
    }

    /// Marks everything written so far as pushed.
    #[inline]
    pub(super) fn push(&mut self) {
        let (at, first, next) = (self.send.write_seq, self.send.una, self.send.nxt);
        self.send.push_marks.push(at, first, next);
    }

    /// The state (RFC 9293 §3.3.2).
    pub fn state(&self) -> State {
        self.state
    }

    /// The two endpoints.
    pub fn flow(&self) -> &FourTuple {
        &self.flow
    }

    /// The error that ended the connection, if it was not reported yet (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// True while [`Connection::take_error`] would return an error.
    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// True once the peer's FIN is in order: nothing more will be received.
    pub fn receive_closed(&self) -> bool {
        self.receive.finished || self.receive.closed || self.state == State::Closed
    }

    /// True when nothing more can be written.
    pub fn send_closed(&self) -> bool {
        self.send.closed || self.state == State::Closed
    }

    /// True for an established connection that holds no data and no buffers and waits
    /// only for its keepalive timer.
    pub fn is_idle(&self) -> bool {
        self.state == State::Established
            && !self.wants_output()
            && self.send.una == self.send.nxt
            && self.receive.assembler.capacity() == 0
            && self.send.buffer.capacity() == 0
            && !self.timers.is_running(Timer::Retransmit)
            && !self.timers.is_running(Timer::Acknowledge)
            && !self.timers.is_running(Timer::Release)
    }
}
