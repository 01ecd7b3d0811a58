//! LRP, Figure 5: HTTP against the rate of a SYN flood to another listening port, on
//! which no server accepts. Then what the paper could not do: the same flood at the
//! server's own port.
//!
//! The flood's sources are scattered over a network whose answers are routed to the
//! client's side and end there. Linux runs with SYN cookies, its default. It runs twice
//! more behind what its operators use: a limit of SYNs in the driver, and the kernel's
//! SYN proxy. At the server's own port two things count: the connections that existed
//! before, and whether new clients still connect.

use std::time::Duration;

use tidewall_load::{LoadSpec, ProbeSpec, Reuse, SenderKind};

use super::lrp_http_blast::WORK;
use super::select::redrawn;
use super::tcp::{
    self, CONNECTED, DOCUMENT, DUMMY_PORT, HTTP_PORT, Site, client, http_load, kept, later,
    summarize,
};
use super::{Experiment, Run, USUAL, best_linux, ratio, scaled};
use crate::bench::{SYN_LIMIT, flood, server};
use crate::result::{Claim, Series, find};
use crate::sweep::Curve;
use crate::system::System;
use crate::testbed::{Config, more_clients};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-syn-flood",
    paper: "LRP, Figure 5",
    about: "a web server beside a SYN flood to another port, and to its own",
    x: "SYN segments/s offered",
    y: "requests/s",
    config,
    senders: &["skb", "frame", "HTTP client on kernel sockets"],
    measure,
    claims,
    ..USUAL
};

/// Returns a test bed whose client does not receive the answers to a flood. The program
/// that drops them costs the client a copy of each reply.
fn config() -> Config {
    Config {
        xdp_sink: true,
        ..Config::default()
    }
}

const FRAMES: &str = "frame sender";
const OWN: &str = "flood at the server's own port, connections kept from before";
const NEW: &str = "flood at the server's own port, new clients";
/// Further curves of the flood at the dummy port: response times.
const TIMES: &str = "flood at another port, response times";
const P99: &str = "p99 µs";
/// The flood at which the claims are judged, SYN segments/s.
const JUDGED: f64 = 400_000.0;
/// Share of the unflooded rate to be kept beside a flood of a dummy port.
const KEPT: f64 = 0.85;
/// Longest 99th percentile of response times there, µs.
const P99_MAX: f64 = 20_000.0;
/// Required ratio over the best Linux, the defended ones included. The goal was 0.70 of
/// the unflooded rate, and Linux behind a limit kept 0.59 when that was first measured.
const VS_LINUX: f64 = 1.2;

const FULL: [u64; 7] = [0, 10_000, 50_000, 100_000, 200_000, 400_000, 600_000];
const QUICK: [u64; 3] = [0, 100_000, 400_000];
const OWN_FULL: [u64; 4] = [0, 100_000, 400_000, 600_000];
const OWN_QUICK: [u64; 2] = [0, 400_000];

/// Systems of the first sweep.
const SYSTEMS: [System; 8] = [
    System::Tidewall,
    System::SoftLrp,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
    System::LinuxXdp,
    System::LinuxSynproxy,
];

/// Time in which a new client must be connected.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time during which new clients begin.
const BEGIN_FOR: Duration = Duration::from_millis(1000);
/// New clients per second.
const NEW_CLIENTS: u64 = 200;

