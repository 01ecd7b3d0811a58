//! The generators over a real veth between two network namespaces. Needs root,
//! `ip` and `ethtool`; says SKIPPED without them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tidewall_load::{BlastSpec, LoadSpec, PingSpec, SenderKind, run};

/// Bytes of a socket buffer for a whole test's packets.
const ROOM: usize = 16 << 20;

/// Two namespaces joined by a veth: 10.99.0.1 and fd99::1 on `vA` in the first, 10.99.0.2
/// and fd99::2 on `vB` in the second, GRO on at `vB`.
struct Bed {
    names: [String; 2],
    /// Deletes the namespaces when its standard input closes: when this process ends in
    /// whatever way, or drops the bed.
    undertaker: Child,
}

impl Bed {
    /// Creates a bed; `None`, with the reason printed, if that is impossible.
    fn new(test: &str) -> Option<Bed> {
        if !tidewall_skip::is_root(test) || !tidewall_skip::has_programs(test, &["ip", "ethtool"]) {
            return None;
        }
        let id = format!("tw-load-{}-{test}", std::process::id());
        let [a, b] = ["a", "b"].map(|end| format!("{id}-{end}"));
        let undertaker = Command::new("sh")
            .args([
                "-c",
                "cat; ip netns del \"$1\"; ip netns del \"$2\"",
                "sh",
                &a,
                &b,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of the reach of the terminal's Ctrl-C.
            .process_group(0)
            .spawn()
            .unwrap();
        let bed = Bed {
            names: [a, b],
            undertaker,
        };
        let [a, b] = &bed.names;
        ip(&["netns", "add", a]);
        ip(&["netns", "add", b]);
        ip(&[
            "link", "add", "vA", "netns", a, "type", "veth", "peer", "name", "vB", "netns", b,
        ]);
        for (namespace, device, host) in [(a, "vA", 1), (b, "vB", 2)] {
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
            ip(&["-n", namespace, "link", "set", device, "up"]);
            let address = format!("10.99.0.{host}/24");
            ip(&["-n", namespace, "address", "add", &address, "dev", device]);
            let address = format!("fd99::{host}/64");
            ip(&[
                "-n", namespace, "address", "add", &address, "dev", device, "nodad",
            ]);
        }
        bed.set_peer_gro("on");
        Some(bed)
    }

    /// Drops packets for a prefix on an interface of the first namespace.
    fn xdp_sink(&self, interface: &str, prefix: &str) -> io::Result<tidewall_load::XdpSink> {
        let prefix = prefix.parse().unwrap();
        let attach = || {
            self.enter(0);
            tidewall_load::XdpSink::attach(interface, &prefix)
        };
        thread::scope(|scope| scope.spawn(attach).join().unwrap())
    }

    fn set_peer_gro(&self, state: &str) {
        ip(&[
            "netns",
            "exec",
            &self.names[1],
            "ethtool",
            "-K",
            "vB",
            "gro",
            state,
        ]);
    }

    /// Moves the calling thread into one of the namespaces.
    fn enter(&self, end: usize) {
        let namespace = File::open(format!("/run/netns/{}", self.names[end])).unwrap();
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network).unwrap();
    }

    /// Runs a load in the first namespace, from a separate thread.
    fn load(&self, spec: &LoadSpec) -> io::Result<tidewall_load::LoadReport> {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter(0);
                    run(spec, |_| ())
                })
                .join()
                .unwrap()
        })
    }

    /// A socket in the second namespace.
    fn peer_socket(&self, address: SocketAddr) -> UdpSocket {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter(1);
                    UdpSocket::bind(address).unwrap()
                })
                .join()
                .unwrap()
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        drop(self.undertaker.stdin.take());
        let _ = self.undertaker.wait();
    }
}

fn ip(arguments: &[&str]) {
    let mut child = Command::new("ip")
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reason = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut reason).unwrap();
    }
    assert!(
        child.wait().unwrap().success(),
        "ip {arguments:?}: {reason}"
    );
}

fn load(blast: Option<BlastSpec>, ping: Option<PingSpec>, milliseconds: u64) -> LoadSpec {
    LoadSpec {
        blast,
        ping,
        ..LoadSpec::new(Duration::from_millis(milliseconds))
    }
}

