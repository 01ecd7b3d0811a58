//! RHIP (Chang & Muppala, LCN 2007, figure 6).
//!
//! ```text
//! Before a packet is put into a socket buffer       Per each interval
//! 1. if bufUtil > bufUpper then                     1. if ksoftirqd is inactive in the last interval,
//! 2.   if 1/T > 8000 then                           3.   or bufUtil was never above bufLow,
//! 3.     increase T                                 5.   or bufUtil was never above bufUpper then
//! 4.   else                                         6.   if Bp < 300 then
//! 5.     decrease Bp                                7.     increase Bp
//!                                                   8.   else
//!                                                   9.     decrease T
//! ```
//!
//! The order is the point: on overflow coalesce first and cut the budget only
//! when that is used up; on recovery restore the budget first and the interrupt
//! rate last.
//!
//! What the text leaves open, and what is done here:
//! - *one step a round*, not one a packet: nine packets over the threshold in
//!   one round would take the budget from 300 to 1;
//! - *"RHIP decreases T by 10 % and increases T by 500"*: T is lengthened by
//!   taking 500 interrupts/s from its rate, and shortened by a tenth. A rate
//!   needs a beginning: the first step sets 1/16 of the ceiling (the rate of
//!   one interrupt a frame is whatever the load is). Tried: −500/s from the
//!   measured rate takes 180 rounds from 100,000/s to the ceiling, and the
//!   buffers overflow meanwhile; so a step also at least doubles T;
//! - *α and β* as in [`super::qapolling`]: a cut halves, a recovery outside the
//!   band doubles, inside it one frame is added;
//! - *Bp < 300* is the paper's netdev_budget, of which a softirq takes ten: it
//!   stands for the largest budget here;
//! - *ksoftirqd inactive* is "no round used up its budget".

use std::time::Duration;

use super::qapolling::{Band, Verdict, cut, raise};
use super::{Interval, Limits, Policy, Round, Setting};

/// The longest interval: 1/8000 s.
const CEILING: Duration = Duration::from_micros(125);
/// The first step from one interrupt a frame.
const FIRST: Duration = Duration::from_micros(8);
/// Interrupts a second taken off by a step.
const RATE_STEP: f64 = 500.0;

/// Sets the interval first, then the budget; back in the opposite order.
#[derive(Debug)]
pub(super) struct Rhip {
    limits: Limits,
    ceiling: Duration,
    band: Band,
    budget: u32,
    interval: Duration,
}

impl Rhip {
    pub(super) fn new(limits: Limits) -> Self {
        Rhip {
            limits,
            ceiling: CEILING.min(limits.interval),
            band: Band::default(),
            budget: limits.budget,
            interval: Duration::ZERO,
        }
    }

    fn lengthen(&mut self) {
        let rate = 1.0 / self.interval.as_secs_f64().max(f64::MIN_POSITIVE) - RATE_STEP;
        let by_rate = if rate > 0.0 {
            Duration::try_from_secs_f64(1.0 / rate).unwrap_or(self.ceiling)
        } else {
            self.ceiling
        };
        self.interval = by_rate.max(self.interval * 2).max(FIRST).min(self.ceiling);
    }

    fn shorten(&mut self) {
        self.interval = self.interval.mul_f64(0.9);
        if self.interval < FIRST {
            self.interval = Duration::ZERO;
        }
    }
}

impl Policy for Rhip {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interval: self.interval,
        }
    }

    fn round(&mut self, round: &Round) {
        if round.frames == 0 || !self.band.is_over(round) {
            return;
        }
        if self.interval < self.ceiling {
            self.lengthen();
        } else {
            self.budget = cut(self.budget);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let verdict = self.band.judge(interval);
        // Figure 6, lines 1 to 5: the last covers the second.
        let recovered = interval.exhausted == 0 || !self.band.was_over(interval);
        if !recovered {
            return;
        }
        if self.budget < self.limits.budget {
            self.budget = match verdict {
                Verdict::Raise => raise(self.budget, self.limits.budget),
                _ if interval.frames == 0 => self.limits.budget,
                _ => (self.budget + 1).min(self.limits.budget),
            };
        } else {
            self.shorten();
        }
    }
}
