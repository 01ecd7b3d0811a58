//! RHIP, Figure 11: round trips over time beside a flood of 1500-byte packets. In
//! addition, the remark on one interrupt per frame, and the round trip of an idle
//! machine.
//!
//! The requests go to a UDP echo service of the same program as the one that discards the
//! flood. ICMP would not do: on every system compared here the kernel handles its echoes,
//! which never meet the policy.

use std::collections::BTreeMap;
use std::time::Duration;

use tidewall::tuning::PolicyKind;
use tidewall_load::{LoadSpec, PingSpec};
use tidewall_service::{Kind, ServiceSpec};

use super::rhip::{self, Place, RECEIVER, SOFTIRQ};
use super::trips::{self, P50, P99};
use super::{Experiment, Options, Run, USUAL, ratio};
use crate::bench::{Bench, Measured, Watching, load, server};
use crate::capacity::Bed;
use crate::interrupt::{self, Interrupted};
use crate::result::{Claim, Point, Series, find};
use crate::sweep::{Better, Curve, Sample, median};
use crate::system::{Control, System};
use crate::testbed::{BusyTimeout, Config};
use crate::worker::TracePoint;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "rhip-ping",
    paper: "RHIP, Figure 11",
    about: "round trips over time beside a flood of full packets, and on an idle machine",
    x: "seconds",
    y: LATENCY_AXIS,
    busy: BusyTimeout::FiveMilliseconds,
    measure,
    claims,
    ..USUAL
};

const SIZE: u32 = 1500;
const ECHO_PORT: u16 = 7;
/// Interval between requests.
const INTERVAL: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(100);
const BIN_MS: u32 = 1000;
const FULL: Duration = Duration::from_secs(90);
const QUICK: Duration = Duration::from_secs(10);
const LATENCY_AXIS: &str = "round trip p99, µs";

/// The idle machine.
const EACH: &str = "idle, one interrupt a frame";
const EIGHT_THOUSANDTH: &str = "idle, T = 1/8000 s";
const BLOCKING: &str = "idle, blocking";
const SPIN: &str = "idle, 20 µs spin";
const SPIN_MICROSECONDS: u32 = 20;
/// The paper's shortest T.
const T_MICROSECONDS: u32 = 125;

fn echo() -> ServiceSpec {
    ServiceSpec {
        kind: Kind::Echo,
        port: ECHO_PORT,
        work: 0,
    }
}

/// Returns the curves beside the flood.
fn curves((config, capacity): Bed, options: Options) -> Vec<Curve> {
    let load = LoadSpec {
        blast: Some(rhip::blast_of(SIZE, rhip::link_rate(capacity, SIZE))),
        ping: Some(PingSpec {
            interval: INTERVAL,
            timeout: TIMEOUT,
            ..PingSpec::new(server(ECHO_PORT))
        }),
        duration: if options.quick { QUICK } else { FULL },
        ..load(config)
    };
    let mut curves: Vec<Curve> = [
        PolicyKind::QaPolling,
        PolicyKind::Aic,
        PolicyKind::Rhip,
        PolicyKind::Adaptive,
    ]
    .map(|kind| rhip::policy(Place::Softirq, kind))
    .into();
    if !options.quick {
        curves.push(rhip::policy(Place::Softirq, PolicyKind::Interrupt));
    }
    curves.push(rhip::policy(Place::Receiver, PolicyKind::Adaptive));
    curves.push(rhip::curve(System::LinuxBusy, None));
    curves
        .into_iter()
        .map(|curve| Curve {
            y: Some(LATENCY_AXIS),
            watching: Watching {
                every_ms: BIN_MS,
                trace: true,
                profile: false,
            },
            services: vec![echo(), rhip::discard(rhip::WORK)],
            loads: vec![load.clone()],
            better: Better::Lower,
            ..curve
        })
        .collect()
}

