//! The CPU time of the process that controls circuits, by part, and its context switches.

use std::time::Duration;

use super::super::{Experiment, Run, USUAL};
use super::planes::{self, Parties, Plane, Way};
use super::{Case, value};
use crate::profile::{Profile, Recorder};
use crate::result::{Claim, Series};
use crate::worker::Spent;

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-profile",
    paper: "ATM sockets, Table 2",
    about: "where the time of the called end, or of the manager, goes, and its context switches a \
            call",
    x: "nothing",
    y: "processor time a call, µs",
    senders: &["calls in a closed loop"],
    measure,
    claims,
    ..USUAL
};

/// The observed process: the one that controls the called end's circuits.
const SETTINGS: [(Plane, Way, &str); 5] = [
    (Plane::InProcess, Way::Link, CALLED),
    (Plane::Manager, Way::Local, LOCAL),
    (Plane::Threads, Way::Local, LOCAL),
    (Plane::Manager, Way::Link, LINK),
    (Plane::Threads, Way::Link, LINK),
];
const CALLED: &str = "the called end";
const LOCAL: &str = "the manager, local calls";
const LINK: &str = "the manager of the called end";
const TIME: Duration = Duration::from_millis(800);
const SWITCHES: &str = "context switches a call";
/// Parts by their functions' names; the first match counts, and the last takes the rest.
const PARTS: [(&str, &[&str]); 5] = [
    ("signalling %", &["tidewall_atm", "tidewall_wire"]),
    (
        "sockets %",
        &[
            "tidewall_circuits",
            "tidewall_readiness",
            "tidewall_stack",
            "tidewall_receive",
            "tidewall_device",
        ],
    ),
    (
        LOCKS,
        &["futex", "pthread", "mutex", "sync", "spin", "lock"],
    ),
    ("memory %", &["alloc", "malloc", "free", "BTree"]),
    (KERNEL, &[""]),
];
const LOCKS: &str = "locks and waking %";
const KERNEL: &str = "kernel and the rest %";

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    planes::interrupt_at_once(run.bench)?;
    let cpu = run.bench.testbed.config().server_cpu;
    let sampled = crate::profile::is_there(cpu);
    if let Err(why) = &sampled {
        run.note(format!("Not sampled: {why}"));
    }
    let cases = SETTINGS.map(|(plane, way, setting)| Case {
        system: plane.name(),
        setting,
        x: 0.0,
        what: (plane, way),
    });
    let plan = run.options.within(6, 55);
    super::rounds(run, &cases, plan, |bench, case| {
        let (plane, way) = case.what;
        let mut parties = Parties::start(bench, plane, way, 0)?;
        let mut recorder = None;
        let mut before = None;
        let job = parties.job(TIME);
        let report = parties.call(bench, &job, |parties| {
            before = Some(parties.controller_cpu()?);
            if sampled.is_ok() {
                recorder = Some(Recorder::start(cpu, TIME)?);
            }
            Ok(())
        })?;
        let after = parties.controller_cpu()?;
        let spent = Spent::of_process(&before.unwrap_or_default(), &after);
        let calls = (report.calls as f64).max(1.0);
        let mut sample = super::sample(case.x, &report);
        sample.y = spent.application / 1e3 / calls;
        sample
            .values
            .insert(SWITCHES.to_owned(), spent.switches / calls);
        if let Some(recorder) = recorder {
            let profile = recorder.finish(parties.controller()?)?;
            sample.values.extend(parts(&profile));
        }
        Ok(sample)
    })?;
    run.note(
        "Samples by perf of the processor of the called end or its manager, the idle loop and other \
         processes left out. Threads that a manager has had for calls are not in its context \
         switches once they have ended. \
         The paper's manager spent just over half of its time in its threads library.",
    );
    Ok(())
}

/// Returns shares of the busy time, %.
fn parts(profile: &Profile) -> impl Iterator<Item = (String, f64)> {
    let total = profile.functions.values().sum::<u64>().max(1) as f64;
    PARTS
        .into_iter()
        .enumerate()
        .map(move |(place, (name, _))| {
            let own = |function: &str| {
                let is =
                    |(_, words): &(&str, &[&str])| words.iter().any(|word| function.contains(word));
                PARTS.iter().position(is) == Some(place)
            };
            (name.to_owned(), 100.0 * profile.of(own) as f64 / total)
        })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (plane, way, setting) in SETTINGS {
        let system = plane.name();
        let at = |name| value(series, (system, setting), 0.0, name);
        let id = match (plane, way) {
            (Plane::InProcess, _) => "in-process",
            (Plane::Manager, Way::Local) => "manager",
            (Plane::Manager, _) => "manager-link",
            (Plane::Threads, Way::Local) => "threads",
            (Plane::Threads, _) => "threads-link",
        };
        let who = format!("{system}, {setting}");
        claims.push(Claim::new(
            format!("{id}-switches"),
            format!("context switches per call: {who}"),
            at(SWITCHES),
        ));
        for (number, (name, _)) in PARTS.into_iter().enumerate() {
            let id = format!("{id}-part-{}", number + 1);
            let claim = Claim::new(id, format!("share of the time: {who}: {name}"), at(name));
            claims.push(match (name, plane) {
                (LOCKS, Plane::Threads) => claim.paper(50.0),
                _ => claim,
            });
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_of_one_part() {
        let names = [
            ("tidewall_atm::sscop::Sscop::send", 10),
            ("tidewall_stack::lock::Mutex<T>::lock", 20),
            ("futex_wake", 30),
            ("malloc", 15),
            ("veth_xmit", 25),
        ];
        let profile = Profile {
            idle: 900,
            functions: names
                .map(|(name, samples)| (name.to_owned(), samples))
                .into(),
            others: 5,
        };
        let shares: Vec<f64> = parts(&profile).map(|(_, share)| share).collect();
        assert_eq!(shares, [10.0, 20.0, 30.0, 15.0, 25.0]);
    }
}
