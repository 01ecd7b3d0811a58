//! The polled and the permitted frames of each application on a queue.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use super::layout::Account;
use super::trusted::TrustedTables;

/// Frames of an application on one queue, since its number was first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// All frames, including dropped ones.
    pub frames: u64,
    /// Frames of these that passed to its sockets.
    pub passed: u64,
}

/// The rate at which an application's frames pass on one queue, and when that expires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Frames per second.
    pub rate: f64,
    /// How early frames of a burst may be.
    pub tolerance: Duration,
    /// Time at which the bound expires (CLOCK_MONOTONIC).
    pub until: Duration,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TrustedTables {
    fn account(&self, application: u16, queue: u32) -> Option<&Account> {
        let accounts = self.map().accounts.get(usize::from(application))?;
        accounts.get(queue as usize)
    }

    /// Makes the driver program count frames by application, and enforce bounds.
    pub fn set_charging(&self, charges: bool) {
        let place = &self.map().control.charges;
        place.store(charges.into(), Release);
    }

    /// An application's frames on a queue; zero if either is out of range.
    pub fn polled(&self, application: u16, queue: u32) -> Polled {
        self.account(application, queue)
            .map_or(Polled::default(), |account| Polled {
                frames: account.frames.load(Relaxed),
                passed: account.passed.load(Relaxed),
            })
    }

    /// Bounds the frames that pass to an application on a queue; `None` removes the
    /// bound.
    pub fn set_bound(&self, application: u16, queue: u32, bound: Option<Bound>) {
        let Some(account) = self.account(application, queue) else {
            return;
        };
        let Some(bound) = bound else {
            account.interval.store(0, Release);
            return;
        };
        let interval = (1e9 / bound.rate.max(1.0)) as u64;
        account
            .tolerance
            .store(nanoseconds(bound.tolerance), Relaxed);
        account.until.store(nanoseconds(bound.until), Relaxed);
        account.interval.store(interval.max(1), Release);
    }
}
