//! `bare` answers and counts what it should. Needs root; skipped, and says so,
//! without.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidewall_lab::testbed::{Config, Testbed, privilege};
use tidewall_lab::worker::{Job, LoadJob, LoadOutcome, ServiceJob, Setup};
use tidewall_lab::{System, worker_main};
use tidewall_load::{BlastSpec, LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, Reader, ServiceSpec};

/// A worker of the lab in a namespace: this very test, told what to be.
fn worker(namespace: &str, test: &str, job: &Job) -> Child {
    Command::new("ip")
        .args(["netns", "exec", namespace])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(WORKER, serde_json::to_string(job).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

const WORKER: &str = "TW_TEST_WORKER";

/// The first line of a worker's that `wanted` makes something of.
fn said<T>(worker: &mut Child, wanted: impl Fn(&str) -> Option<T>) -> T {
    let output = BufReader::new(worker.stdout.as_mut().unwrap());
    let found = output.lines().find_map(|line| wanted(&line.unwrap()));
    found.expect("the worker ended before it said so")
}

#[test]
fn bare_echoes_and_counts() {
    const NAME: &str = "bare_echoes_and_counts";
    if let Ok(job) = std::env::var(WORKER) {
        return worker_main(&job).unwrap();
    }
    if let Err(missing) = privilege::check() {
        return tidewall_skip::missing(NAME, missing);
    }
    let testbed = Testbed::new(Config::default()).unwrap();
    let counters = std::env::temp_dir().join(format!("tw-{}-bare", std::process::id()));
    let serve = |kind, port| ServiceSpec {
        kind,
        port,
        work: 0,
    };
    let service = ServiceJob {
        setup: Setup {
            system: System::Bare,
            services: vec![serve(Kind::Echo, 7), serve(Kind::Discard, 9)],
            ..Setup::default()
        },
        queues: 1,
        cpu: 0,
        counters: counters.clone(),
        watcher_cpu: None,
    };
    let job = Job::Service(Box::new(service));
    let mut server = worker(testbed.server(), NAME, &job);
    // The harness may have begun the line.
    said(&mut server, |line| line.ends_with("ready").then_some(()));
    let packets = 500;
    let load = LoadSpec {
        ping: Some(PingSpec::new("10.77.0.2:7".parse().unwrap())),
        blast: Some(BlastSpec {
            rate: Some(1_000),
            packets: Some(packets),
            ..BlastSpec::new(SenderKind::Socket, "10.77.0.2:9".parse().unwrap())
        }),
        ..LoadSpec::new(Duration::from_secs(1))
    };
    let job = Job::Load(Box::new(LoadJob {
        spec: load,
        counters: None,
        watch: None,
        every_ms: 0,
        trace: false,
    }));
    let mut client = worker(testbed.client(), NAME, &job);
    let outcome: LoadOutcome = said(&mut client, |line| {
        serde_json::from_str(&line[line.find('{')?..]).ok()
    });
    client.wait().unwrap();
    let echoed = outcome.report.ping.unwrap().whole.echoed;
    assert!(echoed > 0, "nothing came back");
    let counts = Reader::open(&counters).unwrap().read();
    assert!(counts[0].received >= echoed && counts[0].replies >= echoed);
    // Those by which the device's poll was found went through the kernel.
    assert!(counts[1].received > 0 && counts[1].received <= packets);
    assert_eq!(
        (counts[1].replies, counts[1].bytes),
        (0, 14 * counts[1].received)
    );
    // The end of its input ends it.
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    assert!(!counters.exists());
}
