//! The results of S-clients.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Distribution, Times};
use crate::spec::seconds;

counts! {
    /// Connections of S-clients. `offered` = `begun` + `skipped` + `no_room`. Each of
    /// those begun ends in exactly one of `gave_up`, `refused`, `local_errors`, `failed`,
    /// `malformed`, `timeouts`, `responses` and `other_status`, or is unfinished.
    SClientCounts {
        /// Connections that the schedule had reached.
        offered,
        /// Not begun: the generator was more than a fifth of T behind its schedule.
        skipped,
        /// Not begun: the maximum was open.
        no_room,
        /// Connections begun.
        begun,
        /// Connected within T, their request sent and handed to the handler.
        connected,
        /// Not connected within T: closed, and replaced by another one.
        gave_up,
        /// Refused, or reset before the request was sent.
        refused,
        /// Impossible to begin: no port, no descriptor, no route. The generator's fault.
        local_errors,
        /// Closed or reset by the server before the response was whole.
        failed,
        /// Answered by something other than an HTTP/1.1 response, or by one in chunks,
        /// whose end this client does not look for.
        malformed,
        /// Connected, but without a complete response in time.
        timeouts,
        /// Complete responses of status 200.
        responses,
        /// Complete responses of another status.
        other_status,
    }
}

impl SClientCounts {
    /// Returns the connections that have ended in any way.
    pub fn ended(&self) -> u64 {
        self.gave_up
            + self.refused
            + self.local_errors
            + self.failed
            + self.malformed
            + self.timeouts
            + self.responses
            + self.other_status
    }
}

/// The outcome of S-clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SClientReport {
    /// Counts of the measured time.
    pub measured: SClientCounts,
    /// Counts of the whole run, warm-up included.
    pub whole: SClientCounts,
    /// Connections that were still in progress at the end.
    pub unfinished: u64,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Connections begun per second of the measured time: the load offered to the server.
    pub offered_rate: f64,
    /// Responses of status 200 per second of the measured time.
    pub rate: f64,
    /// From the beginning of a connection until it was established.
    pub connect: Option<Distribution>,
    /// From when a connection was due (corrected) or begun (raw) to the end of its
    /// response, whatever its status. Connections without a response are not included:
    /// see the counts.
    pub response: Times,
    /// The first of the errors behind [`SClientCounts::local_errors`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_error: Option<String>,
}

impl SClientReport {
    /// Adds the counts and rates of other S-clients of the same server that ran beside
    /// these for as long. The distributions remain those of these S-clients.
    pub fn join(&mut self, other: &SClientReport) {
        self.measured = self.measured + other.measured;
        self.whole = self.whole + other.whole;
        self.unfinished += other.unfinished;
        self.offered_rate += other.offered_rate;
        self.rate += other.rate;
        if self.local_error.is_none() {
            self.local_error.clone_from(&other.local_error);
        }
    }
}
