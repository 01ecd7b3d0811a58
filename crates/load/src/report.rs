//! What a load did: plain values, written to JSON. Times are nanoseconds where
//! a name does not say otherwise.

use std::ops::Sub;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::spec::{SenderKind, seconds};

/// Packets of a blast. `offered` = `sent` + `ring_full` + `skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlastCounts {
    /// Packets that the schedule had come to.
    pub offered: u64,
    /// Packets that the kernel took. A full ring at the far end of a veth may
    /// still have lost some: see [`InterfaceCounters::dropped`].
    pub sent: u64,
    /// Packets given up because the transmit ring or socket buffer was full.
    pub ring_full: u64,
    /// Packets given up because the generator was more than 10 ms behind its
    /// schedule: it could not keep the rate, or lost its processor.
    pub skipped: u64,
}

impl Sub for BlastCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        BlastCounts {
            offered: self.offered.saturating_sub(earlier.offered),
            sent: self.sent.saturating_sub(earlier.sent),
            ring_full: self.ring_full.saturating_sub(earlier.ring_full),
            skipped: self.skipped.saturating_sub(earlier.skipped),
        }
    }
}

/// What the kernel counted for the sending interface between the run's
/// beginning and its end, all traffic included. For a veth, frames in flight at
/// the end may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounters {
    /// Packets transmitted.
    pub packets: u64,
    /// Packets dropped in transmission; for a veth, those that found the
    /// peer's ring full.
    pub dropped: u64,
}

/// The outcome of a blast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlastReport {
    /// How the packets were sent.
    pub kind: SenderKind,
    /// The interface that they left by.
    pub interface: String,
    /// Most packets sent back to back.
    pub burst: u32,
    /// Packets of the measured time.
    pub measured: BlastCounts,
    /// Packets of the whole run, warm-up included.
    pub whole: BlastCounts,
    /// Length of the measured time; a little over what was asked for when the
    /// last packets left late.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Packets sent per second of the measured time.
    pub rate: f64,
    /// The interface's own count over the whole run; `None` when the kernel
    /// does not tell.
    pub counters: Option<InterfaceCounters>,
}

/// Requests of a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingCounts {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered in time.
    pub echoed: u64,
    /// Requests given up after the timeout.
    pub lost: u64,
    /// Datagrams that answered no request in flight: late or repeated replies.
    pub unexpected: u64,
    /// Errors that the socket reported and the client lived with:
    /// ECONNREFUSED and other consequences of ICMP, full buffers.
    pub errors: u64,
}

impl Sub for PingCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        PingCounts {
            sent: self.sent.saturating_sub(earlier.sent),
            echoed: self.echoed.saturating_sub(earlier.echoed),
            lost: self.lost.saturating_sub(earlier.lost),
            unexpected: self.unexpected.saturating_sub(earlier.unexpected),
            errors: self.errors.saturating_sub(earlier.errors),
        }
    }
}

/// Round-trip times, ns, to three significant figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Round trips measured.
    pub samples: u64,
    /// The shortest.
    pub min: u64,
    /// Their mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 90 % were at most this.
    pub p90: u64,
    /// 99 % were at most this.
    pub p99: u64,
    /// 99.9 % were at most this.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    /// The summary of a histogram of nanoseconds; `None` when it is empty.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        Some(Latency {
            samples: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        })
    }
}

/// The outcome of a ping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingReport {
    /// Requests of the measured time.
    pub measured: PingCounts,
    /// Requests of the whole run, warm-up included.
    pub whole: PingCounts,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Echoes per second of the measured time.
    pub rate: f64,
    /// Round trips that ended in the measured time. Beside a blast a reply may
    /// wait for one burst to be sent before it is looked at. `None` when
    /// nothing was echoed.
    pub latency: Option<Latency>,
}

/// The outcome of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Of the blast, if there was one.
    pub blast: Option<BlastReport>,
    /// Of the ping, if there was one.
    pub ping: Option<PingReport>,
    /// True when the run was stopped before its end.
    pub stopped: bool,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before measuring.
    WarmUp,
    /// While measuring.
    Measuring,
}

/// What happened since the last progress, about 200 ms ago.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Time since the run began.
    #[serde(with = "seconds")]
    pub elapsed: Duration,
    /// Time that the numbers below are for.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Part of the run.
    pub phase: Phase,
    /// Packets of the blast.
    pub blast: Option<BlastCounts>,
    /// Requests of the ping.
    pub ping: Option<PingCounts>,
    /// Round trips of the ping.
    pub latency: Option<Latency>,
}
