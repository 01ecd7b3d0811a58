//! LRP, Figure 4: round trips of a ping-pong beside a blast at another socket of the same
//! program, and beside a blast at an unowned port.
//!
//! All systems have one queue: with one queue each, ping-pong and blast would not meet,
//! for Linux as for Tidewall. A request not answered within 20 ms counts as lost, and the
//! next one is sent; LRP's client waited forever.

use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::lrp_overload::{steer, steerable};
use super::{
    Experiment, RING_LOSS, Run, USUAL, best_linux, quickest_linux, ratio, ring_losses, trips,
    waited,
};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::BusyTimeout;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-latency",
    paper: "LRP, Figure 4",
    about: "an echo service beside a blast at another socket, and at a port nobody owns",
    x: "blast, packets/s offered",
    y: "echoes/s",
    config: steerable,
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const BLAST_PORT: u16 = 9;
const UNOWNED_PORT: u16 = 19;
const UNOWNED: &str = "blast at a port nobody owns";
/// The blast at which the claims are judged, as a share of `bare`'s capacity.
const JUDGED: f64 = 0.9;
/// Blasts beside which the service is compared with `bare`.
const BESIDE: [f64; 3] = [0.5, 0.9, 1.1];
/// Smallest offered rate, relative to that of the other system, for a fair comparison.
const REACHED: f64 = 0.9;
const TIMEOUT: Duration = Duration::from_millis(20);

const FULL: [f64; 8] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1];
const QUICK: [f64; 4] = [0.0, 0.5, 0.9, 1.1];
/// The Linux points with which the claims compare.
const QUICK_LINUX: [f64; 2] = [0.0, 0.9];

const SYSTEMS: [System; 10] = [
    System::Bare,
    System::Tidewall,
    System::NiLrp,
    System::SoftLrp,
    System::EarlyDemux,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
    System::LinuxSuspend,
];

