//! Receive control: when the device may interrupt, and how many frames one round may
//! take.
//!
//! A policy is a state machine. Its input is what each round found and the sums of each
//! sampling interval. Its output is a budget (the paper's Bp) and an interrupt interval
//! (T). It has no clock and does no I/O, so every policy is tested on virtual time. A
//! [`Controller`] feeds it and passes its settings to the poller, which is the receiver
//! itself or the receive softirq of [`crate::architecture`].
//!
//! Read first:
//! - RHIP (Chang & Muppala, LCN 2007), sections II and IV and figure 6.
//! - Mogul & Ramakrishnan, "Eliminating receive livelock in an interrupt-driven kernel",
//!   TOCS 15(3), 1997, section 6.
//! - For the points that the text leaves open, and the choices: each policy's own module.
//!
//! ```text
//!   round ──► frames, budget used up?, fullest channel ──┐
//!                                                        ├─► policy ──► Bp, T
//!   every 10 ms ──► sums and maxima of the rounds ───────┘
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewall_device::queue::POLL_MAX;

mod adaptive;
mod aic;
mod controller;
mod interrupt;
pub mod model;
mod napi;
mod on_off;
mod qapolling;
mod recorder;
mod rhip;
#[cfg(all(test, not(loom)))]
mod tests;

pub use controller::{Activity, Controller, Mode, State, Waiting};
pub use recorder::{COLUMNS, Recorder};

/// A policy's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Maximum number of frames that a round takes from the device (the paper's Bp).
    /// Zero: take none until the channels are empty.
    pub budget: u32,
    /// Least time between two interrupts of the device (the paper's T). Zero:
    /// one for each frame that finds the receiver asleep.
    pub interrupt_interval: Duration,
}

/// The ranges within which a policy may move, and the cost of a round to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest budget, frames; at least [`BUDGET_MIN`].
    pub budget: u32,
    /// Longest interrupt interval.
    pub interrupt_interval: Duration,
    /// Frames that the device holds until they are taken. If more arrive in an interval
    /// the rest is lost.
    pub ring: u32,
    /// Rounds run ahead of the application, as a softirq does: a round that takes too
    /// much takes it from the application. False where the receiver polls for itself.
    pub preempts: bool,
    /// Time to fall asleep and be woken on this machine, 1 µs to 1 ms. It decides whether
    /// a wait is worth sleeping, or an interval worth its delay.
    pub wake_up: Duration,
}

/// Smallest nonzero budget. The kernel polls a device twice when a busy poll ends, so a
/// round cannot take fewer than two.
pub const BUDGET_MIN: u32 = 2;
/// Largest budget: 10 × 300, what one softirq of the paper's kernel may take
/// (MAX_SOFTIRQ_RESTART × netdev_budget).
pub const BUDGET_MAX: u32 = 3000;
/// Longest interval that may be requested.
pub const INTERVAL_MAX: Duration = Duration::from_millis(1);
/// Frames that the device's timer may deliver without a poll by the receiver: half of a
/// veth's ring. Its poll is a softirq's, without a budget.
pub const TIMER_BATCH: usize = POLL_MAX as usize;
/// One timer batch in this many is still followed by a poll. One reason is lost credit.
/// The other is a device whose timer once found nothing: the sender wakes it, and it runs
/// on the sender's processor until it is polled here.
pub const TIMER_BATCHES: u32 = 16;
/// Longest interval unless another is requested: a ring of 256 frames holds its frames at
/// 1.28 million per second.
pub const INTERVAL_USUAL: Duration = Duration::from_micros(200);
/// Assumed cost of a wake-up where it was not measured.
pub const WAKE_UP_USUAL: Duration = Duration::from_micros(20);
/// How often a policy examines sums. The paper samples every 100 ms; with one budget step
/// per interval, recovery would take half a minute.
pub const SAMPLING_INTERVAL: Duration = Duration::from_millis(10);

impl Default for Limits {
    fn default() -> Self {
        Limits {
            budget: BUDGET_MAX,
            interrupt_interval: INTERVAL_USUAL,
            ring: 256,
            preempts: false,
            wake_up: WAKE_UP_USUAL,
        }
    }
}

/// The results of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Frames that it took from the device.
    pub frames: u32,
    /// It took all that the budget allowed, so more frames may wait: the paper's
    /// "ksoftirqd is active".
    pub exhausted: bool,
    /// Use of the fullest channel just after frames were appended to it, 0 to 1; 1 also
    /// when a frame found its channel full. For a round that took nothing, the use that
    /// it found.
    pub buffer_use: f32,
    /// Frames that found their channel full.
    pub overflowed: u32,
}

