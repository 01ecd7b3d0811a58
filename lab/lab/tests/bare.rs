//! `bare` answers and counts correctly. Needs root; otherwise skipped, with a report.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use tidewall_lab::testbed::{
    CLIENT, CLIENT_MAC_ADDRESS, Config, MIDDLE_CLIENT, MIDDLE_SERVER, SERVER, SERVER_MAC_ADDRESS,
    Testbed, privilege,
};
use tidewall_lab::worker::{
    ForwardJob, ForwardReport, ForwardSide, Job, LoadJob, LoadOutcome, ServiceJob, Setup,
};
use tidewall_lab::{System, worker_main};
use tidewall_load::{BlastSpec, LoadSpec, PingSpec, SenderKind};
use tidewall_service::{Kind, Reader, ServiceSpec};
use tidewall_wire::ethernet::MacAddress;

/// Starts a worker of the lab in a namespace: this very test.
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

/// Returns the result of `wanted` for the first line of a worker that has one.
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
        managed: None,
        steering: None,
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
    // The datagrams that found the device's poll went through the kernel.
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

/// Returns a kernel socket in a namespace.
fn socket(namespace: &str, address: SocketAddr) -> UdpSocket {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    let made = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        UdpSocket::bind(address).unwrap()
    });
    let socket = made.join().unwrap();
    let some = Some(Duration::from_millis(200));
    socket.set_read_timeout(some).unwrap();
    socket
}

#[test]
fn bare_forwards_both_ways_and_runs_out_of_no_frames() {
    const NAME: &str = "bare_forwards_both_ways_and_runs_out_of_no_frames";
    if let Ok(job) = std::env::var(WORKER) {
        return worker_main(&job).unwrap();
    }
    if let Err(missing) = privilege::check() {
        return tidewall_skip::missing(NAME, missing);
    }
    let bridged = Config {
        bridge: true,
        ..Config::default()
    };
    let testbed = Testbed::new(bridged).unwrap();
    let side = |interface: &str, address: Ipv4Addr, next_hop: MacAddress| ForwardSide {
        interface: interface.to_owned(),
        addresses: vec![address.into()],
        ports: vec![7],
        next_hop: next_hop.0,
    };
    let job = Job::Forward(ForwardJob {
        sides: [
            side(MIDDLE_CLIENT, SERVER.0, CLIENT_MAC_ADDRESS),
            side(MIDDLE_SERVER, CLIENT.0, SERVER_MAC_ADDRESS),
        ],
    });
    let mut middle = worker(testbed.middle().unwrap(), NAME, &job);
    said(&mut middle, |line| line.ends_with("ready").then_some(()));
    let client = socket(testbed.client(), (CLIENT.0, 7).into());
    let server = socket(testbed.server(), (SERVER.0, 7).into());
    let mut buffer = [0; 100];
    // More than there are frames. A lost one, such as those that find the poll, is sent
    // again.
    let mut exchanged = 0u32;
    let end = Instant::now() + Duration::from_secs(20);
    while exchanged < 10_000 {
        assert!(Instant::now() < end, "{exchanged} exchanges");
        let number = exchanged.to_be_bytes();
        client.send_to(&number, (SERVER.0, 7)).unwrap();
        let Ok((length, from)) = server.recv_from(&mut buffer) else {
            continue;
        };
        server.send_to(&buffer[..length], from).unwrap();
        match client.recv_from(&mut buffer) {
            Ok((length, _)) if buffer[..length] == number => exchanged += 1,
            _ => {}
        }
    }
    writeln!(middle.stdin.as_mut().unwrap(), "report").unwrap();
    let report: ForwardReport = said(&mut middle, |line| serde_json::from_str(line).ok());
    assert!(
        report.forwarded.iter().all(|&frames| frames >= 10_000),
        "{report:?}"
    );
    assert_eq!(report.not_sent, [0, 0]);
    drop(middle.stdin.take());
    assert!(middle.wait().unwrap().success());
}
