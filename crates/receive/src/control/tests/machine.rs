//! A machine of one CPU on virtual time. Frames arrive in a device ring, the receive
//! softirq or the receiver itself moves them into one channel, and the application takes
//! them from there. The paper's section III, event by event.
//!
//! ```text
//!  load ──► ring (256) ──round of ≤ Bp, Tp per frame──► channel ──Ta per frame──► goodput
//!             │ no later than T after the last                      ▲
//!             └─ interrupt ──► softirq, ahead of the application ───┤
//!                 left over ─► ksoftirqd, behind it ────────────────┘
//! ```

use std::time::Duration;

use crate::control::{Activity, Controller, Limits, PolicyKind, Round, Setting, State};

/// Length of a window of the account, nanoseconds.
pub(super) const WINDOW: u64 = 50_000_000;
/// Nanoseconds of a millisecond.
pub(super) const MS: u64 = 1_000_000;

/// The thread that takes frames from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// A softirq at interrupt, ksoftirqd with what it left over.
    Softirq,
    /// The application, when its channel is empty.
    Receiver,
}

/// Frames per second as a function of time.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// When a rate begins (nanoseconds), and the rate; from time 0.
    pub rates: Vec<(u64, u64)>,
    /// Frames that arrive at once.
    pub burst: u64,
}

impl Load {
    pub(super) fn steady(rate: u64) -> Self {
        Load {
            rates: vec![(0, rate)],
            burst: 1,
        }
    }
}

/// The frames of a load, in order.
#[derive(Debug)]
struct Arrivals {
    load: Load,
    segment: usize,
    /// Bursts of the segment that have arrived.
    taken: u64,
    /// When the next burst arrives; 0: not known yet.
    upcoming: u64,
}

impl Arrivals {
    fn segment(&self) -> (u64, u64, u64) {
        let (start, rate) = self.load.rates[self.segment];
        let end = self.load.rates.get(self.segment + 1);
        (
            start,
            rate / self.load.burst,
            end.map_or(u64::MAX, |next| next.0),
        )
    }

    /// When the next burst arrives.
    fn next(&mut self) -> u64 {
        loop {
            let (start, rate, end) = self.segment();
            let after = ((self.taken + 1) * 1_000_000_000).checked_div(rate);
            if let Some(time) = after.map(|after| start + after).filter(|&time| time < end) {
                return time;
            }
            if end == u64::MAX {
                return u64::MAX;
            }
            self.segment += 1;
            self.taken = 0;
        }
    }

    /// Frames that arrived until `now` since the last call.
    fn until(&mut self, now: u64) -> u64 {
        if now < self.upcoming {
            return 0;
        }
        let mut frames = 0;
        while self.next() <= now {
            let (start, rate, end) = self.segment();
            let due = (now.min(end - 1) - start) as u128 * rate as u128 / 1_000_000_000;
            let due = (due as u64).max(self.taken + 1);
            frames += (due - self.taken) * self.load.burst;
            self.taken = due;
        }
        self.upcoming = self.next();
        frames
    }
}

/// Costs in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// The paper's Tp and Ta.
    pub protocol: u64,
    pub application: u64,
    /// One interrupt, Titr and its overhead.
    pub interrupt: u64,
    /// One round, without its frames.
    pub round: u64,
    /// One context switch, to ksoftirqd or back.
    pub switch: u64,
}

impl Costs {
    pub(super) fn of(protocol: u64, application: u64) -> Self {
        Costs {
            protocol,
            application,
            interrupt: 1_500,
            round: 300,
            switch: 1_200,
        }
    }

    /// Frames per second that a machine without any overhead would process.
    pub(super) fn capacity(&self) -> u64 {
        1_000_000_000 / (self.protocol + self.application)
    }
}

/// A machine, and what runs on it.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub kind: PolicyKind,
    pub taker: Taker,
    pub costs: Costs,
    /// The channel's limit, frames.
    pub channel: u32,
    /// Largest budget.
    pub budget: u32,
    /// How long the application may run while ksoftirqd waits, nanoseconds; `u64::MAX`:
    /// as long as it has frames.
    pub quantum: u64,
    /// Percentage of frames that are answered.
    pub answered: u64,
    pub load: Load,
}

/// One round as the controller saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub time: u64,
    pub round: Round,
    pub activity: Activity,
}

