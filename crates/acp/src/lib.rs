//! Frames (ACP, docs/acp.md) over a kernel TCP socket. For programs without their own
//! stack whose peer, or a switch on the path, speaks ACP.
//!
//! Lives here:
//! - [`FrameWriter`], which writes a frame so that the kernel's TCP keeps it in its own
//!   segment;
//! - [`FrameReader`], which finds frames in a stream of bytes;
//! - [`FrameStream`], which combines both.
//!
//! Does not live here: the format, which is `tidewall_wire::acp`, and sockets of a stack,
//! which are `tidewall_socket::AcpStream`.
//!
//! The kernel knows nothing of frames; the way they are written keeps them whole. Each
//! frame is written in one call with MSG_EOR, after which nothing joins its segment, and
//! with TCP_NODELAY. It is no longer than the connection's segments are now beside SACK
//! blocks. The operator must do the following, or a switch on the path sees cut frames:
//!
//! - Disable the device's segmentation (TSO, GSO) and the merging of received segments
//!   (GRO, LRO) on the path to the switch. They merge and cut segments at places other
//!   than frame boundaries.
//! - Use receive buffers of two segments or more. Linux probes a window that stays
//!   smaller than the next frame with a part of it, once per retransmission timeout.
//! - Keep the path's MTU from shrinking while frames are in transit.
//!
//! The kernel's SYN has no ACP option. A listener of a Tidewall stack accepts it with
//! `Framing::AcpUnconfirmed`; two ends of this kind accept each other without it.
//!
//! Read first: tcp(7), recv(2) and send(2) (MSG_EOR), `tidewall_wire::acp`.
#![forbid(unsafe_code)]

mod reader;
mod writer;

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use tidewall_sys::set_option;

pub use reader::FrameReader;
pub use writer::FrameWriter;

/// Both halves of a connection of frames over a kernel TCP socket.
///
/// It blocks as its socket does; see [`FrameReader::receive`] and [`FrameWriter::send`]
/// about a nonblocking one.
#[derive(Debug)]
pub struct FrameStream {
    reader: FrameReader<TcpStream>,
    writer: FrameWriter,
}

impl FrameStream {
    /// Connects. `maximum_segment` bounds segments of both directions, and so frames
    /// (TCP_MAXSEG, 88 to 32,767 bytes). With a switch on the path, it must be what every
    /// link behind the switch carries.
    ///
    /// # Errors
    /// The kernel's errors (ECONNREFUSED, ETIMEDOUT, EINVAL for a segment out of range);
    /// the last one of several addresses.
    pub fn connect(address: impl ToSocketAddrs, maximum_segment: Option<u16>) -> io::Result<Self> {
        let mut failed = io::Error::from(io::ErrorKind::InvalidInput);
        for address in address.to_socket_addrs()? {
            let family = if address.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            };
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            if let Some(bytes) = maximum_segment {
                limit_segments(&socket, bytes)?;
            }
            match connect(&socket, &address) {
                Ok(()) => return Self::new(TcpStream::from(socket)),
                Err(error) => failed = error.into(),
            }
        }
        Err(failed)
    }

    /// Takes a connection, accepted or otherwise made, on which nothing was sent or
    /// received yet.
    ///
    /// # Errors
    /// The kernel's errors about its options; ENFILE, EMFILE.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        let writer = FrameWriter::new(stream.try_clone()?)?;
        let reader = FrameReader::new(stream);
        Ok(Self { reader, writer })
    }

    /// The underlying socket, for waiting, queries and options.
    pub fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// As [`FrameReader::receive`].
    ///
    /// # Errors
    /// As [`FrameReader::receive`].
    pub fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        self.reader.receive()
    }

    /// As [`FrameWriter::send`].
    ///
    /// # Errors
    /// As [`FrameWriter::send`].
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.writer.send(payload)
    }

    /// As [`FrameWriter::frame_max`].
    ///
    /// # Errors
    /// As [`FrameWriter::frame_max`].
    pub fn frame_max(&self) -> io::Result<usize> {
        self.writer.frame_max()
    }

    /// The two halves, for two threads.
    pub fn split(self) -> (FrameReader<TcpStream>, FrameWriter) {
        (self.reader, self.writer)
    }
}

/// Bounds the segments of a socket that is not connected yet, or of those that a
/// listener accepts (TCP_MAXSEG).
///
/// # Errors
/// EINVAL for a value outside the kernel's range.
pub fn limit_segments(socket: &impl AsFd, bytes: u16) -> io::Result<()> {
    set_option(
        socket.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_MAXSEG,
        bytes.into(),
    )
}

/// Makes small segments leave at once (TCP_NODELAY).
fn send_at_once(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(stream, true)?)
}
