//! Threads of different priorities. Root may raise them again.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket as KernelSocket};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities, gettid, set_capabilities};

use tidewall::{Stack, UdpSocket};

use super::support::*;

/// Longer than threads keep what they know of their priorities.
const KNOWN: Duration = Duration::from_millis(120);
/// Between two questions: both services sleep by then.
const PAUSE: Duration = Duration::from_millis(1);
const QUESTIONS: u64 = 100;
/// As many as make a leader resign, and some.
const TO_SETTLE: u64 = 40;

/// An echo service in a thread whose priority others change.
struct Service {
    thread: Pid,
    port: u16,
}

impl Service {
    fn start(stack: &Stack, port: u16) -> Service {
        let socket = UdpSocket::bind(stack, at(Ipv4Addr::UNSPECIFIED, port)).unwrap();
        let (send, receive) = channel();
        std::thread::spawn(move || {
            send.send(gettid()).unwrap();
            let mut buffer = [0; 64];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&buffer[..length], from).unwrap();
            }
        });
        let thread = receive.recv().unwrap();
        Service { thread, port }
    }

    /// Sets its nice value, which it knows once it was asked.
    fn nice(&self, nice: i32, client: &KernelSocket) {
        setpriority_process(Some(self.thread), nice).unwrap();
        std::thread::sleep(KNOWN);
        self.ask(client, TO_SETTLE);
    }

    fn ask(&self, client: &KernelSocket, questions: u64) {
        for _ in 0..questions {
            ask(client, at(HERE4, self.port), b"question");
            std::thread::sleep(PAUSE);
        }
    }

    /// How often it has slept.
    fn sleeps(&self) -> u64 {
        let task = format!("/proc/self/task/{}/status", self.thread);
        let status = fs::read_to_string(task).unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// How often it sleeps while another is asked [`QUESTIONS`].
    fn woken_beside(&self, other: &Service, client: &KernelSocket) -> u64 {
        other.ask(client, TO_SETTLE);
        let before = self.sleeps();
        other.ask(client, QUESTIONS);
        self.sleeps() - before
    }
}

pub fn the_sleeper_of_the_highest_priority_leads() {
    let stack = stack_with(config().spin(Some(Duration::ZERO)));
    stack.start_helper().unwrap();
    let client = peer_socket(PEER4);
    let (one, other) = (
        Service::start(&stack, SERVICE),
        Service::start(&stack, SERVICE + 1),
    );
    // A leader is woken for all frames.
    for (nice, leads) in [(-5, true), (10, false), (-1, true), (5, false)] {
        other.nice(nice, &client);
        let woken = other.woken_beside(&one, &client);
        println!("at nice {nice} beside nice 0: woken {woken} times for {QUESTIONS} questions");
        assert_eq!(woken > QUESTIONS / 2, leads, "nice {nice}: {woken}");
        if nice > 0 {
            let woken = one.woken_beside(&other, &client);
            assert!(woken > QUESTIONS / 2, "the higher one: {woken}");
        }
    }
}

/// The nice value of this process's helper, and its class; `None` until it has its name.
fn helper() -> Option<(i32, i32)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("stat")));
    let stats: Vec<_> = stats.collect::<io::Result<_>>().unwrap();
    let of = |stat: &String| {
        let (_, fields) = stat.split_once("(tidewall-helper) ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        // Fields 19 and 41 of proc_pid_stat(5), of which two are before.
        Some((fields[16].parse().unwrap(), fields[38].parse().unwrap()))
    };
    stats.iter().find_map(of)
}

/// Waits until the helper, which the service keeps busy, has a nice value and a class.
fn until(client: &KernelSocket, expected: (i32, i32)) {
    let end = Instant::now() + Duration::from_secs(10);
    while helper() != Some(expected) {
        assert!(Instant::now() < end, "{:?} and not {expected:?}", helper());
        ask(client, at(HERE4, SERVICE), b"question");
    }
}

pub fn the_helper_follows_the_thread_that_started_it() {
    let stack = stack();
    let client = peer_socket(PEER4);
    let echo = Echo::start(&stack, SERVICE);
    let until = |expected| until(&client, expected);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            setpriority_process(Some(gettid()), 3).unwrap();
            stack.start_helper().unwrap();
            let own = |nice| setpriority_process(Some(gettid()), nice).unwrap();
            until((3, libc::SCHED_OTHER));
            own(7);
            until((7, libc::SCHED_OTHER));
            own(-2);
            until((-2, libc::SCHED_OTHER));
            tidewall_sys::set_fifo(1).unwrap();
            until((-2, libc::SCHED_FIFO));
        });
        owner.join().unwrap();
    });
    // The owner is the process's first thread now.
    let first = rustix::process::getpid();
    setpriority_process(Some(first), 4).unwrap();
    until((4, libc::SCHED_OTHER));
    assert_eq!(stack.warnings(), [] as [String; 0]);
    echo.finish();
}

pub fn a_helper_that_may_not_follow_says_so_once() {
    let stack = stack();
    let client = peer_socket(PEER4);
    let echo = Echo::start(&stack, SERVICE);
    let nice = |thread, nice| setpriority_process(Some(thread), nice).unwrap();
    let (send, receive) = channel();
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let stack = &stack;
        scope.spawn(move || {
            nice(gettid(), 5);
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            sets.permitted.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            stack.start_helper().unwrap();
            send.send(gettid()).unwrap();
            let _ = ended.recv();
        });
        let owner = receive.recv().unwrap();
        until(&client, (5, libc::SCHED_OTHER));
        nice(owner, 2);
        let asked = || ask(&client, at(HERE4, SERVICE), b"question");
        assert!(wait_until(|| {
            asked();
            !stack.warnings().is_empty()
        }));
        nice(owner, 1);
        let end_of_second = Instant::now() + 3 * KNOWN;
        while Instant::now() < end_of_second {
            asked();
        }
        let warnings = stack.warnings();
        assert!(
            matches!(&*warnings, [one] if one.contains("CAP_SYS_NICE")),
            "{warnings:?}"
        );
        until(&client, (5, libc::SCHED_OTHER));
        nice(owner, 9);
        until(&client, (9, libc::SCHED_OTHER));
        drop(end);
    });
    echo.finish();
}
