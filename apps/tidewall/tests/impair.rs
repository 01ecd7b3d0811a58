//! `tidewall impair` between veth pairs: every byte arrives, losses are counted,
//! resolution passes, and Ctrl-C leaves nothing behind. Needs root; otherwise skipped,
//! with a report.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{ChildStderr, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use tidewall_lab::testbed::{Config, MIDDLE_CLIENT, MIDDLE_SERVER, Testbed, names, privilege};

mod common;

use common::bed::Bed;
use common::{Running, signal};

/// Moves the calling thread into a named network namespace.
fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

const PORT: u16 = 7;
const TIMEOUT: Duration = Duration::from_secs(20);

fn testbed(test: &str) -> Option<Testbed> {
    if let Err(missing) = privilege::check() {
        tidewall_skip::missing(test, missing);
        return None;
    }
    let config = Config {
        bridge: true,
        ..Config::default()
    };
    Some(Testbed::new(config).unwrap())
}

fn shell(namespace: &str, script: &str) -> String {
    let output = Bed::other(namespace, "bash", &["-ec", script])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// A bridge that forwards, and its standard error.
struct Forwarding {
    bridge: Running,
    _errors: BufReader<ChildStderr>,
}

fn impair(testbed: &Testbed, options: &[&str]) -> Forwarding {
    let mut arguments = vec!["impair", MIDDLE_CLIENT, MIDDLE_SERVER, "--json"];
    arguments.extend(options);
    let mut child = Bed::command(testbed.middle().unwrap(), &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    assert!(
        line.contains("forwarding between tw-ma and tw-mb"),
        "{line}"
    );
    Forwarding {
        bridge: Running(child),
        _errors: errors,
    }
}

/// Ends the bridge as Ctrl-C does; returns its exit code and its report.
fn end(mut forwarding: Forwarding) -> (Option<i32>, Value) {
    let bridge = &mut forwarding.bridge;
    signal("-INT", bridge);
    let mut text = String::new();
    let mut output = bridge.0.stdout.take().unwrap();
    output.read_to_string(&mut text).unwrap();
    let status = bridge.0.wait().unwrap();
    (status.code(), serde_json::from_str(&text).unwrap())
}

/// Has `bytes` echoed over one connection across the bridge; returns how long connecting
/// took.
fn echo(testbed: &Testbed, bytes: usize) -> Duration {
    let (listening, is_listening) = std::sync::mpsc::channel();
    let server = testbed.server().to_owned();
    let server = thread::spawn(move || {
        enter(&server);
        let listener = TcpListener::bind(("10.77.0.2", PORT)).unwrap();
        listening.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    is_listening.recv().unwrap();
    let client = testbed.client().to_owned();
    let client = thread::spawn(move || {
        enter(&client);
        let begun = Instant::now();
        let mut stream = TcpStream::connect(("10.77.0.2", PORT)).unwrap();
        let connecting = begun.elapsed();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let sent: Vec<u8> = (0..bytes).map(|number| (number / 7) as u8).collect();
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} of {bytes} bytes came back", back.len());
        connecting
    });
    server.join().unwrap();
    client.join().unwrap()
}

#[test]
fn a_bad_path_carries_every_byte_and_counts_what_it_loses() {
    let Some(testbed) = testbed("a_bad_path_carries_every_byte_and_counts_what_it_loses") else {
        return;
    };
    // Resolution has to work across the bridge, too.
    shell(
        testbed.client(),
        "ip neigh del 10.77.0.2 dev tw-a; ip -6 neigh del fd77::2 dev tw-a",
    );
    let bad =
        "--loss 2% --delay 5ms --rate 50mbit --reorder 5% --reorder-by 2ms --seed 3 --for 30s";
    let bad: Vec<&str> = bad.split(' ').collect();
    let bridge = impair(&testbed, &bad);
    let connecting = echo(&testbed, 400_000);
    assert!(connecting >= Duration::from_millis(10), "{connecting:?}");
    shell(testbed.client(), "printf x > /dev/udp/fd77::2/9");
    let deadline = Instant::now() + TIMEOUT;
    while !shell(testbed.client(), "ip -6 neigh show fd77::2").contains("lladdr") {
        assert!(Instant::now() < deadline, "fd77::2 was not resolved");
    }
    let promiscuous = |wanted: &str| {
        let link = shell(testbed.middle().unwrap(), "ip -d link show tw-ma");
        assert!(link.contains(&format!("promiscuity {wanted} ")), "{link}");
    };
    promiscuous("1");

    let (code, report) = end(bridge);
    assert_eq!(code, Some(0), "{report}");
    for side in ["from_left", "from_right"] {
        let way = |name: &str| report[side][name].as_u64().unwrap();
        let packets = way("packets");
        assert!(packets > 280, "{report}");
        let lost = way("lost");
        assert!(lost > 0 && lost < packets / 10, "{report}");
        assert!(way("reordered") > 0, "{report}");
        assert!(
            way("delivered") + lost + way("dropped") <= packets,
            "{report}"
        );
    }
    for itself in ["refused", "not_taken", "not_sent"] {
        assert_eq!(report[itself], 0, "{report}");
    }
    // A request and an answer of ARP and of neighbour discovery.
    assert!(report["passed"].as_u64().unwrap() >= 4, "{report}");
    promiscuous("0");

    // Without a bridge nothing passes.
    let ping = Bed::other(
        testbed.client(),
        "bash",
        &["-c", "timeout 0.3 bash -c '< /dev/tcp/10.77.0.2/7'"],
    )
    .output()
    .unwrap();
    assert!(!ping.status.success());

    drop(testbed);
    let mine = format!("tw-{}-", std::process::id());
    let left: Vec<_> = names()
        .into_iter()
        .filter(|name| name.starts_with(&mine))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_no_packet_of_a_wire_is_refused_and_reported() {
    let Some(testbed) = testbed("what_is_no_packet_of_a_wire_is_refused_and_reported") else {
        return;
    };
    shell(testbed.client(), "ethtool -K tw-a tx on");
    let bridge = impair(&testbed, &["--for", "30s"]);
    shell(testbed.client(), "printf x > /dev/udp/10.77.0.2/9");
    // The frame has arrived once the bridge has seen the next one, which is sound.
    shell(
        testbed.client(),
        "ethtool -K tw-a tx off; printf x > /dev/udp/10.77.0.2/9",
    );
    let counted = || shell(testbed.server(), "grep Udp: /proc/self/net/snmp");
    let deadline = Instant::now() + TIMEOUT;
    while counted().lines().nth(1).unwrap().split_whitespace().nth(2) != Some("1") {
        assert!(Instant::now() < deadline, "{}", counted());
    }
    let (code, report) = end(bridge);
    assert_eq!(code, Some(1));
    assert_eq!(report["refused"], 1, "{report}");
    assert!(
        report["from_left"]["delivered"].as_u64().unwrap() >= 1,
        "{report}"
    );
}
