//! An interrupt per frame, and rounds that end when the device is empty: what systems did
//! before receive livelock had a name.

use std::time::Duration;

use super::{Interval, Limits, Policy, Round, Setting};

/// Sets the largest budget and no interval, unconditionally.
#[derive(Debug)]
pub(super) struct Interrupt {
    budget: u32,
}

impl Interrupt {
    pub(super) fn new(limits: Limits) -> Self {
        Interrupt {
            budget: limits.budget,
        }
    }
}

impl Policy for Interrupt {
    fn setting(&self) -> Setting {
        // Early softirqs had no budget. The receiver's own rounds must end.
        Setting {
            budget: self.budget,
            interrupt_interval: Duration::ZERO,
        }
    }

    fn round(&mut self, _: &Round) {}

    fn interval(&mut self, _: &Interval) {}
}
