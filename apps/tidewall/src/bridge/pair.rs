//! A member's connection to the switch, and the one to its server.

use std::fs::File;
use std::io;
use std::net::TcpStream;

use rustix::net::{Shutdown, shutdown};

use super::ends::{ByteEnd, Event, FrameEnd, Next, is_connected, said};
use super::member::Member;
use super::queue::{Messages, QUEUE_MAX, Queue};

/// Rounds of reading and sending before other connections have their turn.
pub const ROUNDS: usize = 16;
/// Frames per round.
pub const FRAMES: usize = 512;

/// Two connections; the one to the server may not be established yet.
#[derive(Debug)]
pub struct Pair {
    frames: FrameEnd,
    server: ByteEnd,
    member: Member,
    /// Frames to be sent, with their headers.
    replies: Queue,
    connecting: bool,
    shut: bool,
}

impl Pair {
    pub fn new(frames: TcpStream, server: File, messages: Messages) -> io::Result<Self> {
        let frames = FrameEnd::new(frames)?;
        Ok(Self {
            member: Member::new(messages, frames.frame_max()?),
            frames,
            server: ByteEnd::new(server),
            replies: Queue::default(),
            connecting: true,
            shut: false,
        })
    }

    pub const fn frames(&self) -> &FrameEnd {
        &self.frames
    }

    pub const fn server(&self) -> &ByteEnd {
        &self.server
    }

    pub const fn frames_event(&mut self, event: Event) {
        self.frames.event(event);
    }

    pub fn server_event(&mut self, event: Event) -> Result<(), String> {
        self.server.event(event);
        if self.connecting && event.writable {
            self.connecting = !is_connected(self.server.socket())?;
        }
        Ok(())
    }

    /// Reads and sends what there is, within bounds; `buffer` is scratch space for
    /// reading.
    pub fn turn(&mut self, buffer: &mut [u8]) -> Result<Next, String> {
        if self.connecting {
            return Ok(Next::Wait);
        }
        for _ in 0..ROUNDS {
            let mut moved = self.frames.send(&mut self.replies)?;
            moved |= self.server.send()?;
            moved |= self.receive()?;
            moved |= self.read(buffer)?;
            if self.is_over()? {
                return Ok(Next::Over);
            }
            if !moved {
                return Ok(Next::Wait);
            }
        }
        Ok(Next::Again)
    }

    fn receive(&mut self) -> Result<bool, String> {
        let ended = self.frames.has_ended();
        let mut moved = false;
        for _ in 0..FRAMES {
            if !self.member.wants_frames() || self.server.queue.len() >= QUEUE_MAX {
                break;
            }
            let Some(payload) = self.frames.receive() else {
                break;
            };
            self.member.frame(payload, &mut self.server.queue)?;
            moved = true;
        }
        Ok(moved || self.frames.has_ended() != ended)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        if self.replies.len() >= QUEUE_MAX {
            return Ok(false);
        }
        let Some(read) = self.server.read(buffer)? else {
            return Ok(false);
        };
        self.member.bytes(read, &mut self.replies)?;
        Ok(true)
    }

    /// Returns whether every request has been answered and both sides know.
    fn is_over(&mut self) -> Result<bool, String> {
        let frames_ended = self.frames.has_ended();
        let taken = self.server.queue.is_empty();
        if taken && let Some(what) = self.frames.failed() {
            return Err(what.to_owned());
        }
        if self.server.has_ended() {
            if frames_ended && self.member.is_idle() {
                return Ok(self.replies.is_empty() && self.frames.is_sent());
            }
            return Err("the server ended the connection".to_owned());
        }
        if frames_ended && taken && !self.shut {
            self.shut = true;
            shutdown(self.server.socket(), Shutdown::Write)
                .map_err(io::Error::from)
                .map_err(said("ending"))?;
        }
        Ok(false)
    }
}
