//! The worker that loads.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidewall_load::{PROGRESS_INTERVAL, Phase, Progress};
use tidewall_service::Reader;

use super::{LoadJob, LoadOutcome, Times, TracePoint, Usage};

/// The line printed by a load that begins to measure.
pub(super) const MEASURING: &str = "measuring";

/// Counts of all services at one moment.
struct Sample {
    at: Instant,
    received: Vec<u64>,
    times: Option<Times>,
}

/// Runs the load. Meanwhile it reads the service's counters on the load's own thread:
/// when the service's processor is livelocked, no other thread would.
pub(super) fn run(job: &LoadJob) -> anyhow::Result<()> {
    let reader = match &job.counters {
        Some(path) => Some(Reader::open(path).with_context(|| {
            format!("cannot read the service's counters in {}", path.display())
        })?),
        None => None,
    };
    let interval = match job.every_ms {
        0 => PROGRESS_INTERVAL,
        milliseconds => Duration::from_millis(milliseconds.into()),
    };
    // Reading the processor's times costs the load's time: at the beginning and at the
    // end, not with every sample.
    let last_sample = (job.spec.warm_up + job.spec.duration).saturating_sub(interval);
    let mut first: Option<Sample> = None;
    let mut last: Option<Sample> = None;
    let mut trace = Vec::new();
    let never = AtomicBool::new(false);
    let report =
        tidewall_load::run_with_interval(&job.spec, &never, interval, |progress: Progress| {
            let Some(reader) = reader.as_ref().filter(|_| progress.phase != Phase::Opening) else {
                return;
            };
            let received: Vec<u64> = reader.read().iter().map(|counts| counts.received).collect();
            if job.trace {
                trace.push(TracePoint {
                    at: progress.elapsed.as_secs_f64(),
                    received: received.clone(),
                    ping: progress.ping,
                    latency: progress.latency,
                });
            }
            if progress.phase != Phase::Measuring {
                return;
            }
            let edge = first.is_none() || progress.elapsed >= last_sample;
            let sample = Sample {
                at: Instant::now(),
                received,
                times: job.watch.filter(|_| edge).map(Times::read),
            };
            match first {
                None => {
                    first = Some(sample);
                    println!("{MEASURING}");
                }
                Some(_) => last = Some(sample),
            }
        })?;
    let (delivered, usage) = match (&reader, first, last) {
        (None, _, _) => (Vec::new(), None),
        (Some(_), Some(first), Some(last)) => (rates(&first, &last), usage(&first, &last)),
        _ => anyhow::bail!("the load was too short to measure what was delivered"),
    };
    println!(
        "{}",
        serde_json::to_string(&LoadOutcome {
            report,
            delivered,
            usage,
            trace,
        })?
    );
    Ok(())
}

fn rates(first: &Sample, last: &Sample) -> Vec<f64> {
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    first
        .received
        .iter()
        .zip(&last.received)
        .map(|(first, last)| last.saturating_sub(*first) as f64 / seconds)
        .collect()
}

fn usage(first: &Sample, last: &Sample) -> Option<Usage> {
    Some(Usage::between(first.times.as_ref()?, last.times.as_ref()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_over_time() {
        let at = Instant::now();
        let first = Sample {
            at,
            received: vec![10, 1000],
            times: None,
        };
        let last = Sample {
            at: at + Duration::from_millis(500),
            received: vec![10, 2000],
            times: None,
        };
        assert_eq!(rates(&first, &last), [0.0, 2000.0]);
        assert_eq!(usage(&first, &last), None);
    }
}
