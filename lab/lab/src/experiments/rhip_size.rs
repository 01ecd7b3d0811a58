//! RHIP, Figure 9 and Table II: goodput and idle CPU against packet size, for every
//! policy, in the softirq and in the receiver, and for Linux as an expert configures it.
//! Then idle CPU at half of the best policy's goodput at that size, and without traffic.
//!
//! *Idle CPU* is the share of the receiver's processor that the service leaves idle: the
//! larger of two figures, which other programs and double counting can only make too
//! small. One is the processor's idle time as the kernel accounts for it to the
//! nanosecond (/proc/timer_list), which ends at every interrupt and begins behind the
//! softirqs. The other is the time used neither by the service's threads
//! (/proc/PID/task/*/schedstat) nor by softirqs (/proc/stat, sampled by ticks). Wake-ups
//! are voluntary context switches of these threads.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall::tuning::PolicyKind;
use tidewall_load::LoadSpec;

use super::rhip::{self, BUT_ADAPTIVE, IDLE, OTHERS, OVERFLOW, POLICIES, Place};
use super::{Experiment, Options, Run, USUAL};
use crate::bench::{Bench, Measured};
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Curve, Sample, median};
use crate::testbed::Config;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-size",
    paper: "RHIP, Figure 9, Table II",
    about: "goodput and idle CPU against packet size under every policy; idle without traffic",
    x: "packet size, bytes of IP",
    y: "delivered packets/s",
    measure,
    claims,
    ..USUAL
};

/// Bytes of IP.
const FULL: [u32; 7] = [46, 64, 128, 512, 1024, 1200, 1500];
const QUICK: [u32; 3] = [64, 512, 1500];
/// Sizes from here on leave CPU idle.
const LARGE: u32 = 512;
const IDLE_AXIS: &str = "idle CPU, %";
const HALF_SOFTIRQ: &str = "half load, in the softirq";
const HALF_RECEIVER: &str = "half load, in the receiver";
const REST: &str = "no traffic, in the receiver";
const REST_SOFTIRQ: &str = "no traffic, in the softirq";
const REST_TIME: Duration = Duration::from_secs(5);
const SLEEPS: &str = "wake-ups/s";

fn half(place: Place) -> &'static str {
    match place {
        Place::Softirq => HALF_SOFTIRQ,
        Place::Receiver => HALF_RECEIVER,
    }
}

fn sizes(quick: bool) -> &'static [u32] {
    if quick { &QUICK } else { &FULL }
}

fn curves((config, capacity): Bed, options: Options) -> Vec<Curve> {
    let loads: Vec<LoadSpec> = sizes(options.quick)
        .iter()
        .map(|&size| rhip::load_of(config, options.quick, size, rhip::link_rate(capacity, size)))
        .collect();
    rhip::contestants(options)
        .into_iter()
        .map(|curve| Curve {
            loads: loads.clone(),
            ..curve
        })
        .collect()
}

