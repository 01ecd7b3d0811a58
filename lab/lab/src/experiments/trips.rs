//! Round trips of a closed loop as numbers. An unanswered request took at least its
//! timeout: leaving it out would make a service look the better the more it loses.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall_load::{Latency, PingReport};

/// Names of a point's values.
pub(super) const P50: &str = "p50 µs";
pub(super) const P99: &str = "p99 µs";
pub(super) const LOST: &str = "lost";

/// Returns median and 99th percentile of all requests, µs. A share of `lost` of them was
/// abandoned after `timeout`; `latency` is that of the others.
pub(super) fn percentiles(latency: Option<&Latency>, lost: f64, timeout: Duration) -> (f64, f64) {
    let given_up = timeout.as_secs_f64() * 1e6;
    let at = |quantile: f64, answered: fn(&Latency) -> u64| match latency {
        Some(latency) if lost <= 1.0 - quantile => answered(latency) as f64 / 1e3,
        _ => given_up,
    };
    (
        at(0.5, |latency| latency.p50),
        at(0.99, |latency| latency.p99),
    )
}

/// Returns the share of abandoned requests among those that ended.
pub(super) fn lost(lost: u64, echoed: u64) -> f64 {
    lost as f64 / (lost + echoed).max(1) as f64
}

/// Returns [`P50`], [`P99`] and [`LOST`] of the measured time.
pub(super) fn values(ping: &PingReport, timeout: Duration) -> BTreeMap<String, f64> {
    let counts = ping.measured;
    let share = lost(counts.lost, counts.echoed);
    let (p50, p99) = percentiles(ping.latency.as_ref(), share, timeout);
    [(P50, p50), (P99, p99), (LOST, counts.lost as f64)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

#[cfg(test)]
pub(crate) mod tests {
    use tidewall_load::PingCounts;

    use super::*;

    /// Returns a report of `echoed` round trips of 10 µs (1 % of them 50 µs), and `lost`
    /// requests.
    pub(crate) fn report(echoed: u64, lost: u64) -> PingReport {
        let counts = PingCounts {
            sent: echoed + lost,
            echoed,
            lost,
            ..PingCounts::default()
        };
        PingReport {
            measured: counts,
            whole: counts,
            duration: Duration::from_secs(1),
            rate: echoed as f64,
            latency: (echoed > 0).then_some(Latency {
                samples: echoed,
                min: 1,
                mean: 1.0,
                p50: 10_000,
                p90: 1,
                p99: 50_000,
                p999: 1,
                max: 1,
            }),
            response: Default::default(),
        }
    }

    #[test]
    fn lost_requests_count_as_late() {
        let of = |echoed, lost| {
            let values = values(&report(echoed, lost), Duration::from_millis(20));
            (values[P50], values[P99])
        };
        assert_eq!(of(1000, 5), (10.0, 50.0));
        assert_eq!(of(1000, 50), (10.0, 20_000.0));
        assert_eq!(of(10, 50), (20_000.0, 20_000.0));
        assert_eq!(of(0, 50), (20_000.0, 20_000.0));
    }
}
