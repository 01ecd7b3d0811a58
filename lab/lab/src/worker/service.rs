//! The worker that serves.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidewall::descriptor::Allocator;
use tidewall::snapshot::{ControlSnapshot, StackSnapshot};
use tidewall::{EmbeddedConfig, Stack, TrafficClass, XdpMode};
use tidewall_service::circuits::Circuits;
use tidewall_service::counters::SERVICES;
use tidewall_service::descriptor_host::DescriptorEpoll;
use tidewall_service::descriptor_sockets::{DescriptorSockets, Select};
use tidewall_service::linux::{self, Linux};
use tidewall_service::linux_sockets::LinuxSockets;
use tidewall_service::linux_stream::{self, LinuxStreams};
use tidewall_service::tidewall::Tidewall;
use tidewall_service::tidewall_stream::TidewallStreams;
use tidewall_service::{BATCH, Counters, SelectHost, serve_events};

use super::bare::Bare;
use super::{ClassSpec, Cpu, Program, ServiceJob, TcpKind, TcpSpec, Waiting, program, tcp, work};
use crate::system::System;
use crate::testbed::{CLIENT, CLIENT_INTERFACE, SERVER_INTERFACE};

/// Packets dropped so far, by place.
pub(crate) type Drops = BTreeMap<String, u64>;

/// A service worker's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    /// Packets dropped so far, by place.
    pub(crate) drops: Drops,
    /// Receive control of the first queue, if it is a stack.
    pub(crate) control: Option<ControlSnapshot>,
    /// Rounds of receiving so far.
    pub(crate) rounds: u64,
}

impl Account {
    /// Returns the packets so far that found the buffer of their socket full: those that
    /// cost the receiver something before they were lost.
    pub(crate) fn overflowed(&self) -> u64 {
        ["channel", "socket queue", "full socket", "socket buffer"]
            .iter()
            .filter_map(|place| self.drops.get(*place))
            .sum()
    }
}

/// Runs the services until the standard input ends or SIGTERM.
pub(super) fn serve(job: &ServiceJob) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let cells = job.setup.services.len().clamp(1, SERVICES);
    let counters = Counters::create(&job.counters, cells)
        .with_context(|| format!("cannot make {}", job.counters.display()))?;
    let setup = &job.setup;
    if setup.system == System::Bare {
        let bare = Bare::open(job)?;
        let seen = bare.seen();
        answer(job, &stop, move || seen.account(), || None)?;
        say_ready();
        return bare.serve(&counters, &stop);
    }
    if let Some(TcpKind::Program(program)) = setup.tcp.as_ref().map(|tcp| &tcp.kind) {
        answer(job, &stop, account_of_linux, || None)?;
        let port = setup.tcp.as_ref().map_or(0, |tcp| tcp.port);
        let interface = (setup.system == System::Run).then_some(SERVER_INTERFACE);
        let mut program = program.clone();
        if let Program::Datagrams(datagrams) = &mut program {
            datagrams.counters.clone_from(&job.counters);
            let options = setup.system.linux_options(None, setup.spin);
            datagrams.busy_poll = options.epoll_busy_poll;
        }
        return program::serve(&program, port, interface, &SERVING, &stop, say_ready);
    }
    let Some(architecture) = setup.system.architecture() else {
        let options = setup.system.linux_options(setup.receive, setup.spin);
        answer(job, &stop, account_of_linux, || None)?;
        return match &setup.tcp {
            None if options.epoll_busy_poll.is_some() => {
                let services = &setup.services;
                serve_events(ANY, services, 1, options, &counters, &stop, say_ready)?;
                Ok(())
            }
            None => serve_datagrams(&|| Linux::new(options), job, &counters, &stop),
            Some(spec) => serve_linux(&options, spec, &counters, &stop),
        };
    };
    let control = setup.control;
    let interval_us = control.and_then(|control| control.interval_us);
    let class = |class: &ClassSpec| TrafficClass {
        ports: class.ports.clone(),
        budget: class.budget,
    };
    let config = EmbeddedConfig::new(SERVER_INTERFACE)
        .queues(job.queues)
        .architecture(architecture)
        .receiver_cpu(job.cpu)
        .spin(Duration::from_micros(setup.spin.unwrap_or(0).into()))
        .policy(control.map(|control| control.policy).unwrap_or_default())
        .budget(control.and_then(|control| control.budget))
        .interrupt_interval(interval_us.map(|us| Duration::from_micros(us.into())))
        .classes(setup.classes.iter().map(class).collect::<Vec<_>>())
        .xdp((setup.system == System::Generic).then_some(XdpMode::Generic))
        .control(false);
    let config = match &job.steering {
        Some(namespace) => config.steering_peer(namespace, CLIENT_INTERFACE),
        None => config.steer(false),
    };
    let stack = match &job.managed {
        None => Stack::embedded(config),
        Some(managed) => {
            managed.become_user()?;
            Stack::managed(&managed.socket, config)
        }
    }
    .with_context(|| format!("cannot start the stack on {SERVER_INTERFACE}"))?;
    for warning in stack.warnings() {
        eprintln!("{warning}");
    }
    let seen = [stack.clone(), stack.clone()];
    let [account, cpu] = seen.map(|stack| move || stack.snapshot());
    answer(
        job,
        &stop,
        move || account_of_stack(&account()),
        move || Some(cpu()),
    )?;
    let receive_limit = control.and_then(|control| control.receive_limit);
    serve_stack(stack, receive_limit, job, &counters, &stop)
}

