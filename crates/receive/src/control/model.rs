//! The model of RHIP, section III: mode and goodput from the costs of a packet, a switch
//! and an interrupt, and its inverse, the best Bp and T.
//!
//! One processor, one receiver, frames at a constant rate λ. A round takes kp frames from
//! the device (Tp each). Between two rounds the application takes ka ≤ kp of them from
//! the receive buffer (Ta each). Arithmetic only: no clock, nothing measured here.
//! `tidewall tune` measures and calls this.
//!
//! ```text
//!  mode 3:  interrupt │ kp·Tp │ ka·Ta … idle │ interrupt │ …      idle ≥ T − ka·Ta
//!  modes 1, 2:  Tc(k) │ Bp·Tp │ Tc(a) │ ka·Ta │ Tc(k) │ …         never an interrupt
//! ```
//!
//! Assumptions where the paper's text is garbled or silent:
//! - the fraction of Proposition 1 is γ/(1 − λTp), γ the frames in the ring when a round
//!   starts: the sum in its proof. Frames are whole, so at a constant rate kp is the
//!   least n whose successor has not arrived when the n-th is done (see
//!   [`Machine::predict`]);
//! - γ is that of mode 3, equation (5): a load begins with an empty ring, and once a
//!   round has left something mode 2 feeds itself;
//! - T counts from the end of a round, as Linux's gro_flush_timeout does, not from the
//!   interrupt before it. If it counted from the interrupt, a long round would be
//!   followed by a short wait and the next by a long one, for ever where λTp > ½;
//! - formula (4) is ka over everything a cycle contains, including an idle wait;
//! - the receive buffer is finite here (remark 3), and so is the ring.

use std::time::Duration;

use super::{BUDGET_MIN, Limits, Setting};

#[cfg(all(test, not(loom)))]
mod simulation;
#[cfg(all(test, not(loom)))]
mod tests;

/// The processor time that this machine needs for each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Tp: protocol processing of a frame.
    pub protocol: Duration,
    /// Ta: the application's processing of a frame, including its calls.
    pub application: Duration,
    /// Tc(a): the switch back to the application after a round.
    pub switch_application: Duration,
    /// Tc(k): the cost of a polling round beyond its frames: the switch to the poller,
    /// and querying the device.
    pub switch_poller: Duration,
    /// Titr + Tc(i): the cost of an interrupt beyond its round's frames: taking it,
    /// waking the poller, and querying the device.
    pub interrupt: Duration,
    /// Ba·Ta: how long the application may run while ksoftirqd waits.
    pub application_quantum: Duration,
}

/// The arriving load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// λ: frames per second. Zero, negative or not a number: none.
    pub rate: f64,
    /// Frames that arrive back to back. 1 means evenly spaced, as in the paper. Zero is
    /// treated as 1.
    pub burst: u32,
}

impl Load {
    /// `rate` frames per second, evenly spaced.
    pub fn even(rate: f64) -> Self {
        Load { rate, burst: 1 }
    }
}

/// Buffer space for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Frames that the receive buffer (rcv_buffer, a channel) holds.
    pub buffer: u32,
    /// Frames that the device's ring holds (BDMA).
    pub ring: u32,
}

/// How the protocol runs (section III.A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Tp ≥ 1/λ: the ring never empties.
    One,
    /// Tp < 1/λ, but Bp is used up before the ring is empty.
    Two,
    /// A round empties the ring, and the device interrupts for the next.
    Three,
}

impl Mode {
    /// Its number in the paper.
    pub fn number(self) -> u8 {
        match self {
            Mode::One => 1,
            Mode::Two => 2,
            Mode::Three => 3,
        }
    }
}

/// The model's prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// How frames arrive.
    pub mode: Mode,
    /// G: frames per second that the application processes.
    pub goodput: f64,
    /// Frames are lost in the receive buffer, after costing Tp each.
    pub buffer_overflows: bool,
    /// Frames are lost in the ring, where they cost nothing.
    pub ring_overflows: bool,
    /// Share of the processor's time that is unused, 0 to 1.
    pub idle: f64,
    /// Interrupts per second.
    pub interrupts: f64,
}

impl Prediction {
    fn of_nothing() -> Self {
        Prediction {
            mode: Mode::Three,
            goodput: 0.0,
            buffer_overflows: false,
            ring_overflows: false,
            idle: 1.0,
            interrupts: 0.0,
        }
    }
}

/// One cycle of mode 3, from interrupt to interrupt.
struct Cycle {
    /// Its length, s.
    length: f64,
    /// kp.
    taken: f64,
    ring_overflows: bool,
}

