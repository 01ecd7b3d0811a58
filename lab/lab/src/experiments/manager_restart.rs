//! A manager that is killed with SIGKILL and restarted each second, while its application
//! serves: the cost to datagrams, connections and new clients.
//!
//! The expected cost is nothing: program, tables and pairs are pinned, and the
//! application owns its queues. A frame lost because the machine is otherwise busy would
//! count, too. So the loads are far below saturation, and the same loads run without a
//! kill for comparison.

use std::time::Duration;

use tidewall_load::{HttpSpec, LoadSpec, PingSpec, ProbeSpec, Reuse};
use tidewall_service::{Kind, ServiceSpec};

use super::tcp::{DOCUMENT, HTTP_PORT, Site, client};
use super::{Experiment, Run, USUAL, waited};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, more_clients};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "manager-restart",
    paper: "beyond the papers",
    about: "a manager killed each second under load: frames, connections, new clients",
    x: "managers killed",
    y: "answers/s",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["UDP and HTTP clients on kernel sockets"],
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
/// Interval between kills.
const EVERY_MS: u32 = 1_000;
/// The minute, and a quick run's share of it.
const FULL: Duration = Duration::from_secs(60);
const QUICK: Duration = Duration::from_millis(4_500);
/// Datagrams/s as a share of `bare`'s capacity, and how many may be in flight.
const DATAGRAMS: (f64, u16) = (0.005, 128);
/// A datagram without an answer after this time is lost.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Requests/s over kept connections, and new clients/s, as shares of the same.
const REQUESTS: f64 = 0.0025;
const CLIENTS: f64 = 0.000_125;
const CONNECT: Duration = Duration::from_secs(1);

const SYSTEMS: [System; 2] = [System::Direct, System::Private];
const KINDS: [(&str, &str); 2] = [
    ("datagrams, killed each second", "datagrams"),
    ("connections, killed each second", "connections"),
];
const LOST: &str = "lost";
const BROKEN: &str = "connections lost";
const REFUSED: &str = "new clients without a connection";
const KILLS: &str = "managers killed";
const ABSENT: &str = "longest without a manager, ms";

