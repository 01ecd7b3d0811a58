//! `tidewall top`: the users of this host's devices, live.

mod view;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Serialize;
use tidewall::snapshot::StackSnapshot;
use tidewall_device::demux::layout::Counter;
use tidewall_manager::places;
use tidewall_manager::protocol::{QueueCounters, STATUS_AWAITED, STATUS_CLEARING, Status};
use tidewall_manager::record::Record;
use tidewall_manager::view::View;

use crate::end::{Failure, Outcome, say, say_json, stop_flag};
use crate::run::report;
use crate::stat::explain::{self, Counts, Place};
use crate::stat::processor::Watch;
use crate::stat::view::losses;
use crate::stat::{Pair, live, pause, period, screen};

/// Show the users of this host's devices: applications, sockets, rates, drops by cause,
/// Bp and T, CPU time, polls.
///
/// One line for each application of a manager (`tidewalld`) and each stack with its own
/// device. If a kernel thread polls for several applications, `polled for` is the share
/// of its time charged to each. Users see their own applications. Root sees all, and the
/// frames that the driver program drops before they belong to any. For a stack that does
/// not answer this user, only its manager's knowledge is shown.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall top                  live, every second until Ctrl-C\n  \
    tidewall top --every 0.2      five times a second\n  \
    tidewall top --once --json    one look, over a second, for a program\n\n\
    Exit code 1: neither a manager nor a stack is live."
)]
pub struct Arguments {
    /// Look every SECONDS, 0.1 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = period)]
    every: Duration,
    /// Look once, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one line per look: {"seconds": …, "applications": […], "devices": […],
    /// "unprotected": […]}
    #[arg(long)]
    json: bool,
}

/// A look at managers and stacks.
struct Look {
    at: Instant,
    managers: Vec<Managed>,
    stacks: Vec<(PathBuf, StackSnapshot)>,
    unprotected: Vec<Record>,
}

/// A manager, and the part of its state that this user may see.
struct Managed {
    interface: String,
    applications: Vec<Status>,
    /// Empty except for user 0.
    queues: Vec<QueueCounters>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    interface: String,
    process: u32,
    /// Its name; none if the process is not visible from here.
    program: Option<String>,
    /// User id; none for a stack without a manager.
    user: Option<u32>,
    /// Its number in the driver program's tables.
    application: Option<u32>,
    /// `live`, `awaited` or `clearing`.
    state: &'static str,
    /// From the manager's account.
    ports: Option<u32>,
    /// From its stack; none if that does not answer this user.
    stack: Option<StackRow>,
    /// CPU time; 1 is one processor.
    processor: Option<f64>,
    /// Time of the kernel's polling thread charged to it, in the same unit; none for a
    /// stack that polls by itself.
    charged: Option<f64>,
    /// Its domain's weight.
    weight: Option<u32>,
}

/// The activity of a stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackRow {
    /// UDP sockets and TCP listeners.
    sockets: usize,
    /// TCP connections, in any state.
    connections: u64,
    /// Frames per second received by its channels.
    received: f64,
    /// Frames per second sent.
    sent: f64,
    /// Frames per second lost, by cause; only causes that occurred.
    drops: BTreeMap<String, f64>,
    /// Most frames per round (Bp), of each queue.
    budgets: Vec<u32>,
    /// Least time between two interrupts (T), ns, of each queue.
    intervals: Vec<u64>,
}

/// The counters of a manager's driver program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceRow {
    interface: String,
    queue: u32,
    /// Frames per second that it saw.
    frames: f64,
    /// Frames per second lost, by cause; only causes that occurred.
    drops: BTreeMap<String, f64>,
}

/// The output of one look.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// Since the previous look.
    seconds: f64,
    applications: Vec<Row>,
    devices: Vec<DeviceRow>,
    /// Kernel sockets of unmodified programs, in words.
    unprotected: Vec<String>,
}

/// Queries a manager; none if it has ended.
fn ask(path: &Path, interface: String) -> Option<Managed> {
    let view = View::connect(path).ok()?;
    let applications = view.applications().ok()?;
    let queues = match rustix::process::geteuid().is_root() {
        true => view.queues().ok()?,
        false => Vec::new(),
    };
    Some(Managed {
        interface,
        applications,
        queues,
    })
}

fn look() -> Look {
    let asked = places::managers().into_iter();
    let stacks = live();
    Look {
        at: Instant::now(),
        managers: asked
            .filter_map(|(path, interface)| ask(&path, interface))
            .collect(),
        unprotected: report::of_all(stacks.iter().map(|(_, stack)| stack)),
        stacks,
    }
}