/// Counts of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Frames that the application took.
    pub goodput: u64,
    /// Frames that found the channel full.
    pub overflowed: u64,
    /// Frames that found the device ring full.
    pub missed: u64,
    /// Nanoseconds in which nothing ran.
    pub idle: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Budget and interval (nanoseconds) at its end.
    pub budget: u32,
    pub interval: u64,
    /// Extremes of both within it.
    pub budgets: (u32, u32),
    pub intervals: (u64, u64),
}

/// Results of a run.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub windows: Vec<Window>,
    pub seen: Vec<Seen>,
}

impl Outcome {
    /// The windows of `[from, to)` ms.
    pub(super) fn between(&self, from: u64, to: u64) -> &[Window] {
        let index = |ms: u64| ((ms * MS / WINDOW) as usize).min(self.windows.len());
        &self.windows[index(from)..index(to)]
    }

    /// Frames per second that reached the application in `[from, to)` ms.
    pub(super) fn goodput(&self, from: u64, to: u64) -> f64 {
        let frames: u64 = self.between(from, to).iter().map(|w| w.goodput).sum();
        frames as f64 * 1_000.0 / (to - from) as f64
    }

    /// Frames that overflowed the channel from `from` ms on.
    pub(super) fn overflowed(&self, from: u64) -> u64 {
        let windows = self.between(from, u64::MAX / MS);
        windows.iter().map(|window| window.overflowed).sum()
    }

    /// Share of `[from, to)` ms in which the CPU had nothing to do.
    pub(super) fn idle(&self, from: u64, to: u64) -> f64 {
        let idle: u64 = self.between(from, to).iter().map(|w| w.idle).sum();
        idle as f64 / ((to - from) * MS) as f64
    }
}

struct Machine {
    setup: Setup,
    arrivals: Arrivals,
    controller: Controller,
    setting: Setting,
    now: u64,
    ring: u64,
    channel: u32,
    /// Remaining work on the application's current frame.
    work_left: u64,
    /// The application's run since ksoftirqd has been waiting.
    run: u64,
    masked: bool,
    last_interrupt: Option<u64>,
    answers: u64,
    sent: u64,
    outcome: Outcome,
    tracing: bool,
}

const RING: u64 = 256;

impl Setup {
    /// Runs it for `ms` milliseconds.
    pub(super) fn run(&self, ms: u64) -> Outcome {
        self.machine(false).run(ms * MS)
    }

    /// Runs it and keeps every round.
    pub(super) fn trace(&self, ms: u64) -> Outcome {
        self.machine(true).run(ms * MS)
    }

    fn machine(&self, tracing: bool) -> Machine {
        let limits = Limits {
            budget: self.budget,
            ring: RING as u32,
            preempts: self.taker == Taker::Softirq,
            ..self.kind.limits()
        };
        let controller = Controller::new(self.kind, limits);
        Machine {
            setting: controller.setting(),
            controller,
            arrivals: Arrivals {
                load: self.load.clone(),
                segment: 0,
                taken: 0,
                upcoming: 0,
            },
            setup: self.clone(),
            now: 0,
            ring: 0,
            channel: 0,
            work_left: 0,
            run: 0,
            masked: false,
            last_interrupt: None,
            answers: 0,
            sent: 0,
            outcome: Outcome::default(),
            tracing,
        }
    }
}

impl Machine {
    fn run(mut self, end: u64) -> Outcome {
        while self.now < end {
            match self.setup.taker {
                Taker::Softirq => self.step_softirq(end),
                Taker::Receiver => self.step_receiver(end),
            }
        }
        self.outcome.windows.truncate((end / WINDOW) as usize);
        self.outcome
    }

    fn step_softirq(&mut self, end: u64) {
        let interrupt = if self.masked {
            u64::MAX
        } else {
            self.interrupt_at()
        };
        if interrupt <= self.now {
            self.interrupt();
            self.masked = true;
            self.round(true);
        } else if self.channel > 0 && !(self.masked && self.run >= self.setup.quantum) {
            if self.work_left == 0 {
                self.work_left = self.setup.costs.application;
            }
            let step = self.work_left.min(interrupt - self.now);
            self.spend(step);
            self.run += step;
            self.work_left -= step;
            if self.work_left == 0 {
                self.consume();
                if self.setting.budget == 0 {
                    // A thread that drains a stopped channel checks whether to continue.
                    self.tell(Round::default(), false);
                    if self.setting.budget > 0 {
                        self.round(false);
                    }
                }
            }
        } else if self.masked {
            self.spend(self.setup.costs.switch);
            self.round(false);
            self.spend(self.setup.costs.switch);
            self.run = 0;
        } else {
            self.idle(interrupt.min(end));
        }
    }

