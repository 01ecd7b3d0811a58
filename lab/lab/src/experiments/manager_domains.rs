//! Four private applications on one queue: two that echo, one that is blasted, and one
//! that stands still with its channel full. The result is what the two lose because of
//! the others.
//!
//! Each is a process with its own user, all on the receiver's processor. For comparison,
//! the same two run without the others. A paced client requests less than they could
//! answer. A closed loop requests all of it, and so also shows how much the processor
//! spends on the blast.
//!
//! Two more questions follow. Does an application of 100 sockets get more than one of a
//! single socket, if both are blasted? How many requests/s do two applications answer
//! together, relative to one embedded stack with the same clients?

use std::time::Duration;

use tidewall_load::{BlastSpec, LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, ratio, trips, waited};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::BusyTimeout;
use crate::worker::Beside;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "manager-domains",
    paper: "beyond the papers",
    about: "two private applications beside a blasted one and one that never polls",
    x: "blast, packets/s offered",
    y: "echoes/s of the slower of the two",
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const ECHO_PORTS: [u16; 2] = [7, 8];
const BLAST_PORT: u16 = 9;
const STILL_PORT: u16 = 10;
const TIMEOUT: Duration = Duration::from_millis(20);
/// Warm-up and measured time of processes that keep their processor busy, which the
/// schedule shares by turns.
const LONG: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));
/// Requests/s of a paced client to each, as a share of `bare`'s capacity.
const PACE: f64 = 0.003;
/// Requests in flight to the one that stands still: its channel fills soon.
const UNANSWERED: u16 = 64;
/// The blast at which the claims are judged, as a share of `bare`'s capacity.
const JUDGED: f64 = 0.3;
/// Sockets of the first application, beside one with a single socket.
const SOCKETS: u16 = 100;
const SOCKETS_FROM: u16 = 1_000;
/// The blast at both, half of it at each.
const BOTH: f64 = 0.5;
/// Multiplications for each of their datagrams, and for each request, as in `http-base`.
const WORK: u32 = 2_500;
/// Requests in flight to each of two applications with simultaneous clients.
const ASKED: u16 = 32;
const MANY: &str = "100 sockets beside 1, both blasted";
const REQUESTS: &str = "two asked at the same time";
const OF_MANY: &str = "datagrams/s counted by the 100 sockets";
const OF_ONE: &str = "datagrams/s counted by the 1 socket";

const FULL: [f64; 5] = [0.0, 0.1, JUDGED, 0.5, 0.7];
const QUICK: [f64; 3] = [0.0, JUDGED, 0.5];

/// The names of each client's curves, alone and among the others.
const CLIENTS: [(Option<f64>, &str, &str, &str); 2] = [
    (Some(PACE), "paced", "paced, alone", "paced, four of them"),
    (
        None,
        "closed",
        "closed loop, alone",
        "closed loop, four of them",
    ),
];