/// Returns the curves of one request after another, without other load.
fn idle_curves(config: Config) -> Vec<Curve> {
    let load = LoadSpec {
        ping: Some(PingSpec::new(server(ECHO_PORT))),
        ..load(config)
    };
    let napi = |interval_us| Control {
        interval_us: Some(interval_us),
        ..rhip::control(PolicyKind::Napi)
    };
    let idle = |curve: Curve, setting| Curve {
        setting: Some(setting),
        y: Some("echoes/s"),
        services: vec![echo()],
        loads: vec![load.clone()],
        ..curve
    };
    let softirq = rhip::policy(Place::Softirq, PolicyKind::Napi);
    let receiver = rhip::policy(Place::Receiver, PolicyKind::Adaptive);
    let busy = rhip::curve(System::LinuxBusy, None);
    vec![
        Curve {
            control: Some(napi(0)),
            ..idle(softirq.clone(), EACH)
        },
        Curve {
            control: Some(napi(T_MICROSECONDS)),
            ..idle(softirq, EIGHT_THOUSANDTH)
        },
        idle(receiver.clone(), BLOCKING),
        idle(rhip::curve(System::LinuxPlain, None), BLOCKING),
        Curve {
            spin: Some(SPIN_MICROSECONDS),
            ..idle(receiver, SPIN)
        },
        Curve {
            spin: Some(SPIN_MICROSECONDS),
            ..idle(busy, SPIN)
        },
    ]
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let bed = run.bed()?;
    let config = run.config();
    let flooded = curves(bed, run.options);
    run.systems.extend(flooded.iter().map(|curve| curve.system));
    run.progress.begin(run.name, flooded.len() as u64);
    for curve in &flooded {
        match over_time(run.bench, curve) {
            Ok(one) => {
                let p99 = one.summary.get(P99).copied().unwrap_or(f64::NAN);
                run.progress
                    .step(&format!("{}: p99 {p99:.0} µs", curve.name()));
                run.series.push(one);
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => run.note(format!("{}: not measured: {error:#}", curve.name())),
        }
        interrupt::check()?;
    }
    run.progress.end();
    let plan = run.options.within(7, 20);
    let idle = run.sweep_part("rhip-ping, idle", &idle_curves(config), plan, reduce_idle)?;
    run.series.extend(idle);
    run.note(format!(
        "One 8-byte request every {INTERVAL:?} from the thread that sends the flood, in bursts of \
         at most 8; lost after {TIMEOUT:?}, and where one in a hundred is lost the 99th percentile \
         is that time. Each second is a point."
    ));
    run.note(
        "A flood this long keeps the kernel's safeguards of ordinary tasks on: a softirq that \
         never ends leaves the application about 5 % of the processor.",
    );
    Ok(())
}

/// Runs one long load, with a point for each second. Linux receives with `recv`, as a
/// server that answers at once does.
fn over_time(bench: &mut Bench, curve: &Curve) -> anyhow::Result<Series> {
    let setup = curve.setup(curve.system.variants().first().copied().flatten());
    let load = curve
        .loads
        .first()
        .ok_or_else(|| anyhow::anyhow!("no load"))?;
    let mut session = bench.serve(&setup)?;
    let measured = session.measure(load, curve.watching)?;
    let ping = measured.outcome.report.ping.as_ref();
    let mut summary = BTreeMap::new();
    if let Some(ping) = ping {
        summary.extend(trips::values(ping, TIMEOUT));
    }
    if let Some(delivered) = measured.outcome.delivered.last() {
        summary.insert("flood delivered/s".to_owned(), *delivered);
    }
    summary.insert(rhip::OVERFLOW.to_owned(), measured.window.overflow);
    if let Some(usage) = &measured.outcome.usage {
        summary.insert(rhip::IDLE.to_owned(), 100.0 * usage.left());
    }
    let points: Vec<Point> = measured.outcome.trace.iter().filter_map(bin).collect();
    anyhow::ensure!(!points.is_empty(), "no request was answered");
    Ok(Series {
        system: curve.name().to_owned(),
        setting: curve.setting.map(str::to_owned),
        y: curve.y.map(str::to_owned),
        points,
        summary,
    })
}

/// Reduces a second of the trace.
fn bin(point: &TracePoint) -> Option<Point> {
    let ping = point.ping?;
    if ping.echoed + ping.lost == 0 {
        return None;
    }
    let share = trips::lost(ping.lost, ping.echoed);
    let (p50, y) = trips::percentiles(point.latency.as_ref(), share, TIMEOUT);
    Some(Point {
        x: point.at,
        y,
        low: p50,
        high: y,
        runs: 1,
        values: BTreeMap::from([
            (P50.to_owned(), p50),
            (trips::LOST.to_owned(), ping.lost as f64),
        ]),
        ..Point::default()
    })
}

fn reduce_idle(_: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    let ping = measured.outcome.report.ping.as_ref()?;
    Some(Sample {
        x: 0.0,
        y: ping.rate,
        drops: measured.drops.clone(),
        values: trips::values(ping, load.ping.as_ref()?.timeout),
        ..Sample::default()
    })
}

/// Returns the largest 99th percentile of a second over the median one.
fn unsteadiness(series: &Series) -> Option<f64> {
    // The policy adapts in the first second.
    let seconds: Vec<f64> = series.points.iter().skip(1).map(|point| point.y).collect();
    let largest = seconds.iter().copied().max_by(f64::total_cmp);
    ratio(largest, median(&seconds))
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let flooded = |kind: PolicyKind, setting| find(series, kind.name(), Some(setting));
    let p99 = |kind, setting| flooded(kind, setting).and_then(|s| s.summary.get(P99).copied());
    let idle =
        |system: &str, setting: &str| find(series, system, Some(setting)).and_then(Series::last);
    let p50 = |system: &str, setting: &str| {
        idle(system, setting).and_then(|point| point.values.get(P50).copied())
    };
    let qapolling = p99(PolicyKind::QaPolling, SOFTIRQ);
    vec![
        Claim::at_most(
            "p99-vs-qapolling",
            "beside the flood, in the softirq: 99th percentile of the round trip under \
             rhip over that under qapolling",
            ratio(p99(PolicyKind::Rhip, SOFTIRQ), qapolling),
            1.0,
        ),
        Claim::at_most(
            "p99-vs-qapolling-adaptive",
            "the same: adaptive over qapolling",
            ratio(p99(PolicyKind::Adaptive, SOFTIRQ), qapolling),
            1.0,
        ),
        Claim::at_most(
            "steady",
            "beside the flood, in the softirq, rhip: largest 99th percentile of a \
             second over the median of the seconds",
            flooded(PolicyKind::Rhip, SOFTIRQ).and_then(unsteadiness),
            3.0,
        ),
        Claim::at_most(
            "steady-adaptive",
            "the same under adaptive",
            flooded(PolicyKind::Adaptive, SOFTIRQ).and_then(unsteadiness),
            3.0,
        ),
        Claim::at_most(
            "steady-adaptive-receiver",
            "the same under adaptive, in the receiver",
            flooded(PolicyKind::Adaptive, RECEIVER).and_then(unsteadiness),
            3.0,
        ),
        Claim::at_least(
            "interrupt-a-frame",
            "idle, in the softirq: echoes/s with one interrupt per frame over those with \
             T = 1/8000 s",
            ratio(
                idle(PolicyKind::Napi.name(), EACH).map(|point| point.y),
                idle(PolicyKind::Napi.name(), EIGHT_THOUSANDTH).map(|point| point.y),
            ),
            3.0,
        )
        .paper(3.0),
        Claim::at_most(
            "idle-blocking",
            "idle, adaptive in the receiver without spinning: median round trip over \
             that of Linux, busy-polled",
            ratio(
                p50(PolicyKind::Adaptive.name(), BLOCKING),
                p50("linux-busy", SPIN),
            ),
            1.3,
        ),
        Claim::at_most(
            "idle-spin",
            "the same with a spin of at most 20 µs on both sides",
            ratio(
                p50(PolicyKind::Adaptive.name(), SPIN),
                p50("linux-busy", SPIN),
            ),
            1.05,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::tests::MILLION;
    use crate::experiments::rhip::tests::with;
    use crate::result::tests::curve;

    fn series() -> Vec<Series> {
        let steady = [(1.0, 900.0), (2.0, 100.0), (3.0, 120.0), (4.0, 240.0)];
        let mut series: Vec<Series> = [
            ("qapolling", SOFTIRQ, 500.0),
            ("rhip", SOFTIRQ, 250.0),
            ("adaptive", SOFTIRQ, 100.0),
            ("adaptive", RECEIVER, 50.0),
        ]
        .into_iter()
        .map(|(system, setting, p99)| {
            let mut series = curve(system, Some(setting), &steady);
            series.summary.insert(P99.into(), p99);
            series
        })
        .collect();
        for (system, setting, rate, p50) in [
            ("napi", EACH, 4e4, 20.0),
            ("napi", EIGHT_THOUSANDTH, 8e3, 125.0),
            ("adaptive", BLOCKING, 5e4, 12.0),
            ("adaptive", SPIN, 9e4, 5.0),
            ("linux-busy", SPIN, 8e4, 10.0),
        ] {
            series.push(with(
                curve(system, Some(setting), &[(0.0, rate)]),
                P50,
                &[p50],
            ));
        }
        series
    }

    #[test]
    fn claims_follow_from_the_curves() {
        let claims = claims(&series());
        let expected = [
            ("p99-vs-qapolling", 0.5),
            ("p99-vs-qapolling-adaptive", 0.2),
            ("steady", 2.0),
            ("steady-adaptive", 2.0),
            ("steady-adaptive-receiver", 2.0),
            ("interrupt-a-frame", 5.0),
            ("idle-blocking", 1.2),
            ("idle-spin", 0.5),
        ];
        assert_eq!(claims.len(), expected.len());
        for (claim, (id, measured)) in claims.iter().zip(expected) {
            assert_eq!((claim.id.as_str(), claim.measured), (id, Some(measured)));
            assert!(claim.holds == Some(true), "{id}");
        }
    }

    #[test]
    fn a_second_that_sticks_out_is_not_steady() {
        let mut series = series();
        series[1].points[3].y = 400.0;
        let failed: Vec<String> = claims(&series)
            .into_iter()
            .filter(|claim| claim.holds == Some(false))
            .map(|claim| claim.id)
            .collect();
        assert_eq!(failed, ["steady"]);
    }

    #[test]
    fn a_second_without_an_echo_is_a_late_one() {
        let second = |echoed, lost| {
            let report = trips::tests::report(echoed, lost);
            bin(&TracePoint {
                at: 1.0,
                received: Vec::new(),
                ping: Some(report.measured),
                latency: report.latency,
            })
        };
        let point = second(1000, 5).unwrap();
        assert_eq!((point.y, point.values[P50]), (50.0, 10.0));
        assert_eq!(second(0, 10).unwrap().y, 1e5);
        assert!(second(0, 0).is_none());
    }

    #[test]
    fn loads_are_valid_and_quick_keeps_what_the_claims_need() {
        for quick in [false, true] {
            let options = Options {
                quick,
                ..Options::default()
            };
            let curves = curves((Config::default(), MILLION), options);
            for (system, setting) in [
                ("qapolling", SOFTIRQ),
                ("rhip", SOFTIRQ),
                ("adaptive", SOFTIRQ),
                ("adaptive", RECEIVER),
            ] {
                assert!(
                    curves
                        .iter()
                        .any(|c| c.name() == system && c.setting == Some(setting))
                );
            }
            assert!(
                curves
                    .iter()
                    .chain(&idle_curves(Config::default()))
                    .flat_map(|curve| &curve.loads)
                    .all(|load| load.check().is_ok())
            );
        }
    }
}
