//! LRP's promise for a program with several sockets: a flood at some of them does not
//! affect the others, and the total stays flat.
//!
//! The program is an ordinary event loop (epoll, level-triggered; recvmmsg of up to 64
//! per turn), on Linux and, unchanged, by `tidewall run`. Its first part has an echo
//! socket beside a blasted socket. Its second part has 1, 2, 8 and 100 sockets that are
//! all blasted: with equal shares, or with half of the blast at the first of them.

use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, best_linux, ratio, trips, waited};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::BusyTimeout;
use crate::worker::{DatagramsJob, Program, TcpKind, TcpSpec};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-sockets",
    paper: "LRP, section 3.1",
    about: "an unmodified event loop of several sockets, of which some or all are blasted",
    x: "blast, packets/s offered",
    y: "datagrams/s counted by the blasted sockets",
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const BLAST_PORT: u16 = 900;
const TIMEOUT: Duration = Duration::from_millis(20);
/// Warm-up and measured time: several periods of the schedule, which shares the processor
/// by turns.
const TIMES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));
const BESIDE: &str = "an echo socket beside it";
const ECHOES: &str = "echoes/s";

/// The blast, shares of `bare`'s capacity; `None`: as fast as possible.
const SHARES: [Option<f64>; 5] = [Some(0.0), Some(0.5), Some(0.9), Some(1.1), None];
/// The blasts beside Linux in a quick run: the claims compare with these.
const QUICK_LINUX: [Option<f64>; 2] = [Some(0.9), Some(1.1)];

/// Numbers of sockets that are all blasted, and whether the first gets half of the blast.
const MANY: [(u16, bool, &str); 7] = [
    (1, false, "1 socket"),
    (2, false, "2 sockets"),
    (2, true, "2 sockets, uneven"),
    (8, false, "8 sockets"),
    (8, true, "8 sockets, uneven"),
    (100, false, "100 sockets"),
    (100, true, "100 sockets, uneven"),
];

/// Returns the ports of a blast at this many sockets: each port once, and under an uneven
/// load the first as often as all others together.
fn ports(sockets: u16, uneven: bool) -> Vec<u16> {
    let mut ports = Vec::new();
    for port in BLAST_PORT + 1..BLAST_PORT + sockets {
        ports.push(port);
        if uneven {
            ports.push(BLAST_PORT);
        }
    }
    match uneven {
        // Two sockets would be even.
        true if sockets == 2 => vec![BLAST_PORT, BLAST_PORT, BLAST_PORT, BLAST_PORT + 1],
        true => ports,
        false => [&[BLAST_PORT], &*ports].concat(),
    }
}

/// Returns the event loop: the services as given, the last with this many sockets.
fn curve(system: System, setting: &'static str, services: &[ServiceSpec], sockets: u16) -> Curve {
    let job = DatagramsJob {
        services: services.to_vec(),
        sockets,
        ..DatagramsJob::default()
    };
    let program = (system != System::Bare)
        .then(|| TcpSpec::new(TcpKind::Program(Program::Datagrams(job)), BLAST_PORT));
    Curve {
        system,
        setting: Some(setting),
        services: services.to_vec(),
        tcp: program,
        ..Curve::default()
    }
}

/// The kernel's modes, including the one on the sender's processor.
const LINUX: [System; 5] = [
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
    System::LinuxSuspend,
    System::LinuxPlain,
];