    fn step_receiver(&mut self, end: u64) {
        if self.channel > 0 {
            self.spend(self.setup.costs.application);
            self.consume();
            return;
        }
        if self.round(false) > 0 {
            return;
        }
        let interrupt = self.interrupt_at();
        self.idle(interrupt.min(end));
        if interrupt < end {
            self.interrupt();
            self.spend(self.setup.costs.switch);
            self.round(true);
        }
    }

    /// Time at which the device may interrupt for frames that it has or receives next.
    fn interrupt_at(&mut self) -> u64 {
        let waiting = if self.ring > 0 {
            self.now
        } else {
            self.arrivals.next()
        };
        let interval = self.setting.interrupt_interval.as_nanos() as u64;
        let allowed = self.last_interrupt.map_or(0, |last| last + interval);
        waiting.max(allowed)
    }

    fn interrupt(&mut self) {
        self.last_interrupt = Some(self.now);
        self.window().interrupts += 1;
        self.spend(self.setup.costs.interrupt);
    }

    fn consume(&mut self) {
        self.channel -= 1;
        self.window().goodput += 1;
        self.answers += self.setup.answered;
        if self.answers >= 100 {
            self.answers -= 100;
            self.sent += 1;
        }
    }

    /// One round; returns the frames that it took.
    fn round(&mut self, interrupted: bool) -> u32 {
        let budget = self.setting.budget;
        let mut round = Round::default();
        self.spend(self.setup.costs.round);
        while round.frames < budget && self.ring > 0 {
            self.ring -= 1;
            round.frames += 1;
            self.spend(self.setup.costs.protocol);
            if self.channel < self.setup.channel {
                self.channel += 1;
            } else {
                round.overflowed += 1;
            }
        }
        round.exhausted = budget > 0 && round.frames == budget;
        self.masked = round.exhausted || budget == 0;
        self.window().overflowed += u64::from(round.overflowed);
        self.tell(round, interrupted);
        round.frames
    }

    fn tell(&mut self, mut round: Round, interrupted: bool) {
        round.buffer_use = match round.overflowed {
            0 => self.channel as f32 / self.setup.channel as f32,
            _ => 1.0,
        };
        let activity = Activity {
            interrupted,
            sent: std::mem::take(&mut self.sent),
        };
        if self.tracing {
            self.outcome.seen.push(Seen {
                time: self.now,
                round,
                activity,
            });
        }
        let now = Duration::from_nanos(self.now);
        if let Some(State { setting, .. }) = self.controller.round(now, &round, activity) {
            self.setting = setting;
            let interval = setting.interrupt_interval.as_nanos() as u64;
            let window = self.window();
            window.budget = setting.budget;
            window.interval = interval;
            window.budgets.0 = window.budgets.0.min(setting.budget);
            window.budgets.1 = window.budgets.1.max(setting.budget);
            window.intervals.0 = window.intervals.0.min(interval);
            window.intervals.1 = window.intervals.1.max(interval);
        }
    }

    fn spend(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        let came = self.arrivals.until(self.now);
        let room = RING - self.ring;
        self.ring += came.min(room);
        if came > room {
            self.window().missed += came - room;
        }
    }

    fn idle(&mut self, until: u64) {
        while self.now < until {
            let step = (WINDOW - self.now % WINDOW).min(until - self.now);
            self.window().idle += step;
            self.spend(step);
        }
    }

    fn window(&mut self) -> &mut Window {
        let index = (self.now / WINDOW) as usize;
        while self.outcome.windows.len() <= index {
            let (budget, interval) = (
                self.setting.budget,
                self.setting.interrupt_interval.as_nanos() as u64,
            );
            self.outcome.windows.push(Window {
                budget,
                interval,
                budgets: (budget, budget),
                intervals: (interval, interval),
                ..Window::default()
            });
        }
        &mut self.outcome.windows[index]
    }
}
