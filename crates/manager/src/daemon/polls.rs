//! Measures the kernel threads that poll a shared device, and carries out the decisions
//! of [`Budget`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use tidewall_device::demux::layout::Counter;
use tidewall_device::demux::{Bound, Polled, TrustedTables};

use super::budget::{Budget, Load, Look};
use crate::domains::threaded::{TaskTime, directories};

/// Time between two looks while the threads work, and while they mostly sleep.
const EVERY: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];
/// They work while they use at least one part in this many of the time.
const WORKS: u32 = 16;
/// How long a bound holds without another look.
const HOLDS: Duration = Duration::from_millis(500);
/// How early frames may arrive. A thread that waits for a processor polls in bursts.
const TOLERANCE: Duration = Duration::from_millis(10);

/// An application that pays for its share of the polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// Its number.
    pub application: u16,
    /// Common to all applications of one domain.
    pub domain: u64,
    /// The domain's weight.
    pub weight: u32,
    /// Its process's id.
    pub process: u32,
}

/// Counters at one time.
#[derive(Debug)]
struct Reading {
    at: Duration,
    threads: Vec<TaskTime>,
    /// How long each thread of an application has run on the polling threads' processors,
    /// by application and number.
    own: HashMap<(u16, u32), Duration>,
    /// Frames of the device.
    frames: u64,
    /// By application and queue.
    polled: HashMap<(u16, u32), Polled>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Polls {
    /// Directories in /proc of the threads that poll.
    threads: Vec<PathBuf>,
    budget: Budget,
    last: Option<Reading>,
    next: Option<Duration>,
    charged: HashMap<u16, Duration>,
    /// Applications with a bound.
    bound: Vec<u16>,
}

impl Polls {
    /// Records that threads poll an interface from now on.
    pub(super) fn begin(
        &mut self,
        interface: &str,
        index: u32,
        tables: &TrustedTables,
        now: Duration,
    ) {
        self.threads = directories(interface, index);
        tables.set_charging(!self.threads.is_empty());
        self.last = None;
        self.next = (!self.threads.is_empty()).then_some(now);
    }

    /// Records that they no longer do.
    pub(super) fn end(&mut self, tables: &TrustedTables, queues: u32) {
        tables.set_charging(false);
        self.threads.clear();
        (self.last, self.next) = (None, None);
        self.budget = Budget::default();
        for application in std::mem::take(&mut self.bound) {
            for queue in 0..queues {
                tables.set_bound(application, queue, None);
            }
        }
    }

    /// Forgets an application that has ended.
    pub(super) fn forget(&mut self, application: u16, tables: &TrustedTables, queues: u32) {
        self.charged.remove(&application);
        self.bound.retain(|&bound| bound != application);
        for queue in 0..queues {
            tables.set_bound(application, queue, None);
        }
    }

    /// When the next look is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Time of the threads charged to an application.
    pub(super) fn charged(&self, application: u16) -> Duration {
        self.charged.get(&application).copied().unwrap_or_default()
    }

    /// Looks, if that is due.
    pub(super) fn look(
        &mut self,
        tables: &TrustedTables,
        queues: u32,
        payers: &[Payer],
        now: Duration,
    ) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let Some(reading) = self.read(tables, queues, payers, now) else {
            // The interface was set down, and its threads have ended.
            self.end(tables, queues);
            return;
        };
        let last = self.last.take();
        let comparable = last.filter(|last| last.threads.len() == reading.threads.len());
        let is_working =
            comparable.is_some_and(|last| self.charge(&last, &reading, tables, queues, payers));
        let [working, sleeping] = EVERY;
        self.next = Some(now + if is_working { working } else { sleeping });
        self.last = Some(reading);
    }