impl Machine {
    /// Predicts a softirq that runs ahead of the application, with a ksoftirqd behind it
    /// for frames that exceed the budget (section III.A).
    ///
    /// Propositions 1 and 2: the interrupt is enabled again after a round when Tp < 1/λ
    /// and Bp > γ/(1 − λTp); with Tp ≥ 1/λ it never is.
    pub fn predict(&self, load: Load, setting: Setting, room: Room) -> Prediction {
        let rate = load.rate;
        if !rate.is_finite() || rate <= 0.0 {
            return Prediction::of_nothing();
        }
        let protocol = self.protocol.as_secs_f64();
        if rate * protocol >= 1.0 {
            return self.polled(Mode::One, rate, setting, room);
        }
        let interrupt = self.interrupt.as_secs_f64();
        let cycle = cycle(
            load,
            interrupt,
            protocol,
            setting.interrupt_interval,
            room.ring,
        );
        if f64::from(setting.budget.max(1)) > cycle.taken {
            self.interrupted(rate, &cycle, room)
        } else {
            self.polled(Mode::Two, rate, setting, room)
        }
    }

    /// Modes 1 and 2, formulas (2) and (3).
    ///
    /// ksoftirqd runs behind the application, so ka is what a round brought, unless the
    /// quantum ends before (remark 1: ka ≤ Ba) or the buffer took less. Proposition 3:
    /// with ka < Bp the buffer overflows, and Tp of the lost frames is wasted, so a
    /// smaller Bp gives more. Proposition 4: Bp ≤ Ba avoids it, at worst Bp = 1. Without
    /// overflow G = 1/(Tp + Ta + (Tc(a) + Tc(k))/Bp), which rises with Bp.
    fn polled(&self, mode: Mode, rate: f64, setting: Setting, room: Room) -> Prediction {
        let budget = f64::from(setting.budget.max(1));
        let protocol = self.protocol.as_secs_f64();
        let application = self.application.as_secs_f64();
        let switches = (self.switch_application + self.switch_poller).as_secs_f64();
        let in_quantum =
            (self.application_quantum.as_secs_f64() / application.max(f64::MIN_POSITIVE)).max(1.0);
        let buffer = f64::from(room.buffer);
        let consumed = budget.min(in_quantum).min(buffer);
        let round = switches + budget * protocol + consumed * application;
        let rounds = 1.0 / round.max(f64::MIN_POSITIVE);
        if mode == Mode::One || rate >= budget * rounds {
            return Prediction {
                mode,
                goodput: (consumed * rounds).min(rate),
                buffer_overflows: consumed < budget,
                ring_overflows: rate > budget * rounds,
                idle: 0.0,
                interrupts: 0.0,
            };
        }
        // Consecutive rounds would take more than arrives: the ring empties now and then,
        // and the system moves between modes 2 and 3. Then no other thread waits for the
        // application's processor.
        let left = (1.0 - rate * (protocol + switches / budget)).max(0.0);
        let goodput = rate
            .min(left / application.max(f64::MIN_POSITIVE))
            .min(rate * buffer / budget);
        Prediction {
            mode,
            goodput,
            buffer_overflows: goodput < rate,
            ring_overflows: false,
            idle: (left - goodput * application).clamp(0.0, 1.0),
            interrupts: 0.0,
        }
    }

    /// Mode 3, formula (4).
    ///
    /// Proposition 6: ka = kp means that every arriving frame is processed, and nothing
    /// can be better. Proposition 7: kp does not depend on Bp here, so lowering Bp
    /// changes nothing before it leads into mode 2. Proposition 8: with T the share of
    /// interrupts, interrupt/T, goes to zero. But ka = kp needs Ta + Tx/ka ≤ 1/λ − Tp:
    /// with λ(Tp + Ta) > 1 no T is long enough. Remark 3: kp = λT frames need their own
    /// buffer.
    fn interrupted(&self, rate: f64, cycle: &Cycle, room: Room) -> Prediction {
        let application = self.application.as_secs_f64();
        let overhead = (self.interrupt + self.switch_application).as_secs_f64();
        let left = cycle.length - overhead - cycle.taken * self.protocol.as_secs_f64();
        let left = left.max(0.0);
        let possible = if left > 0.0 {
            left / application.max(f64::MIN_POSITIVE)
        } else {
            0.0
        };
        let consumed = cycle.taken.min(possible).min(f64::from(room.buffer));
        Prediction {
            mode: Mode::Three,
            goodput: (consumed / cycle.length).min(rate),
            buffer_overflows: consumed < cycle.taken,
            ring_overflows: cycle.ring_overflows,
            idle: ((left - consumed * application) / cycle.length).clamp(0.0, 1.0),
            interrupts: 1.0 / cycle.length,
        }
    }

