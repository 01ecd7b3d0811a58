//! The round-trip time and the retransmission timeout (RFC 6298).

use core::time::Duration;

use super::Time;
use tidewall_wire::tcp::before;

/// The timeout before the first measurement (RFC 6298 §2.1).
const INITIAL: Duration = Duration::from_secs(1);

/// Estimator of one connection.
#[derive(Clone, Copy, Default)]
pub(super) struct RoundTrip {
    /// Smoothed, in microseconds; zero before the first measurement.
    pub(super) smoothed: u32,
    /// Mean deviation, in microseconds.
    pub(super) variation: u32,
    /// The smallest measured, in microseconds; zero before the first.
    pub(super) min: u32,
    /// Times the timeout was doubled since an acknowledgment of new data.
    pub(super) backoff: u8,
    /// The segment being timed: the sequence number after it, and when it left.
    /// One a round trip; none once anything was sent twice (Karn's algorithm).
    pub(super) timed: Option<(u32, Time)>,
}

impl RoundTrip {
    /// Begins to time a segment that is sent for the first time and ends before
    /// `end`, unless another is timed already.
    #[inline]
    pub(super) fn time(&mut self, end: u32, now: Time) {
        if self.timed.is_none() {
            self.timed = Some((end, now));
        }
    }

    /// A measurement, if `acknowledgment` covers the timed segment.
    #[inline]
    pub(super) fn acknowledged(&mut self, acknowledgment: u32, now: Time) -> Option<Duration> {
        let (end, sent) = self.timed?;
        if before(acknowledgment, end) {
            return None;
        }
        self.timed = None;
        Some(now.saturating_sub(sent))
    }

    /// Takes a measurement (RFC 6298 §2.2, §2.3).
    pub(super) fn sample(&mut self, sample: Duration) {
        // Half an hour is as good as for ever, and leaves room to add.
        let sample = sample.as_micros().clamp(1, 1_800_000_000) as u32;
        if self.smoothed == 0 {
            self.smoothed = sample;
            self.variation = sample / 2;
            self.min = sample;
            return;
        }
        let difference = self.smoothed.abs_diff(sample);
        self.variation = self.variation - self.variation / 4 + difference / 4;
        self.smoothed = (self.smoothed - self.smoothed / 8 + sample / 8).max(1);
        self.min = self.min.min(sample);
    }

    /// The timeout, doubled as often as backed off, within the bounds. As on
    /// Linux the lower bound is put on the variation: a path whose round trip
    /// hardly varies still gets that much slack for delayed acknowledgments.
    pub(super) fn timeout(&self, min: Duration, max: Duration) -> Duration {
        let base = if self.smoothed == 0 {
            INITIAL
        } else {
            let slack = Duration::from_micros(u64::from(self.variation) * 4);
            Duration::from_micros(self.smoothed.into()) + slack.max(min)
        };
        if self.backoff == 0 {
            return base.min(max);
        }
        base.saturating_mul(1 << self.backoff.min(20)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(200);
    const MAX: Duration = Duration::from_secs(120);

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(MIN, MAX), Duration::from_secs(1));
        trip.sample(Duration::from_millis(400));
        // SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
        assert_eq!(trip.timeout(MIN, MAX), Duration::from_millis(1200));
        for _ in 0..100 {
            trip.sample(Duration::from_millis(400));
        }
        let settled = trip.timeout(MIN, MAX).as_millis();
        assert!((600..610).contains(&settled), "{settled}");
        trip.backoff = 3;
        assert!(trip.timeout(MIN, MAX) >= Duration::from_millis(4800));
        trip.backoff = 255;
        assert_eq!(trip.timeout(MIN, MAX), MAX);
    }

    #[test]
    fn one_segment_a_round_trip_is_timed() {
        let mut trip = RoundTrip::default();
        trip.time(u32::MAX, Duration::from_secs(1));
        trip.time(5, Duration::from_secs(2));
        assert_eq!(
            trip.acknowledged(u32::MAX - 1, Duration::from_secs(3)),
            None
        );
        assert_eq!(
            trip.acknowledged(3, Duration::from_secs(3)),
            Some(Duration::from_secs(2))
        );
        assert_eq!(trip.acknowledged(10, Duration::from_secs(3)), None);
    }
}
