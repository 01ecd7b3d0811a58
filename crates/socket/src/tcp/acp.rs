//! Message sockets: connections that carry frames (ACP, docs/acp.md), with the semantics
//! of SOCK_SEQPACKET. They are [`TcpStream`]s and [`TcpListener`]s that carry whole
//! frames only.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use tidewall_stack::StackHandle;

#[cfg(doc)]
use super::Framing;
use super::stream::ReceivedFrame;
use super::{ConnectOptions, ListenOptions, TcpListener, TcpStream};
use crate::pieces::{MSG_MORE, MSG_PEEK};

/// A connection of frames.
///
/// A frame arrives whole or not at all, once, and in order. [`TcpStream::frame_max`]
/// bounds its length. Waiting, options, addresses and shutdown are those of
/// [`AcpStream::stream`]. It is readable once a whole frame has arrived, and writable
/// while the longest frame fits.
#[derive(Debug)]
pub struct AcpStream {
    stream: TcpStream,
}

impl AcpStream {
    /// The connection beneath.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Connects, and waits until the peer has answered.
    ///
    /// # Errors
    /// Those of [`TcpStream::connect`]. EPROTONOSUPPORT for a peer that does not support
    /// ACP, and for one that only the kernel reaches: on this host, or not by the stack's
    /// interface.
    pub fn connect(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(stack, address, &ConnectOptions::default())
    }

    /// As [`AcpStream::connect`], with options; [`Framing::Stream`] is treated as
    /// [`Framing::Acp`].
    ///
    /// # Errors
    /// Those of [`AcpStream::connect`] and [`TcpStream::connect_with`].
    pub fn connect_with(
        stack: &StackHandle,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_with(stack, address, &framed(options))?;
        Ok(Self { stream })
    }

    /// As [`TcpStream::connect_nonblocking_with`].
    ///
    /// # Errors
    /// Those of [`AcpStream::connect_with`] that are known at once.
    pub fn connect_nonblocking_with(
        stack: &StackHandle,
        address: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_nonblocking_with(stack, address, &framed(options))?;
        Ok(Self { stream })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// - EMSGSIZE for more than [`TcpStream::frame_max`] bytes. It also ends the
    ///   connection, when an accepted frame is longer than what the path carries by now.
    /// - EAGAIN when nonblocking, or at the timeout, without room for the whole frame.
    /// - EPIPE, ECONNRESET, ETIMEDOUT, EINTR.
    pub fn send(&self, payload: &[u8]) -> io::Result<()> {
        self.send_vectored(&[IoSlice::new(payload)])
    }

    /// As [`AcpStream::send`], for a frame in several pieces.
    ///
    /// # Errors
    /// As [`AcpStream::send`].
    pub fn send_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.stream.send_pieces(pieces, 0).map(drop)
    }

    /// As [`AcpStream::send`], when another frame follows at once: both may share a
    /// segment.
    ///
    /// # Errors
    /// As [`AcpStream::send`].
    pub fn send_more(&self, payload: &[u8]) -> io::Result<()> {
        let piece = [IoSlice::new(payload)];
        self.stream.send_pieces(&piece, MSG_MORE).map(drop)
    }

    /// Receives a frame. Bytes that do not fit `buffer` are lost, and
    /// [`ReceivedFrame::length`] reports the full length. `None` means that the peer
    /// sends no more.
    ///
    /// # Errors
    /// EAGAIN when nonblocking, or at the timeout, without a whole frame; EPROTO once the
    /// received bytes are no frame; otherwise those of [`std::io::Read::read`] of
    /// [`TcpStream`].
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<ReceivedFrame>> {
        self.stream.receive_frame(&mut [IoSliceMut::new(buffer)], 0)
    }

    /// As [`AcpStream::receive`]; the next call returns the same frame.
    ///
    /// # Errors
    /// As [`AcpStream::receive`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<Option<ReceivedFrame>> {
        let mut buffers = [IoSliceMut::new(buffer)];
        self.stream.receive_frame(&mut buffers, MSG_PEEK)
    }

    /// Returns the connection, for waiting, queries and options. Reads and writes on it
    /// also transfer whole frames.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

fn framed(options: &ConnectOptions) -> ConnectOptions {
    let mut options = *options;
    options.stream.framing = options.stream.framing.or_acp();
    options
}

/// A listener for connections of frames.
///
/// Peers of this host, which a [`TcpListener`] accepts from the kernel, are reset: the
/// kernel's TCP does not keep frames whole.
#[derive(Debug)]
pub struct AcpListener {
    listener: TcpListener,
}

impl AcpListener {
    /// Returns the underlying listener.
    pub fn into_listener(self) -> TcpListener {
        self.listener
    }

    /// Listens; SYNs that do not request ACP are answered with RST.
    ///
    /// # Errors
    /// As [`TcpListener::bind`].
    pub fn bind(stack: &StackHandle, address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(stack, address, ListenOptions::default())
    }

    /// As [`AcpListener::bind`], with options. [`Framing::Stream`] is treated as
    /// [`Framing::Acp`]. [`Framing::AcpUnconfirmed`] also accepts peers that run ACP over
    /// kernel TCP, which cannot request it. There is no Fast Open.
    ///
    /// # Errors
    /// As [`TcpListener::bind_with`].
    pub fn bind_with(
        stack: &StackHandle,
        address: SocketAddr,
        mut options: ListenOptions,
    ) -> io::Result<Self> {
        options.stream.framing = options.stream.framing.or_acp();
        let listener = TcpListener::bind_with(stack, address, options)?;
        Ok(Self { listener })
    }

    /// Accepts a connection. Returns it and its peer's address.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    pub fn accept(&self) -> io::Result<(AcpStream, SocketAddr)> {
        let (stream, peer) = self.listener.accept()?;
        Ok((AcpStream { stream }, peer))
    }

    /// Returns the listener, for waiting, queries and options.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }
}
