//! Idle connections beside a load, and the memory that they and a service use.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use tidewall_load::IdleSpec;

use super::processes::{idle_parts, open_files};
use super::{DRAIN, Session};
use crate::worker::{Child, Job, Place};

/// Bytes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// The serving program's memory.
    pub(crate) program: u64,
    /// The memory of the program and the process that started it; memory files shared by
    /// both count once.
    pub(crate) all: u64,
}

/// Idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Number of connections requested.
    pub(crate) connections: u32,
    /// Number of connections open at the end of the load.
    pub(crate) open: u64,
    /// Bytes by which the service's process grew.
    pub(crate) process: u64,
    /// Bytes by which the kernel's own objects grew, including those of the client's
    /// ends.
    pub(crate) kernel: u64,
}

impl Session<'_> {
    /// Returns the memory of a serving program.
    pub(crate) fn resident(&self) -> Resident {
        let maps = descendants(self.child.process())
            .into_iter()
            .map(|process| {
                std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap_or_default()
            });
        Resident {
            program: resident(self.serving),
            all: together(maps),
        }
    }

    /// Opens idle connections, from as many processes as the limit of open files
    /// requires. They stay until the workers are dropped.
    pub(crate) fn hold(&mut self, idle: &IdleSpec) -> anyhow::Result<(Held, Vec<Child>)> {
        let process = self.serving;
        let before = (resident(process), kernel_objects());
        let testbed = &self.bench.testbed;
        let place = Place {
            namespace: testbed.client(),
            cpu: testbed.config().client_cpu,
        };
        let mut workers = Vec::new();
        for part in idle_parts(idle, open_files()) {
            let timeout = part.opening_max() + HOLD_START;
            let mut worker = Child::start(place, &Job::Hold(part), "idle connections")?;
            let line = worker.line(timeout)?;
            if line != "ready" {
                anyhow::bail!("idle connections: expected `ready`, got `{line}`");
            }
            workers.push(worker);
        }
        thread::sleep(DRAIN);
        let after = (resident(process), kernel_objects());
        let open = open(&mut workers)?;
        if open * 100 < u64::from(idle.connections) * 99 {
            anyhow::bail!("{open} idle connections of {} stand", idle.connections);
        }
        Ok((
            Held {
                connections: idle.connections,
                open,
                process: after.0.saturating_sub(before.0),
                kernel: after.1.saturating_sub(before.1),
            },
            workers,
        ))
    }
}

/// Time for a worker with connections to start and report.
const HOLD_START: Duration = Duration::from_secs(5);

/// Returns the number of open idle connections.
pub(super) fn open(workers: &mut [Child]) -> anyhow::Result<u64> {
    let mut open = 0;
    for worker in workers {
        open += worker.open()?;
    }
    Ok(open)
}

/// Returns a process's bytes in memory.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    kilobytes(&status, "VmRSS:") << 10
}

/// Returns the descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<u32>().ok()
    };
    let parent = |process: u32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before may contain blanks and brackets.
        let (_, fields) = text.rsplit_once(')')?;
        fields.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let parents: Vec<(u32, u32)> = (entries.filter_map(number))
        .filter_map(|process| Some((process, parent(process)?)))
        .collect();
    let mut found = vec![process];
    let mut next = 0;
    while let Some(&of) = found.get(next) {
        found.extend(parents.iter().filter(|it| it.1 == of).map(|it| it.0));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the bytes in memory of several processes, by their `smaps`, with memory files
/// counted once.
fn together(maps: impl Iterator<Item = String>) -> u64 {
    let (mut sum, mut files) = (0, BTreeMap::new());
    for text in maps {
        let mut file = None;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("Rss:"), Some(kilobytes)) => {
                    let bytes = kilobytes.parse::<u64>().unwrap_or(0) << 10;
                    match file.take() {
                        Some(file) => {
                            let most = files.entry(file).or_insert(0);
                            *most = bytes.max(*most);
                        }
                        None => sum += bytes,
                    }
                }
                // The inode distinguishes memory files.
                (Some(_), Some("rw-s")) if line.contains("/memfd:") => {
                    file = words.nth(2).map(str::to_owned);
                }
                _ => {}
            }
        }
    }
    sum + files.values().sum::<u64>()
}

/// Returns the bytes of the kernel's own objects, including sockets.
fn kernel_objects() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kilobytes(&info, "Slab:") << 10
}

fn kilobytes(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|fields| fields.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(kilobytes("Name: x\nVmRSS:\t    1234 kB\n", "VmRSS:"), 1234);
        assert_eq!(kilobytes("", "VmRSS:"), 0);
        assert!(resident(std::process::id()) > 0);
    }

    #[test]
    fn a_memory_file_of_two_processes_counts_once() {
        let of = |frames: u32, other: u32| {
            format!(
                "7f00-7f10 rw-s 00000000 00:01 77 /memfd:tidewall-frames (deleted)\nSize: 64 kB\n\
                 Rss: {frames} kB\nVmFlags: rd\n7f20-7f30 rw-p 00000000 00:00 0 [heap]\nRss: {other} kB\n"
            )
        };
        let both = [of(16, 3), of(12, 5)];
        assert_eq!(together(both.into_iter()), (16 + 3 + 5) << 10);
    }

    #[test]
    fn what_a_process_has_started_is_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = descendants(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{found:?}");
    }
}
