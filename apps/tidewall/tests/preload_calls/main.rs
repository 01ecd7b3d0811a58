//! Random sequences of the C library's socket calls, made twice by the same program: with
//! `libtidewall.so` and without. Each call's result, its errno and its data are the same.
//! Needs root; skipped without.

#[path = "../common/mod.rs"]
mod common;
mod handlers;
mod killed;
mod peer;
mod raw_calls;
mod subject;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use common::host::{Host, library};
use common::text;
use rustix::io::{FdFlags, fcntl_setfd};

/// Selects the sequence of calls.
const SEED: &str = "TIDEWALL_TEST_SEED";
/// A descriptor of the peer's network namespace.
const PEER: &str = "TIDEWALL_TEST_PEER";
/// The first of the ports: each run has its own, as connections of the previous one
/// linger.
const PORT: &str = "TIDEWALL_TEST_PORT";
/// File for the results of the calls.
const LOG: &str = "TIDEWALL_TEST_LOG";

/// The program that makes the calls; by itself it does nothing. Without a file for their
/// results it reports each step, until it is killed.
#[test]
fn subject() {
    if let (Ok(seed), Ok(peer)) = (std::env::var(SEED), std::env::var(PEER)) {
        let peer = peer::Peer::new(peer.parse().unwrap());
        let port = std::env::var(PORT).unwrap().parse().unwrap();
        let seed = seed.parse().unwrap();
        match std::env::var(LOG) {
            Ok(log) => std::fs::write(log, subject::run(seed, port, peer).join("\n")).unwrap(),
            Err(_) => subject::run_on(seed, port, peer),
        }
    }
}

/// Returns the peer's namespace, for programs that are started here.
fn peer_namespace(host: &Host) -> File {
    let peer = File::open(format!("/run/netns/{}", host.bed.client)).unwrap();
    fcntl_setfd(&peer, FdFlags::empty()).unwrap();
    peer
}

/// Returns the results of the calls, in lines.
fn log_of(host: &Host, seed: u64, preloaded: bool) -> Vec<String> {
    let log = std::env::temp_dir().join(format!("{}.{seed}", host.bed.interface));
    let _ = std::fs::remove_file(&log);
    let peer = peer_namespace(host);
    let program = std::env::current_exe().unwrap();
    let report = log.with_extension("report");
    std::fs::write(&report, "").unwrap();
    let words = [
        format!("{SEED}={seed}"),
        format!("{PEER}={}", peer.as_raw_fd()),
        format!("{LOG}={}", log.display()),
        format!("{PORT}={}", 7000 + 8 * seed + 4 * u64::from(preloaded)),
        format!("LD_PRELOAD={}", library().display()),
        format!("TIDEWALL_REPORT={}", report.display()),
    ];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if !preloaded {
        words.truncate(4);
    }
    let exact = [program.to_str().unwrap(), "--exact", "subject"];
    let command = [&["timeout", "120", "env"], &words[..], &exact].concat();
    let mut run: Command = match preloaded {
        true => host.run(&[], &command),
        false => host.command(command[0], &command[1..]),
    };
    let output = run.stdin(Stdio::null()).output().unwrap();
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    assert!(output.status.success(), "seed {seed}: {said}");
    let reported = std::fs::read_to_string(&report).unwrap();
    assert_eq!(
        reported.contains("\tpromoted\tlistener"),
        preloaded,
        "{reported}"
    );
    let lines = std::fs::read_to_string(&log).unwrap();
    let _ = std::fs::remove_file(&log);
    let _ = std::fs::remove_file(&report);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn calls_return_what_linux_returns() {
    let Some(host) = Host::or_skip("calls_return_what_linux_returns", "pd") else {
        return;
    };
    for seed in 1..=4 {
        let linux = log_of(&host, seed, false);
        let own = log_of(&host, seed, true);
        for (number, (linux, own)) in linux.iter().zip(&own).enumerate() {
            assert_eq!(
                linux, own,
                "seed {seed}, call {number}: Linux left, Tidewall right"
            );
        }
        assert_eq!(linux.len(), own.len(), "seed {seed}");
        assert!(
            linux.len() > subject::STEPS / 2,
            "seed {seed}: {}",
            linux.len()
        );
    }
}
