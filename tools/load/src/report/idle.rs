//! What became of idle connections.

use std::ops::Sub;

use serde::{Deserialize, Serialize};

/// Idle connections, from when they were first opened. Of those `begun`, each
/// was `opened`, `failed` or `timed_out`, or is on its way; of those opened,
/// each was `closed` or `reset` by the server, or is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleCounts {
    /// Connections begun.
    pub begun: u64,
    /// Connections that stood, and were answered if that was asked for.
    pub opened: u64,
    /// Refused, reset, closed or answered wrongly before they were open, or not
    /// to be begun.
    pub failed: u64,
    /// Not open within 10 s, or when the run began.
    pub timed_out: u64,
    /// Closed by the server once they were open.
    pub closed: u64,
    /// Reset by the server, or broken otherwise, once they were open.
    pub reset: u64,
    /// Bytes that trickled.
    pub bytes_sent: u64,
    /// Bytes that were sipped.
    pub bytes_read: u64,
}

impl IdleCounts {
    /// Connections open.
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.closed + self.reset)
    }
}

impl Sub for IdleCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        IdleCounts {
            begun: self.begun.saturating_sub(earlier.begun),
            opened: self.opened.saturating_sub(earlier.opened),
            failed: self.failed.saturating_sub(earlier.failed),
            timed_out: self.timed_out.saturating_sub(earlier.timed_out),
            closed: self.closed.saturating_sub(earlier.closed),
            reset: self.reset.saturating_sub(earlier.reset),
            bytes_sent: self.bytes_sent.saturating_sub(earlier.bytes_sent),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
        }
    }
}

/// What became of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    /// Open, and answered if asked for, when the run began.
    pub opened: u32,
    /// Open at its end.
    pub kept: u32,
    /// Time that opening took, ms.
    pub opening_ms: u64,
    /// What happened, from when they were first opened to the end.
    #[serde(default)]
    pub counts: IdleCounts,
}
