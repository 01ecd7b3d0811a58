//! What became of idle connections.

use serde::{Deserialize, Serialize};

counts! {
    /// Idle connections, from when they were first opened. Of those `begun`, each
    /// was `opened`, `failed` or `timed_out`, or is on its way; of those opened,
    /// each was `closed` or `reset` by the server, or is open.
    IdleCounts {
        /// Connections begun.
        begun,
        /// Connections that stood, and were answered if that was asked for.
        opened,
        /// Refused, reset, closed or answered wrongly before they were open, or not
        /// to be begun.
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
