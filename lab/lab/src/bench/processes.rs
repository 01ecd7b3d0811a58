//! Loads with more connections than one process may have files open, shared out among
//! several processes.

use std::time::Duration;

use anyhow::Context;
use tidewall_load::{IdleSpec, LoadReport, LoadSpec, SClientSpec};

use crate::worker::{Child, Job, LoadJob, LoadOutcome, Place};

/// Other files that a process with connections has open.
const OTHER_FILES: u64 = 1_000;
/// Connections for which the ports of one source address suffice.
const PER_SOURCE: u32 = 25_000;
/// Time for a companion to start, and to write its report.
const ALLOWANCE: Duration = Duration::from_secs(10);

/// Returns how many files a process started here may have open.
pub(crate) fn open_files() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(1024)
}

/// Divides idle connections among processes, each with its own source address, since
/// processes do not coordinate their ports. `files`: see [`open_files`].
pub(super) fn idle_parts(idle: &IdleSpec, files: u64) -> Vec<IdleSpec> {
    let most = connections(files).min(PER_SOURCE);
    let mut parts = Vec::new();
    let mut left = idle.connections;
    while left > 0 {
        let connections = left.min(most);
        left -= connections;
        let source = idle.sources.get(parts.len() % idle.sources.len().max(1));
        parts.push(IdleSpec {
            connections,
            sources: source.copied().into_iter().collect(),
            ..idle.clone()
        });
    }
    parts
}

/// Divides S-clients among processes, each with an equal part of the rate. Connection
/// attempts of which none succeeds (rate × T) use at most half of a process's files; the
/// other half is left to established connections.
pub(super) fn s_client_parts(spec: &SClientSpec, files: u64) -> Vec<SClientSpec> {
    let most = connections(files);
    let count = (spec.establishing() * 2).div_ceil(u64::from(most));
    let count = count.clamp(1, spec.rate.max(1));
    let open_max = spec.open_max.map_or(most, |open| open.min(most));
    let part = |number: u64| SClientSpec {
        // The first parts receive the remainder.
        rate: spec.rate / count + u64::from(number < spec.rate % count),
        open_max: (count > 1).then_some(open_max).or(spec.open_max),
        ..spec.clone()
    };
    (0..count).map(part).collect()
}

/// Returns the connections that a process with this many files may have.
fn connections(files: u64) -> u32 {
    let connections = files.saturating_sub(OTHER_FILES).max(1);
    u32::try_from(connections).unwrap_or(u32::MAX)
}

/// The processes of a load beside the observed one.
pub(super) struct Companions {
    workers: Vec<Child>,
    timeout: Duration,
}

impl Companions {
    /// Starts one for each of `parts`. They begin within milliseconds of each other and
    /// of `spec`, which is about to begin and lasts as long.
    pub(super) fn start(
        place: Place<'_>,
        spec: &LoadSpec,
        parts: Vec<SClientSpec>,
    ) -> anyhow::Result<Self> {
        let mut workers = Vec::new();
        for part in parts {
            let job = LoadJob::unwatched(LoadSpec {
                s_clients: Some(part),
                warm_up: spec.warm_up,
                cpu: spec.cpu,
                ..LoadSpec::new(spec.duration)
            });
            let what = "another process of the load";
            workers.push(Child::start(place, &Job::Load(Box::new(job)), what)?);
        }
        Ok(Companions {
            workers,
            timeout: spec.warm_up + spec.duration + ALLOWANCE,
        })
    }

    /// Waits for them and adds their results to the report.
    pub(super) fn join(self, report: &mut LoadReport) -> anyhow::Result<()> {
        for mut worker in self.workers {
            let line = worker.line(self.timeout)?;
            let outcome: LoadOutcome = serde_json::from_str(&line)
                .with_context(|| format!("another process of the load answered {line}"))?;
            if let (Some(all), Some(part)) =
                (report.s_clients.as_mut(), outcome.report.s_clients.as_ref())
            {
                all.join(part);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::IpAddr;

    use super::*;
    use crate::bench::server;

    #[test]
    fn idle_connections_are_shared_out_among_processes() {
        let mut idle = IdleSpec::new(server(80), 100_000);
        idle.sources = (1..=6)
            .map(|host| IpAddr::from([10, 77, 0, 10 + host]))
            .collect();
        for (files, processes) in [(20_000, 6), (1_000_000, 4), (26_000, 4)] {
            let parts = idle_parts(&idle, files);
            assert_eq!(parts.len(), processes);
            assert!(parts.iter().all(|part| part.check().is_ok()), "{files}");
            let sum: u32 = parts.iter().map(|part| part.connections).sum();
            assert_eq!(sum, 100_000);
            let sources: HashSet<_> = parts.iter().map(|part| part.sources[0]).collect();
            assert_eq!(sources.len(), processes, "one each");
        }
        assert!(open_files() > 0);
    }

    #[test]
    fn s_clients_that_do_not_fit_into_a_process_are_several() {
        let spec = |rate| SClientSpec::new(server(80), "/x", rate);
        for (rate, files, processes) in [
            (50_000, 20_000, 3),
            (50_001, 20_000, 3),
            (50_000, 1_000_000, 1),
            (1_000, 20_000, 1),
            (3, 0, 3),
        ] {
            let parts = s_client_parts(&spec(rate), files);
            assert_eq!(parts.len(), processes, "{rate} {files}");
            assert_eq!(parts.iter().map(|part| part.rate).sum::<u64>(), rate);
            for part in &parts {
                part.check().unwrap();
                let open = u64::from(part.open_limit());
                assert!(processes == 1 || open <= files.saturating_sub(OTHER_FILES).max(1));
            }
        }
        assert_eq!(s_client_parts(&spec(1_000), 20_000), [spec(1_000)]);
    }
}