/// Everything in the socket's buffer: datagrams by source.
fn drain(socket: &UdpSocket, payload: usize) -> HashMap<SocketAddr, u64> {
    let mut sources = HashMap::new();
    let mut buffer = [0xee; 2048];
    // Long enough for a frame on its way, and otherwise the end of the test.
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    while let Ok((length, source)) = socket.recv_from(&mut buffer) {
        assert_eq!(length, payload);
        assert!(buffer[..length].iter().all(|&byte| byte == 0));
        *sources.entry(source).or_default() += 1;
    }
    sources
}

#[test]
fn what_is_sent_arrives_by_every_sender() {
    let Some(bed) = Bed::new("senders") else {
        return;
    };
    for kind in [SenderKind::Skb, SenderKind::Frame, SenderKind::Socket] {
        for (ip, payload) in [("10.99.0.2", 0), ("10.99.0.2", 1472), ("fd99::2", 14)] {
            let destination = SocketAddr::new(ip.parse().unwrap(), 4000);
            let socket = bed.peer_socket(destination);
            set_socket_recv_buffer_size_force(&socket, ROOM).unwrap();
            let mut blast = BlastSpec::new(kind, destination);
            blast.payload = payload;
            blast.rate = Some(20_000);
            blast.flows = 3;
            let report = bed.load(&load(Some(blast), None, 100)).unwrap();
            let blast = report.blast.unwrap();
            let case = format!("{blast:?}");
            assert_eq!(blast.whole.offered, 2000, "{case}");
            assert_eq!(
                blast.whole.sent + blast.whole.ring_full + blast.whole.skipped,
                2000,
                "{case}"
            );
            // The machine decides how many of the offered packets were sent in time: a
            // loaded one sent 778.
            assert!(blast.whole.sent > 0, "{case}");
            assert_eq!(blast.interface, "vA");
            let counters = blast.counters.unwrap();
            assert!(counters.packets >= blast.whole.sent, "{case}");

            let sources = drain(&socket, payload.into());
            assert_eq!(sources.values().sum::<u64>(), blast.whole.sent, "{case}");
            let ports: HashSet<u16> = sources.keys().map(SocketAddr::port).collect();
            assert_eq!(ports.len(), 3, "{sources:?}");
            // Each in turn, whole bursts at worst.
            let most = sources.values().max().unwrap();
            let least = sources.values().min().unwrap();
            assert!(most - least <= u64::from(blast.burst), "{sources:?}");
        }
    }
}

#[test]
fn a_number_of_packets_and_the_fastest_rate() {
    let Some(bed) = Bed::new("number") else {
        return;
    };
    let destination: SocketAddr = "10.99.0.2:4000".parse().unwrap();
    for kind in [SenderKind::Skb, SenderKind::Frame, SenderKind::Socket] {
        let mut blast = BlastSpec::new(kind, destination);
        blast.packets = Some(3001);
        let report = bed
            .load(&load(Some(blast), None, 500))
            .unwrap()
            .blast
            .unwrap();
        assert_eq!(report.whole.offered, 3001, "{report:?}");
        assert_eq!(report.whole.skipped, 0, "{report:?}");
        assert!(report.rate > 10_000.0, "{report:?}");
    }
}

#[test]
fn sources_can_vary_within_a_prefix() {
    let Some(bed) = Bed::new("spoof") else { return };
    let destination: SocketAddr = "10.99.0.2:4000".parse().unwrap();
    let socket = bed.peer_socket(destination);
    set_socket_recv_buffer_size_force(&socket, ROOM).unwrap();
    // The peer accepts packets from sources to which it has a route.
    ip(&[
        "-n",
        &bed.names[1],
        "route",
        "add",
        "10.98.0.0/16",
        "dev",
        "vB",
    ]);
    for (kind, sources) in [(SenderKind::Skb, 150), (SenderKind::Frame, 10)] {
        let mut blast = BlastSpec::new(kind, destination);
        blast.spoof = Some("10.98.0.0/16".parse().unwrap());
        blast.packets = Some(200);
        blast.burst = Some(10);
        let report = bed
            .load(&load(Some(blast), None, 200))
            .unwrap()
            .blast
            .unwrap();
        let seen = drain(&socket, 14);
        assert_eq!(seen.values().sum::<u64>(), report.whole.sent, "{report:?}");
        assert!(seen.len() >= sources, "{kind}: {}", seen.len());
        for source in seen.keys() {
            let IpAddr::V4(address) = source.ip() else {
                panic!("{source}")
            };
            assert_eq!(address.octets()[..2], [10, 98]);
        }
    }
}

