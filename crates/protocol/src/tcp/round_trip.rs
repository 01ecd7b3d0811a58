//! The round-trip time and the retransmission timeout (RFC 6298), with Linux's estimator.
//! The variation falls only once per round trip, and slowly, so that a path whose round
//! trip hardly varies still has slack.

use super::Time;
use tidewall_wire::tcp::before;

/// The timeout before the first measurement (RFC 6298 §2.1), in microseconds.
const INITIAL: u32 = 1_000_000;

/// The same once a SYN had to be retransmitted (RFC 6298 §5.7).
const FALLBACK: u32 = 3_000_000;

/// A longer measurement counts as this, to leave room to multiply.
const LONGEST: u32 = 1 << 28;

/// Seconds for which the least round trip is remembered (`tcp_min_rtt_wlen`).
const MINIMUM_LIFE: u32 = 300;

/// Estimator of one connection; times in microseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct RoundTrip {
    /// Eight times SRTT; zero before the first measurement.
    pub(super) srtt_8: u32,
    /// Four times RTTVAR.
    pub(super) rttvar_4: u32,
    /// The largest deviation in this round trip.
    pub(super) rttvar_max: u32,
    /// RTO - SRTT: four deviations, and at least the shortest timeout.
    pub(super) rto_margin: u32,
    /// SND.NXT when this round trip began.
    pub(super) rtt_seq: u32,
    /// The smallest round trip measured recently; zero before the first.
    pub(super) min: u32,
    /// When that was, in seconds.
    pub(super) min_at: u32,
    /// How often the timeout was doubled since a measurement.
    pub(super) backoff: u8,
}

impl RoundTrip {
    /// In microseconds; zero before the first measurement.
    #[inline]
    pub(super) fn srtt(&self) -> u32 {
        self.srtt_8 / 8
    }

    pub(super) fn rttvar(&self) -> u32 {
        self.rttvar_4 / 4
    }

    /// Uses the fallback timeout: a SYN had to be retransmitted, and nothing was measured
    /// with it.
    pub(super) fn use_syn_fallback(&mut self) {
        if self.srtt_8 == 0 {
            self.rto_margin = FALLBACK;
        }
    }

    /// Takes a measurement in microseconds (RFC 6298 §2.2, §2.3). `first` is
    /// SND.UNA, `next` SND.NXT, `least` the shortest timeout in microseconds.
    #[inline]
    pub(super) fn sample(&mut self, sample: u32, (first, next): (u32, u32), least: u32) {
        let sample = sample.min(LONGEST);
        self.backoff = 0;
        if self.srtt_8 == 0 {
            self.srtt_8 = (sample * 8).max(1);
            self.rttvar_4 = sample * 2;
            self.rto_margin = self.rttvar_4.max(least);
            self.rttvar_max = self.rto_margin;
            self.rtt_seq = next;
            return;
        }
        let error = sample as i32 - self.srtt() as i32;
        self.srtt_8 = self.srtt_8.wrapping_add_signed(error).max(1);
        let mut change = error.abs() - (self.rttvar_4 / 4) as i32;
        if error < 0 && change > 0 {
            // A round trip that falls is no reason to wait longer.
            change /= 8;
        }
        self.rttvar_4 = self.rttvar_4.wrapping_add_signed(change);
        if self.rttvar_4 > self.rttvar_max {
            self.rttvar_max = self.rttvar_4;
            self.rto_margin = self.rto_margin.max(self.rttvar_max);
        }
        if before(self.rtt_seq, first) {
            if self.rttvar_max < self.rto_margin {
                self.rto_margin -= (self.rto_margin - self.rttvar_max) / 4;
            }
            self.rtt_seq = next;
            self.rttvar_max = least;
        }
    }

    /// Updates the minimum over the last minutes. Zero is rounded up.
    #[inline]
    pub(super) fn update_min(&mut self, sample: u32, now: Time) {
        let sample = sample.clamp(1, LONGEST);
        let seconds = now.as_secs() as u32;
        let age = seconds.wrapping_sub(self.min_at);
        if sample <= self.min || self.min == 0 || age > MINIMUM_LIFE {
            self.min = sample;
            self.min_at = seconds;
        }
    }

    /// The timeout, doubled for each backoff, in microseconds.
    #[inline]
    pub(super) fn timeout(&self, max: u32) -> u64 {
        let base = if self.srtt_8 == 0 {
            self.rto_margin.max(INITIAL).into()
        } else {
            u64::from(self.srtt()) + u64::from(self.rto_margin)
        };
        (base << self.backoff.min(30)).min(max.into())
    }
}

#[cfg(test)]
mod tests;
