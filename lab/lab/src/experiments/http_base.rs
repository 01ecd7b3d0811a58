//! A web server without a flood: requests/s with persistent connections and with one
//! connection per request, response times below saturation, and the memory of idle
//! connections.
//!
//! The server does a few microseconds of work for each request, so that it is heavier
//! than the client, a program on kernel sockets under every system.

use std::sync::atomic::AtomicU8;

use tidewall_device::demux::layout::FlowEntry;
use tidewall_load::{HttpSpec, IdleSpec, LoadSpec, Reuse};

use super::tcp::{
    self, DOCUMENT, HTTP_PORT, KEPT, ONE, SYSTEMS, Site, client, http_load, saturating,
};
use super::{Experiment, Run, best_linux, quickest_linux, ratio};
use crate::bench::{Held, Measured, open_files, server};
use crate::result::{Claim, Series, find};
use crate::sweep::{Better, Curve, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config, more_clients};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "http-base",
    paper: "LRP, HTTP (unloaded)",
    about: "a web server unloaded: requests/s, response times, idle connections",
    x: "idle connections",
    y: "requests/s",
    config: Config::default,
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["HTTP client on kernel sockets, epoll"],
    measure,
    claims,
};

/// Multiplications per request: 2 to 3 µs.
const WORK: u32 = 2_500;
const TIMES: &str = "response time at 70 % of what the best Linux mode serves";
const SHARE: f64 = 0.7;
const IDLE: &str = "32 busy connections beside idle ones";
/// Idle connections of the claims.
const MANY: u32 = 100_000;
const BYTES: &str = "bytes each";
/// A server on Linux has one file for each connection, and others.
const OTHER_FILES: u64 = 2_000;

/// Returns response times at `rate` requests/s.
fn times(config: Config, site: &Site, rate: f64) -> Vec<Curve> {
    let http = HttpSpec {
        rate: Some((rate as u64).max(1)),
        ..client(Reuse::KeepAlive)
    };
    let curve = |system| Curve {
        setting: Some(TIMES),
        y: Some("99th percentile of the response time, µs"),
        better: Better::Lower,
        ..Curve::over_tcp(
            system,
            site.server(WORK),
            vec![http_load(config, http.clone())],
        )
    };
    SYSTEMS.into_iter().map(curve).collect()
}

/// Returns busy connections without idle ones and beside them; under Linux, beside as
/// many as the file limit allows.
fn beside_idle(config: Config, site: &Site, files: u64) -> Vec<Curve> {
    let load = |connections: u32| LoadSpec {
        idle: (connections > 0).then(|| IdleSpec {
            path: DOCUMENT.to_owned(),
            sources: more_clients(),
            ..IdleSpec::new(server(HTTP_PORT), connections)
        }),
        ..http_load(config, client(Reuse::KeepAlive))
    };
    let files = u32::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(u32::MAX);
    [
        (System::Tidewall, MANY),
        (System::LinuxTimer, MANY.min(files)),
    ]
    .into_iter()
    .map(|(system, many)| Curve {
        setting: Some(IDLE),
        ..Curve::over_tcp(system, site.server(WORK), vec![load(0), load(many)])
    })
    .collect()
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let site = Site::new()?;
    // Three sweeps share a minute.
    let plan = run.options.plan(5).shared(3);
    let mut series = run.sweep(&saturating(SYSTEMS, config, &site, WORK), plan, reduce)?;
    if let Some(best) = best_linux(&series, Some(KEPT), Series::peak) {
        series.extend(run.sweep(&times(config, &site, SHARE * best), plan, reduce)?);
    }
    series.extend(run.sweep(&beside_idle(config, &site, open_files()), plan, reduce)?);
    run.series = series;
    run.note(format!(
        "A document of 1,300 bytes; {WORK} multiplications a request; a closed loop of 32 \
         connections, or an open one where response times are shown."
    ));
    run.note(
        "What idle connections take is how much the server's process grew, for Tidewall also their \
         entries of the flow table, which as a whole is there before (13 MB), for Linux also half \
         of what the kernel's objects grew, the other half being the client's; and one process on \
         Linux has no more of them than it may have open files.",
    );
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let mut sample = tcp::reduce(curve, load, measured)?;
    if curve.better == Better::Lower {
        sample.values.insert("requests/s".to_owned(), sample.y);
        sample.y = *sample.values.get("p99 µs")?;
    }
    if let Some(held) = measured.held {
        sample.x = held.connections.into();
        let each = bytes_each(held, curve.system.is_linux());
        sample.values.insert(BYTES.to_owned(), each);
    }
    Some(sample)
}

