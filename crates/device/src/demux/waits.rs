//! Frames that may wait for the next round of receiving: they go to a socket on which no
//! thread sleeps.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::ApplicationTables;
use super::layout::{TICK_SHIFT, Waiting};

/// Segments of a TCP flow that wake no thread. Times are of the application's clock
/// ([`super::CookieParameters::epoch`]). A time ends up to 4.2 ms later than its value;
/// 68 s later it appears to be in the future again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    /// None.
    #[default]
    None,
    /// Acknowledgments that carry nothing else, unless rounds are rare.
    Acknowledgments,
    /// All but SYNs, until this time.
    AllUntil(Duration),
}

impl Waits {
    /// How late a time may end: the power of two of nanoseconds next to the 4 ms of a
    /// scheduler tick (HZ=250). An acknowledgment may wait for three of them at most.
    /// That is a third of the shortest delay that Linux applies to one (TCP_DELACK_MIN,
    /// 40 ms).
    pub const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);
}

/// A time in the driver program's units for frames that may wait.
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

    /// Sets how many frames of a queue may wait at one time; 0, the initial value, means
    /// none.
    pub fn set_waiting_limit(&self, queue: u32, frames: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.limit.store(frames, Release);
        }
    }

    /// Records that a queue is examined now.
    pub fn note_round(&self, queue: u32, now: Duration) {
        if let Some(waiting) = self.waiting(queue) {
            let tick = tick(now);
            // The driver reads it, so writing it costs more than reading it first.
            if waiting.looked.load(Relaxed) != tick {
                waiting.looked.store(tick, Release);
            }
        }
    }

    /// Frames of a queue that were ever put aside, modulo 2^32.
    pub fn waiting_head(&self, queue: u32) -> u32 {
        self.waiting(queue)
            .map_or(0, |waiting| waiting.head.load(Acquire))
    }

    /// Records that this many of them were taken.
    pub fn waiting_taken(&self, queue: u32, frames: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.tail.fetch_add(frames, Release);
        }
    }

    /// Records that all frames put aside up to the head `head` were taken or are lost.
    pub fn waiting_caught_up(&self, queue: u32, head: u32) {
        if let Some(waiting) = self.waiting(queue) {
            waiting.tail.store(head, Release);
        }
    }
}
