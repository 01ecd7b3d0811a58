//! Redis: an unmodified benchmark and four unmodified servers, through bridges and a
//! switch, and through programs made for Redis.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;

use super::super::{Experiment, Run, USUAL, ratio};
use super::between::middle;
use super::star::{Layout, Star, members};
use super::{BUSY, Between, Case, Installed, Manner, PROCESSOR_REQUEST};
use crate::interrupt;
use crate::result::{Claim, Point, Series};
use crate::sweep::{Sample, point};
use crate::worker::{BenchmarkJob, Child, Job, Place, Program, SwitchModule, Times, Usage, Watch};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "anypoint-redis",
    paper: "Anypoint, after its storage service",
    about: "redis-benchmark -P 16 over four servers: bridges and the switch, twemproxy, HAProxy",
    x: "commands in a pipeline",
    y: "requests/s",
    senders: &["redis-benchmark"],
    measure,
    claims,
    ..USUAL
};

const SETTING: &str = "SET and GET, 50 connections, four servers";
const MEMBERS: u8 = 4;
const PIPELINE: u32 = 16;
/// Time for all of the benchmark.
const WITHIN: Duration = Duration::from_secs(60);
/// SET and GET.
const TESTS: u32 = 2;
/// Ports of the servers themselves, if bridges are in front of them.
const BEHIND: u16 = 1000;
/// Address of the client's bridge.
const BRIDGE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 6379);

/// A system: its intermediary, and whether any bridges share the intermediary's
/// processor.
const SYSTEMS: [(&str, Between, bool); 5] = [
    (
        "switch",
        Between::Switch(SwitchModule::KeyValue, Manner::Usual),
        false,
    ),
    (
        "switch-sleeping",
        Between::Switch(SwitchModule::KeyValue, Manner::Sleeping),
        false,
    ),
    (
        "switch-and-bridges",
        Between::Switch(SwitchModule::KeyValue, Manner::Sleeping),
        true,
    ),
    ("twemproxy", Between::Program(Installed::Twemproxy), false),
    ("haproxy", Between::Program(Installed::Haproxy), false),
];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let begun = std::time::Instant::now();
    if !Program::Redis.is_there() || crate::command::absolute("redis-benchmark").is_err() {
        run.note("Nothing is measured: the Debian packages redis-server and redis-tools are not both installed.");
        return Ok(());
    }
    let quick = run.options.quick;
    let requests = if quick { 100_000 } else { 300_000 };
    let there = run.installed(&SYSTEMS.map(|it| it.1));
    let systems = SYSTEMS.iter().filter(|it| there.contains(&it.1));
    let systems: Vec<_> = systems.collect();
    let plan = run.options.plan(6);
    let star = Star::new(&run.bench.testbed, Layout::Apart)?;
    star.set_mtu(CASE_MTU)?;
    let mut measured: Vec<Vec<Sample>> = vec![Vec::new(); systems.len()];
    for round in 0..plan.rounds {
        let per_round = begun.elapsed() / round.max(1);
        if round >= plan.least && begun.elapsed() + per_round > plan.budget {
            break;
        }
        run.progress.begin(
            &format!("{}, round {}", run.name, round + 1),
            systems.len() as u64,
        );
        let mut order: Vec<usize> = (0..systems.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            interrupt::check()?;
            let (name, between, beside) = *systems[place];
            let (rate, busy, each) =
                through(&star, between, beside, requests).with_context(|| name.to_owned())?;
            run.progress
                .step(&format!("{name}: {rate:.0}, busy {busy:.2}"));
            measured[place].push(Sample {
                round,
                x: f64::from(PIPELINE),
                y: rate,
                values: BTreeMap::from([
                    (BUSY.to_owned(), busy),
                    (PROCESSOR_REQUEST.to_owned(), each),
                ]),
                ..Sample::default()
            });
        }
        run.progress.end();
        let curve = |(&&(name, ..), samples): (&&(&str, Between, bool), &Vec<Sample>)| Series {
            points: point(samples).into_iter().collect(),
            ..Series::named(name, SETTING)
        };
        run.series = systems.iter().zip(&measured).map(curve).collect();
    }
    let described = systems.iter().map(|(name, between, beside)| {
        let bridges = match (between, beside) {
            (Between::Switch(..), true) => "; all bridges on the intermediary's processor",
            (Between::Switch(..), false) => "; bridges with the client and with the servers",
            _ => "",
        };
        ((*name).to_owned(), format!("{}{bridges}", between.about()))
    });
    run.described = Some(described.collect());
    run.note(
        "The intermediary has one processor; the benchmark and all servers, and bridges where they \
         are at the ends, share the other one, which is what is busy first. The client's bridge has two \
         connections to the switch, whose ring has 1,024 places for each: the usual 384 hold fewer \
         commands than are under way. Twemproxy has one connection to each server. HAProxy sends a \
         connection to one server, whatever its keys: that is another service, shown for its cost.",
    );
    Ok(())
}