fn curves((config, capacity): Bed, quick: bool) -> Vec<Curve> {
    let service = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let echo = ECHO_PORTS.map(|port| service(Kind::Echo, port));
    let ping = |port, rate: Option<u64>| PingSpec {
        timeout: TIMEOUT,
        rate,
        outstanding: if rate.is_some() { 8 } else { 1 },
        ..PingSpec::new(server(port))
    };
    let both = |rate| LoadSpec {
        ping: Some(ping(ECHO_PORTS[0], rate)),
        beside: vec![ping(ECHO_PORTS[1], rate)],
        ..load(config)
    };
    let shares: &[f64] = if quick { &QUICK } else { &FULL };
    let mut curves = Vec::new();
    for (share, _, alone, together) in CLIENTS {
        let rate = capacity.rate(share);
        let pair = Curve {
            system: System::Private,
            setting: Some(alone),
            services: vec![echo[0]],
            beside: vec![Beside::Serves(echo[1])],
            loads: vec![both(rate)],
            ..Curve::default()
        };
        let beside_still = |&share: &f64| {
            let mut load = both(rate);
            load.beside.push(PingSpec {
                outstanding: UNANSWERED,
                ..ping(STILL_PORT, None)
            });
            load.blast = capacity.blast(SenderKind::Skb, BLAST_PORT, Some(share));
            load
        };
        let others = [
            Beside::Serves(service(Kind::Discard, BLAST_PORT)),
            Beside::Stopped(service(Kind::Discard, STILL_PORT)),
        ];
        curves.push(Curve {
            setting: Some(together),
            beside: pair.beside.iter().cloned().chain(others).collect(),
            loads: shares.iter().map(beside_still).collect(),
            ..pair.clone()
        });
        curves.push(pair);
    }
    let worked = |kind, port| ServiceSpec {
        work: WORK,
        ..service(kind, port)
    };
    let sockets = SOCKETS_FROM..SOCKETS_FROM + SOCKETS;
    let blast = |mut blast: BlastSpec| {
        let turns = sockets.clone().flat_map(|port| [port, BLAST_PORT]);
        blast.ports = turns.collect();
        blast
    };
    let blasted = capacity.blast(SenderKind::Skb, BLAST_PORT, Some(BOTH));
    curves.push(Curve {
        system: System::Private,
        setting: Some(MANY),
        y: Some("datagrams/s counted by both"),
        services: sockets
            .clone()
            .map(|it| worked(Kind::Discard, it))
            .collect(),
        beside: vec![Beside::Serves(worked(Kind::Discard, BLAST_PORT))],
        loads: vec![LoadSpec {
            blast: blasted.map(blast),
            warm_up: LONG.0,
            duration: LONG.1,
            ..load(config)
        }],
        ..Curve::default()
    });
    let asked = |port| PingSpec {
        outstanding: ASKED,
        ..PingSpec::new(server(port))
    };
    let [first, second] = ECHO_PORTS.map(|port| worked(Kind::Echo, port));
    let requests = Curve {
        setting: Some(REQUESTS),
        y: Some("requests/s answered by both"),
        services: vec![first, second],
        loads: vec![LoadSpec {
            ping: Some(asked(ECHO_PORTS[0])),
            beside: vec![asked(ECHO_PORTS[1])],
            warm_up: LONG.0,
            duration: LONG.1,
            ..load(config)
        }],
        ..Curve::default()
    };
    curves.push(Curve {
        system: System::Private,
        services: vec![first],
        beside: vec![Beside::Serves(second)],
        ..requests.clone()
    });
    curves.push(requests);
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let curves = curves(bed, run.options.quick);
    run.series = run.sweep(&curves, run.options.within(5, 90), reduce)?;
    run.note(format!(
        "All four on one processor, which the kernel's polling thread shares. Paced: {PACE} of \
         bare's capacity in requests/s to each of the two; closed loop: one 8-byte request at a time to each, given \
         up after {TIMEOUT:?}. One thread spins for both and sends the blast. 100 sockets beside \
         1: each of the two applications is sent half of {BOTH} of bare's capacity, of 14-byte \
         datagrams. Two asked at the same time: {ASKED} requests in flight to each; tidewall has \
         both sockets in one embedded program."
    ));
    Ok(())
}

