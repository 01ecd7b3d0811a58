//! The round-trip time and the retransmission timeout (RFC 6298), with Linux's
//! estimator: the variation falls once a round trip only, and slowly, so that a
//! path whose round trip hardly varies still gets slack.

use super::Time;
use tidewall_wire::tcp::before;

/// The timeout before the first measurement (RFC 6298 §2.1), in microseconds.
const INITIAL: u32 = 1_000_000;

/// The same once a SYN had to be sent again (RFC 6298 §5.7).
const FALLBACK: u32 = 3_000_000;

/// No measurement counts for more, so that there is room to multiply.
const LONGEST: u32 = 1 << 28;

/// Seconds that the least round trip is remembered (`tcp_min_rtt_wlen`).
const MINIMUM_LIFE: u32 = 300;

/// Estimator of one connection; times in microseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct RoundTrip {
    /// Eight times the smoothed one; zero before the first measurement.
    pub(super) eighths: u32,
    /// Four times the mean deviation.
    pub(super) deviation: u32,
    /// The largest of this round trip.
    pub(super) deviation_max: u32,
    /// What the timeout is above the smoothed round trip: four deviations, the
    /// shortest timeout at least.
    pub(super) slack: u32,
    /// SND.NXT when this round trip began.
    pub(super) turn: u32,
    /// The smallest measured lately; zero before the first.
    pub(super) min: u32,
    /// When that was, in seconds.
    pub(super) min_at: u32,
    /// Times the timeout was doubled since a measurement.
    pub(super) backoff: u8,
}

impl RoundTrip {
    /// Smoothed, in microseconds; zero before the first measurement.
    #[inline]
    pub(super) fn smoothed(&self) -> u32 {
        self.eighths / 8
    }

    /// The mean deviation, in microseconds.
    pub(super) fn variation(&self) -> u32 {
        self.deviation / 4
    }

    /// A SYN had to be sent again, and nothing was measured with it.
    pub(super) fn fall_back(&mut self) {
        if self.eighths == 0 {
            self.slack = FALLBACK;
        }
    }

    /// Takes a measurement in microseconds (RFC 6298 §2.2, §2.3). `first` is
    /// SND.UNA, `next` SND.NXT, `least` the shortest timeout in microseconds.
    #[inline]
    pub(super) fn sample(&mut self, sample: u32, (first, next): (u32, u32), least: u32) {
        let sample = sample.min(LONGEST);
        self.backoff = 0;
        if self.eighths == 0 {
            self.eighths = (sample * 8).max(1);
            self.deviation = sample * 2;
            self.slack = self.deviation.max(least);
            self.deviation_max = self.slack;
            self.turn = next;
            return;
        }
        let error = sample as i32 - self.smoothed() as i32;
        self.eighths = self.eighths.wrapping_add_signed(error).max(1);
        let mut change = error.abs() - (self.deviation / 4) as i32;
        if error < 0 && change > 0 {
            // A round trip that falls is no reason to wait longer.
            change /= 8;
        }
        self.deviation = self.deviation.wrapping_add_signed(change);
        if self.deviation > self.deviation_max {
            self.deviation_max = self.deviation;
            self.slack = self.slack.max(self.deviation_max);
        }
        if before(self.turn, first) {
            if self.deviation_max < self.slack {
                self.slack -= (self.slack - self.deviation_max) / 4;
            }
            self.turn = next;
            self.deviation_max = least;
        }
    }

    /// The smallest of the last minutes. Rounded up to what is not zero.
    #[inline]
    pub(super) fn take_minimum(&mut self, sample: u32, now: Time) {
        let sample = sample.clamp(1, LONGEST);
        let seconds = now.as_secs() as u32;
        let age = seconds.wrapping_sub(self.min_at);
        if sample <= self.min || self.min == 0 || age > MINIMUM_LIFE {
            self.min = sample;
            self.min_at = seconds;
        }
    }

    /// The timeout, doubled as often as backed off, in microseconds.
    #[inline]
    pub(super) fn timeout(&self, max: u32) -> u64 {
        let base = if self.eighths == 0 {
            self.slack.max(INITIAL).into()
        } else {
            u64::from(self.smoothed()) + u64::from(self.slack)
        };
        (base << self.backoff.min(30)).min(max.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const LEAST: u32 = 200_000;
    const MAX: Duration = Duration::from_secs(120);

    fn timeout(trip: &RoundTrip) -> Duration {
        Duration::from_micros(trip.timeout(MAX.as_micros() as u32))
    }

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut trip = RoundTrip::default();
        assert_eq!(timeout(&trip), Duration::from_secs(1));
        trip.sample(400_000, (0, 0), LEAST);
        // SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
        assert_eq!(timeout(&trip), Duration::from_millis(1200));
        for turn in 1..100 {
            trip.sample(400_000, (turn, turn), LEAST);
        }
        let settled = timeout(&trip).as_millis();
        assert!((600..610).contains(&settled), "{settled}");
        trip.backoff = 3;
        assert!(timeout(&trip) >= Duration::from_millis(4800));
        trip.backoff = 255;
        assert_eq!(timeout(&trip), MAX);
        trip.sample(400_000, (0, 0), LEAST);
        assert!(timeout(&trip) < Duration::from_millis(610), "valid again");
    }

    #[test]
    fn the_slack_rises_at_once_and_falls_once_a_round_trip() {
        let mut trip = RoundTrip::default();
        for turn in 0..50 {
            trip.sample(100_000, (turn, turn), LEAST);
        }
        assert_eq!(trip.slack, LEAST);
        // One measurement is a second late: three quarters of its error count.
        trip.sample(1_100_000, (50, 60), LEAST);
        assert!(trip.slack >= 1_000_000, "{}", trip.slack);
        let high = trip.slack;
        for _ in 0..20 {
            trip.sample(225_000, (55, 60), LEAST);
        }
        assert_eq!(trip.slack, high, "within the round trip");
        for turn in [61, 71, 81] {
            trip.sample(225_000, (turn, turn + 9), LEAST);
        }
        assert!(trip.slack < high && trip.slack > high / 2);
    }

    #[test]
    fn a_round_trip_that_falls_hardly_raises_the_timeout() {
        let mut trip = RoundTrip::default();
        trip.sample(1_000_000, (0, 0), LEAST);
        for turn in 1..60 {
            trip.sample(1_000_000, (turn, turn), LEAST);
        }
        let before = timeout(&trip);
        trip.sample(1000, (60, 60), LEAST);
        assert!(timeout(&trip) < before + Duration::from_millis(60));
    }

    #[test]
    fn the_least_round_trip_is_forgotten_in_time() {
        let mut trip = RoundTrip::default();
        trip.take_minimum(0, Duration::from_secs(10));
        assert_eq!(trip.min, 1);
        trip.take_minimum(500, Duration::from_secs(300));
        assert_eq!(trip.min, 1);
        trip.take_minimum(500, Duration::from_secs(311));
        assert_eq!(trip.min, 500);
        trip.take_minimum(400, Duration::from_secs(312));
        assert_eq!(trip.min, 400);
    }
}
