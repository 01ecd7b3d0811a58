//! Feeds a policy: each round as it ends, and sums every sampling interval.

use std::time::Duration;

use super::{Interval, Limits, Policy, PolicyKind, Round, SAMPLING_INTERVAL, Setting};

/// Maximum number of idle intervals that one sleep counts as: enough to return every
/// policy to its first state.
const IDLE_INTERVALS: u128 = 64;

/// Other events since the last round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The poller had been asleep and was woken by an interrupt.
    pub interrupted: bool,
    /// Frames sent since.
    pub sent: u64,
}

/// How frames arrive, by section III of the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No frames in the last interval.
    #[default]
    Idle,
    /// Every round empties the device, which then interrupts again: mode 3.
    Interrupt,
    /// Some rounds empty the device: between modes 2 and 3.
    Mixed,
    /// No round empties the device and no interrupt comes: modes 1 and 2.
    Polling,
}

impl Mode {
    /// Its name in `tidewall stat`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Idle => "idle",
            Mode::Interrupt => "interrupt",
            Mode::Mixed => "mixed",
            Mode::Polling => "polling",
        }
    }
}

/// The state of a queue's receive control, for observers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Which policy decides.
    pub policy: PolicyKind,
    /// The setting that it wants now.
    pub setting: Setting,
    /// Sums of the last whole sampling interval.
    pub last: Interval,
    /// How frames arrived in it.
    pub mode: Mode,
}

/// How a poller that found nothing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleep until the device interrupts, at the earliest this long after the last poll;
    /// zero: with the next frame.
    Sleep(Duration),
    /// Keep polling: peers wait for answers and frames arrive fast.
    Poll,
}

/// A policy with its sampling interval.
#[derive(Debug)]
pub struct Controller {
    kind: PolicyKind,
    policy: Box<dyn Policy>,
    started: Option<Duration>,
    /// Time of the last round.
    latest: Duration,
    sums: Interval,
    last: Interval,
    reported: Setting,
}

impl Controller {
    /// A controller in its first state.
    pub fn new(kind: PolicyKind, limits: Limits) -> Self {
        let policy = kind.start(limits);
        let reported = policy.setting();
        Controller {
            kind,
            policy,
            started: None,
            latest: Duration::ZERO,
            sums: Interval::default(),
            last: Interval::default(),
            reported,
        }
    }

    /// The policy's present setting.
    pub fn setting(&self) -> Setting {
        self.reported
    }

    /// How the poller is to wait.
    pub fn waiting(&self) -> Waiting {
        if self.policy.may_sleep() {
            Waiting::Sleep(self.reported.interrupt_interval)
        } else {
            Waiting::Poll
        }
    }

    /// Records a round that ended at `now`, measured from any fixed moment. Returns the
    /// state when the setting changed or an interval has ended.
    ///
    /// An interval ends with the first round after its length, so a poller that was kept
    /// from polling reports one long interval. A poller that slept because no frame
    /// arrived, and was woken now, had one idle interval per interval elapsed. A budget
    /// cut in the last overload must not meet the next burst.
    pub fn round(&mut self, now: Duration, round: &Round, activity: Activity) -> Option<State> {
        let mut over = activity.interrupted && self.slept_until(now);
        let started = *self.started.get_or_insert(now);
        self.latest = now;
        let sums = &mut self.sums;
        sums.rounds = sums.rounds.saturating_add(1);
        sums.exhausted = sums.exhausted.saturating_add(round.exhausted.into());
        sums.interrupts = sums.interrupts.saturating_add(activity.interrupted.into());
        sums.frames = sums.frames.saturating_add(round.frames.into());
        sums.sent = sums.sent.saturating_add(activity.sent);
        sums.buffer_use = sums.buffer_use.max(round.buffer_use);
        sums.overflowed = sums.overflowed.saturating_add(round.overflowed.into());
        self.policy.round(round);
        let length = now.saturating_sub(started);
        if length >= SAMPLING_INTERVAL {
            over = true;
            self.finish(length);
            self.started = Some(now);
        }
        let setting = self.policy.setting();
        if setting == self.reported && !over {
            return None;
        }
        self.reported = setting;
        Some(self.state())
    }

    /// Records that the poller was woken at `now`, asleep since its last round. Returns
    /// true when that ended an interval.
    fn slept_until(&mut self, now: Duration) -> bool {
        let Some(started) = self.started else {
            return false;
        };
        if now.saturating_sub(self.latest) < SAMPLING_INTERVAL {
            return false;
        }
        let length = self.latest.saturating_sub(started).max(SAMPLING_INTERVAL);
        self.finish(length);
        let idle = now.saturating_sub(started.saturating_add(length));
        let intervals = idle.as_nanos() / SAMPLING_INTERVAL.as_nanos();
        for _ in 0..intervals.min(IDLE_INTERVALS) {
            self.finish(SAMPLING_INTERVAL);
        }
        self.started = Some(now);
        true
    }

    /// Ends the current interval.
    fn finish(&mut self, length: Duration) {
        self.sums.length = length;
        self.policy.interval(&self.sums);
        self.last = std::mem::take(&mut self.sums);
    }

    /// The present state.
    pub fn state(&self) -> State {
        let last = self.last;
        let mode = if last.frames == 0 {
            Mode::Idle
        } else if last.exhausted == 0 {
            Mode::Interrupt
        } else if last.exhausted >= last.rounds && last.interrupts == 0 {
            Mode::Polling
        } else {
            Mode::Mixed
        };
        State {
            policy: self.kind,
            setting: self.reported,
            last,
            mode,
        }
    }
}
