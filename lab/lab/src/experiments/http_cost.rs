//! The cost of a request: CPU time of a web server below saturation, at rates that are
//! shares of what Linux's best mode serves on this machine.
//!
//! The cost counts the whole processor to which the server is pinned, the kernel's part
//! included. It is that processor's busy time (/proc/timer_list, to the nanosecond), over
//! the responses in that time. The kernel's modes are those that receive on that
//! processor. By default a veth's peer would receive on the sender's, where its work is
//! indistinguishable from the client's. The client receives replies on its own processor
//! under every system.

use std::collections::BTreeMap;
use std::time::Instant;

use tidewall_load::{HttpSpec, LoadSpec, Reuse};

use super::tcp::{self, KEPT, LOOPS, ONE, SYSTEMS, Site, client, http_load, saturating};
use super::{Experiment, Run, best_linux, quickest_linux, ratio};
use crate::bench::Measured;
use crate::result::{Claim, Series, find};
use crate::sweep::{Better, Curve, Plan, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config};
use crate::worker::{Program, TcpKind, TcpSpec, Waiting};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "http-cost",
    paper: "LRP, HTTP (below saturation)",
    about: "a web server below saturation: processor time and wake-ups a request",
    x: "% of what the best Linux mode serves",
    y: "µs of the server's processor a request",
    config: Config::default,
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["HTTP client on kernel sockets, epoll, an open loop"],
    measure,
    claims,
};

/// Offered, % of what the best Linux mode serves.
const SHARES: [u32; 3] = [10, 25, 50];
/// Further figures of a point, each drawn separately, and its vertical axis.
const PANELS: [(&str, &str); 3] = [
    ("p50 µs", "median response time, µs"),
    ("p99 µs", "99th percentile of the response time, µs"),
    (WAKE_UPS, "times that the server slept, a request"),
];
/// A mode that makes some or all requests wait for a timer has fewer wake-ups, at the
/// expense of its clients. So beside the comparison with all modes there is one with the
/// mode that answers each request as it arrives.
const PROMPT: System = System::LinuxRps;
const WAKE_UPS: &str = "wake-ups a request";

/// Returns the servers to compare, including nginx if it is installed.
fn servers(site: &Site) -> Vec<(System, TcpSpec)> {
    let mut servers: Vec<_> = SYSTEMS.map(|system| (system, site.server(0))).to_vec();
    let nginx = nginx(site);
    if nginx.is_there() {
        let spec = TcpSpec {
            waiting: Waiting::Named,
            ..TcpSpec::new(TcpKind::Program(nginx), tcp::HTTP_PORT)
        };
        servers.push((System::LinuxRps, spec));
    }
    servers
}

fn nginx(site: &Site) -> Program {
    Program::Nginx {
        root: site.root().to_owned(),
        sendfile: false,
    }
}

/// Returns requests at each share of `saturation`, requests/s.
fn curves(config: Config, site: &Site, setting: &'static str, saturation: f64) -> Vec<Curve> {
    let reuse = LOOPS.iter().find(|(name, _)| *name == setting);
    let reuse = reuse.map_or(Reuse::KeepAlive, |(_, reuse)| *reuse);
    let load = |share: u32| {
        let rate = saturation * f64::from(share) / 100.0;
        let http = HttpSpec {
            rate: Some((rate as u64).max(1)),
            ..client(reuse)
        };
        http_load(config, http)
    };
    let loads = SHARES.map(load).to_vec();
    let curve = |(system, server)| Curve {
        setting: Some(setting),
        better: Better::Lower,
        ..Curve::over_tcp(system, server, loads.clone())
    };
    servers(site).into_iter().map(curve).collect()
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let site = Site::new()?;
    let quick = run.options.quick;
    let shortened = |mut curves: Vec<Curve>| {
        if quick {
            let loads = curves.iter_mut().flat_map(|curve| &mut curve.loads);
            loads.for_each(tcp::shorten);
        }
        curves
    };
    let begun = Instant::now();
    let full = shortened(saturating(System::LINUX, config, &site, 0));
    let rounds = if quick { 1 } else { 3 };
    let full = run.sweep_part(
        "http-cost, saturation",
        &full,
        Plan::exactly(rounds),
        tcp::reduce,
    )?;
    run.spent += begun.elapsed();
    let mut rates = BTreeMap::new();
    let mut all = Vec::new();
    for (setting, _) in LOOPS {
        if let Some(best) = best_linux(&full, Some(setting), Series::peak) {
            rates.insert(setting, best);
            all.extend(curves(config, &site, setting, best));
        }
    }
    let plan = run.options.plan(6);
    let cost = |curve: &Curve, load: &LoadSpec, measured: &Measured| {
        let saturation = *rates.get(curve.setting?)?;
        reduce(saturation, load, measured)
    };
    let series = run.sweep(&shortened(all), plan, cost)?;
    run.series = with_panels(series);
    for (setting, rate) in &rates {
        run.note(format!(
            "{setting}: the best Linux mode served {rate:.0} requests/s."
        ));
    }
    if !nginx(&site).is_there() {
        run.note("nginx: not installed (Debian's package nginx-light), so not measured.");
    }
    run.note(
        "A document of 1,300 bytes, no work a request, an open loop over 32 connections, or one \
         connection a request. Counted is what the server's processor was not idle, whatever ran \
         there. Driver work on the sender's processor, where an interrupt begins on a veth, is in \
         no system's figure but linux-timer's and linux-busy's, which poll the driver themselves, \
         as Tidewall does while it does not sleep.",
    );
    Ok(())
}