fn reduce(curve: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    if curve.setting == Some(MANY) {
        let many: f64 = measured.outcome.delivered.iter().sum();
        let one: f64 = measured.shares.received.iter().sum();
        return Some(Sample {
            x: report.blast.as_ref()?.rate,
            y: many + one,
            drops: measured.drops.clone(),
            values: [(OF_MANY.to_owned(), many), (OF_ONE.to_owned(), one)].into(),
            ..Sample::default()
        });
    }
    let first = report.ping.as_ref()?;
    let second = report.beside.first()?;
    let slower = if first.rate < second.rate {
        first
    } else {
        second
    };
    let mut values = trips::values(slower, TIMEOUT);
    values.extend([waited(measured)]);
    let y = match curve.setting {
        Some(REQUESTS) => first.rate + second.rate,
        _ => slower.rate,
    };
    Some(Sample {
        x: report.blast.as_ref().map_or(0.0, |blast| blast.rate),
        y,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (_, name, alone, together) in CLIENTS {
        let rate = |setting, share| Some(find(series, "private", Some(setting))?.offered(share)?.y);
        let over = |share| ratio(rate(together, share), rate(alone, 0.0));
        let text = |beside: &str| {
            format!(
                "{name} client, one application is stopped, {beside}: echoes/s of the two \
                 others, over theirs alone"
            )
        };
        claims.push(Claim::new(
            format!("{name}-0"),
            text("one is not blasted"),
            over(0.0),
        ));
        claims.push(Claim::at_least(
            format!("{name}-{JUDGED}"),
            text(&format!("one is blasted with {JUDGED} of bare's capacity")),
            over(JUDGED),
            0.8,
        ));
        claims.push(Claim::new(
            format!("{name}-0.5"),
            text("one is blasted with 0.5 of bare's capacity"),
            over(0.5),
        ));
    }
    let many = find(series, "private", Some(MANY)).and_then(Series::last);
    for (id, value) in [("sockets-100", OF_MANY), ("sockets-1", OF_ONE)] {
        let over = |point: &Point| {
            let half = (point.y > 0.0).then_some(point.y / 2.0);
            ratio(point.values.get(value).copied(), half)
        };
        claims.push(Claim::at_least(
            id,
            format!("{MANY} with half of {BOTH} of bare's capacity: {value} over half of both's"),
            many.and_then(over),
            0.9,
        ));
    }
    let requests = |system| Some(find(series, system, Some(REQUESTS))?.last()?.y);
    claims.push(Claim::at_least(
        "requests",
        "two applications under load at the same time: requests/s of both, private over embedded",
        ratio(requests("private"), requests("tidewall")),
        0.9,
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    #[test]
    fn the_two_are_set_against_themselves_alone() {
        let alone = |setting, rate| {
            let mut series = curve("private", Some(setting), &[(0.0, rate)]);
            series.points[0].share = Some(0.0);
            series
        };
        let mut together = curve(
            "private",
            Some("paced, four of them"),
            &[(0.0, 4e3), (3e5, 3e3)],
        );
        for (point, share) in together.points.iter_mut().zip(QUICK) {
            point.share = Some(share);
        }
        let series = [alone("paced, alone", 4e3), together];
        let claims = claims(&series);
        let found = claims.iter().find(|claim| claim.id == "paced-0.3").unwrap();
        assert_eq!((found.measured, found.holds), (Some(0.75), Some(false)));
        let found = claims
            .iter()
            .find(|claim| claim.id == "closed-0.3")
            .unwrap();
        assert_eq!((found.measured, found.holds), (None, Some(false)));
    }

    #[test]
    fn two_applications_share_and_are_set_against_one_stack() {
        let mut many = curve("private", Some(MANY), &[(8e5, 2e5)]);
        let counted = [(OF_MANY, 1.12e5), (OF_ONE, 8.8e4)];
        many.points[0].values = counted.map(|(name, it)| (name.to_owned(), it)).into();
        let private = curve("private", Some(REQUESTS), &[(0.0, 9.5e4)]);
        let embedded = curve("tidewall", Some(REQUESTS), &[(0.0, 1e5)]);
        let claims = claims(&[many, private, embedded]);
        for (id, measured, holds) in [
            ("sockets-100", 1.12, true),
            ("sockets-1", 0.88, false),
            ("requests", 0.95, true),
        ] {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            let difference = claim.measured.unwrap() - measured;
            assert!(difference.abs() < 1e-9, "{claim:?}");
            assert_eq!(claim.holds, Some(holds), "{id}");
        }
    }

    #[test]
    fn half_of_the_blast_is_at_each_application() {
        let curves = curves((Config::default(), MILLION), true);
        let many = curves.iter().find(|it| it.setting == Some(MANY)).unwrap();
        let ports = &many.loads[0].blast.as_ref().unwrap().ports;
        assert_eq!(many.services.len(), usize::from(SOCKETS));
        let of_one = ports.iter().filter(|&&port| port == BLAST_PORT).count();
        assert_eq!(2 * of_one, ports.len());
        for service in &many.services {
            assert_eq!(
                ports.iter().filter(|&&port| port == service.port).count(),
                1
            );
        }
    }

    #[test]
    fn all_loads_are_valid_and_only_one_application_stands_still() {
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick);
            let mut loads = curves.iter().flat_map(|curve| &curve.loads);
            assert!(loads.all(|load| load.check().is_ok()));
            for curve in curves {
                let stopped = |beside: &&Beside| matches!(beside, Beside::Stopped(_));
                let still = curve.beside.iter().filter(stopped).count();
                assert_eq!(still, usize::from(curve.beside.len() == 3));
            }
        }
    }
}
