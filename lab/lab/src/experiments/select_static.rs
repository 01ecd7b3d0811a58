//! Banga and Mogul, Figure 7: a server of files. Shows response time and idle processor
//! against the rate of requests, without other connections (naive) and beside 750 without
//! requests (realistic). Also tests whether the rate that S-clients offer depends on the
//! server.

use std::time::Duration;

use tidewall_load::{LoadSpec, SClientSpec};

use super::select::{
    CLASSICAL, CLASSICAL_NAME, COLD, CONNECTIONS, CONTESTANTS, Contestant, Document, IDLE,
    IDLE_AXIS, LARGE, LINEAR, LINUX_EPOLL, LINUX_SELECT, RATE, SELECT, SELECT_NAME, SELECTOR,
    SELECTOR_NAME, SMALL, Servers, TIME_AXIS, at_lowest, at_rate, capacity, describe, redrawn,
    reduce, s_clients, saturation, sweeps,
};
use super::select_cold::WORK;
use super::{Experiment, Run, USUAL, ratio};
use crate::result::{Claim, Series, find};
use crate::sweep::Curve;
use crate::testbed::{Config, more_clients};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "select-static",
    paper: "select, Figure 7",
    about: "a web server the same way; the rate that S-clients offer a throttled server",
    x: "requests/s offered",
    y: TIME_AXIS,
    senders: &SENDERS,
    measure,
    claims,
    ..USUAL
};

/// The names of a curve's two panels: response times, idle processor.
pub(super) type Panels = (&'static str, &'static str);

pub(super) const NAIVE_SMALL: Panels = ("1,259 bytes, naive", "1,259 bytes, naive: idle processor");
pub(super) const REALISTIC_SMALL: Panels = (
    "1,259 bytes, realistic (750 cold connections)",
    "1,259 bytes, realistic: idle processor",
);
pub(super) const NAIVE_LARGE: Panels = ("8,192 bytes, naive", "8,192 bytes, naive: idle processor");
pub(super) const REALISTIC_LARGE: Panels = (
    "8,192 bytes, realistic (750 cold connections)",
    "8,192 bytes, realistic: idle processor",
);
pub(super) const PANELS: [Panels; 4] = [NAIVE_SMALL, REALISTIC_SMALL, NAIVE_LARGE, REALISTIC_LARGE];

/// Rates, as shares of what the selector serves without cold connections. The claims on
/// idle time are judged at the first.
const QUICK: [f64; 2] = [0.25, 0.6];
const FULL: [f64; 5] = [0.25, 0.4, 0.55, 0.7, 0.85];

const THROTTLED: &str = "S-clients at ten times what the server can do";
/// Multiplications of the throttled server: they take 200 µs.
const THROTTLE: u32 = 195_000;
/// Its capacity, and the offered rate, connections/s.
const CAN: u64 = 5_000;
const OFFERED: u64 = 10 * CAN;

/// Returns a curve of S-clients at `rates`, ending at saturation.
pub(super) fn rising(
    config: Config,
    servers: &Servers,
    contestant: Contestant,
    (document, cold, panels): (Document, u32, Panels),
    rates: &[f64],
) -> Curve {
    let mut loads: Vec<LoadSpec> = rates
        .iter()
        .map(|&rate| at_rate(config, document, rate as u64, cold))
        .collect();
    loads.push(servers.saturating(config, document, cold));
    servers.curve(contestant, panels.0, loads)
}

/// Returns the curves and their rates, and how often each is measured when quick.
/// `capacity` is that of the selector with the smaller document, requests/s.
pub(super) fn groups(
    config: Config,
    servers: &Servers,
    quick: bool,
    capacity: f64,
) -> Vec<(Vec<Curve>, u32)> {
    let fractions: &[f64] = if quick { &QUICK } else { &FULL };
    let rates: Vec<f64> = fractions.iter().map(|part| part * capacity).collect();
    let curve = |contestant, what, rates: &[f64]| rising(config, servers, contestant, what, rates);
    let (naive, realistic) = ((SMALL, 0, NAIVE_SMALL), (SMALL, COLD, REALISTIC_SMALL));
    let large = (LARGE, COLD, REALISTIC_LARGE);
    let program = servers
        .has(Contestant::Program)
        .then_some(Contestant::Program);
    if quick {
        let lowest = rates.get(..1).unwrap_or_default();
        let judged = vec![
            curve(SELECTOR, naive, lowest),
            curve(SELECTOR, realistic, lowest),
            curve(SELECT, realistic, lowest),
            curve(CLASSICAL, realistic, lowest),
        ];
        let mut others: Vec<Curve> = [LINEAR, LINUX_EPOLL, LINUX_SELECT]
            .into_iter()
            .chain(program)
            .map(|contestant| curve(contestant, realistic, lowest))
            .collect();
        others.extend([SELECT, CLASSICAL].map(|contestant| curve(contestant, large, &[])));
        return vec![(judged, 2), (others, 1)];
    }
    let mut curves = Vec::new();
    for contestant in CONTESTANTS.into_iter().chain(program) {
        for what in [naive, realistic, (LARGE, 0, NAIVE_LARGE), large] {
            curves.push(curve(contestant, what, &rates));
        }
    }
    vec![(curves, 5)]
}

