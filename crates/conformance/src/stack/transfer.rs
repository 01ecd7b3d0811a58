//! Reading and writing.

use core::time::Duration;
use std::net::SocketAddr;

use tidewall_protocol::tcp::{SendFlags, State};

use super::socket::{Kind, would_wait};
use super::{ConnectionId, Entry, ExtendedError, Failure, Fd, Host, Result, notification};

/// What a read has brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Bytes; none at the end of the stream. With MSG_TRUNC they count but are
    /// not copied.
    pub bytes: usize,
    /// With `TCP_INQ`: bytes that are left to be read, one more than there are
    /// after the end of the stream.
    pub left: Option<u32>,
    /// `msg_flags`.
    pub flags: i32,
    /// With `SO_TIMESTAMPING`: when what is read has come, or what the error queue
    /// tells has happened, by the host's clock (`SCM_TIMESTAMPING`).
    pub arrived: Option<Duration>,
    /// What the error queue tells.
    pub error: Option<ExtendedError>,
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

    /// As [`Host::recv`], with what else `recvmsg(2)` tells; with MSG_ERRQUEUE, of
    /// the error queue.
    ///
    /// # Errors
    /// As [`Host::recv`]; EAGAIN when the error queue is empty.
    pub fn receive(&mut self, fd: Fd, buffer: &mut [u8], flags: i32) -> Result<Received> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_error(fd);
        }
        let id = self.connected(fd, libc::ENOTCONN)?;
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let inquiry = socket.options.inquiry;
        let timestamping = socket.options.timestamping;
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
        let arrived =
            notification::arrived(connection, timestamping).filter(|_| bytes > 0 && !peek);
        self.settle(id);
        Ok(Received {
            bytes,
            left: inquiry.then(|| left as u32 + u32::from(end && left == 0)),
            arrived,
            ..Received::default()
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

    /// `send(2)` with MSG_DONTWAIT, MSG_MORE, MSG_EOR and MSG_ZEROCOPY, other flags
    /// change nothing; `write` is the same without flags. Takes what the engine takes: on a blocking
    /// descriptor the caller goes on with the rest until it is blocked, and waits.
    ///
    /// # Errors
    /// EPIPE without a connection or after `shutdown`, EAGAIN or
    /// [`Failure::Blocked`], why the connection ended.
    pub fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Result<usize> {
        self.sendmsg(fd, &[bytes], flags)
    }

    /// `sendmsg(2)` and `writev(2)`, as [`Host::send`].
    ///
    /// # Errors
    /// As [`Host::send`].
    pub fn sendmsg(&mut self, fd: Fd, parts: &[&[u8]], flags: i32) -> Result<usize> {
        self.sendmsg_to(fd, parts, flags, None)
    }

    /// As [`Host::sendmsg`], with an address: with MSG_FASTOPEN, the one to
    /// connect to.
    ///
    /// # Errors
    /// As [`Host::send`]; with MSG_FASTOPEN those of [`Host::connect`], and
    /// EOPNOTSUPP where `tcp_fastopen` does not allow it.
    pub fn sendmsg_to(
        &mut self,
        fd: Fd,
        parts: &[&[u8]],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        if flags & libc::MSG_FASTOPEN != 0 {
            return self.send_fast(fd, &parts.concat(), (flags, nonblocking), to);
        }
        if let Kind::Stream(id) = socket.kind {
            if socket.sent_with_syn.is_some() {
                return self.continue_with_syn(id, fd, &parts.concat(), (flags, nonblocking));
            }
            if self.is_deferred(id) {
                return self.send_with_syn(id, fd, &parts.concat(), (flags, nonblocking));
            }
        }
        let id = self.connected(fd, libc::EPIPE)?;
        let how = SendFlags {
            more: flags & libc::MSG_MORE != 0,
            record: flags & libc::MSG_EOR != 0,
        };
        let entry = self.entry_mut(id, libc::EPIPE)?;
        let connection = &mut entry.connection;
        if !nonblocking && entry.no_space {
            // Whoever waits for room is woken when a third is free.
            return Err(Failure::Blocked);
        }
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = parts.concat();
        let result = connection.write_with(&bytes, how).map_err(Failure::from);
        if result.is_ok_and(|taken| taken < wanted) || result == Err(Failure::Errno(libc::EAGAIN)) {
            entry.no_space = true;
        }
        if let Ok(taken) = result
            && (taken == wanted || nonblocking)
        {
            // The caller of a blocking one goes on with the rest.
            connection.end_write(taken, flags & libc::MSG_ZEROCOPY != 0);
        }
        self.settle(id);
        match result {
            Err(Failure::Errno(libc::EAGAIN)) => Err(would_wait(nonblocking)),
            result => result,
        }
    }

    /// `sendto(2)`: without MSG_FASTOPEN the address changes nothing.
    ///
    /// # Errors
    /// As [`Host::send`].
    pub fn sendto(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        self.sendmsg_to(fd, &[bytes], flags, to)
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
}

fn copy(pieces: [&[u8]; 2], buffer: &mut [u8]) {
    let bytes = pieces.into_iter().flatten();
    for (place, byte) in buffer.iter_mut().zip(bytes) {
        *place = *byte;
    }
}