fn curves((config, capacity): Bed, quick: bool, systems: &[System]) -> Vec<Curve> {
    let shares = |system: System, setting: Option<&str>| -> &[f64] {
        match (quick, setting) {
            (true, None) if system.is_linux() => &QUICK_LINUX,
            (true, Some(_)) if system.is_linux() => &[],
            // Without a blast both settings are the same.
            (true, Some(_)) => QUICK.split_at(1).1,
            (true, None) => &QUICK,
            (false, _) => &FULL,
        }
    };
    let load = |share: f64, port: u16| LoadSpec {
        blast: capacity.blast(SenderKind::Skb, port, Some(share)),
        ping: Some(PingSpec {
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..load(config)
    };
    let mut curves = Vec::new();
    for &system in systems {
        // The claims are about tidewall and Linux.
        if quick && system.needs_real_time() {
            continue;
        }
        for (setting, port) in [(None, BLAST_PORT), (Some(UNOWNED), UNOWNED_PORT)] {
            // A port without a socket is not moved.
            if system == System::NiLrp && port == UNOWNED_PORT {
                continue;
            }
            let mut curve = Curve {
                system,
                setting,
                // As for an application that sets nothing; the other experiments do not
                // spin.
                spin: matches!(system, System::Tidewall | System::NiLrp).then_some(20),
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
                loads: shares(system, setting)
                    .iter()
                    .map(|&share| load(share, port))
                    .collect(),
                ..Curve::default()
            };
            if system == System::NiLrp {
                steer(&mut curve);
            }
            curves.push(curve);
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let systems = run.bench.possible(&SYSTEMS);
    let curves = curves(bed, run.options.quick, &systems);
    run.series = run.sweep(&curves, run.options.within(5, 200), reduce)?;
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

/// Reduces a load to its round trips. No echo at all is the livelock that this experiment
/// is about, and gives a point at zero: before the blast, the service has proved to be
/// there.
fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let ping = report.ping.as_ref()?;
    let mut values = trips::values(ping, TIMEOUT);
    values.extend([waited(measured)]);
    values.insert(
        "blast delivered/s".to_owned(),
        measured.outcome.delivered.get(1).copied().unwrap_or(0.0),
    );
    Some(Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y: ping.rate,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let ours = |setting| find(series, "tidewall", setting);
    let bare = |setting| find(series, "bare", setting);
    let rate = |series: &Series, share| Some(series.offered(share)?.y.max(1.0));
    // A sender that is slower beside one system offers it less.
    let fair = |ours: Option<&Series>, other: &Series, share| {
        let offered = |series: &Series| Some(series.offered(share)?.x);
        let [ours, other] = [ours.and_then(offered)?, offered(other)?];
        (ours >= REACHED * other).then_some(())
    };
    let p99 = |series: &Series, share| series.offered(share)?.values.get(trips::P99).copied();
    let mut claims = vec![
        Claim::at_least(
            "echo-vs-linux",
            "beside a blast of 0.9 of bare's capacity at another socket: tidewall's echoes/s over \
             the best Linux mode's",
            ratio(
                ours(None).and_then(|ours| Some(ours.offered(JUDGED)?.y)),
                best_linux(series, None, |linux| {
                    fair(ours(None), linux, JUDGED)?;
                    rate(linux, JUDGED)
                }),
            ),
            4.0,
        ),
        Claim::at_most(
            "p99-vs-linux",
            "beside the same: tidewall's 99th percentile of the round trip over the best \
             Linux mode's",
            ratio(
                ours(None).and_then(|ours| p99(ours, JUDGED)),
                quickest_linux(series, None, |linux| {
                    fair(ours(None), linux, JUDGED)?;
                    p99(linux, JUDGED)
                }),
            ),
            0.2,
        ),
        Claim::at_least(
            "unowned-vs-owned",
            "tidewall's echoes/s beside that blast at an unowned port, over those \
             beside it at an owned one",
            ratio(
                ours(Some(UNOWNED)).and_then(|ours| Some(ours.offered(JUDGED)?.y)),
                ours(None).and_then(|ours| rate(ours, JUDGED)),
            ),
            0.8,
        ),
        Claim::at_least(
            "idle-vs-bare",
            "tidewall's echoes/s without a blast, over bare's, which always polls",
            ratio(
                ours(None).and_then(|ours| Some(ours.offered(0.0)?.y)),
                bare(None).and_then(|bare| rate(bare, 0.0)),
            ),
            0.9,
        ),
        Claim::at_most(
            "ring-losses",
            "tidewall beside blasts up to 0.9 of that capacity, owned and unowned, where bare \
             loses none: lost in the device's rings, largest share of what was offered",
            ring_losses(series, &[None, Some(UNOWNED)], JUDGED),
            RING_LOSS,
        ),
    ];
    for share in BESIDE {
        let steered = find(series, "ni-lrp", None);
        claims.push(Claim::at_least(
            format!("ni-owned-{share}"),
            format!(
                "beside {share} of bare's capacity at another socket, whose port the device \
                 steers: ni-lrp's echoes/s over bare's there"
            ),
            fair(steered, bare(None).unwrap_or(&Series::default()), share).and_then(|()| {
                ratio(
                    steered.and_then(|series| rate(series, share)),
                    bare(None).and_then(|series| rate(series, share)),
                )
            }),
            0.8,
        ));
    }
    for (setting, name, place) in [
        (None, "owned", "another socket"),
        (Some(UNOWNED), "unowned", "an unowned port"),
    ] {
        for share in BESIDE {
            let both = |of: &dyn Fn(&Series) -> Option<f64>| {
                fair(ours(setting), bare(setting)?, share)?;
                ratio(ours(setting).and_then(of), bare(setting).and_then(of))
            };
            let at = format!("beside {share} of bare's capacity at {place}: tidewall's");
            claims.push(Claim::at_least(
                format!("{name}-{share}"),
                format!("{at} echoes/s over bare's there"),
                both(&|series| rate(series, share)),
                0.8,
            ));
            claims.push(Claim::at_most(
                format!("{name}-p99-{share}"),
                format!("{at} 99th percentile of the round trip over bare's there"),
                both(&|series| p99(series, share)),
                1.5,
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use tidewall_load::{BlastSpec, LoadReport};

    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;
    use crate::worker::LoadOutcome;

    /// Echoes/s and their 99th percentile beside 0, 0.5, 0.9 and 1.1.
    fn measured(system: &str, setting: Option<&str>, points: [(f64, f64); 4]) -> Series {
        let mut series = curve(system, setting, &points.map(|(rate, _)| (1.0, rate)));
        let places = series.points.iter_mut().zip(QUICK).zip(points);
        for ((point, share), (_, p99)) in places {
            (point.x, point.share) = (share * 1e6, Some(share));
            point.values.insert(trips::P99.into(), p99);
        }
        series
    }

    fn series() -> Vec<Series> {
        let flat = |rate, p99| [(rate, p99); 4];
        let mut ours = measured(
            "tidewall",
            None,
            [(9e4, 20.0), (8e4, 40.0), (4e4, 114.0), (1e4, 300.0)],
        );
        ours.points[1].drops.insert("device ring".into(), 100.0);
        ours.points[3].drops.insert("device ring".into(), 1e5);
        vec![
            ours,
            measured("linux-rps", None, flat(3e3, 10_000.0)),
            measured("linux-timer", None, flat(5.9e3, 3_136.0)),
            measured("tidewall", Some(UNOWNED), flat(3.6e4, 120.0)),
            measured("linux-timer", Some(UNOWNED), flat(9e4, 1.0)),
            measured("bare", None, flat(1e5, 30.0)),
            measured("bare", Some(UNOWNED), flat(4e4, 100.0)),
        ]
    }

    fn claim(series: &[Series], id: &str) -> Claim {
        claims(series)
            .into_iter()
            .find(|claim| claim.id == id)
            .unwrap()
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let expected = [
            ("echo-vs-linux", 4e4 / 5.9e3, true),
            ("p99-vs-linux", 114.0 / 3136.0, true),
            ("unowned-vs-owned", 0.9, true),
            ("idle-vs-bare", 0.9, true),
            ("ring-losses", 2e-4, true),
            ("owned-0.5", 0.8, true),
            ("owned-p99-0.5", 4.0 / 3.0, true),
            ("owned-0.9", 0.4, false),
            ("owned-p99-1.1", 10.0, false),
            ("unowned-1.1", 0.9, true),
            ("unowned-p99-0.9", 1.2, true),
        ];
        for (id, measured, holds) in expected {
            let claim = claim(&series(), id);
            assert!(
                (claim.measured.unwrap() / measured - 1.0).abs() < 1e-9,
                "{claim:?}"
            );
            assert_eq!(claim.holds, Some(holds), "{id}");
        }
        assert_eq!(claims(&series()).len(), 5 + 3 + 12);
    }

    #[test]
    fn what_bare_itself_loses_was_beyond_the_bed() {
        let mut series = series();
        series[0].points[2].drops.insert("device ring".into(), 2e5);
        let claim = |series: &[Series]| claim(series, "ring-losses").measured.unwrap();
        assert!((claim(&series) - 2e5 / 9e5).abs() < 1e-9);
        let bare = series.iter_mut().find(|it| it.system == "bare").unwrap();
        bare.points[2].drops.insert("device ring".into(), 1e4);
        assert!((claim(&series) - 2e-4).abs() < 1e-9);
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
        let curves = curves((Config::default(), MILLION), true, &SYSTEMS);
        let sample = reduce(&curves[0], &curves[0].loads[1], &measured).unwrap();
        assert_eq!((sample.y, sample.values["lost"]), (0.0, 25.0));
        assert_eq!(sample.values[trips::P99], 20_000.0);
        // A kernel mode that collapses is compared, not left out.
        let mut series = series();
        for series in &mut series[1..3] {
            series.points[2].y = 0.0;
        }
        let found = claim(&series, "echo-vs-linux");
        assert_eq!((found.measured, found.holds), (Some(4e4), Some(true)));
        // And so is Tidewall's.
        series[0].points[2].y = 0.0;
        let found = claim(&series, "echo-vs-linux");
        assert_eq!((found.measured, found.holds), (Some(0.0), Some(false)));
    }

    #[test]
    fn a_sender_that_did_not_reach_the_rate_shows_nothing() {
        let mut series = series();
        series[0].points[2].x = 6e5;
        for id in ["echo-vs-linux", "p99-vs-linux", "owned-0.9"] {
            let claim = claim(&series, id);
            assert_eq!((claim.measured, claim.holds), (None, Some(false)), "{id}");
        }
    }

    #[test]
    fn loads_are_valid_and_quick_keeps_what_the_claims_need() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick, &SYSTEMS);
            assert!(
                curves
                    .iter()
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
            let measured = |system, setting, share: f64| {
                let rate = |blast: Option<&BlastSpec>| blast.map(|blast| blast.rate);
                let wanted = MILLION.blast(SenderKind::Skb, BLAST_PORT, Some(share));
                curves.iter().any(|curve| {
                    let mut loads = curve.loads.iter();
                    (curve.system, curve.setting) == (system, setting)
                        && loads.any(|load| rate(load.blast.as_ref()) == rate(wanted.as_ref()))
                })
            };
            for system in [System::Bare, System::Tidewall] {
                assert!(measured(system, None, 0.0));
                for share in BESIDE {
                    assert!(
                        measured(system, None, share) && measured(system, Some(UNOWNED), share)
                    );
                }
            }
            for system in System::LINUX.into_iter().chain([System::LinuxSuspend]) {
                assert!(measured(system, None, JUDGED));
            }
        }
    }
}
