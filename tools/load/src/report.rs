//! What a load did: plain values, written to JSON. Times are nanoseconds where
//! a name does not say otherwise.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::spec::{SenderKind, seconds};

/// Counts that add up: a struct of numbers, each documented.
macro_rules! counts {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$note])* pub $field: u64,)*
        }

        impl std::ops::Add for $name {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                $name { $($field: self.$field.saturating_add(other.$field),)* }
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;

            fn sub(self, earlier: Self) -> Self {
                $name { $($field: self.$field.saturating_sub(earlier.$field),)* }
            }
        }
    };
}

mod idle;
mod s_client;
mod times;

pub use idle::{IdleCounts, IdleReport};
pub use s_client::{SClientCounts, SClientReport};
pub use times::{Distribution, Percentile, Times};
pub(crate) use times::{Measures, histogram};

/// So many in a time; none in no time.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => count as f64 / time.as_secs_f64(),
    }
}

counts! {
    /// Packets of a blast. `offered` = `sent` + `ring_full` + `skipped`.
    BlastCounts {
        /// Packets that the schedule had come to.
        offered,
        /// Packets that the kernel took. A full ring at the far end of a veth may
        /// still have lost some: see [`InterfaceCounters::dropped`].
        sent,
        /// Packets given up because the transmit ring or socket buffer was full.
        ring_full,
        /// Packets given up because the generator was more than 10 ms behind its
        /// schedule: it could not keep the rate, or lost its processor.
        skipped,
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
    /// does not report it.
    pub counters: Option<InterfaceCounters>,
}

counts! {
    /// Requests of a ping.
    PingCounts {
        /// Requests sent.
        sent,
        /// Requests answered in time.
        echoed,
        /// Requests given up after the timeout.
        lost,
        /// Datagrams that answered no request in flight: late or repeated replies.
        unexpected,
        /// Errors that the socket reported and the client lived with:
        /// ECONNREFUSED and other consequences of ICMP, full buffers.
        errors,
        /// Requests of an open loop given up unsent: more than a second behind.
        skipped,
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
    /// The same, corrected for coordinated omission and as measured, with their
    /// percentiles.
    #[serde(default)]
    pub response: Times,
}

counts! {
    /// Requests and connections of an HTTP client.
    HttpCounts {
        /// Requests sent.
        requests,
        /// Responses of status 200 that came whole.
        responses,
        /// Whole responses of another status.
        other_status,
        /// Requests whose connection was reset or closed, or whose answer was no
        /// HTTP/1.1 response.
        failed,
        /// Requests given up after the timeout.
        timeouts,
        /// Connections begun.
        connects,
        /// Connections that stood within the timeout.
        connected,
        /// Connections refused, reset or not to be begun.
        connect_failures,
        /// Connections given up after the timeout.
        connect_timeouts,
        /// Requests of an open loop that were given up unsent: the client was
        /// hopelessly behind.
        skipped,
    }
}

/// The outcome of an HTTP client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpReport {
    /// Of the measured time.
    pub measured: HttpCounts,
    /// Of the whole run, warm-up included.
    pub whole: HttpCounts,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Responses of status 200 per second of the measured time.
    pub rate: f64,
    /// From a request (in an open loop from when it was due; with one request a
    /// connection from the beginning of the connection) to the end of its
    /// response, of those that ended in the measured time. `None` when none did.
    pub latency: Option<Latency>,
    /// From the beginning of a connection until it stood.
    pub connect: Option<Latency>,
    /// The same response times, corrected for coordinated omission and as
    /// measured, with their percentiles.
    #[serde(default)]
    pub response: Times,
}

/// The outcome of a prober.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// New clients that began.
    pub begun: u64,
    /// Of these, connected within the timeout.
    pub connected: u64,
    /// Of these, had the document within the timeout after that.
    pub answered: u64,
    /// Connections that were refused or reset before they stood.
    pub refused: u64,
    /// From the beginning of a connection until it stood.
    pub connect: Option<Latency>,
}

/// The outcome of a byte stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Bytes that the peer acknowledged (bulk) or sent back (echo) in the
    /// measured time.
    pub bytes: u64,
    /// The same, a second.
    pub rate: f64,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Round trips of an echo. `None` when there were none.
    pub latency: Option<Latency>,
}

/// The outcome of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Of the blast, if there was one.
    pub blast: Option<BlastReport>,
    /// Of the ping, if there was one.
    pub ping: Option<PingReport>,
    /// Of the further closed loops, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<PingReport>,
    /// Of the HTTP client, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReport>,
    /// Of the S-clients, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s_clients: Option<SClientReport>,
    /// Of the prober, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeReport>,
    /// Of idle connections, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// Of the stream, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamReport>,
    /// True when the run was stopped before its end.
    pub stopped: bool,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before the run begins: idle connections are being opened. Times count
    /// from the beginning of that.
    Opening,
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
    /// Of the HTTP client.
    #[serde(default)]
    pub http: Option<HttpCounts>,
    /// Of the S-clients.
    #[serde(default)]
    pub s_clients: Option<SClientCounts>,
    /// Of the idle connections.
    #[serde(default)]
    pub idle: Option<IdleCounts>,
    /// Round trips of the ping; response times of the HTTP client where there
    /// is no ping, and those of S-clients, corrected, where there is neither.
    pub latency: Option<Latency>,
}

impl Progress {
    /// Nothing has happened.
    pub(crate) fn nothing(phase: Phase) -> Self {
        Progress {
            elapsed: Duration::ZERO,
            interval: Duration::ZERO,
            phase,
            blast: None,
            ping: None,
            http: None,
            s_clients: None,
            idle: None,
            latency: None,
        }
    }
}