/// Returns curves at half of the best goodput of each large size.
fn half_curves(config: Config, quick: bool, full: &[Series]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for place in Place::BOTH {
        let loads: Vec<LoadSpec> = sizes(quick)
            .iter()
            .filter(|size| **size >= LARGE)
            .filter_map(|&size| {
                let best = POLICIES
                    .iter()
                    .filter_map(|kind| find(full, kind.name(), Some(place.setting())))
                    .filter_map(|series| rhip::at(series, size.into()))
                    .map(|point| point.y)
                    .max_by(f64::total_cmp)?;
                let rate = (best / 2.0) as u64;
                (rate > 0).then(|| rhip::load_of(config, quick, size, Some(rate)))
            })
            .collect();
        curves.extend(POLICIES.map(|kind| Curve {
            setting: Some(half(place)),
            loads: loads.clone(),
            ..rhip::policy(place, kind)
        }));
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (bed, options) = (run.bed()?, run.options);
    let (config, capacity) = bed;
    // Policies differ by a few hundredths or not at all: that takes rounds.
    let mut series = run.sweep(&curves(bed, options), options.within(5, 150), reduce)?;
    let idle = rhip::figure(&series, IDLE, IDLE_AXIS);
    let halves = half_curves(config, options.quick, &series);
    let plan = options.within(5, 50);
    let mut at_half = run.sweep_part("rhip-size, half load", &halves, plan, reduce)?;
    series.extend(idle);
    series.extend(at_half.iter_mut().map(by_idle));
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 });
    for (place, setting) in [(Place::Receiver, REST), (Place::Softirq, REST_SOFTIRQ)] {
        run.progress
            .line(&format!("{setting}: {rounds} × {REST_TIME:?}"));
        series.push(rest(run.bench, place, setting, rounds)?);
    }
    run.series = series;
    run.note(format!(
        "An emulated link that carries 0.3 of bare's capacity at 1,500 bytes: from {} bytes on the load is what it carries, below that \
         the sender goes as fast as it can.",
        FULL.iter()
            .find(|size| rhip::link_rate(capacity, **size).is_some())
            .unwrap_or(&0)
    ));
    run.note(rhip::KERNEL_NOTE);
    run.note(
        "Idle CPU: the larger of the processor's idle time (/proc/timer_list) and the time used \
         neither by the service's threads (schedstat) nor by softirqs (/proc/stat); other programs \
         make the first too small, softirqs in a thread's time the second. Driver work on the \
         sender's processor, where an interrupt begins on a veth, is in neither.",
    );
    Ok(())
}

fn reduce(_: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let payload = u32::from(load.blast.as_ref()?.payload);
    rhip::sample(f64::from(payload + rhip::HEADERS), load, measured)
}

/// Returns the series by idle CPU; the goodput becomes a value.
fn by_idle(series: &mut Series) -> Series {
    let mut series = std::mem::take(series);
    series.y = Some(IDLE_AXIS.to_owned());
    series.points.retain_mut(|point| {
        let Some(idle) = point.values.get(IDLE).copied() else {
            return false;
        };
        point.values.insert("delivered/s".to_owned(), point.y);
        (point.y, point.low, point.high) = (idle, idle, idle);
        true
    });
    series
}

/// Measures idle CPU and wake-ups of `adaptive` without traffic.
fn rest(
    bench: &mut Bench,
    place: Place,
    setting: &'static str,
    rounds: u32,
) -> anyhow::Result<Series> {
    let curve = rhip::policy(place, PolicyKind::Adaptive);
    let setup = curve.setup(None);
    let mut runs = Vec::new();
    let mut session = bench.serve(&setup)?;
    for _ in 0..rounds {
        runs.push(session.rest(REST_TIME)?);
    }
    let all = |of: fn(&crate::worker::Usage) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let idle = all(|usage| 100.0 * usage.left());
    let points = median(&idle).map(|y| Point {
        x: 0.0,
        y,
        low: idle.iter().copied().fold(y, f64::min),
        high: idle.iter().copied().fold(y, f64::max),
        runs: rounds,
        values: BTreeMap::from([
            (
                SLEEPS.to_owned(),
                median(&all(|usage| usage.sleeps)).unwrap_or(f64::NAN),
            ),
            (
                "idle processor %".to_owned(),
                median(&all(|usage| 100.0 * usage.idle)).unwrap_or(f64::NAN),
            ),
        ]),
        ..Point::default()
    });
    Ok(Series {
        y: Some(IDLE_AXIS.to_owned()),
        points: points.into_iter().collect(),
        ..Series::named(curve.name(), setting)
    })
}