impl Round {
    /// Whether some frame was put into a buffer, or found it full. Only then was the
    /// check made that precedes that. A driver that drops frames for a full channel may
    /// leave a round without a frame.
    fn met_buffer(&self) -> bool {
        self.frames > 0 || self.overflowed > 0
    }
}

/// Sums of a sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Its length.
    pub length: Duration,
    /// Rounds in it.
    pub rounds: u32,
    /// Rounds that used up their budget.
    pub exhausted: u32,
    /// Wake-ups of the poller: interrupts.
    pub interrupts: u32,
    /// Frames that were taken.
    pub frames: u64,
    /// Frames sent: a peer waits for answers.
    pub sent: u64,
    /// Largest [`Round::buffer_use`].
    pub buffer_use: f32,
    /// Frames that found their channel full.
    pub overflowed: u64,
}

impl Interval {
    /// No frame arrived.
    fn is_idle(&self) -> bool {
        self.frames == 0 && self.overflowed == 0
    }
}

/// A receive control policy: a state machine without clock and I/O.
pub trait Policy: fmt::Debug + Send {
    /// The present setting.
    fn setting(&self) -> Setting;

    /// Reports the end of a round. Called once per round, however many frames it took: a
    /// policy that halved its budget for each packet would be at 1 after nine.
    fn round(&mut self, round: &Round);

    /// Reports the end of a sampling interval.
    fn interval(&mut self, interval: &Interval);

    /// Whether a poller that found nothing may wait for an interrupt.
    fn may_sleep(&self) -> bool {
        true
    }
}

/// The policies, by name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// One interrupt per frame and unbounded rounds, as in 4.4BSD.
    Interrupt,
    /// A fixed budget, and an interrupt whenever the device is empty: Linux's
    /// NAPI.
    Napi,
    /// Mogul & Ramakrishnan's queue feedback: no polling while a queue is
    /// nearly full.
    OnOff,
    /// Adaptive interrupt coalescing: the interval alone follows the buffers.
    Aic,
    /// Queue-based adaptive polling: the budget alone follows the buffers.
    #[serde(rename = "qapolling")]
    QaPolling,
    /// The paper's own policy: both, in its order.
    Rhip,
    /// Tidewall's, and the default.
    #[default]
    Adaptive,
}

impl PolicyKind {
    /// All policies, in the order in which the paper presents them.
    pub const ALL: [PolicyKind; 7] = [
        PolicyKind::Interrupt,
        PolicyKind::Napi,
        PolicyKind::OnOff,
        PolicyKind::Aic,
        PolicyKind::QaPolling,
        PolicyKind::Rhip,
        PolicyKind::Adaptive,
    ];

    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Interrupt => "interrupt",
            PolicyKind::Napi => "napi",
            PolicyKind::OnOff => "on-off",
            PolicyKind::Aic => "aic",
            PolicyKind::QaPolling => "qapolling",
            PolicyKind::Rhip => "rhip",
            PolicyKind::Adaptive => "adaptive",
        }
    }

    /// The default limits. `napi` has no interval unless one is given: its limits are its
    /// settings.
    pub fn limits(self) -> Limits {
        match self {
            PolicyKind::Napi => Limits {
                interrupt_interval: Duration::ZERO,
                ..Limits::default()
            },
            _ => Limits::default(),
        }
    }

    /// Returns the policy in its first state. `budget` and `interval` fix the largest
    /// values that it may set; `napi` keeps both as they are, `interrupt` ignores the
    /// interval.
    pub fn start(self, limits: Limits) -> Box<dyn Policy> {
        let limits = Limits {
            budget: limits.budget.clamp(BUDGET_MIN, BUDGET_MAX),
            interrupt_interval: limits.interrupt_interval.min(INTERVAL_MAX),
            wake_up: limits.wake_up.clamp(Duration::from_micros(1), INTERVAL_MAX),
            ..limits
        };
        match self {
            PolicyKind::Interrupt => Box::new(interrupt::Interrupt::new(limits)),
            PolicyKind::Napi => Box::new(napi::Napi::new(limits)),
            PolicyKind::OnOff => Box::new(on_off::OnOff::new(limits)),
            PolicyKind::Aic => Box::new(aic::Aic::new(limits)),
            PolicyKind::QaPolling => Box::new(qapolling::QaPolling::new(limits)),
            PolicyKind::Rhip => Box::new(rhip::Rhip::new(limits)),
            PolicyKind::Adaptive => Box::new(adaptive::Adaptive::new(limits)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not that of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("policy must be one of interrupt, napi, on-off, aic, qapolling, rhip, adaptive")
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        PolicyKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or(UnknownPolicy)
    }
}
