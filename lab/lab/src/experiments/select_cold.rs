//! Banga and Mogul, §5.2: saturation throughput against the number of connections without
//! requests; 0 to 2,000 there, up to 100,000 here.

use super::select::{
    CLASSICAL, CLASSICAL_NAME, CONNECTIONS, Contestant, Document, EPOLL, LARGE, LINEAR,
    LINUX_EPOLL, LINUX_SELECT, SELECT, SELECT_NAME, SELECTOR, SELECTOR_NAME, SMALL, Servers,
    cold_on_linux, describe, reduce_by_cold, sweeps,
};
use super::{Experiment, Run, USUAL, ratio};
use crate::result::{Claim, Series, find, merge};
use crate::sweep::{Better, Curve};
use crate::testbed::Config;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "select-cold",
    paper: "select, §5.2",
    about: "a busy web server beside 0 to 100,000 connections that ask for nothing",
    x: "cold connections",
    y: "requests/s at saturation",
    senders: &[
        "HTTP client on kernel sockets, epoll",
        "load-adding clients on kernel sockets",
    ],
    measure,
    claims,
    ..USUAL
};

/// Multiplications per request: just enough to make the server slower than its client, so
/// that the server's throughput is measured.
pub(super) const WORK: u32 = 10_000;
const SMALL_DOCUMENT: &str = "1,259 bytes";
const LARGE_DOCUMENT: &str = "8,192 bytes";
/// Connections beside which the claims are judged.
const FEW: u32 = 750;
const PAPERS: u32 = 2_000;
const MANY: u32 = 100_000;

/// Returns groups of curves and how often each is measured when quick: first those of the
/// claims.
fn groups(config: Config, servers: &Servers, quick: bool) -> Vec<(Vec<Curve>, u32)> {
    let curve = |contestant, document: Document, cold: &[u32]| {
        let setting = if document == SMALL {
            SMALL_DOCUMENT
        } else {
            LARGE_DOCUMENT
        };
        let most = |&cold: &u32| match contestant {
            Contestant::Tidewall(_) => cold,
            Contestant::Linux(_) | Contestant::Program => cold_on_linux(cold),
        };
        let mut cold: Vec<u32> = cold.iter().map(most).collect();
        cold.dedup();
        let loads = cold
            .iter()
            .map(|&cold| servers.saturating(config, document, cold));
        Curve {
            better: Better::Higher,
            ..servers.curve(contestant, setting, loads.collect())
        }
    };
    // The cost of the classical select depends on how many it finds ready.
    let crowd = |clients, setting, cold: &[u32]| {
        [SELECT, CLASSICAL].map(|contestant| {
            let load = |&cold: &u32| servers.loop_of(clients, config, SMALL, cold);
            Curve {
                better: Better::Higher,
                ..servers.curve(contestant, setting, cold.iter().map(load).collect())
            }
        })
    };
    let program = servers
        .has(Contestant::Program)
        .then_some(Contestant::Program);
    if quick {
        let mut judged = vec![
            curve(SELECTOR, SMALL, &[0, FEW, PAPERS]),
            curve(SELECT, SMALL, &[0, FEW, PAPERS]),
            curve(CLASSICAL, SMALL, &[0, PAPERS]),
            curve(SELECT, LARGE, &[PAPERS]),
            curve(CLASSICAL, LARGE, &[PAPERS]),
        ];
        judged.extend(crowd(MOST.0, MOST.1, &[PAPERS]));
        let others = [LINEAR, LINUX_EPOLL, LINUX_SELECT]
            .into_iter()
            .chain(program);
        let others = others.map(|contestant| curve(contestant, SMALL, &[PAPERS]));
        let many = curve(SELECTOR, SMALL, &[MANY]);
        return vec![(judged, 1), (vec![many], 1), (others.collect(), 1)];
    }
    let upto = [0, 250, FEW, 1_250, PAPERS];
    let beyond = [10_000, 30_000, MANY];
    let all = [upto.as_slice(), &beyond].concat();
    let mut curves = Vec::new();
    for document in [SMALL, LARGE] {
        for contestant in [SELECTOR, EPOLL, SELECT, LINUX_EPOLL]
            .into_iter()
            .chain(program)
        {
            curves.push(curve(contestant, document, &all));
        }
        // Ways of waiting that examine or walk over all of them take minutes to get
        // there.
        let linear = [upto.as_slice(), &[10_000]].concat();
        for contestant in [LINEAR, CLASSICAL, LINUX_SELECT] {
            curves.push(curve(contestant, document, &linear));
        }
    }
    for (clients, setting) in CROWDS.into_iter().chain([MOST]) {
        curves.extend(crowd(clients, setting, &[0, PAPERS]));
    }
    vec![(curves, 5)]
}

