//! How stacks end, and what they leave.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use tidewall_socket::control::{self, Trace};
use tidewall_socket::snapshot::StackSnapshot;
use tidewall_socket::{EmbeddedConfig, Stack};

use super::support::*;

const KNOBS: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];

fn knobs() -> Vec<String> {
    KNOBS
        .iter()
        .map(|name| std::fs::read_to_string(format!("/sys/class/net/{HERE}/{name}")).unwrap())
        .collect()
}

fn attached() -> bool {
    shell(&format!("ip link show {HERE}")).contains("xdp")
}

pub fn own_until_killed() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    println!("\nready");
    let _ = std::io::stdin().read(&mut [0]);
    echo.finish();
}

pub fn a_killed_owner_leaves_nothing_behind() {
    let before = knobs();
    for _ in 0..3 {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap() == "ready"),
            "the owner did not start"
        );
        assert!(attached());
        assert_ne!(knobs(), before);
        let client = peer_socket(PEER4);
        for n in 0..5u8 {
            ask(&client, at(HERE4, SERVICE), &[n; 8]);
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        // At once, while its queue may still be busy.
        let next = stack();
        let echo = Echo::start(&next, SERVICE);
        for n in 0..5u8 {
            ask(&client, at(HERE4, SERVICE), &[n; 8]);
        }
        echo.finish();
        drop(next);
        assert!(wait_until(|| !attached()), "the program is still attached");
        assert!(
            wait_until(|| knobs() == before),
            "{:?} instead of {before:?}",
            knobs()
        );
    }
}

pub fn stacks_can_follow_each_other_at_once() {
    let before = knobs();
    let client = peer_socket(PEER4);
    for n in 0..4u8 {
        let stack = stack();
        let busy = Stack::embedded(config()).map(drop).unwrap_err();
        assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy, "{busy}");
        let echo = Echo::start(&stack, SERVICE);
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
        echo.finish();
    }
    assert!(!attached());
    assert_eq!(knobs(), before);
    let missing = EmbeddedConfig {
        interface: "tw-none".to_owned(),
        ..config()
    };
    assert!(Stack::embedded(missing).is_err());
    for queues in [1, 3] {
        let config = EmbeddedConfig { queues, ..config() };
        let error = Stack::embedded(config).map(drop).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("2 receive queues"), "{error}");
    }
    assert_eq!(knobs(), before);
}

pub fn an_interface_that_goes_down_comes_back() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    shell(&format!("ip -n {} link set {PEER} down", peer_namespace()));
    shell(&format!("ip -n {} link set {PEER} up", peer_namespace()));
    assert!(
        wait_until(|| client.send_to(b"up?", at(HERE4, SERVICE)).is_ok()
            && client.recv(&mut [0; 8]).is_ok()),
        "no answer after the link came back"
    );
    echo.finish();
}

pub fn a_live_stack_answers_stat_and_trace() {
    let stack = stack_with(EmbeddedConfig {
        control: true,
        ..config()
    });
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..5u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let mine = format!("/{}.", std::process::id());
    let path = control::live()
        .unwrap()
        .into_iter()
        .find(|path| path.to_string_lossy().contains(&mine))
        .unwrap();
    let snapshot: StackSnapshot =
        serde_json::from_str(&control::ask(&path, "stat").unwrap()).unwrap();
    assert_eq!(snapshot.interface, HERE);
    assert_eq!(snapshot.sockets.len(), 1);
    assert!(snapshot.sockets[0].received >= 5);
    let tracer = {
        let path = path.clone();
        std::thread::spawn(move || control::ask(&path, "trace 4").unwrap())
    };
    std::thread::sleep(Duration::from_millis(100));
    for n in 0..6u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let trace: Trace = serde_json::from_str(&tracer.join().unwrap()).unwrap();
    assert_eq!(trace.frames.len(), 4, "{trace:?}");
    let ours: Vec<_> = trace
        .frames
        .iter()
        .filter(|frame| frame.verdict == "redirect")
        .collect();
    assert!(!ours.is_empty(), "{trace:?}");
    for frame in &ours {
        assert_eq!((frame.cause.as_str(), frame.bytes.len()), ("channel", 50));
        assert!(
            trace
                .lines
                .iter()
                .any(|line| line.frame == frame.frame && line.stage == "delivered"),
            "{trace:?}"
        );
    }
    echo.finish();
    drop(stack);
    assert!(!path.exists());
}
