//! The use of a processor's time, as the kernel accounts for it.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The process and processor to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// A process.
    pub process: u32,
    /// A processor.
    pub cpu: usize,
}

/// The use of a time by a process and a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Length of that time, seconds.
    pub seconds: f64,
    /// Share in which the processor was idle, 0 to 1. Excludes interrupts and softirqs
    /// that broke the idle loop.
    pub idle: f64,
    /// Share in which interrupts and softirqs ran on the processor, sampled by its ticks;
    /// those in a thread's time are part of that share as well.
    pub softirq: f64,
    /// Share in which the process's threads ran, on any processor.
    pub threads: f64,
    /// Number of times per second that a thread of the process went to sleep; each ends
    /// with a wake-up.
    pub sleeps: f64,
}

/// Times so far, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    at: Instant,
    /// Seconds that the processor was idle.
    idle: f64,
    /// Seconds that it spent in interrupts and softirqs.
    softirq: f64,
    /// Nanoseconds that the threads ran.
    threads: u64,
    /// Voluntary context switches of the threads.
    sleeps: u64,
}

impl Times {
    /// Reads the current times. Unreadable ones count as zero.
    pub(crate) fn read(watch: Watch) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let stat = text("/proc/stat");
        let idle = idle_exactly(&text("/proc/timer_list"), watch.cpu)
            .or_else(|| idle_roughly(&stat, watch.cpu))
            .unwrap_or(0.0);
        Self::of_process(watch, idle, &stat)
    }

    /// Acts as [`Times::read`], for times of rest: the exact account of a processor is
    /// updated only when it is woken, the rough one always.
    pub(crate) fn read_at_rest(watch: Watch) -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let idle = idle_roughly(&stat, watch.cpu).unwrap_or(0.0);
        Self::of_process(watch, idle, &stat)
    }

    fn of_process(watch: Watch, idle: f64, stat: &str) -> Self {
        Times {
            at: Instant::now(),
            idle,
            softirq: of_stat(stat, watch.cpu, 6).unwrap_or(0.0),
            threads: ran_by(watch.process),
            sleeps: of_tasks(watch.process, "status", sleeps),
        }
    }
}

impl Usage {
    /// Returns the share of the time that the processor had left beside this service, 0
    /// to 1: the larger of two lower bounds. Its idle time is too low if other programs
    /// ran meanwhile. The time used neither by the service's threads nor by softirqs is
    /// too low by the softirqs that ran in a thread's time.
    pub fn left(&self) -> f64 {
        self.idle
            .max(1.0 - self.threads - self.softirq)
            .clamp(0.0, 1.0)
    }

    /// Returns the difference of two moments.
    pub(crate) fn between(first: &Times, last: &Times) -> Self {
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        // Two reads are never simultaneous; zero would not give a number.
        let share = |spent: f64| spent / seconds.max(1e-9);
        Usage {
            seconds,
            idle: share(last.idle - first.idle).clamp(0.0, 1.0),
            softirq: share(last.softirq - first.softirq),
            threads: share(last.threads.saturating_sub(first.threads) as f64 / 1e9),
            sleeps: share(last.sleeps.saturating_sub(first.sleeps) as f64),
        }
    }
}

/// Returns the nanoseconds that the threads of a process have run, on any processor.
pub(crate) fn ran_by(process: u32) -> u64 {
    of_tasks(process, "schedstat", ran)
}

/// Sums a figure of one file over the threads of a process.
fn of_tasks(process: u32, file: &str, figure: fn(&str) -> u64) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let read = |task: fs::DirEntry| fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.map(|task| figure(&read(task))).sum()
}

/// Returns how long the first thread of a process has waited for a processor occupied by
/// another thread, since it started; zero if that cannot be read.
pub(crate) fn waited(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/schedstat"));
    let text = text.unwrap_or_default();
    let field = text.split_whitespace().nth(1);
    Duration::from_nanos(field.and_then(|it| it.parse().ok()).unwrap_or(0))
}

