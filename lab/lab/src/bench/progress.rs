//! The progress of the processes on the receiver's processor, and their shares of it.

use std::time::{Duration, Instant};

use super::manager::{Companions, Manager};
use crate::worker::{Child, ran_by};

/// Counts up to one moment.
pub(super) struct Progress {
    at: Instant,
    /// Steps of the computing thread or process.
    steps: u64,
    /// Datagrams that each process beside the service has received.
    received: Vec<u64>,
    /// Run time of each process, ns: the service, those beside it, and the kernel threads
    /// that poll for them.
    service: u64,
    beside: Vec<u64>,
    pollers: u64,
}

/// The difference of two moments, per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// Datagrams/s that each process beside the service received.
    pub(crate) received: Vec<f64>,
    /// The serving process's share of the processor.
    pub(crate) service: f64,
    /// Shares of the processes beside it.
    pub(crate) beside: Vec<f64>,
    /// Share of the kernel threads that poll the interface for them.
    pub(crate) pollers: f64,
}

impl Progress {
    /// Reads the current counts. `computes`: the service has a thread that computes.
    pub(super) fn read(
        child: &mut Child,
        serving: u32,
        computes: bool,
        companions: &mut Companions,
        manager: Option<&Manager>,
    ) -> anyhow::Result<Self> {
        let pollers = manager.map(Manager::pollers).unwrap_or_default();
        Ok(Progress {
            at: Instant::now(),
            steps: match computes {
                true => child.steps()?,
                false => companions.steps()?,
            },
            received: companions.received()?,
            service: ran_by(serving),
            beside: companions.processes().map(ran_by).collect(),
            pollers: pollers.iter().map(|&thread| ran_by(thread)).sum(),
        })
    }

    /// Time since it was read.
    pub(super) fn until(&self, later: &Progress) -> Duration {
        later.at.duration_since(self.at)
    }

    /// Steps/s until `later`.
    pub(super) fn steps(&self, later: &Progress) -> f64 {
        later.steps.saturating_sub(self.steps) as f64 / self.seconds(later)
    }

    /// Returns how much each process received and ran until `later`.
    pub(super) fn shares(&self, later: &Progress) -> Shares {
        let seconds = self.seconds(later);
        let rate = |first: u64, last: u64| last.saturating_sub(first) as f64 / seconds;
        let rates = |first: &[u64], last: &[u64]| {
            let pairs = first.iter().zip(last);
            pairs.map(|(&first, &last)| rate(first, last)).collect()
        };
        let share = |nanoseconds: f64| nanoseconds / 1e9;
        let beside: Vec<f64> = rates(&self.beside, &later.beside);
        Shares {
            received: rates(&self.received, &later.received),
            service: share(rate(self.service, later.service)),
            beside: beside.into_iter().map(share).collect(),
            pollers: share(rate(self.pollers, later.pollers)),
        }
    }

    fn seconds(&self, later: &Progress) -> f64 {
        // Two reads are never simultaneous; zero would not give a number.
        self.until(later).as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_differences_over_time() {
        let at = Instant::now();
        let first = Progress {
            at,
            steps: 5,
            received: vec![10],
            service: 0,
            beside: vec![1_000],
            pollers: 7,
        };
        let last = Progress {
            at: at + Duration::from_millis(500),
            steps: 105,
            received: vec![60],
            service: 250_000_000,
            beside: vec![100_001_000],
            pollers: 50_000_007,
        };
        assert_eq!(first.steps(&last), 200.0);
        let expected = Shares {
            received: vec![100.0],
            service: 0.5,
            beside: vec![0.2],
            pollers: 0.1,
        };
        assert_eq!(first.shares(&last), expected);
    }
}