/// All addresses.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The process that serves, if it is not this one.
static SERVING: AtomicU32 = AtomicU32::new(0);

fn serve_linux(
    options: &linux::Options,
    spec: &TcpSpec,
    counters: &Counters,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let _unread = spec
        .unread
        .iter()
        .map(|&port| UdpSocket::bind((ANY, port)))
        .collect::<Result<Vec<_>, _>>()?;
    match spec.waiting {
        Waiting::Usual | Waiting::Named | Waiting::Epoll => {
            let host = LinuxStreams::new(linux_stream::Options {
                busy_poll: options.busy_poll,
                ..linux_stream::Options::default()
            })?;
            tcp::serve(&host, ANY, spec, counters, stop, say_ready)
        }
        Waiting::Select | Waiting::SelectLinear | Waiting::ClassicalLinear => {
            let host = SelectHost::new(LinuxSockets::new());
            tcp::serve(&host, ANY, spec, counters, stop, say_ready)
        }
    }
}

fn serve_stack(
    stack: Stack,
    receive_limit: Option<u32>,
    job: &ServiceJob,
    counters: &Counters,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let Some(spec) = &job.setup.tcp else {
        if job.setup.circuits {
            let client = SocketAddr::new(CLIENT.0.into(), 0);
            let host = Circuits::new(&stack, client, receive_limit)?;
            return serve_datagrams(&|| host.clone(), job, counters, stop);
        }
        let host = Tidewall::new(stack, receive_limit);
        return serve_datagrams(&|| host.clone(), job, counters, stop);
    };
    let _unread = spec
        .unread
        .iter()
        .map(|&port| tidewall::UdpSocket::bind(&stack, SocketAddr::new(ANY, port)))
        .collect::<Result<Vec<_>, _>>()?;
    let select = |select, allocator| -> anyhow::Result<()> {
        let host = SelectHost::new(DescriptorSockets::new(&stack, allocator, select)?);
        tcp::serve(&host, ANY, spec, counters, stop, say_ready)
    };
    match spec.waiting {
        Waiting::Usual | Waiting::Named => {
            let host = TidewallStreams::new(&stack)?;
            tcp::serve(&host, ANY, spec, counters, stop, say_ready)
        }
        Waiting::Epoll => {
            let host = DescriptorEpoll::new(&stack, Allocator::Bitmap)?;
            tcp::serve(&host, ANY, spec, counters, stop, say_ready)
        }
        Waiting::Select => select(Select::Hinted, Allocator::Bitmap),
        Waiting::SelectLinear => select(Select::Hinted, Allocator::Linear),
        Waiting::ClassicalLinear => select(Select::Classical, Allocator::Linear),
    }
}

