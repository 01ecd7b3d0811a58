//! The test bed: a peer, an intermediary, and members, each in its own namespace.
//!
//! ```text
//!   tw-PID-ap (peer)             tw-PID-as (intermediary)            tw-PID-am (members)
//!   10.79.0.2  tw-p ══ veth ══ tw-i 10.79.0.1    tw-o 10.79.1.1 ══ veth ══ tw-m  10.79.1.2
//! ```
//!
//! The ends run on the client's processor, the intermediary on the server's: kernel TCP's
//! receiving is steered (RPS), a switch polls its devices itself. No device joins or
//! splits segments. If one process is peer and members, they share a namespace. Long
//! paths add a namespace between the peer and the intermediary, tw-PID-al, with a bridge
//! that delays (tw-x, tw-y).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};
use tidewall_manager::restore::Undo;
use tidewall_wire::ethernet::MacAddress;

use super::Case;
use super::between::{Between, middle};
use super::ends::ANSWER;
use crate::bridge::{Impair, Spec};
use crate::command::{absolute, run, run_line};
use crate::interrupt;
use crate::testbed::{Testbed, cpu_mask};
use crate::worker::{Child, ForwardReport, ForwardSide, Job, Place, Times, Usage, Watch};

/// Interfaces of the intermediary: towards peers, and towards members.
pub(super) const INTERFACES: [&str; 2] = ["tw-i", "tw-o"];
/// Interfaces of the peer and of the members.
const ENDS: [&str; 2] = ["tw-p", "tw-m"];
/// Interfaces of the bridge: towards the peer and towards the intermediary.
const PATH: [&str; 2] = ["tw-x", "tw-y"];
/// Bits/s of a long path; the bridge forwards this rate without being noticed.
pub(super) const RATE: u64 = 100_000_000;
/// Its queue, bytes.
const QUEUE: u32 = 500_000;
/// Address to which peers of a switch connect.
pub(super) const VIRTUAL: SocketAddr = SocketAddr::new(ip(0, 99), 6000);
/// Address to which peers of a proxy connect.
pub(super) const PROXY: SocketAddr = SocketAddr::new(ip(0, 1), 6000);
/// Port of the first member.
pub(super) const PORT: u16 = 6001;
/// First port of a peer outside the kernel.
const PEER_PORT: u16 = 50_001;
/// Time before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);

pub(super) const fn ip(link: u8, host: u8) -> std::net::IpAddr {
    std::net::IpAddr::V4(Ipv4Addr::new(10, 79, link, host))
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Bytes/s of delivered frames, requests/s, or frames/s.
    pub(super) rate: f64,
    /// Share of the intermediary's processor that was used.
    pub(super) busy: f64,
    /// Median time of a request, µs; 0 without requests.
    pub(super) response_us: f64,
    /// Share of the time in which ends that never sleep waited for the intermediary.
    pub(super) waited: f64,
    /// Segments/s that such ends sent again.
    pub(super) repeated: f64,
    /// The intermediary's bytes for the connections: those of a switch's machine, or
    /// those of a process and of the kernel's socket buffers.
    pub(super) memory: f64,
}

/// The namespaces beside the intermediary's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The peer's and the members'.
    Apart,
    /// The same, and one for a bridge that delays.
    Long,
    /// One shared by peer and members.
    Together,
}

pub(super) struct Star {
    pub(super) peer: String,
    pub(super) middle: String,
    pub(super) members: String,
    /// Namespace of the bridge, if paths are long.
    path: Option<String>,
    /// Processors of the ends and of the intermediary.
    pub(super) cpus: [usize; 2],
    _namespaces: Vec<Undo>,
}

