//! LRP, Table 1: the cost, on an idle machine, of a round trip, a sliding window over UDP
//! and a bulk transfer over TCP.
//!
//! The client spins. The server sleeps in its receive call (`blocking`), or first polls
//! for at most 20 µs (`20 µs spin`; for Linux that is SO_BUSY_POLL). `linux-plain` is
//! included because an idle Tidewall is woken the same way: by the driver's poll on the
//! sender's processor.

use std::collections::BTreeMap;

use tidewall_load::{LoadSpec, PingSpec, StreamKind, StreamSpec};
use tidewall_service::{Kind, ServiceSpec};

use super::{Experiment, Run, USUAL, quickest_linux, ratio, trips};
use crate::bench::{Measured, load, server};
use crate::result::{Claim, Series, find};
use crate::sweep::{Better, Curve, Sample};
use crate::system::System;
use crate::testbed::{BusyTimeout, Config};
use crate::worker::{TcpKind, TcpSpec};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "lrp-base",
    paper: "LRP, Table 1",
    about: "idle round trip over UDP and TCP; throughput of both",
    x: "bytes of payload",
    y: "median round trip, µs",
    busy: BusyTimeout::FiveMilliseconds,
    senders: &["closed loop over a kernel UDP socket"],
    measure,
    claims,
    ..USUAL
};

const PORT: u16 = 7;
const BLOCKING: &str = "blocking";
const SPIN: &str = "20 µs spin";
const SPIN_MICROSECONDS: u32 = 20;
const WINDOW: &str = "sliding window of 32";
const OUTSTANDING: u16 = 32;
const TCP_TRIP: &str = "TCP, blocking";
const TCP_BULK: &str = "TCP bulk transfer, writes of 32 KiB";
/// Bytes of a write of the bulk transfer: LRP's buffers.
const WRITE: u32 = 32_768;
const TCP_PORT: u16 = 5;
/// Name of a point's value.
const TRIPS: &str = "round trips/s";
/// Systems in which the server of a TCP connection sleeps.
const TCP: [System; 4] = [
    System::Tidewall,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxPlain,
];
/// Bytes of a small request: LRP's single byte, and the eight of the claims.
const SMALL: [u16; 2] = [1, 8];
const JUDGED: f64 = 8.0;
/// Bytes of a packet of the sliding window: a full frame.
const LARGE: u16 = 1472;

/// Systems whose server sleeps; a busy-polled one does not.
const SLEEPING: [System; 7] = [
    System::Tidewall,
    System::SoftLrp,
    System::EarlyDemux,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxPlain,
];
const SPINNING: [System; 2] = [System::Tidewall, System::LinuxBusy];
const THROUGHPUT: [System; 8] = [
    System::Tidewall,
    System::SoftLrp,
    System::EarlyDemux,
    System::Bsd,
    System::LinuxRps,
    System::LinuxTimer,
    System::LinuxBusy,
    System::LinuxPlain,
];

fn curves(config: Config) -> Vec<Curve> {
    let ping = |payload: u16, outstanding: u16| LoadSpec {
        ping: Some(PingSpec {
            payload,
            outstanding,
            ..PingSpec::new(server(PORT))
        }),
        ..load(config)
    };
    let curve = |system, setting, kind, loads| Curve {
        system,
        setting: Some(setting),
        services: vec![ServiceSpec {
            kind,
            port: PORT,
            work: 0,
        }],
        loads,
        better: Better::Lower,
        ..Curve::default()
    };
    let small: Vec<LoadSpec> = SMALL.iter().map(|&payload| ping(payload, 1)).collect();
    let mut curves = Vec::new();
    for system in SLEEPING {
        curves.push(curve(system, BLOCKING, Kind::Echo, small.clone()));
    }
    for system in SPINNING {
        curves.push(Curve {
            spin: Some(SPIN_MICROSECONDS),
            ..curve(system, SPIN, Kind::Echo, small.clone())
        });
    }
    for system in THROUGHPUT {
        curves.push(Curve {
            y: Some("Mbit/s of payload"),
            better: Better::Higher,
            ..curve(
                system,
                WINDOW,
                Kind::Acknowledge,
                vec![ping(LARGE, OUTSTANDING)],
            )
        });
    }
    for system in TCP {
        curves.extend(tcp_curves(config, system));
    }
    curves
}

/// Round trips and bulk over a TCP connection.
fn tcp_curves(config: Config, system: System) -> [Curve; 2] {
    let curve = |kind, stream_kind, sizes: &[u32]| {
        let load = |&size: &u32| LoadSpec {
            stream: Some(StreamSpec::new(server(TCP_PORT), stream_kind, size)),
            ..load(config)
        };
        let tcp = TcpSpec::new(kind, TCP_PORT);
        Curve::over_tcp(system, tcp, sizes.iter().map(load).collect())
    };
    let small = SMALL.map(u32::from);
    [
        Curve {
            setting: Some(TCP_TRIP),
            better: Better::Lower,
            ..curve(TcpKind::Echo, StreamKind::Echo, &small)
        },
        Curve {
            setting: Some(TCP_BULK),
            y: Some("Mbit/s of payload"),
            ..curve(TcpKind::Discard, StreamKind::Bulk, &[WRITE])
        },
    ]
}

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let (curves, plan) = (curves(run.config()), run.options.plan(7));
    run.series = run.sweep(&curves, plan, reduce)?;
    run.note(
        "The client spins on the other processor. The sliding window's packets are acknowledged \
         with eight bytes each.",
    );
    if run.options.spinners {
        run.note("Background processes of nice 19 ran on both processors.");
    }
    Ok(())
}

