//! The bed: a peer, an intermediary, and members, in namespaces of their own.
//!
//! ```text
//!   tw-PID-ap (peer)             tw-PID-as (intermediary)            tw-PID-am (members)
//!   10.79.0.2  tw-p ══ veth ══ tw-i 10.79.0.1    tw-o 10.79.1.1 ══ veth ══ tw-m  10.79.1.2
//! ```
//!
//! What the ends do runs on the client's processor, what the intermediary does on the
//! server's: kernel TCP's receiving is steered (RPS), a switch polls its devices itself. No
//! device joins or cuts segments. Where paths are long there is a namespace more between
//! the peer and the intermediary, tw-PID-al, with a bridge that delays (tw-x, tw-y).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use tidewall_manager::restore::Undo;

use super::Case;
use crate::bridge::{Impair, Spec};
use crate::command::{absolute, run, run_line};
use crate::interrupt;
use crate::testbed::{Testbed, cpu_mask};
use crate::worker::{
    Child, FrameJob, FrameRole, FrameSegment, Job, Place, SplitJob, SplitWaiting, SwitchJob,
    SwitchModule, Times, Usage, Watch,
};

/// Interfaces of the intermediary: where peers come from, and where members are.
const INTERFACES: [&str; 2] = ["tw-i", "tw-o"];
/// Interfaces of the peer and of the members.
const ENDS: [&str; 2] = ["tw-p", "tw-m"];
/// Interfaces of the bridge: towards the peer and towards the intermediary.
const PATH: [&str; 2] = ["tw-x", "tw-y"];
/// Bits/s of a long path, which the bridge forwards without being noticed.
pub(super) const RATE: u64 = 100_000_000;
/// Its queue, bytes.
const QUEUE: u32 = 500_000;
/// What peers of a switch connect to.
const VIRTUAL: SocketAddr = SocketAddr::new(ip(0, 99), 6000);
/// What peers of a proxy connect to.
const PROXY: SocketAddr = SocketAddr::new(ip(0, 1), 6000);
/// Port of the first member.
const PORT: u16 = 6001;
/// Headers of IPv4 and TCP.
const HEADERS: u16 = 40;
/// Before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long an end may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

const fn ip(link: u8, host: u8) -> std::net::IpAddr {
    std::net::IpAddr::V4(Ipv4Addr::new(10, 79, link, host))
}

/// Who stands between peer and members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// The transport switch, making so many needless copies.
    Switch(SwitchModule, u32),
    /// A proxy.
    Proxy(SplitWaiting),
    /// The kernel's forwarding: a connection to the first member alone.
    Nobody,
}

impl Between {
    pub(super) fn name(self) -> &'static str {
        match self {
            Between::Switch(_, 0) => "switch",
            Between::Switch(..) => "switch-copies",
            Between::Proxy(SplitWaiting::Select) => "select-proxy",
            Between::Proxy(SplitWaiting::Epoll) => "epoll-proxy",
            Between::Nobody => "direct",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Between::Switch(_, 0) => {
                "the loop of `tidewall switch`, AF_XDP in copy mode, in-place forwarding; \
                 kernel TCP at its ends"
            }
            Between::Switch(..) => "the same, and two copies of every payload",
            Between::Proxy(SplitWaiting::Select) => {
                "kernel TCP ended on both sides; one thread, select(2), reads of up to 64 KiB, \
                 whole frames written on, blocking; receiving steered to its processor (RPS)"
            }
            Between::Proxy(SplitWaiting::Epoll) => "the same with epoll(7)",
            Between::Nobody => "one connection to one member, forwarded by the kernel",
        }
    }
}

/// What came of one measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Bytes/s of frames, at whoever takes them.
    pub(super) rate: f64,
    /// Share of the intermediary's processor that was used.
    pub(super) busy: f64,
}

pub(super) struct Star {
    peer: String,
    middle: String,
    members: String,
    /// Where the bridge is to run, if paths are long.
    path: Option<String>,
    /// Processors of the ends and of the intermediary.
    cpus: [usize; 2],
    _namespaces: Vec<Undo>,
}