/// Serves over UDP: on one thread, or on one thread for each service.
fn serve_datagrams<H: tidewall_service::Host>(
    host: &(impl Fn() -> H + Sync),
    job: &ServiceJob,
    counters: &Counters,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let services = &job.setup.services;
    if job.setup.compute.is_none() {
        tidewall_service::serve(&host(), ANY, services, BATCH, counters, stop, |_| {
            say_ready();
        })?;
        return Ok(());
    }
    let missing = AtomicUsize::new(services.len());
    // A page of counters has one writer.
    let pages = (1..services.len())
        .map(|number| Counters::create(job.counters.with_extension(number.to_string()), 1))
        .collect::<std::io::Result<Vec<_>>>()?;
    let pages = std::iter::once(counters).chain(&pages);
    let result = std::thread::scope(|scope| {
        let threads: Vec<_> = services
            .iter()
            .zip(pages)
            .map(|(service, counters)| {
                let missing = &missing;
                scope.spawn(move || {
                    let one = std::slice::from_ref(service);
                    let ready = |_: &[_]| {
                        if missing.fetch_sub(1, Ordering::Relaxed) == 1 {
                            say_ready();
                        }
                    };
                    let served =
                        tidewall_service::serve(&host(), ANY, one, BATCH, counters, stop, ready);
                    if served.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    served
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(std::io::Error::other("a service's thread died")))
            })
            .collect::<std::io::Result<Vec<()>>>()
    });
    result?;
    Ok(())
}

/// Reports that the services can be used.
fn say_ready() {
    println!("ready");
    // If the parent is gone, this worker ends anyway.
    let _ = std::io::stdout().flush();
}

/// Answers the lab from a separate thread, and begins to compute if that is part of the
/// job.
fn answer(
    job: &ServiceJob,
    stop: &Arc<AtomicBool>,
    account: impl Fn() -> Account + Send + 'static,
    snapshot: impl Fn() -> Option<StackSnapshot> + Send + 'static,
) -> anyhow::Result<()> {
    let stop_input = stop.clone();
    let watcher_cpu = job.watcher_cpu;
    let steps = job.setup.compute.map(work::start).transpose()?;
    std::thread::spawn(move || {
        if let Some(cpu) = watcher_cpu
            && let Err(error) = tidewall_sys::pin(cpu)
        {
            eprintln!("answers come from the receiver's processor: {error}");
        }
        let answered = until_input_ends(|line| {
            match line {
                "account" => println!("{}", serde_json::to_string(&account())?),
                "cpu" => println!("{}", serde_json::to_string(&Cpu::read(snapshot()))?),
                "process" => match SERVING.load(Ordering::Relaxed) {
                    0 => println!("{}", std::process::id()),
                    process => println!("{process}"),
                },
                "steps" => {
                    let steps = steps
                        .as_ref()
                        .map_or(0, |steps| steps.load(Ordering::Relaxed));
                    println!("{steps}");
                }
                _ => {}
            }
            Ok(())
        });
        if let Err(error) = answered {
            eprintln!("{error:#}");
        }
        stop_input.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Calls `each` with every line of the standard input until it ends.
pub(super) fn until_input_ends(
    mut each: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        each(line?.trim())?;
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Runs `work` in a separate thread until the line `report`, which it answers with the
/// result, or the end of the input.
pub(super) fn run_until_report<R: Serialize + Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<R> + Send + 'static,
) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let mut thread = Some(std::thread::spawn(move || work(&seen)));
    println!("ready");
    let answered = until_input_ends(|line| {
        if line != "report" {
            return Ok(());
        }
        stop.store(true, Ordering::Relaxed);
        if let Some(thread) = thread.take() {
            let report = thread
                .join()
                .map_err(|_| anyhow!("the worker's thread panicked"))??;
            println!("{}", serde_json::to_string(&report)?);
        }
        Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    answered
}

/// Returns the packets that Linux dropped.
fn account_of_linux() -> Account {
    Account {
        drops: drops_of_linux(),
        ..Account::default()
    }
}

/// Returns the packets that a Tidewall stack dropped, and the state of its receive
/// control.
fn account_of_stack(snapshot: &StackSnapshot) -> Account {
    Account {
        drops: serde_json::to_value(snapshot)
            .map(|value| drops_of_snapshot(&value))
            .unwrap_or_default(),
        control: snapshot.queues.first().map(|queue| queue.control.clone()),
        rounds: snapshot.queues.iter().map(|queue| queue.rounds).sum(),
    }
}

/// Extracts the kinds of drops from a snapshot, under the names of places in the result
/// files. Kinds that the driver program shares with passing frames on to the kernel are
/// not drops.
pub(super) fn drops_of_snapshot(snapshot: &Value) -> Drops {
    let mut drops = Drops::new();
    let mut add = |place: String, count: u64| {
        if count > 0 {
            *drops.entry(place).or_default() += count;
        }
    };
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    for queue in snapshot["queues"].as_array().into_iter().flatten() {
        for (name, place) in [
            ("channel-full", "channel"),
            ("application-full", "channel"),
            ("channel-closed", "closed channel"),
            ("no-socket", "no AF_XDP socket"),
            ("truncated", "truncated"),
            ("malformed", "malformed"),
        ] {
            add(place.to_owned(), number(&queue["driver"], name));
        }
        for (class, counts) in queue["kernel"].as_object().into_iter().flatten() {
            add(
                format!("kernel-bound {class}"),
                counts.get(1).and_then(Value::as_u64).unwrap_or(0),
            );
        }
        add("receive ring".to_owned(), number(queue, "lost_in_ring"));
        add("closed channel".to_owned(), number(queue, "stale"));
        // Host architectures count their own queues.
        for (name, place) in [
            ("ip_queue_full", "IP queue"),
            ("channel_full", "socket queue"),
            ("no_channel", "no socket"),
        ] {
            add(
                place.to_owned(),
                number(queue, name) + number(&queue["host"], name),
            );
        }
    }
    for (cause, count) in snapshot["protocol"].as_object().into_iter().flatten() {
        add(format!("protocol {cause}"), count.as_u64().unwrap_or(0));
    }
    add("no socket".to_owned(), number(snapshot, "no_socket"));
    add("full socket".to_owned(), number(snapshot, "socket_full"));
    drops
}

/// Returns the packets that Linux dropped in this network namespace, and in the backlogs
/// of all processors.
fn drops_of_linux() -> Drops {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut drops = Drops::new();
    for (name, place) in [
        ("RcvbufErrors", "socket buffer"),
        ("NoPorts", "no socket"),
        ("InCsumErrors", "checksum"),
    ] {
        let count = udp_counter(&read("/proc/self/net/snmp"), name)
            + read("/proc/self/net/snmp6")
                .lines()
                .find_map(|line| {
                    line.strip_prefix("Udp6")?
                        .strip_prefix(name)?
                        .trim()
                        .parse::<u64>()
                        .ok()
                })
                .unwrap_or(0);
        drops.insert(place.to_owned(), count);
    }
    drops.insert(
        "backlog".to_owned(),
        backlog_drops(&read("/proc/net/softnet_stat")),
    );
    drops
}

/// Returns a counter of /proc/net/snmp's two lines for UDP.
fn udp_counter(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(found, _)| *found == name)
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0)
}

/// Sums the second column, of all processors, in hexadecimal.
fn backlog_drops(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_die_in_a_snapshot_is_found() {
        let snapshot = serde_json::json!({
            "queues": [
                {"driver": {"frames": 100, "channel": 50, "channel-full": 7, "unowned": 3},
                 "kernel": {"other": [10, 20], "icmp": [1, 0]}, "lost_in_ring": 2, "stale": 0,
                 "host": {"ip_queue_full": 5, "channel_full": 6}},
                {"driver": {"channel-full": 1}, "kernel": {}},
            ],
            "protocol": {"checksum": 4},
            "no_socket": 0,
        });
        let drops = drops_of_snapshot(&snapshot);
        let expected = [
            ("IP queue", 5),
            ("channel", 8),
            ("kernel-bound other", 20),
            ("protocol checksum", 4),
            ("receive ring", 2),
            ("socket queue", 6),
        ];
        assert_eq!(
            drops,
            expected
                .map(|(place, count)| (place.to_owned(), count))
                .into()
        );
    }

    #[test]
    fn an_overflow_is_what_a_socket_had_no_room_for() {
        let drops = [("channel", 3), ("socket queue", 4), ("receive ring", 100)];
        let account = Account {
            drops: drops.map(|(place, count)| (place.to_owned(), count)).into(),
            ..Account::default()
        };
        assert_eq!(account.overflowed(), 7);
    }

    #[test]
    fn the_kernels_counters_are_read() {
        let snmp = "Ip: A B\nIp: 1 2\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 10 20 30 40 50\nUdpLite: InDatagrams\nUdpLite: 7\n";
        assert_eq!(udp_counter(snmp, "RcvbufErrors"), 50);
        assert_eq!(udp_counter(snmp, "NoPorts"), 20);
        assert_eq!(udp_counter(snmp, "Missing"), 0);
        assert_eq!(udp_counter("", "NoPorts"), 0);
        assert_eq!(backlog_drops("0000 0000000a 00\n0000 00000001 00\n"), 11);
    }
}
