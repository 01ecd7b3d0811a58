//! Linux's NAPI: a fixed budget, leftovers to ksoftirqd, an interrupt whenever the device
//! is empty (RHIP §II.C). If an interval is given it is fixed, too: an administrator sets
//! it with `ethtool -C` or `gro_flush_timeout`.

use super::{Interval, Limits, Policy, Round, Setting};

/// Sets the largest budget and the longest interval, unconditionally.
#[derive(Debug)]
pub(super) struct Napi {
    limits: Limits,
}

impl Napi {
    pub(super) fn new(limits: Limits) -> Self {
        Napi { limits }
    }
}

impl Policy for Napi {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.limits.budget,
            interrupt_interval: self.limits.interrupt_interval,
        }
    }

    fn round(&mut self, _: &Round) {}

    fn interval(&mut self, _: &Interval) {}
}
