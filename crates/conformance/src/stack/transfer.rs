//! Reading and writing.

use std::net::SocketAddr;

use tidewall_protocol::tcp::State;

use super::socket::would_wait;
use super::{ConnectionId, Entry, Failure, Fd, Host, Notification, Result};

/// What a read has brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Bytes; none at the end of the stream. With MSG_TRUNC they count but are
    /// not copied.
    pub bytes: usize,
    /// With `TCP_INQ`: bytes that are left to be read, one more than there are
    /// after the end of the stream.
    pub left: Option<u32>,
    /// With MSG_ERRQUEUE: what there was.
    pub notification: Option<Notification>,
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
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.notification(fd);
        }
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
            notification: None,
        })
    }

    /// Never waits, as in Linux.
    fn notification(&mut self, fd: Fd) -> Result<Received> {
        let stream = self.stream(fd)?;
        let entry = stream.and_then(|id| self.connections.get_mut(&id));
        let notification = entry.and_then(|entry| entry.errors.pop());
        match notification {
            Some(_) => Ok(Received {
                notification,
                ..Received::default()
            }),
            None => Err(Failure::Errno(libc::EAGAIN)),
        }
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

    /// `send(2)` with MSG_DONTWAIT, MSG_MORE, MSG_EOR and MSG_ZEROCOPY; `write` is
    /// the same without flags. Takes what there is room for: on a blocking
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
        let id = self.connected(fd, libc::EPIPE)?;
        let socket = self.get(fd)?;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let zerocopy = socket.options.zerocopy && flags & libc::MSG_ZEROCOPY != 0;
        let cork = socket.options.cork || flags & libc::MSG_MORE != 0;
        let entry = self.entry_mut(id, libc::EPIPE)?;
        let connection = &mut entry.connection;
        if let Some(error) = connection.take_error() {
            return Err(error.into());
        }
        if connection.send_closed() {
            return Err(Failure::Errno(libc::EPIPE));
        }
        if matches!(connection.state(), State::SynSent | State::SynReceived) {
            entry.no_space = true;
            return Err(would_wait(nonblocking));
        }
        if !nonblocking && entry.no_space {
            // Whoever waits for room is woken when a third is free.
            return Err(Failure::Blocked);
        }
        connection.set_cork(cork);
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut done = 0;
        // A packet of MSG_ZEROCOPY has this many pieces of memory at most
        // (`MAX_SKB_FRAGS`).
        let group = if zerocopy { 17 } else { parts.len().max(1) };
        for (number, group) in parts.chunks(group).enumerate() {
            if number > 0
                && let Some(entry) = self.connections.get_mut(&id)
            {
                entry.queue.finish(true, true);
            }
            let bytes = group.concat();
            let queued = self.enqueue(id, fd, &bytes);
            done += queued;
            if queued < bytes.len() {
                break;
            }
        }
        let entry = self.entry_mut(id, libc::EPIPE)?;
        if done > 0 {
            let more = flags & libc::MSG_MORE != 0;
            entry
                .queue
                .finish(!more, flags & libc::MSG_EOR != 0 && done == wanted);
            let end = entry.queue.written;
            if zerocopy {
                entry.errors.zerocopy(end);
            }
            entry.errors.watch(end, entry.queue.sent);
        }
        if done < wanted {
            entry.no_space = true;
        }
        self.settle(id);
        // MSG_MORE is for this call: whatever comes next sends what it held back.
        let cork = self.get(fd)?.options.cork;
        if let Some(entry) = self.connections.get_mut(&id) {
            entry.connection.set_cork(cork);
        }
        if done == 0 && wanted > 0 {
            return Err(would_wait(nonblocking));
        }
        Ok(done)
    }

    /// Puts bytes into the write queue as `tcp_sendmsg_locked` does: the last
    /// packet is filled up, new ones begin while there is memory, and each full
    /// one may leave at once.
    fn enqueue(&mut self, id: ConnectionId, fd: Fd, bytes: &[u8]) -> usize {
        let offload = self.config.segmentation_offload;
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            if rest.is_empty() {
                return done;
            }
            let full = self.memory_is_full(id, fd);
            let Some(entry) = self.connections.get_mut(&id) else {
                return done;
            };
            let mss = entry.connection.info().send_mss;
            let mut room = entry.queue.tail_room(mss, offload);
            if room == 0 {
                if full {
                    return done;
                }
                entry.queue.begin();
                room = entry.queue.packet_room(mss, offload);
            }
            let length = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let part = rest.get(..length).unwrap_or_default();
            if let Some(part) = entry.queue.append(part)
                && entry.connection.write(part) != Ok(part.len())
            {
                // It has room for whatever Linux has memory for.
                return done;
            }
            done += length;
            // At the end of the call its last packet is pushed, full or not.
            if length as u64 == room && done < bytes.len() {
                entry.queue.filled();
                self.settle(id);
            }
        }
    }

    /// No memory for another packet (`sk_stream_memory_free`).
    fn memory_is_full(&self, id: ConnectionId, fd: Fd) -> bool {
        let Some(entry) = self.connections.get(&id) else {
            return true;
        };
        entry.queue.memory() >= self.memory_limit(entry)
            || entry.queue.not_sent() >= u64::from(self.notsent_lowat(Some(fd)))
    }

    /// Memory that a connection may use to send (`sk_sndbuf`).
    fn memory_limit(&self, entry: &Entry) -> u64 {
        let fixed = entry
            .fd
            .and_then(|fd| self.sockets.get(&fd))
            .map_or(0, |socket| socket.options.send_buffer);
        if fixed != 0 {
            return fixed.into();
        }
        // `tcp_sndbuf_expand`: two congestion windows of full packets.
        let info = entry.connection.info();
        let mss = u64::from(info.send_mss.max(1));
        let segments = u64::from(info.congestion_window) / mss;
        let wanted = 2 * segments.max(10) * (mss + 1280);
        let [_, first, most] = self.config.sysctl.send_memory.map(u64::from);
        wanted.min(most).max(first)
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

    /// Whether a third of the memory is free (`sk_stream_is_writeable`), and no
    /// more waits to be sent than `TCP_NOTSENT_LOWAT` allows.
    pub(super) fn is_writable(&self, id: ConnectionId) -> bool {
        let Some(entry) = self.connections.get(&id) else {
            return true;
        };
        let connection = &entry.connection;
        if connection.send_closed() || connection.has_error() {
            return true;
        }
        let (memory, limit) = (entry.queue.memory(), self.memory_limit(entry));
        let lowat = u64::from(self.notsent_lowat(entry.fd));
        limit.saturating_sub(memory) >= memory / 2 && entry.queue.not_sent() * 2 < lowat
    }
}

fn copy(pieces: [&[u8]; 2], buffer: &mut [u8]) {
    let bytes = pieces.into_iter().flatten();
    for (place, byte) in buffer.iter_mut().zip(bytes) {
        *place = *byte;
    }
}
