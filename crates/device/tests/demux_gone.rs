//! The driver program's treatment of frames of an application without an AF_XDP socket:
//! on a queue that was added later, and after the end of its process.

mod demux_support;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use demux_support::outcome::{DROP, PASS, REDIRECT, TRANSMIT};
use demux_support::{HASH_KEY, SHARE, af_xdp, corpus, set_up};
use tidewall_device::demux::layout::Counter;
use tidewall_manager::{Program, TestResult};

/// The program with an application's socket on queue 0; `None`, with a message, without
/// the privilege.
fn program(test: &str) -> Option<(Program, OwnedFd)> {
    let skip = |error: io::Error| {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let what = format!("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN, CAP_NET_RAW ({error})");
        tidewall_skip::missing(test, what);
    };
    let mut program = Program::load_with_key(HASH_KEY).map_err(skip).ok()?;
    let socket = af_xdp().map_err(skip).ok()?;
    program.set_socket(0, 0, socket.as_fd()).unwrap();
    set_up(&program.tables());
    Some((program, socket))
}

fn run(program: &mut Program, name: &str) -> TestResult {
    let sample = corpus().into_iter().find(|sample| sample.name == name);
    program.test_run(&sample.expect(name).bytes).unwrap()
}

/// Closes a socket, which leaves the map by itself.
fn close(program: &mut Program, socket: OwnedFd) {
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(10);
    while run(program, "v4-udp-any").action == REDIRECT {
        assert!(Instant::now() < deadline, "the socket stays in the map");
        std::thread::yield_now();
    }
}

fn counter(program: &Program, counter: Counter) -> u64 {
    program.tables().trusted.counter(0, counter)
}

#[test]
fn without_a_socket_the_channel_is_not_charged() {
    let Some((mut program, socket)) = program("without_a_socket_the_channel_is_not_charged") else {
        return;
    };
    // The application lives: it has another queue.
    let other = af_xdp().unwrap();
    program.set_socket(0, 3, other.as_fd()).unwrap();
    close(&mut program, socket);
    let before = counter(&program, Counter::NoSocket);
    // The kernel socket that holds the port receives datagrams and SYNs; a segment that
    // may belong to a connection here would be reset there.
    let sample = corpus().into_iter().find(|of| of.name == "v4-udp-any");
    let result = run(&mut program, "v4-udp-any");
    assert_eq!((result.action, result.frame), (PASS, sample.unwrap().bytes));
    assert_eq!(counter(&program, Counter::NoSocket), before + 1);
    for (name, action) in [("v4-strict-syn", PASS), ("v4-strict-flow-ack", DROP)] {
        assert_eq!(run(&mut program, name).action, action, "{name}");
    }
    assert_eq!(counter(&program, Counter::NoSocket), before + 3);
    // Nor is a channel open on a queue that was added later.
    let tables = program.tables();
    tables.embedded.set_limit(0, 1, 0);
    assert_eq!(run(&mut program, "v4-udp-any").action, PASS);
    assert_eq!(counter(&program, Counter::NoSocket), before + 4);
    assert_eq!(counter(&program, Counter::ChannelClosed), 0);
    assert_eq!(
        u64::from(tables.embedded.head(0, 1)),
        counter(&program, Counter::Channel)
    );
}

#[test]
fn the_kernel_answers_for_a_process_that_has_ended() {
    let Some((mut program, socket)) = program("the_kernel_answers_for_a_process_that_has_ended")
    else {
        return;
    };
    let tables = program.tables();
    tables.embedded.set_share(SHARE, 1);
    let full = ["v4-udp-small-limit", "circuit-small-limit"];
    let causes = [
        Counter::ChannelFull,
        Counter::ChannelClosed,
        Counter::OverShare,
        Counter::CookieSent,
        Counter::NoConnection,
    ];
    let all = |program: &mut Program| {
        tables.trusted.forget_fragments();
        let samples = corpus();
        let long = samples.iter().filter(|sample| sample.bytes.len() >= 14);
        let actions = long.map(|sample| program.test_run(&sample.bytes).unwrap().action);
        let actions: Vec<u32> = actions.collect();
        let counts = causes.map(|cause| counter(program, cause));
        (actions, counts)
    };
    let (actions, living) = all(&mut program);
    assert!(living.iter().all(|&count| count > 0), "{living:?}");
    assert!(actions.contains(&TRANSMIT));
    // Full when it dies.
    for full in full {
        assert_eq!(run(&mut program, full).action, DROP);
    }

    close(&mut program, socket);
    // Frames for a full channel trigger a check now and then.
    for full in full {
        let passed = (0..16).position(|_| run(&mut program, full).action == PASS);
        assert!(passed.is_some(), "{full}");
        assert_eq!(run(&mut program, full).action, PASS, "and then no more");
    }
    let before = causes.map(|cause| counter(&program, cause));
    let (actions, after) = all(&mut program);
    assert!(!actions.contains(&TRANSMIT) && !actions.contains(&REDIRECT));
    // Those of no connection are also left to the kernel under that name.
    assert_eq!(before[..4], after[..4]);
    for name in [
        "v4-strict-flow-ack",
        "v6-strict-flow-ack",
        "v4-cookies-syn-linux",
    ] {
        assert_eq!(run(&mut program, name).action, PASS, "{name}");
    }
}
