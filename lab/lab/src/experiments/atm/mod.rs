//! The experiments of the ATM socket family (Black and Crosby).

pub(super) mod data;
pub(super) mod flood;
pub(super) mod load;
mod planes;
pub(super) mod profile;
pub(super) mod setup;
pub(super) mod size;
mod through;

use std::thread;
use std::time::{Duration, Instant};

use super::Run;
use super::cases::{self, Case, value};
use crate::bench::Bench;
use crate::interrupt::Interrupted;
use crate::sweep::{Plan, Sample};
use crate::testbed::Mode;
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
/// Time within which an interface is free again.
const RESTART: Duration = Duration::from_secs(2);
/// How long a worker may exceed its time.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Acts as [`cases::rounds`], on an interface that stacks take.
fn rounds<T>(
    run: &mut Run<'_>,
    cases: &[Case<T>],
    plan: Plan,
    measure: impl Fn(&mut Bench, &Case<T>) -> anyhow::Result<Sample>,
) -> anyhow::Result<()> {
    run.bench.testbed.set_mode(Mode::Tidewall)?;
    cases::rounds(run, cases, plan, measure)
}

/// Returns a job that calls for this long, in a closed loop.
fn calls(role: CallsRole, over: CallsOver, time: Duration) -> CallsJob {
    CallsJob {
        role,
        over,
        time_ms: time.as_millis() as u32,
        pause_us: 0,
        nice: 0,
    }
}

/// Starts another command of this program. The previous owner of its interfaces may not
/// have returned them yet.
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

/// Starts the called end, on the server's processor.
fn called(bench: &Bench, over: CallsOver) -> anyhow::Result<Child> {
    let place = planes::server(bench);
    let job = Job::Calls(calls(CallsRole::Called, over, Duration::ZERO));
    Child::start_ready(place, &job, "who is called")
}

/// Calls from this place.
fn call(place: Place<'_>, job: &CallsJob) -> anyhow::Result<CallsReport> {
    let within = Duration::from_millis(job.time_ms.into()) + TIMEOUT;
    let mut child = Child::start_ready(place, &Job::Calls(job.clone()), "the caller")?;
    Ok(serde_json::from_str(&child.line(within)?)?)
}

/// Returns the report of calls as a sample, the median of set-up and teardown above `x`.
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