impl Look {
    /// Finds the same application of the same process.
    fn status(&self, interface: &str, of: &Status) -> Option<&Status> {
        let manager = self.managers.iter().find(|it| it.interface == interface)?;
        let is_same = |it: &&Status| (it.application, it.process) == (of.application, of.process);
        manager.applications.iter().find(is_same)
    }

    fn processes(&self) -> impl Iterator<Item = u32> {
        let applications = self.managers.iter().flat_map(|of| &of.applications);
        let stacks = self.stacks.iter().map(|(_, stack)| stack.process);
        applications.map(|of| of.process).chain(stacks)
    }
}

/// Compares the two looks.
fn shown(before: &Look, now: &Look, watch: &Watch) -> Shown {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let pair = |path: &Path, stack: &StackSnapshot| {
        let earlier = before.stacks.iter().find(|(other, _)| other == path);
        Pair::new(stack.clone(), earlier.map(|(_, stack)| stack.clone()))
    };
    let mut applications = Vec::new();
    let mut managed = Vec::new();
    for manager in &now.managers {
        for status in &manager.applications {
            let found = now.stacks.iter().find(|(_, stack)| {
                stack.process == status.process && stack.interface == manager.interface
            });
            managed.extend(found.map(|(path, _)| path));
            let stack = found.map(|(path, stack)| stack_row(&pair(path, stack)));
            let earlier = before.status(&manager.interface, status);
            let more = status.charged - earlier.map_or(0, |of| of.charged.min(status.charged));
            applications.push(Row {
                charged: (earlier.is_some() && seconds > 0.0).then(|| more as f64 / 1e9 / seconds),
                weight: Some(status.weight),
                interface: manager.interface.clone(),
                user: Some(status.domain),
                application: Some(status.application),
                state: match status.state {
                    STATUS_AWAITED => "awaited",
                    STATUS_CLEARING => "clearing",
                    _ => "live",
                },
                ports: Some(status.ports),
                stack,
                ..row(status.process, watch)
            });
        }
    }
    for (path, stack) in &now.stacks {
        if !managed.contains(&path) {
            applications.push(Row {
                interface: stack.interface.clone(),
                stack: Some(stack_row(&pair(path, stack))),
                ..row(stack.process, watch)
            });
        }
    }
    Shown {
        seconds,
        applications,
        devices: devices(before, now, seconds),
        unprotected: now.unprotected.iter().map(Record::to_string).collect(),
    }
}

fn row(process: u32, watch: &Watch) -> Row {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok();
    Row {
        interface: String::new(),
        process,
        program: name.map(|name| name.trim().to_owned()),
        user: None,
        application: None,
        state: "live",
        ports: None,
        stack: None,
        processor: watch.shares(process).process,
        charged: None,
        weight: None,
    }
}

fn stack_row(pair: &Pair) -> StackRow {
    let queues = &pair.now.queues;
    let mut drops = BTreeMap::new();
    for loss in losses(pair).into_iter().filter(|loss| loss.rate > 0.0) {
        *drops.entry(loss.name).or_insert(0.0) += loss.rate;
    }
    let of_queues = |count: fn(&tidewall::snapshot::QueueSnapshot) -> u64| {
        pair.rate(|stack| stack.queues.iter().map(count).sum())
    };
    StackRow {
        sockets: pair.now.sockets.len(),
        connections: pair.now.tcp.states.values().sum(),
        received: of_queues(|queue| queue.delivered),
        sent: of_queues(|queue| queue.transmitted),
        drops,
        budgets: queues.iter().map(|queue| queue.control.budget).collect(),
        intervals: (queues.iter())
            .map(|queue| queue.control.interrupt_interval)
            .collect(),
    }
}

