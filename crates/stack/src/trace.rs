//! Follows single frames through the stages after the driver.
//!
//! The driver program numbers the next N frames and reports each with its bytes and
//! verdict. The number travels in the frame's metadata, and every later stage adds a line
//! here. A frame that is not followed costs one comparison.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::lock::{Mutex, lock, rank};

/// Lines kept; a trace is bounded by the number of frames asked for, this
/// bounds a mistake.
const LINES: usize = 65_536;

/// One stage of one frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Line {
    /// Number that the driver gave the frame.
    pub frame: u32,
    /// Microseconds since the stack started.
    pub microseconds: u64,
    /// The stage: `delivered`, `dropped`, `fragment`, `icmp-error`; of what is forwarded
    /// `received` and `sent`, and what the user of a forwarder adds
    /// (`Arrived::trace` of tidewall-forward).
    pub stage: String,
    /// The event at that stage.
    pub what: String,
}

/// Lines of the frames being followed.
#[derive(Debug)]
pub struct TraceLog {
    start: Instant,
    lines: Mutex<Vec<Line>, rank::Leaf>,
}

impl Default for TraceLog {
    fn default() -> Self {
        TraceLog {
            start: Instant::now(),
            lines: Mutex::new(Vec::new()),
        }
    }
}

impl TraceLog {
    /// Adds a line if the frame is being followed.
    #[inline]
    pub fn line(&self, frame: u32, stage: &str, what: impl FnOnce() -> String) {
        if frame != 0 {
            self.add(frame, stage, what());
        }
    }

    #[cold]
    fn add(&self, frame: u32, stage: &str, what: String) {
        let mut lines = lock(&self.lines);
        if lines.len() < LINES {
            let microseconds = self.start.elapsed().as_micros() as u64;
            lines.push(Line {
                frame,
                microseconds,
                stage: stage.to_owned(),
                what,
            });
        }
    }

    /// Takes all lines out.
    pub fn take(&self) -> Vec<Line> {
        std::mem::take(&mut lock(&self.lines))
    }
}