/// Returns a server whose capacity is a tenth of the offered rate.
fn throttled(config: Config) -> anyhow::Result<(Servers, LoadSpec)> {
    let servers = Servers::of_files(THROTTLE)?;
    let s_clients = SClientSpec {
        sources: more_clients(),
        ..s_clients(SMALL, OFFERED)
    };
    let load = LoadSpec {
        s_clients: Some(s_clients),
        warm_up: Duration::from_millis(600),
        duration: Duration::from_millis(1_600),
        ..at_rate(config, SMALL, OFFERED, 0)
    };
    Ok((servers, load))
}

/// Adds the panels of idle time.
pub(super) fn with_idle(series: Vec<Series>) -> Vec<Series> {
    let mut idle = Vec::new();
    for (times, panel) in PANELS {
        let of_panel = series
            .iter()
            .filter(|series| series.setting.as_deref() == Some(times));
        idle.extend(of_panel.map(|series| redrawn(series, IDLE, panel, IDLE_AXIS)));
    }
    let mut all = series;
    all.extend(idle.into_iter().filter(|series| !series.points.is_empty()));
    all
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (config, quick) = (run.config(), run.options.quick);
    let servers = Servers::of_files(WORK)?;
    let (slow, load) = throttled(config)?;
    let capacity = capacity(run, &servers)?;
    let mut groups = groups(config, &servers, quick, capacity);
    let curve = slow.curve(SELECTOR, THROTTLED, vec![load]);
    groups.push((vec![curve], if quick { 1 } else { 5 }));
    run.series = with_idle(sweeps(run, &groups, reduce)?);
    run.note(format!(
        "Rates are parts of {capacity:.0} requests/s, what the selector serves at saturation. S-clients with \
         T = 500 ms; a curve's last point is saturation, a closed loop of {CONNECTIONS} clients. One \
         connection a request, {WORK} multiplications a request (nginx and Squid make none). The throttled server makes {THROTTLE}: about \
         {CAN} requests/s."
    ));
    run.described = Some(describe(&servers));
    Ok(())
}

pub(super) const SENDERS: [&str; 2] = [
    "S-clients on kernel sockets, epoll",
    "load-adding clients on kernel sockets",
];

