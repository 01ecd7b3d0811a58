//! RHIP, Figure 8: goodput against a fixed budget Bp, flat out, one interrupt per frame
//! (T = 0), for small packets.
//!
//! In the softirq a large budget starves the application, which then drops frames that
//! were received at some cost; a very small one spends its time switching between the
//! two. In the receiver, only the application itself takes time from the application.

use tidewall::tuning::PolicyKind;
use tidewall_load::LoadSpec;

use super::rhip::{self, OVERFLOW, Place};
use super::{Experiment, Run, USUAL, ratio};
use crate::bench::Measured;
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, find, merge};
use crate::sweep::{Curve, Sample};
use crate::system::Control;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-budget",
    paper: "RHIP, Figure 8",
    about: "goodput against a fixed number of frames a round",
    x: "Bp, frames a round",
    y: "delivered packets/s",
    measure,
    claims,
    ..USUAL
};

/// The paper's axis.
const FULL: [u32; 16] = [
    2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 200, 300, 500, 750, 1000, 3000,
];
const QUICK: [u32; 8] = [2, 8, 32, 64, 128, 300, 1000, 3000];
/// Bytes of IP, the settings in both places.
const SIZES: [(u32, &str, &str); 4] = [
    (64, JUDGED, "64 B, in the receiver"),
    (128, "128 B, in the softirq", "128 B, in the receiver"),
    (150, "150 B, in the softirq", "150 B, in the receiver"),
    (256, "256 B, in the softirq", "256 B, in the receiver"),
];
/// The curve of the claims.
const JUDGED: &str = "64 B, in the softirq";

fn curves((config, capacity): Bed, quick: bool) -> Vec<Curve> {
    let budgets: &[u32] = if quick { &QUICK } else { &FULL };
    let sizes = if quick { &SIZES[..1] } else { &SIZES };
    let mut curves = Vec::new();
    for &(size, softirq, receiver) in sizes {
        for (place, setting) in [(Place::Softirq, softirq), (Place::Receiver, receiver)] {
            for &budget in budgets {
                let napi = rhip::policy(place, PolicyKind::Napi);
                curves.push(Curve {
                    setting: Some(setting),
                    control: Some(Control {
                        budget: Some(budget),
                        interval_us: Some(0),
                        ..rhip::control(PolicyKind::Napi)
                    }),
                    loads: vec![rhip::load_of(
                        config,
                        quick,
                        size,
                        rhip::link_rate(capacity, size),
                    )],
                    ..napi
                });
            }
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let curves = curves(run.bed()?, run.options.quick);
    run.series = merge(run.sweep(&curves, run.options.plan(5), reduce)?);
    run.note(
        "A round takes at least 2 frames: the kernel polls a device twice when a busy poll ends.",
    );
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    rhip::sample(curve.control?.budget?.into(), load, measured)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let curve = find(series, PolicyKind::Napi.name(), Some(JUDGED));
    let best = curve.and_then(|curve| {
        curve
            .points
            .iter()
            .max_by(|a, b| f64::total_cmp(&a.y, &b.y))
    });
    let of = |budget: f64| curve.and_then(|curve| rhip::at(curve, budget));
    let (smallest, largest) = (of(2.0), of(3000.0));
    let overflow = |point: Option<&Point>| point?.values.get(OVERFLOW).copied();
    vec![
        Claim::at_least(
            "best-vs-3000",
            "64 bytes, in the softirq: goodput at the best Bp over that at 3000, the \
             most that one softirq may take",
            ratio(
                best.map(|point| point.y),
                largest.map(|point| point.y.max(1.0)),
            ),
            1.5,
        ),
        Claim::above(
            "overflow-at-3000",
            "packets/s that found the socket's buffer full at Bp = 3000",
            overflow(largest),
            0.0,
        ),
        Claim::at_most(
            "overflow-at-best",
            "packets/s that found it full at the best Bp",
            overflow(best),
            0.0,
        )
        .paper(0.0),
        Claim::at_most(
            "smallest-vs-best",
            "goodput at Bp = 2 over that at the best Bp: the cost of changing \
             between protocol and application",
            ratio(smallest.map(|point| point.y), best.map(|point| point.y)),
            0.95,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::experiments::rhip::tests::with;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    fn series() -> Vec<Series> {
        vec![
            with(
                curve(
                    "napi",
                    Some(JUDGED),
                    &[(2.0, 3e5), (64.0, 6e5), (3000.0, 1e4)],
                ),
                OVERFLOW,
                &[0.0, 0.0, 9e5],
            ),
            curve("napi", Some("64 B, in the receiver"), &[(2.0, 9e9)]),
        ]
    }

    #[test]
    fn claims_follow_from_the_curve() {
        let claims = claims(&series());
        let expected = [
            ("best-vs-3000", 60.0),
            ("overflow-at-3000", 9e5),
            ("overflow-at-best", 0.0),
            ("smallest-vs-best", 0.5),
        ];
        assert_eq!(claims.len(), expected.len());
        for (claim, (id, measured)) in claims.iter().zip(expected) {
            assert_eq!((claim.id.as_str(), claim.measured), (id, Some(measured)));
            assert!(claim.holds == Some(true), "{id}");
        }
    }

    #[test]
    fn a_flat_curve_shows_nothing() {
        let mut series = series();
        for point in &mut series[0].points {
            point.y = 5e5;
            point.values.insert(OVERFLOW.into(), 0.0);
        }
        let failed: Vec<String> = claims(&series)
            .into_iter()
            .filter(|claim| claim.holds == Some(false))
            .map(|claim| claim.id)
            .collect();
        assert_eq!(
            failed,
            ["best-vs-3000", "overflow-at-3000", "smallest-vs-best"]
        );
    }

    #[test]
    fn quick_keeps_the_ends_and_the_middle() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick);
            let judged: Vec<u32> = curves
                .iter()
                .filter(|curve| curve.setting == Some(JUDGED))
                .filter_map(|curve| curve.control?.budget)
                .collect();
            for budget in [2, 64, 3000] {
                assert!(judged.contains(&budget));
            }
            assert!(
                curves
                    .iter()
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
        }
    }
}
