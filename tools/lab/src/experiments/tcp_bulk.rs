//! One TCP connection as fast as it goes: Tidewall over a tap in segments of 64
//! KiB, Linux over a veth pair with every offload that it has.
//!
//! Nobody promised a win here: a kernel with segmentation offload moves bulk
//! data without a copy to user space that a tap does not pay too. The figure is
//! printed, whatever it is. The client is Linux, on the other processor.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Experiment, Run, USUAL, ratio};
use crate::bench::Bench;
use crate::interrupt;
use crate::result::{Claim, Point, Series, find};
use crate::system::System;
use crate::testbed::{CLIENT_INTERFACE, SERVER, SERVER_INTERFACE, Testbed};
use crate::worker::flows::{
    CHUNK, FlowClient, FlowHost, FlowJob, FlowOutcome, FlowServer, FlowSpec, Transfer, Way,
};
use crate::worker::{Child, Job, Place};

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
const DIRECTIONS: [(&str, Way); 2] = [(RECEIVES, Way::Give), (SENDS, Way::Fetch)];
/// Linux with its receive work on the sender's processor and on the receiver's.
const SYSTEMS: [System; 3] = [System::Tidewall, System::LinuxPlain, System::LinuxRps];

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
        for ((system, (setting, way)), measured) in &mut results {
            interrupt::check()?;
            let gigabits = transfer(run.bench, *system, *way)?;
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
        "tidewall here is a stack at the far end of a tap in the client's namespace: one read or \
         write system call a segment of up to 64 KiB. Linux has the veth pair as it \
         comes: checksum and segmentation offload at both ends, nothing deferred.",
    );
    Ok(())
}

/// The median of what was measured, and its range.
fn point(mut measured: Vec<f64>) -> Option<Point> {
    measured.sort_by(f64::total_cmp);
    Some(Point {
        x: CHUNK as f64,
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

/// Gigabits/s of payload from the first bytes on.
fn transfer(bench: &mut Bench, system: System, way: Way) -> anyhow::Result<f64> {
    let testbed = &mut bench.testbed;
    testbed.set_mode(system.mode())?;
    let config = testbed.config();
    // Whatever the kernel's connections use here.
    let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
    let congestion = congestion.trim().to_owned();
    let (host, address, namespace) = if system.is_linux() {
        as_it_comes(testbed)?;
        let congestion = congestion.clone();
        (FlowHost::Linux { congestion }, SERVER.0, testbed.server())
    } else {
        let interface = TAP.to_owned();
        (FlowHost::Tap { interface }, TAP_STACK, testbed.client())
    };
    let address = SocketAddrV4::new(address, PORT);
    let place = Place {
        namespace,
        cpu: config.server_cpu,
    };
    let job = FlowJob::Server(FlowServer { address, host });
    let mut server = Child::start_ready(place, &Job::Flow(job, false), system.name())?;
    if !system.is_linux() {
        let address = format!("{TAP_KERNEL}/24");
        testbed.in_client(&["ip", "address", "add", &address, "dev", TAP])?;
    }
    let flow = FlowSpec {
        server: address,
        port: 0,
        way,
        after_ms: 0,
        duration_ms: WINDOW.as_millis() as u64,
    };
    let place = Place {
        namespace: testbed.client(),
        cpu: config.client_cpu,
    };
    let client = FlowJob::Flows(FlowClient {
        flows: vec![flow],
        congestion,
    });
    let flows: Vec<FlowOutcome> = Child::run(
        place,
        &Job::Flow(client, false),
        "the client",
        WINDOW + TIMEOUT,
    )?;
    let flow = flows.first().context("no flow")?;
    if let Some(why) = &flow.failed {
        bail!("{}: {why}", system.name());
    }
    let (bytes, nanoseconds) = match way {
        Way::Fetch => (flow.bytes, flow.nanoseconds),
        Way::Give => {
            let transfers: Vec<Transfer> = server.ask_for("transfers", TIMEOUT)?;
            let transfer = transfers
                .first()
                .context("the server knows of no transfer")?;
            (transfer.bytes, transfer.nanoseconds)
        }
    };
    Ok(bytes as f64 * 8.0 / nanoseconds.max(1) as f64)
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
                ratio(of("tidewall", setting), best(setting)),
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
        let x = CHUNK as f64;
        let series = [
            curve("tidewall", Some(RECEIVES), &[(x, 10.0)]),
            curve("linux-rps", Some(RECEIVES), &[(x, 12.5)]),
            curve("linux-plain", Some(RECEIVES), &[(x, 20.0)]),
            curve("tidewall", Some(SENDS), &[(x, 10.0)]),
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
