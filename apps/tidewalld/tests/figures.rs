//! The cost of a manager: `cargo test --release -p tidewalld --test figures -- --ignored
//! --nocapture --exact a_manager_costs`, as root and without other work on the machine.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use support::*;
use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ApplicationTables, ChannelId};
use tidewall_manager::client::Client;
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::{Answer, Empty, JOIN_PRIVATE, Join, Request};

/// Number of requests that change nothing.
const REQUESTS: usize = 2_000;
/// Listeners, each of which owns a port.
const LISTENERS: usize = 400;
/// Domains at once, and connections of all of them.
const DOMAINS: u32 = 100;
const CONNECTIONS: u32 = 100_000;
/// Number of applications created.
const JOINS: usize = 50;
/// The same with queues, and the idle time before each.
const QUEUE_JOINS: usize = 20;
const IDLE: Duration = Duration::from_millis(300);

#[test]
#[ignore = "prints figures, and judges nothing"]
fn a_manager_costs() {
    run_within("a_manager_costs", 100);
}

/// Prints quantiles of the duration of a request, and the daemon's share of it.
fn report(what: &str, daemon: u32, times: usize, mut request: impl FnMut(usize)) {
    let before = processor_time(daemon);
    let took: Vec<Duration> = (0..times)
        .map(|number| {
            let start = Instant::now();
            request(number);
            start.elapsed()
        })
        .collect();
    print(what, took, processor_time(daemon) - before);
}

fn print(what: &str, mut took: Vec<Duration>, processor_time: Duration) {
    let times = took.len();
    let on_processor = processor_time / times as u32;
    took.sort();
    let quantile = |percent: usize| took[(times - 1) * percent / 100];
    println!(
        "{what}: p50 {:?}, p99 {:?}, most {:?}; the manager's processor time {on_processor:?} each, {times} times",
        quantile(50),
        quantile(99),
        quantile(100),
    );
}

/// Prints the manager's share of joining, with all queues of a device that has been free
/// for a while: from the request to the last message of the answer.
fn report_joins(daemon: u32) {
    let (mut took, mut on_processor) = (Vec::new(), Duration::ZERO);
    let mut tries = 0;
    while took.len() < QUEUE_JOINS {
        tries += 1;
        assert!(tries <= 2 * QUEUE_JOINS, "the queues are not free");
        let connection = Connection::connect(&socket()).unwrap();
        let join = Request::Join(Join { flags: 0, ..join() });
        // The kernel has released the queue, and the stock has been refilled.
        std::thread::sleep(IDLE);
        let before = processor_time(daemon);
        let start = Instant::now();
        connection.send(&join.emit(1), &[]).unwrap();
        let receive = || connection.receive().unwrap().unwrap();
        let mut received = vec![receive()];
        let Ok((_, Answer::Joined(joined))) = Answer::parse(&received[0].bytes) else {
            continue;
        };
        received.extend((0..joined.queues).map(|_| receive()));
        took.push(start.elapsed());
        // While its further work is charged to it.
        std::thread::sleep(IDLE / 10);
        on_processor += processor_time(daemon) - before;
    }
    print("an application joined, with queues", took, on_processor);
}

/// Prints the cost of the exchange itself within a join's figure, with two threads that
/// wake up after as long: that of a request that the manager rejects without examining
/// anything.
fn report_least(daemon: u32) {
    let connection = Connection::connect(&socket()).unwrap();
    let before = processor_time(daemon);
    let took = (0..QUEUE_JOINS).map(|_| {
        std::thread::sleep(IDLE);
        let start = Instant::now();
        connection
            .send(&Request::GetCounters(Empty {}).emit(1), &[])
            .unwrap();
        connection.receive().unwrap().unwrap();
        start.elapsed()
    });
    let took = took.collect();
    print(
        "refused, after as long",
        took,
        processor_time(daemon) - before,
    );
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_manager_costs() {
        let (daemon, _) = start_with(command().args(["--private", "any", "--ports", "1-65535"]));
        let process = daemon.0.id();
        let memory = |when: &str| {
            let of = |name| memory(process, name);
            println!(
                "memory {when}: {} KiB resident, {} of them its own, {} files",
                of("VmRSS"),
                of("RssAnon"),
                of("RssFile")
            );
        };
        memory("at the start");
        report("an application, joined and left", process, JOINS, |_| {
            let client = client();
            drop(client);
        });
        wait_until("they are gone", || counters().applications == 0);
        report_least(process);
        report_joins(process);
        wait_until("it is gone", || counters().applications == 0);
        let one = client();
        let listeners: Vec<TcpListener> = (0..LISTENERS)
            .map(|number| TcpListener::bind(("0.0.0.0", 7_001 + number as u16)).unwrap())
            .collect();
        let mut cookies = Vec::new();
        report("listen: a port owned", process, LISTENERS, |number| {
            cookies.push(one.own_port(Protocol::Tcp, &listeners[number]).unwrap());
        });
        report("a port disowned", process, LISTENERS, |number| {
            one.disown_port(cookies[number]);
        });
        drop(listeners);
        report("a block leased and returned", process, JOINS, |_| {
            let block = one.lease(Protocol::Tcp).unwrap();
            one.return_lease(&block);
        });
        report("counters", process, REQUESTS, |_| {
            one.counters().unwrap();
        });
        drop(one);
        wait_until("it is gone", || counters().applications == 0);

        // Each domain is a user, with its own queue, ports and block.
        let private = Join {
            flags: JOIN_PRIVATE,
            ..join()
        };
        let mut applications = Vec::new();
        for domain in 0..DOMAINS {
            applications.push(as_user(TRUSTED + 2 + domain, || {
                let (client, handed) = Client::join(&socket(), &private).unwrap();
                client.lease(Protocol::Tcp).unwrap();
                (client, handed)
            }));
        }
        memory(&format!("with {DOMAINS} domains"));
        let mut ports = Vec::new();
        for port in 2_000..4_000 {
            let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
            let (owner, _) = &applications[usize::from(port) % applications.len()];
            owner.own_port(Protocol::Tcp, &listener).unwrap();
            ports.push(listener);
        }
        // Connections are in the applications' tables.
        for (client, handed) in &applications {
            let joined = client.joined();
            let number = joined.application as u16;
            let tables = ApplicationTables::of_map(handed.tables.as_fd(), number, joined.hash_key);
            let tables = tables.unwrap();
            let local: SocketAddr = ([10, 77, 0, 1], 2_000).into();
            for number in 0..CONNECTIONS / DOMAINS {
                let remote = SocketAddr::from(([10, 77, 0, 2], 1_024 + number as u16));
                let channel = ChannelId::new(1 + number as u16, 1);
                let entered = tables.connect(Protocol::Tcp, local, remote, channel);
                entered.unwrap();
            }
        }
        let counted = counters();
        memory(&format!(
            "with {} domains, {CONNECTIONS} connections of theirs, {} ports, {} blocks",
            counted.applications, counted.ports, counted.blocks
        ));
    }
}
