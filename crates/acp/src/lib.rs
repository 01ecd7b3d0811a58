//! Frames (ACP, docs/acp.md) over a kernel's TCP socket: for programs whose peer, or a
//! switch on the way, speaks ACP, and which have no stack of their own.
//!
//! Lives here: writing a frame so that the kernel's TCP keeps it in a segment of its
//! own ([`FrameWriter`]), finding frames in a stream of bytes ([`FrameReader`]), both
//! together ([`FrameStream`]). Does not live here: the format, which is
//! `tidewall_wire::acp`, and sockets of a stack, which are `tidewall_socket::AcpStream`.
//!
//! The kernel knows nothing of frames; what keeps them whole is how they are written: each
//! in one call with MSG_EOR, behind which nothing joins its segment, with TCP_NODELAY,
//! and no longer than the segments of the connection are now beside SACK blocks. What is left to the
//! operator, and what a switch on the way sees if it is not done:
//!
//! - The device's segmentation (TSO, GSO) and the merging of what is received (GRO,
//!   LRO) merge and cut segments at other places than frames: off, on the switch's way.
//! - A window that stays smaller than the next frame is probed by Linux with a part of
//!   it, once for each retransmission timeout: receive buffers are to be two segments or
//!   more.
//! - The path's MTU is not to become less while frames are on their way.
//!
//! The kernel's SYN has no ACP option. A listener of a Tidewall stack takes it with
//! `Framing::AcpUnconfirmed`; ends of this kind take each other for what they are.
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

/// A connection of frames over a kernel's TCP: both of its halves.
///
/// It waits as its socket does; see [`FrameReader::receive`] and [`FrameWriter::send`]
/// about a nonblocking one.
#[derive(Debug)]
pub struct FrameStream {
    reader: FrameReader<TcpStream>,
    writer: FrameWriter,
}

impl FrameStream {
    /// Connects. `maximum_segment` bounds segments of both directions, and so frames
    /// (TCP_MAXSEG, 88 to 32,767 bytes): where a switch lies on the way, to what every
    /// link behind it carries.
    ///
    /// # Errors
    /// What the kernel reports (ECONNREFUSED, ETIMEDOUT, EINVAL for a segment out of
    /// range); the last one of several addresses.
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

    /// Takes a connection, accepted or otherwise made, over which nothing was sent or
    /// received yet.
    ///
    /// # Errors
    /// What the kernel reports of its options; ENFILE, EMFILE.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        let writer = FrameWriter::new(stream.try_clone()?)?;
        let reader = FrameReader::new(stream);
        Ok(Self { reader, writer })
    }

    /// The connection, to be waited for, asked and set.
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
/// EINVAL for a number that is out of the kernel's range.
pub fn limit_segments(socket: &impl AsFd, bytes: u16) -> io::Result<()> {
    set_option(
        socket.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_MAXSEG,
        bytes.into(),
    )
}

/// Has small segments leave at once (TCP_NODELAY).
fn send_at_once(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(stream, true)?)
}
