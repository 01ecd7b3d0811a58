//! One TCP connection as fast as it goes: Tidewall over a tap in segments of 64
//! KiB, Linux over a veth pair with every offload that it has.
//!
//! Nobody promised a win here: a kernel with segmentation offload moves bulk
//! data without a copy to user space that a tap does not pay too. The figure is
//! printed, whatever it is. The client is Linux, on the other processor.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;

use super::{Experiment, Run, USUAL, ratio};
use crate::bench::Bench;
use crate::interrupt;
use crate::result::{Claim, Point, Series, find};
use crate::system::System;
use crate::testbed::{CLIENT_INTERFACE, SERVER, SERVER_INTERFACE, Testbed};
use crate::worker::{BULK_CHUNK, BulkJob, BulkOutcome, Child, Direction, Job, Place};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tcp-bulk",
    paper: "no paper",
    about: "one TCP connection as fast as it goes: 64 KiB segments over a tap, Linux over veth",
    x: "bytes a read or write",
    y: "Gbit/s of payload",
    senders: &["one kernel TCP connection"],
    measure,
    claims,
    ..USUAL
};

const PORT: u16 = 5001;
/// The tap, and the addresses of its two ends.
const TAP: &str = "tw-t";
const TAP_KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const TAP_STACK: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const WINDOW: Duration = Duration::from_millis(800);
/// How long a transfer may take beyond that.
const TIMEOUT: Duration = Duration::from_secs(20);

const RECEIVES: &str = "server receives";
const SENDS: &str = "server sends";
const DIRECTIONS: [(&str, Direction); 2] = [
    (RECEIVES, Direction::ToServer),
    (SENDS, Direction::ToClient),
];
/// Linux with its receive work on the sender's processor and on the receiver's.
const SYSTEMS: [System; 3] = [System::NiLrp, System::LinuxPlain, System::LinuxRps];

fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let options = run.options;
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 5 });
    run.systems.extend(SYSTEMS);
    let pairs = SYSTEMS.map(|system| DIRECTIONS.map(|way| (system, way)));
    let mut results = pairs
        .as_flattened()
        .iter()
        .map(|pair| (*pair, Vec::new()))
        .collect::<Vec<_>>();
    for round in 0..rounds {
        let what = format!("{}, round {}", run.name, round + 1);
        run.progress.begin(&what, results.len() as u64);
        for ((system, (setting, direction)), measured) in &mut results {
            interrupt::check()?;
            let gigabits = transfer(run.bench, *system, *direction)?.gigabits();
            run.progress.step(&format!(
                "{} {setting}: {gigabits:.1} Gbit/s",
                system.name()
            ));
            measured.push(gigabits);
        }
        run.progress.end();
    }
    run.series.extend(
        results
            .into_iter()
            .map(|((system, (setting, _)), measured)| Series {
                points: point(measured).into_iter().collect(),
                ..Series::named(system.name(), setting)
            }),
    );
    run.note(
        "ni-lrp here is a stack at the far end of a tap in the client's namespace: one read or \
         write system call a segment of up to 64 KiB. Linux has the veth pair as it \
         comes: checksum and segmentation offload at both ends, nothing deferred.",
    );
    Ok(())
}

/// The median of what was measured, and its range.
fn point(mut measured: Vec<f64>) -> Option<Point> {
    measured.sort_by(f64::total_cmp);
    Some(Point {
        x: BULK_CHUNK as f64,
        y: *measured.get(measured.len() / 2)?,
        low: *measured.first()?,
        high: *measured.last()?,
        runs: measured.len() as u32,
        ..Point::default()
    })
}

/// Undoes what the test bed does to the client's end for experiments in
/// packets: no checksums left to offload, and a receiver that polls.
fn as_it_comes(testbed: &Testbed) -> anyhow::Result<()> {
    let offloads = |interface, gro| format!("ethtool -K {interface} tx on tso on gso on gro {gro}");
    let client = format!(
        "{}; cd /sys/class/net/{CLIENT_INTERFACE}; \
         echo 0 > napi_defer_hard_irqs; echo 0 > gro_flush_timeout",
        offloads(CLIENT_INTERFACE, "off")
    );
    testbed.in_client(&["sh", "-ec", &client])?;
    let server = offloads(SERVER_INTERFACE, "off");
    testbed.in_server(&["sh", "-ec", &server])?;
    Ok(())
}

fn transfer(
    bench: &mut Bench,
    system: System,
    direction: Direction,
) -> anyhow::Result<BulkOutcome> {
    let testbed = &mut bench.testbed;
    testbed.set_mode(system.mode())?;
    let config = testbed.config();
    let (job, server, namespace) = if system.is_linux() {
        as_it_comes(testbed)?;
        let address = SocketAddr::from((SERVER.0, PORT));
        (BulkJob::LinuxServer { address }, address, testbed.server())
    } else {
        let job = BulkJob::TapServer {
            interface: TAP.to_owned(),
            address: TAP_STACK,
            port: PORT,
        };
        (job, SocketAddr::from((TAP_STACK, PORT)), testbed.client())
    };
    let place = Place {
        namespace,
        cpu: config.server_cpu,
    };
    let _server = Child::start_ready(place, &Job::Bulk(job), system.name())?;
    if !system.is_linux() {
        let address = format!("{TAP_KERNEL}/24");
        testbed.in_client(&["ip", "address", "add", &address, "dev", TAP])?;
    }
    let client = BulkJob::Client {
        server,
        direction,
        duration: WINDOW,
    };
    let place = Place {
        namespace: testbed.client(),
        cpu: config.client_cpu,
    };
    let mut client = Child::start(place, &Job::Bulk(client), "the client")?;
    let line = client.line(WINDOW + TIMEOUT)?;
    serde_json::from_str(&line).with_context(|| format!("the client answered {line}"))
}

fn claims(series: &[Series]) -> Vec<Claim> {
    let of = |system: &str, setting| {
        find(series, system, Some(setting))
            .and_then(Series::last)
            .map(|point| point.y)
    };
    let best = |setting| {
        SYSTEMS
            .iter()
            .filter(|system| system.is_linux())
            .filter_map(|system| of(system.name(), setting))
            .max_by(f64::total_cmp)
    };
    [("bulk-receive", RECEIVES), ("bulk-send", SENDS)]
        .into_iter()
        .map(|(id, setting)| {
            Claim::new(
                id,
                format!(
                    "bulk transfer, {setting}: Tidewall over a tap, 64 KiB segments, over the \
                     best Linux mode over veth"
                ),
                ratio(of("ni-lrp", setting), best(setting)),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::curve;

    #[test]
    fn claims_compare_with_the_fastest_linux() {
        let x = BULK_CHUNK as f64;
        let series = [
            curve("ni-lrp", Some(RECEIVES), &[(x, 10.0)]),
            curve("linux-rps", Some(RECEIVES), &[(x, 12.5)]),
            curve("linux-plain", Some(RECEIVES), &[(x, 20.0)]),
            curve("ni-lrp", Some(SENDS), &[(x, 10.0)]),
        ];
        let claims = claims(&series);
        assert_eq!(claims[0].measured, Some(0.5));
        assert_eq!(claims[1].measured, None);
        assert!(claims.iter().all(|claim| claim.bound.is_none()));
    }

    #[test]
    fn a_point_is_the_median_and_its_range() {
        let point = point(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (point.y, point.low, point.high, point.runs),
            (2.0, 1.0, 3.0, 3)
        );
        assert!(super::point(Vec::new()).is_none());
    }
}
