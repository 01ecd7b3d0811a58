//! RHIP (Chang & Muppala, LCN 2007, figure 6).
//!
//! ```text
//! Before a packet is put into a socket buffer   Per each interval
//! 1. if bufUtil > bufUpper then                 1. if ksoftirqd is inactive in the last interval,
//! 2.   if 1/T > 8000 then                       3.   or bufUtil was never above bufLow,
//! 3.     increase T                             5.   or bufUtil was never above bufUpper then
//! 4.   else                                     6.   if Bp < 300 then
//! 5.     decrease Bp                            7.     increase Bp
//!                                               8.   else
//!                                               9.     decrease T
//! ```
//!
//! The order matters. On overflow it coalesces first and cuts the budget only when that
//! is used up. On recovery it restores the budget first and the interrupt rate last.
//!
//! Open points in the text, and the choices here:
//! - *one step per round*, not one per packet: nine packets over the threshold in one
//!   round would reduce the budget from 300 to 1;
//! - *"RHIP decreases T by 10 % and increases T by 500"*: T is lengthened by taking 500
//!   interrupts/s from its rate, and shortened by a tenth of the ceiling. Tried: a tenth
//!   of itself, which is still at 30 µs when the load has been gone for 200 ms, and ends
//!   only at an arbitrary least T. A rate needs a starting point: the first step sets
//!   1/16 of the ceiling (the rate of one interrupt per frame is whatever the load is).
//!   From there, −500/s takes 234 rounds to the ceiling, and the buffers overflow
//!   meanwhile; so a step also at least doubles T (five rounds);
//! - *α and β* as in [`super::qapolling`]: a cut halves, a recovery outside the band
//!   doubles, inside it one frame is added. Figure 6 has no step down inside the band,
//!   unlike QAPolling's: none here;
//! - *how much line 7 adds when line 1 led there*: α, since a budget that no round used
//!   up is not what limits goodput. Tried: β, which takes 30 s to 3,000, and T cannot
//!   shrink before. If a buffer was still over the threshold, β;
//! - *line 9 and overflow*: the text adds "and there is no rcv_buffer overflow" to the
//!   condition of T. So an interval that overflowed does not shorten it, even when
//!   ksoftirqd was inactive;
//! - *Bp < 300* is the paper's netdev_budget, of which a softirq takes ten: it stands for
//!   the largest budget here;
//! - *ksoftirqd inactive* means "no round used up its budget";
//! - *an interval without frames* restores the budget at once, as QAPolling's daemon
//!   does.

use std::time::Duration;

use super::qapolling::{Band, Verdict, cut, raise};
use super::{Interval, Limits, Policy, Round, Setting};

/// The longest interval: 1/8000 s.
const CEILING: Duration = Duration::from_micros(125);
/// The first step from one interrupt a frame.
const FIRST: Duration = Duration::from_micros(8);
/// Interrupts per second that a step removes.
const RATE_STEP: f64 = 500.0;

/// Sets the interval first, then the budget; recovers in the opposite order.
#[derive(Debug)]
pub(super) struct Rhip {
    limits: Limits,
    ceiling: Duration,
    /// A tenth of it.
    tenth: Duration,
    band: Band,
    budget: u32,
    interval: Duration,
}

impl Rhip {
    pub(super) fn new(limits: Limits) -> Self {
        let ceiling = CEILING.min(limits.interrupt_interval);
        Rhip {
            limits,
            ceiling,
            // Rounded up: ten steps end at zero, not at a remainder.
            tenth: ceiling.saturating_add(Duration::from_nanos(9)) / 10,
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
        self.interval = by_rate
            .max(self.interval.saturating_mul(2))
            .max(FIRST)
            .min(self.ceiling);
    }

    fn shorten(&mut self) {
        self.interval = self.interval.saturating_sub(self.tenth);
    }
}

impl Policy for Rhip {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interrupt_interval: self.interval,
        }
    }

    fn round(&mut self, round: &Round) {
        if !self.band.is_over(round) {
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
        let inactive = interval.exhausted == 0;
        let over = self.band.was_over(interval);
        if over && !inactive {
            return;
        }
        let largest = self.limits.budget;
        if self.budget < largest {
            self.budget = if interval.is_idle() {
                largest
            } else if verdict == Verdict::Raise || (inactive && !over) {
                raise(self.budget, largest)
            } else {
                self.budget.saturating_add(1).min(largest)
            };
        } else if interval.overflowed == 0 {
            self.shorten();
        }
    }
}
