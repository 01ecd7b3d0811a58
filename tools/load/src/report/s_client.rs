//! What S-clients did.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Distribution, Times};
use crate::spec::seconds;

/// Connections of S-clients. `offered` = `begun` + `skipped` + `no_room`; of
/// those begun, each ends in exactly one of `gave_up`, `refused`,
/// `local_errors`, `failed`, `malformed`, `timeouts`, `responses` and
/// `other_status`, or is unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SClientCounts {
    /// Connections that the schedule had come to.
    pub offered: u64,
    /// Not begun: the generator was more than a fifth of T behind its schedule.
    pub skipped: u64,
    /// Not begun: as many as allowed were open.
    pub no_room: u64,
    /// Connections begun.
    pub begun: u64,
    /// Of these, connected within T, their request sent and handed to the
    /// handler.
    pub connected: u64,
    /// Not connected within T: closed, another one taking their turn.
    pub gave_up: u64,
    /// Refused, or reset before the request was sent.
    pub refused: u64,
    /// Not to be begun: no port, no descriptor, no way there. The generator's
    /// fault.
    pub local_errors: u64,
    /// Closed or reset by the server before the response was whole.
    pub failed: u64,
    /// Answered by what is no HTTP/1.1 response, or by one in chunks, whose
    /// end this client does not look for.
    pub malformed: u64,
    /// Connected and without a whole response in time.
    pub timeouts: u64,
    /// Whole responses of status 200.
    pub responses: u64,
    /// Whole responses of another status.
    pub other_status: u64,
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

impl Sub for SClientCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        SClientCounts {
            offered: self.offered.saturating_sub(earlier.offered),
            skipped: self.skipped.saturating_sub(earlier.skipped),
            no_room: self.no_room.saturating_sub(earlier.no_room),
            begun: self.begun.saturating_sub(earlier.begun),
            connected: self.connected.saturating_sub(earlier.connected),
            gave_up: self.gave_up.saturating_sub(earlier.gave_up),
            refused: self.refused.saturating_sub(earlier.refused),
            local_errors: self.local_errors.saturating_sub(earlier.local_errors),
            failed: self.failed.saturating_sub(earlier.failed),
            malformed: self.malformed.saturating_sub(earlier.malformed),
            timeouts: self.timeouts.saturating_sub(earlier.timeouts),
            responses: self.responses.saturating_sub(earlier.responses),
            other_status: self.other_status.saturating_sub(earlier.other_status),
        }
    }
}

impl Add for SClientCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        SClientCounts {
            offered: self.offered.saturating_add(other.offered),
            skipped: self.skipped.saturating_add(other.skipped),
            no_room: self.no_room.saturating_add(other.no_room),
            begun: self.begun.saturating_add(other.begun),
            connected: self.connected.saturating_add(other.connected),
            gave_up: self.gave_up.saturating_add(other.gave_up),
            refused: self.refused.saturating_add(other.refused),
            local_errors: self.local_errors.saturating_add(other.local_errors),
            failed: self.failed.saturating_add(other.failed),
            malformed: self.malformed.saturating_add(other.malformed),
            timeouts: self.timeouts.saturating_add(other.timeouts),
            responses: self.responses.saturating_add(other.responses),
            other_status: self.other_status.saturating_add(other.other_status),
        }
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
