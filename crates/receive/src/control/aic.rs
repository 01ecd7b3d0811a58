//! Adaptive interrupt coalescing: QAPolling's rule, moving the interrupt rate instead of
//! the budget (RHIP §V.B, after Indiresan, Mehra & Shin, 1998).
//!
//! Open points in the text, and the choices here:
//! - *the range*: "the low bound of the interrupt rate is 1 each second". One interrupt
//!   per second leaves a ring of 256 frames full for all but a moment of it; here the
//!   limit of the interval (1 ms at most) replaces it. The text names no upper bound:
//!   here it is one interrupt per frame, T = 0;
//! - *α = 2 and β = 1 of a rate*: α multiplies T outside the band. One interrupt per
//!   second more or less has no effect, so β is a step of T, of 8 µs;
//! - *a starting point*: the rate at T = 0 is whatever the load is, so it cannot be
//!   halved; the first cut sets one step;
//! - *the budget* stays at its maximum, as in NAPI, and ksoftirqd is unchanged: with Tp +
//!   Ta ≥ 1/λ no interval cures an overflow (proposition 8).

use std::time::Duration;

use super::qapolling::{Band, Verdict};
use super::{Interval, Limits, Policy, Round, Setting};

/// The least nonzero interval, which timers of current machines can still resolve.
const STEP: Duration = Duration::from_micros(8);

/// Keeps the budget at its maximum, and sets the interval by the buffers.
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
