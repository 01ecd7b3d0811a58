//! The three ways to own the stack, compared:
//! - embedded in a privileged process
//! - direct: no privilege, the device's own queues from a manager
//! - private: neither privilege nor trust, behind a virtual pair
//!
//! One application, the same in all of them, polls the device in the receiving thread. A
//! lone private application does so, too (docs/decisions/index.md, 150).

use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec, Reuse, SenderKind};
use tidewall_service::{Kind, ServiceSpec};

use super::tcp::{self, KEPT, Site, client, http_load};
use super::{Experiment, Run, USUAL, ratio, trips, waited};
use crate::bench::{Measured, load, server};
use crate::capacity::Bed;
use crate::result::{Claim, Series, find};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::BusyTimeout;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "manager-modes",
    paper: "beyond the papers",
    about: "embedded, direct and private: delivered, echoes beside a blast, requests/s",
    x: "blast, packets/s offered",
    y: "delivered packets/s",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["skb", "HTTP client on kernel sockets, epoll"],
    measure,
    claims,
    ..USUAL
};

const ECHO_PORT: u16 = 7;
const BLAST_PORT: u16 = 9;
const ECHOES: &str = "echoes beside a blast at another socket";
/// The blast beside which echoes are compared, as a share of `bare`'s capacity.
const BESIDE: f64 = 0.5;
const TIMEOUT: Duration = Duration::from_millis(20);
/// Multiplications per request, as in `http-base`.
const WORK: u32 = 2_500;
/// The default of an application that sets nothing.
const SPIN_MICROSECONDS: u32 = 20;

/// Blasts; `None`: as fast as possible.
const FULL: [Option<f64>; 6] = [Some(0.1), Some(0.3), Some(0.5), Some(0.7), Some(0.9), None];
const QUICK: [Option<f64>; 3] = [Some(0.5), Some(0.9), None];
const ECHOES_FULL: [f64; 5] = [0.0, 0.1, 0.3, 0.5, 0.7];
const ECHOES_QUICK: [f64; 2] = [0.0, BESIDE];

const SYSTEMS: [System; 3] = [System::Tidewall, System::Direct, System::Private];

