//! RHIP, Figure 10: goodput against the application's weight, 0 to 2000 float
//! multiplications per packet of 1500 bytes. And how soon a policy is steady after a step
//! in load, ten times up and ten times down.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall::tuning::PolicyKind;
use tidewall_load::{BlastSpec, LoadSpec, RateStep};

use super::rhip::{self, Place};
use super::rhip_size::goodput_claims;
use super::{Experiment, Options, Run, USUAL};
use crate::bench::{Measured, Watching};
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, find, merge};
use crate::sweep::{Better, Curve, Sample};
use crate::worker::TracePoint;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-workload",
    paper: "RHIP, Figure 10",
    about: "goodput against the application's weight; time to a steady rate after a step in load",
    x: "float multiplications a packet",
    y: "delivered packets/s",
    measure,
    claims,
    ..USUAL
};

const SIZE: u32 = 1500;
const FULL: [u32; 11] = [0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000];
const QUICK: [u32; 4] = [0, 200, 800, 2000];

const STEP_SOFTIRQ: &str = "after a step in load, in the softirq";
const STEP_RECEIVER: &str = "after a step in load, in the receiver";
const STEADY_AXIS: &str = "time to a steady rate, ms";
/// Size of a step.
const STEP: f64 = 10.0;
/// Length of each part of the load.
const PART: Duration = Duration::from_millis(500);
/// Interval between samples.
const EVERY_MS: u32 = 5;
/// Number of samples in a mean: with fewer, a batch of the application exceeds a tenth at
/// the lower rate.
const MEAN_OF: usize = 8;
/// How close to the final mean the rate must stay.
const WITHIN: f64 = 0.1;

fn step_setting(place: Place) -> &'static str {
    match place {
        Place::Softirq => STEP_SOFTIRQ,
        Place::Receiver => STEP_RECEIVER,
    }
}

fn curves((config, capacity): Bed, options: Options) -> Vec<Curve> {
    let multiplications: &[u32] = if options.quick { &QUICK } else { &FULL };
    let load = rhip::load_of(config, options.quick, SIZE, rhip::link_rate(capacity, SIZE));
    multiplications
        .iter()
        .flat_map(|&work| {
            let load = load.clone();
            rhip::contestants(options)
                .into_iter()
                .map(move |curve| Curve {
                    services: vec![rhip::discard(work)],
                    loads: vec![load.clone()],
                    ..curve
                })
        })
        .collect()
}