/// Returns the claims that also apply to the proxy: idle time that the selector keeps,
/// and the throughput of the new select and allocator over the old ones, for both sizes.
pub(super) fn common_claims(series: &[Series]) -> [Claim; 3] {
    let idle = |panels: Panels| at_lowest(series, SELECTOR_NAME, panels.0, IDLE);
    let gain = |id, text, panels: Panels| {
        let served = |system| saturation(series, system, panels.0);
        let gain = ratio(served(SELECT_NAME), served(CLASSICAL_NAME));
        Claim::above(id, text, gain, 1.0)
    };
    [
        Claim::at_least(
            "idle-kept",
            "selector: idle processor at 25 % of saturation with 750 cold connections \
             over that with none",
            ratio(idle(REALISTIC_SMALL), idle(NAIVE_SMALL)),
            0.97,
        ),
        gain(
            "gain-1259",
            "750 cold connections: saturation throughput of the new select and \
             allocator over the classical and linear ones, 1,259 bytes",
            REALISTIC_SMALL,
        ),
        gain("gain-8192", "the same, 8,192 bytes", REALISTIC_LARGE),
    ]
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let idle = |system| at_lowest(series, system, REALISTIC_SMALL.0, IDLE);
    let throttled = find(series, SELECTOR_NAME, Some(THROTTLED)).and_then(Series::last);
    // A server that answers more is not throttled, and shows nothing.
    let throttled = throttled.filter(|point| {
        let served = point.values.get(RATE).copied().unwrap_or(0.0);
        served > 0.0 && served < 1.2 * CAN as f64
    });
    let [kept, small, large] = common_claims(series);
    vec![
        kept,
        Claim::above(
            "idle-gain",
            "the same rate, 750 cold connections: idle processor of the new select and \
             allocator over that of the classical select and linear allocator (the \
             paper: 88 % over 16 %)",
            ratio(idle(SELECT_NAME), idle(CLASSICAL_NAME)),
            1.0,
        )
        .paper(5.5),
        small.paper(1.58),
        large.paper(1.37),
        Claim::at_most(
            "s-clients",
            "S-clients asked for 50,000 connections/s at a server that can do 5,000: \
             relative distance of the offered rate from that",
            throttled.map(|point| (point.x / OFFERED as f64 - 1.0).abs()),
            0.02,
        ),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::select::LOOP;
    use super::*;
    use crate::result::tests::{all_hold, curve};

    /// Returns a curve whose points have a rate and an idle processor.
    pub(crate) fn risen(system: &str, panels: Panels, points: &[(f64, f64)]) -> Series {
        let mut series = curve(system, Some(panels.0), &[]);
        for &(rate, idle) in points {
            let mut one = curve(system, None, &[(rate, 100.0)]);
            let point = &mut one.points[0];
            point.values.insert(RATE.into(), rate);
            point.values.insert(IDLE.into(), idle);
            // A busy processor: a closed loop.
            if idle == 0.0 {
                point.values.insert(LOOP.into(), 8.0);
            }
            series.points.append(&mut one.points);
        }
        series
    }

    fn series() -> Vec<Series> {
        let mut slow = curve(SELECTOR_NAME, Some(THROTTLED), &[(49_500.0, 9e5)]);
        slow.points[0].values.insert(RATE.into(), 4_900.0);
        vec![
            risen(SELECTOR_NAME, NAIVE_SMALL, &[(7e3, 70.0), (3e4, 0.0)]),
            risen(SELECTOR_NAME, REALISTIC_SMALL, &[(7e3, 69.3), (3e4, 0.0)]),
            risen(SELECT_NAME, REALISTIC_SMALL, &[(7e3, 60.0), (2.8e4, 0.0)]),
            risen(
                CLASSICAL_NAME,
                REALISTIC_SMALL,
                &[(7e3, 20.0), (1.4e4, 0.0)],
            ),
            risen(SELECT_NAME, REALISTIC_LARGE, &[(2.4e4, 0.0)]),
            risen(CLASSICAL_NAME, REALISTIC_LARGE, &[(1.6e4, 0.0)]),
            slow,
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("idle-kept", 0.99),
            ("idle-gain", 3.0),
            ("gain-1259", 2.0),
            ("gain-8192", 1.5),
            ("s-clients", 0.01),
        ];
        all_hold(&claims, &expected);
    }

    #[test]
    fn a_server_that_is_not_throttled_shows_nothing() {
        let mut series = series();
        series[6].points[0].values.insert(RATE.into(), 30_000.0);
        assert_eq!(claims(&series)[4].measured, None);
    }

    #[test]
    fn idle_time_has_panels_of_its_own() {
        let all = with_idle(series());
        let idle = find(&all, SELECT_NAME, Some(REALISTIC_SMALL.1)).unwrap();
        assert_eq!((idle.points[0].x, idle.points[0].y), (7e3, 60.0));
        // The curve of the throttled server is not drawn.
        assert_eq!(all.len(), 2 * 7 - 1);
    }

    #[test]
    fn every_load_is_valid() {
        let servers = Servers::of_files(WORK).unwrap();
        for quick in [false, true] {
            let groups = groups(Config::default(), &servers, quick, 30_000.0);
            let curves: Vec<&Curve> = groups.iter().flat_map(|(curves, _)| curves).collect();
            for curve in &curves {
                for load in &curve.loads {
                    load.check().unwrap();
                }
                assert!(curve.loads.last().unwrap().http.is_some(), "saturation");
            }
            for panels in [REALISTIC_SMALL, REALISTIC_LARGE] {
                for name in [SELECT_NAME, CLASSICAL_NAME] {
                    assert!(
                        curves
                            .iter()
                            .any(|c| c.name() == name && c.setting == Some(panels.0))
                    );
                }
            }
        }
        let (_, load) = throttled(Config::default()).unwrap();
        load.check().unwrap();
        assert_eq!(load.s_clients.unwrap().rate, 50_000);
    }
}
