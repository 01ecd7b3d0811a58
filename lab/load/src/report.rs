//! The results of a load: plain values, written to JSON. Times are nanoseconds unless a
//! name says otherwise.

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

/// Returns the rate of a count in a time; zero if the time is.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => count as f64 / time.as_secs_f64(),
    }
}

counts! {
    /// Packets of a blast. `offered` = `sent` + `ring_full` + `skipped`.
    BlastCounts {
        /// Packets that the schedule had reached.
        offered,
        /// Packets that the kernel accepted. A full ring at the far end of a veth may
        /// still have lost some: see [`InterfaceCounters::dropped`].
        sent,
        /// Packets abandoned because the transmit ring or socket buffer was full.
        ring_full,
        /// Packets skipped because the generator was more than 10 ms behind its schedule:
        /// it could not keep the rate, or lost its processor.
        skipped,
    }
}

/// The kernel's counters of the sending interface between the run's beginning and its
/// end, all traffic included. For a veth, frames in flight at the end may be missing.
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
    /// The interface that sent them.
    pub interface: String,
    /// Most packets sent back to back.
    pub burst: u32,
    /// Packets of the measured time.
    pub measured: BlastCounts,
    /// Packets of the whole run, warm-up included.
    pub whole: BlastCounts,
    /// Length of the measured time; a little over the requested time if the last packets
    /// left late.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Packets sent per second of the measured time.
    pub rate: f64,
    /// The interface's own count over the whole run; `None` if the kernel does not report
    /// it.
    pub counters: Option<InterfaceCounters>,
}

counts! {
    /// Requests of a ping.
    PingCounts {
        /// Requests sent.
        sent,
        /// Requests answered in time.
        echoed,
        /// Requests abandoned after the timeout.
        lost,
        /// Datagrams that answered no request in flight: late or repeated replies.
        unexpected,
        /// Socket errors that the client tolerated: ECONNREFUSED and other consequences
        /// of ICMP, full buffers.
        errors,
        /// Requests of an open loop skipped unsent: more than a second behind.
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
    /// Returns the summary of a histogram of nanoseconds; `None` if it is empty.
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
    /// Round trips that ended in the measured time. Beside a blast, a reply may wait
    /// until one burst is sent before it is read. `None` if nothing was echoed.
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
        /// Complete responses of status 200.
        responses,
        /// Complete responses of another status.
        other_status,
        /// Requests whose connection was reset or closed, or whose answer was not an
        /// HTTP/1.1 response.
        failed,
        /// Requests abandoned after the timeout.
        timeouts,
        /// Connections begun.
        connects,
        /// Connections established within the timeout.
        connected,
        /// Connections refused, reset or impossible to begin.
        connect_failures,
        /// Connections abandoned after the timeout.
        connect_timeouts,
        /// Requests of an open loop that were skipped unsent: the client was hopelessly
        /// behind.
        skipped,
    }
}

/// The outcome of an HTTP client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HttpReport {
    /// Counts of the measured time.
    pub measured: HttpCounts,
    /// Counts of the whole run, warm-up included.
    pub whole: HttpCounts,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Responses of status 200 per second of the measured time.
    pub rate: f64,
    /// Response times of the responses that ended in the measured time. A time runs from
    /// the request to the end of its response. In an open loop it runs from when the
    /// request was due; with one request per connection, from the beginning of the
    /// connection. `None` if there were none.
    pub latency: Option<Latency>,
    /// From the beginning of a connection until it was established.
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
    /// Clients connected within the timeout.
    pub connected: u64,
    /// Connected clients that received the document within the timeout after that.
    pub answered: u64,
    /// Connections that were refused or reset before they were established.
    pub refused: u64,
    /// From the beginning of a connection until it was established.
    pub connect: Option<Latency>,
}

/// The outcome of a byte stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Bytes that the peer acknowledged (bulk) or sent back (echo) in the
    /// measured time.
    pub bytes: u64,
    /// The same, per second.
    pub rate: f64,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Round trips of an echo. `None` if there were none.
    pub latency: Option<Latency>,
}

/// The outcome of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// The blast, if there was one.
    pub blast: Option<BlastReport>,
    /// The ping, if there was one.
    pub ping: Option<PingReport>,
    /// The further closed loops, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<PingReport>,
    /// The HTTP client, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReport>,
    /// The S-clients, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s_clients: Option<SClientReport>,
    /// The prober, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeReport>,
    /// The idle connections, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// The stream, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamReport>,
    /// True if the run was stopped before its end.
    pub stopped: bool,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before the run begins: idle connections are being opened. Times count from the
    /// beginning of the opening.
    Opening,
    /// Before measuring.
    WarmUp,
    /// While measuring.
    Measuring,
}

/// The changes since the last progress, about 200 ms ago.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Time since the run began.
    #[serde(with = "seconds")]
    pub elapsed: Duration,
    /// Period of the numbers below.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Part of the run.
    pub phase: Phase,
    /// Packets of the blast.
    pub blast: Option<BlastCounts>,
    /// Requests of the ping.
    pub ping: Option<PingCounts>,
    /// Counts of the HTTP client.
    #[serde(default)]
    pub http: Option<HttpCounts>,
    /// Counts of the S-clients.
    #[serde(default)]
    pub s_clients: Option<SClientCounts>,
    /// Counts of the idle connections.
    #[serde(default)]
    pub idle: Option<IdleCounts>,
    /// Round trips of the ping. Without a ping, response times of the HTTP client; with
    /// neither, those of S-clients, corrected.
    pub latency: Option<Latency>,
}

impl Progress {
    /// Returns a progress in which nothing has happened.
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
