//! A private application beside one that does its worst: it forges frames of every kind,
//! scribbles over rings, frame memory and tables, garbles and repeats messages, and reads
//! no answer. The result is what the other application loses, and which of the forged
//! frames leave the device.
//!
//! The comparison is the same beside an application that does nothing. Both have the
//! lowest priority on the receiver's processor; the scheduler decides how it divides its
//! time.

use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, ratio, waited};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::BusyTimeout;
use crate::worker::Beside;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "manager-hostile",
    paper: "beyond the papers",
    about: "a private application beside a hostile one, and what of that one leaves",
    x: "blast, packets/s offered",
    y: "delivered packets/s",
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const BLAST_PORT: u16 = 9;
const HOSTILE_PORT: u16 = 4000;
/// Share of `bare`'s capacity that is delivered to the other application.
const SHARE: f64 = 0.3;
/// Requests in flight of the closed loop.
const OUTSTANDING: u16 = 16;
const BESIDE: [(&str, &str, bool); 2] = [
    (
        "beside a hostile one",
        "echoes/s beside a hostile one",
        true,
    ),
    ("beside an idle one", "echoes/s beside an idle one", false),
];
const FORGED: &str = "forged frames that left";
const GENUINE: &str = "genuine frames that left";
const MISSED: &str = "frames not looked at";
const TRIED: [&str; 3] = ["frames sent", "words overwritten", "messages garbled"];

fn curves((config, capacity): Bed) -> Vec<Curve> {
    let service = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let blast = LoadSpec {
        blast: capacity.blast(SenderKind::Skb, BLAST_PORT, Some(SHARE)),
        ..load(config)
    };
    let echoes = LoadSpec {
        ping: Some(PingSpec {
            outstanding: OUTSTANDING,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..load(config)
    };
    let mut curves = Vec::new();
    for (delivered, echoed, attacks) in BESIDE {
        let curve = Curve {
            system: System::Private,
            setting: Some(delivered),
            services: vec![
                service(Kind::Echo, ECHO_PORT),
                service(Kind::Discard, BLAST_PORT),
            ],
            beside: vec![Beside::Hostile {
                port: HOSTILE_PORT,
                attacks,
            }],
            loads: vec![blast.clone()],
            ..Curve::default()
        };
        curves.push(Curve {
            setting: Some(echoed),
            y: Some("echoes/s"),
            loads: vec![echoes.clone()],
            ..curve.clone()
        });
        curves.push(curve);
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let curves = curves(bed);
    run.series = run.sweep(&curves, run.options.within(5, 60), reduce)?;
    run.note(format!(
        "{SHARE} of bare's capacity delivered to one application, and a closed loop of \
         {OUTSTANDING} requests, lost after {:?}. Every frame that comes to the client is looked \
         at, so both are less than without.",
        Duration::from_millis(100)
    ));
    Ok(())
}

fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let (attacks, seen) = measured.hostile?;
    let tried = [attacks.forged, attacks.scribbled, attacks.messages];
    let counts = TRIED.into_iter().zip(tried).chain([
        (FORGED, seen.forged),
        (GENUINE, seen.genuine),
        (MISSED, seen.missed),
    ]);
    let counts = counts.map(|(name, count)| (name.to_owned(), count as f64));
    Some(Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y: match &report.ping {
            Some(ping) => ping.rate,
            None => measured.outcome.delivered.get(1).copied()?,
        },
        drops: measured.drops.clone(),
        values: counts.chain([waited(measured)]).collect(),
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let [hostile, idle] = BESIDE;
    let last = |setting| find(series, "private", Some(setting))?.last();
    let over = |hostile, idle| ratio(last(hostile).map(|it| it.y), last(idle).map(|it| it.y));
    let of = |name: &str| last(hostile.0)?.values.get(name).copied();
    let tried: Option<Vec<f64>> = TRIED.into_iter().map(of).collect();
    vec![
        Claim::at_least(
            "delivered",
            "delivered beside a hostile application, over beside an idle one",
            over(hostile.0, idle.0),
            0.97,
        ),
        Claim::at_least(
            "echoes",
            "echoes/s beside a hostile application, over beside an idle one",
            over(hostile.1, idle.1),
            0.97,
        ),
        Claim::at_most("forged", "forged frames that left", of(FORGED), 0.0),
        Claim::at_least(
            "genuine",
            "its genuine frames, behind the forged ones, that left",
            of(GENUINE),
            1.0,
        ),
        Claim::at_most(
            "watched",
            "frames at the client that were not examined",
            of(MISSED),
            0.0,
        ),
        Claim::at_least(
            "tried",
            "forged frames, words overwritten and messages garbled: the fewest",
            tried.and_then(|tried| tried.into_iter().min_by(f64::total_cmp)),
            100.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    #[test]
    fn one_forged_frame_fails_and_so_do_attacks_that_were_none() {
        let of = |forged: f64, tried: f64| {
            let series = BESIDE.map(|(setting, _, _)| {
                let mut series = curve("private", Some(setting), &[(3e5, 3e5)]);
                let values = TRIED.map(|name| (name, tried));
                let values =
                    values
                        .into_iter()
                        .chain([(FORGED, forged), (GENUINE, tried), (MISSED, 0.0)]);
                series.points[0].values = values
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                series
            });
            let claims = claims(&series);
            ["delivered", "forged", "genuine", "tried"].map(|id| {
                let claim = claims.iter().find(|claim| claim.id == id);
                claim.unwrap().holds == Some(true)
            })
        };
        assert_eq!(of(0.0, 1e3), [true; 4]);
        assert_eq!(of(1.0, 1e3), [true, false, true, true]);
        assert_eq!(of(0.0, 0.0), [true, true, false, false]);
    }

    #[test]
    fn both_are_one_service_each() {
        let curves = curves((Config::default(), MILLION));
        let mut loads = curves.iter().flat_map(|curve| &curve.loads);
        assert!(loads.all(|load| load.check().is_ok()));
        assert_eq!(curves[0].setup(None), curves[1].setup(None));
        assert_ne!(curves[0].setup(None), curves[2].setup(None));
    }
}