fn reduce(curve: &Curve, load: &LoadSpec, measured: &Measured) -> Option<Sample> {
    if let Some(stream) = &load.stream {
        return reduce_stream(stream, measured);
    }
    // The service has proved to be there: an unanswered request is a late one.
    let (spec, ping) = (load.ping.as_ref()?, measured.outcome.report.ping.as_ref()?);
    let payload: f64 = spec.payload.into();
    let mut values = trips::values(ping, spec.timeout);
    let y = match curve.better {
        Better::Lower => *values.get(trips::P50)?,
        Better::Higher => ping.rate * payload * 8.0 / 1e6,
    };
    values.insert(TRIPS.to_owned(), ping.rate);
    Some(Sample {
        x: payload,
        y,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn reduce_stream(spec: &StreamSpec, measured: &Measured) -> Option<Sample> {
    // A missing service refuses the connection, and there is no report.
    let stream = measured.outcome.report.stream.as_ref()?;
    let (y, values) = match spec.kind {
        StreamKind::Bulk => (stream.rate * 8.0 / 1e6, BTreeMap::new()),
        StreamKind::Echo => {
            let latency = stream.latency.as_ref();
            let (p50, p99) = trips::percentiles(latency, 0.0, stream.duration);
            let values = [
                (trips::P50, p50),
                (trips::P99, p99),
                (TRIPS, stream.rate / f64::from(spec.size)),
            ];
            (
                p50,
                values.map(|(name, value)| (name.to_owned(), value)).into(),
            )
        }
    };
    Some(Sample {
        x: spec.size.into(),
        y,
        drops: measured.drops.clone(),
        values,
        ..Sample::default()
    })
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let time = |series: &Series| series.at(JUDGED).map(|point| point.y);
    let of = |setting: &'static str| find(series, "tidewall", Some(setting)).and_then(time);
    let best = |settings: &[&'static str]| {
        let times = settings
            .iter()
            .filter_map(|&setting| quickest_linux(series, Some(setting), time));
        times.min_by(f64::total_cmp)
    };
    vec![
        Claim::at_most(
            "idle-blocking",
            "idle 8-byte round trip, server asleep: tidewall's median over the best \
             Linux mode's",
            // NI-LRP 840 µs, BSD 855 µs: recollected, the table is an image.
            ratio(of(BLOCKING), best(&[BLOCKING])),
            1.2,
        ),
        Claim::at_most(
            "idle-spin",
            "the same with at most 20 µs of polling before sleeping, over the best \
             Linux mode's with or without",
            ratio(of(SPIN), best(&[BLOCKING, SPIN])),
            1.0,
        ),
        Claim::at_most(
            "idle-tcp",
            "idle 8-byte round trip over TCP, server asleep: tidewall's median over the \
             best Linux mode's",
            ratio(of(TCP_TRIP), best(&[TCP_TRIP])),
            1.2,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_the_fastest_linux() {
        let mut series = vec![
            curve("tidewall", Some(BLOCKING), &[(1.0, 9.0), (8.0, 11.0)]),
            curve("linux-rps", Some(BLOCKING), &[(1.0, 1.0), (8.0, 10.0)]),
            curve("linux-plain", Some(BLOCKING), &[(8.0, 12.0)]),
            curve("tidewall", Some(SPIN), &[(8.0, 8.8)]),
            curve("linux-busy", Some(SPIN), &[(8.0, 8.0)]),
            curve("linux-busy", Some(WINDOW), &[(1472.0, 1.0)]),
            curve("tidewall", Some(TCP_TRIP), &[(8.0, 12.0)]),
            curve("linux-plain", Some(TCP_TRIP), &[(8.0, 12.0)]),
        ];
        let found = claims(&series);
        assert_eq!(found[0].id, "idle-blocking");
        assert!((found[0].measured.unwrap() - 1.1).abs() < 1e-9 && found[0].holds == Some(true));
        assert!((found[1].measured.unwrap() - 1.1).abs() < 1e-9 && found[1].holds == Some(false));
        assert!(found[2].measured == Some(1.0) && found[2].holds == Some(true));
        series[4].points[0].y = 9.0;
        assert!(claims(&series)[1].holds == Some(true));
    }

    #[test]
    fn every_load_is_valid() {
        let curves = curves(Config::default());
        assert!(
            curves
                .iter()
                .flat_map(|curve| &curve.loads)
                .all(|load| load.check().is_ok())
        );
        assert!(curves.iter().all(|curve| curve.setting.is_some()));
    }
}