impl Star {
    pub(super) fn new(testbed: &Testbed, is_long: bool) -> anyhow::Result<Self> {
        let config = testbed.config();
        let process = std::process::id();
        let [peer, middle, members] = ["p", "s", "m"].map(|it| format!("tw-{process}-a{it}"));
        let path = is_long.then(|| format!("tw-{process}-al"));
        let ip = absolute("ip")?;
        let mut namespaces = Vec::new();
        for name in [&peer, &middle, &members].into_iter().chain(&path) {
            let undo = testbed.restorer();
            namespaces.push(undo.on_exit_run(&[&ip, "netns", "del", name])?);
            run(&ip, &["netns", "add", name])?;
        }
        let star = Star {
            peer,
            middle,
            members,
            path,
            cpus: [config.client_cpu, config.server_cpu],
            _namespaces: namespaces,
        };
        for link in 0..2 {
            star.link(&ip, link)?;
        }
        Ok(star)
    }

    /// Lays the link to the peer or to the members.
    fn link(&self, ip: &str, number: usize) -> anyhow::Result<()> {
        let (end, other) = (ENDS[number], INTERFACES[number]);
        let namespace = [&self.peer, &self.members][number];
        let middle = &self.middle;
        let mac = |host: u8| format!("02:79:00:00:0{number}:0{host}");
        let pair = |inside: &str, name: &str, link: u8, other: (&str, &str), its_link: u8| {
            run_line(&format!(
                "{ip} -n {inside} link add {name} address {} type veth peer name {} netns {} \
                 address {}",
                mac(link),
                other.1,
                other.0,
                mac(its_link)
            ))
        };
        match self.path.as_deref().filter(|_| number == 0) {
            None => pair(namespace, end, 2, (middle, other), 1).map(drop)?,
            Some(path) => {
                let [near, far] = PATH;
                pair(namespace, end, 2, (path, near), 3)?;
                pair(middle, other, 1, (path, far), 4)?;
                let script = PATH.map(|it| {
                    format!(
                        "ip link set {it} addrgenmode none; \
                         ethtool -K {it} tx off tso off gso off gro off; ip link set {it} up; "
                    )
                });
                inside_shell(path, &script.concat())?;
            }
        }
        // What a bridge forwards has its checksums.
        let middle_off = match self.path {
            Some(_) => "tx off tso off gso off gro off",
            None => "tso off gso off gro off",
        };
        for (inside, interface, own, peer, cpu, off) in [
            (
                namespace,
                end,
                2,
                1,
                self.cpus[0],
                "tx off tso off gso off gro off",
            ),
            (middle, other, 1, 2, self.cpus[1], middle_off),
        ] {
            let script = format!(
                "ip link set lo up; ip link set {interface} addrgenmode none; \
                 ip address add 10.79.{number}.{own}/24 dev {interface}; \
                 ethtool -K {interface} {off}; ip link set {interface} up; \
                 ip neigh replace 10.79.{number}.{peer} lladdr {} dev {interface} nud permanent; \
                 echo {} > /sys/class/net/{interface}/queues/rx-0/rps_cpus; \
                 echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save",
                mac(peer),
                cpu_mask(cpu),
            );
            inside_shell(inside, &script)?;
        }
        // For a connection with nobody between.
        let other_link = 1 - number;
        inside_shell(
            namespace,
            &format!("ip route add 10.79.{other_link}.0/24 via 10.79.{number}.1"),
        )?;
        inside_shell(middle, "echo 1 > /proc/sys/net/ipv4/ip_forward")?;
        if number == 0 {
            let known = format!(
                "ip neigh replace {} lladdr {} dev {end} nud permanent",
                VIRTUAL.ip(),
                mac(1)
            );
            inside_shell(namespace, &known)?;
        }
        Ok(())
    }

    fn set_mtu(&self, mtu: u16) -> anyhow::Result<()> {
        for (namespace, interface) in [
            (&self.peer, ENDS[0]),
            (&self.members, ENDS[1]),
            (&self.middle, INTERFACES[0]),
            (&self.middle, INTERFACES[1]),
        ] {
            run_line(&format!("ip -n {namespace} link set {interface} mtu {mtu}"))?;
        }
        for (path, interface) in self.path.iter().flat_map(|it| PATH.map(|name| (it, name))) {
            run_line(&format!("ip -n {path} link set {interface} mtu {mtu}"))?;
        }
        Ok(())
    }