fn curves((config, capacity): Bed, quick: bool, linux: &[System]) -> Vec<Curve> {
    let service = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let discard = service(Kind::Discard, BLAST_PORT);
    let two = [service(Kind::Echo, ECHO_PORT), discard];
    let long = LoadSpec {
        warm_up: TIMES.0,
        duration: TIMES.1,
        ..load(config)
    };
    let beside = |share: &Option<f64>| LoadSpec {
        blast: capacity.blast(SenderKind::Skb, BLAST_PORT, *share),
        ping: Some(PingSpec {
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..long.clone()
    };
    let mut curves = Vec::new();
    for system in [&[System::Bare, System::Run], linux].concat() {
        let shares: &[_] = match quick && system.is_linux() {
            true => &QUICK_LINUX,
            false => &SHARES,
        };
        curves.push(Curve {
            loads: shares.iter().map(beside).collect(),
            ..curve(system, BESIDE, &two, 1)
        });
    }
    for (sockets, uneven, setting) in MANY {
        let blast = |share: &Option<f64>| LoadSpec {
            blast: capacity
                .blast(SenderKind::Skb, BLAST_PORT, *share)
                .map(|mut blast| {
                    blast.ports = ports(sockets, uneven);
                    blast
                }),
            ..long.clone()
        };
        let systems: &[_] = match quick {
            true => &[System::Run],
            false => &[System::Run, System::LinuxRps, System::LinuxBusy],
        };
        for &system in systems {
            let shares = SHARES.split_at(1).1;
            curves.push(Curve {
                loads: shares.iter().map(blast).collect(),
                ..curve(system, setting, &[discard], sockets)
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let linux = run.bench.possible(&LINUX);
    let curves = curves(bed, run.options.quick, &linux);
    run.series = run.sweep(&curves, run.options.within(5, 240), reduce)?;
    run.note(
        "Loads are shares of what bare takes here. Beside the echo socket the client has one \
         8-byte request under way and spins; the same thread sends the blast. linux-plain \
         receives on the sender's processor, the others on the receiver's. An uneven blast \
         sends half of its packets to the first socket, three quarters where there are two.",
    );
    Ok(())
}

fn reduce(curve: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let counted = measured.outcome.delivered.last().copied()?;
    let mut values = vec![waited(measured)];
    if curve.setting == Some(BESIDE) {
        let ping = report.ping.as_ref()?;
        values.extend(trips::values(ping, TIMEOUT));
        values.push((ECHOES.to_owned(), ping.rate));
    }
    Some(Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y: counted,
        drops: measured.drops.clone(),
        values: values.into_iter().collect(),
        ..Sample::default()
    })
}

/// Returns the point of the unlimited blast.
fn full(series: &Series) -> Option<&crate::result::Point> {
    series.points.iter().find(|point| point.share.is_none())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let ours = |setting| find(series, "tidewall-run", Some(setting));
    let echoes = |series: &Series, share| series.offered(share)?.values.get(ECHOES).copied();
    let mut claims = Vec::new();
    for (_, _, setting) in MANY {
        claims.push(Claim::at_least(
            format!("flat-{}", setting.replace(", ", "-").replace(' ', "-")),
            format!("{setting}: counted at the highest load over its own peak"),
            ratio(
                ours(setting).and_then(|ours| Some(full(ours)?.y)),
                ours(setting).and_then(Series::peak),
            ),
            0.95,
        ));
    }
    let beside = ours(BESIDE);
    let half = || Some(beside?.offered(0.5)?.y);
    for (name, point) in [
        ("0.9", beside.and_then(|ours| ours.offered(0.9))),
        ("1.1", beside.and_then(|ours| ours.offered(1.1))),
        ("full", beside.and_then(full)),
    ] {
        claims.push(Claim::at_least(
            format!("counted-{name}"),
            format!("beside an echo socket: counted at {name} of bare's capacity over that at 0.5"),
            ratio(point.map(|point| point.y), half()),
            0.75,
        ));
    }
    for share in [0.9, 1.1] {
        let linux = best_linux(series, Some(BESIDE), |linux| {
            // The mode on the sender's processor has another processor.
            (linux.system != System::LinuxPlain.name()).then_some(())?;
            echoes(linux, share)
        });
        claims.push(Claim::at_least(
            format!("echoes-{share}"),
            format!(
                "beside a blast of {share} of bare's capacity: echoes/s over those of the best \
                 Linux mode on the same processors"
            ),
            ratio(
                beside.and_then(|ours| echoes(ours, share)),
                linux.map(|it| it.max(1.0)),
            ),
            2.0,
        ));
    }
    for share in [0.0, 0.5, 0.9] {
        claims.push(Claim::at_least(
            format!("echoes-of-bare-{share}"),
            format!("beside a blast of {share} of bare's capacity: echoes/s over bare's there"),
            ratio(
                beside.and_then(|ours| echoes(ours, share)),
                find(series, "bare", Some(BESIDE)).and_then(|bare| echoes(bare, share)),
            ),
            0.8,
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve as measured;
    use crate::testbed::Config;

    #[test]
    fn loads_are_valid() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick, &LINUX);
            let mut loads = curves.iter().flat_map(|curve| &curve.loads);
            assert!(loads.all(|load| load.check().is_ok()));
        }
    }

    #[test]
    fn half_of_an_uneven_blast_is_the_first_sockets() {
        for (sockets, uneven, _) in MANY {
            let ports = ports(sockets, uneven);
            let first = ports.iter().filter(|&&port| port == BLAST_PORT).count();
            let different = BTreeSet::from_iter(&ports).len();
            assert_eq!(different, usize::from(sockets));
            match uneven {
                false => assert_eq!((first, ports.len()), (1, different)),
                true => assert!(2 * first >= ports.len()),
            }
        }
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let mut beside = measured(
            "tidewall-run",
            Some(BESIDE),
            &[(1.0, 0.0), (5e5, 8e5), (9e5, 6e5), (1.1e6, 7e5), (2e6, 4e5)],
        );
        let mut linux = measured("linux-rps", Some(BESIDE), &[(9e5, 1.0), (1.1e6, 1.0)]);
        let mut bare = beside.clone();
        bare.system = "bare".into();
        for (series, shares, rate) in [
            (&mut beside, &SHARES[..], 9e3),
            (&mut linux, &QUICK_LINUX, 3e3),
            (&mut bare, &SHARES, 1e4),
        ] {
            for (point, share) in series.points.iter_mut().zip(shares) {
                point.share = *share;
                point.values.insert(ECHOES.into(), rate);
            }
        }
        let mut many = measured(
            "tidewall-run",
            Some("2 sockets"),
            &[(5e5, 5e5), (2e6, 4.9e5)],
        );
        many.points[1].share = None;
        many.points[0].share = Some(0.5);
        let claims = claims(&[beside, linux, bare, many]);
        for (id, expected, holds) in [
            ("flat-2-sockets", 0.98, true),
            ("counted-0.9", 0.75, true),
            ("counted-full", 0.5, false),
            ("echoes-1.1", 3.0, true),
            ("echoes-of-bare-0.5", 0.9, true),
        ] {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            assert!(
                (claim.measured.unwrap() - expected).abs() < 1e-9,
                "{claim:?}"
            );
            assert_eq!(claim.holds, Some(holds), "{id}");
        }
    }
}
