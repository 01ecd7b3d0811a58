//! Threads that sleep, and what wakes them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream as KernelStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewall::tcp::Interest;
use tidewall::{Selector, TcpListener};

use super::raw_system;
use super::support::*;
use super::tcp::switches;

pub fn an_idle_service_uses_no_cpu() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..10u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    // Work left by the last exchange is over soon.
    std::thread::sleep(Duration::from_millis(200));
    let before = raw_system::processor_time();
    let rounds = stack.snapshot().queues[0].rounds;
    std::thread::sleep(Duration::from_secs(1));
    let used = raw_system::processor_time() - before;
    let rounds = stack.snapshot().queues[0].rounds - rounds;
    println!("idle for a second: {used:?} of processor time, {rounds} rounds");
    assert!(
        used < Duration::from_millis(10),
        "{used:?}, {rounds} rounds"
    );
    ask(&client, at(HERE4, SERVICE), b"awake");
    echo.finish();
}

pub fn threads_on_different_sockets_hand_the_lead_on() {
    let stack = stack();
    let services: Vec<Echo> = (0..4).map(|n| Echo::start(&stack, SERVICE + n)).collect();
    let client = peer_socket(PEER4);
    for n in 0..10u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let start = Instant::now();
    let mut lost = 0;
    for round in 0..500u16 {
        // Now in turn, now the same one again and again.
        let port = SERVICE
            + if round % 50 < 25 {
                round % 4
            } else {
                round / 50 % 4
            };
        lost += u32::from(!ask_once(&client, at(HERE4, port), &round.to_be_bytes()));
    }
    assert_eq!(lost, 0, "questions without an answer");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    // Leaders go for good; the others carry on.
    let mut left = services;
    while left.len() > 1 {
        left.remove(0).finish();
        let first = SERVICE + 4 - left.len() as u16;
        for n in 0..10u8 {
            assert!(ask_once(&client, at(HERE4, first), &[n; 8]), "nobody leads");
        }
    }
    left.remove(0).finish();
}

pub fn a_sleeper_is_served_beside_a_thread_that_polled() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    for n in 0..10u8 {
        ask(&client, at(HERE4, SERVICE), &[n; 8]);
    }
    let poller = bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE + 1));
    poller.set_nonblocking(true).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    for _ in 0..20 {
        // Polls the device, which leaves it masked, and goes away.
        let end = Instant::now() + Duration::from_millis(15);
        while Instant::now() < end {
            assert!(poller.recv(&mut [0; 8]).is_err());
        }
        let start = Instant::now();
        assert!(ask_once(&client, at(HERE4, SERVICE), b"asleep?"));
        let took = start.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}");
    }
    // And while it polls.
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                assert!(poller.recv(&mut [0; 8]).is_err());
            }
        })
    };
    let lost = (0..50)
        .filter(|_| !ask_once(&client, at(HERE4, SERVICE), b"beside?"))
        .count();
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    assert_eq!(lost, 0);
    echo.finish();
}

