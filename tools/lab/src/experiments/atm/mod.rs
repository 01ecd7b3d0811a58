//! The experiments of the ATM socket family (Black and Crosby).

pub(super) mod data;
pub(super) mod flood;
pub(super) mod load;
mod planes;
pub(super) mod profile;
pub(super) mod setup;
pub(super) mod size;
mod through;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::Run;
use crate::bench::Bench;
use crate::interrupt::{self, Interrupted};
use crate::result::Series;
use crate::sweep::{Plan, Sample, point};
use crate::testbed::Mode;
use crate::verdict::{is_decided, judge};
use crate::worker::{CallsJob, CallsOver, CallsReport, CallsRole, Child, Job, Place};

/// Control in the process of each end.
const IN_PROCESS: &str = "in-process";
/// Names of a point's values: durations, µs.
const SETUP_MEAN: &str = "set-up mean µs";
const SETUP_P50: &str = "set-up p50 µs";
const SETUP_P99: &str = "set-up p99 µs";
const WHOLE_P50: &str = "p50 µs";
const WHOLE_P99: &str = "p99 µs";
const CALLS: &str = "calls/s";
/// Within which an interface is free again.
const RESTART: Duration = Duration::from_secs(2);
/// How long a worker may take beyond its time.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A point to measure: where it is drawn, and how it is measured.
struct Case<T> {
    system: &'static str,
    setting: &'static str,
    x: f64,
    what: T,
}

/// Measures every case round by round, in alternating order, until the plan is over or all
/// claims are decided, and adds the curves to those that there are.
fn rounds<T>(
    run: &mut Run<'_>,
    cases: &[Case<T>],
    plan: Plan,
    measure: impl Fn(&mut Bench, &Case<T>) -> anyhow::Result<Sample>,
) -> anyhow::Result<()> {
    run.bench.testbed.set_mode(Mode::Tidewall)?;
    let before = run.series.clone();
    let begun = Instant::now();
    let mut measured: BTreeMap<usize, Vec<Sample>> = BTreeMap::new();
    for round in 0..plan.rounds {
        let per_round = begun.elapsed() / round.max(1);
        let in_time = begun.elapsed() + per_round <= plan.budget;
        if round >= plan.least && (!in_time || is_decided(&judge(run.claims, &run.series))) {
            break;
        }
        let what = format!("{}, round {}", run.name, round + 1);
        run.progress.begin(&what, cases.len() as u64);
        let mut order: Vec<usize> = (0..cases.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            let Some(case) = cases.get(number) else {
                continue;
            };
            interrupt::check()?;
            let name = format!("{}, {}, {}", case.system, case.setting, case.x);
            match measure(run.bench, case) {
                Ok(sample) => {
                    run.progress.step(&format!("{name}: {:.1}", sample.y));
                    let sample = Sample { round, ..sample };
                    measured.entry(number).or_default().push(sample);
                }
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => run.note(format!("{name}: not measured: {error:#}")),
            }
        }
        run.progress.end();
        run.series = [before.clone(), curves(cases, &measured)].concat();
    }
    Ok(())
}

/// A curve a system and setting.
fn curves<T>(cases: &[Case<T>], measured: &BTreeMap<usize, Vec<Sample>>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let Some(point) = measured.get(&number).and_then(|it| point(it)) else {
            continue;
        };
        let same = |it: &&mut Series| {
            it.system == case.system && it.setting.as_deref() == Some(case.setting)
        };
        match series.iter_mut().find(same) {
            Some(found) => found.points.push(point),
            None => series.push(Series {
                points: vec![point],
                ..Series::named(case.system, case.setting)
            }),
        }
    }
    series
}

/// Calls for so long, closed loop.
fn calls(role: CallsRole, over: CallsOver, time: Duration) -> CallsJob {
    CallsJob {
        role,
        over,
        time_ms: time.as_millis() as u32,
        pause_us: 0,
        nice: 0,
    }
}

/// Starts another command of this program. What had its interfaces before may not have put
/// them back yet.
fn command(place: Place<'_>, line: &str) -> anyhow::Result<Child> {
    let words = line.split_whitespace().map(str::to_owned).collect();
    let job = Job::Own(words);
    let begun = Instant::now();
    loop {
        match Child::start_ready(place, &job, line) {
            Err(error) if !error.is::<Interrupted>() && begun.elapsed() < RESTART => {
                thread::sleep(RESTART / 20);
            }
            other => return other,
        }
    }
}

/// Starts who is called, on the server's processor.
fn called(bench: &Bench, over: CallsOver) -> anyhow::Result<Child> {
    let place = planes::server(bench);
    let job = Job::Calls(calls(CallsRole::Called, over, Duration::ZERO));
    Child::start_ready(place, &job, "who is called")
}

/// Calls from here.
fn call(place: Place<'_>, job: &CallsJob) -> anyhow::Result<CallsReport> {
    let within = Duration::from_millis(job.time_ms.into()) + TIMEOUT;
    let mut child = Child::start_ready(place, &Job::Calls(job.clone()), "the caller")?;
    Ok(serde_json::from_str(&child.line(within)?)?)
}

/// The report of calls as a sample, the median of set-up and teardown above `x`.
fn sample(x: f64, report: &CallsReport) -> Sample {
    let values = [
        (SETUP_MEAN, report.setup.mean),
        (SETUP_P50, report.setup.p50),
        (SETUP_P99, report.setup.p99),
        (WHOLE_P50, report.whole.p50),
        (WHOLE_P99, report.whole.p99),
        (CALLS, report.calls as f64 / report.seconds.max(1e-9)),
    ];
    Sample {
        x,
        y: report.whole.p50,
        values: values.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Sample::default()
    }
}

/// A value of the curve's point at `x`.
fn value(series: &[Series], (system, setting): (&str, &str), x: f64, name: &str) -> Option<f64> {
    let curve = crate::result::find(series, system, Some(setting))?;
    let point = curve.points.iter().find(|point| point.x == x)?;
    point.values.get(name).copied()
}
