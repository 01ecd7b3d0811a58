//! Connections of frames: a frame a call, as SOCK_SEQPACKET has it.

use std::io::{self, IoSlice, IoSliceMut};

use tidewall_protocol::tcp::Errno;

use super::{Phase, TcpStream};
use crate::pieces::scatter;
use crate::tcp::connection::{State, error};

/// What a call has received of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Bytes of the frame's payload.
    pub length: usize,
    /// Bytes of it that the buffers took, from the first on: fewer where they are
    /// shorter (MSG_TRUNC). The rest is lost, unless the call only looked.
    pub copied: usize,
}

impl ReceivedFrame {
    /// What a receiving call returns for it: with MSG_TRUNC its whole length.
    pub(crate) fn returned(&self, flags: i32) -> usize {
        if flags & libc::MSG_TRUNC != 0 {
            self.length
        } else {
            self.copied
        }
    }
}

impl TcpStream {
    /// True for a connection of frames ([`Framing`](crate::tcp::Framing)): then each
    /// call that reads takes one frame, of which what does not fit its buffers is lost,
    /// and each that writes sends one.
    pub fn is_framed(&self) -> bool {
        self.own_connection()
            .is_some_and(|connection| connection.is_framed())
    }

    /// Receives a frame into several buffers, in turn. `None` is the end of what the
    /// peer sends: a frame may be empty. `flags`: MSG_DONTWAIT and MSG_PEEK; others
    /// change nothing.
    ///
    /// # Errors
    /// As [`std::io::Read::read`] of this type; EPROTO once what came is no frame;
    /// EINVAL for a connection that carries a stream.
    pub fn receive_frame(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> io::Result<Option<ReceivedFrame>> {
        let connection = self.own_connection().filter(|it| it.is_framed());
        let connection = connection.ok_or_else(|| error(Errno::INVAL))?;
        let mut received = None;
        let at_once = flags & libc::MSG_DONTWAIT != 0;
        self.receive(connection, at_once, &mut |state| {
            let Some(pieces) = state.connection.frame() else {
                return state.connection.nothing_to_read().map(|()| 0);
            };
            let copied = scatter(&pieces, buffers);
            let length = pieces.iter().map(|piece| piece.len()).sum();
            received = Some(ReceivedFrame { length, copied });
            if flags & libc::MSG_PEEK == 0 {
                state.connection.consume_frame();
            }
            Ok(copied)
        })?;
        Ok(received)
    }

    /// The most payload of a frame now, in bytes: a segment of the connection less four.
    /// It becomes less when the path turns out to carry less. `None` where no frames
    /// are carried, or the handshake is not complete.
    pub fn frame_max(&self) -> Option<usize> {
        let connection = self.own_connection()?;
        let state = connection.look();
        let begun = !matches!(
            state.connection.state(),
            Phase::SynSent | Phase::SynReceived
        );
        (begun && connection.is_framed()).then(|| state.connection.frame_max())
    }
}

/// Sends a frame from several pieces.
pub(super) fn write(state: &mut State, pieces: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
    state.connection.write_frame(pieces, more)?;
    Ok(pieces.iter().map(|piece| piece.len()).sum())
}