fn curves(systems: &[System], config: Config, site: &Site, quick: bool) -> Vec<Curve> {
    let (dummy, own): (&[u64], &[u64]) = if quick {
        (&QUICK, &OWN_QUICK)
    } else {
        (&FULL, &OWN_FULL)
    };
    let load = |kind: SenderKind, port: u16, rate: u64| LoadSpec {
        blast: (rate > 0).then(|| later(flood(kind, port, None), rate)),
        ..http_load(config, client(Reuse::KeepAlive))
    };
    let judged = |load: LoadSpec| LoadSpec {
        probe: Some(ProbeSpec {
            rate: NEW_CLIENTS,
            timeout: TIMEOUT,
            sources: more_clients(),
            ..ProbeSpec::new(server(HTTP_PORT), DOCUMENT)
        }),
        duration: TIMEOUT + BEGIN_FOR,
        ..load
    };
    let at_dummy = |kind, rates: &[u64]| -> Vec<LoadSpec> {
        let load = |&rate: &u64| load(kind, DUMMY_PORT, rate);
        rates.iter().map(load).collect()
    };
    let mut curves = Vec::new();
    for &system in systems {
        // The claims are about tidewall and Linux.
        if quick && system.needs_real_time() {
            continue;
        }
        let curve = |loads| Curve::over_tcp(system, site.server(WORK), loads);
        curves.push(curve(at_dummy(SenderKind::Skb, dummy)));
        // Without XDP and GRO a veth accepts no frames, so there is no RPS here.
        if system != System::LinuxRps && !system.needs_real_time() {
            curves.push(Curve {
                setting: Some(FRAMES),
                ..curve(at_dummy(SenderKind::Frame, &[0, JUDGED as u64]))
            });
        }
        // Longer than real-time threads may occupy the processor.
        if !system.needs_real_time() {
            let loads = own.iter().map(|&rate| {
                let load = load(SenderKind::Skb, HTTP_PORT, rate);
                if rate > 0 { judged(load) } else { load }
            });
            curves.push(Curve {
                setting: Some(OWN),
                ..curve(loads.collect())
            });
        }
    }
    curves
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let site = Site::new()?;
    let systems = run.bench.possible(&SYSTEMS);
    let curves = curves(&systems, run.config(), &site, run.options.quick);
    run.series = run.sweep(&curves, run.options.plan(5), tcp::reduce)?;
    summarize(&mut run.series, |series| series.at(JUDGED));
    run.reference = reference(&run.series);
    let connected: Vec<Series> = run.series.iter().filter_map(new_clients).collect();
    let times: Vec<Series> = run.series.iter().filter_map(response_times).collect();
    run.series.extend(connected);
    run.series.extend(times);
    run.note(format!(
        "32 connections in a closed loop, kept, a document of 1,300 bytes, {WORK} multiplications \
         a request; the flood begins once they stand, from the same thread. The port of the first \
         curves listens and nobody accepts there."
    ));
    run.note(format!(
        "At the server's own port {NEW_CLIENTS} new clients/s begin for {BEGIN_FOR:?} and have \
         {TIMEOUT:?} to be connected."
    ));
    run.note(format!(
        "The systems do different work for a SYN: at the dummy port Tidewall answers none, as \
         nobody accepts there, and Linux answers each with a cookie; linux-xdp lets {SYN_LIMIT}/s \
         to a port pass and drops the others, those of new clients too."
    ));
    Ok(())
}

/// Returns the share of new clients that connected, of every system.
fn new_clients(series: &Series) -> Option<Series> {
    let shares = redrawn(series, CONNECTED, NEW, "share of new clients connected");
    (series.setting.as_deref() == Some(OWN) && !shares.points.is_empty()).then_some(shares)
}

/// Returns response times beside the flood at the dummy port, of every system.
fn response_times(series: &Series) -> Option<Series> {
    let axis = "99th percentile of the response time, µs";
    let times = redrawn(series, P99, TIMES, axis);
    (series.setting.is_none() && !times.points.is_empty()).then_some(times)
}