fn curves((config, capacity): Bed, quick: bool, site: &Site) -> Vec<Curve> {
    let (shares, echoes): (&[_], &[_]) = match quick {
        true => (&QUICK, &ECHOES_QUICK),
        false => (&FULL, &ECHOES_FULL),
    };
    let blast = |share| LoadSpec {
        blast: capacity.blast(SenderKind::Skb, BLAST_PORT, share),
        ..load(config)
    };
    let echo = |share: f64| LoadSpec {
        ping: Some(PingSpec {
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        ..blast(Some(share))
    };
    let service = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let mut curves = Vec::new();
    for system in [System::Bare].into_iter().chain(SYSTEMS) {
        // As in lrp-overload: beside another, idle socket, the delivered rate also
        // depends on how the application checks the two.
        let delivered = Curve {
            system,
            spin: (system != System::Bare).then_some(SPIN_MICROSECONDS),
            services: vec![service(Kind::Discard, BLAST_PORT)],
            loads: shares.iter().map(|&share| blast(share)).collect(),
            ..Curve::default()
        };
        curves.push(Curve {
            setting: Some(ECHOES),
            y: Some("echoes/s"),
            services: vec![
                service(Kind::Echo, ECHO_PORT),
                service(Kind::Discard, BLAST_PORT),
            ],
            loads: echoes.iter().map(|&share| echo(share)).collect(),
            ..delivered.clone()
        });
        curves.push(delivered);
    }
    let requests = |system| Curve {
        setting: Some(KEPT),
        y: Some("requests/s"),
        ..Curve::over_tcp(
            system,
            site.server(WORK),
            vec![http_load(config, client(Reuse::KeepAlive))],
        )
    };
    curves.extend(SYSTEMS.map(requests));
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let site = Site::new()?;
    let curves = curves(bed, run.options.quick, &site);
    run.series = run.sweep(&curves, run.options.within(5, 100), reduce)?;
    run.note(
        "One application a system: 14-byte datagrams to its only socket, which it discards; an \
         8-byte request at a time from a spinning client, given up after 20 ms; 32 kept \
         connections. Direct and private run as a user without privileges, and tidewalld idles on \
         the sender's processor.",
    );
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    if load.http.is_some() {
        return tcp::reduce(curve, load, measured);
    }
    let report = &measured.outcome.report;
    let blast = report.blast.as_ref();
    let delivered = measured.outcome.delivered.last().copied()?;
    let mut sample = Sample {
        x: blast.map_or(0.0, |blast| blast.rate),
        y: delivered,
        drops: measured.drops.clone(),
        values: [waited(measured)].into(),
        ..Sample::default()
    };
    if let Some(ping) = &report.ping {
        sample.y = ping.rate;
        sample.values.extend(trips::values(ping, TIMEOUT));
    }
    Some(sample)
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let of = |system: &str, setting| find(series, system, setting);
    let last = |system: &str, setting| of(system, setting)?.last().map(|point| point.y);
    let echoes = |system: &str, share| Some(of(system, Some(ECHOES))?.offered(share)?.y);
    let over = |above: Option<f64>, below: Option<f64>| ratio(above, below.map(|it| it.max(1.0)));
    let mut claims = Vec::new();
    for (system, bounds) in [
        ("direct", [0.97, 0.97, 0.97]),
        ("private", [0.85, 0.8, 0.9]),
    ] {
        let [delivered, beside, requests] = bounds;
        claims.push(Claim::at_least(
            format!("{system}-delivered"),
            format!("delivered at the highest offered rate: {system} over embedded"),
            over(last(system, None), last("tidewall", None)),
            delivered,
        ));
        claims.push(Claim::at_least(
            format!("{system}-flat"),
            format!("{system} delivers its peak at the highest offered rate (fraction of it)"),
            over(last(system, None), of(system, None).and_then(Series::peak)),
            0.95,
        ));
        claims.push(Claim::at_least(
            format!("{system}-echoes"),
            format!(
                "echoes/s beside a blast of {BESIDE} of bare's capacity: {system} over embedded"
            ),
            over(echoes(system, BESIDE), echoes("tidewall", BESIDE)),
            beside,
        ));
        claims.push(Claim::new(
            format!("{system}-echoes-idle"),
            format!("echoes/s without a blast: {system} over embedded"),
            over(echoes(system, 0.0), echoes("tidewall", 0.0)),
        ));
        claims.push(Claim::at_least(
            format!("{system}-requests"),
            format!("requests/s over 32 kept connections: {system} over embedded"),
            over(last(system, Some(KEPT)), last("tidewall", Some(KEPT))),
            requests,
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

    fn series() -> Vec<Series> {
        let of = |system, scale: f64| {
            let mut echoes = curve(
                system,
                Some(ECHOES),
                &[(0.0, 5e4 * scale), (5e5, 3e4 * scale)],
            );
            for (point, share) in echoes.points.iter_mut().zip(ECHOES_QUICK) {
                point.share = Some(share);
            }
            [
                curve(
                    system,
                    None,
                    &[(5e5, 5e5), (9e5, 9e5), (1e6, 9.5e5 * scale)],
                ),
                echoes,
                curve(system, Some(KEPT), &[(0.0, 6e4 * scale)]),
            ]
        };
        let systems = [("tidewall", 1.0), ("direct", 0.98), ("private", 0.84)];
        systems
            .into_iter()
            .flat_map(|(system, scale)| of(system, scale))
            .collect()
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        for (id, measured, holds) in [
            ("direct-delivered", 0.98, Some(true)),
            ("direct-flat", 1.0, Some(true)),
            ("direct-echoes", 0.98, Some(true)),
            ("direct-echoes-idle", 0.98, None),
            ("direct-requests", 0.98, Some(true)),
            ("private-delivered", 0.84, Some(false)),
            ("private-flat", 0.95 * 0.84 / 0.9, Some(false)),
            ("private-echoes", 0.84, Some(true)),
            ("private-requests", 0.84, Some(false)),
        ] {
            let claim = claims.iter().find(|claim| claim.id == id).unwrap();
            assert!(
                (claim.measured.unwrap() - measured).abs() < 1e-9,
                "{claim:?}"
            );
            assert_eq!(claim.holds, holds, "{id}");
        }
        assert_eq!(claims.len(), 10);
    }

    #[test]
    fn each_curve_of_a_system_has_a_service_of_its_own() {
        let site = Site::new().unwrap();
        for quick in [false, true] {
            let curves = curves((Config::default(), MILLION), quick, &site);
            let loads = curves.iter().flat_map(|curve| &curve.loads);
            assert!(loads.clone().all(|load| load.check().is_ok()));
            for system in SYSTEMS {
                let setups: Vec<_> = curves
                    .iter()
                    .filter(|curve| curve.system == system)
                    .map(|curve| curve.setup(None))
                    .collect();
                assert_eq!(setups.len(), 3);
                let sockets: Vec<_> = setups.iter().map(|setup| setup.services.len()).collect();
                assert_eq!(sockets, [2, 1, 0]);
            }
        }
    }
}