    /// Throughput of a receiver that polls for itself, as Tidewall does. It finishes
    /// processing each round's frames before it takes more, so no frame is lost after
    /// costing time. A busy receiver is never interrupted: G = min(λ, 1/(Tp + Ta +
    /// Tc(k)/Bp)). A sleeping one is woken by an interrupt. Not in the paper.
    pub fn predict_self_polling(&self, load: Load, setting: Setting, room: Room) -> Prediction {
        let rate = load.rate;
        if !rate.is_finite() || rate <= 0.0 {
            return Prediction::of_nothing();
        }
        // Frames beyond the channel's limit die in the driver.
        let budget = setting.budget.max(1).min(room.buffer.max(1));
        let per_round = f64::from(budget);
        let whole = (self.protocol + self.application).as_secs_f64();
        let round = self.switch_poller.as_secs_f64();
        let each = whole + round / per_round;
        if rate * each >= 1.0 {
            let goodput = 1.0 / each;
            return Prediction {
                mode: if rate * self.protocol.as_secs_f64() >= 1.0 {
                    Mode::One
                } else {
                    Mode::Two
                },
                goodput,
                buffer_overflows: setting.budget > budget,
                ring_overflows: rate > goodput,
                idle: 0.0,
                interrupts: 0.0,
            };
        }
        let interrupt = self.interrupt.as_secs_f64();
        let cycle = cycle(load, interrupt, each, setting.interrupt_interval, room.ring);
        let rounds = (cycle.taken / per_round).ceil();
        let busy = interrupt + cycle.taken * whole + rounds * round;
        Prediction {
            mode: Mode::Three,
            goodput: (cycle.taken / cycle.length).min(rate),
            buffer_overflows: false,
            ring_overflows: cycle.ring_overflows,
            idle: (1.0 - busy / cycle.length).clamp(0.0, 1.0),
            interrupts: 1.0 / cycle.length,
        }
    }

    fn predict_for(&self, load: Load, setting: Setting, room: Room, preempts: bool) -> Prediction {
        if preempts {
            self.predict(load, setting, room)
        } else {
            self.predict_self_polling(load, setting, room)
        }
    }

    /// The Bp and T within `limits` with the highest goodput; for several loads, with the
    /// highest mean. Goodput is that of [`Machine::predict`] where rounds preempt the
    /// application, else of [`Machine::predict_self_polling`]. The ring is `room`'s.
    ///
    /// Settings within a percent of each other are equal, since no measured cost
    /// distinguishes them. The best of these leaves the processor idle most. Among
    /// settings within half a percent of its time, the shortest T wins, then the smallest
    /// Bp, which needs the smallest buffer. All budgets up to 128 are tried, 5 % apart
    /// beyond, and intervals of every 8 µs.
    pub fn best(&self, loads: &[Load], limits: Limits, room: Room) -> Setting {
        let mut tried = Vec::new();
        for interval in intervals(limits.interrupt_interval) {
            for budget in budgets(limits.budget) {
                let setting = Setting {
                    budget,
                    interrupt_interval: interval,
                };
                let (mut goodput, mut idle) = (0.0, 0.0);
                for &load in loads {
                    let prediction = self.predict_for(load, setting, room, limits.preempts);
                    goodput += prediction.goodput;
                    idle += prediction.idle;
                }
                tried.push((setting, goodput, idle / loads.len().max(1) as f64));
            }
        }
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let goodput = most(&mut tried.iter().map(|(_, goodput, _)| *goodput));
        tried.retain(|(_, found, _)| *found >= goodput * 0.99);
        let idle = most(&mut tried.iter().map(|(_, _, idle)| *idle));
        tried
            .iter()
            .filter(|(_, _, found)| *found >= idle - 0.005)
            .map(|(setting, _, _)| *setting)
            .min_by_key(|setting| (setting.interrupt_interval, setting.budget))
            .unwrap_or(Setting {
                budget: limits.budget.max(BUDGET_MIN),
                interrupt_interval: Duration::ZERO,
            })
    }
}

/// kp and the time from an interrupt to the next, when every frame takes `each` seconds
/// and `rate * each < 1`.
///
/// The ring is empty after n bursts if the next one begins later than interrupt +
/// n·burst·each. So n is the least whole number above interrupt/(burst·(1/λ − each)): the
/// paper's γ/(1 − λTp) in whole bursts. If the device waits for T first, γ = λ(T +
/// interrupt) frames are in the ring when the round starts.
fn cycle(load: Load, interrupt: f64, each: f64, interval: Duration, ring: u32) -> Cycle {
    let burst = f64::from(load.burst.max(1));
    let drained = 1.0 - load.rate * each;
    let waited = interrupt + interval.as_secs_f64();
    let bursts = (interrupt * load.rate / (burst * drained)).floor() + 1.0;
    let taken = (bursts * burst).max(load.rate * waited / drained);
    let ring = f64::from(ring.max(1));
    if taken * drained <= ring.max(burst * drained) {
        return Cycle {
            length: taken / load.rate,
            taken,
            ring_overflows: false,
        };
    }
    // γ is what the ring holds, and the round is shorter than one for all that arrived.
    let taken = ring / drained;
    Cycle {
        length: waited + taken * each,
        taken,
        ring_overflows: true,
    }
}

fn budgets(largest: u32) -> impl Iterator<Item = u32> {
    let largest = largest.max(BUDGET_MIN);
    std::iter::successors(Some(BUDGET_MIN), move |&budget| {
        let next = if budget < 128 {
            budget + 1
        } else {
            budget + budget / 20
        };
        (budget < largest).then(|| next.min(largest))
    })
}

fn intervals(longest: Duration) -> impl Iterator<Item = Duration> {
    const STEP: Duration = Duration::from_micros(8);
    std::iter::successors(Some(Duration::ZERO), move |&interval| {
        (interval < longest).then(|| (interval + STEP).min(longest))
    })
}
