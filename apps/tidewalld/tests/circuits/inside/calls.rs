//! Calls and circuits in normal operation, and the leftovers of killed processes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use tidewall::{AtmSocket, Circuit};
use tidewall_manager::protocol::Answer;

use crate::ends::*;
use crate::killed_callers;
use crate::support::application::drop_privileges;
use crate::support::*;

#[test]
#[ignore = "started by the test of this name"]
fn permanent_circuits_are_those_that_are_granted() {
    let (_here, _there) = (End::Here.daemon(), End::There.daemon());
    let circuit = Circuit { vpi: 0, vci: 100 };
    let other = Circuit { vpi: 0, vci: 200 };
    let mut server = End::There.serve_on(4711, "0.100");
    let stack = stack_of(TRUSTED);
    assert_eq!(errno(AtmSocket::bind(&stack, other)), Some(Errno::ACCESS));
    let socket = AtmSocket::bind(&stack, circuit).unwrap();
    assert_eq!(
        errno(AtmSocket::bind(&stack, circuit)),
        Some(Errno::ADDRINUSE)
    );
    for _ in 0..3 {
        echo(&socket, b"a payload").unwrap();
    }
    drop(socket);
    wait_until("it is nobody's here", || End::Here.is_idle());
    assert!(!End::There.is_idle());
    drop(AtmSocket::bind(&stack, circuit).unwrap());
    server.kill();
    wait_until("it is nobody's there", || End::There.is_idle());
    assert_eq!(trusted().owned_circuits(), []);
}

#[test]
#[ignore = "started by the test of this name"]
fn private_applications_of_one_manager_call_each_other() {
    call_each_other(End::Here.daemon(), "through one manager");
}

#[test]
#[ignore = "started by the test of this name"]
fn a_manager_of_threads_does_the_same() {
    let daemon = End::Here.daemon_with(&["--atm-threads"]);
    call_each_other(daemon, "through one of threads");
}

fn call_each_other(daemon: Daemon, what: &str) {
    let mut server = End::Here.serve(4711);
    let stack = stack_of(4712);
    let to = number(HERE, SELECTOR);
    drop(call(&stack, to));
    exchange(&stack, to, what);
    let refused = errno(AtmSocket::connect(&stack, number(HERE, 1)));
    assert_eq!(refused, Some(Errno::CONNREFUSED));
    let socket = call(&stack, to);
    echo(&socket, b"before").unwrap();
    server.kill();
    assert_eq!(ending(&socket), Some(Errno::CONNRESET));
    drop(socket);
    wait_until("nothing is left", || End::Here.is_idle());
    drop(stack);
    // The daemon ends, with all of its threads.
    let mut daemon = daemon;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&daemon.0),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(daemon.0.wait().unwrap().success());
}

#[test]
#[ignore = "started by the test of this name"]
fn applications_call_each_other_over_a_link() {
    let (_here, _there) = (End::Here.daemon(), End::There.daemon());
    let mut server = End::There.serve(4711);
    let stack = stack_of(TRUSTED);
    let to = number(THERE, SELECTOR);
    drop(call(&stack, to));
    exchange(&stack, to, "over a link");
    let refused = errno(AtmSocket::connect(&stack, number(THERE, 1)));
    assert_eq!(refused, Some(Errno::CONNREFUSED));
    let socket = call(&stack, to);
    echo(&socket, b"before").unwrap();
    server.kill();
    assert_eq!(ending(&socket), Some(Errno::CONNRESET));
    // In the other direction.
    drop((socket, stack));
    let mut server = End::Here.serve(4712);
    let mut caller = End::There.call(4711);
    wait_until("it has called", || End::Here.counters().calls == 1);
    caller.kill();
    wait_until("nothing is left", || {
        End::Here.is_idle() && End::There.is_idle()
    });
    server.kill();
}

