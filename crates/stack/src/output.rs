//! Pending output: the number of sockets with something to send, and the devices with
//! frames that they have not been asked to send yet.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The pending output of a stack.
#[derive(Debug, Default)]
pub struct Output {
    /// Sockets that have something, kept by their protocols.
    sockets: AtomicUsize,
    /// Queues with frames whose device has not been notified, or did not accept them, as
    /// bits.
    doorbells: AtomicU32,
}

impl Output {
    /// Sets how many sockets have something to send.
    pub fn set_sockets(&self, sockets: usize) {
        self.sockets.store(sockets, Ordering::SeqCst);
    }

    /// Sockets that have something to send.
    #[inline]
    pub fn sockets(&self) -> usize {
        self.sockets.load(Ordering::SeqCst)
    }

    /// Records that a queue has frames that its device does not know.
    #[inline]
    pub fn ring_doorbell(&self, queue: usize) {
        self.doorbells
            .fetch_or(1 << (queue % 32), Ordering::Relaxed);
    }

    /// Returns true when a thread must act: sockets have something to send, or a device
    /// must accept frames that it did not accept before.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.sockets() > 0 || self.is_held_up()
    }

    /// Returns true while frames wait that a device did not accept.
    #[inline]
    pub fn is_held_up(&self) -> bool {
        self.doorbells.load(Ordering::Relaxed) != 0
    }

    /// Takes the queues whose doorbells must be rung, as bits.
    pub fn take_doorbells(&self) -> u32 {
        self.doorbells.swap(0, Ordering::Relaxed)
    }
}
