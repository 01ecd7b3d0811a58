//! The CPU cost of a service worker's threads, and the work of its queues.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidewall::snapshot::{QueueSnapshot, StackSnapshot};

use super::usage::ran;

/// Name of the thread that stands for the receive softirq.
const SOFTIRQ: &str = "tw-softirq";

/// One thread of a service worker, since it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) name: String,
    /// The first thread: the one that serves.
    pub(crate) first: bool,
    /// Nanoseconds on a processor.
    pub(crate) nanoseconds: u64,
    /// Context switches, voluntary and forced.
    pub(crate) switches: u64,
}

/// A service worker's answer to `cpu`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) threads: Vec<Thread>,
    /// The queues of its stack; empty on Linux sockets.
    pub(crate) queues: Vec<QueueSnapshot>,
}

impl Cpu {
    /// Reads the cost of this process, now.
    pub(crate) fn read(snapshot: Option<StackSnapshot>) -> Self {
        Self::of(std::process::id(), snapshot)
    }

    /// Reads the cost of a process, now.
    pub(crate) fn of(process: u32, snapshot: Option<StackSnapshot>) -> Self {
        let process = process.to_string();
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        Cpu {
            threads: tasks
                .into_iter()
                .flatten()
                .flatten()
                .map(|task| {
                    let first = task.file_name().to_string_lossy() == process;
                    thread(&task.path(), first)
                })
                .collect(),
            queues: snapshot.map(|snapshot| snapshot.queues).unwrap_or_default(),
        }
    }

    fn sum(&self, of: impl Fn(&QueueSnapshot) -> u64) -> u64 {
        self.queues.iter().map(of).sum()
    }

    fn nanoseconds(&self, which: impl Fn(&Thread) -> bool) -> u64 {
        self.of_threads(which, |thread| thread.nanoseconds)
    }

    fn of_threads(&self, which: impl Fn(&Thread) -> bool, of: impl Fn(&Thread) -> u64) -> u64 {
        self.threads
            .iter()
            .filter(|thread| which(thread))
            .map(of)
            .sum()
    }

    /// Returns true if there is a softirq thread.
    pub(crate) fn has_softirq(&self) -> bool {
        self.threads.iter().any(|thread| thread.name == SOFTIRQ)
    }
}

fn thread(path: &Path, first: bool) -> Thread {
    // A thread that has just ended reads as one that never ran.
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let status = read("status");
    Thread {
        name: read("comm").trim().to_owned(),
        first,
        nanoseconds: ran(&read("schedstat")),
        switches: switches(&status),
    }
}

/// Returns voluntary and involuntary context switches, from a task's status.
fn switches(status: &str) -> u64 {
    status
        .lines()
        .filter_map(|line| line.split_once("voluntary_ctxt_switches:"))
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .sum()
}

/// The difference between two answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// Nanoseconds of the softirq thread.
    pub(crate) poller: f64,
    /// Nanoseconds of the serving thread.
    pub(crate) application: f64,
    /// Context switches of both.
    pub(crate) switches: f64,
    /// Frames that the driver delivered.
    pub(crate) frames: f64,
    /// Rounds that found frames.
    pub(crate) rounds: f64,
    /// Times that the device woke the poller.
    pub(crate) interrupts: f64,
    /// Frames that found their socket queue full.
    pub(crate) overflowed: f64,
}

impl Spent {
    /// Returns the time and the switches of all threads of a process.
    pub(crate) fn of_process(before: &Cpu, after: &Cpu) -> Self {
        let all = |of: fn(&Thread) -> u64| {
            let sum = |cpu: &Cpu| cpu.of_threads(|_| true, of);
            sum(after).saturating_sub(sum(before)) as f64
        };
        Spent {
            application: all(|thread| thread.nanoseconds),
            switches: all(|thread| thread.switches),
            ..Spent::default()
        }
    }

    pub(crate) fn between(before: &Cpu, after: &Cpu) -> Self {
        let queues = |of: fn(&QueueSnapshot) -> u64| after.sum(of).saturating_sub(before.sum(of));
        let threads = |which: fn(&Thread) -> bool| {
            after
                .nanoseconds(which)
                .saturating_sub(before.nanoseconds(which)) as f64
        };
        let both = |thread: &Thread| thread.first || thread.name == SOFTIRQ;
        let switches = |cpu: &Cpu| cpu.of_threads(both, |thread| thread.switches);
        Spent {
            poller: threads(|thread| thread.name == SOFTIRQ),
            application: threads(|thread| thread.first),
            switches: switches(after).saturating_sub(switches(before)) as f64,
            frames: queues(|queue| queue.driver.get("frames").copied().unwrap_or(0)) as f64,
            rounds: queues(|queue| queue.rounds.saturating_sub(queue.empty_rounds)) as f64,
            interrupts: queues(|queue| queue.control.interrupts) as f64,
            overflowed: queues(|queue| queue.control.overflowed) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(switches(status), 50);
        assert_eq!(switches(""), 0);
    }

    #[test]
    fn this_process_has_one_first_thread_that_ran() {
        let cpu = Cpu::read(None);
        assert_eq!(cpu.threads.iter().filter(|thread| thread.first).count(), 1);
        assert!(cpu.nanoseconds(|_| true) > 0 && !cpu.has_softirq());
        let json = serde_json::to_string(&cpu).unwrap();
        assert_eq!(serde_json::from_str::<Cpu>(&json).unwrap(), cpu);
    }

    #[test]
    fn what_was_spent_is_counted_by_thread() {
        let threads = |softirq, first| {
            let thread = |name: &str, first, nanoseconds| Thread {
                name: name.to_owned(),
                first,
                nanoseconds,
                switches: nanoseconds / 10,
            };
            vec![
                thread(SOFTIRQ, false, softirq),
                thread("tidewall", true, first),
                thread("tidewall", false, 1_000_000),
            ]
        };
        let before = Cpu {
            threads: threads(100, 1_000),
            queues: Vec::new(),
        };
        let after = Cpu {
            threads: threads(600, 3_000),
            queues: Vec::new(),
        };
        let spent = Spent::between(&before, &after);
        assert_eq!((spent.poller, spent.application), (500.0, 2_000.0));
        assert_eq!(spent.switches, 250.0);
    }
}
