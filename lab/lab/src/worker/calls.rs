//! Workers that call and are called: switched circuits, and TCP for comparison.
//!
//! The called end accepts, receives until the caller has released, and accepts the next
//! call. The caller makes one call after another, or keeps many.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidewall::{
    AtmControl, AtmListener, AtmOptions, AtmSocket, CallOptions, Circuit, EmbeddedConfig, Nsap,
    Side, Stack,
};

use super::Managed;
use super::cpu::Cpu;
use super::service::until_input_ends;
use super::setups;
use crate::testbed::{CLIENT, CLIENT_INTERFACE, SERVER, SERVER_INTERFACE};

/// Port of TCP.
const PORT: u16 = 5000;
/// Calls that wait to be accepted.
const BACKLOG: usize = 64;
/// A circuit of the called end that is never read.
pub(crate) const UNREAD: Circuit = Circuit { vpi: 0, vci: 2000 };
/// Longest time for any operation.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Calls before any is counted: the first establishes the signalling link.
const WARM_UP: usize = 20;
/// The histograms' longest time, ns.
const LONGEST: u64 = 60_000_000_000;
/// A pair of interfaces in one namespace, and the first three bytes of each one's
/// network: the other end has address 2 there.
pub const PAIR: [(&str, [u8; 3]); 2] = [("tw-e", [10, 80, 0]), ("tw-f", [10, 81, 0])];

/// Calls to make or to accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallsJob {
    /// The end.
    pub role: CallsRole,
    /// The carrier of the calls.
    pub over: CallsOver,
    /// How long it calls, ms.
    pub time_ms: u32,
    /// Longest pause before a call, µs: each is a random part of it.
    pub pause_us: u32,
    /// The process's nice value; under -20: SCHED_FIFO, with the lowest priority there.
    pub nice: i32,
}

/// An end of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallsRole {
    /// Calls from the client's interface.
    Caller,
    /// Is called at the server's, until the input ends.
    Called,
    /// Both ends in one thread, over [`PAIR`].
    Both,
    /// Makes this many calls and keeps them, until the input ends. Answers the line
    /// `memory`.
    Keeper(u32),
    /// Sends SETUPs to a number without a listener, as many as a neighbour may, until the
    /// input ends. Answers the line `setups` with their number.
    Flooder,
}

/// The carrier of calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallsOver {
    /// Circuits, controlled in each end's process.
    InProcess,
    /// The same through a cell switch, at the server's interface and at the first of
    /// [`PAIR`]: the called end is at the second.
    Switched,
    /// Circuits of this manager, whatever carries them.
    Managed(Managed),
    /// Kernel TCP.
    Tcp,
}

/// Some durations, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Spread {
    fn of(times: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Spread {
            mean: times.mean() / 1e3,
            p50: us(times.value_at_quantile(0.5)),
            p99: us(times.value_at_quantile(0.99)),
        }
    }
}

/// A caller's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallsReport {
    /// Calls that were made and released.
    pub(crate) calls: u64,
    /// Duration in seconds, pauses included.
    pub(crate) seconds: f64,
    /// From calling until the caller goes on, connected.
    pub(crate) setup: Spread,
    /// From calling until the caller's own end is released and it can call again; with
    /// both ends in one thread, until both are.
    pub(crate) whole: Spread,
}