/// Returns the points stated in the paper's text: shares of each system's own peak,
/// scaled so that BSD's livelock lies where Linux's would begin.
fn reference(series: &[Series]) -> Vec<Series> {
    let Some(peak) = find(series, "soft-lrp", None).and_then(Series::peak) else {
        return Vec::new();
    };
    // Druschel and Banga 1996, section "Experimental Results", Figure 5: BSD livelocks
    // near 10,000 SYN/s, SOFT-LRP keeps almost half at 20,000. Rates are drawn at 20
    // times theirs.
    const SCALE: f64 = 20.0;
    let given = [
        ("soft-lrp", [(0.0, 1.0), (20_000.0, 0.48)]),
        ("bsd", [(0.0, 1.0), (10_000.0, 0.0)]),
    ];
    scaled(&format!("the paper's, × {SCALE}"), &given, (SCALE, peak))
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let ours = |setting| find(series, "tidewall", setting);
    let at = |series: &Series| series.at(JUDGED).map(|point| point.y.max(1.0));
    let kept_of = |setting| ours(setting).and_then(|series| kept(series, series.at(JUDGED)));
    vec![
        Claim::at_least(
            "dummy-skb",
            "tidewall's requests/s beside 400,000 SYN/s to another port, over those \
             beside none",
            kept_of(None),
            KEPT,
        ),
        Claim::at_most(
            "dummy-p99",
            "the same: tidewall's 99th percentile of the response time of served requests, µs",
            ours(None).and_then(|series| series.at(JUDGED)?.values.get(P99).copied()),
            P99_MAX,
        ),
        Claim::at_least(
            "dummy-frames",
            "the same with frames as from a network card",
            kept_of(Some(FRAMES)),
            KEPT,
        ),
        Claim::at_least(
            "dummy-vs-linux",
            "beside that flood (skb): tidewall's requests/s over the best Linux's, the \
             defended ones included",
            ratio(ours(None).and_then(at), best_linux(series, None, at)),
            VS_LINUX,
        ),
        Claim::at_least(
            "own-kept",
            "400,000 SYN/s at the server's own port: tidewall's requests/s on \
             connections from before, over those beside none",
            kept_of(Some(OWN)),
            0.5,
        ),
        Claim::at_least(
            "own-new-clients",
            "beside that flood: share of new clients connected within 3 s, tidewall",
            ours(Some(OWN)).and_then(|series| series.at(JUDGED)?.values.get(CONNECTED).copied()),
            0.99,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    fn series() -> Vec<Series> {
        let mut own = curve("tidewall", Some(OWN), &[(0.0, 4e4), (4e5, 2.4e4)]);
        own.points[1].values.insert(CONNECTED.into(), 0.995);
        let mut dummy = curve("tidewall", None, &[(0.0, 4e4), (3.9e5, 3.6e4)]);
        dummy.points[1].values.insert(P99.into(), 5_000.0);
        vec![
            dummy,
            curve("soft-lrp", None, &[(0.0, 4e4), (4e5, 2e4)]),
            curve("linux-rps", None, &[(0.0, 4e4), (4e5, 5e3)]),
            curve("linux-timer", None, &[(0.0, 4e4), (4e5, 0.0)]),
            curve("tidewall", Some(FRAMES), &[(0.0, 4e4), (4e5, 3.6e4)]),
            curve("linux-timer", Some(FRAMES), &[(0.0, 4e4), (4e5, 3.9e4)]),
            own,
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("dummy-skb", 0.9),
            ("dummy-p99", 5_000.0),
            ("dummy-frames", 0.9),
            ("dummy-vs-linux", 7.2),
            ("own-kept", 0.6),
            ("own-new-clients", 0.995),
        ];
        all_hold(&claims, &expected);
    }

    #[test]
    fn the_defended_linux_is_what_is_compared_with() {
        let mut series = series();
        series.push(curve("linux-xdp", None, &[(0.0, 4.5e4), (4e5, 3.1e4)]));
        let claims = claims(&series);
        assert_eq!(claims[3].id, "dummy-vs-linux");
        assert_eq!(claims[3].holds, Some(false), "3.6e4 over 3.1e4");
    }

    #[test]
    fn new_clients_of_every_system_have_a_panel() {
        let mut linux = curve("linux-xdp", Some(OWN), &[(0.0, 4e4), (4e5, 2.4e4)]);
        assert!(new_clients(&linux).is_none());
        linux.points[1].values.insert(CONNECTED.into(), 0.05);
        let shares = new_clients(&linux).unwrap();
        assert_eq!((shares.points.len(), shares.points[0].y), (1, 0.05));
        linux.setting = None;
        assert!(new_clients(&linux).is_none());
    }

    #[test]
    fn response_times_have_a_panel() {
        let series = series();
        let times: Vec<Series> = series.iter().filter_map(response_times).collect();
        assert_eq!(times.len(), 1, "of the dummy port alone");
        assert_eq!(times[0].points[0].y, 5_000.0);
        assert_eq!(times[0].setting.as_deref(), Some(TIMES));
    }

    #[test]
    fn clients_that_were_not_tried_show_nothing() {
        let mut series = series();
        series[6].points[1].values.clear();
        let own = claims(&series).pop().unwrap();
        assert!(own.holds == Some(false) && own.measured.is_none());
    }

    #[test]
    fn the_papers_points_are_scaled_to_our_soft_lrp() {
        let reference = reference(&series());
        assert_eq!(reference[0].points[1].x, 400_000.0);
        assert!((reference[0].points[1].y - 0.48 * 4e4).abs() < 1.0);
        assert!(super::reference(&[]).is_empty());
    }

    #[test]
    fn every_load_is_valid_and_new_clients_are_judged_under_the_flood() {
        let site = Site::new().unwrap();
        for quick in [false, true] {
            let curves = curves(&SYSTEMS, Config::default(), &site, quick);
            for curve in &curves {
                assert!(curve.loads[0].blast.is_none() && curve.loads[0].probe.is_none());
                for load in &curve.loads {
                    load.check().unwrap();
                    let own = curve.setting == Some(OWN) && load.blast.is_some();
                    assert_eq!(load.probe.is_some(), own);
                }
            }
            let defended = [System::Tidewall, System::LinuxXdp, System::LinuxSynproxy];
            for system in [&defended[..], &System::LINUX].concat() {
                for setting in [None, Some(OWN)] {
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
