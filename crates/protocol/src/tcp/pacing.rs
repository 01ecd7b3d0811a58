//! Pacing: new data leaves in bursts of about a millisecond's worth instead of a
//! window at once (Linux `tcp_update_pacing_rate`, `tcp_internal_pacing`).
//!
//! Sent data is assumed to drain at the pacing rate. While more than a burst has yet to
//! drain, no new data is sent until all of it has drained. A path whose round trip is
//! below a millisecond does not benefit from that, and the timer could not keep up.
//! There, only an explicit limit counts.

use core::time::Duration;

use super::connection::Connection;
use super::timers::Timer;
use super::{Time, microseconds};
use tidewall_wire::tcp::before;

/// The length of a burst, in microseconds, unless two segments take longer.
const BURST: u32 = 1000;

/// The shortest smoothed round trip that is paced, in microseconds.
const ROUND_TRIP_MIN: u32 = 1000;

/// The share of a burst that the round trip allows is halved for every such number of
/// microseconds of it (Linux `tcp_tso_rtt_log`).
const NEAR: u32 = 512;

/// No segment takes longer to drain than this, however slow the path; in microseconds.
const PAUSE_MAX: u32 = 1 << 26;

/// No segment waits for longer than [`PAUSE_MAX`] and a burst. After a silence of this
/// length, a wrapped departure time could be mistaken for a later one.
const SILENCE: Duration = Duration::from_secs(1 << 10);

impl Connection {
    /// The sending rate, in bytes per second. It is twice the window per round trip while
    /// slow start is far from its end, 1.2 times it from then on. So the window, not the
    /// rate, is the limit. The rate never exceeds the configured limit. Without such a
    /// limit it is `u64::MAX` before the first measurement.
    pub(super) fn pacing_rate(&self) -> u64 {
        let limit = self.config.pacing_rate_max();
        if self.round_trip.srtt_8 == 0 {
            return limit;
        }
        let window = self.congestion.window();
        let percent = if window < self.congestion.threshold() / 2 {
            200
        } else {
            120
        };
        let flight = window.max(self.send.outstanding());
        let rate = u64::from(flight) * percent * 10_000 / u64::from(self.round_trip.srtt().max(1));
        rate.clamp(1, limit)
    }

    /// The rate in force now; `u64::MAX` is none. The initial window is not paced, since
    /// nothing is known of the path then.
    fn paced_rate(&self) -> u64 {
        let own = self.config.pacing
            && self.round_trip.srtt() >= ROUND_TRIP_MIN
            && self.counters.bytes_acknowledged > 0;
        if own {
            self.pacing_rate()
        } else {
            self.config.pacing_rate_max()
        }
    }

    /// The largest burst, which the device cuts into segments. It is the data that leaves
    /// in about a millisecond, so that others do not wait behind it for longer. It is
    /// larger the shorter the round trip is, since in a data centre that hardly matters
    /// (Linux `tcp_tso_autosize`).
    #[inline]
    pub(super) fn burst_worth(&self, most: u32) -> u32 {
        let halvings = self.round_trip.min / NEAR;
        let near = if self.config.paces() {
            0
        } else if halvings == 0 {
            return most;
        } else {
            most.checked_shr(halvings).unwrap_or(0)
        };
        let worth = self.pacing_rate() / (1_000_000 / u64::from(BURST));
        let worth = u32::try_from(worth).unwrap_or(u32::MAX);
        let least = u32::from(self.config.burst_min) * u32::from(self.send.mss);
        most.min(worth.saturating_add(near).max(least))
    }

    /// Accounts for `length` bytes of new data that have left; with zero, only checks
    /// whether data may leave.
    #[cold]
    pub(super) fn pace(&mut self, length: u32, now: Time) {
        let rate = self.paced_rate();
        if rate == u64::MAX {
            return;
        }
        let clock = microseconds(now);
        // A late timer does not lose half a burst's time.
        let earliest = clock.wrapping_sub(BURST / 2);
        let is_past = now.saturating_sub(self.send.last_sent) > SILENCE;
        if is_past || before(self.send.departure_time, earliest) {
            self.send.departure_time = earliest;
        }
        let takes = |bytes: u32| {
            let time = u64::from(bytes) * 1_000_000 / rate;
            time.min(PAUSE_MAX.into()) as u32
        };
        self.send.departure_time = self.send.departure_time.wrapping_add(takes(length));
        let segment = takes(self.send.mss.into());
        let waiting = self
            .send
            .departure_time
            .wrapping_sub(clock)
            .wrapping_add(segment) as i32;
        if self.unsent() > 0 && waiting > BURST.max(2 * segment) as i32 {
            let wait = self.send.departure_time.wrapping_sub(clock);
            self.timers
                .set(Timer::Pace, now, Duration::from_micros(wait.into()));
        }
    }
}
