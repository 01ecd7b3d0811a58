//! The idle share of the processors on which a stack's threads may run, and the CPU time
//! of its process: /proc/stat and /proc/PID (proc(5)).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

/// USER_HZ: ticks per second in /proc, on every architecture that Linux runs on today.
const TICKS: f64 = 100.0;
/// Shortest time over which shares are computed: at a tick of 10 ms, 1 %.
const WINDOW: Duration = Duration::from_secs(1);

/// Ticks of one processor since the system began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

/// The CPU use of processors and one process over some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// Length of that time, seconds.
    pub seconds: f64,
    /// Idle share of the processors on which any thread of the process may run, 0 to 1.
    pub idle: Option<f64>,
    /// The same for each processor.
    pub processors: BTreeMap<u32, f64>,
    /// CPU time of the process; 1 is one processor.
    pub process: Option<f64>,
}

/// One reading.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    processors: BTreeMap<u32, Ticks>,
    /// Ticks of each requested process.
    processes: BTreeMap<u32, u64>,
}

/// Readings of the last second or so.
#[derive(Debug, Default)]
pub struct Watch {
    readings: VecDeque<Reading>,
}

impl Watch {
    /// Reads /proc now, for these processes.
    pub fn read(&mut self, processes: impl Iterator<Item = u32>) {
        let file = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        self.push(Reading {
            at: Instant::now(),
            processors: processors(&file("/proc/stat".to_owned())),
            processes: processes
                .filter_map(|process| {
                    Some((process, ticks(&file(format!("/proc/{process}/stat")))?))
                })
                .collect(),
        });
    }

    fn push(&mut self, reading: Reading) {
        // The second oldest becomes the oldest once it is old enough itself.
        while self
            .readings
            .get(1)
            .is_some_and(|second| reading.at.saturating_duration_since(second.at) >= WINDOW)
        {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
    }

    /// Returns the shares between the oldest kept reading and the latest.
    pub fn shares(&self, process: u32) -> Shares {
        self.shares_of(process, &allowed(process))
    }

    fn shares_of(&self, process: u32, allowed: &BTreeSet<u32>) -> Shares {
        let (Some(first), Some(last)) = (self.readings.front(), self.readings.back()) else {
            return Shares::default();
        };
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        let mut together = Ticks::default();
        let mut each = BTreeMap::new();
        for (number, now) in &last.processors {
            let Some(before) = first.processors.get(number) else {
                continue;
            };
            // iowait may fall (proc(5)), so there may be no difference.
            let ticks = Ticks {
                idle: now.idle.saturating_sub(before.idle),
                all: now.all.saturating_sub(before.all),
            };
            if allowed.contains(number)
                && let Some(share) = share(ticks)
            {
                each.insert(*number, share);
                together.idle += ticks.idle;
                together.all += ticks.all;
            }
        }
        let used = |reading: &Reading| reading.processes.get(&process).copied();
        Shares {
            seconds,
            idle: share(together),
            processors: each,
            process: used(first)
                .zip(used(last))
                .filter(|_| seconds > 0.0)
                .map(|(before, now)| now.saturating_sub(before) as f64 / TICKS / seconds),
        }
    }
}

fn share(ticks: Ticks) -> Option<f64> {
    (ticks.all > 0).then(|| (ticks.idle as f64 / ticks.all as f64).min(1.0))
}

impl Shares {
    /// Formats one line: `processors 0-1: 97.3 % idle (0: 99.1, 1: 95.5), process 2.1 %`.
    pub fn text(&self) -> String {
        let numbers: Vec<u32> = self.processors.keys().copied().collect();
        let mut text = match (self.idle, numbers.as_slice()) {
            (Some(idle), [one]) => format!("processor {one}: {:.1} % idle", 100.0 * idle),
            (Some(idle), [_, _, ..]) => {
                let mut text = format!(
                    "processors {}: {:.1} % idle",
                    ranges(&numbers),
                    100.0 * idle
                );
                // More would be unreadable in one line.
                if numbers.len() <= 8 {
                    let each: Vec<String> = self
                        .processors
                        .iter()
                        .map(|(number, idle)| format!("{number}: {:.1}", 100.0 * idle))
                        .collect();
                    text.push_str(&format!(" ({})", each.join(", ")));
                }
                text
            }
            _ => "processors: not to be seen in /proc".to_owned(),
        };
        if let Some(process) = self.process {
            text.push_str(&format!(
                "; the process uses {:.1} % of one",
                100.0 * process
            ));
        }
        text
    }
}

/// Parses the lines `cpuN user nice system idle iowait irq softirq steal …` of
/// /proc/stat.
fn processors(text: &str) -> BTreeMap<u32, Ticks> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
            // The line of all processors has no number.
            if !line.as_bytes().get(3)?.is_ascii_digit() {
                return None;
            }
            let number = words.next()?.parse().ok()?;
            // The fields behind the eighth, guest times, are included in the first two.
            let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
            Some((
                number,
                Ticks {
                    idle: ticks.iter().skip(3).take(2).sum(),
                    all: ticks.iter().sum(),
                },
            ))
        })
        .collect()
}

