//! Histograms as plain values.

use std::io;
use std::ops::Sub;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Latency;

/// Steps of the percentiles in each halving of the distance to 100 %.
const TICKS: u32 = 5;

/// Creates a histogram of times up to `most` ns, to three significant figures.
pub(crate) fn histogram(most: u64) -> io::Result<Histogram<u64>> {
    Histogram::new_with_max(most, 3).map_err(|error| io::Error::other(error.to_string()))
}

/// A point of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// Percentage of the samples, 0…100.
    pub percentile: f64,
    /// This many of the samples were at most this long, ns.
    pub at_most: u64,
    /// Number of these samples.
    pub samples: u64,
}

/// A histogram of times: its summary, and the percentiles needed to draw it, which lie
/// closer together towards 100 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The summary.
    #[serde(flatten)]
    pub summary: Latency,
    /// The percentiles, lowest first; the last is 100.
    pub percentiles: Vec<Percentile>,
}

impl Distribution {
    /// Summarizes a histogram of nanoseconds; `None` if it is empty.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let summary = Latency::of(histogram)?;
        let mut samples = 0;
        let percentiles = histogram
            .iter_quantiles(TICKS)
            .map(|point| {
                samples += point.count_since_last_iteration();
                Percentile {
                    percentile: 100.0 * point.quantile_iterated_to(),
                    at_most: point.value_iterated_to().min(summary.max),
                    samples,
                }
            })
            .collect();
        Some(Distribution {
            summary,
            percentiles,
        })
    }
}

/// Response times, measured in two ways.
///
/// A generator that waits for a slow server sends less meanwhile, and does not measure
/// what it does not send: coordinated omission. `corrected` accounts for that. A large
/// difference means that the server stopped or that the generator was late.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Times for users who came when they meant to. In an open loop, they count from when
    /// the request was due. In a closed loop, they include the requests that a connection
    /// would have sent while it waited (HdrHistogram's correction; the expected interval
    /// is the mean time between two requests of one connection). `None` if nothing was
    /// answered.
    pub corrected: Option<Distribution>,
    /// As measured: from when the request was sent, or its connection begun if each
    /// request has its own. `None` if nothing was answered.
    pub raw: Option<Distribution>,
}

impl Times {
    /// Summarizes an open loop, in which both are measured.
    pub(crate) fn open(corrected: &Histogram<u64>, raw: &Histogram<u64>) -> Self {
        Times {
            corrected: Distribution::of(corrected),
            raw: Distribution::of(raw),
        }
    }

    /// Summarizes a closed loop of `places` slots over `time` ns, in which each slot sent
    /// a request after the response to the previous one.
    pub(crate) fn closed(raw: &Histogram<u64>, places: u64, time: u64) -> Self {
        let interval = u128::from(time) * u128::from(places) / u128::from(raw.len().max(1));
        let interval = u64::try_from(interval).unwrap_or(u64::MAX);
        Times {
            corrected: Distribution::of(&raw.clone_correct(interval)),
            raw: Distribution::of(raw),
        }
    }
}

/// A client's measurements: response times, and its counts at two moments.
#[derive(Debug)]
pub(crate) struct Measures<C> {
    /// The counts when measuring began, and at the last progress.
    mark: C,
    reported: C,
    /// From when requests were due.
    pub(crate) corrected: Histogram<u64>,
    /// From when requests were sent, or their connections begun.
    pub(crate) raw: Histogram<u64>,
    /// Corrected, since the last progress.
    recent: Histogram<u64>,
    /// From the beginning of a connection until it was established.
    pub(crate) connect: Histogram<u64>,
}

impl<C: Copy + Default + Sub<Output = C>> Measures<C> {
    /// Creates empty measurements that distinguish times of up to `most` ns.
    pub(crate) fn new(most: u64) -> io::Result<Self> {
        let none = histogram(most)?;
        Ok(Measures {
            mark: C::default(),
            reported: C::default(),
            corrected: none.clone(),
            raw: none.clone(),
            recent: none.clone(),
            connect: none,
        })
    }

