//! The queue interface over a link.

use std::io;
use std::os::fd::RawFd;

use crate::demux::DriverCounters;
use crate::frame::{Frame, FrameMemory};
use crate::queue::{
    Flushed, Interrupt, Offload, POLL_MAX, Pieces, Queue, Receive, Received, Transmit,
};

use super::{Link, Side};

/// Bytes below a packet that AF_XDP needs for an offload request
/// (`struct xsk_tx_metadata`). Required here too, so that code that works on this device
/// works there.
const TRANSMIT_HEADROOM: u16 = 24;

/// The parts of a queue beside the link.
pub(super) struct Parts {
    pub memory: FrameMemory,
    pub frames: Vec<Frame>,
    pub counters: DriverCounters,
    pub descriptor: RawFd,
    pub checksum_offload: bool,
    pub joins: bool,
}

impl Parts {
    pub(super) fn into_queue(self, link: Link, side: Side, queue: u32) -> Queue {
        let Parts {
            memory,
            frames,
            counters,
            descriptor,
            checksum_offload,
            joins,
        } = self;
        Queue {
            receive: Box::new(ReceiveHalf {
                link: link.clone(),
                side,
                queue,
                descriptor,
                joins,
            }),
            transmit: Box::new(TransmitHalf {
                link,
                side,
                queue,
                checksum_offload,
            }),
            memory,
            frames,
            counters,
        }
    }
}

struct ReceiveHalf {
    link: Link,
    side: Side,
    queue: u32,
    /// Owned by the link's state, which `link` keeps alive.
    descriptor: RawFd,
    /// Packets arrive in several frames.
    joins: bool,
}

impl Receive for ReceiveHalf {
    fn poll(&mut self, interrupt: Interrupt) -> io::Result<()> {
        self.link
            .state()
            .poll(self.side, self.queue, interrupt == Interrupt::Armed)
    }

    fn receive(&mut self, batch: &mut Vec<Received>, limit: usize) -> usize {
        let mut state = self.link.state();
        state
            .queue_mut(self.side, self.queue)
            .map_or(0, |queue| queue.receive(batch, limit))
    }

    fn fill(&mut self, frames: &mut Vec<Frame>) {
        if let Ok(queue) = self.link.state().queue_mut(self.side, self.queue) {
            queue.fill(frames);
        }
    }

    fn receives_ahead(&self) -> bool {
        false
    }

    fn pieces(&self) -> Pieces {
        if !self.joins {
            return Pieces::default();
        }
        let mut state = self.link.state();
        let queue = state.queue_mut(self.side, self.queue);
        queue.map_or_else(|_| Pieces::default(), |queue| queue.pieces())
    }

    fn waiting_limit(&self) -> u32 {
        let mut state = self.link.state();
        let queue = state.queue_mut(self.side, self.queue);
        queue.map_or(0, |queue| queue.waiting_limit())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.descriptor]
    }

    fn set_budget(&mut self, frames: u32) -> io::Result<()> {
        if !(1..=POLL_MAX).contains(&frames) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "budget must be 1 to 128",
            ));
        }
        self.link
            .state()
            .queue_mut(self.side, self.queue)?
            .set_budget(frames);
        Ok(())
    }
}

struct TransmitHalf {
    link: Link,
    side: Side,
    queue: u32,
    checksum_offload: bool,
}

impl Transmit for TransmitHalf {
    fn transmit(&mut self, frame: Frame, offload: Option<Offload>) -> Result<(), Frame> {
        let mut state = self.link.state();
        if state.ends.of(self.side).refuses {
            return Err(frame);
        }
        match state.queue_mut(self.side, self.queue) {
            Ok(queue) => queue.queue_transmit(frame, offload),
            Err(_) => Err(frame),
        }
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        let left = self
            .link
            .state()
            .flush(self.side, self.queue, self.checksum_offload)?;
        Ok(Flushed {
            left,
            full: left > 0,
            dropped: 0,
        })
    }

    fn reclaim(&mut self, frames: &mut Vec<Frame>) {
        if let Ok(queue) = self.link.state().queue_mut(self.side, self.queue) {
            queue.reclaim(frames);
        }
    }

    fn checksum_offload(&self) -> bool {
        self.checksum_offload
    }

    fn headroom(&self) -> u16 {
        TRANSMIT_HEADROOM
    }
}
