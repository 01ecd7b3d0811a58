//! How a stack receives: what it begins with, and what may be changed while it runs.

use std::io;
use std::time::Duration;

use tidewall_receive::architecture::Architecture;
use tidewall_receive::control::{BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, Limits, PolicyKind};

use super::{Core, StackHandle};
use crate::receiver::TrafficClass;

/// Largest Bp of a receiver that polls for itself, unless set otherwise: half of what a
/// channel holds by default. A larger round overflows the channel before a thread can
/// read it. After each pause a policy tries the largest again (RHIP lost 15,000 frames/s
/// so).
const OWN_BUDGET: u32 = crate::channels::DEFAULT_RECEIVE_LIMIT / 2;

/// The policy that decides Bp (frames per round) and T (least time between two
/// interrupts) of a stack (Chang & Muppala, 2007).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveControl {
    /// As [`EmbeddedConfig::policy`](crate::stack::EmbeddedConfig::policy).
    pub policy: PolicyKind,
    /// As [`EmbeddedConfig::budget`](crate::stack::EmbeddedConfig::budget). A traffic class that
    /// has a budget of its own keeps it.
    pub budget: Option<u32>,
    /// As [`EmbeddedConfig::interrupt_interval`](crate::stack::EmbeddedConfig::interrupt_interval).
    pub interrupt_interval: Option<Duration>,
}

impl ReceiveControl {
    /// Returns the limits that these settings mean for an architecture.
    ///
    /// # Errors
    /// EINVAL for a value out of range.
    pub(super) fn limits(&self, architecture: Architecture) -> io::Result<Limits> {
        check_budget(self.budget)?;
        if let Some(interval) = self.interrupt_interval
            && interval > INTERVAL_MAX
        {
            return invalid(format!(
                "interval is {interval:?}; it must be at most {INTERVAL_MAX:?}"
            ));
        }
        let usual = self.policy.limits();
        let preempts = architecture.has_threads();
        let most = if preempts { usual.budget } else { OWN_BUDGET };
        Ok(Limits {
            budget: self.budget.unwrap_or(usual.budget.min(most)),
            interrupt_interval: self.interrupt_interval.unwrap_or(usual.interrupt_interval),
            preempts,
            ..usual
        })
    }
}

/// Returns the limits of a queue, whose traffic class may have a separate budget.
pub(super) fn of_queue(limits: Limits, class_budget: Option<u32>, wake_up: Duration) -> Limits {
    Limits {
        budget: class_budget.unwrap_or(limits.budget),
        wake_up,
        ..limits
    }
}

/// EINVAL for a budget out of range.
pub(super) fn check_budget(budget: Option<u32>) -> io::Result<()> {
    match budget.filter(|budget| !(BUDGET_MIN..=BUDGET_MAX).contains(budget)) {
        None => Ok(()),
        Some(budget) => invalid(format!(
            "budget is {budget}; it must be {BUDGET_MIN} to {BUDGET_MAX} frames"
        )),
    }
}

pub(super) fn invalid<T>(what: String) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// How a stack begins to receive.
#[derive(Clone, Debug)]
pub(super) struct Receiving {
    pub(super) architecture: Architecture,
    pub(super) receiver_cpu: Option<usize>,
    pub(super) policy: PolicyKind,
    pub(super) limits: Limits,
    pub(super) classes: Vec<TrafficClass>,
    /// `None`: for the processor time of a sleep.
    pub(super) spin: Option<Duration>,
}

impl Default for Receiving {
    /// Without an interface of Linux, which has the timer that would end a deferral.
    fn default() -> Self {
        Receiving {
            architecture: Architecture::Tidewall,
            receiver_cpu: None,
            policy: PolicyKind::default(),
            limits: Limits {
                interrupt_interval: Duration::ZERO,
                ..Limits::default()
            },
            classes: Vec::new(),
            spin: Some(Duration::ZERO),
        }
    }
}

impl StackHandle {
    /// Changes receive control of all queues from their next rounds on, as `tidewall tune
    /// PID` does. State that the previous policy has learnt is discarded.
    ///
    /// # Errors
    /// - EINVAL for a value out of range.
    /// - `Unsupported` if the device is no interface of Linux.
    /// - `Unsupported` for an architecture to compare with that takes all waiting frames.
    /// - `Unsupported` in private mode, where the kernel polls the device for all private
    ///   applications.
    /// - EOWNERDEAD in a forked child.
    pub fn set_receive_control(&self, control: &ReceiveControl) -> io::Result<()> {
        self.here()?.set_receive_control(control)
    }
}

impl Core {
    /// See [`StackHandle::set_receive_control`].
    pub fn set_receive_control(&self, control: &ReceiveControl) -> io::Result<()> {
        let architecture = self.receiver.architecture;
        let unsupported = |what: String| Err(io::Error::new(io::ErrorKind::Unsupported, what));
        if !self.netdev.owner.has_driver() {
            return unsupported("this stack is on no interface of Linux, which has a T".to_owned());
        }
        if !architecture.is_controlled() {
            return unsupported(format!(
                "{architecture} takes what there is: receive control is for {} and {}",
                Architecture::Tidewall,
                Architecture::Softirq
            ));
        }
        if self.netdev.owner.is_private() {
            return unsupported(
                "in private mode the kernel polls the device, for all private applications at \
                 once: Bp and T are for one that has the device's queues (tidewalld --trust UID)"
                    .to_owned(),
            );
        }
        let limits = control.limits(architecture)?;
        for queue in &self.receiver.queues {
            let wake_up = self.receiver.wake_up_time();
            let limits = of_queue(limits, queue.class_budget, wake_up);
            queue.poller.lock().set_policy(control.policy, limits);
        }
        Ok(())
    }
}