/// Runs the job.
pub(super) fn run(job: &CallsJob) -> anyhow::Result<()> {
    super::compete_as(job.nice)?;
    match (job.role, &job.over) {
        (CallsRole::Called, CallsOver::InProcess | CallsOver::Switched) => {
            let [_, (far, [a, b, c])] = PAIR;
            let (interface, next_hop, side) = match job.over {
                CallsOver::Switched => (far, Ipv4Addr::new(a, b, c, 2), Side::User),
                _ => (SERVER_INTERFACE, CLIENT.0, Side::Network),
            };
            let stack = controlled(interface, next_hop, side, CALLED)?;
            let _unread = AtmSocket::bind(&stack, UNREAD)?;
            take_calls(&stack)
        }
        (CallsRole::Called, CallsOver::Managed(manager)) => take_calls(&managed(manager)?),
        (CallsRole::Called, CallsOver::Tcp) => {
            let listener = TcpListener::bind((SERVER.0, PORT))?;
            std::thread::spawn(move || -> io::Result<()> {
                loop {
                    drop(listener.accept()?);
                }
            });
            answer()
        }
        (CallsRole::Caller, CallsOver::InProcess | CallsOver::Switched) => make_calls(
            job,
            &controlled(CLIENT_INTERFACE, SERVER.0, Side::User, CALLER)?,
        ),
        (CallsRole::Caller, CallsOver::Managed(manager)) => make_calls(job, &managed(manager)?),
        (CallsRole::Caller, CallsOver::Tcp) => {
            let to = SocketAddr::new(SERVER.0.into(), PORT);
            repeat(job, |connected| {
                let mut stream = TcpStream::connect(to)?;
                connected();
                // The other end has closed.
                stream.read_exact(&mut [0; 1]).or_else(|error| {
                    let ended = error.kind() == io::ErrorKind::UnexpectedEof;
                    ended.then_some(()).ok_or(error)
                })
            })
        }
        (CallsRole::Both, CallsOver::InProcess) => {
            let (near, listener) = joined()?;
            listener.set_nonblocking(true)?;
            repeat(job, |connected| both(&near, &listener, connected))
        }
        (CallsRole::Keeper(count), CallsOver::InProcess) => keep(count),
        (CallsRole::Flooder, CallsOver::InProcess) => setups::flood(),
        (CallsRole::Both | CallsRole::Keeper(_) | CallsRole::Flooder, _) => {
            bail!("both ends in one thread, and a flood, know a link alone")
        }
    }
}

