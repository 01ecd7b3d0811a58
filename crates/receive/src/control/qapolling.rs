//! QAPolling (Chang & Muppala, IPCCC 2007), as RHIP §II.C describes it: the budget
//! follows the use of the receive buffers, between two thresholds.
//!
//! Open points in the text (the specification, IPCCC 2007, is not at hand), and the
//! choices here:
//! - *α = 2 and β = 1* are named without an explanation. Here α multiplies outside the
//!   band (a cut halves, a recovery doubles), β adds inside it, frames per interval.
//!   Tried and rejected: α as a number of frames, which needs 1,500 intervals from one
//!   end of the range to the other;
//! - *direction inside the band*: a maximum above that of the interval before removes a
//!   frame, one below returns a frame, an equal one changes nothing;
//! - *one cut per round*, not one per packet: nine packets over the threshold would
//!   reduce 300 to 1. A round that took nothing puts nothing into a buffer and cuts
//!   nothing;
//! - *the daemon* that undoes a small budget once all connections are closed: here an
//!   interval without frames restores the largest budget.

use std::time::Duration;

use super::{BUDGET_MIN, Interval, Limits, Policy, Round, Setting};

/// Use of a channel below which there is room for more (bufLow).
const LOW: f32 = 0.03;
/// Use above which it is near overflow (bufUpper).
const UPPER: f32 = 0.50;

/// The two thresholds, and the maximum of the interval before.
#[derive(Debug, Default)]
pub(super) struct Band {
    before: f32,
}

/// The conclusion from the buffer use in an interval about receiving more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Below the band: much more.
    Raise,
    /// In it and falling: a little more.
    Up,
    /// In it and rising: a little less.
    Down,
    /// In it and steady, or above it, where rounds have already cut.
    Keep,
}

impl Band {
    /// True when a round filled a channel beyond the band.
    pub(super) fn is_over(&self, round: &Round) -> bool {
        // The check precedes putting a packet into a buffer: a round that put none there
        // has not made it, however slow the receiver is.
        round.met_buffer() && round.buffer_use > UPPER
    }

    /// True when any round of an interval filled a channel beyond the band.
    pub(super) fn was_over(&self, interval: &Interval) -> bool {
        !interval.is_idle() && interval.buffer_use > UPPER
    }

    pub(super) fn judge(&mut self, interval: &Interval) -> Verdict {
        let before = std::mem::replace(&mut self.before, interval.buffer_use);
        match interval.buffer_use {
            _ if interval.is_idle() => Verdict::Raise,
            used if used <= LOW => Verdict::Raise,
            used if used > UPPER => Verdict::Keep,
            used if used > before => Verdict::Down,
            used if used < before => Verdict::Up,
            _ => Verdict::Keep,
        }
    }
}

/// Sets the budget by the buffers, and no interval.
#[derive(Debug)]
pub(super) struct QaPolling {
    limits: Limits,
    band: Band,
    budget: u32,
}

impl QaPolling {
    pub(super) fn new(limits: Limits) -> Self {
        QaPolling {
            limits,
            band: Band::default(),
            budget: limits.budget,
        }
    }
}

impl Policy for QaPolling {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interrupt_interval: Duration::ZERO,
        }
    }

    fn round(&mut self, round: &Round) {
        if self.band.is_over(round) {
            self.budget = cut(self.budget);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let largest = self.limits.budget;
        self.budget = match self.band.judge(interval) {
            Verdict::Raise => raise(self.budget, largest),
            Verdict::Up => (self.budget + 1).min(largest),
            Verdict::Down => self.budget.saturating_sub(1).max(BUDGET_MIN),
            Verdict::Keep => self.budget,
        };
        if interval.is_idle() {
            // The daemon.
            self.budget = largest;
        }
    }
}

/// The budget after a cut (α).
pub(super) fn cut(budget: u32) -> u32 {
    (budget / 2).max(BUDGET_MIN)
}

/// The budget after a recovery (α).
pub(super) fn raise(budget: u32, largest: u32) -> u32 {
    budget.saturating_mul(2).min(largest)
}