fn curves((config, capacity): Bed, quick: bool, site: &Site) -> Vec<Curve> {
    let duration = if quick { QUICK } else { FULL };
    let base = LoadSpec {
        duration,
        ..load(config)
    };
    let (share, outstanding) = DATAGRAMS;
    let datagrams = LoadSpec {
        ping: Some(PingSpec {
            rate: capacity.rate(Some(share)),
            outstanding,
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..base.clone()
    };
    let connections = LoadSpec {
        http: Some(HttpSpec {
            rate: capacity.rate(Some(REQUESTS)),
            ..client(Reuse::KeepAlive)
        }),
        probe: Some(ProbeSpec {
            rate: capacity.rate(Some(CLIENTS)).unwrap_or(0).max(1),
            timeout: CONNECT,
            sources: more_clients(),
            ..ProbeSpec::new(server(HTTP_PORT), DOCUMENT)
        }),
        ..base
    };
    let mut curves = Vec::new();
    for system in SYSTEMS {
        for kill in [Some(EVERY_MS), None] {
            // The claims are about kills.
            if quick && kill.is_none() {
                continue;
            }
            let [of_datagrams, of_connections] = KINDS.map(|(killed, plain)| match kill {
                Some(_) => killed,
                None => plain,
            });
            curves.push(Curve {
                system,
                setting: Some(of_datagrams),
                services: vec![ServiceSpec {
                    kind: Kind::Echo,
                    port: ECHO_PORT,
                    work: 0,
                }],
                loads: vec![datagrams.clone()],
                kill_manager_ms: kill,
                ..Curve::default()
            });
            curves.push(Curve {
                setting: Some(of_connections),
                kill_manager_ms: kill,
                ..Curve::over_tcp(system, site.server(0), vec![connections.clone()])
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let site = Site::new()?;
    let curves = curves(bed, run.options.quick, &site);
    run.series = run.sweep(&curves, run.options.within(3, 90), reduce)?;
    run.note(format!(
        "Datagrams: {} of bare's capacity in requests/s, lost without an answer after {TIMEOUT:?}. \
         Connections: {REQUESTS} of it over kept ones, and {CLIENTS} in new clients/s, each with \
         {CONNECT:?} to get in. The manager is started again as soon as it is dead.",
        DATAGRAMS.0
    ));
    Ok(())
}

fn reduce(_: &Curve, _: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let kills = measured.kills;
    let mut values = vec![
        waited(measured),
        (KILLS.to_owned(), kills.kills as f64),
        (ABSENT.to_owned(), kills.longest_ms),
    ];
    let rate = if let Some(ping) = &report.ping {
        (ping.whole.echoed > 0).then_some(())?;
        values.push((LOST.to_owned(), ping.whole.lost as f64));
        ping.rate
    } else {
        let (http, probe) = (report.http.as_ref()?, report.probe.as_ref()?);
        let counts = http.whole;
        (counts.responses > 0 && probe.begun > 0).then_some(())?;
        let lost = counts.failed + counts.timeouts;
        let refused = counts.connect_failures + counts.connect_timeouts;
        let out = probe.begun.saturating_sub(probe.connected);
        values.push((BROKEN.to_owned(), lost as f64));
        values.push((REFUSED.to_owned(), (refused + out) as f64));
        http.rate
    };
    Some(Sample {
        x: kills.kills as f64,
        y: rate,
        drops: measured.drops.clone(),
        values: values.into_iter().collect(),
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let [(datagrams, _), (connections, _)] = KINDS;
    let value = |system: System, setting, name: &str| {
        let point = find(series, system.name(), Some(setting))?.last()?;
        point.values.get(name).copied()
    };
    let mut claims = Vec::new();
    for system in SYSTEMS {
        let name = system.name();
        let none = |id: &str, text: &str, setting, of| {
            Claim::at_most(
                format!("{name}-{id}"),
                format!("{name}, the manager killed each second: {text}"),
                value(system, setting, of),
                0.0,
            )
        };
        claims.push(none("lost", "datagrams without an answer", datagrams, LOST));
        claims.push(none(
            "connections",
            "requests whose connection was reset, closed or silent",
            connections,
            BROKEN,
        ));
        claims.push(none(
            "refused",
            "new clients without a connection",
            connections,
            REFUSED,
        ));
        let killed = [datagrams, connections].map(|setting| value(system, setting, KILLS));
        let least = killed.into_iter().collect::<Option<Vec<f64>>>();
        claims.push(Claim::at_least(
            format!("{name}-killed"),
            format!("{name}: managers killed meanwhile, fewest of a load"),
            least.and_then(|killed| killed.into_iter().min_by(f64::total_cmp)),
            3.0,
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::result::tests::curve;
    use crate::testbed::Config;

    fn killed(setting: &str, values: &[(&str, f64)]) -> Series {
        let mut series = curve("direct", Some(setting), &[(4.0, 8e3)]);
        series.points[0].values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        series
    }

    #[test]
    fn one_lost_datagram_fails_the_claim_and_so_does_a_manager_that_lived() {
        let of = |lost, kills| {
            let series = [
                killed(KINDS[0].0, &[(LOST, lost), (KILLS, 4.0)]),
                killed(KINDS[1].0, &[(BROKEN, 0.0), (REFUSED, 0.0), (KILLS, kills)]),
            ];
            let claims = claims(&series);
            [
                "direct-lost",
                "direct-connections",
                "direct-refused",
                "direct-killed",
            ]
            .map(|id| {
                let claim = claims.iter().find(|claim| claim.id == id);
                claim.unwrap().holds == Some(true)
            })
        };
        assert_eq!(of(0.0, 4.0), [true; 4]);
        assert_eq!(of(1.0, 4.0), [false, true, true, true]);
        assert_eq!(of(0.0, 0.0), [true, true, true, false]);
    }

    #[test]
    fn loads_are_valid_and_quick_keeps_the_kills() {
        let site = Site::new().unwrap();
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick, &site);
            let mut loads = curves.iter().flat_map(|curve| &curve.loads);
            assert!(loads.all(|load| load.check().is_ok()));
            let killed = |curve: &&Curve| curve.kill_manager_ms.is_some();
            assert_eq!(curves.iter().filter(killed).count(), 4);
        }
    }
}
