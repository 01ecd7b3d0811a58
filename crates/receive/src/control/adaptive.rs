//! The default policy: takes no more than there is room for, and coalesces only frames
//! that no application waits for.
//!
//! RHIP reacts when a buffer is half full. Three things are known before that:
//! - *where more gains nothing*: beyond 128 frames per round a larger budget only costs
//!   cache misses (`tidewall lab run rhip-budget`);
//! - *how fast frames arrive*, so that the longest interval that cannot overflow the
//!   device's ring is arithmetic, not a search;
//! - *whether an application waits*: a stack that sends answers requests, and each
//!   microsecond of T is added to every answer. One that only receives loses nothing by
//!   being woken less often.
//!
//! If overflow still occurs it acts like RHIP: first the interval, then the budget, one
//! step per round. Recovery is in the opposite order, but doubles instead of adding, so
//! that a step in load is over within a few intervals. That also holds for a stack that
//! answers. With one interrupt per frame no budget above one helps, since no round finds
//! more (RHIP, proposition 7).
//!
//! If the receiver polls for itself nothing runs ahead of it, and the driver drops what a
//! channel cannot hold. A smaller round would only leave other sockets' frames in the
//! device's ring ([`crate::schedule`]).
//!
//! The measure of fast and late is the wake-up ([`Limits::wake_up`]). A machine of
//! another speed thus decides alike at rates that mean the same to it.

use std::time::Duration;

use super::qapolling::{cut, raise};
use super::{BUDGET_MIN, Interval, Limits, Policy, Round, SAMPLING_INTERVAL, Setting};

/// Frames per round beyond which each further frame costs more.
const BUDGET: u32 = 128;
/// Use of a channel above which a round took too much.
const UPPER: f32 = 0.50;
/// Use below which it could have taken twice as much.
const LOW: f32 = 0.25;
/// Longest interval, in wake-ups: the acceptable delay of a frame that no application
/// waits for. Waking then takes a tenth of the time at most.
const CEILING: f64 = 10.0;
/// The least forced interval, in wake-ups.
const STEP: f64 = 0.4;
/// While fewer frames arrive in the time of a wake-up, an interrupt for each costs next
/// to nothing: most of the time between two of them is left.
const COALESCE_FROM: f64 = 0.4;
/// Rate below which coalescing ends.
const COALESCE_UNTIL: f64 = 0.32;
/// When this many frames arrive in the time of a wake-up, a poller that owes answers does
/// not sleep: several would wait for each wake-up.
const HURRY_FROM: f64 = 4.0;

/// A receiver that polls for itself and takes at least this part of its frames in rounds
/// that use up their budget is nearly saturated. It must not leave the device to the
/// device's own poll, which has no budget.
const SATURATED: u64 = 4;
/// The number of consecutive intervals that this must hold. A sender that pauses and
/// catches up fills rounds in one interval. At half of the receiver's capacity that kept
/// the receiver awake for nothing, at 13 % of the processor.
const SATURATED_FOR: u32 = 3;
/// It is no longer saturated when its rounds are as small as this: below two thirds of
/// the processor, by the cost of a poll and a frame.
const UNSATURATED: u64 = 8;

/// When more than one frame in this many is answered, an application waits.
const ANSWERED: u64 = 64;
/// With fewer answers, but at least one per sampling interval, peers wait no longer than
/// this, in wake-ups. A frame that reaches a sleeper waits for one in any case.
const ANSWER_WITHIN: f64 = 2.5;

/// Sets both by what is known: room, rate, and whether a peer waits.
#[derive(Debug)]
pub(super) struct Adaptive {
    limits: Limits,
    largest: u32,
    budget: u32,
    interval: Duration,
    /// The interval that overfull rounds requested instead: the longer of both is set.
    forced: Duration,
    /// Longest interval that the ring has room for, at the last rate.
    longest: Duration,
    /// Consecutive intervals that agreed on another T.
    agreed: u32,
    /// A peer waits for answers while frames arrive fast.
    hurried: bool,
    /// Nearly all of the processor's time goes into receiving.
    saturated: bool,
    /// Consecutive intervals that look saturated.
    filled: u32,
}

impl Adaptive {
    pub(super) fn new(limits: Limits) -> Self {
        let largest = BUDGET.min(limits.budget);
        Adaptive {
            limits,
            largest,
            budget: largest,
            interval: Duration::ZERO,
            forced: Duration::ZERO,
            longest: limits
                .wake_up
                .mul_f64(CEILING)
                .min(limits.interrupt_interval),
            agreed: 0,
            hurried: false,
            saturated: false,
            filled: 0,
        }
    }

    /// The duration of this many wake-ups.
    fn wake_ups(&self, count: f64) -> Duration {
        self.limits.wake_up.mul_f64(count)
    }

    /// The longest interval that loses nothing at `rate` frames per second.
    fn room(&self, rate: f64) -> Duration {
        // The frames of one interval must fit into the ring with room for a burst, and
        // into one poll.
        let mut lot = f64::from(self.limits.ring) * 0.375;
        if !self.limits.preempts {
            lot = lot.min(f64::from(self.budget) * 0.75);
        }
        let most = self.wake_ups(CEILING).min(self.limits.interrupt_interval);
        Duration::try_from_secs_f64(lot / rate).map_or(most, |room| room.min(most))
    }