/// How often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// A question wakes the server, and the acknowledgment of its answer does not.
pub fn an_acknowledgment_alone_wakes_nobody() {
    const QUESTIONS: u64 = 500;
    const ANSWER: usize = 2000;
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let client = spawn_in_peer(|| {
        let mut stream = KernelStream::connect(at(HERE4, SERVICE)).unwrap();
        stream.set_nodelay(true).unwrap();
        for _ in 0..QUESTIONS {
            stream.write_all(b"question").unwrap();
            stream.read_exact(&mut [0; ANSWER]).unwrap();
            // The server sleeps by now, and what has waited is not forgotten for it.
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut question = [0; 8];
    let mut before = 0;
    for number in 0..QUESTIONS {
        stream.read_exact(&mut question).unwrap();
        stream.write_all(&[1; ANSWER]).unwrap();
        if number == QUESTIONS / 5 {
            before = sleeps();
        }
    }
    let asked = QUESTIONS - 1 - QUESTIONS / 5;
    let each = (sleeps() - before) as f64 / asked as f64;
    let info = stream.info().unwrap();
    client.join().unwrap();
    println!(
        "{each:.2} sleeps a question, round trip {:?}",
        info.round_trip
    );
    assert!(each < 1.5, "{each:.2} sleeps a question");
    // Were it left lying, each answer would be sent again; a machine that is busy repeats a few.
    let few = (QUESTIONS / 20) as u32;
    assert!(info.retransmissions < few, "{info:?}");
}

/// A thread that only accepts leads at first, having slept longest. But each request belongs
/// to another thread, which is woken alone then. Both work when they are needed again.
pub fn a_thread_that_only_accepts_is_not_woken_for_requests() {
    const QUESTIONS: u64 = 100;
    const PATIENCE: Duration = Duration::from_secs(5);
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let (accepted, connections) = std::sync::mpsc::channel();
    let accepts = std::thread::Builder::new().name("tw-accepts".to_owned());
    let accepts = accepts
        .spawn(move || {
            for _ in 0..3 {
                accepted.send(listener.accept().unwrap().0).unwrap();
            }
        })
        .unwrap();
    let connect = || in_peer(|| KernelStream::connect(at(HERE4, SERVICE)).unwrap());
    let mut client = connect();
    client.set_nodelay(true).unwrap();
    let mut stream = connections.recv_timeout(PATIENCE).unwrap();
    let serves = std::thread::spawn(move || {
        let mut question = [0; 8];
        while stream.read_exact(&mut question).is_ok() {
            stream.write_all(&question).unwrap();
        }
    });
    let mut woken = || {
        let before = switches("tw-accepts");
        for _ in 0..QUESTIONS {
            client.write_all(b"question").unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        switches("tw-accepts") - before
    };
    // On a busy machine the other has not always fallen asleep again when the next one comes.
    let woken: Vec<u64> = (0..10).map(|_| woken()).collect();
    println!("woken {woken:?} times for {QUESTIONS} questions to another");
    assert!(woken.iter().any(|&it| it < QUESTIONS / 4));
    let _second = connect();
    connections.recv_timeout(PATIENCE).unwrap();
    // Only the accepting thread is left.
    drop(client);
    serves.join().unwrap();
    let _third = connect();
    connections.recv_timeout(PATIENCE).unwrap();
    accepts.join().unwrap();
}

/// Between two questions it sleeps, and the device's interrupt brings them.
pub fn a_selector_that_sleeps_polls_no_device() {
    const QUESTIONS: u64 = 500;
    let stack = stack_with(config().spin(Duration::ZERO));
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let client = spawn_in_peer(|| {
        let mut stream = KernelStream::connect(at(HERE4, SERVICE)).unwrap();
        stream.set_nodelay(true).unwrap();
        for _ in 0..QUESTIONS {
            stream.write_all(b"question").unwrap();
            stream.read_exact(&mut [0; 8]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let selector = Selector::new(&stack).unwrap();
    selector.add(&stream, 0, Interest::READABLE).unwrap();
    let rounds = || stack.snapshot().queues[0].rounds;
    let (mut answered, mut before, mut after) = (0, 0, 0);
    let (mut events, mut question) = (Vec::new(), [0; 8]);
    while answered < QUESTIONS {
        selector.wait(&mut events, None).unwrap();
        if !matches!(stream.read(&mut question), Ok(8)) {
            continue;
        }
        stream.write_all(&question).unwrap();
        answered += 1;
        // The device's NAPI id is known by then.
        match answered {
            100 => before = rounds(),
            QUESTIONS => after = rounds(),
            _ => {}
        }
    }
    // The last answer leaves with a wait.
    selector.wait(&mut events, None).unwrap();
    client.join().unwrap();
    let (rounds, asked) = (after - before, QUESTIONS - 100);
    println!("{rounds} rounds for {asked} questions");
    assert!(rounds * 32 < asked, "{rounds} rounds for {asked} questions");
}