/// Returns the idle time of a processor from /proc/timer_list, to the nanosecond. The
/// kernel ends it at each interrupt and restarts it behind the softirqs.
fn idle_exactly(text: &str, cpu: usize) -> Option<f64> {
    let heading = format!("cpu: {cpu}");
    let mut own = text
        .lines()
        .skip_while(|line| line.trim() != heading)
        .skip(1);
    let mut sum = None;
    for line in own.by_ref().take_while(|line| !line.starts_with("cpu:")) {
        let Some((name, value)) = line.trim().split_once(':') else {
            continue;
        };
        if matches!(name.trim(), ".idle_sleeptime" | ".iowait_sleeptime") {
            let nanoseconds: u64 = value.split_whitespace().next()?.parse().ok()?;
            *sum.get_or_insert(0.0) += nanoseconds as f64 / 1e9;
        }
    }
    sum
}

/// Returns the idle time of a processor from /proc/stat: `idle` and `iowait`.
fn idle_roughly(text: &str, cpu: usize) -> Option<f64> {
    of_stat(text, cpu, 4)
}

/// Returns the sum of two neighbouring fields of a processor's line in /proc/stat, which
/// are hundredths of a second, as seconds.
fn of_stat(text: &str, cpu: usize, first: usize) -> Option<f64> {
    let name = format!("cpu{cpu}");
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&name))?;
    let mut ticks = line.split_whitespace().skip(first);
    let mut next = || ticks.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / 100.0)
}

/// Returns the first field of a task's schedstat: nanoseconds on a processor.
pub(super) fn ran(text: &str) -> u64 {
    text.split_whitespace()
        .next()
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}

/// Returns voluntary context switches, from a task's status.
fn sleeps(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_kernels_accounts_are_read() {
        let list = "cpu: 0\n clock 0:\n  .idle_sleeptime : 7 nsecs\n\
                    cpu: 1\n  .nr_events : 3\n  .idle_sleeptime : 1500000000 nsecs\n  \
                    .iowait_sleeptime: 500000000 nsecs\nTick Device: mode: 1\n";
        assert_eq!(idle_exactly(list, 1), Some(2.0));
        assert_eq!(idle_exactly(list, 0), Some(7e-9));
        assert_eq!(idle_exactly(list, 2), None);
        let stat = "cpu  1 2 3 4 5\ncpu0 1 2 3 4 5\ncpu1 284217 50 156805 780725 6496 0 41264\n";
        assert_eq!(
            idle_roughly(stat, 1),
            Some((780_725 + 6_496) as f64 / 100.0)
        );
        assert_eq!(idle_roughly(stat, 7), None);
        assert_eq!(of_stat("cpu0 1 2 3 4 5 70 30", 0, 6), Some(1.0));
        assert_eq!(ran("123456 7 8\n"), 123_456);
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(sleeps(status), 41);
        // There is no such process.
        assert!(waited(0).is_zero());
    }

    #[test]
    fn usage_is_a_difference_over_time() {
        let at = Instant::now();
        let first = Times {
            at,
            idle: 10.0,
            softirq: 1.0,
            threads: 1_000,
            sleeps: 5,
        };
        let last = Times {
            at: at + Duration::from_secs(2),
            idle: 11.5,
            softirq: 1.02,
            threads: 500_001_000,
            sleeps: 25,
        };
        let usage = Usage::between(&first, &last);
        assert_eq!(
            (usage.idle, usage.threads, usage.sleeps),
            (0.75, 0.25, 10.0)
        );
        assert_eq!(usage.seconds, 2.0);
        assert!((usage.softirq - 0.01).abs() < 1e-9);
        assert_eq!(usage.left(), 0.75);
        let crowded = Usage { idle: 0.1, ..usage };
        assert!((crowded.left() - 0.74).abs() < 1e-9);
    }

    #[test]
    fn this_process_has_run() {
        let times = Times::read(Watch {
            process: std::process::id(),
            cpu: 0,
        });
        assert!(times.threads > 0 && times.idle > 0.0, "{times:?}");
    }
}
