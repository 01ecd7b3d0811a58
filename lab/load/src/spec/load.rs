//! Several loads on one thread.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    BlastSpec, DURATION_MAX, HttpSpec, IdleSpec, PingSpec, ProbeSpec, SClientSpec, StreamSpec,
    invalid, seconds,
};

/// A whole load on one thread: any of a blast, closed loops over UDP, an HTTP client,
/// S-clients, a prober, idle connections and a byte stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The open-loop stream.
    #[serde(default)]
    pub blast: Option<BlastSpec>,
    /// The closed loop over UDP.
    #[serde(default)]
    pub ping: Option<PingSpec>,
    /// Closed loops to further services, at most [`LoadSpec::BESIDE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<PingSpec>,
    /// The HTTP client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// S-clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s_clients: Option<SClientSpec>,
    /// New clients, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,
    /// Connections that are opened before the run begins and then only kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleSpec>,
    /// One TCP connection: round trips or bulk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamSpec>,
    /// Time before measuring begins; the load is already on.
    #[serde(default, with = "seconds")]
    pub warm_up: Duration,
    /// Time measured, over zero; with the warm-up at most [`DURATION_MAX`].
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Processor to run on. `None`: any on which the caller may run.
    #[serde(default)]
    pub cpu: Option<usize>,
}

impl LoadSpec {
    /// Most closed loops in [`LoadSpec::beside`].
    pub const BESIDE_MAX: usize = 7;

    /// Returns an empty load of `duration`, without a warm-up, on any processor: to be
    /// filled in.
    pub fn new(duration: Duration) -> Self {
        LoadSpec {
            blast: None,
            ping: None,
            beside: Vec::new(),
            http: None,
            s_clients: None,
            probe: None,
            idle: None,
            stream: None,
            warm_up: Duration::ZERO,
            duration,
            cpu: None,
        }
    }

    /// Returns true with any part that waits for answers.
    pub(crate) fn is_answered(&self) -> bool {
        self.ping.is_some()
            || self.http.is_some()
            || self.s_clients.is_some()
            || self.probe.is_some()
            || self.stream.is_some()
            || !self.beside.is_empty()
    }

    /// Checks every range, including those of the parts.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn check(&self) -> io::Result<()> {
        if self.blast.is_none() && !self.is_answered() && self.idle.is_none() {
            return Err(invalid(
                "a load needs a blast, a ping, an HTTP client, S-clients, a prober, idle connections \
                 or a stream",
            ));
        }
        if self.duration.is_zero() || self.duration.saturating_add(self.warm_up) > DURATION_MAX {
            return Err(invalid(
                "the duration must be over zero and, with the warm-up, at most an hour",
            ));
        }
        if self.beside.len() > LoadSpec::BESIDE_MAX {
            return Err(invalid(format!(
                "at most {} further closed loops can be run",
                LoadSpec::BESIDE_MAX
            )));
        }
        if let Some(probe) = &self.probe
            && probe.timeout >= self.duration
        {
            return Err(invalid(
                "the duration must be longer than a probe's timeout: probes begin as long as \
                 their timeout ends within it",
            ));
        }
        self.blast.as_ref().map_or(Ok(()), BlastSpec::check)?;
        self.ping.as_ref().map_or(Ok(()), PingSpec::check)?;
        self.beside.iter().try_for_each(PingSpec::check)?;
        self.http.as_ref().map_or(Ok(()), HttpSpec::check)?;
        self.s_clients.as_ref().map_or(Ok(()), SClientSpec::check)?;
        self.probe.as_ref().map_or(Ok(()), ProbeSpec::check)?;
        self.idle.as_ref().map_or(Ok(()), IdleSpec::check)?;
        self.stream.as_ref().map_or(Ok(()), StreamSpec::check)
    }
}
