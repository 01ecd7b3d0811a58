//! The return path: frames that receivers are done with, until the next poll puts them
//! into the fill ring.

use tidewall_device::frame::Frame;

use crate::raw;
use crate::slots::{NIL, Slots};
use crate::sync::{AtomicU32, Ordering};

/// Unused frames. Any thread adds frames. The queue's single poller takes all of them out
/// at once, so the stack never meets the ABA problem.
#[derive(Debug)]
pub struct FreeStack {
    top: AtomicU32,
}

impl Default for FreeStack {
    fn default() -> Self {
        FreeStack {
            top: AtomicU32::new(NIL),
        }
    }
}

impl FreeStack {
    /// Puts one frame in.
    pub fn put(&self, slots: &Slots, frame: Frame) {
        let mut chain = Chain::default();
        chain.add(slots, frame);
        self.put_chain(slots, chain);
    }

    /// Puts a whole chain in with one atomic operation.
    pub fn put_chain(&self, slots: &Slots, chain: Chain) {
        if chain.first == NIL {
            return;
        }
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            slots.set_next(chain.last, top, Ordering::Relaxed);
            // Release: the links below the new top must be seen by the taker.
            match self.top.compare_exchange_weak(
                top,
                chain.first,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes every frame out, appending to `frames`.
    pub fn take_all(&self, slots: &Slots, frames: &mut Vec<Frame>) {
        if self.top.load(Ordering::Relaxed) == NIL {
            return;
        }
        let mut node = self.top.swap(NIL, Ordering::Acquire);
        while node != NIL {
            let next = slots.next(node, Ordering::Relaxed);
            frames.push(raw::retrieve(slots, node));
            node = next;
        }
    }
}

/// Frames linked together before they are put into the stack.
#[derive(Debug)]
pub struct Chain {
    first: u32,
    last: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Chain {
            first: NIL,
            last: NIL,
        }
    }
}

impl Chain {
    /// Adds one frame.
    pub fn add(&mut self, slots: &Slots, frame: Frame) {
        let node = raw::store(slots, frame);
        slots.set_next(node, self.first, Ordering::Relaxed);
        if self.first == NIL {
            self.last = node;
        }
        self.first = node;
    }
}