    /// Begins measuring, with these counts.
    pub(crate) fn begin(&mut self, counts: C) {
        self.mark = counts;
        for histogram in [&mut self.corrected, &mut self.raw, &mut self.connect] {
            histogram.reset();
        }
    }

    /// Records a response, with its times since it was due and since it was requested,
    /// ns.
    pub(crate) fn answered(&mut self, corrected: u64, raw: u64) {
        self.corrected.saturating_record(corrected);
        self.recent.saturating_record(corrected);
        self.raw.saturating_record(raw);
    }

    /// Returns the changes since the previous call.
    pub(crate) fn since_progress(&mut self, counts: C) -> (C, Option<Latency>) {
        let latency = Latency::of(&self.recent);
        self.recent.reset();
        let reported = std::mem::replace(&mut self.reported, counts);
        (counts - reported, latency)
    }

    /// Returns the counts of the measured time, if there was one.
    pub(crate) fn counts(&self, whole: C, measured: bool) -> C {
        match measured {
            true => whole - self.mark,
            false => C::default(),
        }
    }

    /// Returns the response times of the measured time, if there was one. `closed`: the
    /// number of slots in a closed loop, and the time, ns.
    pub(crate) fn response(&self, measured: bool, closed: Option<(u64, u64)>) -> Times {
        match (measured, closed) {
            (false, _) => Times::default(),
            (true, None) => Times::open(&self.corrected, &self.raw),
            (true, Some((places, time))) => Times::closed(&self.raw, places, time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_max(60_000_000_000, 3).unwrap();
        for time in times {
            histogram.record(time).unwrap();
        }
        histogram
    }

    #[test]
    fn percentiles_end_with_all() {
        let distribution = Distribution::of(&histogram((1..=1000).map(|n| n * 1000))).unwrap();
        assert_eq!(distribution.summary.samples, 1000);
        let points = &distribution.percentiles;
        let last = points.last().unwrap();
        assert_eq!((last.percentile, last.samples), (100.0, 1000));
        assert_eq!(last.at_most, distribution.summary.max);
        assert!(points.len() > 20, "{points:?}");
        for pair in points.windows(2) {
            assert!(pair[0].percentile <= pair[1].percentile, "{pair:?}");
            assert!(pair[0].at_most <= pair[1].at_most, "{pair:?}");
            assert!(pair[0].samples <= pair[1].samples, "{pair:?}");
        }
        let median = points
            .iter()
            .find(|point| point.percentile >= 50.0)
            .unwrap();
        assert!((499_000..=501_000).contains(&median.at_most), "{median:?}");
        let json = serde_json::to_string(&distribution).unwrap();
        assert!(json.contains(r#""p99":"#) && json.contains(r#""percentiles":["#));
        assert_eq!(
            serde_json::from_str::<Distribution>(&json).unwrap().summary,
            distribution.summary
        );
        assert!(Distribution::of(&histogram([])).is_none());
    }

    #[test]
    fn a_server_that_stopped_shows_in_the_corrected_times() {
        // One connection, 100 responses of 1 ms and one of 100 ms, in 200 ms: during that
        // one, some fifty more requests would have been sent.
        let raw = histogram((0..100).map(|_| 1_000_000).chain([100_000_000]));
        let times = Times::closed(&raw, 1, 200_000_000);
        let (corrected, raw) = (times.corrected.unwrap(), times.raw.unwrap());
        assert_eq!((raw.summary.samples, raw.summary.p90), (101, 1_000_447));
        assert!(
            (145..=155).contains(&corrected.summary.samples),
            "{corrected:?}"
        );
        assert!(corrected.summary.p90 > 60_000_000, "{corrected:?}");
        // Nothing to correct if nothing was slower than usual.
        let times = Times::closed(&histogram([1_000_000; 100]), 4, 25_000_000);
        assert_eq!(times.corrected, times.raw);
        assert_eq!(Times::closed(&histogram([]), 1, 1), Times::default());
    }
}