/// Accepts each call, until the input ends.
fn take_calls(stack: &Stack) -> anyhow::Result<()> {
    let listener = AtmListener::bind(stack, CALLED, BACKLOG, AtmOptions::default())?;
    // Ends with the process.
    std::thread::spawn(move || -> io::Result<()> {
        loop {
            match listener.accept() {
                Ok((socket, _)) => while matches!(socket.recv(&mut [0; 64]), Ok(1..)) {},
                // Its caller has given up.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    });
    answer()
}

/// Calls the called end, as the job describes.
fn make_calls(job: &CallsJob, stack: &Stack) -> anyhow::Result<()> {
    repeat(job, |connected| {
        let socket = AtmSocket::connect_with(stack, CALLED, &patient())?;
        connected();
        drop(socket);
        Ok(())
    })
}

/// Answers the line `cpu`.
fn answer() -> anyhow::Result<()> {
    println!("ready");
    until_input_ends(|line| {
        if line == "cpu" {
            println!("{}", serde_json::to_string(&Cpu::read(None))?);
        }
        Ok(())
    })
}

/// Numbers that begin with 47.0005.01 and 47.0005.02.
pub(crate) const CALLER: Nsap = number(1);
pub(crate) const CALLED: Nsap = number(2);

const fn number(end: u8) -> Nsap {
    let mut number = [0; 20];
    [number[0], number[2], number[3]] = [0x47, 5, end];
    Nsap(number)
}

/// Opens both ends of [`PAIR`]: the caller's stack, and the called end.
fn joined() -> anyhow::Result<(Stack, AtmListener)> {
    let [near, far] = PAIR.map(|(interface, [a, b, c])| (interface, Ipv4Addr::new(a, b, c, 2)));
    let near = controlled(near.0, near.1, Side::User, CALLER)?;
    let far = controlled(far.0, far.1, Side::Network, CALLED)?;
    let listener = AtmListener::bind(&far, CALLED, BACKLOG, AtmOptions::default())?;
    Ok((near, listener))
}

fn controlled(
    interface: &str,
    next_hop: Ipv4Addr,
    side: Side,
    number: Nsap,
) -> anyhow::Result<Stack> {
    let stack = Stack::embedded(EmbeddedConfig::new(interface).control(false))
        .with_context(|| format!("cannot start the stack on {interface}"))?;
    stack.attach_atm(IpAddr::V4(next_hop))?;
    stack.control_atm(AtmControl { number, side })?;
    Ok(stack)
}

/// Opens the stack of a manager's application, without privileges.
fn managed(manager: &Managed) -> anyhow::Result<Stack> {
    manager.become_user()?;
    Stack::managed(&manager.socket, EmbeddedConfig::new("").control(false))
        .with_context(|| format!("cannot join the manager at {}", manager.socket.display()))
}

fn patient() -> CallOptions {
    CallOptions {
        timeout: Some(TIMEOUT),
        ..CallOptions::default()
    }
}

/// Makes one call and releases it, in one thread.
fn both(near: &Stack, listener: &AtmListener, connected: &mut dyn FnMut()) -> io::Result<()> {
    let began = Instant::now();
    let late = |what: io::Result<()>| match what {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) && began.elapsed() < TIMEOUT =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    };
    let socket = AtmSocket::connect_nonblocking(near, CALLED, &CallOptions::default())?;
    let mut accepted = None;
    while !late(listener.accept().map(|(socket, _)| accepted = Some(socket)))? {}
    while !late(socket.finish_connect(Some(Duration::from_nanos(1))))? {}
    connected();
    drop(socket);
    if let Some(other) = accepted {
        other.set_nonblocking(true)?;
        while !late(other.recv(&mut [0; 64]).map(drop))? {}
    }
    Ok(())
}

/// Calls repeatedly, and prints the report. `call` runs its argument once it is
/// connected.
fn repeat(
    job: &CallsJob,
    mut call: impl FnMut(&mut dyn FnMut()) -> io::Result<()>,
) -> anyhow::Result<()> {
    for _ in 0..WARM_UP {
        call(&mut || {})?;
    }
    println!("ready");
    let made = || Histogram::<u64>::new_with_max(LONGEST, 3);
    let (mut setup, mut whole) = (made()?, made()?);
    let time = Duration::from_millis(job.time_ms.into());
    let began = Instant::now();
    // A linear congruential generator (Knuth's MMIX): every pause differs.
    let mut random = 1_u64;
    while began.elapsed() < time {
        if job.pause_us > 0 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let pause = (random >> 33) % u64::from(job.pause_us);
            std::thread::sleep(Duration::from_micros(pause));
        }
        let at = Instant::now();
        let mut connected = at.elapsed();
        call(&mut || connected = at.elapsed())?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        setup.saturating_record(ns(connected));
        whole.saturating_record(ns(at.elapsed()));
    }
    let report = CallsReport {
        calls: whole.len(),
        seconds: began.elapsed().as_secs_f64(),
        setup: Spread::of(&setup),
        whole: Spread::of(&whole),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Keeps calls.
fn keep(count: u32) -> anyhow::Result<()> {
    let (near, listener) = joined()?;
    let mut kept = Vec::new();
    for _ in 0..count {
        let socket = AtmSocket::connect_nonblocking(&near, CALLED, &CallOptions::default())?;
        let (accepted, _) = listener.accept()?;
        socket.finish_connect(Some(TIMEOUT))?;
        kept.push([socket, accepted]);
    }
    let resident = resident()?;
    println!("ready");
    until_input_ends(|line| {
        if line == "memory" {
            println!("{}", serde_json::to_string(&resident)?);
        }
        Ok(())
    })
}

/// Returns the resident anonymous memory of this process, bytes.
fn resident() -> anyhow::Result<u64> {
    // This file is computed on demand; RssAnon lags behind by some hundred pages.
    let sums = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = sums.lines().find_map(|it| it.strip_prefix("Anonymous:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("the kernel does not say what is anonymous")? * 1024)
}
