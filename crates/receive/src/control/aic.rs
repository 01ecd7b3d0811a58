//! Adaptive interrupt coalescing: QAPolling's rule, moving the interrupt rate
//! instead of the budget (RHIP §V.B, after Indiresan, Mehra & Shin, 1998).

use std::time::Duration;

use super::qapolling::{Band, Verdict};
use super::{Interval, Limits, Policy, Round, Setting};

/// The least interval that is not zero: interrupts that the timers of current
/// machines can still tell apart.
const STEP: Duration = Duration::from_micros(8);

/// Sets the largest budget, and the interval by the buffers.
#[derive(Debug)]
pub(super) struct Aic {
    limits: Limits,
    band: Band,
    interval: Duration,
}

impl Aic {
    pub(super) fn new(limits: Limits) -> Self {
        Aic {
            limits,
            band: Band::default(),
            interval: Duration::ZERO,
        }
    }
}

impl Policy for Aic {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.limits.budget,
            interval: self.interval,
        }
    }

    fn round(&mut self, round: &Round) {
        if self.band.is_over(round) {
            self.interval = (self.interval * 2).max(STEP).min(self.limits.interval);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let verdict = self.band.judge(interval);
        self.interval = match verdict {
            // α = 2 outside the band, as for the budget.
            Verdict::Raise if self.interval <= STEP => Duration::ZERO,
            Verdict::Raise => self.interval / 2,
            // β = 1 inside it: one step.
            Verdict::Up => self.interval.saturating_sub(STEP),
            Verdict::Down => (self.interval + STEP).min(self.limits.interval),
            Verdict::Keep => self.interval,
        };
    }
}
