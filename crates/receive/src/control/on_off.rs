//! Queue feedback of Mogul & Ramakrishnan (TOCS 15(3), 1997, §6.6.1). Polling stops while
//! a queue is nearly full and resumes when it has drained, or after a clock tick at the
//! latest. RHIP §II.D calls it PollingQon/off: "the nature of the disable operation is
//! setting Bp to zero".
//!
//! Choices made here:
//! - *which queue*: theirs was the one queue of the screening daemon. Here the fullest of
//!   several channels counts;
//! - *the timeout*: theirs was one clock tick, about 1 ms, counted from the stop. A
//!   policy's only clock is the sampling interval: the timeout is the first end of an
//!   interval after the stop, 10 ms at the latest. A receiver that is still stuck then
//!   costs one more quota, since the next round stops again;
//! - *while stopped* the poller must continue to report what it finds, in rounds that
//!   take nothing. Otherwise only the timeout would end the stop.

use std::time::Duration;

use super::{Interval, Limits, Policy, Round, Setting};

/// Packets per round while polling: they found 5 to 20 best, and a quota beyond a queue's
/// length pointless.
const QUOTA: u32 = 20;
/// Use of the queue at which polling stops and resumes: theirs, of a queue of 32.
const STOP: f32 = 0.75;
/// See [`STOP`].
const GO: f32 = 0.25;

/// Sets the budget to a quota or to zero.
#[derive(Debug)]
pub(super) struct OnOff {
    quota: u32,
    stopped: bool,
}

impl OnOff {
    pub(super) fn new(limits: Limits) -> Self {
        OnOff {
            quota: QUOTA.min(limits.budget),
            stopped: false,
        }
    }
}

impl Policy for OnOff {
    fn setting(&self) -> Setting {
        Setting {
            budget: if self.stopped { 0 } else { self.quota },
            interrupt_interval: Duration::ZERO,
        }
    }

    fn round(&mut self, round: &Round) {
        if self.stopped {
            self.stopped = round.buffer_use > GO;
        } else {
            self.stopped = round.buffer_use >= STOP;
        }
    }

    fn interval(&mut self, _: &Interval) {
        // The timeout: a receiver that died must not stop everything.
        self.stopped = false;
    }
}
