//! Set-up times beside shell pipelines on the processor of the caller and of the process
//! that controls its circuits.

use std::time::Duration;

use super::super::{Experiment, Run, USUAL, ratio};
use super::planes::{self, Parties, Plane, Way, client};
use super::{Case, SETUP_MEAN, value};
use crate::result::{Claim, Series};
use crate::worker::{CallsJob, Child, Job};

pub(in super::super) const EXPERIMENT: Experiment = Experiment {
    name: "atm-load",
    paper: "ATM sockets, Figure 2",
    about: "mean set-up time beside shell pipelines, by the priority of who controls the circuits",
    x: "competing pipelines",
    y: "mean set-up time, µs",
    senders: &["calls with random pauses"],
    measure,
    claims,
    ..USUAL
};

const IN_CALLER: &str = "control in the caller's process";
const BOTH: &str = "tidewalld and the caller";
const MANAGER: &str = "tidewalld, the caller at nice 0";
/// Which processes have the priority: the one that controls circuits, and, if true, also
/// the caller.
const SETTINGS: [(Plane, bool, &str); 3] = [
    (Plane::InProcess, true, IN_CALLER),
    (Plane::Manager, true, BOTH),
    (Plane::Manager, false, MANAGER),
];
const EQUAL: &str = "nice 0";
const HIGH: &str = "nice -20";
const FIFO: &str = "SCHED_FIFO";
/// Nice values by name; below -20 means SCHED_FIFO.
const PRIORITIES: [(&str, i32); 5] = [
    (EQUAL, 0),
    ("nice -1", -1),
    ("nice -6", -6),
    (HIGH, -20),
    (FIFO, -21),
];
const MOST: u32 = 3;
/// Some hundred calls.
const TIME_MS: u32 = 500;
const PAUSE_US: u32 = 10_000;

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    planes::interrupt_at_once(run.bench)?;
    let quick = run.options.quick;
    let mut cases = Vec::new();
    for (plane, of_caller, setting) in SETTINGS {
        for (system, nice) in PRIORITIES {
            for pipelines in 0..=MOST {
                let middle = (1..MOST).contains(&pipelines) || (-19..0).contains(&nice);
                if quick && middle {
                    continue;
                }
                cases.push(Case {
                    system,
                    setting,
                    x: pipelines.into(),
                    what: (plane, of_caller, nice, pipelines),
                });
            }
        }
    }
    let plan = run.options.within(6, 55);
    super::rounds(run, &cases, plan, |bench, case| {
        let (plane, of_caller, nice, pipelines) = case.what;
        let mut parties = Parties::start(bench, plane, Way::Link, nice)?;
        let competing =
            (0..pipelines).map(|_| Child::start_ready(client(bench), &Job::Pipeline, "a pipeline"));
        let _competing = competing.collect::<anyhow::Result<Vec<_>>>()?;
        let job = CallsJob {
            time_ms: TIME_MS,
            pause_us: PAUSE_US,
            nice: if of_caller { nice } else { 0 },
            ..parties.job(Duration::ZERO)
        };
        let report = parties.call(bench, &job, |_| Ok(()))?;
        let mut sample = super::sample(case.x, &report);
        sample.y = report.setup.mean;
        Ok(sample)
    })?;
    run.note(
        "Each pipeline reads a file of the kernel's, changes its letters, sorts and counts it, at nice \
         0, on the processor of the caller and of its manager. The manager has the priority, and so \
         has the caller unless the curve says otherwise; where it controls its circuits itself it is \
         both. It calls some hundred times, with pauses of up to 10 ms, a listener with a manager of \
         its own on the other processor.",
    );
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (setting, id, bounded) in [
        (IN_CALLER, "in-process", true),
        (BOTH, "manager", true),
        (MANAGER, "manager-alone", false),
    ] {
        let mean =
            |system, pipelines: u32| value(series, (system, setting), pipelines.into(), SETUP_MEAN);
        for (system, _) in PRIORITIES {
            let of = system.trim_start_matches("nice ").to_lowercase();
            let id = format!("{id}-{}", of.replace("sched_", "").replace('-', "minus-"));
            let text = format!(
                "mean set-up time beside three pipelines over beside none: {setting}, {system}"
            );
            let loaded = ratio(mean(system, MOST), mean(system, 0));
            claims.push(match [HIGH, FIFO].contains(&system) && bounded {
                true => Claim::at_most(id, text, loaded, 1.3),
                false => Claim::new(id, text, loaded),
            });
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_three_pipelines_with_none() {
        let series = PRIORITIES.map(|(system, nice)| {
            let loaded = if nice < -6 { 1.2e2 } else { 5e3 };
            let mut curve = curve(system, Some(BOTH), &[(0.0, 1e2), (3.0, loaded)]);
            for point in &mut curve.points {
                point.values.insert(SETUP_MEAN.to_owned(), point.y);
            }
            curve
        });
        let claims = claims(&series);
        let of = |id: &str| claims.iter().find(|claim| claim.id == id).unwrap();
        for id in ["manager-minus-20", "manager-fifo"] {
            assert_eq!((of(id).measured, of(id).holds), (Some(1.2), Some(true)));
        }
        let equal = of("manager-0");
        assert_eq!((equal.measured, equal.holds), (Some(50.0), None));
        assert_eq!(of("manager-alone-minus-20").measured, None);
    }
}