/// Returns the claims on the goodput of `rhip` and `adaptive` against the others, in both
/// places.
pub(super) fn goodput_claims(series: &[Series], what: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    for place in Place::BOTH {
        let setting = place.setting();
        for (system, others, names, limit) in [
            (
                PolicyKind::Rhip,
                OTHERS,
                "napi, on-off, aic, qapolling",
                0.97,
            ),
            (PolicyKind::Adaptive, BUT_ADAPTIVE, "all others", 0.98),
        ] {
            let id = place.claim(&format!("{system}-goodput"));
            let text = format!(
                "{setting}: goodput of {system} over the best of {names}, at each of {what}"
            );
            claims.push(rhip::at_least_the_best(
                |least| Claim::at_least(id, text, least, limit),
                series,
                setting,
                (system, others),
                |_| true,
            ));
        }
    }
    claims
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = goodput_claims(series, "the sizes");
    for place in Place::BOTH {
        for system in [PolicyKind::Rhip, PolicyKind::Adaptive] {
            claims.push(
                Claim::at_most(
                    place.claim(&format!("overflow-{system}")),
                    format!(
                        "{}: packets/s that found the socket's buffer full under {system} in \
                         steady state, largest over the sizes",
                        place.setting()
                    ),
                    rhip::largest(series, place.setting(), system, OVERFLOW),
                    0.0,
                )
                .paper(0.0),
            );
        }
    }
    for place in Place::BOTH {
        for system in [PolicyKind::Rhip, PolicyKind::Adaptive] {
            let text = format!(
                "{}, at half of the best goodput: idle CPU under {system} over the best of \
                 napi, on-off, aic, qapolling, at each size from 512 bytes",
                place.setting()
            );
            let id = place.claim(&format!("idle-{system}"));
            claims.push(rhip::at_least_the_best(
                |least| Claim::at_least(id, text, least, 1.0),
                series,
                half(place),
                (system, OTHERS),
                |point| point.x >= f64::from(LARGE),
            ));
        }
    }
    let resting =
        |setting| find(series, PolicyKind::Adaptive.name(), Some(setting)).and_then(Series::last);
    for (place, setting) in [(Place::Softirq, REST_SOFTIRQ), (Place::Receiver, REST)] {
        claims.push(Claim::at_least(
            place.claim("no-traffic-idle"),
            format!(
                "{}, adaptive without traffic: CPU time not used by the service's threads \
                     nor by softirqs, %",
                place.setting()
            ),
            resting(setting).map(|point| point.y),
            99.5,
        ));
        claims.push(Claim::at_most(
            place.claim("no-traffic-wake-ups"),
            format!(
                "{}, adaptive without traffic: wake-ups per second",
                place.setting()
            ),
            resting(setting).and_then(|point| point.values.get(SLEEPS).copied()),
            5.0,
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::experiments::rhip::tests::with;
    use crate::experiments::rhip::{RECEIVER, SOFTIRQ};
    use crate::result::tests::curve;

    fn series() -> Vec<Series> {
        let mut series = Vec::new();
        for setting in [SOFTIRQ, RECEIVER] {
            for (kind, y) in POLICIES.into_iter().zip([1e5, 2e5, 3e5, 4e5, 3.9e5, 4e5]) {
                series.push(with(
                    curve(kind.name(), Some(setting), &[(64.0, y), (1500.0, y)]),
                    OVERFLOW,
                    &[0.0, 0.0],
                ));
            }
        }
        for setting in [HALF_SOFTIRQ, HALF_RECEIVER] {
            for (kind, y) in POLICIES
                .into_iter()
                .zip([0.0, 10.0, 40.0, 20.0, 40.0, 42.0])
            {
                series.push(curve(
                    kind.name(),
                    Some(setting),
                    &[(512.0, y), (1500.0, y)],
                ));
            }
        }
        for setting in [REST, REST_SOFTIRQ] {
            series.push(with(
                curve("adaptive", Some(setting), &[(0.0, 99.9)]),
                SLEEPS,
                &[2.0],
            ));
        }
        series
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("rhip-goodput", 0.975),
            ("adaptive-goodput", 1.0),
            ("rhip-goodput-receiver", 0.975),
            ("adaptive-goodput-receiver", 1.0),
            ("overflow-rhip", 0.0),
            ("overflow-adaptive", 0.0),
            ("overflow-rhip-receiver", 0.0),
            ("overflow-adaptive-receiver", 0.0),
            ("idle-rhip", 1.0),
            ("idle-adaptive", 1.05),
            ("idle-rhip-receiver", 1.0),
            ("idle-adaptive-receiver", 1.05),
            ("no-traffic-idle", 99.9),
            ("no-traffic-wake-ups", 2.0),
            ("no-traffic-idle-receiver", 99.9),
            ("no-traffic-wake-ups-receiver", 2.0),
        ];
        assert_eq!(claims.len(), expected.len());
        for (claim, (id, measured)) in claims.iter().zip(expected) {
            assert_eq!((claim.id.as_str(), claim.measured), (id, Some(measured)));
            assert!(claim.holds == Some(true), "{id}");
        }
    }

    #[test]
    fn one_bad_size_is_enough() {
        let mut series = series();
        // rhip, in the softirq.
        series[4].points[1].y = 3e5;
        series[4].points[1].values.insert(OVERFLOW.into(), 1.0);
        let failed: Vec<String> = claims(&series)
            .into_iter()
            .filter(|claim| claim.holds == Some(false))
            .map(|claim| claim.id)
            .collect();
        assert_eq!(failed, ["rhip-goodput", "overflow-rhip"]);
    }

    #[test]
    fn rounds_are_compared_with_one_another() {
        // Six rounds, each on a machine of another speed, all policies alike.
        let mut series = series();
        for series in series.iter_mut().take(2 * POLICIES.len()) {
            for point in &mut series.points {
                let samples = (0..6u32).map(|round| crate::result::Sample {
                    round,
                    x: point.x,
                    y: f64::from(1 + round) * 1e5,
                    ..Default::default()
                });
                point.samples = samples.collect();
            }
        }
        let judged = crate::verdict::judge(claims, &series);
        let goodput = judged.iter().filter(|claim| claim.id.contains("goodput"));
        for claim in goodput {
            assert_eq!((claim.measured, claim.holds), (Some(1.0), Some(true)));
            assert_eq!((claim.low, claim.high), (Some(1.0), Some(1.0)));
        }
        // A curve that lacks a round at a point excludes that round for all.
        series[0].points[1].samples.remove(3);
        for series in series.iter_mut().take(2 * POLICIES.len()) {
            for sample in series.points.iter_mut().flat_map(|it| &mut it.samples) {
                if sample.round == 3 && series.system == "adaptive" {
                    sample.y = 1.0;
                }
            }
        }
        let claim = |id: &str| {
            let all = crate::verdict::judge(claims, &series);
            all.into_iter().find(|claim| claim.id == id).unwrap()
        };
        assert_eq!(claim("adaptive-goodput").low, Some(1.0));
        assert!(
            claim("adaptive-goodput-receiver")
                .low
                .is_some_and(|low| low < 0.98)
        );
    }

    #[test]
    fn half_loads_are_half_of_the_best() {
        let series = series();
        for quick in [false, true] {
            let curves = half_curves(Config::default(), quick, &series);
            assert_eq!(curves.len(), 2 * POLICIES.len());
            for curve in &curves {
                // Only 1500 of the large sizes was measured.
                assert_eq!(curve.loads.len(), 1);
                let blast = curve.loads[0].blast.as_ref().unwrap();
                assert_eq!((blast.rate, blast.payload), (Some(200_000), 1472));
                assert!(curve.loads[0].check().is_ok());
            }
        }
    }

    #[test]
    fn idle_time_becomes_the_curve() {
        let mut series = with(
            curve("rhip", Some(HALF_SOFTIRQ), &[(512.0, 9e4)]),
            IDLE,
            &[33.0],
        );
        let idle = by_idle(&mut series);
        assert_eq!(idle.points[0].y, 33.0);
        assert_eq!(idle.points[0].values["delivered/s"], 9e4);
        assert_eq!(idle.y.as_deref(), Some(IDLE_AXIS));
    }

    #[test]
    fn all_policies_are_measured_everywhere() {
        for quick in [false, true] {
            let options = Options {
                quick,
                ..Options::default()
            };
            let curves = curves((Config::default(), MILLION), options);
            for place in Place::BOTH {
                for kind in POLICIES {
                    assert!(
                        curves
                            .iter()
                            .any(|curve| curve.setting == Some(place.setting())
                                && curve.name() == kind.name())
                    );
                }
            }
            assert!(curves.iter().any(|curve| curve.name() == "linux-busy"));
            assert!(
                curves
                    .iter()
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
        }
    }
}
