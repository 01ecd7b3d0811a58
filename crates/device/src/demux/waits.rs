//! Frames that may wait for the next round of receiving: they go to a socket that
//! nobody sleeps on.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::ApplicationTables;
use super::layout::{TICK_SHIFT, Waiting};

/// Which segments of a TCP flow wake nobody. Times are of the application's clock
/// ([`super::CookieParameters::epoch`]); the end of a time comes up to 4.2 ms
/// later than it says, and 68 s later it seems to lie ahead again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// None.
    #[default]
    None,
    /// Acknowledgments that carry nothing else, while rounds are not rare.
    Acknowledgments,
    /// All but SYNs, until then.
    AllUntil(Duration),
}

impl Waits {
    /// How much later than it says a time may end: the power of two of nanoseconds next to
    /// the 4 ms of a scheduler tick (HZ=250). Three of them, the longest that an
    /// acknowledgment may wait, are a third of the shortest delay of one by Linux
    /// (TCP_DELACK_MIN, 40 ms).
    pub const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);
}

/// A time as the driver program counts it for what may wait.
pub(super) fn tick(time: Duration) -> u32 {
    // 64 bits of nanoseconds are 584 years, and the ticks wrap in any case.
    let nanoseconds = time
        .as_secs()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.subsec_nanos().into());
    (nanoseconds >> TICK_SHIFT) as u32
}

impl ApplicationTables {
    fn waiting(&self, queue: u32) -> Option<&Waiting> {
        self.map().waiting.get(queue as usize)
    }

    /// Sets the most frames of a queue that may wait at one time; 0: none, as at first.
    pub fn set_waiting_limit(&self, queue: u32, frames: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.limit.store(frames, Release);
        }
    }

    /// A queue is looked at now.
    pub fn note_round(&self, queue: u32, now: Duration) {
        if let Some(waiting) = self.waiting(queue) {
            let tick = tick(now);
            // The driver reads it, so that writing costs more than looking.
            if waiting.looked.load(Relaxed) != tick {
                waiting.looked.store(tick, Release);
            }
        }
    }

    /// Frames of a queue that were put aside, ever, modulo 2^32.
    pub fn waiting_head(&self, queue: u32) -> u32 {
        self.waiting(queue)
            .map_or(0, |waiting| waiting.head.load(Acquire))
    }

    /// So many of them have been taken.
    pub fn waiting_taken(&self, queue: u32, frames: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.tail.fetch_add(frames, Release);
        }
    }

    /// All that were put aside until the head was `head` have been taken or are lost.
    pub fn waiting_caught_up(&self, queue: u32, head: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.tail.store(head, Release);
        }
    }
}
