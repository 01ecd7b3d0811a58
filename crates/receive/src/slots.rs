//! Per-frame bookkeeping shared by the free stack and the channels of a queue.

use crate::sync::{AtomicU32, Ordering};

/// No frame.
pub(crate) const NIL: u32 = u32::MAX;

/// One link and one extent per frame, plus one link per channel (its stub, see
/// [`crate::channel`]). A frame is in at most one list at a time, so one link is enough.
/// A channel costs no memory for the frames that it may hold.
#[derive(Debug)]
pub struct Slots {
    links: Box<[AtomicU32]>,
    extents: Box<[AtomicU32]>,
}

impl Slots {
    /// Bookkeeping for `frames` frames and `channels` channels.
    pub fn new(frames: u32, channels: u32) -> Self {
        let word = |value| move |_| AtomicU32::new(value);
        Slots {
            links: (0..frames + channels).map(word(NIL)).collect(),
            extents: (0..frames).map(word(0)).collect(),
        }
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.extents.len() as u32
    }

    pub(crate) fn next(&self, node: u32, order: Ordering) -> u32 {
        self.links
            .get(node as usize)
            .map_or(NIL, |link| link.load(order))
    }

    pub(crate) fn set_next(&self, node: u32, next: u32, order: Ordering) {
        if let Some(link) = self.links.get(node as usize) {
            link.store(next, order);
        }
    }

    pub(crate) fn extent(&self, frame: u32) -> (u16, u16) {
        let packed = self
            .extents
            .get(frame as usize)
            .map_or(0, |e| e.load(Ordering::Relaxed));
        ((packed >> 16) as u16, packed as u16)
    }

    pub(crate) fn set_extent(&self, frame: u32, offset: u16, length: u16) {
        if let Some(extent) = self.extents.get(frame as usize) {
            extent.store(
                u32::from(offset) << 16 | u32::from(length),
                Ordering::Relaxed,
            );
        }
    }
}