/// Other numbers of outstanding requests, and their panels.
const CROWDS: [(u32, &str); 3] = [
    (2, "1,259 bytes, 2 clients"),
    (8, "1,259 bytes, 8 clients"),
    (16, "1,259 bytes, 16 clients"),
];
/// The largest number, at which the classical select costs least per request.
const MOST: (u32, &str) = (32, "1,259 bytes, 32 clients");

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let servers = Servers::of_files(WORK)?;
    let groups = groups(run.config(), &servers, run.options.quick);
    run.series = merge(sweeps(run, &groups, reduce_by_cold)?);
    for series in &mut run.series {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    run.note(format!(
        "A closed loop of {CONNECTIONS} clients, one connection a request, {WORK} multiplications a \
         request (nginx makes none) so that the server is the bottleneck (see its idle share with each point). Cold \
         connections send nothing. On Linux a process has at most {} of them here (limit of open \
         files).",
        cold_on_linux(u32::MAX)
    ));
    run.described = Some(describe(&servers));
    Ok(())
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let at = |system: &str, setting: &str, cold: u32| {
        let series = find(series, system, Some(setting))?;
        series.at(cold.into()).map(|point| point.y)
    };
    let kept = |system: &str, cold: u32| {
        ratio(
            at(system, SMALL_DOCUMENT, cold),
            at(system, SMALL_DOCUMENT, 0),
        )
    };
    let gain = |setting: &str| {
        ratio(
            at(SELECT_NAME, setting, PAPERS),
            at(CLASSICAL_NAME, setting, PAPERS),
        )
    };
    vec![
        Claim::at_least(
            "kept-750",
            "selector: saturation throughput with 750 cold connections over that with \
             none, 1,259 bytes",
            kept(SELECTOR_NAME, FEW),
            0.98,
        ),
        Claim::at_least(
            "kept-750-select",
            "the same of the new select with the new allocator",
            kept(SELECT_NAME, FEW),
            0.98,
        ),
        Claim::at_least(
            "kept-2000-select",
            "the same of them with 2,000 (the paper's full kernel: 0.86)",
            kept(SELECT_NAME, PAPERS),
            0.86,
        )
        .paper(0.86),
        Claim::at_least(
            "kept-100000",
            "selector: with 100,000 over with none",
            kept(SELECTOR_NAME, MANY),
            0.95,
        ),
        Claim::at_least(
            "gain-1259",
            "2,000 cold connections, 1,259 bytes: the new select and allocator over \
             the classical select and linear allocator",
            gain(SMALL_DOCUMENT),
            1.58,
        )
        .paper(1.58),
        Claim::at_least(
            "gain-8192",
            "the same, 8,192 bytes",
            gain(LARGE_DOCUMENT),
            1.37,
        )
        .paper(1.37),
        // The claims are about the cost of a call, which many requests share here.
        Claim::new(
            "gain-32-clients",
            "the same, 1,259 bytes, with 32 requests under way where the others have 4",
            gain(MOST.1),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{all_hold, curve};

    fn series() -> Vec<Series> {
        let small = Some(SMALL_DOCUMENT);
        let large = Some(LARGE_DOCUMENT);
        vec![
            curve(
                SELECTOR_NAME,
                small,
                &[(0.0, 3e4), (750.0, 2.97e4), (1e5, 2.88e4)],
            ),
            curve(
                SELECT_NAME,
                small,
                &[(0.0, 3e4), (750.0, 2.97e4), (2e3, 2.7e4)],
            ),
            curve(CLASSICAL_NAME, small, &[(0.0, 3e4), (2e3, 1.5e4)]),
            curve(SELECT_NAME, large, &[(2e3, 2.1e4)]),
            curve(CLASSICAL_NAME, large, &[(2e3, 1.5e4)]),
            curve(SELECT_NAME, Some(MOST.1), &[(2e3, 2.7e4)]),
            curve(CLASSICAL_NAME, Some(MOST.1), &[(2e3, 3e4)]),
        ]
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("kept-750", 0.99),
            ("kept-750-select", 0.99),
            ("kept-2000-select", 0.9),
            ("kept-100000", 0.96),
            ("gain-1259", 1.8),
            ("gain-8192", 1.4),
            ("gain-32-clients", 0.9),
        ];
        all_hold(&claims, &expected);
    }

    #[test]
    fn every_load_is_valid() {
        let servers = Servers::of_files(WORK).unwrap();
        for quick in [false, true] {
            let groups = groups(Config::default(), &servers, quick);
            let curves: Vec<&Curve> = groups.iter().flat_map(|(curves, _)| curves).collect();
            for curve in &curves {
                for load in &curve.loads {
                    load.check().unwrap();
                }
            }
            // The curves of the claims are there.
            for name in [SELECTOR_NAME, SELECT_NAME, CLASSICAL_NAME] {
                assert!(curves.iter().any(|curve| curve.name() == name));
            }
            let many = |load: &tidewall_load::LoadSpec| {
                load.idle
                    .as_ref()
                    .is_some_and(|idle| idle.connections == MANY)
            };
            assert!(
                curves
                    .iter()
                    .any(|curve| curve.name() == SELECTOR_NAME && curve.loads.iter().any(many))
            );
        }
    }
}
