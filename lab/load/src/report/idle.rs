//! The results of idle connections.

use serde::{Deserialize, Serialize};

counts! {
    /// Idle connections, from when they were first opened. Each of those `begun` was
    /// `opened`, `failed` or `timed_out`, or is being opened. Each of those opened was
    /// `closed` or `reset` by the server, or is open.
    IdleCounts {
        /// Connections begun.
        begun,
        /// Connections established, and answered if a response was requested.
        opened,
        /// Refused, reset, closed or answered wrongly before they were open, or
        /// impossible to begin.
        failed,
        /// Not open within 10 s, or when the run began.
        timed_out,
        /// Closed by the server once they were open.
        closed,
        /// Reset by the server, or broken otherwise, once they were open.
        reset,
        /// Bytes that trickled.
        bytes_sent,
        /// Bytes that were sipped.
        bytes_read,
    }
}

impl IdleCounts {
    /// Connections open.
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.closed + self.reset)
    }
}

/// The results of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    /// Open when the run began, and answered if a response was requested.
    pub opened: u32,
    /// Open at its end.
    pub kept: u32,
    /// Time of the opening, ms.
    pub opening_ms: u64,
    /// Events from the first opening to the end.
    #[serde(default)]
    pub counts: IdleCounts,
}
