//! Connections of frames: one frame per call, as in SOCK_SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};

use tidewall_protocol::tcp::Errno;

use super::{Phase, TcpStream};
use crate::pieces::scatter;
use crate::tcp::connection::{State, error};

/// The part of a frame that a call has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Bytes of the frame's payload.
    pub length: usize,
    /// Bytes copied into the buffers, from the first on: fewer if they are shorter
    /// (MSG_TRUNC). The rest is lost, unless the call only peeked.
    pub copied: usize,
}

impl ReceivedFrame {
    /// Returns the result of a receiving call: with MSG_TRUNC the frame's whole length.
    pub(crate) fn returned(&self, flags: i32) -> usize {
        if flags & libc::MSG_TRUNC != 0 {
            self.length
        } else {
            self.copied
        }
    }
}

impl TcpStream {
    /// Returns true for a connection of frames ([`Framing`](crate::tcp::Framing)). Each
    /// read then receives one frame, whose excess over the buffers is lost, and each
    /// write sends one.
    pub fn is_framed(&self) -> bool {
        self.own_connection()
            .is_some_and(|connection| connection.is_framed())
    }

    /// Receives a frame into several buffers, in turn. `None` means that the peer sends
    /// no more: a frame may be empty. `flags`: MSG_DONTWAIT and MSG_PEEK; others are
    /// ignored.
    ///
    /// # Errors
    /// Those of [`std::io::Read::read`] of this type; EPROTO once the received bytes are
    /// no frame; EINVAL for a connection that carries a stream.
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

    /// Returns the largest payload of a frame now, in bytes: a segment of the connection
    /// less four. It decreases when the path turns out to carry less. `None` if the
    /// connection carries no frames, or the handshake is not complete.
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

/// Sends a frame in several pieces.
pub(super) fn write(state: &mut State, pieces: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
    state.connection.write_frame(pieces, more)?;
    Ok(pieces.iter().map(|piece| piece.len()).sum())
}
