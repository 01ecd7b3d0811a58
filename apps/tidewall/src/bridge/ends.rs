//! A bridge's non-blocking connections: of frames, and of bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt;
use tidewall_acp::{FrameReader, FrameStream, FrameWriter};

use super::queue::Queue;

/// A connection's readiness, as the kernel reports it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    pub readable: bool,
    pub writable: bool,
    /// The other side has closed it, so the end follows the readable bytes.
    pub hung_up: bool,
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits for the kernel.
    Wait,
    /// It can do more at once.
    Again,
    /// It is over.
    Over,
}

/// A connection of frames.
#[derive(Debug)]
pub struct FrameEnd {
    reader: FrameReader<TcpStream>,
    writer: FrameWriter,
    /// The last read did not find the socket empty.
    readable: bool,
    /// No frame will arrive any more.
    ended: bool,
    /// The error, if the end was not orderly.
    failed: Option<String>,
}

impl FrameEnd {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        let (reader, writer) = FrameStream::new(stream)?.split();
        Ok(Self {
            reader,
            writer,
            readable: true,
            ended: false,
            failed: None,
        })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }

    pub fn frame_max(&self) -> io::Result<usize> {
        self.writer.frame_max()
    }

    pub const fn event(&mut self, event: Event) {
        self.readable |= event.readable;
    }

    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns why no frame arrives any more, if the end was not orderly.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Sends waiting frames; returns whether any bytes left.
    pub fn send(&mut self, frames: &mut Queue) -> Result<bool, String> {
        let mut moved = false;
        while !frames.is_empty() {
            match self.writer.send_frames(frames.as_slice()) {
                Ok(length) => frames.consume(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(said("sending frames")(error)),
            }
            moved = true;
        }
        match self.writer.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                Err(said("sending frames")(error))
            }
            _ => Ok(moved),
        }
    }

    /// Returns whether the kernel has accepted everything sent.
    pub const fn is_sent(&self) -> bool {
        !self.writer.has_rest()
    }

    /// Returns the payload of the next frame, if there is one.
    pub fn receive(&mut self) -> Option<&[u8]> {
        if !self.readable || self.ended {
            return None;
        }
        match self.reader.receive() {
            Ok(Some(payload)) => return Some(payload),
            Ok(None) => self.ended = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) => {
                self.ended = true;
                self.failed = Some(said("receiving frames")(error));
            }
        }
        None
    }

    /// Makes the socket send a reset when dropped, so the switch learns that the end was
    /// not orderly. A member's FIN would mean that its replies are whole.
    pub fn reset(&self) {
        // A socket that is already reset needs nothing.
        let _ = sockopt::set_socket_linger(self.reader.get_ref(), Some(Duration::ZERO));
    }
}

/// A connection of bytes.
#[derive(Debug)]
pub struct ByteEnd {
    plain: File,
    /// Bytes to be sent.
    pub queue: Queue,
    readable: bool,
    hung_up: bool,
    ended: bool,
}

impl ByteEnd {
    pub fn new(plain: File) -> Self {
        Self {
            plain,
            queue: Queue::default(),
            readable: true,
            hung_up: false,
            ended: false,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.plain.as_fd()
    }

    pub const fn event(&mut self, event: Event) {
        self.readable |= event.readable;
        self.hung_up |= event.hung_up;
    }

    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sends waiting bytes; returns whether any left.
    pub fn send(&mut self) -> Result<bool, String> {
        let mut moved = false;
        while !self.queue.is_empty() {
            match self.plain.write(self.queue.as_slice()) {
                Ok(length) => self.queue.consume(length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(said("sending")(error)),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Reads into `buffer`: an empty slice at the end, `None` if nothing is there now.
    pub fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, String> {
        while self.readable && !self.ended {
            match self.plain.read(buffer) {
                Ok(length) => {
                    self.ended = length == 0;
                    // A short read emptied the socket, and later bytes raise an event
                    // (epoll(7)). But an end that arrived before this read raises none
                    // any more.
                    self.readable = length == buffer.len() || self.hung_up;
                    return Ok(buffer.get(..length));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(said("receiving")(error)),
            }
        }
        Ok(None)
    }

    /// Returns whether there may be more to read.
    pub const fn is_readable(&self) -> bool {
        self.readable && !self.ended
    }
}

/// Returns whether connecting is over, once the kernel reports a socket as writable.
pub fn is_connected(socket: BorrowedFd<'_>) -> Result<bool, String> {
    match sockopt::socket_error(socket) {
        // A socket that never connected is writable, too.
        Ok(Ok(())) => Ok(rustix::net::getpeername(socket).is_ok()),
        Ok(Err(error)) | Err(error) => Err(said("connecting")(error.into())),
    }
}

pub fn said(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}