impl Star {
    pub(super) fn new(testbed: &Testbed, layout: Layout) -> anyhow::Result<Self> {
        let config = testbed.config();
        let process = std::process::id();
        let is_together = layout == Layout::Together;
        let members = if is_together { "p" } else { "m" };
        let [peer, middle, members] = ["p", "s", members].map(|it| format!("tw-{process}-a{it}"));
        let path = (layout == Layout::Long).then(|| format!("tw-{process}-al"));
        let ip = absolute("ip")?;
        let mut namespaces = Vec::new();
        let apart = Some(&members).filter(|_| !is_together);
        for name in [&peer, &middle].into_iter().chain(apart).chain(&path) {
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

    /// Creates the link to the peer or to the members.
    fn link(&self, ip: &str, number: usize) -> anyhow::Result<()> {
        let (end, other) = (ENDS[number], INTERFACES[number]);
        let namespace = [&self.peer, &self.members][number];
        let middle = &self.middle;
        let mac = |host: u8| mac(number as u8, host);
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
        // Frames that a bridge forwards need their checksums.
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
        // For a connection without an intermediary.
        let other_link = 1 - number;
        if self.peer != self.members {
            inside_shell(
                namespace,
                &format!("ip route add 10.79.{other_link}.0/24 via 10.79.{number}.1"),
            )?;
        }
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

    pub(super) fn set_mtu(&self, mtu: u16) -> anyhow::Result<()> {
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

    /// Measures a case through an intermediary, with everything started afresh.
    pub(super) fn measure(
        &self,
        case: &Case,
        between: Between,
        window: Duration,
    ) -> anyhow::Result<Outcome> {
        if between == Between::WakeUp {
            return self.wake_up();
        }
        self.set_mtu(case.mtu)?;
        let place = |namespace, end: usize| Place {
            namespace,
            cpu: self.cpus[end],
        };
        let addresses = members(case.members);
        let (job, address) = middle(between, &addresses, case);
        let (members, peer) = case.ends(addresses, address);
        let name = between.name();
        let members = members.map(|job| {
            let place = place(&self.members, 0);
            Child::start_ready(place, &job, "members")
        });
        let mut members = members.transpose()?;
        let middle = job.map(|job| Child::start_ready(place(&self.middle, 1), &job, name));
        let mut middle = middle.transpose()?;
        let path = self.path.as_ref().zip(case.round_trip_ms);
        let path = path.map(|(namespace, round_trip)| {
            let job = Job::Bridge(bridge(round_trip));
            Child::start_ready(place(namespace, 0), &job, "the bridge")
        });
        let _path = path.transpose()?;
        let process = middle
            .as_ref()
            .map_or_else(std::process::id, Child::process);
        let idle = anonymous(process)?;
        let mut peer =
            Child::start_ready(place(&self.peer, 0), &peer, "the peer").with_context(|| {
                format!(
                    "{name}{}",
                    middle.as_ref().map_or_else(String::new, Child::said)
                )
            })?;
        let watch = Watch {
            process,
            cpu: self.cpus[1],
        };
        let mut count = || case.count(&mut peer, members.as_mut());
        // Slow start over a long path takes many round trips.
        let round_trips = Duration::from_millis(20 * case.round_trip_ms.unwrap_or(0));
        rest(WARM_UP + round_trips)?;
        let (times, first) = (Times::read(watch), count()?);
        rest(window)?;
        let (later, last) = (Times::read(watch), count()?);
        let usage = Usage::between(&times, &later);
        let busy = match &mut middle {
            Some(child) if between == Between::Bare => {
                let report: ForwardReport = child.ask_for("report", ANSWER)?;
                report.working / report.seconds
            }
            _ => 1.0 - usage.left(),
        };
        Ok(Outcome {
            rate: last.count.saturating_sub(first.count) as f64 / usage.seconds,
            busy,
            response_us: last.median_us,
            waited: last.idle.saturating_sub(first.idle) as f64 / 1e9 / usage.seconds,
            repeated: last.repeated.saturating_sub(first.repeated) as f64 / usage.seconds,
            memory: match &mut middle {
                Some(child) if matches!(between, Between::Switch(..)) => {
                    child.ask_for("memory", ANSWER)?
                }
                _ => anonymous(watch.process)? - idle + in_sockets(&self.middle)?,
            },
        })
    }

    /// Measures the wake-up time of this machine, from the ends' processor to that of the
    /// intermediary.
    fn wake_up(&self) -> anyhow::Result<Outcome> {
        const TRIPS: usize = 2000;
        let [ends, middle] = self.cpus;
        let (mut there, mut asked) = std::io::pipe().map(|(read, write)| (write, read))?;
        let (mut back, mut answers) = std::io::pipe().map(|(read, write)| (write, read))?;
        let answering = std::thread::spawn(move || -> std::io::Result<()> {
            stay_on(middle)?;
            let mut byte = [0];
            for _ in 0..TRIPS {
                asked.read_exact(&mut byte)?;
                back.write_all(&byte)?;
            }
            Ok(())
        });
        let asking = std::thread::spawn(move || -> std::io::Result<Vec<Duration>> {
            stay_on(ends)?;
            let mut byte = [0];
            let mut trip = || {
                let began = Instant::now();
                there.write_all(&byte)?;
                answers.read_exact(&mut byte)?;
                Ok(began.elapsed())
            };
            (0..TRIPS).map(|_| trip()).collect()
        });
        let died = |_| anyhow!("a thread that wakes the other died");
        let mut times = asking.join().map_err(died)??;
        answering.join().map_err(died)??;
        times.sort_unstable();
        let median = times.get(TRIPS / 2).copied().unwrap_or_default();
        Ok(Outcome {
            response_us: median.as_secs_f64() * 1e6 / 2.0,
            ..Outcome::default()
        })
    }
}

/// Returns the resident anonymous memory of a process, bytes.
fn anonymous(process: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|it| it.strip_prefix("RssAnon:"));
    let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.context("the kernel does not say RssAnon")? * 1024.0)
}

/// Returns the bytes in the buffers of a namespace's TCP sockets.
fn in_sockets(namespace: &str) -> anyhow::Result<f64> {
    let shown = run("ip", &["netns", "exec", namespace, "ss", "-tnmH"])?;
    Ok(buffered(&shown))
}

/// Sums the received and queued bytes in the output of `ss -m` (`r` and `w`, ss(8)).
fn buffered(shown: &str) -> f64 {
    let of = |memory: &str| {
        let fields = memory.split(')').next().unwrap_or_default().split(',');
        let numbers = fields.filter_map(|it| {
            let digits = it.strip_prefix(['r', 'w'])?;
            digits.parse::<f64>().ok()
        });
        numbers.sum::<f64>()
    };
    shown.split("skmem:(").skip(1).map(of).sum()
}

fn stay_on(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the link address of a host on a link.
pub(super) fn mac(link: u8, host: u8) -> MacAddress {
    MacAddress([2, 0x79, 0, 0, link, host])
}

/// Returns the peer's side and the members', as one process at both has them.
pub(super) fn sides(connections: u32) -> [ForwardSide; 2] {
    let side = |link: u8, ports| ForwardSide {
        interface: ENDS[usize::from(link)].to_owned(),
        addresses: vec![ip(link, 2)],
        ports,
        next_hop: mac(link, 1).0,
    };
    [side(0, peer_ports(connections)), side(1, vec![PORT])]
}

/// Returns the ports of a peer outside the kernel.
pub(super) fn peer_ports(connections: u32) -> Vec<u16> {
    (PEER_PORT..).take(connections as usize).collect()
}

/// Returns the addresses of this many members.
pub(super) fn members(count: u8) -> Vec<SocketAddr> {
    (0..u16::from(count))
        .map(|number| SocketAddr::new(ip(1, 2), PORT + number))
        .collect()
}

/// Returns a path with this round-trip time, ms.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_sockets_are_summed() {
        let shown = "ESTAB 0 0 10.79.0.1:6000 10.79.0.2:5\n\t skmem:(r4096,rb131072,t0,tb87040,\
                     f0,w2304,o0,bl0,d0)\nESTAB 0 0 a b\n\t skmem:(r0,rb1,t0,tb2,f0,w0,o0,bl0,d0)";
        assert_eq!(buffered(shown), 6400.0);
    }
}