    /// Measures a case through an intermediary, all begun anew.
    pub(super) fn measure(
        &self,
        case: &Case,
        between: Between,
        window: Duration,
    ) -> anyhow::Result<Outcome> {
        self.set_mtu(case.mtu)?;
        let place = |namespace, end: usize| Place {
            namespace,
            cpu: self.cpus[end],
        };
        let addresses: Vec<SocketAddr> = (0..u16::from(case.members))
            .map(|number| SocketAddr::new(ip(1, 2), PORT + number))
            .collect();
        let gives = Some(FrameSegment {
            frames: case.frames,
            size: case.size(),
        });
        let slow = |(number, &address): (usize, &SocketAddr)| {
            let slowed = if number == 0 { case.slowed_us } else { 0 };
            (address, slowed)
        };
        let members = FrameJob {
            role: FrameRole::Members(addresses.iter().enumerate().map(slow).collect()),
            gives: gives.filter(|_| case.outbound),
        };
        let (job, address) = match between {
            Between::Switch(module, copies) => {
                let job = SwitchJob {
                    interfaces: INTERFACES.map(str::to_owned),
                    address: VIRTUAL,
                    members: addresses,
                    local: ip(1, 1),
                    segment: case.mtu.saturating_sub(HEADERS),
                    module,
                    copies,
                };
                (Some(Job::Switch(job)), VIRTUAL)
            }
            Between::Proxy(waiting) => {
                let job = SplitJob {
                    listen: PROXY,
                    members: addresses,
                    waiting,
                };
                (Some(Job::Split(job)), PROXY)
            }
            Between::Nobody => (None, SocketAddr::new(ip(1, 2), PORT)),
        };
        let peer = FrameJob {
            role: FrameRole::Peer(address, case.connections),
            gives: gives.filter(|_| !case.outbound),
        };
        let name = between.name();
        let mut members =
            Child::start_ready(place(&self.members, 0), &Job::Frames(members), "members")?;
        let middle = job.map(|job| Child::start_ready(place(&self.middle, 1), &job, name));
        let middle = middle.transpose()?;
        let path = self.path.as_ref().zip(case.round_trip_ms);
        let path = path.map(|(namespace, round_trip)| {
            let job = Job::Bridge(bridge(round_trip));
            Child::start_ready(place(namespace, 0), &job, "the bridge")
        });
        let _path = path.transpose()?;
        let mut peer = Child::start_ready(place(&self.peer, 0), &Job::Frames(peer), "the peer")
            .with_context(|| {
                format!(
                    "{name}{}",
                    middle.as_ref().map_or_else(String::new, Child::said)
                )
            })?;
        let watch = Watch {
            process: middle
                .as_ref()
                .map_or_else(std::process::id, Child::process),
            cpu: self.cpus[1],
        };
        let mut bytes = || -> anyhow::Result<u64> {
            let taker = if case.outbound {
                &mut peer
            } else {
                &mut members
            };
            let counts: Vec<u64> = taker.ask_for("bytes", ANSWER)?;
            Ok(counts.iter().sum())
        };
        // Slow start over a long path takes many round trips.
        let round_trips = Duration::from_millis(20 * case.round_trip_ms.unwrap_or(0));
        rest(WARM_UP + round_trips)?;
        let (times, first) = (Times::read(watch), bytes()?);
        rest(window)?;
        let (later, last) = (Times::read(watch), bytes()?);
        let usage = Usage::between(&times, &later);
        Ok(Outcome {
            rate: last.saturating_sub(first) as f64 / usage.seconds,
            busy: 1.0 - usage.left(),
        })
    }
}

/// A path of so many milliseconds there and back.
fn bridge(round_trip: u64) -> Spec {
    let impair = Impair {
        rate: Some(RATE),
        delay_us: round_trip * 500,
        queue: Some(QUEUE),
        ..Impair::default()
    };
    Spec {
        left: PATH[0].to_owned(),
        right: vec![PATH[1].to_owned()],
        from_left: impair,
        from_right: impair,
        ..Spec::default()
    }
}

fn rest(time: Duration) -> anyhow::Result<()> {
    interrupt::check()?;
    std::thread::sleep(time);
    Ok(())
}

fn inside_shell(namespace: &str, script: &str) -> anyhow::Result<()> {
    run("ip", &["netns", "exec", namespace, "sh", "-ec", script]).map(drop)
}
