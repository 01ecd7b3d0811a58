//! LRP, Table 2: a worker that computes beside two servers of remote procedure
//! calls whose clients always have requests waiting.
//!
//! All three are threads of one program on one processor, so that each is due a
//! third of it. What the worker gets shows in what it gets done, compared
//! with what it does alone: time that the stack takes on its account is
//! missing there, as are the lines of its working set (35 % of the second
//! level cache, as the paper's) that others push out of the cache.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall_load::{LoadSpec, PingSpec};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL};
use crate::bench::{Bench, Measured, load, server};
use crate::result::{Claim, Series};
use crate::sweep::{Curve, Sample};
use crate::system::System;
use crate::testbed::Config;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-rpc",
    paper: "LRP, Table 2",
    about: "a computation's share of the processor beside two busy RPC servers",
    x: "calls/s",
    y: "the worker's share of the processor",
    senders: &["two closed loops over kernel UDP sockets"],
    measure,
    claims,
    ..USUAL
};

const PORTS: [u16; 2] = [7, 8];
/// Requests that wait at each server.
const OUTSTANDING: u16 = 64;
/// The paper's three kinds of call, and multiplications for each: about 2.5, 10
/// and 40 µs.
const CALLS: [(&str, u32); 3] = [
    ("fast calls", 2_500),
    ("medium calls", 10_000),
    ("slow calls", 40_000),
];
/// The worker's share of the second level cache.
const CACHE_SHARE: f64 = 0.35;
/// What it is taken for where the kernel does not show it.
const CACHE_BYTES: usize = 1 << 20;
/// How often and for how long the worker is watched alone; what else runs on
/// the machine can only make it slower, so the best counts.
const ALONE: (u32, Duration) = (4, Duration::from_millis(250));
/// Long beside the scheduler's slices.
const WINDOW: Duration = Duration::from_millis(1_200);
/// What each thread is due.
const IDEAL: f64 = 1.0 / 3.0;
const CALL_RATE: &str = "calls/s";

const SYSTEMS: [System; 6] = [
    System::Tidewall,
    System::SoftLrp,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
];

fn curves(config: Config, quick: bool, compute: usize) -> Vec<Curve> {
    let ping = |port| PingSpec {
        outstanding: OUTSTANDING,
        ..PingSpec::new(server(port))
    };
    let calls = LoadSpec {
        ping: Some(ping(PORTS[0])),
        beside: vec![ping(PORTS[1])],
        duration: WINDOW,
        ..load(config)
    };
    let mut curves = Vec::new();
    for (setting, work) in CALLS {
        for system in SYSTEMS {
            // The claims are about tidewall.
            if quick && system.needs_real_time() {
                continue;
            }
            let service = |port| ServiceSpec {
                kind: Kind::Echo,
                port,
                work,
            };
            curves.push(Curve {
                system,
                setting: Some(setting),
                services: PORTS.map(service).to_vec(),
                compute: Some(compute),
                loads: vec![calls.clone()],
                ..Curve::default()
            });
        }
    }
    curves
}

/// Bytes of a processor's second level cache.
fn second_level_cache(cpu: usize) -> Option<usize> {
    let text = |index: u32, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}");
        std::fs::read_to_string(path).ok()
    };
    (0..8)
        .find(|&index| text(index, "level").is_some_and(|level| level.trim() == "2"))
        .and_then(|index| size(text(index, "size")?.trim()))
}

/// A size as sysfs writes it, such as `2048K`.
fn size(text: &str) -> Option<usize> {
    let (number, shift) = match text.strip_suffix('K') {
        Some(number) => (number, 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 20),
            None => (text, 0),
        },
    };
    Some(number.parse::<usize>().ok()? << shift)
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let config = run.config();
    let cache = second_level_cache(config.server_cpu);
    let compute = (CACHE_SHARE * cache.unwrap_or(CACHE_BYTES) as f64) as usize;
    let curves = curves(config, run.options.quick, compute);
    let alone = alone(run.bench, &curves)?;
    run.series = run.sweep(&curves, run.options.plan(5), |_, _, measured| {
        reduce(measured, alone)
    })?;
    run.note(format!(
        "Worker: a thread that goes through {} KiB of memory ({}); two echo servers, a thread each, \
         {OUTSTANDING} requests waiting at each. Its share is what it got done over what it does \
         alone.",
        compute >> 10,
        match cache {
            Some(_) => "35 % of the second level cache",
            None => "the kernel does not show the cache's size",
        }
    ));
    Ok(())
}

/// What the worker does with nobody beside it, steps/s.
fn alone(bench: &mut Bench, curves: &[Curve]) -> anyhow::Result<f64> {
    let curve = curves
        .iter()
        .find(|curve| curve.system.is_linux())
        .ok_or_else(|| anyhow::anyhow!("nothing to be measured"))?;
    let mut session = bench.serve(&curve.setup(None))?;
    let (times, window) = ALONE;
    let mut best = 0f64;
    for _ in 0..times {
        best = best.max(session.steps_alone(window)?);
    }
    Ok(best)
}

fn reduce(measured: &Measured, alone: f64) -> Option<Sample> {
    let report = &measured.outcome.report;
    let first = report.ping.as_ref()?;
    let second = report.beside.first()?;
    if alone <= 0.0 {
        return None;
    }
    let calls = first.rate + second.rate;
    Some(Sample {
        x: calls,
        y: measured.steps? / alone,
        drops: measured.drops.clone(),
        values: BTreeMap::from([
            (CALL_RATE.to_owned(), calls),
            (
                "second server's part".to_owned(),
                second.rate / calls.max(1.0),
            ),
        ]),
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let shares: Vec<f64> = series
        .iter()
        .filter(|series| series.system == "tidewall")
        .filter_map(|series| series.last().map(|point| point.y))
        .collect();
    // All three or nothing.
    let extreme = |of: fn(f64, f64) -> f64| {
        (shares.len() == CALLS.len())
            .then(|| shares.iter().copied().reduce(of))
            .flatten()
    };
    vec![
        Claim::at_least(
            "share-low",
            "the worker's share of the processor beside two servers, tidewall: the \
             smallest of fast, medium and slow calls",
            extreme(f64::min),
            0.31,
        )
        .paper(0.29),
        Claim::at_most(
            "share-high",
            "the same: the largest (a third is its due)",
            extreme(f64::max),
            0.35,
        )
        .paper(IDEAL),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_are_about_the_extremes() {
        let mut series: Vec<Series> = CALLS
            .iter()
            .zip([0.32, 0.33, 0.345])
            .map(|((setting, _), share)| curve("tidewall", Some(setting), &[(1e5, share)]))
            .collect();
        series.push(curve("linux-rps", Some(CALLS[0].0), &[(1e5, 0.2)]));
        let found = claims(&series);
        assert_eq!(
            (found[0].measured, found[1].measured),
            (Some(0.32), Some(0.345))
        );
        assert!(found.iter().all(|claim| claim.holds == Some(true)));
        series[0].points[0].y = 0.25;
        assert!(claims(&series)[0].holds == Some(false));
        series.remove(1);
        assert!(claims(&series).iter().all(|claim| claim.measured.is_none()));
    }

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(size("2048K"), Some(2 << 20));
        assert_eq!(size("1M"), Some(1 << 20));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("x"), None);
    }

    #[test]
    fn requests_always_wait_at_both_servers() {
        for curve in curves(Config::default(), false, 4096) {
            assert_eq!(curve.services.len(), 2);
            for load in &curve.loads {
                load.check().unwrap();
                assert_eq!(load.beside.len(), 1);
            }
        }
    }
}