    /// The longest interval that also goes unnoticed by peers, when `came` frames arrive
    /// in the time of a wake-up.
    fn wanted(&self, came: f64, answers: bool) -> Duration {
        let from = if self.interval.is_zero() {
            COALESCE_FROM
        } else {
            COALESCE_UNTIL
        };
        if answers || came < from {
            return Duration::ZERO;
        }
        self.longest
    }

    /// Reacts to a round that left the application too little: fewer interrupts, then,
    /// when that is used up, smaller rounds.
    fn relieve(&mut self) {
        let now = self.interval.max(self.forced);
        if now < self.longest {
            self.forced = now
                .saturating_mul(2)
                .max(self.wake_ups(STEP))
                .min(self.longest);
        } else {
            self.budget = cut(self.budget);
        }
    }
}

impl Policy for Adaptive {
    fn setting(&self) -> Setting {
        Setting {
            budget: self.budget,
            interrupt_interval: self.interval.max(self.forced),
        }
    }

    fn round(&mut self, round: &Round) {
        let over = round.met_buffer() && round.buffer_use > UPPER;
        if over {
            if self.limits.preempts {
                self.relieve();
            }
        } else if round.frames > self.limits.ring / 4 * 3 {
            // The ring nearly overflowed in this interval; it may in the next.
            self.interval = self.interval.min(self.longest / 2);
        }
    }

    fn interval(&mut self, interval: &Interval) {
        let restored = self.budget == self.largest;
        let over = !interval.is_idle() && interval.buffer_use > UPPER;
        let spare = interval.buffer_use < LOW || interval.exhausted == 0;
        if interval.is_idle() || (spare && !over) {
            self.budget = raise(self.budget, self.largest);
        } else if !over {
            self.budget = (self.budget + self.budget / 8 + 1).min(self.largest);
        }
        self.budget = self.budget.max(BUDGET_MIN);
        let seconds = interval.length.as_secs_f64();
        let rate = interval.frames as f64 / seconds.max(f64::MIN_POSITIVE);
        let came = rate * self.limits.wake_up.as_secs_f64();
        self.longest = self.room(rate);
        if restored && !over {
            self.forced = self.forced * 3 / 4;
            if self.forced < self.wake_ups(STEP) {
                self.forced = Duration::ZERO;
            }
        }
        self.forced = self.forced.min(self.longest);
        let answers = interval.sent.saturating_mul(ANSWERED) > interval.frames;
        self.hurried = answers && came >= HURRY_FROM;
        if self.saturated {
            self.saturated = interval.frames >= u64::from(interval.rounds) * UNSATURATED;
            self.filled = 0;
        } else {
            let full = u64::from(interval.exhausted) * u64::from(self.budget);
            let filled =
                !self.limits.preempts && came >= HURRY_FROM && full * SATURATED >= interval.frames;
            self.filled = if filled { self.filled + 1 } else { 0 };
            self.saturated = self.filled >= SATURATED_FOR;
        }
        let mut wanted = self.wanted(came, answers);
        let answered = interval.sent as f64 * SAMPLING_INTERVAL.as_secs_f64();
        if interval.sent > 0 && answered >= seconds {
            wanted = wanted.min(self.wake_ups(ANSWER_WITHIN));
        }
        // Setting T costs a system call into the device. Changes of less than a quarter
        // are not worth one, and the reason for a longer T must persist.
        let close = wanted.abs_diff(self.interval) * 4 <= self.interval.max(wanted);
        if wanted < self.interval && !close {
            self.interval = wanted;
            self.agreed = 0;
        } else if close {
            self.agreed = 0;
        } else {
            self.agreed += 1;
            if self.agreed >= 2 {
                self.interval = wanted;
                self.agreed = 0;
            }
        }
    }

    fn may_sleep(&self) -> bool {
        !(self.hurried || self.saturated)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns what is decided after some intervals: T in wake-ups, and whether the
    /// poller may sleep. Arguments: machine speed as a factor, frames that arrive in the
    /// time of a wake-up, and answers per thousand frames.
    fn decided(speed: f64, came: f64, sent: u64) -> (f64, bool) {
        let usual = Limits::default();
        let limits = Limits {
            wake_up: usual.wake_up.div_f64(speed),
            interrupt_interval: usual.interrupt_interval.div_f64(speed),
            ..usual
        };
        let mut adaptive = Adaptive::new(limits);
        let frames = came * SAMPLING_INTERVAL.div_duration_f64(limits.wake_up);
        for _ in 0..8 {
            adaptive.interval(&Interval {
                length: SAMPLING_INTERVAL,
                rounds: 100,
                frames: frames as u64,
                sent: (frames as u64) * sent / 1_000,
                ..Interval::default()
            });
        }
        let interval = adaptive.setting().interrupt_interval;
        let wake_ups = interval.div_duration_f64(limits.wake_up);
        ((wake_ups * 10.0).round() / 10.0, adaptive.may_sleep())
    }

    #[test]
    fn a_machine_of_any_speed_decides_alike() {
        for (came, sent, expected) in [
            // Nothing to gain, or a peer waits.
            (0.2, 0, (0.0, true)),
            (2.0, 1_000, (0.0, true)),
            // Several would wait for each wake-up.
            (6.0, 1_000, (0.0, false)),
            // No peer waits, or next to none.
            (2.0, 0, (10.0, true)),
            (2.0, 10, (2.5, true)),
        ] {
            for speed in [0.25, 0.5, 1.0, 2.0, 4.0] {
                assert_eq!(
                    decided(speed, came, sent),
                    expected,
                    "{came} {sent}, {speed}"
                );
            }
        }
    }
}
