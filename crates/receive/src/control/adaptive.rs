//! The default: takes no more than there is room for, and coalesces only what
//! nobody waits for.
//!
//! RHIP reacts when a buffer is half full. Three things are known before that:
//! - *where more gains nothing*: beyond 128 frames a round a larger budget only
//!   costs cache misses (`tidewall lab run rhip-budget`);
//! - *how fast frames come*, so that the longest interval that cannot overflow
//!   the device's ring is arithmetic, not a search;
//! - *whether somebody waits*: a stack that sends answers requests, and each
//!   microsecond of T is added to every one of them. One that only receives
//!   loses nothing by being woken less often.
//!
//! On overflow all the same it does as RHIP does: first the interval, then the
//! budget, one step a round; back in the opposite order, but doubling instead
//! of adding, so that a step in load is over within a few intervals. That holds
//! for a stack that answers, too: with an interrupt a frame no budget above one
//! helps, since no round finds more (RHIP, proposition 7).
//!
//! Where the receiver polls for itself nothing runs ahead of it, and what a channel
//! cannot hold the driver drops: a smaller round would only leave other sockets'
//! frames in the device's ring ([`crate::schedule`]).
//!
//! What is fast and what is late is counted in wake-ups ([`Limits::wake_up`]), so that a
//! machine of another speed decides alike at rates that mean the same to it.

use std::time::Duration;

use super::qapolling::{cut, raise};
use super::{BUDGET_MIN, Interval, Limits, Policy, Round, SAMPLING_INTERVAL, Setting};

/// Frames a round beyond which more cost more.
const BUDGET: u32 = 128;
/// Use of a channel above which a round took too much.
const UPPER: f32 = 0.50;
/// Use below which it could have taken twice as much.
const LOW: f32 = 0.25;
/// Longest interval, wake-ups: what a frame nobody waits for may be late. Waking then
/// takes a tenth of the time at most.
const CEILING: f64 = 10.0;
/// The least interval that is forced, wake-ups.
const STEP: f64 = 0.4;
/// While fewer frames come in a wake-up's time, an interrupt each costs next to nothing:
/// most of the time between two of them is left.
const COALESCE_FROM: f64 = 0.4;
/// And below this coalescing ends.
const COALESCE_UNTIL: f64 = 0.32;
/// When so many frames come in a wake-up's time, a poller that owes answers does not
/// sleep: several would wait for each wake-up.
const HURRY_FROM: f64 = 4.0;

/// A receiver that polls for itself takes this part of its frames, or more, in
/// rounds that use up their budget: it is nearly saturated and had better not
/// leave the device to its own poll, which knows no budget.
const SATURATED: u64 = 4;
/// For so many intervals in a row. A sender that pauses and catches up fills
/// rounds for one: at half of what the receiver can do it was then kept awake
/// for nothing, at 13 % of the processor.
const SATURATED_FOR: u32 = 3;
/// It is not any more when its rounds are as small as this: below two thirds of
/// the processor, by what a poll and a frame cost.
const UNSATURATED: u64 = 8;

/// When more than one frame in so many is answered, somebody waits.
const ANSWERED: u64 = 64;
/// Where fewer are, but one or more a sampling interval, they wait no longer than this,
/// wake-ups: what comes to a sleeper waits for one in any case.
const ANSWER_WITHIN: f64 = 2.5;

/// Sets both by what is known: room, rate, and who waits.
#[derive(Debug)]
pub(super) struct Adaptive {
    limits: Limits,
    largest: u32,
    budget: u32,
    interval: Duration,
    /// What overfull rounds asked for instead: the longer of both is set.
    forced: Duration,
    /// Longest interval that the ring has room for, at the last rate.
    longest: Duration,
    /// Intervals in a row that agreed on another T.
    agreed: u32,
    /// Somebody waits for answers while frames come fast.
    hurried: bool,
    /// Nearly all of the processor goes into receiving.
    saturated: bool,
    /// Intervals in a row that look like it.
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

    /// So many wake-ups.
    fn wake_ups(&self, count: f64) -> Duration {
        self.limits.wake_up.mul_f64(count)
    }

    /// The longest interval that loses nothing at `rate` frames a second.
    fn room(&self, rate: f64) -> Duration {
        // What comes in it must fit into the ring with room for a burst, and into
        // one poll.
        let mut lot = f64::from(self.limits.ring) * 0.375;
        if !self.limits.preempts {
            lot = lot.min(f64::from(self.budget) * 0.75);
        }
        let most = self.wake_ups(CEILING).min(self.limits.interrupt_interval);
        Duration::try_from_secs_f64(lot / rate).map_or(most, |room| room.min(most))
    }

    /// The longest interval that nobody would notice either, when `came` frames come in
    /// a wake-up's time.
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

    /// A round left too little to the application: fewer interrupts, and where
    /// that is used up smaller rounds.
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
        // The knob is the device's, and costs a system call: moves of less than
        // a quarter are not worth one, and what lengthens it must last.
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

    /// What is decided after some intervals in which so many frames came in the time of
    /// a wake-up, `sent` of a thousand answered, on a machine so many times as fast: T in
    /// wake-ups, and whether it may sleep.
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
            // Nothing to gain, or somebody waits.
            (0.2, 0, (0.0, true)),
            (2.0, 1_000, (0.0, true)),
            // Several would wait for each wake-up.
            (6.0, 1_000, (0.0, false)),
            // Nobody waits, or next to nobody.
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
