//! What a manager costs: `cargo test --release -p tidewalld --test figures -- --ignored
//! --nocapture --exact a_manager_costs`, as root and without other work on the machine.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use support::*;
use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_manager::client::Client;
use tidewall_manager::connection::Connection;

/// How often each request is made.
const REQUESTS: usize = 2_000;
/// How often an application is made.
const JOINS: usize = 50;

#[test]
#[ignore = "prints figures, and judges nothing"]
fn a_manager_costs() {
    run_within("a_manager_costs", 100);
}

/// Time that a process's one thread has been on a processor (proc_pid_schedstat(5)).
fn processor_time(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Prints quantiles of what a request takes, and the daemon's part in it.
fn report(what: &str, daemon: u32, times: usize, mut request: impl FnMut(usize)) {
    let before = processor_time(daemon);
    let mut took: Vec<Duration> = (0..times)
        .map(|number| {
            let start = Instant::now();
            request(number);
            start.elapsed()
        })
        .collect();
    let on_processor = (processor_time(daemon) - before) / times as u32;
    took.sort();
    let quantile = |percent: usize| took[(times - 1) * percent / 100];
    println!(
        "{what}: p50 {:?}, p99 {:?}, most {:?}; the manager's processor time {on_processor:?} each, {times} times",
        quantile(50),
        quantile(99),
        quantile(100),
    );
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_manager_costs() {
        let other = (TRUSTED + 1).to_string();
        let (daemon, _) = start_with(command().args(["--trust", &other]));
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
        let one = client();
        let listener = TcpListener::bind("0.0.0.0:7001").unwrap();
        report(
            "listen: a port owned, and disowned",
            process,
            REQUESTS,
            |_| {
                let cookie = one.own_port(Protocol::Tcp, &listener).unwrap();
                one.disown_port(cookie).unwrap();
            },
        );
        report("a block leased and returned", process, JOINS, |_| {
            let block = one.lease(Protocol::Tcp).unwrap();
            one.return_lease(&block).unwrap();
        });
        report("counters", process, REQUESTS, |_| {
            one.counters().unwrap();
        });
        drop(one);
        wait_until("it is gone", || counters().applications == 0);

        let mut applications = Vec::new();
        let mut connections = Vec::new();
        for uid in [TRUSTED, TRUSTED + 1] {
            as_user(uid, || {
                let clients = (0..APPLICATIONS / 2).map(|_| client());
                applications.extend(clients.collect::<Vec<Client>>());
            });
        }
        for uid in [0, TRUSTED, TRUSTED + 1] {
            as_user(uid, || {
                let more = (0..50).map(|_| Connection::connect(&socket()).unwrap());
                connections.extend(more.collect::<Vec<_>>());
            });
        }
        let mut ports = Vec::new();
        for port in 2_000..4_000 {
            let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
            let owner = &applications[usize::from(port % 16)];
            owner.own_port(Protocol::Tcp, &listener).unwrap();
            ports.push(listener);
        }
        for client in &applications {
            client.lease(Protocol::Udp).unwrap();
        }
        let counted = counters();
        memory(&format!(
            "with {} applications, {} connections, {} ports, {} blocks",
            counted.applications, counted.clients, counted.ports, counted.blocks
        ));
    }
}
