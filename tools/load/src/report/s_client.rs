//! What S-clients did.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Distribution, Times};
use crate::spec::seconds;

counts! {
    /// Connections of S-clients. `offered` = `begun` + `skipped` + `no_room`; of
    /// those begun, each ends in exactly one of `gave_up`, `refused`,
    /// `local_errors`, `failed`, `malformed`, `timeouts`, `responses` and
    /// `other_status`, or is unfinished.
    SClientCounts {
        /// Connections that the schedule had come to.
        offered,
        /// Not begun: the generator was more than a fifth of T behind its schedule.
        skipped,
        /// Not begun: as many as allowed were open.
        no_room,
        /// Connections begun.
        begun,
        /// Of these, connected within T, their request sent and handed to the
        /// handler.
        connected,
        /// Not connected within T: closed, another one taking their turn.
        gave_up,
        /// Refused, or reset before the request was sent.
        refused,
        /// Not to be begun: no port, no descriptor, no way there. The generator's
        /// fault.
        local_errors,
        /// Closed or reset by the server before the response was whole.
        failed,
        /// Answered by what is no HTTP/1.1 response, or by one in chunks, whose
        /// end this client does not look for.
        malformed,
        /// Connected and without a whole response in time.
        timeouts,
        /// Whole responses of status 200.
        responses,
        /// Whole responses of another status.
        other_status,
    }
}

impl SClientCounts {
    /// Connections that have come to an end, whichever.
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
    /// Of the measured time.
    pub measured: SClientCounts,
    /// Of the whole run, warm-up included.
    pub whole: SClientCounts,
    /// Connections that were still under way at the end.
    pub unfinished: u64,
    /// Length of the measured time.
    #[serde(with = "seconds")]
    pub duration: Duration,
    /// Connections begun per second of the measured time: what the server was
    /// offered.
    pub offered_rate: f64,
    /// Responses of status 200 per second of the measured time.
    pub rate: f64,
    /// From the beginning of a connection until it stood.
    pub connect: Option<Distribution>,
    /// From when a connection was due (corrected) or begun (raw) to the end of
    /// its response, whatever its status. Those that had none are not in it:
    /// see the counts.
    pub response: Times,
    /// The first of the errors behind [`SClientCounts::local_errors`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_error: Option<String>,
}

impl SClientReport {
    /// Adds the counts and rates of other S-clients of the same server, which ran
    /// beside these for as long. The distributions stay those of these alone.
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