const CASE_MTU: u16 = 1500;
/// Slots of a connection's ring, of which 7/8 are offered: all outstanding commands, 800,
/// may be on one of the two.
const RING: u16 = 1024;

/// Measures requests/s, the intermediary's share of its processor while the benchmark
/// ran, and its CPU time per request, ns.
fn through(
    star: &Star,
    between: Between,
    beside: bool,
    requests: u32,
) -> anyhow::Result<(f64, f64, f64)> {
    let [ends, between_cpu] = star.cpus;
    let bridges_cpu = if beside { between_cpu } else { ends };
    let start = |namespace: &str, cpu, job: Job, what: &str| {
        Child::start_ready(Place { namespace, cpu }, &job, what)
    };
    let program = |namespace: &str, cpu, program: Program, port| {
        let what = program.name();
        start(namespace, cpu, Job::Program(program, port), what)
    };
    let is_switch = matches!(between, Between::Switch(..));
    let addresses = members(MEMBERS);
    let case = Case {
        mtu: CASE_MTU,
        ring: Some(RING),
        ..Case::default()
    };
    let (job, mut address) = middle(between, &addresses, &case);
    let mut running = Vec::new();
    for member in &addresses {
        let (own, behind) = (member.port(), member.port() + BEHIND);
        let port = if is_switch { behind } else { own };
        running.push(program(&star.members, ends, Program::Redis, port)?);
        if is_switch {
            let bridge = Program::AcpBridge {
                side: "member".to_owned(),
                to: SocketAddr::new(BRIDGE.ip(), behind),
            };
            running.push(program(&star.members, bridges_cpu, bridge, own)?);
        }
    }
    let job = job.context("nobody is between")?;
    let intermediary = start(&star.middle, between_cpu, job, between.name())?;
    if is_switch {
        let bridge = Program::AcpBridge {
            side: "client".to_owned(),
            to: address,
        };
        running.push(program(&star.peer, bridges_cpu, bridge, BRIDGE.port())?);
        address = BRIDGE;
    }
    let watch = Watch {
        process: intermediary.process(),
        cpu: between_cpu,
    };
    let first = Times::read(watch);
    let benchmark = Job::Benchmark(BenchmarkJob {
        server: address,
        connections: 50,
        pipeline: PIPELINE,
        requests,
    });
    let place = Place {
        namespace: &star.peer,
        cpu: ends,
    };
    let rate = Child::run(place, &benchmark, "redis-benchmark", WITHIN)?;
    let usage = Usage::between(&first, &Times::read(watch));
    let busy = 1.0 - usage.left();
    // The benchmark's own rates exclude its start; the CPU time includes it.
    let each = busy * usage.seconds * 1e9 / f64::from(TESTS * requests);
    Ok((rate, busy, each))
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |system| crate::result::find(series, system, Some(SETTING))?.last();
    let rate = |system| at(system).map(|point: &Point| point.y);
    let cost = |system| at(system).and_then(|it| it.values.get(PROCESSOR_REQUEST).copied());
    vec![
        Claim::at_least(
            "twemproxy",
            "requests/s: switch, bridges at the ends, over twemproxy",
            ratio(rate("switch"), rate("twemproxy")),
            1.3,
        ),
        Claim::at_least(
            "capacity",
            "requests per second of the intermediary's processor: switch, bridges at the ends, over \
             twemproxy",
            ratio(cost("twemproxy"), cost("switch-sleeping")),
            1.3,
        ),
        Claim::at_least(
            "bridges",
            "requests/s: switch and bridges on the intermediary's processor over twemproxy",
            ratio(rate("switch-and-bridges"), rate("twemproxy")),
            1.3,
        ),
        Claim::new(
            "haproxy",
            "requests/s: switch, bridges at the ends, over HAProxy, which knows no keys",
            ratio(rate("switch"), rate("haproxy")),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_twemproxy() {
        let mut series = ["switch", "switch-sleeping", "twemproxy"]
            .map(|system| curve(system, Some(SETTING), &[(16.0, 100.0)]));
        for (curve, cost) in [(1, 2.0), (2, 5.0)] {
            let values = &mut series[curve].points[0].values;
            values.insert(PROCESSOR_REQUEST.to_owned(), cost);
        }
        let measured: Vec<Option<f64>> = claims(&series).iter().map(|it| it.measured).collect();
        assert_eq!(measured, [Some(1.0), Some(2.5), None, None]);
    }
}
