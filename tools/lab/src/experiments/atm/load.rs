//! Set-up times beside shell pipelines on the processor of the caller and of what controls its
//! circuits.

use super::super::{Experiment, Run, USUAL, ratio};
use super::{Case, SETUP_MEAN, value};
use crate::result::{Claim, Series};
use crate::worker::{CallsJob, CallsOver, CallsRole, Child, Job, Place};

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

const SETTING: &str = "control in the caller's process";
const EQUAL: &str = "nice 0";
const HIGH: &str = "nice -20";
const FIFO: &str = "SCHED_FIFO";
/// By name; what is under -20 is SCHED_FIFO.
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
    let quick = run.options.quick;
    let mut cases = Vec::new();
    for (system, nice) in PRIORITIES {
        for pipelines in 0..=MOST {
            if quick && (1..MOST).contains(&pipelines) {
                continue;
            }
            cases.push(Case {
                system,
                setting: SETTING,
                x: pipelines.into(),
                what: (nice, pipelines),
            });
        }
    }
    let plan = run.options.within(6, 55);
    super::rounds(run, &cases, plan, |bench, case| {
        let (nice, pipelines) = case.what;
        let _called = super::called(bench, CallsOver::InProcess)?;
        let place = Place {
            namespace: bench.testbed.client(),
            cpu: bench.testbed.config().client_cpu,
        };
        let competing =
            (0..pipelines).map(|_| Child::start_ready(place, &Job::Pipeline, "a pipeline"));
        let _competing = competing.collect::<anyhow::Result<Vec<_>>>()?;
        let job = CallsJob {
            role: CallsRole::Caller,
            over: CallsOver::InProcess,
            time_ms: TIME_MS,
            pause_us: PAUSE_US,
            nice,
        };
        let report = super::call(bench, &job, || Ok(()))?;
        let mut sample = super::sample(case.x, &report);
        sample.y = report.setup.mean;
        Ok(sample)
    })?;
    run.note(
        "Each pipeline reads a file of the kernel's, changes its letters, sorts and counts it, at nice \
         0. The caller has the priority, as what controls its circuits is in its process; it calls \
         some hundred times, with pauses of up to 10 ms, a listener on the other processor.",
    );
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mean =
        |system, pipelines: u32| value(series, (system, SETTING), pipelines.into(), SETUP_MEAN);
    let loaded = |system| ratio(mean(system, MOST), mean(system, 0));
    vec![
        Claim::at_most(
            "high",
            "mean set-up time beside three pipelines over beside none: nice -20",
            loaded(HIGH),
            1.3,
        ),
        Claim::at_most("fifo", "the same: SCHED_FIFO", loaded(FIFO), 1.3),
        Claim::new("equal", "the same: nice 0, as the pipelines", loaded(EQUAL)),
        Claim::new("slightly", "the same: nice -1", loaded("nice -1")),
        Claim::new("above-automount", "the same: nice -6", loaded("nice -6")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_three_pipelines_with_none() {
        let series = PRIORITIES.map(|(system, nice)| {
            let loaded = if nice < -6 { 1.2e2 } else { 5e3 };
            let mut curve = curve(system, Some(SETTING), &[(0.0, 1e2), (3.0, loaded)]);
            for point in &mut curve.points {
                point.values.insert(SETUP_MEAN.to_owned(), point.y);
            }
            curve
        });
        let claims = claims(&series);
        let figures: Vec<_> = claims
            .iter()
            .map(|claim| (claim.measured, claim.holds))
            .collect();
        assert_eq!(figures[..2], [(Some(1.2), Some(true)); 2]);
        assert_eq!(figures[2..], [(Some(50.0), None); 3]);
    }
}
