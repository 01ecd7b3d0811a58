//! Daemons and applications that are killed at any moment, again and again. The model that
//! kills between any two steps is `crates/manager/tests/daemon_model`; here are real
//! processes, kernels and signals.

mod support;

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::*;
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Client;
use tidewall_manager::connection::Connection;
use tidewall_manager::protocol::{JOIN_PRIVATE, Join};

/// How often the daemon is killed.
const KILLS: &str = "TIDEWALL_DAEMON_KILLS";
/// How many processes are killed: 10,000 take some minutes.
const CLIENTS: &str = "TIDEWALL_KILLED_CLIENTS";

#[test]
fn a_daemon_killed_again_and_again_keeps_its_applications() {
    run_within("a_daemon_killed_again_and_again_keeps_its_applications", 60);
}

#[test]
fn short_lived_processes_leave_nothing() {
    let limit = 60 + u32::try_from(number(CLIENTS, 0)).unwrap() / 10;
    run_within("short_lived_processes_leave_nothing", limit);
}

#[test]
fn who_connects_waits_for_a_descriptor() {
    run("who_connects_waits_for_a_descriptor");
}

/// Returns a number from the environment, or the default.
fn number(name: &str, otherwise: usize) -> usize {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().expect(name))
}

/// Reproducible random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32 % bound
    }
}