/// Parses user and system time of /proc/PID/stat, whose second word may contain anything
/// between its parentheses.
fn ticks(text: &str) -> Option<u64> {
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = words.next()?.parse().ok()?;
    let system: u64 = words.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the processors on which at least one thread of a process may run.
fn allowed(process: u32) -> BTreeSet<u32> {
    std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok())
        .flat_map(|status| {
            status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .map(list)
                .unwrap_or_default()
        })
        .collect()
}

/// Largest number of processors that Linux can be built for (NR_CPUS, x86-64).
const PROCESSORS: u32 = 8192;

/// Parses `0-3,5`, the form of processor sets in /proc.
fn list(text: &str) -> BTreeSet<u32> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse::<u32>().ok()?.min(PROCESSORS))
        })
        .flatten()
        .collect()
}

/// Formats what [`list`] parses.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let parts: Vec<String> = parts
        .iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: Instant, idle: [u64; 2], busy: [u64; 2], process: u64) -> Reading {
        let [first, second] = [0, 1].map(|number| {
            format!(
                "cpu{number} {} 0 0 {} 0 0 0 0 77 77\n",
                busy[number], idle[number]
            )
        });
        let text = format!("cpu  9 9 9 9 9 9 9 9 0 0\n{first}{second}intr 5 6\n");
        Reading {
            at,
            processors: processors(&text),
            processes: BTreeMap::from([(7, process)]),
        }
    }

    #[test]
    fn shares_are_those_of_the_allowed_processors_between_two_readings() {
        let begun = Instant::now();
        let mut watch = Watch::default();
        assert_eq!(watch.shares_of(7, &list("0-1")), Shares::default());
        watch.push(reading(begun, [1_000, 1_000], [50, 0], 10));
        watch.push(reading(begun + WINDOW, [1_090, 1_050], [60, 50], 20));
        let shares = watch.shares_of(7, &list("0-1"));
        assert_eq!(shares.idle, Some(0.7));
        assert_eq!(shares.processors, BTreeMap::from([(0, 0.9), (1, 0.5)]));
        assert_eq!(shares.process, Some(0.1));
        assert_eq!(
            shares.text(),
            "processors 0-1: 70.0 % idle (0: 90.0, 1: 50.0); the process uses 10.0 % of one"
        );
        let shares = watch.shares_of(7, &list("1"));
        assert_eq!(
            shares.text(),
            "processor 1: 50.0 % idle; the process uses 10.0 % of one"
        );
        // Another process was not read, and there is no processor 4.
        let shares = watch.shares_of(8, &list("4"));
        assert_eq!(shares.text(), "processors: not to be seen in /proc");
    }

    #[test]
    fn short_periods_are_looked_at_over_a_second() {
        let begun = Instant::now();
        let mut watch = Watch::default();
        for step in 0..=30 {
            let at = begun + WINDOW / 10 * step;
            watch.push(reading(at, [0, 0], [0, 0], u64::from(step)));
            let shares = watch.shares_of(7, &list("0"));
            let expected = f64::from(step.min(10)) / 10.0;
            assert!(
                (shares.seconds - expected).abs() < 1e-9,
                "step {step}: {shares:?}"
            );
        }
        assert_eq!(watch.readings.len(), 11);
    }

    #[test]
    fn what_proc_writes_is_read() {
        let text = "4711 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 120 34 0 0 20 0 1 0 99\n";
        assert_eq!(ticks(text), Some(154));
        assert_eq!(ticks(""), None);
        assert_eq!(ticks("1 (x) S 1"), None);
        assert_eq!(
            processors("cpu3 1 2 3 4 5 6 7 8 9 10\n"),
            BTreeMap::from([(3, Ticks { idle: 9, all: 36 })])
        );
        let set = list(" 0-2,5,7-8\n");
        assert_eq!(ranges(&Vec::from_iter(set)), "0-2,5,7-8");
        assert!(list("").is_empty());
        // An absurd list must not fill the memory.
        assert!(list("0-4294967295").len() <= PROCESSORS as usize + 1);
        let own = std::process::id();
        assert!(!allowed(own).is_empty());
        assert!(ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }
}
