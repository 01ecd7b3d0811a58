//! The cost of a program before it serves or requests anything: time to start, and
//! memory.

use std::time::Duration;

use tidewall_load::IdleSpec;

use super::super::cases::{Case, rounds, value};
use super::super::tcp::{DOCUMENT, HTTP_PORT, Site};
use super::super::{Experiment, Run, USUAL};
use super::{Asked, ORIGIN_PORT, OURS, origin, site};
use crate::bench::{Bench, server};
use crate::result::{Claim, Series};
use crate::sweep::Sample;
use crate::system::System;
use crate::testbed::{CLIENT, more_clients};
use crate::worker::{Child, Job, Place, StartJob, Started};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "unmodified-start",
    paper: "beyond the papers",
    about: "start-up and memory that `tidewall run` adds to a program, and to each idle connection",
    x: "nothing",
    y: "ms until it has its answer; MiB",
    senders: &["curl; idle connections to nginx from kernel sockets"],
    measure,
    claims,
    ..USUAL
};

/// The measured program, and the setting of its curve.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// curl, which fetches one document.
    Start,
    /// nginx, and connections to it.
    Memory,
}

const START: &str = "curl, one document";
const MEMORY: &str = "nginx, and idle connections";
/// Any of the kernel's modes will do: neither starting nor keeping connections depends on
/// it.
const SYSTEMS: [System; 2] = [System::Run, System::LinuxRps];
const LINUX: &str = "linux-rps";
/// Names of values.
const SAID: &str = "ms until the answer";
const ENDED: &str = "ms until it has ended";
const ALL: &str = "MiB with its manager";
const PROGRAM: &str = "MiB of the program";
const EACH: &str = "bytes a connection";
/// How long a program may take.
const WITHIN: Duration = Duration::from_secs(20);
const MIB: f64 = (1 << 20) as f64;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let site = site()?;
    let _origin = origin(run, &site)?;
    let connections = if run.options.quick { 2_000 } else { 10_000 };
    let there = Asked::Nginx.program(&site).0.is_there();
    if !there {
        run.note("nginx: not installed (scripts/setup.sh), so no memory is measured.");
    }
    let cases: Vec<Case<(System, What)>> = [(What::Start, START), (What::Memory, MEMORY)]
        .into_iter()
        .filter(|(what, _)| there || *what == What::Start)
        .flat_map(|(what, setting)| {
            SYSTEMS.map(|system| Case {
                system: system.name(),
                setting,
                x: 0.0,
                what: (system, what),
            })
        })
        .collect();
    run.systems.extend(SYSTEMS);
    rounds(run, &cases, run.options.within(6, 50), |bench, case| {
        let (system, what) = case.what;
        match what {
            What::Start => start(bench, system),
            What::Memory => memory(bench, system, &site, connections),
        }
    })?;
    run.note(format!(
        "curl gets a document of 1,024 bytes from the other end, once with a manager that is \
         started for it. Of nginx the process alone, and with all that `tidewall run` started it \
         by, memory files that both have counted once and text of programs with them; then by how \
         much its process grew with {connections} connections of one request each. What the \
         kernel keeps for either is not in it."
    ));
    Ok(())
}

fn start(bench: &mut Bench, system: System) -> anyhow::Result<Sample> {
    bench.testbed.set_mode(system.mode())?;
    let url = format!("http://{}:{ORIGIN_PORT}{DOCUMENT}", CLIENT.0);
    let command = ["curl", "-sf", "--noproxy", "*", "--max-time", "10", &url];
    let job = Job::Start(StartJob {
        command: command.map(str::to_owned).to_vec(),
        by_run: system == System::Run,
    });
    let place = Place {
        namespace: bench.testbed.server(),
        cpu: bench.testbed.config().server_cpu,
    };
    let Started { said, ended } = Child::run(place, &job, "curl", WITHIN)?;
    Ok(sample(said, [(SAID, said), (ENDED, ended)]))
}

fn memory(
    bench: &mut Bench,
    system: System,
    site: &Site,
    connections: u32,
) -> anyhow::Result<Sample> {
    let setup = Asked::Nginx
        .curve(system, site, MEMORY, Vec::new())
        .setup(None);
    let mut session = bench.serve(&setup)?;
    let resident = session.resident();
    let idle = IdleSpec {
        path: DOCUMENT.to_owned(),
        sources: more_clients(),
        ..IdleSpec::new(server(HTTP_PORT), connections)
    };
    let (held, _workers) = session.hold(&idle)?;
    let all = resident.all as f64 / MIB;
    let values = [
        (ALL, all),
        (PROGRAM, resident.program as f64 / MIB),
        (EACH, held.process as f64 / f64::from(held.connections)),
    ];
    Ok(sample(all, values))
}

fn sample<const N: usize>(y: f64, values: [(&str, f64); N]) -> Sample {
    Sample {
        y,
        values: values.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Sample::default()
    }
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let added = |setting, name| {
        let of = |system| value(series, (system, setting), 0.0, name);
        Some(of(OURS)? - of(LINUX)?)
    };
    vec![
        Claim::at_most(
            "start-up",
            "ms that `tidewall run` adds until curl has its answer",
            added(START, SAID),
            100.0,
        ),
        Claim::new(
            "start-and-end",
            "and until all has ended and the interface is as before",
            added(START, ENDED),
        ),
        Claim::at_most(
            "memory",
            "MiB that it adds to nginx's process",
            added(MEMORY, PROGRAM),
            40.0,
        ),
        Claim::new(
            "memory-manager",
            "and with its manager, which is another process",
            added(MEMORY, ALL),
        ),
        Claim::at_most(
            "idle-connection",
            "bytes that it adds to nginx's process with each idle connection",
            added(MEMORY, EACH),
            2048.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    #[test]
    fn claims_are_what_is_added() {
        let of = |system, setting, values: &[(&str, f64)]| {
            let mut curve = curve(system, Some(setting), &[(0.0, 1.0)]);
            let values = values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value));
            curve.points[0].values.extend(values);
            curve
        };
        let series = [
            of(OURS, START, &[(SAID, 95.0), (ENDED, 150.0)]),
            of(LINUX, START, &[(SAID, 10.0), (ENDED, 11.0)]),
            of(
                OURS,
                MEMORY,
                &[(ALL, 80.0), (PROGRAM, 45.0), (EACH, 2500.0)],
            ),
            of(
                LINUX,
                MEMORY,
                &[(ALL, 10.0), (PROGRAM, 10.0), (EACH, 800.0)],
            ),
        ];
        let claims = claims(&series);
        let measured: Vec<Option<f64>> = claims.iter().map(|claim| claim.measured).collect();
        assert_eq!(measured, [85.0, 139.0, 35.0, 70.0, 1700.0].map(Some));
        all_hold(
            &[claims[0].clone(), claims[2].clone(), claims[4].clone()],
            &[
                ("start-up", 85.0),
                ("memory", 35.0),
                ("idle-connection", 1700.0),
            ],
        );
    }
}
