//! Records receive control's input, for replaying it elsewhere.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Activity, Round};

/// The columns of a recording.
pub const COLUMNS: &str = "time_us,frames,exhausted,buffer_use,overflowed,interrupted,sent";

/// The first rounds after [`Recorder::start`], one CSV line each ([`COLUMNS`]). While it
/// does not record it costs one load per round.
#[derive(Debug, Default)]
pub struct Recorder {
    left: AtomicUsize,
    text: Mutex<String>,
}

impl Recorder {
    /// Discards the recording and records the next `rounds`.
    pub fn start(&self, rounds: usize) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.clear();
        text.push_str(COLUMNS);
        text.push('\n');
        self.left.store(rounds, Ordering::Relaxed);
    }

    /// The recording so far; empty if it was never started.
    pub fn text(&self) -> String {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn round(&self, now: Duration, round: &Round, activity: Activity) {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{},{},{},{:.3},{},{},{}",
            now.as_micros(),
            round.frames,
            u8::from(round.exhausted),
            round.buffer_use,
            round.overflowed,
            u8::from(activity.interrupted),
            activity.sent
        );
    }
}