    fn read(
        &self,
        tables: &TrustedTables,
        queues: u32,
        payers: &[Payer],
        at: Duration,
    ) -> Option<Reading> {
        let threads = self.threads.iter().map(|it| TaskTime::read(it).ok());
        let threads: Vec<TaskTime> = threads.collect::<Option<_>>()?;
        let keys =
            (payers.iter()).flat_map(|payer| (0..queues).map(|queue| (payer.application, queue)));
        let polled: HashMap<_, _> = keys
            .map(|(application, queue)| ((application, queue), tables.polled(application, queue)))
            .collect();
        let is_served = |payer: &&Payer| {
            let last = self.last.as_ref().map(|last| &last.polled);
            (0..queues).any(|queue| {
                let key = (payer.application, queue);
                last.is_some_and(|last| last.get(&key) != polled.get(&key))
            })
        };
        Some(Reading {
            at,
            own: own_times(payers.iter().filter(is_served), &threads),
            threads,
            frames: (0..queues)
                .map(|queue| tables.counter(queue, Counter::Frames))
                .sum(),
            polled,
        })
    }

    /// Charges the time between two readings, and sets bounds for what follows. Returns
    /// whether the threads worked.
    fn charge(
        &mut self,
        before: &Reading,
        now: &Reading,
        tables: &TrustedTables,
        queues: u32,
        payers: &[Payer],
    ) -> bool {
        let since = |key: &(u16, u32)| {
            let now = now.polled.get(key).copied().unwrap_or_default();
            // An application that has just joined starts with its number's earlier
            // frames.
            let before = before.polled.get(key).copied().unwrap_or(now);
            Polled {
                frames: now.frames.wrapping_sub(before.frames),
                passed: now.passed.wrapping_sub(before.passed),
            }
        };
        let loads: Vec<Load> = (payers.iter())
            .map(|payer| {
                let all = (0..queues).map(|queue| since(&(payer.application, queue)));
                let (frames, passed) = all.fold((0, 0), |(frames, passed), of| {
                    (frames + of.frames, passed + of.passed)
                });
                Load {
                    application: payer.application,
                    domain: payer.domain,
                    weight: payer.weight,
                    frames,
                    passed,
                    own: own_since(payer.application, before, now),
                }
            })
            .collect();
        let (mut ran, mut waited, mut busy) = Default::default();
        for (now, before) in now.threads.iter().zip(&before.threads) {
            let own = now.ran.saturating_sub(before.ran);
            let late = now.waited.saturating_sub(before.waited);
            ran += own;
            waited = late.max(waited);
            busy = (own + late).max(busy);
        }
        let elapsed = now.at.saturating_sub(before.at);
        let owned: u64 = loads.iter().map(|load| load.frames).sum();
        let shares = self.budget.look(&Look {
            elapsed,
            ran,
            waited,
            busy,
            others: now.frames.wrapping_sub(before.frames).saturating_sub(owned),
            loads: &loads,
        });
        let was_bound = std::mem::take(&mut self.bound);
        for (share, load) in shares.iter().zip(&loads) {
            *self.charged.entry(share.application).or_default() += share.charged;
            if share.rate.is_none() && !was_bound.contains(&share.application) {
                continue;
            }
            for queue in 0..queues {
                let came = since(&(share.application, queue)).frames;
                let part = came as f64 / load.frames.max(1) as f64;
                let bound = share.rate.map(|rate| Bound {
                    rate: rate * part,
                    tolerance: TOLERANCE,
                    until: now.at + HOLDS,
                });
                tables.set_bound(share.application, queue, bound);
            }
            self.bound.extend(share.rate.map(|_| share.application));
        }
        ran * WORKS >= elapsed
    }
}

/// Maximum number of threads that are read: each costs two files.
const THREADS: usize = 256;

/// See [`Reading::own`].
fn own_times<'a>(
    payers: impl Iterator<Item = &'a Payer>,
    polling: &[TaskTime],
) -> HashMap<(u16, u32), Duration> {
    // A process of another PID namespace is not visible.
    let tasks = payers.flat_map(|payer| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", payer.process));
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.map(|task| (payer.application, task))
    });
    let times = tasks.take(THREADS).filter_map(|(application, task)| {
        let number = task.file_name().to_str()?.parse().ok()?;
        let time = TaskTime::read(&task.path()).ok()?;
        let is_beside = polling.iter().any(|it| it.processor == time.processor);
        is_beside.then_some(((application, number), time.ran))
    });
    times.collect()
}

fn own_since(application: u16, before: &Reading, now: &Reading) -> Duration {
    let own = now.own.iter().filter(|((of, _), _)| *of == application);
    own.filter_map(|(task, ran)| ran.checked_sub(*before.own.get(task)?))
        .sum()
}
