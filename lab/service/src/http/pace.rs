//! The minimum rate of a peer, over a while.

use std::time::Duration;

use super::Limits;

/// A peer's debt to [`Limits::min_rate`]: a bucket of depth [`Limits::stall`] that time
/// fills and each byte empties. A peer without any byte in that time has filled it, and
/// so has one that sends a byte now and then. The permitted pause does not depend on how
/// much was sent before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Time of the last update; `None` while nothing is expected of the peer.
    at: Option<Duration>,
    behind: Duration,
}

impl Pace {
    /// Begins to expect something of the peer, if nothing was expected before.
    pub(super) fn start(&mut self, now: Duration) {
        self.at.get_or_insert(now);
    }

    /// Does the same, and records that this many bytes have moved.
    pub(super) fn moved(&mut self, bytes: usize, now: Duration, limits: &Limits) {
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let rate = u64::from(limits.min_rate).max(1);
        let paid = Duration::from_millis((bytes as u64).saturating_mul(1000) / rate);
        self.behind = (self.behind + since).saturating_sub(paid);
        self.at = Some(now);
    }

    /// Expects nothing of it.
    pub(super) fn rest(&mut self) {
        *self = Pace::default();
    }

    /// Returns when it is too slow; `None` while nothing is expected of it.
    pub(super) fn deadline(&self, limits: &Limits) -> Option<Duration> {
        Some(self.at? + limits.stall.saturating_sub(self.behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn() -> Limits = || Limits {
        min_rate: 500,
        stall: Duration::from_secs(30),
        ..Limits::default()
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let limits = LIMITS();
        let mut pace = Pace::default();
        assert_eq!(pace.deadline(&limits), None);
        pace.start(seconds(100));
        assert_eq!(pace.deadline(&limits), Some(seconds(130)));
        pace.moved(1, seconds(129), &limits);
        let left = pace.deadline(&limits).unwrap() - seconds(129);
        assert!(left < Duration::from_millis(1003), "{left:?}");
    }

    #[test]
    fn the_least_rate_is_fast_enough_for_ever() {
        let limits = LIMITS();
        let mut pace = Pace::default();
        pace.start(Duration::ZERO);
        for second in (20..200_000).step_by(20) {
            assert!(seconds(second) < pace.deadline(&limits).unwrap());
            pace.moved(20 * 500, seconds(second), &limits);
        }
    }

    #[test]
    fn much_at_once_buys_no_longer_pause() {
        let limits = LIMITS();
        let mut pace = Pace::default();
        pace.start(Duration::ZERO);
        pace.moved(1 << 30, seconds(1), &limits);
        assert_eq!(pace.deadline(&limits), Some(seconds(31)));
        pace.rest();
        assert_eq!(pace.deadline(&limits), None);
    }
}
