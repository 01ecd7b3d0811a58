//! The member side: requests out of frames to a server, its replies into frames.

use std::collections::VecDeque;

use super::queue::{Header, Messages, QUEUE_MAX, Queue, Scanner, push_frames};

/// Requests that a server has not answered; beyond this, no frame is read.
const OUTSTANDING_MAX: usize = 16 << 10;

/// A peer's connection to one server, which answers in the order of the requests.
#[derive(Debug)]
pub struct Member {
    frame_max: usize,
    scanner: Scanner,
    /// Unanswered requests, oldest first.
    ids: VecDeque<u32>,
    /// The unfinished request, and the offset at which it continues.
    unfinished: Option<(u32, u32)>,
    /// Offset at which the oldest request's reply continues.
    offset: Option<u32>,
}

impl Member {
    pub const fn new(messages: Messages, frame_max: usize) -> Self {
        Self {
            frame_max,
            scanner: Scanner::new(messages),
            ids: VecDeque::new(),
            unfinished: None,
            offset: None,
        }
    }

    /// Returns whether nothing is owed to the peer.
    pub fn is_idle(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn wants_frames(&self) -> bool {
        self.ids.len() < OUTSTANDING_MAX
    }

    /// Accepts a frame from the switch and passes its bytes to the server. Returns an
    /// error for a frame that does not follow its predecessor: the missing one went to
    /// another member.
    pub fn frame(&mut self, payload: &[u8], server: &mut Queue) -> Result<(), String> {
        let (header, bytes) = Header::parse(payload).ok_or("a frame without a bridge's header")?;
        if header.offset.map(|offset| (header.id, offset)) != self.unfinished {
            return Err("a request has parts at another member: members have changed".to_owned());
        }
        server.push(bytes);
        let next = header.next_offset(bytes.len());
        self.unfinished = next.map(|offset| (header.id, offset));
        if header.last {
            self.ids.push_back(header.id);
        }
        Ok(())
    }

    /// Accepts bytes that the server has answered.
    pub fn bytes(&mut self, mut bytes: &[u8], frames: &mut Queue) -> Result<(), String> {
        while !bytes.is_empty() {
            let id = *self.ids.front().ok_or("the server answers unasked")?;
            let (taken, ended) = self.scanner.scan(bytes)?;
            let (now, later) = bytes.split_at(taken.min(bytes.len()));
            bytes = later;
            let offset = &mut self.offset;
            if !push_frames(frames, self.frame_max, id, offset, ended, &[], now) {
                return Err("segments have no room for a frame".to_owned());
            }
            if ended {
                self.ids.pop_front();
                if self.ids.is_empty() {
                    self.ids.shrink_to(QUEUE_MAX / 64);
                }
            }
        }
        Ok(())
    }
}
