//! The segments that a network's hosts send and receive, for finding causes.

use std::fmt;
use std::time::Duration;

use tidewall_wire::tcp::{Flags, Header};

use super::FlowId;

/// A segment as seen at its sender or its receiver.
#[derive(Clone, Debug)]
pub struct TraceEntry {
    /// The time.
    pub at: Duration,
    /// The flow.
    pub flow: FlowId,
    /// True if the client sent it; otherwise the server did.
    pub from_client: bool,
    /// True if it has arrived; otherwise it was sent.
    pub arrived: bool,
    /// Its header.
    pub header: Header,
    /// Bytes of payload.
    pub length: usize,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match (self.from_client, self.arrived) {
            (true, false) => "client >      ",
            (true, true) => "       > server",
            (false, false) => "       < server",
            (false, true) => "client <      ",
        };
        let Header {
            sequence, flags, ..
        } = self.header;
        let microseconds = self.at.as_micros();
        write!(
            f,
            "{:>6}.{:06} {} {way:<15} {flags:?} {sequence}+{}",
            microseconds / 1_000_000,
            microseconds % 1_000_000,
            self.flow.0,
            self.length
        )?;
        if flags.contains(Flags::ACK) {
            write!(f, " ack {}", self.header.acknowledgment)?;
        }
        write!(f, " win {}", self.header.window)?;
        for (start, end) in self.header.options.sack.as_slice() {
            write!(f, " sack {start}-{end}")?;
        }
        Ok(())
    }
}