/// Calls repeatedly, in each direction in turn, until it is killed.
#[test]
#[ignore = "started by the tests"]
fn calls_until_it_is_killed() {
    drop_privileges(4713);
    let client = client();
    let notices = Arc::new(Mutex::new(Vec::new()));
    let kept = notices.clone();
    let deliver = move |_, connection| kept.lock().unwrap().push(connection);
    client.attach_atm(Arc::new(deliver)).unwrap();
    let notices = notices.lock().unwrap().pop().unwrap();
    println!("calls");
    for round in 1.. {
        let of = if round % 2 == 0 { HERE } else { THERE };
        let (to, options) = (number(of, SELECTOR).into(), Default::default());
        client.atm_call(round, &to, None, &options).unwrap();
        // Until it is connected, or rejected; every third call is released at once.
        let is_over = |bytes: &[u8]| match Answer::parse(bytes).unwrap().1 {
            Answer::AtmConnected(of) => of.call == round,
            Answer::AtmEnded(of) => of.call == round,
            _ => false,
        };
        if round % 3 != 0 {
            while !is_over(&notices.receive().unwrap().unwrap().bytes) {}
        }
        client.atm_release(round, 16);
    }
}

#[test]
#[ignore = "started by the test of this name"]
fn callers_killed_at_any_point_leave_nothing() {
    let (here, there) = (End::Here.daemon(), End::There.daemon());
    let _servers = [End::Here.serve(4711), End::There.serve(4711)];
    let descriptors = |of: &Daemon| {
        let files = format!("/proc/{}/fd", of.0.id());
        std::fs::read_dir(files).unwrap().count()
    };
    let left = || {
        wait_until("nothing is left", || {
            End::Here.is_idle() && End::There.is_idle()
        });
        wait_until("it has cleared them away", || {
            End::Here.counters().applications == 1
        });
        let of = |daemon| (descriptors(daemon), memory(daemon.0.id(), "VmRSS"));
        [of(&here), of(&there)]
    };
    let (mut random, mut before) = (0x5eed_0018_u64, None);
    for caller in 0..killed_callers() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "inside::calls::calls_until_it_is_killed",
            "--ignored",
        ]);
        command.args(["--nocapture"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("calls") {}
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 8_000));
        child.kill().unwrap();
        child.wait().unwrap();
        if caller == 9 {
            before = Some(left());
        }
    }
    let (before, after) = (before.unwrap(), left());
    for ((descriptors, kib), (after, kib_after)) in before.into_iter().zip(after) {
        println!(
            "{} KiB more than after the first ten",
            kib_after as i64 - kib as i64
        );
        // The tables in stock for applications vary.
        assert!(
            after < descriptors + 8,
            "{after} descriptors, {descriptors} before"
        );
    }
    assert_eq!(trusted().owned_circuits(), []);
}

#[test]
#[ignore = "started by the test of this name"]
fn calls_outlive_their_manager() {
    let (mut here, mut there) = (End::Here.daemon(), End::There.daemon());
    let _server = End::There.serve(4711);
    let stack = stack_of(TRUSTED);
    let to = number(THERE, SELECTOR);
    // Any user's request to a restarted manager presents the application.
    let of_user = || as_user(TRUSTED, || call(&stack, to));
    let socket = of_user();
    echo(&socket, b"before").unwrap();
    drop(here);
    echo(&socket, b"without a manager here").unwrap();
    here = End::Here.daemon();
    echo(&socket, b"with the next one").unwrap();
    let second = of_user();
    assert_ne!(socket.circuit(), second.circuit());
    drop(there);
    there = End::There.daemon();
    let third = of_user();
    for socket in [&socket, &second, &third] {
        echo(socket, b"with two next ones").unwrap();
    }
    assert_eq!(End::Here.counters().calls, 3);
    as_user(TRUSTED, || drop((socket, second, third)));
    wait_until("nothing is left", || {
        End::Here.is_idle() && End::There.is_idle()
    });
    drop((here, there));
    let nobody = as_user(TRUSTED, || errno(AtmSocket::connect(&stack, to)));
    assert_eq!(nobody, Some(Errno::UNATCH));
}
