//! Linux's NAPI: a fixed budget, leftovers to ksoftirqd, an interrupt whenever
//! the device is empty (RHIP §II.C).

use std::time::Duration;

use super::{Interval, Limits, Policy, Round, Setting};

/// Sets the largest budget and no interval, whatever happens.
#[derive(Debug)]
pub(super) struct Napi {
    budget: u32,
}

impl Napi {
    pub(super) fn new(limits: Limits) -> Self {
        Napi {
            budget: limits.budget,
        }
    }
}

impl Policy for Napi {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interval: Duration::ZERO,
        }
    }

    fn round(&mut self, _: &Round) {}

    fn interval(&mut self, _: &Interval) {}
}
