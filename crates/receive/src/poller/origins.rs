//! The return path of frames sent by another queue than their own.

use std::sync::Arc;

use tidewall_device::frame::Frame;

use super::Shared;
use crate::free::Chain;

/// The queues that receive into one frame memory. A frame's index tells which queue
/// received it ([`tidewall_device::frame::Part`]).
#[derive(Debug)]
pub struct Origins {
    /// Sorted by the first of their frames.
    queues: Box<[Arc<Shared>]>,
}

impl Origins {
    /// The origins of these queues, which must be all that pass received frames to each
    /// other.
    pub fn new(mut queues: Vec<Arc<Shared>>) -> Self {
        queues.sort_by_key(|queue| queue.first_frame);
        Origins {
            queues: queues.into(),
        }
    }

    /// Returns sent frames to the queues that received them. Their credit was returned
    /// when they were handed over.
    pub fn give_back(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut run: Option<(&Shared, Chain)> = None;
        for frame in frames {
            let Some(origin) = self.origin(frame.index()) else {
                continue;
            };
            let (queue, chain) = run.get_or_insert_with(|| (origin, Chain::default()));
            if !std::ptr::eq(*queue, origin) {
                queue.free.put_chain(&queue.slots, std::mem::take(chain));
                *queue = origin;
            }
            chain.add(&origin.slots, frame);
        }
        if let Some((queue, chain)) = run {
            queue.free.put_chain(&queue.slots, chain);
        }
    }

    fn origin(&self, frame: u32) -> Option<&Shared> {
        let after = self
            .queues
            .partition_point(|queue| queue.first_frame <= frame);
        let queue = self.queues.get(after.checked_sub(1)?)?;
        Some(queue)
    }
}
