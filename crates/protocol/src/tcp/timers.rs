//! The timers of a connection. Each is one number, so that a connection costs its owner
//! one entry in a timer wheel.

use core::time::Duration;

use super::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum Timer {
    /// Data in flight is not acknowledged (see [`RtxTimer`](super::recovery::RtxTimer)).
    /// Or nothing is in flight and the window, Nagle or cork hold data back (persist, RFC
    /// 9293 §3.8.6.1).
    Retransmit = 0,
    /// An acknowledgment has waited long enough.
    Acknowledge = 1,
    /// The peer is silent.
    Keepalive = 2,
    /// The end of FIN-WAIT-2 or TIME-WAIT.
    TimeWait = 3,
    /// Large buffers that have become empty may be freed.
    Release = 4,
    /// Sent data has drained at the pacing rate.
    Pace = 5,
}

pub(super) const TIMERS: [Timer; 6] = [
    Timer::Retransmit,
    Timer::Acknowledge,
    Timer::Keepalive,
    Timer::TimeWait,
    Timer::Release,
    Timer::Pace,
];

const NEVER: u64 = u64::MAX;

/// When each timer expires, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    at: [u64; TIMERS.len()],
}

/// Rounds up: a timer may be late, never early. Half a million years suffice. Avoids
/// `as_nanos`, whose 128-bit division is slow.
#[inline]
fn microseconds(time: Time) -> u64 {
    let whole = time.as_secs().saturating_mul(1_000_000);
    whole.saturating_add(time.subsec_nanos().div_ceil(1000).into())
}

impl Timers {
    pub(super) const fn new() -> Self {
        Self {
            at: [NEVER; TIMERS.len()],
        }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn set(&mut self, timer: Timer, now: Time, after: Duration) {
        self.at[timer as usize] = microseconds(now.saturating_add(after)).min(NEVER - 1);
    }

    /// As [`Timers::set`], after a number of microseconds.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn set_micros(&mut self, timer: Timer, now: Time, after: u64) {
        self.at[timer as usize] = microseconds(now).saturating_add(after).min(NEVER - 1);
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = NEVER;
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn is_running(&self, timer: Timer) -> bool {
        self.at[timer as usize] != NEVER
    }

    /// When the timer expires, if it is running.
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn get(&self, timer: Timer) -> Option<Time> {
        let at = self.at[timer as usize];
        (at != NEVER).then(|| Duration::from_micros(at))
    }

    /// Stops the timer if it has expired, and returns whether it had.
    #[expect(
        clippy::indexing_slicing,
        reason = "the array has one place per variant"
    )]
    pub(super) fn expired(&mut self, timer: Timer, now: Time) -> bool {
        let expired = self.is_running(timer) && self.at[timer as usize] <= microseconds_down(now);
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// When the first timer expires.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        let first = self.at.iter().copied().min().unwrap_or(NEVER);
        (first != NEVER).then(|| Duration::from_micros(first))
    }
}

#[inline]
fn microseconds_down(time: Time) -> u64 {
    let whole = time.as_secs().saturating_mul(1_000_000);
    whole.saturating_add(time.subsec_micros().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_timer_is_the_next() {
        let mut timers = Timers::new();
        let now = Duration::new(5, 1);
        assert_eq!(timers.next(), None);
        timers.set(Timer::Keepalive, now, Duration::from_secs(9));
        timers.set(Timer::Acknowledge, now, Duration::from_millis(40));
        let next = timers.next().unwrap();
        assert!(next >= now + Duration::from_millis(40));
        assert!(!timers.expired(Timer::Acknowledge, now));
        assert!(timers.expired(Timer::Acknowledge, next));
        assert!(!timers.is_running(Timer::Acknowledge));
        assert!(timers.next() == timers.get(Timer::Keepalive));
        timers.set(Timer::TimeWait, Duration::MAX, Duration::MAX);
        assert!(timers.is_running(Timer::TimeWait));
        timers.stop(Timer::TimeWait);
        timers.stop(Timer::Keepalive);
        assert_eq!(timers.next(), None);
    }
}
