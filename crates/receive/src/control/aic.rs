//! Adaptive interrupt coalescing: QAPolling's rule, moving the interrupt rate
//! instead of the budget (RHIP §V.B, after Indiresan, Mehra & Shin, 1998).
//!
//! What the text leaves open:
//! - *the range*: "the low bound of the interrupt rate is 1 each second". One
//!   interrupt a second leaves a ring of 256 frames full for all but a moment of
//!   it; here the limit of the interval (1 ms at most) takes its place. No upper
//!   bound is named: here one interrupt a frame, T = 0;
//! - *α = 2 and β = 1 of a rate*: α multiplies T outside the band. One interrupt
//!   a second more or less is nothing at all, so β is a step of T, of 8 µs;
//! - *a beginning*: the rate of T = 0 is whatever the load is, so that it cannot
//!   be halved; the first cut sets one step;
//! - *the budget* stays at its largest, as in NAPI, and so does what ksoftirqd
//!   does: with Tp + Ta ≥ 1/λ no interval cures an overflow (proposition 8).

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
            interrupt_interval: self.interval,
        }
    }

    fn round(&mut self, round: &Round) {
        if self.band.is_over(round) {
            self.interval = self
                .interval
                .saturating_mul(2)
                .max(STEP)
                .min(self.limits.interrupt_interval);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let verdict = self.band.judge(interval);
        self.interval = match verdict {
            // α outside the band.
            Verdict::Raise if self.interval <= STEP => Duration::ZERO,
            Verdict::Raise => self.interval / 2,
            // β inside it.
            Verdict::Up => self.interval.saturating_sub(STEP),
            Verdict::Down => self
                .interval
                .saturating_add(STEP)
                .min(self.limits.interrupt_interval),
            Verdict::Keep => self.interval,
        };
    }
}
