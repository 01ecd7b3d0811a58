//! Traffic classes: queues that are polled in order, so that frames of the first are
//! served before frames of the next.
//!
//! Order alone is not enough. A service that answers one question at a time leaves its
//! queue empty between two of them. A round on a flooded queue begun in that gap takes
//! longer than the gap. So while a class is active, all classes below it together get at
//! most a share of the time. A round on one of them, and the application's work on its
//! frames, is followed by a pause in proportion.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A class of traffic. The first of a list comes on queue 0 and is polled
/// first, the next on queue 1, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficClass {
    /// Local ports whose datagrams belong to it. A device that can is programmed to
    /// put them on the class's queue; on one that cannot, the sender must
    /// (see [`crate::StackHandle::warnings`]).
    pub ports: Vec<u16>,
    /// Largest Bp of its queue, in frames per round, 2 to 3000; `None`: as the stack.
    pub budget: Option<u32>,
}

/// While a class is active, those below get this fraction of the time, as its
/// denominator.
const LOWER_CLASSES: u64 = 16;
/// A class is active for so long after its last frame.
const ACTIVE: u64 = 1_000_000;

/// One queue's share, times in ns.
#[derive(Debug, Default)]
pub(super) struct ClassShare {
    /// When it last had frames.
    last_frames: AtomicU64,
    /// When its last round round_began, until the next round of any queue; else 0.
    round_began: AtomicU64,
    /// Not to be polled before this while a class above is active.
    held_until: AtomicU64,
}

/// Now, as [`ClassShare`] counts it; never zero.
pub(super) fn nanoseconds(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl ClassShare {
    /// Notes that a round over the queues begins: the work after this queue's last round
    /// is over.
    pub(super) fn end_round(&self, now: u64) {
        let round_began = self.round_began.swap(0, Ordering::Relaxed);
        if round_began != 0 {
            let pause = now
                .saturating_sub(round_began)
                .saturating_mul(LOWER_CLASSES - 1);
            self.held_until
                .store(now.saturating_add(pause), Ordering::Relaxed);
        }
    }

    /// Returns whether it must wait while a class above is active.
    pub(super) fn is_held(&self, now: u64) -> bool {
        now < self.held_until.load(Ordering::Relaxed)
    }

    /// It is polled.
    pub(super) fn begin_round(&self, now: u64) {
        self.round_began.store(now, Ordering::Relaxed);
    }

    /// Its round found frames.
    pub(super) fn note_frames(&self, now: u64) {
        self.last_frames.store(now, Ordering::Relaxed);
    }

    /// Whether it had frames a moment ago.
    pub(super) fn is_active(&self, now: u64) -> bool {
        let last_frames = self.last_frames.load(Ordering::Relaxed);
        last_frames != 0 && now.saturating_sub(last_frames) < ACTIVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_below_gets_its_share_and_no_more() {
        let share = ClassShare::default();
        let (mut now, mut used) = (1_000, 0);
        let end = now + 10_000_000;
        while now < end {
            share.end_round(now);
            if share.is_held(now) {
                now += 500;
            } else {
                share.begin_round(now);
                used += 20_000;
                now += 20_000;
            }
        }
        let share = used as f64 / 10_000_000.0;
        assert!((0.055..=0.07).contains(&share), "{share}");
    }

    #[test]
    fn a_class_is_active_for_a_while_after_its_last_frame() {
        let share = ClassShare::default();
        assert!(!share.is_active(5));
        share.note_frames(5);
        assert!(share.is_active(5 + ACTIVE - 1));
        assert!(!share.is_active(5 + ACTIVE));
    }

    #[test]
    fn a_round_that_took_no_time_holds_nobody() {
        let share = ClassShare::default();
        share.begin_round(7);
        share.end_round(7);
        assert!(!share.is_held(7));
    }
}
