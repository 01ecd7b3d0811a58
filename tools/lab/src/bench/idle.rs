//! Idle connections beside a load, and what they take.

use std::thread;
use std::time::Duration;

use tidewall_load::IdleSpec;

use super::processes::{idle_parts, open_files};
use super::{DRAIN, Session};
use crate::worker::{Child, Job, Place};

/// Idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// How many were asked for.
    pub(crate) connections: u32,
    /// How many were open at the end of the load.
    pub(crate) open: u64,
    /// Bytes by which the service's process grew.
    pub(crate) process: u64,
    /// Bytes by which the kernel's own objects grew, those of the client's ends
    /// included.
    pub(crate) kernel: u64,
}

impl Session<'_> {
    /// Opens idle connections, from as many processes as the limit of open
    /// files makes necessary. They stay until the workers are dropped.
    pub(super) fn hold(&mut self, idle: &IdleSpec) -> anyhow::Result<(Held, Vec<Child>)> {
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

/// Time for a worker with connections to start and to say so.
const HOLD_START: Duration = Duration::from_secs(5);

/// Idle connections that stand.
pub(super) fn open(workers: &mut [Child]) -> anyhow::Result<u64> {
    let mut open = 0;
    for worker in workers {
        open += worker.open()?;
    }
    Ok(open)
}

/// Bytes of a process in memory.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    kilobytes(&status, "VmRSS:") << 10
}

/// Bytes of the kernel's own objects, sockets among them.
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
}