/// Owns, disowns, leases and returns, and counts each completed step; returns its ports
/// at the end.
fn work(client: &Client, first: u16, done: &AtomicU32, stop: &AtomicBool) -> Vec<(Protocol, u16)> {
    let listener = TcpListener::bind(("0.0.0.0", first)).unwrap();
    client.own_port(Protocol::Tcp, &listener).unwrap();
    let mut random = Random(u64::from(first));
    let mut leases = Vec::new();
    let mut held: Vec<(u64, UdpSocket)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match random.below(4) {
            0 if held.len() < 8 => {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                match client.own_port(Protocol::Udp, &socket) {
                    Ok(cookie) => held.push((cookie, socket)),
                    // Another thread closed it while there was no manager, and the next
                    // manager waits for it to be presented.
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                    Err(error) => panic!("{error}"),
                }
            }
            1 if leases.len() < 2 => leases.push(client.lease(Protocol::Tcp).unwrap()),
            2 if !leases.is_empty() => client.return_lease(&leases.remove(0)),
            _ if !held.is_empty() => {
                let (cookie, _socket) = held.remove(0);
                client.disown_port(cookie);
            }
            _ => {}
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    for block in leases {
        client.return_lease(&block);
    }
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let mut ports = vec![(Protocol::Tcp, first)];
    ports.extend(held.iter().map(|(_, socket)| (Protocol::Udp, port(socket))));
    // Kept open beyond this thread, as the caller compares.
    std::mem::forget((listener, held));
    ports
}

/// All owned ports.
fn ports() -> Vec<(Protocol, u16)> {
    let owned = trusted().owned_ports().unwrap();
    let mut ports: Vec<_> = owned.into_iter().map(|of| (of.0, of.2)).collect();
    ports.sort();
    // A port of both families is listed twice.
    ports.dedup();
    ports
}

mod inside {
    use super::*;

    #[test]
    #[ignore = "started by the test of this name"]
    fn a_daemon_killed_again_and_again_keeps_its_applications() {
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let mut daemon = start().0;
        let clients = [client(), client(), client()];
        let (done, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let mut random = Random(17);
        let owned = thread::scope(|scope| {
            let (done, stop) = (&done, &stop);
            let threads = (7001..)
                .zip(&clients)
                .map(|(first, client)| scope.spawn(move || work(client, first, done, stop)));
            let threads: Vec<_> = threads.collect();
            for _ in 0..number(KILLS, 15) {
                // They have made progress since it began: enough that all have returned.
                let until = done.load(Ordering::Relaxed) + 3 + random.below(40);
                wait_until("requests are answered", || {
                    done.load(Ordering::Relaxed) >= until
                        || threads.iter().any(|one| one.is_finished())
                });
                daemon.0.kill().unwrap();
                daemon.0.wait().unwrap();
                daemon = start().0;
            }
            stop.store(true, Ordering::Relaxed);
            let owned = threads.into_iter().flat_map(|one| one.join().unwrap());
            let mut owned: Vec<_> = owned.collect();
            owned.sort();
            owned
        });
        // A client that has not asked since the last kill has not presented itself.
        for client in &clients {
            client.counters().unwrap();
        }
        wait_until("what they do not hold is cleared away", || ports() == owned);
        assert_eq!(applications().len(), 3);
        assert_eq!(counters().applications, 3);
        drop(clients);
        wait_until("they are gone", || {
            ports().is_empty() && applications().is_empty()
        });
        // The tables that the killed daemons had in stock are gone.
        wait_until("two are ready", || tables().len() == 2);
        assert_eq!(counters().blocks, 0);
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        drop(daemon);
        assert!(command().arg("--remove").status().unwrap().success());
        assert!(!pins().exists());
    }

    #[test]
    #[ignore = "started by the test of this name"]
    fn who_connects_waits_for_a_descriptor() {
        let (daemon, _) = start();
        let process = daemon.0.id();
        wait_until("all is ready", || tables().len() == 2);
        wait_until("nobody is connected", || counters().clients == 1);
        let directory = format!("/proc/{process}/fd");
        let few = Some(std::fs::read_dir(directory).unwrap().count() as u64 + 2);
        let limit = Rlimit {
            current: few,
            maximum: few,
        };
        prlimit(Pid::from_raw(process as i32), Resource::Nofile, limit).unwrap();
        let connect = |_| Connection::connect(&socket()).unwrap();
        let connections: Vec<_> = (0..8).map(connect).collect();
        // It does not spin meanwhile.
        let (begin, busy) = (Instant::now(), processor_time(process));
        thread::sleep(Duration::from_millis(500));
        let busy = processor_time(process) - busy;
        assert!(busy < begin.elapsed() / 2, "{busy:?}");
        drop(connections);
        assert_eq!(counters().refused, 0);
    }

    const USERS: u32 = 3;

    #[test]
    #[ignore = "started by the test of this name"]
    fn short_lived_processes_leave_nothing() {
        let reserved = std::fs::read_to_string(RESERVED).unwrap();
        let users: Vec<String> = (0..USERS)
            .flat_map(|user| ["--trust".to_owned(), (TRUSTED + 1 + user).to_string()])
            .collect();
        let (daemon, _) =
            start_with(
                command()
                    .args(users)
                    .args(["--private", "any", "--ports", "1-65535"]),
            );
        let descriptors = || {
            let directory = format!("/proc/{}/fd", daemon.0.id());
            std::fs::read_dir(directory).unwrap().count()
        };
        // It listens before it has opened all.
        counters();
        wait_until("all is ready", || {
            tables().len() == READY && interfaces() == 3 + 2 * (1 + READY)
        });
        // The last pair is there before its sockets are.
        let mut before = 0;
        wait_until("it opens no more", || {
            thread::sleep(Duration::from_millis(300));
            descriptors() == std::mem::replace(&mut before, descriptors())
        });
        let mut random = Random(4711);
        let mut first = 0;
        let clients = number(CLIENTS, 60);
        for round in 0..clients.div_ceil(AT_ONCE) {
            let children: Vec<_> = (0..AT_ONCE as u32)
                .map(|number| {
                    (
                        short_lived(number, random.below(USERS)),
                        random.below(STEPS),
                    )
                })
                .collect();
            for (mut child, steps) in children {
                // Fewer if it ends before, which it does not do by itself.
                let heard = BufReader::new(child.stdout.take().unwrap()).bytes();
                let heard = heard.filter(|byte| byte.as_ref().is_ok_and(|&byte| byte == STEP));
                assert_eq!(heard.take(steps as usize).count(), steps as usize);
                child.kill().unwrap();
                child.wait().unwrap();
            }
            if round == 1 {
                first = memory(daemon.0.id(), "RssAnon");
            }
        }
        wait_until("nothing is owned", || {
            ports().is_empty() && applications().is_empty()
        });
        wait_until("what is ready is left", || {
            tables().len() == READY && interfaces() == 3 + 2 * (1 + READY)
        });
        wait_until("all have hung up", || counters().clients == 1);
        let counted = counters();
        assert_eq!(
            (counted.applications, counted.ports, counted.blocks),
            (0, 0, 0)
        );
        // Some were asked to retry while their tables were being made; what they had
        // received by then was cleared, too.
        assert!(counted.joined <= counted.cleared, "{counted:?}");
        assert!(counted.joined as usize >= clients / 2, "{counted:?}");
        // The connection that showed it listening may have been open before.
        wait_until("its descriptors are closed", || descriptors() <= before);
        assert_eq!(std::fs::read_to_string(RESERVED).unwrap(), reserved);
        let grown = memory(daemon.0.id(), "RssAnon").saturating_sub(first);
        println!(
            "{} applications, {grown} KiB more than after the first",
            counted.joined
        );
        assert!(grown <= 1024, "{grown} KiB more");
    }

    /// Processes alive at the same time.
    const AT_ONCE: usize = 6;
    /// Tables and pairs that a daemon keeps in stock (docs/manager.md).
    const READY: usize = 4;
    /// Printed by a process after each step, and never by the test harness.
    const STEP: u8 = b'#';
    /// A process is killed after fewer steps than this.
    const STEPS: u32 = 12;

    /// Starts a process of a user that reports each of its steps.
    fn short_lived(number: u32, user: u32) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "inside::one_that_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env("TW_NUMBER", number.to_string())
            .env("TW_USER", (TRUSTED + 1 + user).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    #[ignore = "a part of short_lived_processes_leave_nothing"]
    fn one_that_is_killed() {
        let of = |name| number(name, 0);
        let step = || {
            let mut out = std::io::stdout().lock();
            out.write_all(&[STEP]).and_then(|()| out.flush()).unwrap();
        };
        as_user(of("TW_USER") as u32, || {
            // Every second one is private, with a queue.
            let join = match of("TW_NUMBER") % 2 {
                0 => join(),
                _ => Join {
                    flags: JOIN_PRIVATE,
                    ..join()
                },
            };
            let (client, _queues) = Client::join(&socket(), &join).unwrap();
            step();
            let port = 8000 + of("TW_NUMBER") as u16;
            loop {
                // The manager closes an ended process's holders once it has noticed the
                // end.
                let (mut listener, mut datagrams) = (None, None);
                wait_until("the port is free", || {
                    (listener, datagrams) = (None, None);
                    listener = TcpListener::bind(("0.0.0.0", port)).ok();
                    datagrams = UdpSocket::bind(("0.0.0.0", port)).ok();
                    listener.is_some() && datagrams.is_some()
                });
                let (listener, datagrams) = (listener.unwrap(), datagrams.unwrap());
                let first = client.own_port(Protocol::Tcp, &listener).unwrap();
                step();
                let second = client.own_port(Protocol::Udp, &datagrams).unwrap();
                step();
                let block = client.lease(Protocol::Udp).unwrap();
                step();
                client.disown_port(first);
                client.return_lease(&block);
                client.disown_port(second);
                step();
            }
        });
    }
}
