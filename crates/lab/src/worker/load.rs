//! The worker that loads.

use std::time::Instant;

use anyhow::Context;
use tidewall_load::{Phase, Progress};
use tidewall_service::Reader;

use super::{LoadJob, LoadOutcome};

/// Counts of all services at one moment.
struct Sample {
    at: Instant,
    received: Vec<u64>,
}

/// Runs the load, reading the service's counters meanwhile on the load's own
/// thread: when the service's processor is livelocked nothing else would.
pub(super) fn run(job: &LoadJob) -> anyhow::Result<()> {
    let reader = match &job.counters {
        Some(path) => Some(Reader::open(path).with_context(|| {
            format!("cannot read the service's counters in {}", path.display())
        })?),
        None => None,
    };
    let mut first: Option<Sample> = None;
    let mut last: Option<Sample> = None;
    let report = tidewall_load::run(&job.spec, |progress: Progress| {
        if let (Some(reader), Phase::Measuring) = (&reader, progress.phase) {
            let received = reader.read().iter().map(|counts| counts.received).collect();
            let sample = Sample {
                at: Instant::now(),
                received,
            };
            match first {
                None => first = Some(sample),
                Some(_) => last = Some(sample),
            }
        }
    })?;
    let delivered = match (&reader, first, last) {
        (None, _, _) => Vec::new(),
        (Some(_), Some(first), Some(last)) => rates(&first, &last),
        _ => anyhow::bail!("the load was too short to measure what was delivered"),
    };
    println!(
        "{}",
        serde_json::to_string(&LoadOutcome { report, delivered })?
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_differences_over_time() {
        let at = Instant::now();
        let first = Sample {
            at,
            received: vec![10, 1000],
        };
        let last = Sample {
            at: at + Duration::from_millis(500),
            received: vec![10, 2000],
        };
        assert_eq!(rates(&first, &last), [0.0, 2000.0]);
    }
}