#[test]
fn a_ping_is_answered_beside_a_blast() {
    let Some(bed) = Bed::new("ping") else { return };
    let echo: SocketAddr = "10.99.0.2:7".parse().unwrap();
    let socket = bed.peer_socket(echo);
    let _sink = bed.peer_socket("10.99.0.2:4000".parse().unwrap());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            socket
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            while !over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        for (kind, wait) in [
            (SenderKind::Skb, tidewall_load::Wait::Spin),
            (SenderKind::Frame, tidewall_load::Wait::Block),
        ] {
            let mut blast = BlastSpec::new(kind, "10.99.0.2:4000".parse().unwrap());
            blast.rate = Some(5000);
            let mut ping = PingSpec::new(echo);
            ping.outstanding = 2;
            ping.wait = wait;
            let mut spec = load(Some(blast), Some(ping), 200);
            spec.warm_up = Duration::from_millis(100);
            let report = bed.load(&spec);
            over.store(report.is_err(), Ordering::Relaxed);
            let report = report.unwrap();
            let (blast, ping) = (report.blast.unwrap(), report.ping.unwrap());
            assert_eq!(blast.whole.offered, 1500, "{blast:?}");
            assert!((950..=1050).contains(&blast.measured.offered), "{blast:?}");
            let latency = ping.latency.unwrap();
            assert_eq!(latency.samples, ping.measured.echoed, "{ping:?}");
            assert!(ping.measured.echoed >= 100, "{ping:?}");
            assert!(ping.whole.echoed > ping.measured.echoed, "{ping:?}");
            assert!(
                latency.min <= latency.p50 && latency.p50 <= latency.p99,
                "{ping:?}"
            );
            assert!(latency.p99 <= latency.max && latency.min > 0, "{ping:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_cannot_work_says_what_to_do() {
    let Some(bed) = Bed::new("errors") else {
        return;
    };
    let fail = |blast| {
        bed.load(&load(Some(blast), None, 100))
            .unwrap_err()
            .to_string()
    };
    let blast = |kind, destination: &str| BlastSpec::new(kind, destination.parse().unwrap());

    let unanswered = fail(blast(SenderKind::Skb, "10.99.0.77:9"));
    assert!(
        unanswered.contains("ip neigh replace 10.99.0.77"),
        "{unanswered}"
    );
    let unrouted = fail(blast(SenderKind::Skb, "192.0.2.1:9"));
    assert!(unrouted.contains("ip route add 192.0.2.1"), "{unrouted}");
    let mut absent = blast(SenderKind::Skb, "10.99.0.2:9");
    absent.interface = Some("nowhere".into());
    absent.destination_mac = Some("02:00:00:00:00:01".parse().unwrap());
    absent.source = Some("10.99.0.1".parse().unwrap());
    let absent = fail(absent);
    assert!(absent.contains("no interface \"nowhere\""), "{absent}");
    bed.set_peer_gro("off");
    let untaken = fail(blast(SenderKind::Frame, "10.99.0.2:9"));
    assert!(untaken.contains("ethtool -K PEER gro on"), "{untaken}");
}

/// Returns a counter of the peer's `/proc/net/snmp`.
fn peer_counter(bed: &Bed, protocol: &str, name: &str) -> u64 {
    let text = thread::scope(|scope| {
        scope
            .spawn(|| {
                bed.enter(1);
                std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap()
            })
            .join()
            .unwrap()
    });
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|found| found == name).unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

/// Returns the IP packets that the client's namespace has received.
fn taken_in(bed: &Bed) -> u64 {
    let read = || {
        bed.enter(0);
        let four = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
        let six = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
        (four, six)
    };
    let (four, six) = thread::scope(|scope| scope.spawn(read).join().unwrap());
    // "no route" and "no such host" included, unlike in `snmp`.
    let mut lines = four.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names
        .split(' ')
        .position(|name| name == "InNoECTPkts")
        .unwrap();
    let four: u64 = values.split(' ').nth(place).unwrap().parse().unwrap();
    let six = six
        .lines()
        .find_map(|line| line.strip_prefix("Ip6InReceives"));
    four + six.unwrap().trim().parse::<u64>().unwrap()
}

#[test]
fn answers_to_nobody_are_dropped_at_the_device() {
    let Some(bed) = Bed::new("sink") else {
        return;
    };
    for route in [["10.98.0.0/16", "10.99.0.1"], ["fd98::/64", "fd99::1"]] {
        let [prefix, via] = route;
        ip(&["-n", &bed.names[1], "route", "add", prefix, "via", via]);
    }
    for (closed, prefix) in [
        ("10.99.0.2:80", "10.98.0.0/16"),
        ("[fd99::2]:80", "fd98::/64"),
    ] {
        let mut flood = BlastSpec::syn(SenderKind::Skb, closed.parse().unwrap());
        flood.spoof = Some(prefix.parse().unwrap());
        (flood.packets, flood.rate) = (Some(200), Some(2000));
        let spec = load(Some(flood), None, 200);
        let mut answers = Vec::new();
        for with_sink in [false, true] {
            let _sink = with_sink.then(|| bed.xdp_sink("vA", prefix).unwrap());
            let before = taken_in(&bed);
            bed.load(&spec).unwrap();
            answers.push(taken_in(&bed) - before);
        }
        assert!(
            answers[0] >= 190 && answers[1] <= 20,
            "{closed}: {answers:?}"
        );
    }
    // Other answers arrive as usual.
    let echo: SocketAddr = "10.99.0.2:4000".parse().unwrap();
    let socket = bed.peer_socket(echo);
    let _sink = bed.xdp_sink("vA", "10.98.0.0/16").unwrap();
    let over = AtomicBool::new(false);
    let echoed = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            let timeout = Some(Duration::from_millis(20));
            socket.set_read_timeout(timeout).unwrap();
            while !over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        let mut ping = PingSpec::new(echo);
        ping.wait = tidewall_load::Wait::Block;
        let report = bed.load(&load(None, Some(ping), 100));
        over.store(true, Ordering::Relaxed);
        report.unwrap().ping.unwrap().whole.echoed
    });
    assert!(echoed > 10, "{echoed}");
    let error = bed.xdp_sink("lo", "10.98.0.0/16").unwrap_err();
    assert!(
        error.to_string().contains("no XDP program on lo"),
        "{error}"
    );
    let error = bed.xdp_sink("nowhere", "10.98.0.0/16").unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_flood_of_syns_is_taken_for_new_clients() {
    let Some(bed) = Bed::new("syn") else { return };
    if !tidewall_skip::has_programs("a_flood_of_syns_is_taken_for_new_clients", &["ss"]) {
        return;
    }
    for route in [["10.98.0.0/16", "10.99.0.1"], ["fd98::/64", "fd99::1"]] {
        let [prefix, via] = route;
        ip(&["-n", &bed.names[1], "route", "add", prefix, "via", via]);
    }
    for (kind, burst) in [(SenderKind::Skb, 10), (SenderKind::Frame, 50)] {
        for (server, prefix) in [
            ("10.99.0.2:80", "10.98.0.0/16"),
            ("[fd99::2]:80", "fd98::/64"),
        ] {
            let server: SocketAddr = server.parse().unwrap();
            let _listener = thread::scope(|scope| {
                let listen = || {
                    bed.enter(1);
                    std::net::TcpListener::bind(server).unwrap()
                };
                scope.spawn(listen).join().unwrap()
            });
            let before = peer_counter(&bed, "Tcp:", "InSegs");
            let mut flood = BlastSpec::syn(kind, server);
            flood.spoof = Some(prefix.parse().unwrap());
            flood.packets = Some(100);
            flood.rate = Some(2000);
            flood.burst = Some(burst);
            let report = bed.load(&load(Some(flood), None, 300)).unwrap();
            let blast = report.blast.unwrap();
            assert_eq!(blast.whole.sent, 100, "{blast:?}");
            let case = format!("{kind} to {server}");
            // The answers have no receiver, so only the flood is counted.
            assert_eq!(peer_counter(&bed, "Tcp:", "InSegs") - before, 100, "{case}");
            assert_eq!(peer_counter(&bed, "Tcp:", "InErrs"), 0, "{case}");
            let half_open = Command::new("ip")
                .args(["netns", "exec", &bed.names[1]])
                .args(["ss", "-Htn", "state", "syn-recv"])
                .output()
                .unwrap();
            let text = String::from_utf8(half_open.stdout).unwrap();
            let start = if server.is_ipv4() { "10.98." } else { "[fd98:" };
            let sources: HashSet<&str> = text
                .split_whitespace()
                .filter(|word| word.starts_with(start))
                .collect();
            // Each has another source, even frames of one burst.
            assert!(sources.len() >= 95, "{case}: {} of\n{text}", sources.len());
        }
    }
}