fn devices(before: &Look, now: &Look, seconds: f64) -> Vec<DeviceRow> {
    let mut rows = Vec::new();
    for manager in &now.managers {
        let earlier = (before.managers.iter()).find(|of| of.interface == manager.interface);
        for queue in &manager.queues {
            let earlier = earlier.and_then(|of| of.queues.get(queue.queue as usize));
            let rate = |counter: Counter| {
                let of = |counters: &QueueCounters| {
                    counters
                        .counters
                        .get(counter as usize)
                        .copied()
                        .unwrap_or(0)
                };
                // A reloaded driver program counts from 0.
                let more = of(queue).saturating_sub(earlier.map_or(0, of));
                if seconds > 0.0 && earlier.is_some() {
                    more as f64 / seconds
                } else {
                    0.0
                }
            };
            let lost = |counter: &Counter| {
                let entry = explain::find(Place::Driver, counter.name());
                entry.is_some_and(|entry| entry.counts == Counts::Loss)
            };
            let drops = Counter::ALL.into_iter().filter(lost);
            rows.push(DeviceRow {
                interface: manager.interface.clone(),
                queue: queue.queue,
                frames: rate(Counter::Frames),
                drops: drops
                    .map(|counter| (counter.name().to_owned(), rate(counter)))
                    .filter(|(_, rate)| *rate > 0.0)
                    .collect(),
            });
        }
    }
    rows
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    let stop = stop_flag()?;
    let on_screen = !arguments.once && !arguments.json && io::stdout().is_terminal();
    let mut watch = Watch::default();
    let mut before = look();
    watch.read(before.processes());
    let mut first = true;
    loop {
        if before.managers.is_empty() && before.stacks.is_empty() {
            say(&report::listed(&before.unprotected))?;
            return Err(Failure::answer(
                "neither a manager nor a Tidewall stack is live on this host (tidewall stat, \
                 docs/manager.md)",
            ));
        }
        pause(arguments.every, &stop);
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = look();
        watch.read(now.processes());
        let shown = shown(&before, &now, &watch);
        if arguments.json {
            say_json(&shown)?;
        } else if on_screen {
            let clear = if first { screen::CLEAR } else { "" };
            say(&format!("{clear}{}", screen::over(&view::text(&shown))))?;
        } else {
            say(&view::text(&shown))?;
        }
        if arguments.once {
            return Ok(());
        }
        (before, first) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::view::tests::stack;

    fn status(application: u32, process: u32, charged: u64) -> Status {
        Status {
            application,
            domain: 1000,
            process,
            state: 1,
            queues: 1,
            ports: 2,
            holders: 2,
            blocks: 0,
            weight: 1,
            reserved: 0,
            charged,
        }
    }

    fn queue(full: u64) -> QueueCounters {
        let mut counters = [0; 24];
        counters[Counter::Frames as usize] = 10 * full;
        counters[Counter::ChannelFull as usize] = full;
        QueueCounters {
            queue: 0,
            queues: 1,
            counters,
        }
    }

    /// Two seconds apart: a managed stack, a managed application whose stack does not
    /// answer, and a stack without a manager.
    pub fn looks() -> Shown {
        let at = Instant::now();
        let of = |seconds: u64, delivered: u64, full: u64| {
            let mut mine = stack(seconds, delivered, 0);
            (mine.process, mine.interface) = (u32::MAX, "eth0".to_owned());
            let other = stack(seconds, 0, 0);
            Look {
                at: at + Duration::from_secs(seconds),
                managers: vec![Managed {
                    interface: "eth0".to_owned(),
                    applications: vec![
                        status(0, u32::MAX, seconds * 250_000_000),
                        status(3, u32::MAX - 1, 0),
                    ],
                    queues: vec![queue(full)],
                }],
                stacks: vec![("a".into(), mine), ("b".into(), other)],
                unprotected: Record::parse("7\tp\tkernel\tlistener\t0.0.0.0:80\tno")
                    .into_iter()
                    .collect(),
            }
        };
        shown(&of(10, 1_000, 50), &of(12, 3_000, 150), &Watch::default())
    }

    #[test]
    fn each_application_is_one_row_with_its_stack() {
        let shown = looks();
        assert_eq!(shown.seconds, 2.0);
        let [managed, silent, alone] = shown.applications.as_slice() else {
            panic!("{shown:?}");
        };
        assert_eq!((managed.user, managed.application), (Some(1000), Some(0)));
        assert_eq!(managed.stack.as_ref().unwrap().received, 1_000.0);
        assert_eq!((managed.charged, managed.weight), (Some(0.25), Some(1)));
        assert_eq!((silent.charged, alone.charged), (Some(0.0), None));
        assert_eq!((silent.application, &silent.stack), (Some(3), &None));
        assert_eq!((alone.user, alone.ports), (None, None));
        let [device] = shown.devices.as_slice() else {
            panic!("{shown:?}");
        };
        assert_eq!(device.frames, 500.0);
        assert_eq!(
            device.drops,
            BTreeMap::from([("channel-full".to_owned(), 50.0)])
        );
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["applications"][0]["stack"]["received"], 1_000.0);
    }
}
