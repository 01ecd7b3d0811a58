//! LRP, Figure 4: round trips of a ping-pong beside a blast at another socket
//! of the same program, and beside a blast at a port that nobody owns.
//!
//! One queue for all systems: with a queue each, ping-pong and blast do not
//! meet, for Linux as for Tidewall. A request not answered
//! within 20 ms counts as lost and the next one is sent; LRP's client waited
//! for ever.

use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, best_linux, quickest_linux, ratio, trips};
use crate::bench::{Measured, blast, load, server};
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-latency",
    paper: "LRP, Figure 4",
    about: "an echo service beside a blast at another socket, and at a port nobody owns",
    x: "blast, packets/s offered",
    y: "echoes/s",
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const BLAST_PORT: u16 = 9;
const UNOWNED_PORT: u16 = 19;
const UNOWNED: &str = "blast at a port nobody owns";
/// The blast at which the claims are judged, packets/s.
const JUDGED: f64 = 1_000_000.0;
const TIMEOUT: Duration = Duration::from_millis(20);

const FULL: [u64; 7] = [0, 100_000, 300_000, 500_000, 700_000, 850_000, 1_000_000];
const QUICK: [u64; 3] = [0, 500_000, 1_000_000];
const UNOWNED_FULL: [u64; 4] = [0, 300_000, 700_000, 1_000_000];
const UNOWNED_QUICK: [u64; 1] = [1_000_000];

const SYSTEMS: [System; 7] = [
    System::NiLrp,
    System::SoftLrp,
    System::EarlyDemux,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
];