fn step_curves((config, capacity): Bed) -> Vec<Curve> {
    let high = rhip::link_rate(capacity, SIZE).unwrap_or(capacity.packets as u64);
    let low = (high as f64 / STEP) as u64;
    let load = LoadSpec {
        blast: Some(BlastSpec {
            steps: vec![
                RateStep {
                    after: PART,
                    rate: high,
                },
                RateStep {
                    after: 2 * PART,
                    rate: low,
                },
            ],
            ..rhip::blast_of(SIZE, Some(low))
        }),
        warm_up: PART / 2,
        duration: 5 * PART / 2,
        ..crate::bench::load(config)
    };
    let mut curves = Vec::new();
    for place in Place::BOTH {
        for kind in [PolicyKind::Rhip, PolicyKind::Adaptive] {
            curves.push(Curve {
                setting: Some(step_setting(place)),
                y: Some(STEADY_AXIS),
                watching: Watching {
                    every_ms: EVERY_MS,
                    trace: true,
                    profile: false,
                },
                loads: vec![load.clone()],
                better: Better::Lower,
                ..rhip::policy(place, kind)
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (bed, options) = (run.bed()?, run.options);
    let series = run.sweep(&curves(bed, options), options.within(5, 150), reduce)?;
    let plan = options.rounds_of(if options.quick { 3 } else { 5 });
    let curves = step_curves(bed);
    let steps = run.sweep_part("rhip-workload, steps in load", &curves, plan, reduce_steps)?;
    run.series = merge(series);
    run.series.extend(steps.into_iter().map(both_directions));
    run.note(rhip::KERNEL_NOTE);
    run.note(format!(
        "Steps: {} ms each at a tenth of the link's rate, at the rate, at a tenth. Steady: from \
         then on the mean over {} ms of the delivered rate stays within {:.0} % of its mean over \
         the last half of the part.",
        PART.as_millis(),
        EVERY_MS as usize * MEAN_OF,
        100.0 * WITHIN
    ));
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    rhip::sample(curve.services.first()?.work.into(), load, measured)
}

/// Reduces a load: the step up is the result, the step down a value of it.
fn reduce_steps(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let trace = &measured.outcome.trace;
    let part = PART.as_secs_f64();
    let up = time_to_steady(trace, part, 2.0 * part)?;
    let down = time_to_steady(trace, 2.0 * part, 3.0 * part)?;
    Some(Sample {
        x: STEP,
        y: 1e3 * up,
        drops: measured.drops.clone(),
        values: BTreeMap::from([(DOWN.to_owned(), 1e3 * down)]),
        ..Sample::default()
    })
}

const DOWN: &str = "down ms";

/// Adds a point for the step down beside that for the step up.
fn both_directions(mut series: Series) -> Series {
    if let Some(point) = series.points.first_mut()
        && let Some(y) = point.values.remove(DOWN)
    {
        let down = Point::exactly(1.0 / STEP, y, point.runs);
        series.points.insert(0, down);
    }
    series
}

/// Returns the seconds after `from` at which the delivered rate begins to stay near its
/// final mean until `to`; all of the time if it never does. `None` if too few samples
/// were taken or nothing was delivered.
fn time_to_steady(trace: &[TracePoint], from: f64, to: f64) -> Option<f64> {
    let within: Vec<(f64, u64)> = trace
        .iter()
        .filter(|point| (from..=to).contains(&point.at))
        .map(|point| (point.at, point.received.iter().sum()))
        .collect();
    if within.len() < 3 * MEAN_OF {
        return None;
    }
    let rate = |first: &(f64, u64), last: &(f64, u64)| {
        last.1.saturating_sub(first.1) as f64 / (last.0 - first.0).max(1e-9)
    };
    let middle = within.get(within.len() / 2)?;
    let mean = rate(middle, within.last()?);
    if mean <= 0.0 {
        return None;
    }
    let mut steady = 0.0;
    for (first, last) in within.iter().zip(within.iter().skip(MEAN_OF)) {
        if (rate(first, last) / mean - 1.0).abs() > WITHIN {
            steady = last.0 - from;
        }
    }
    Some(steady)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = goodput_claims(series, "the workloads");
    for place in Place::BOTH {
        for system in [PolicyKind::Rhip, PolicyKind::Adaptive] {
            for (name, x, text) in [
                ("up", STEP, "ten times up"),
                ("down", 1.0 / STEP, "ten times down"),
            ] {
                let steady = find(series, system.name(), Some(step_setting(place)))
                    .and_then(|series| rhip::at(series, x))
                    .map(|point| point.y);
                claims.push(Claim::at_most(
                    place.claim(&format!("step-{system}-{name}")),
                    format!(
                        "{}, {system}: ms until the delivered rate stays within 10 % of its final \
                         mean after a step in load {text}",
                        place.setting()
                    ),
                    steady,
                    200.0,
                ));
            }
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::experiments::rhip::{POLICIES, RECEIVER, SOFTIRQ};
    use crate::result::tests::curve;
    use crate::testbed::Config;

    /// Returns a trace of 5 ms samples whose rate is a function of time.
    fn trace(rate: impl Fn(f64) -> f64) -> Vec<TracePoint> {
        let mut received = 0.0;
        (0..300)
            .map(|step| {
                let at = 0.005 * f64::from(step);
                received += 0.005 * rate(at);
                TracePoint {
                    at,
                    received: vec![received as u64],
                    ping: None,
                    latency: None,
                }
            })
            .collect()
    }

    #[test]
    fn a_rate_is_steady_when_it_stays() {
        let clean = trace(|at| if at < 0.5 { 4e4 } else { 4e5 });
        let time = time_to_steady(&clean, 0.5, 1.0).unwrap();
        assert!(time <= 0.05, "{time}");
        // Slow at first, then right.
        let slow = trace(|at| if at < 0.7 { 2e5 } else { 4e5 });
        let time = time_to_steady(&slow, 0.5, 1.0).unwrap();
        assert!((0.2..=0.26).contains(&time), "{time}");
        // Oscillates forever.
        let swings = trace(|at| {
            if ((at * 10.0) as u64).is_multiple_of(2) {
                2e5
            } else {
                4e5
            }
        });
        let time = time_to_steady(&swings, 0.5, 1.0).unwrap();
        assert!(time > 0.4, "{time}");
        assert_eq!(time_to_steady(&trace(|_| 0.0), 0.5, 1.0), None);
        assert_eq!(time_to_steady(&clean[..10], 0.0, 1.0), None);
    }

    #[test]
    fn the_step_down_gets_its_point() {
        let mut series = curve("rhip", Some(STEP_SOFTIRQ), &[(10.0, 40.0)]);
        series.points[0].values.insert(DOWN.into(), 60.0);
        let series = both_directions(series);
        let points: Vec<(f64, f64)> = series.points.iter().map(|p| (p.x, p.y)).collect();
        assert_eq!(points, [(0.1, 60.0), (10.0, 40.0)]);
    }

    fn series() -> Vec<Series> {
        let mut series = Vec::new();
        for setting in [SOFTIRQ, RECEIVER] {
            for kind in POLICIES {
                series.push(curve(
                    kind.name(),
                    Some(setting),
                    &[(0.0, 4e5), (200.0, 2e5)],
                ));
            }
        }
        for setting in [STEP_SOFTIRQ, STEP_RECEIVER] {
            for system in ["rhip", "adaptive"] {
                series.push(curve(system, Some(setting), &[(0.1, 60.0), (10.0, 40.0)]));
            }
        }
        series
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let all = claims(&series());
        assert_eq!(all.len(), 4 + 8);
        assert!(all.iter().all(|claim| claim.holds == Some(true)), "{all:?}");
        let up = all.iter().find(|c| c.id == "step-rhip-up").unwrap();
        assert_eq!(up.measured, Some(40.0));
        let mut slow = series();
        slow[12].points[0].y = 201.0;
        let failed: Vec<String> = claims(&slow)
            .into_iter()
            .filter(|claim| claim.holds == Some(false))
            .map(|claim| claim.id)
            .collect();
        assert_eq!(failed, ["step-rhip-down"]);
    }

    #[test]
    fn loads_are_valid() {
        let options = |quick| Options {
            quick,
            ..Options::default()
        };
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), options(quick));
            for work in QUICK {
                assert!(curves.iter().any(|curve| curve.services[0].work == work));
            }
            assert!(
                curves
                    .iter()
                    .chain(&step_curves((Config::default(), MILLION)))
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
        }
        let load = &step_curves((Config::default(), MILLION))[0].loads[0];
        assert!(load.warm_up + load.duration <= crate::testbed::RealTime::LOAD_MAX);
    }
}