/// Returns the server's bytes per idle connection. The driver's flow table exists before
/// any connection, so an entry is not part of the process's growth.
fn bytes_each(held: Held, linux: bool) -> f64 {
    let each = |bytes: u64| bytes as f64 / f64::from(held.connections);
    if linux {
        return each(held.process + held.kernel / 2);
    }
    each(held.process) + size_of::<FlowEntry>() as f64 + size_of::<AtomicU8>() as f64
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let peak = |setting: &'static str| {
        ratio(
            find(series, "tidewall", Some(setting)).and_then(Series::peak),
            best_linux(series, Some(setting), Series::peak),
        )
    };
    let time = |series: &Series| series.last().map(|point| point.y);
    let idle = find(series, "tidewall", Some(IDLE));
    let many = idle.and_then(|series| series.at(MANY.into()));
    vec![
        Claim::at_least(
            "keep-alive-vs-linux",
            "connections kept: tidewall's requests/s over the best Linux mode's",
            peak(KEPT),
            1.3,
        ),
        Claim::at_least(
            "one-request-vs-linux",
            "one connection per request: tidewall's requests/s over the best Linux mode's",
            peak(ONE),
            1.5,
        ),
        Claim::at_most(
            "p99-vs-linux",
            "99th percentile of the response time at 70 % of the best Linux mode's \
             rate: tidewall's over the best Linux mode's",
            ratio(
                find(series, "tidewall", Some(TIMES)).and_then(time),
                quickest_linux(series, Some(TIMES), time),
            ),
            0.8,
        ),
        Claim::at_most(
            "idle-memory",
            "100,000 idle connections: bytes by which tidewall's server grew, each, and \
             its entry of the driver's flow table",
            many.and_then(|point| point.values.get(BYTES).copied()),
            1536.0,
        ),
        Claim::at_least(
            "idle-beside",
            "32 busy connections beside them: tidewall's requests/s over those without",
            ratio(
                many.map(|point| point.y),
                idle.and_then(|series| series.at(0.0)).map(|point| point.y),
            ),
            0.95,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    fn series() -> Vec<Series> {
        let mut idle = curve("tidewall", Some(IDLE), &[(0.0, 9e4), (1e5, 8.7e4)]);
        idle.points[1].values.insert(BYTES.into(), 1200.0);
        vec![
            curve("tidewall", Some(KEPT), &[(0.0, 9e4)]),
            curve("linux-rps", Some(KEPT), &[(0.0, 6e4)]),
            curve("linux-timer", Some(KEPT), &[(0.0, 5e4)]),
            curve("tidewall", Some(ONE), &[(0.0, 4e4)]),
            curve("linux-busy", Some(ONE), &[(0.0, 2e4)]),
            curve("tidewall", Some(TIMES), &[(0.0, 90.0)]),
            curve("linux-rps", Some(TIMES), &[(0.0, 150.0)]),
            curve("linux-busy", Some(TIMES), &[(0.0, 120.0)]),
            idle,
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("keep-alive-vs-linux", 1.5),
            ("one-request-vs-linux", 2.0),
            ("p99-vs-linux", 0.75),
            ("idle-memory", 1200.0),
            ("idle-beside", 8.7 / 9.0),
        ];
        all_hold(&claims, &expected);
    }

    #[test]
    fn an_idle_connection_costs_its_flow_entry_as_well() {
        let held = Held {
            connections: 1_000,
            open: 1_000,
            process: 1_000_000,
            kernel: 400_000,
        };
        assert_eq!(bytes_each(held, false), 1_049.0);
        assert_eq!(bytes_each(held, true), 1_200.0);
    }

    #[test]
    fn fewer_idle_connections_show_nothing() {
        let mut series = series();
        series[8].points[1].x = 50_000.0;
        let claims = claims(&series);
        assert!(claims[3].measured.is_none() && claims[4].holds == Some(false));
    }

    #[test]
    fn every_load_is_valid() {
        let site = Site::new().unwrap();
        let config = Config::default();
        let mut all = saturating(SYSTEMS, config, &site, WORK);
        all.extend(times(config, &site, 35_000.4));
        all.extend(beside_idle(config, &site, 20_000));
        for load in all.iter().flat_map(|curve| &curve.loads) {
            load.check().unwrap();
        }
        let idle = |system| {
            let curve = all
                .iter()
                .find(|curve| curve.setting == Some(IDLE) && curve.system == system);
            curve.unwrap().loads[1].idle.as_ref().unwrap().connections
        };
        assert_eq!(
            (idle(System::Tidewall), idle(System::LinuxTimer)),
            (100_000, 18_000)
        );
    }
}
