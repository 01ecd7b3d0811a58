//! Streams as the standard library's readers and writers.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use tidewall_protocol::tcp::SendFlags;

use super::{Inner, TcpStream};

/// # Errors
/// EAGAIN when nonblocking or at the timeout, ECONNRESET, ETIMEDOUT, EINTR, and
/// what ICMP reported while nothing came.
impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.inner {
            Inner::Kernel(kernel) => (&kernel.stream).read(buffer),
            Inner::Own { connection, .. } => {
                self.receive(connection, &mut |state| state.connection.read(buffer))
            }
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.inner {
            Inner::Kernel(kernel) => (&kernel.stream).read_vectored(buffers),
            Inner::Own { connection, .. } => self.receive(connection, &mut |state| {
                let mut taken = 0;
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
            }),
        }
    }
}

/// # Errors
/// EAGAIN when nonblocking or at the timeout, EPIPE, ECONNRESET, ETIMEDOUT,
/// EINTR.
impl Write for &TcpStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match &self.inner {
            Inner::Kernel(kernel) => (&kernel.stream).write(buffer),
            Inner::Own { connection, .. } => {
                self.send(connection, &[IoSlice::new(buffer)], SendFlags::default())
            }
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.inner {
            Inner::Kernel(kernel) => (&kernel.stream).write_vectored(buffers),
            Inner::Own { connection, .. } => self.send(connection, buffers, SendFlags::default()),
        }
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
