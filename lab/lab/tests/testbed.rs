//! A test bed is built in full and leaves nothing behind. Needs root; otherwise skipped,
//! with a report.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use tidewall_lab::environment::Environment;
use tidewall_lab::testbed::{Config, Mode, Testbed, names, privilege};

/// Returns true if the test can run; otherwise reports why not.
fn possible(test: &str) -> bool {
    match privilege::check() {
        Ok(()) => true,
        Err(missing) => {
            tidewall_skip::missing(test, missing);
            false
        }
    }
}

fn in_namespace(namespace: &str, command: &[&str]) -> String {
    let output = Command::new("ip")
        .args(["netns", "exec", namespace])
        .args(command)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn mine() -> Vec<String> {
    let prefix = format!("tw-{}-", std::process::id());
    names()
        .into_iter()
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// A single test, so that it counts nothing of another's.
#[test]
fn a_test_bed_stands_and_leaves_nothing_behind() {
    if !possible("a_test_bed_stands_and_leaves_nothing_behind") {
        return;
    }
    let mut testbed = Testbed::new(Config {
        queues: 2,
        ..Config::default()
    })
    .unwrap();
    assert_eq!(mine().len(), 2);

    // Both versions of IP work at once, without resolution or detection.
    for address in ["10.77.0.2", "fd77::2"] {
        let script = format!("printf x > /dev/udp/{address}/9");
        in_namespace(testbed.client(), &["bash", "-c", &script]);
    }
    let counted = in_namespace(testbed.server(), &["cat", "/proc/self/net/snmp6"]);
    let arrived = counted
        .lines()
        .find(|line| line.starts_with("Udp6NoPorts"))
        .unwrap();
    assert_eq!(arrived.split_whitespace().nth(1), Some("1"), "{counted}");
    let counted = in_namespace(testbed.server(), &["grep", "Udp:", "/proc/self/net/snmp"]);
    let values: Vec<&str> = counted.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(values[2], "1", "NoPorts of {counted}");

    let mut environment = Environment::default();
    testbed.describe(&mut environment).unwrap();
    assert_eq!(environment.qdisc, "noqueue");
    assert_eq!(environment.offloads["client tx-checksumming"], "off");
    assert_eq!(environment.offloads["queues"], "2");

    let knob = |testbed: &Testbed, name: &str| {
        in_namespace(
            testbed.server(),
            &["cat", &format!("/sys/class/net/tw-b/{name}")],
        )
        .trim()
        .to_owned()
    };
    let steered = "queues/rx-1/rps_cpus";
    testbed.set_mode(Mode::Rps).unwrap();
    assert_eq!(knob(&testbed, steered), "2");
    assert_eq!(knob(&testbed, "gro_flush_timeout"), "0");
    testbed.set_mode(Mode::Timer).unwrap();
    assert_eq!(knob(&testbed, steered), "0");
    assert_eq!(knob(&testbed, "gro_flush_timeout"), "20000");
    testbed.set_mode(Mode::Busy).unwrap();
    assert_eq!(knob(&testbed, "gro_flush_timeout"), "1000000");
    testbed.set_mode(Mode::Tidewall).unwrap();
    assert_eq!(knob(&testbed, "gro_flush_timeout"), "0");
    assert_eq!(testbed.mode(), Some(Mode::Tidewall));

    // A second one of the same process does not disturb the first.
    let second = Testbed::new(Config::default()).unwrap();
    assert_eq!(mine().len(), 4);
    drop(second);
    assert_eq!(mine().len(), 2);

    // One with a bridge in the middle has two namespaces more. Nothing passes
    // there by itself.
    let bridged = Testbed::new(Config {
        bridge: true,
        ..Config::default()
    })
    .unwrap();
    assert_eq!(mine().len(), 6);
    assert!(testbed.middle().is_err());
    let links = in_namespace(bridged.middle().unwrap(), &["ip", "-o", "link"]);
    for interface in ["tw-ma", "tw-mb", "tw-mr"] {
        assert!(links.contains(interface), "{links}");
    }
    let memory = "/proc/sys/net/ipv4/tcp_no_metrics_save";
    let memory = in_namespace(bridged.rival().unwrap(), &["cat", memory]);
    assert_eq!(memory.trim(), "1");
    drop(bridged);
    assert_eq!(mine().len(), 2);
    drop(testbed);
    assert_eq!(mine(), Vec::<String>::new());
}

/// A killed process cannot remove its test bed; its restorer does.
#[test]
fn a_killed_lab_leaves_nothing_behind() {
    const CHILD: &str = "TW_TEST_KILLED_LAB";
    if !possible("a_killed_lab_leaves_nothing_behind") {
        return;
    }
    if let Ok(port) = std::env::var(CHILD) {
        // The process to be killed: reports when its test bed is complete.
        let testbed = Testbed::new(Config::default()).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .send_to(testbed.client().as_bytes(), format!("127.0.0.1:{port}"))
            .unwrap();
        loop {
            std::thread::park();
        }
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_lab_leaves_nothing_behind",
            "--nocapture",
        ])
        .env(CHILD, port.to_string())
        .spawn()
        .unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    let client = std::str::from_utf8(&buffer[..length]).unwrap().to_owned();
    let prefix = client.trim_end_matches('a').to_owned();
    let theirs = || {
        names()
            .into_iter()
            .filter(|name| name.starts_with(&prefix))
            .count()
    };
    assert_eq!(theirs(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while theirs() > 0 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(theirs(), 0, "the restorer of {client} left namespaces");
}