fn curves(config: Config, quick: bool) -> Vec<Curve> {
    let (owned, unowned): (&[u64], &[u64]) = if quick {
        (&QUICK, &UNOWNED_QUICK)
    } else {
        (&FULL, &UNOWNED_FULL)
    };
    let load = |rate: u64, port: u16| LoadSpec {
        blast: (rate > 0).then(|| blast(SenderKind::Skb, port, Some(rate))),
        ping: Some(PingSpec {
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..load(config)
    };
    let mut curves = Vec::new();
    for system in SYSTEMS {
        // The claims are about ni-lrp and Linux.
        if quick && system.needs_real_time() {
            continue;
        }
        for (setting, rates, port) in [
            (None, owned, BLAST_PORT),
            (Some(UNOWNED), unowned, UNOWNED_PORT),
        ] {
            curves.push(Curve {
                system,
                setting,
                // As an application gets it that says nothing; the other
                // experiments measure without.
                spin: (system == System::NiLrp).then_some(20),
                services: vec![
                    ServiceSpec {
                        kind: Kind::Echo,
                        port: ECHO_PORT,
                        work: 0,
                    },
                    ServiceSpec {
                        kind: Kind::Discard,
                        port: BLAST_PORT,
                        work: 0,
                    },
                ],
                loads: rates.iter().map(|&rate| load(rate, port)).collect(),
                ..Curve::default()
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let curves = curves(run.config(), run.options.quick);
    run.series = run.sweep(&curves, run.options.plan(5), reduce)?;
    run.note(format!(
        "One 8-byte request at a time from a spinning client; lost after {TIMEOUT:?}. The same \
         thread sends the blast, in bursts of at most 8, so a round trip may include a burst. Where \
         one in a hundred is lost the 99th percentile is that time."
    ));
    run.note(if run.options.spinners {
        "Background processes of nice 19 ran on both processors, as in the paper."
    } else {
        "No background processes ran (--spinners starts them, as in the paper)."
    });
    Ok(())
}

/// No echo at all is the livelock that this experiment is about, and a point at
/// zero: that the service is there was shown before the blast.
fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let ping = report.ping.as_ref()?;
    let mut values = trips::values(ping, TIMEOUT);
    values.insert(
        "blast delivered/s".to_owned(),
        measured.outcome.delivered.get(1).copied().unwrap_or(0.0),
    );
    Some(Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y: ping.rate,
        drops: measured.drops.clone(),
        values,
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let ours = find(series, "ni-lrp", None).and_then(|series| series.at(JUDGED));
    let unowned = find(series, "ni-lrp", Some(UNOWNED)).and_then(|series| series.at(JUDGED));
    let p99 = |series: &Series| series.at(JUDGED)?.values.get(trips::P99).copied();
    vec![
        Claim::at_least(
            "echo-vs-linux",
            "beside a blast of 1,000,000/s at another socket: ni-lrp's echoes/s over \
             the best Linux mode's",
            ratio(
                ours.map(|point| point.y),
                best_linux(series, None, |series| Some(series.at(JUDGED)?.y.max(1.0))),
            ),
            4.0,
        ),
        Claim::at_most(
            "p99-vs-linux",
            "beside the same: ni-lrp's 99th percentile of the round trip over the best \
             Linux mode's",
            ratio(
                find(series, "ni-lrp", None).and_then(p99),
                quickest_linux(series, None, p99),
            ),
            0.2,
        ),
        Claim::at_least(
            "unowned-vs-owned",
            "ni-lrp's echoes/s beside that blast at a port nobody owns, over those \
             beside it at an owned one",
            ratio(unowned.map(|point| point.y), ours.map(|point| point.y)),
            0.8,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use tidewall_load::LoadReport;

    use super::*;
    use crate::result::tests::curve;
    use crate::worker::LoadOutcome;

    fn with_p99(mut series: Series, p99: f64) -> Series {
        for point in &mut series.points {
            point.values.insert(trips::P99.into(), p99);
        }
        series
    }

    fn series() -> Vec<Series> {
        vec![
            with_p99(curve("ni-lrp", None, &[(0.0, 9.9e4), (9.99e5, 4e4)]), 114.0),
            with_p99(
                curve("linux-rps", None, &[(0.0, 8.8e4), (9.7e5, 3e3)]),
                10_000.0,
            ),
            with_p99(
                curve("linux-timer", None, &[(0.0, 3.9e4), (1e6, 5.9e3)]),
                3_136.0,
            ),
            with_p99(curve("ni-lrp", Some(UNOWNED), &[(1e6, 3.6e4)]), 120.0),
            with_p99(curve("linux-timer", Some(UNOWNED), &[(1e6, 9e4)]), 1.0),
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("echo-vs-linux", 4e4 / 5.9e3),
            ("p99-vs-linux", 114.0 / 3136.0),
            ("unowned-vs-owned", 0.9),
        ];
        for (claim, (id, measured)) in claims.iter().zip(expected) {
            assert_eq!(claim.id, id);
            assert!(
                (claim.measured.unwrap() / measured - 1.0).abs() < 1e-9,
                "{claim:?}"
            );
            assert!(claim.holds == Some(true), "{id}");
        }
    }

    #[test]
    fn no_echo_beside_a_blast_is_a_point_at_zero() {
        let measured = Measured {
            outcome: LoadOutcome {
                report: LoadReport {
                    ping: Some(trips::tests::report(0, 25)),
                    ..LoadReport::default()
                },
                ..LoadOutcome::default()
            },
            ..Measured::default()
        };
        let curves = curves(Config::default(), true);
        let sample = reduce(&curves[0], &curves[0].loads[1], &measured).unwrap();
        assert_eq!((sample.y, sample.values["lost"]), (0.0, 25.0));
        assert_eq!(sample.values[trips::P99], 20_000.0);
        // A system of the kernel that collapses is compared with, not left out.
        let mut series = series();
        for series in &mut series[1..3] {
            series.points[1].y = 0.0;
        }
        let claim = &claims(&series)[0];
        assert_eq!((claim.measured, claim.holds), (Some(4e4), Some(true)));
        series[0].points[1].y = 0.0;
        assert_eq!(claims(&series)[0].holds, Some(false));
    }

    #[test]
    fn a_sender_that_did_not_reach_the_rate_shows_nothing() {
        let mut series = series();
        series[0].points[1].x = 6e5;
        assert!(
            claims(&series)
                .iter()
                .all(|claim| claim.holds == Some(false))
        );
    }

    #[test]
    fn loads_are_valid_and_quick_keeps_what_the_claims_need() {
        for quick in [false, true] {
            let curves = curves(Config::default(), quick);
            assert!(
                curves
                    .iter()
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
            for system in [&[System::NiLrp][..], &System::LINUX].concat() {
                for setting in [None, Some(UNOWNED)] {
                    assert!(
                        curves
                            .iter()
                            .any(|c| c.system == system && c.setting == setting)
                    );
                }
            }
        }
    }
}