/// Reduces a load to CPU time per request, against the offered share of `saturation`.
fn reduce(saturation: f64, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let report = &measured.outcome.report;
    let offered = load.http.as_ref()?.rate? as f64;
    let served = report.http.as_ref()?.rate;
    let usage = measured.outcome.usage?;
    let mut values = tcp::values(report);
    values.insert("requests/s".to_owned(), served);
    values.insert("offered requests/s".to_owned(), offered);
    values.insert(
        "server's threads, µs".to_owned(),
        each(usage.threads, served),
    );
    values.insert(WAKE_UPS.to_owned(), usage.sleeps / served);
    (served > 0.0).then(|| Sample {
        x: (100.0 * offered / saturation).round(),
        y: each(1.0 - usage.idle, served),
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

/// Converts a share of a processor's time to µs for each of `served` requests/s.
fn each(share: f64, served: f64) -> f64 {
    1e6 * share / served
}

fn with_panels(mut series: Vec<Series>) -> Vec<Series> {
    let mut panels = Vec::new();
    for (figure, axis) in PANELS {
        for (setting, _) in LOOPS {
            let of_setting = series
                .iter()
                .filter(|series| series.setting.as_deref() == Some(setting));
            let name = format!("{setting}: {figure}");
            panels.extend(of_setting.map(|series| series.redrawn(figure, &name, axis, "")));
        }
    }
    series.extend(panels.into_iter().filter(|panel| !panel.points.is_empty()));
    series
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (setting, name, bound) in [(KEPT, "keep-alive", 0.9), (ONE, "one-request", 1.0)] {
        for share in SHARES {
            let cost = |series: &Series| series.at(share.into()).map(|point| point.y);
            let ours = find(series, "tidewall", Some(setting)).and_then(cost);
            claims.push(Claim::at_most(
                format!("{name}-{share}"),
                format!(
                    "{setting}, at {share} % of the best Linux mode's rate: CPU time per \
                     request, tidewall's over the best Linux mode's"
                ),
                ratio(ours, quickest_linux(series, Some(setting), cost)),
                bound,
            ));
            let steered = find(series, PROMPT.name(), Some(setting)).and_then(cost);
            claims.push(Claim::new(
                format!("{name}-{share}-prompt"),
                format!("the same, over {}'s", PROMPT.name()),
                ratio(ours, steered),
            ));
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_follow_from_the_curves() {
        let of = |system, setting, costs: [f64; 3]| {
            let points = [10.0, 25.0, 50.0].into_iter().zip(costs);
            curve(system, Some(setting), &points.collect::<Vec<_>>())
        };
        let series = [
            of("tidewall", KEPT, [9.0, 8.0, 7.0]),
            of("linux-rps", KEPT, [20.0, 16.0, 10.0]),
            of("linux-busy", KEPT, [15.0, 10.0, 14.0]),
            of("nginx", KEPT, [1.0, 1.0, 1.0]),
            of("tidewall", ONE, [50.0, 30.0, 20.0]),
            of("linux-rps", ONE, [40.0, 30.0, 40.0]),
        ];
        let claims = claims(&with_panels(series.to_vec()));
        let expected = [
            ("keep-alive-10", 0.6, Some(true)),
            ("keep-alive-10-prompt", 0.45, None),
            ("keep-alive-25", 0.8, Some(true)),
            ("keep-alive-25-prompt", 0.5, None),
            ("keep-alive-50", 0.7, Some(true)),
            ("keep-alive-50-prompt", 0.7, None),
            ("one-request-10", 1.25, Some(false)),
            ("one-request-10-prompt", 1.25, None),
            ("one-request-25", 1.0, Some(true)),
            ("one-request-25-prompt", 1.0, None),
            ("one-request-50", 0.5, Some(true)),
            ("one-request-50-prompt", 0.5, None),
        ];
        assert_eq!(claims.len(), expected.len());
        for (claim, (id, measured, holds)) in claims.iter().zip(expected) {
            assert_eq!((claim.id.as_str(), claim.holds), (id, holds));
            assert!((claim.measured.unwrap() - measured).abs() < 1e-9, "{id}");
        }
    }

    #[test]
    fn rates_are_shares_of_what_linux_serves() {
        let site = Site::new().unwrap();
        let all = curves(Config::default(), &site, ONE, 20_004.0);
        for curve in &all {
            let rates = curve.loads.iter().map(|load| {
                load.check().unwrap();
                let http = load.http.as_ref().unwrap();
                assert_eq!(http.reuse, Reuse::OneRequest);
                http.rate
            });
            let expected = [2_000, 5_001, 10_002].map(Some);
            assert_eq!(rates.collect::<Vec<_>>(), expected);
        }
        assert!(reduce(20_004.0, &all[0].loads[1], &Measured::default()).is_none());
        assert_eq!(each(0.2, 5_000.0), 40.0);
    }

    #[test]
    fn further_figures_have_panels() {
        let mut of_cost = curve("tidewall", Some(KEPT), &[(10.0, 9.0)]);
        of_cost.points[0].values.insert(WAKE_UPS.into(), 0.5);
        let all = with_panels(vec![of_cost]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].points[0].y, 0.5);
        assert_ne!(all[1].setting.as_deref(), Some(KEPT));
    }
}
