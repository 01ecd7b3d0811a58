//! Reading and writing.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use tidewall::tcp::{Notification, State as Phase};
use tidewall::{OpenFile, TcpStream};

use crate::address::{canonical, check_datagram_family, check_family, shown};
use crate::option::{Options, SYSCTL_FAST_OPEN_CLIENT, Stamps};
use crate::socket::{Socket, stream_of};
use crate::{ControlMessage, Errno, ExtendedError, Posix, Received, Result, errno, lock};

/// Flags of a sending call that have an effect here; others are ignored.
const SEND_FLAGS: i32 =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_ZEROCOPY;
/// Flags of a call that sends a datagram.
const DATAGRAM_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Flags of a receiving call.
const RECEIVE_FLAGS: i32 =
    libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC;

impl Posix {
    /// `recvmsg(2)`, and through it `recv`, `recvfrom`, `readv` and `read`: MSG_DONTWAIT,
    /// MSG_PEEK, MSG_WAITALL, MSG_TRUNC and MSG_ERRQUEUE. On SOCK_SEQPACKET it receives
    /// one frame. `msg_flags` then has MSG_EOR, which the end of stream lacks, and
    /// MSG_TRUNC if the buffers were shorter.
    ///
    /// # Errors
    /// ENOTCONN, EAGAIN, EINTR, the error that ended the connection; EAGAIN for an empty
    /// error queue.
    pub fn recvmsg(&self, fd: i32, buffers: &mut [IoSliceMut<'_>], flags: i32) -> Result<Received> {
        let file = self.file(fd)?;
        let Ok(socket) = self.socket_of(fd) else {
            return receive(&file, buffers, flags);
        };
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_error(&file, &socket);
        }
        let Some(stream) = stream_of(&file) else {
            return match &*file {
                OpenFile::Datagram(datagrams) => {
                    self.receive_datagram(datagrams, &socket, buffers, flags)
                }
                OpenFile::Kernel(_) if !socket.is_udp() => Err(socket.take_reset()),
                _ => receive(&file, buffers, flags & RECEIVE_FLAGS).map(|received| Received {
                    from: received.from.map(|from| shown(from, socket.domain)),
                    ..received
                }),
            };
        };
        if flags & libc::MSG_OOB != 0 {
            // Urgent data is received in line.
            return Err(Errno(libc::EINVAL));
        }
        if !stream.is_framed() && buffers.iter().all(|buffer| buffer.is_empty()) {
            // Waits for data, and leaves it in the queue.
            let peeking = flags & libc::MSG_DONTWAIT | libc::MSG_PEEK;
            receive(&file, &mut [IoSliceMut::new(&mut [0])], peeking)?;
            return Ok(Received::default());
        }
        if stream.awaits_first_write() && does_not_wait(&file, flags)? {
            // Reading would make the SYN leave without data.
            return Err(Errno(libc::EAGAIN));
        }
        let mut received = if stream.is_framed() {
            receive_frame(stream, buffers, flags)?
        } else {
            receive(&file, buffers, flags & RECEIVE_FLAGS)?
        };
        received.from = None;
        let (inquires, timestamping, stamps) = {
            let Options {
                inquires,
                timestamping,
                stamps,
                ..
            } = lock(&socket.state).options;
            (inquires, timestamping, stamps)
        };
        if inquires && let Some((left, end)) = stream.unread() {
            received.left = Some(left + u32::from(end && left == 0));
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let asks = timestamping & libc::SOF_TIMESTAMPING_SOFTWARE != 0;
        if (asks || stamps != Stamps::None) && received.bytes > 0 && !peek {
            let at = stream.read_timestamp().map_err(errno)?;
            let arrived = at.map(|at| self.config.epoch + self.stack().age_at(at));
            let stamp = arrived.and_then(|it| ControlMessage::stamp(stamps, it));
            received.packet.extend(stamp);
            received.arrived = arrived.filter(|_| asks);
        }
        Ok(received)
    }

    /// Reads the error queue: never waits, and returns no data. A packet is never looped
    /// back. Without `OPT_TSONLY`, which requests no packet, MSG_TRUNC reports that all
    /// of it was cut off.
    fn receive_error(&self, file: &OpenFile, socket: &Socket) -> Result<Received> {
        let empty = Errno(libc::EAGAIN);
        let stream = stream_of(file).ok_or(empty)?;
        let notification = stream.take_notification().map_err(errno)?.ok_or(empty)?;
        let v6 = socket.domain == libc::AF_INET6;
        let error = ExtendedError::of(&notification, v6).ok_or(empty)?;
        let mut received = Received {
            flags: libc::MSG_ERRQUEUE,
            error: Some(error),
            ..Received::default()
        };
        if let Notification::Time { at, .. } = notification {
            let flags = lock(&socket.state).options.timestamping;
            if flags & libc::SOF_TIMESTAMPING_OPT_TSONLY == 0 {
                received.flags |= libc::MSG_TRUNC;
            }
            if flags & libc::SOF_TIMESTAMPING_SOFTWARE != 0 {
                received.arrived = Some(self.config.epoch + self.stack().age_at(at));
            }
        }
        Ok(received)
    }

    /// `recv(2)`; `read` is the same without flags.
    ///
    /// # Errors
    /// Those of [`Posix::recvmsg`].
    pub fn recv(&self, fd: i32, buffer: &mut [u8], flags: i32) -> Result<usize> {
        let received = self.recvmsg(fd, &mut [IoSliceMut::new(buffer)], flags)?;
        Ok(received.bytes)
    }

    /// `sendmsg(2)`, and through it `send`, `sendto`, `writev` and `write`: MSG_DONTWAIT,
    /// MSG_MORE, MSG_EOR, MSG_ZEROCOPY and MSG_FASTOPEN; other flags are ignored. An
    /// address is a datagram's destination or, with MSG_FASTOPEN, the one to connect to.
    ///
    /// # Errors
    /// EPIPE without a connection or after `shutdown`, EAGAIN, EINTR, the error that ended the
    /// connection; EMSGSIZE for a frame longer than a segment. With MSG_FASTOPEN also those of
    /// [`Posix::connect`], and EOPNOTSUPP if `tcp_fastopen` does not allow it.
    pub fn sendmsg(
        &self,
        fd: i32,
        buffers: &[IoSlice<'_>],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        let file = self.file(fd)?;
        let Ok(socket) = self.socket_of(fd) else {
            return file.send(buffers, to, flags).map_err(errno);
        };
        if socket.is_atm() {
            return match &*file {
                OpenFile::Kernel(_) => Err(Errno(libc::ENOTCONN)),
                file => file.send(buffers, to, flags & SEND_FLAGS).map_err(errno),
            };
        }
        if socket.is_udp() {
            if let Some(to) = to {
                check_datagram_family(to, socket.domain)?;
            }
            if flags & libc::MSG_OOB != 0 {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if matches!(&*file, OpenFile::Kernel(_)) {
                let to = to.ok_or(Errno(libc::EDESTADDRREQ))?;
                let any = crate::address::wildcard(socket.domain);
                self.bind(fd, SocketAddr::new(any, 0))?;
                let file = self.file(fd)?;
                return send_datagram(&file, &socket, buffers, flags, Some(to));
            }
            return send_datagram(&file, &socket, buffers, flags, to);
        }
        if flags & libc::MSG_FASTOPEN != 0 {
            drop(file);
            return self.send_fast(fd, &socket, buffers, flags, to);
        }
        match &*file {
            OpenFile::Stream(stream) if stream.awaits_first_write() => {
                drop(file);
                self.send_with_syn(fd, &socket, buffers, flags)
            }
            OpenFile::Stream(_) => file.send(buffers, None, flags & SEND_FLAGS).map_err(errno),
            _ => Err(Errno(libc::EPIPE)),
        }
    }

    /// Sends bytes of a file as long as neither the file nor the socket blocks. This is
    /// the part of `sendfile(2)` without a copy outside the send buffer
    /// ([`TcpStream::send_file`]).
    ///
    /// # Errors
    /// EAGAIN without room in the send buffer; EOPNOTSUPP if the caller has to read the
    /// file itself and send the bytes; the error that ended the connection.
    pub fn send_file(
        &self,
        fd: i32,
        file: impl AsFd,
        offset: u64,
        count: usize,
        flags: i32,
    ) -> Result<usize> {
        match &*self.file(fd)? {
            OpenFile::Stream(stream) => {
                let sent = stream.send_file(file, offset, count, flags & libc::MSG_MORE != 0);
                sent.map_err(|error| match error.kind() {
                    std::io::ErrorKind::Unsupported => Errno(libc::EOPNOTSUPP),
                    _ => errno(error),
                })
            }
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// `send(2)`; `write` is the same without flags.
    ///
    /// # Errors
    /// Those of [`Posix::sendmsg`].
    pub fn send(&self, fd: i32, bytes: &[u8], flags: i32) -> Result<usize> {
        self.sendmsg(fd, &[IoSlice::new(bytes)], flags, None)
    }

    /// Writes with MSG_FASTOPEN, which begins the connection.
    fn send_fast(
        &self,
        fd: i32,
        socket: &Socket,
        buffers: &[IoSlice<'_>],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        if self.stack().sysctl().fast_open & SYSCTL_FAST_OPEN_CLIENT == 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let file = self.file(fd)?;
        match &*file {
            OpenFile::Kernel(_) => {
                let to = to.ok_or(Errno(libc::EOPNOTSUPP))?;
                check_family(to, socket.domain)?;
                self.begin_connect(fd, socket, to, true)?;
            }
            OpenFile::Stream(stream) if stream.awaits_first_write() => {}
            OpenFile::Stream(_) if lock(&socket.state).connecting => {
                // Once the handshake is complete, this is an ordinary write.
                let wait = if does_not_wait(&file, flags)? { 0 } else { -1 };
                self.finish_connect(fd, socket, wait)?;
                return file.send(buffers, None, flags & SEND_FLAGS).map_err(errno);
            }
            _ => return Err(Errno(libc::EISCONN)),
        }
        drop(file);
        self.send_with_syn(fd, socket, buffers, flags)
    }

    /// Sends the SYN of a connection with as many of the bytes as fit. A blocking call
    /// waits until the handshake is complete and all bytes are written.
    fn send_with_syn(
        &self,
        fd: i32,
        socket: &Socket,
        buffers: &[IoSlice<'_>],
        flags: i32,
    ) -> Result<usize> {
        let file = self.file(fd)?;
        let stream = stream_of(&file).ok_or(Errno(libc::EPIPE))?;
        let flags = flags & SEND_FLAGS;
        if does_not_wait(&file, flags)? {
            return match file.send(buffers, None, flags).map_err(errno) {
                Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
                Ok(0) if is_opening(stream) => Err(Errno(libc::EINPROGRESS)),
                sent => sent,
            };
        }
        let sent = file.send(buffers, None, flags).map_err(errno);
        if is_opening(stream) {
            self.finish_connect(fd, socket, -1)?;
        }
        sent
    }
}

/// Sends a datagram. With MSG_MORE the bytes wait for the call that completes the datagram. The
/// kernel socket joins them, so it sends the whole datagram.
fn send_datagram(
    file: &OpenFile,
    socket: &Socket,
    buffers: &[IoSlice<'_>],
    flags: i32,
    to: Option<SocketAddr>,
) -> Result<usize> {
    let to = to.map(canonical);
    let (more, is_begun) = (flags & libc::MSG_MORE, socket.has_begun_datagram());
    let OpenFile::Datagram(datagrams) = file else {
        return file
            .send(buffers, to, flags & DATAGRAM_FLAGS)
            .map_err(errno);
    };
    if more == 0 && !is_begun {
        return file
            .send(buffers, to, flags & DATAGRAM_FLAGS)
            .map_err(errno);
    }
    let sent = datagrams.send_by_kernel(buffers, to, more).map_err(errno);
    // The kernel drops a begun datagram on an error.
    socket.note_begun_datagram(more != 0 && sent.is_ok());
    sent
}

fn is_opening(stream: &TcpStream) -> bool {
    let info = stream.info();
    info.is_some_and(|info| matches!(info.state, Phase::SynSent | Phase::SynReceived))
}

fn does_not_wait(file: &OpenFile, flags: i32) -> Result<bool> {
    Ok(flags & libc::MSG_DONTWAIT != 0 || file.is_nonblocking().map_err(errno)?)
}

/// Receives a frame, whose end MSG_EOR marks. At the end of the stream there is no
/// MSG_EOR, and no bytes either.
fn receive_frame(
    stream: &TcpStream,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> Result<Received> {
    let Some(frame) = stream.receive_frame(buffers, flags).map_err(errno)? else {
        return Ok(Received::default());
    };
    let mut received = Received {
        bytes: frame.copied,
        flags: libc::MSG_EOR,
        ..Received::default()
    };
    if frame.copied < frame.length {
        received.flags |= libc::MSG_TRUNC;
    }
    if flags & libc::MSG_TRUNC != 0 {
        received.bytes = frame.length;
    }
    Ok(received)
}

fn receive(file: &OpenFile, buffers: &mut [IoSliceMut<'_>], flags: i32) -> Result<Received> {
    let (bytes, from) = file.receive(buffers, flags).map_err(errno)?;
    Ok(Received {
        bytes,
        from,
        ..Received::default()
    })
}
