//! Reading and writing.

use std::net::SocketAddr;

use tidewall_protocol::tcp::State;

use super::socket::would_wait;
use super::{ConnectionId, Entry, Failure, Fd, Host, Result};

/// What a read has brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Bytes; none at the end of the stream. With MSG_TRUNC they count but are
    /// not copied.
    pub bytes: usize,
    /// With `TCP_INQ`: bytes that are left to be read, one more than there are
    /// after the end of the stream.
    pub left: Option<u32>,
}

impl Host {
    /// The connection of a descriptor.
    fn connected(&self, fd: Fd, without: i32) -> Result<ConnectionId> {
        self.stream(fd)?.ok_or(Failure::Errno(without))
    }

    fn entry_mut(&mut self, id: ConnectionId, without: i32) -> Result<&mut Entry> {
        self.connections.get_mut(&id).ok_or(Failure::Errno(without))
    }

    /// `recv(2)` with MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC and MSG_WAITALL; `read`
    /// is the same without flags.
    ///
    /// # Errors
    /// ENOTCONN, EAGAIN or [`Failure::Blocked`], why the connection ended.
    pub fn recv(&mut self, fd: Fd, buffer: &mut [u8], flags: i32) -> Result<usize> {
        self.receive(fd, buffer, flags)
            .map(|received| received.bytes)
    }

    /// As [`Host::recv`], with what else `recvmsg(2)` tells.
    ///
    /// # Errors
    /// As [`Host::recv`].
    pub fn receive(&mut self, fd: Fd, buffer: &mut [u8], flags: i32) -> Result<Received> {
        let id = self.connected(fd, libc::ENOTCONN)?;
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let inquiry = socket.options.inquiry;
        let entry = self.entry_mut(id, libc::ENOTCONN)?;
        let connection = &mut entry.connection;
        let have: usize = connection.received().iter().map(|piece| piece.len()).sum();
        let over = connection.receive_closed() || connection.has_error();
        let wanted = buffer.len();
        if flags & libc::MSG_WAITALL != 0 && have < wanted && !over {
            return Err(would_wait(nonblocking));
        }
        if have == 0 && matches!(connection.state(), State::SynSent | State::SynReceived) && !over {
            return Err(would_wait(nonblocking));
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let truncate = flags & libc::MSG_TRUNC != 0;
        let bytes = if have > 0 && (peek || truncate) {
            let bytes = have.min(wanted);
            if !truncate {
                copy(connection.received(), buffer);
            }
            if !peek {
                connection.consume(bytes);
            }
            bytes
        } else {
            match connection.read(buffer) {
                Ok(bytes) => bytes,
                Err(error) if error.0 == libc::EAGAIN => return Err(would_wait(nonblocking)),
                Err(error) => return Err(error.into()),
            }
        };
        let left: usize = connection.received().iter().map(|piece| piece.len()).sum();
        let end = connection.receive_closed();
        self.settle(id);
        Ok(Received {
            bytes,
            left: inquiry.then(|| left as u32 + u32::from(end && left == 0)),
        })
    }

    /// `recvfrom(2)`: TCP tells no address.
    ///
    /// # Errors
    /// As [`Host::recv`].
    pub fn recvfrom(
        &mut self,
        fd: Fd,
        buffer: &mut [u8],
        flags: i32,
    ) -> Result<(usize, Option<SocketAddr>)> {
        Ok((self.recv(fd, buffer, flags)?, None))
    }

    /// `send(2)` with MSG_DONTWAIT, MSG_MORE and MSG_EOR; `write` is the same
    /// without flags. Takes what there is room for: on a blocking descriptor the
    /// caller goes on with the rest until it is blocked, and waits.
    ///
    /// # Errors
    /// EPIPE without a connection or after `shutdown`, EAGAIN or
    /// [`Failure::Blocked`], why the connection ended.
    pub fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Result<usize> {
        let id = self.connected(fd, libc::EPIPE)?;
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let cork = socket.options.cork;
        let room = self.send_room(id);
        let entry = self.entry_mut(id, libc::EPIPE)?;
        let connection = &mut entry.connection;
        if matches!(connection.state(), State::SynSent | State::SynReceived)
            && !connection.has_error()
        {
            entry.no_space = true;
            return Err(would_wait(nonblocking));
        }
        let taken = bytes.get(..bytes.len().min(room)).unwrap_or_default();
        let written = if taken.is_empty() && !bytes.is_empty() && !connection.send_closed() {
            match connection.take_error() {
                Some(error) => Err(error.into()),
                None => Err(would_wait(nonblocking)),
            }
        } else {
            match connection.write(taken) {
                Err(error) if error.0 == libc::EAGAIN => Err(would_wait(nonblocking)),
                Err(error) => Err(error.into()),
                Ok(written) => Ok(written),
            }
        };
        if written.is_err() || written.is_ok_and(|written| written < bytes.len()) {
            entry.no_space = true;
        }
        entry
            .connection
            .set_cork(cork || flags & libc::MSG_MORE != 0);
        self.settle(id);
        written
    }

    /// `sendto(2)`: a connected socket takes no notice of the address.
    ///
    /// # Errors
    /// As [`Host::send`].
    pub fn sendto(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        flags: i32,
        _to: Option<SocketAddr>,
    ) -> Result<usize> {
        self.send(fd, bytes, flags)
    }

    /// `read(2)`.
    ///
    /// # Errors
    /// As [`Host::recv`].
    pub fn read(&mut self, fd: Fd, buffer: &mut [u8]) -> Result<usize> {
        self.recv(fd, buffer, 0)
    }

    /// `write(2)`.
    ///
    /// # Errors
    /// As [`Host::send`].
    pub fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize> {
        self.send(fd, bytes, 0)
    }

    /// Bytes that may be written now.
    pub(super) fn send_room(&self, id: ConnectionId) -> usize {
        let Some(entry) = self.connections.get(&id) else {
            return 0;
        };
        let info = entry.connection.info();
        let held = info.unacknowledged.saturating_add(info.not_sent);
        info.send_buffer.saturating_sub(held) as usize
    }

    /// Whether a third of the send buffer is free, and no more waits to be sent
    /// than `TCP_NOTSENT_LOWAT` allows.
    pub(super) fn is_writable(&self, id: ConnectionId) -> bool {
        let Some(entry) = self.connections.get(&id) else {
            return true;
        };
        if !entry.connection.writable() {
            return false;
        }
        let waiting = entry.connection.info().not_sent;
        waiting < self.notsent_lowat(entry.fd) || waiting == 0
    }
}

fn copy(pieces: [&[u8]; 2], buffer: &mut [u8]) {
    let bytes = pieces.into_iter().flatten();
    for (place, byte) in buffer.iter_mut().zip(bytes) {
        *place = *byte;
    }
}
