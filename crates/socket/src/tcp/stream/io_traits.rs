//! Streams as the standard library's readers and writers.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use tidewall_protocol::tcp::SendFlags;
use tidewall_stack::kernel_calls;

use super::{Inner, Sending, TcpStream};

/// # Errors
/// EAGAIN when nonblocking or at the timeout, ECONNRESET, ETIMEDOUT, EINTR, and ICMP
/// errors while no data arrived.
impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_pieces(&mut [IoSliceMut::new(buffer)], 0)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive_pieces(buffers, 0)
    }
}

impl TcpStream {
    /// Receives into several buffers (one frame, on a connection of frames), with flags of
    /// `recvmsg`: MSG_DONTWAIT, MSG_PEEK and MSG_TRUNC (bytes are dropped). Others apply to the
    /// kernel.
    pub fn receive_pieces(&self, buffers: &mut [IoSliceMut<'_>], flags: i32) -> io::Result<usize> {
        let connection = match &self.inner {
            Inner::Kernel(kernel) => {
                let received = kernel_calls::receive(&kernel.stream, buffers, flags);
                return received.map(|(length, _)| length);
            }
            Inner::Own(connection) => connection,
        };
        if connection.is_framed() {
            let received = self.receive_frame(buffers, flags)?;
            return Ok(received.map_or(0, |frame| frame.returned(flags)));
        }
        let at_once = flags & libc::MSG_DONTWAIT != 0;
        if flags & libc::MSG_PEEK != 0 {
            return self.peek_own(connection, buffers, at_once);
        }
        let truncate = flags & libc::MSG_TRUNC != 0;
        self.receive(connection, at_once, &mut |state| {
            let mut taken = 0;
            if truncate {
                let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                let there: usize = state.connection.received().iter().map(|it| it.len()).sum();
                if there > 0 || wanted == 0 {
                    let dropped = wanted.min(there);
                    state.connection.consume(dropped);
                    return Ok(dropped);
                }
            }
            for buffer in buffers.iter_mut().filter(|buffer| !buffer.is_empty()) {
                match state.connection.read(buffer) {
                    Ok(length) => {
                        taken += length;
                        if length < buffer.len() {
                            break;
                        }
                    }
                    Err(errno) if taken == 0 => return Err(errno),
                    Err(_) => break,
                }
            }
            Ok(taken)
        })
    }

    /// Sends several buffers, with flags of `sendmsg`: MSG_DONTWAIT, MSG_MORE, MSG_EOR
    /// and MSG_ZEROCOPY; others apply to the kernel.
    pub fn send_pieces(&self, buffers: &[IoSlice<'_>], flags: i32) -> io::Result<usize> {
        match &self.inner {
            Inner::Kernel(kernel) => kernel_calls::send(&kernel.stream, buffers, None, flags),
            Inner::Own(connection) => {
                let has = |flag| flags & flag != 0;
                let sending = Sending {
                    flags: SendFlags {
                        more: has(libc::MSG_MORE),
                        record: has(libc::MSG_EOR),
                    },
                    zero_copy: has(libc::MSG_ZEROCOPY),
                    at_once: has(libc::MSG_DONTWAIT),
                };
                self.send(connection, buffers, sending)
            }
        }
    }
}

/// # Errors
/// EAGAIN when nonblocking or at the timeout, EPIPE, ECONNRESET, ETIMEDOUT,
/// EINTR.
impl Write for &TcpStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send_pieces(&[IoSlice::new(buffer)], 0)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_pieces(buffers, 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
