//! `tidewall serve`: a real service to try by hand, on Tidewall or on Linux
//! sockets.

mod counting;
mod events;
mod http;
mod proxy;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use tidewall::tuning::{Architecture, BUDGET_MAX, BUDGET_MIN, INTERVAL_MAX, PolicyKind};
use tidewall::{EmbeddedConfig, Stack, TrafficClass, XdpMode};
use tidewall_manager::places;
use tidewall_service::linux::{Linux, Options, Receive};
use tidewall_service::tidewall::Tidewall;
use tidewall_service::{Host, Kind, ServiceCounts, ServiceSpec, serve};

use crate::end::{Failure, Outcome, check_interface, say_line, stop_flag};
use crate::units::{self, count, per_second};
use counting::{Look, Words, begin};
use events::{Events, Numbers, Server};
use http::Web;
use proxy::Proxy;

/// Run a web server, a forwarding proxy or a UDP service by hand, on Tidewall or on Linux
/// sockets, with the same code.
///
/// Prints its address and runs until Ctrl-C (SIGINT) or SIGTERM. It then finishes the
/// current responses and prints totals. On Tidewall it owns the interface's queues;
/// frames for ports it does not own stay with the kernel. Tidewall needs root:
/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall serve echo --interface eth1                 echo on UDP port 7\n  \
    tidewall serve discard --interface eth1 --stats      discard on port 9, rates to a log\n  \
    tidewall serve echo --on linux                       the same service on a Linux socket\n  \
    tidewall serve http /srv/www --interface eth1        files of /srv/www on TCP port 80\n  \
    tidewall serve http . --on linux --port 8080 --log - the same on Linux sockets, with an access log\n  \
    tidewall serve proxy --interface eth1 --allow-client 10.0.0.0/8\n                                                         a forwarding HTTP proxy on TCP port 3128\n  \
    tidewall serve proxy --interface eth1 --origin 10.0.0.2:80  in front of one web server, on port 80\n  \
    tidewall serve echo --interface eth1 --work 200      200 multiplications a datagram\n  \
    tidewall serve echo --interface eth1 --policy napi --budget 64 --interval 50us\n  \
    tidewall serve echo --interface eth1 --class 7 --class 9,5001:300\n                                                         queue 0 ahead of queue 1\n\n\
    Then, elsewhere: tidewall stat --watch; tidewall trace; nc -u HOST 7; curl http://HOST/.\n\n\
    The web server is HTTP/1.0 and 1.1 with keep-alive, pipelining, ranges and conditional requests,\n\
    one thread. A directory stands for its index.html; there are no listings. Nothing outside DIR is\n\
    served, by .. or by symbolic links, and no file whose name begins with a dot (.well-known may).\n\n\
    The proxy forwards each request over a connection of its own and caches nothing. No CONNECT, no\n\
    https. Without --origin it listens on loopback unless --address or --allow-client is given, and goes\n\
    to the public Internet: not to loopback, link-local, private or multicast addresses nor to this\n\
    host's own, whatever name leads there, unless --allow-destination names them. What it does not do is\n\
    answered 403.\n\n\
    Exit codes: 0 ended by a signal; 1 the device or socket failed; 2 it could not begin."
)]
pub struct Arguments {
    /// Service: echo or discard datagrams, serve files over HTTP, or forward HTTP
    /// requests
    #[arg(value_name = "echo|discard|http|proxy")]
    service: Service,
    /// Directory of the files that http serves
    #[arg(value_name = "DIR", required_if_eq("service", "http"))]
    directory: Option<PathBuf>,
    /// Interface whose queues to take; required on tidewall without --manager, ignored on
    /// linux
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Become an application of the manager that listens here (tidewalld), which has the
    /// privileges [default: TIDEWALL_MANAGER, which tidewall run sets]
    #[arg(long, value_name = "PATH")]
    manager: Option<PathBuf>,
    /// UDP port, or TCP port of http and proxy [default: 7 for echo (RFC 862), 9 for
    /// discard (RFC 863), 80 for http and for a proxy with an origin, 3128 for one
    /// without]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Local address to listen on; :: accepts IPv6 and IPv4 [default: 0.0.0.0; 127.0.0.1
    /// for a proxy without --origin and without --allow-client]
    #[arg(long, value_name = "ADDRESS", value_parser = units::address::<IpAddr>)]
    address: Option<IpAddr>,
    /// Receive queues to take, 1 to 8 [default: all queues of the interface]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    queues: Option<u32>,
    /// Architecture: tidewall (the default), or a comparator: soft-lrp, early-demux, bsd,
    /// or softirq (Linux's arrangement: a softirq thread handles Bp frames per round
    /// ahead of the application)
    #[arg(long, value_name = "NAME", value_parser = architecture)]
    architecture: Option<Architecture>,
    /// Policy for Bp, most frames per round, and T, least time between two interrupts:
    /// interrupt, napi, on-off, aic, qapolling, rhip or adaptive (the default)
    #[arg(long, value_name = "NAME", value_parser = policy)]
    policy: Option<PolicyKind>,
    /// Largest Bp that the policy may set, 2 to 3000 [default: 256, of threads 3000]; for
    /// napi, the Bp itself
    #[arg(long, value_name = "FRAMES", value_parser = budget)]
    budget: Option<u32>,
    /// Longest T that the policy may set, 0 to 1ms, in µs (or as 50us) [default: 200us];
    /// for napi, the T itself [default: 0]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,
    /// At the end, write receive control's view of the first 2000 rounds of the first
    /// queue to this file, as CSV; the tests replay such files through every policy
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Longest time to poll before sleeping, in µs (or as 1ms), if the last answer's next
    /// question arrived within it; 0: never [default: derived from the costs of polling
    /// and sleeping here]
    #[arg(long, value_name = "TIME", value_parser = spin)]
    spin: Option<Duration>,
    /// XDP mode of the driver program: native, in the driver, or generic, after the
    /// kernel has allocated a buffer for each frame [default: native; generic on a card
    /// whose driver lacks native XDP]
    #[arg(long, value_name = "MODE")]
    xdp: Option<XdpMode>,
    /// Memory for the data of all TCP connections, in MiB [default: 3/32 of the memory]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    tcp_memory: Option<u64>,
    /// Floating-point multiplications to make for each datagram or request
    #[arg(long, value_name = "N", default_value_t = 0)]
    work: u32,
    /// Frames that may wait for the service on each queue, 1 to 65536 [default: the
    /// stack's limit]
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    limit: Option<u32>,
    /// A traffic class: its ports and largest Bp (may be repeated). The nth class arrives
    /// on the nth queue and is polled nth. The device is set by ntuple rules. A veth has
    /// none; its sender's transmit queue decides: echo MASK >
    /// /sys/class/net/PEER/queues/tx-N/xps_cpus (XPS)
    #[arg(long = "class", value_name = "PORT[,PORT...][:BUDGET]", value_parser = class)]
    classes: Vec<TrafficClass>,
    /// Do not change the card's rules: a flooded UDP port never gets its own receive
    /// queue
    #[arg(long)]
    no_steer: bool,
    /// Pin the threads of bsd, early-demux, softirq and soft-lrp to this processor
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,
    /// Stack to run on
    #[arg(long, value_enum, default_value_t = On::Tidewall)]
    on: On,
    #[command(flatten)]
    proxy: proxy::Options,
    /// How http and proxy wait for events [default: selector, on linux epoll]
    #[arg(long, value_enum, value_name = "HOW")]
    events: Option<Events>,
    /// How http and proxy on tidewall find the lowest free descriptor, with --events other than
    /// selector [default: bitmap]
    #[arg(long, value_enum, value_name = "HOW")]
    allocator: Option<Numbers>,
    /// At the end, print the CPU time that http or proxy spent in waiting calls and in
    /// those that accept and connect; costs about half a microsecond per call
    #[arg(long)]
    profile: bool,
    /// Access log of http and proxy, one line per request in the Common Log Format,
    /// appended to this file; - is standard output. Lines that it cannot accept in time
    /// are dropped and counted: serving does not wait
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print a line of statistics every second even when not on a terminal
    #[arg(long)]
    stats: bool,
}

impl Arguments {
    /// Returns the address to listen on. A proxy without a fixed origin must not be open
    /// to every client by default.
    fn address(&self) -> IpAddr {
        let open = self.service == Service::Proxy && self.proxy.is_open();
        let usual = match open {
            true => Ipv4Addr::LOCALHOST,
            false => Ipv4Addr::UNSPECIFIED,
        };
        self.address.unwrap_or(usual.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Service {
    /// Send each datagram back
    Echo,
    /// Receive and count
    Discard,
    /// Serve the files of a directory
    Http,
    /// Pass requests on
    Proxy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    /// Tidewall's own stack
    Tidewall,
    /// Kernel sockets
    Linux,
}

fn architecture(text: &str) -> Result<Architecture, String> {
    text.parse().map_err(|_| {
        "architectures are called tidewall, soft-lrp, softirq, early-demux and bsd".to_owned()
    })
}

/// Parses a policy's name.
pub fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse().map_err(|_| {
        let names: Vec<&str> = PolicyKind::ALL.into_iter().map(PolicyKind::name).collect();
        format!("policies are called {}", names.join(", "))
    })
}

/// Parses Bp and checks its range.
pub fn budget(text: &str) -> Result<u32, String> {
    let range = BUDGET_MIN..=BUDGET_MAX;
    text.parse()
        .ok()
        .filter(|budget| range.contains(budget))
        .ok_or_else(|| format!("a budget is {BUDGET_MIN} to {BUDGET_MAX} frames a round"))
}

/// Parses T and checks its range; a bare number is in µs.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::microseconds(text)?;
    if interval <= INTERVAL_MAX {
        Ok(interval)
    } else {
        Err(format!(
            "an interval between interrupts is 0 to {}",
            units::trimmed(INTERVAL_MAX.as_nanos() as u64)
        ))
    }
}

/// Parses `7`, `7,53` or `9:300`.
fn class(text: &str) -> Result<TrafficClass, String> {
    let (ports, frames) = match text.split_once(':') {
        Some((ports, frames)) => (ports, Some(budget(frames)?)),
        None => (text, None),
    };
    let mut class = TrafficClass {
        ports: Vec::new(),
        budget: frames,
    };
    for port in ports.split(',') {
        match port.trim().parse() {
            Ok(port) if port > 0 && !class.ports.contains(&port) => class.ports.push(port),
            Ok(port) if port > 0 => return Err(format!("port {port} is named twice")),
            _ => {
                return Err(
                    "a class is ports 1 to 65535, and a budget if need be: 7, 7,53 or 9:300"
                        .to_owned(),
                );
            }
        }
    }
    Ok(class)
}

/// Rejects classes that contradict each other or other arguments.
fn check_classes(arguments: &Arguments) -> Outcome {
    let classes = &arguments.classes;
    if classes.is_empty() {
        return Ok(());
    }
    let architecture = arguments.architecture.unwrap_or_default();
    if architecture != Architecture::Tidewall {
        return Err(Failure::usage(format!(
            "--class is for tidewall, whose receiver polls the queues in order; {architecture} has \
             threads that receive, a queue each: leave one of them out"
        )));
    }
    if let Some(queues) = arguments.queues
        && classes.len() > queues as usize
    {
        return Err(Failure::usage(format!(
            "{} classes need as many queues; --queues says {queues}",
            classes.len()
        )));
    }
    for (number, class) in classes.iter().enumerate() {
        let earlier = classes.iter().take(number).flat_map(|class| &class.ports);
        if let Some(port) = earlier.into_iter().find(|port| class.ports.contains(port)) {
            return Err(Failure::usage(format!(
                "port {port} is in two classes: name it in one --class"
            )));
        }
    }
    Ok(())
}

/// Describes the class that serves the port; empty without classes.
fn class_of(classes: &[TrafficClass], port: u16) -> String {
    match classes.iter().position(|class| class.ports.contains(&port)) {
        Some(number) => format!(
            ", in class {} of {} (queue {number})",
            number + 1,
            classes.len()
        ),
        None if classes.is_empty() => String::new(),
        None => format!(", in none of {} classes (any queue)", classes.len()),
    }
}

/// Rounds that `--record` keeps.
const RECORDED: usize = 2000;

/// Rejects options that only Tidewall uses, on Linux sockets.
fn check(arguments: &Arguments) -> Outcome {
    let given = [
        ("--architecture", arguments.architecture.is_some()),
        ("--policy", arguments.policy.is_some()),
        ("--budget", arguments.budget.is_some()),
        ("--interval", arguments.interval.is_some()),
        ("--class", !arguments.classes.is_empty()),
        ("--no-steer", arguments.no_steer),
        ("--record", arguments.record.is_some()),
        ("--manager", arguments.manager.is_some()),
    ];
    let names: Vec<&str> = given
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect();
    if arguments.on == On::Tidewall || names.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} say{} how Tidewall receives; on Linux sockets the kernel decides (net.core.netdev_budget, ethtool -C): \
         leave {} out, or serve on tidewall",
        names.join(" and "),
        if names.len() == 1 { "s" } else { "" },
        if names.len() == 1 { "it" } else { "them" },
    )))
}

fn spin(text: &str) -> Result<Duration, String> {
    let spin = units::microseconds(text)?;
    if spin <= Duration::from_secs(1) {
        Ok(spin)
    } else {
        Err("a bounded spin is at most 1 s".to_owned())
    }
}

/// Rejects options that only other services use.
fn check_service(arguments: &Arguments) -> Outcome {
    let http = arguments.service == Service::Http;
    let proxy = arguments.service == Service::Proxy;
    let web = http || proxy;
    let given = [
        ("DIR", !http && arguments.directory.is_some(), "http"),
        ("--log", !web && arguments.log.is_some(), "http and proxy"),
        ("--limit", web && arguments.limit.is_some(), "datagrams"),
        (
            "--events",
            !web && arguments.events.is_some(),
            "http and proxy",
        ),
    ];
    if web {
        events::check(arguments)?;
    }
    if let Some(option) = arguments.proxy.given().filter(|_| !proxy) {
        return Err(Failure::usage(format!(
            "{option} is for proxy: leave it out"
        )));
    }
    match given.into_iter().find(|&(_, given, _)| given) {
        Some((name, _, whose)) => Err(Failure::usage(format!(
            "{name} is for {whose}: leave it out"
        ))),
        None => Ok(()),
    }
}

/// The service to run.
enum Job {
    Datagrams(ServiceSpec),
    Connections(Box<Server>),
}

impl Job {
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let (kind, usual) = match arguments.service {
            Service::Echo => (Kind::Echo, 7),
            Service::Discard => (Kind::Discard, 9),
            Service::Http => {
                return Web::of(arguments).map(|web| Job::Connections(Box::new(Server::Web(web))));
            }
            Service::Proxy => {
                return Proxy::of(arguments)
                    .map(|proxy| Job::Connections(Box::new(Server::Proxy(proxy))));
            }
        };
        Ok(Job::Datagrams(ServiceSpec {
            kind,
            port: arguments.port.unwrap_or(usual),
            work: arguments.work,
        }))
    }

    fn port(&self) -> u16 {
        match self {
            Job::Datagrams(service) => service.port,
            Job::Connections(server) => server.port(),
        }
    }
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    check(arguments)?;
    check_service(arguments)?;
    check_classes(arguments)?;
    let stop = stop_flag()?;
    let job = Job::of(arguments)?;
    let place = |what: String, stack| Place {
        arguments,
        what,
        stack,
        stop: &stop,
    };
    match arguments.on {
        On::Linux => {
            let place = place("Linux sockets".to_owned(), None);
            match job {
                Job::Datagrams(service) => {
                    let host = Linux::new(Options {
                        receive: Receive::Recvmmsg,
                        ..Options::default()
                    });
                    datagrams(&host, &service, &place)
                }
                Job::Connections(server) => server.on_linux(place),
            }
        }
        On::Tidewall => {
            let stack = stack(arguments)?;
            for warning in stack.warnings() {
                eprintln!("tidewall: warning: {warning}");
            }
            let snapshot = stack.snapshot();
            let what = format!(
                "Tidewall ({}), interface {}{}{}",
                snapshot.architecture,
                snapshot.interface,
                snapshot
                    .device
                    .map_or_else(String::new, |device| format!(" ({device})")),
                class_of(&arguments.classes, job.port())
            );
            if arguments.record.is_some() {
                stack.record_rounds(RECORDED);
            }
            let place = place(what, Some(stack.clone()));
            let outcome = match job {
                Job::Datagrams(service) => {
                    let host = Tidewall::new(stack.clone(), arguments.limit);
                    datagrams(&host, &service, &place)
                }
                Job::Connections(server) => server.on_tidewall(&stack, place),
            };
            if let (Some(path), Some(text)) = (&arguments.record, stack.recorded_rounds().first()) {
                std::fs::write(path, text)
                    .map_err(|error| Failure::io(&format!("writing {}", path.display()), &error))?;
            }
            outcome
        }
    }
}

/// Opens Tidewall's stack, on an interface or on queues that a manager hands over.
fn stack(arguments: &Arguments) -> Result<Stack, Failure> {
    let config = |interface: &str| {
        EmbeddedConfig::new(interface)
            // None: all queues of the interface.
            .queues(arguments.queues.unwrap_or(0))
            .architecture(arguments.architecture.unwrap_or_default())
            .policy(arguments.policy.unwrap_or_default())
            .budget(arguments.budget)
            .interrupt_interval(arguments.interval)
            .classes(arguments.classes.clone())
            .steer(!arguments.no_steer)
            .receiver_cpu(arguments.cpu)
            .spin(arguments.spin)
            .xdp(arguments.xdp)
            .tcp_memory(arguments.tcp_memory.map(|mebibytes| mebibytes << 20))
    };
    let interface = arguments.interface.as_deref();
    if let Some(interface) = interface {
        check_interface(interface)?;
    }
    let manager = arguments.manager.clone().or_else(places::of_environment);
    match (manager, interface) {
        (Some(manager), interface) => {
            let what = format!("joining the manager at {}", manager.display());
            Stack::managed(&manager, config(interface.unwrap_or_default()))
                .map_err(|error| Failure::io(&what, &error))
        }
        (None, Some(interface)) => Stack::embedded(config(interface))
            .map_err(|error| Failure::io(&format!("taking over {interface}"), &error)),
        (None, None) => Err(Failure::usage(
            "which interface? name it: --interface IF; see: ip link; or the manager that has \
             it: --manager PATH",
        )),
    }
}

/// The stack of a service, and its end.
struct Place<'a> {
    arguments: &'a Arguments,
    /// The stack's description.
    what: String,
    /// Tidewall's stack, whose receive control the statistics show.
    stack: Option<Stack>,
    stop: &'a AtomicBool,
}

/// Serves datagrams.
fn datagrams<H: Host>(host: &H, service: &ServiceSpec, place: &Place<'_>) -> Outcome {
    let words = Words {
        rates: &|now, last, elapsed| rates(&now.service, &last.service, elapsed),
        totals: &|look, elapsed| totals(&look.service, elapsed),
    };
    begin(place, &words, |counters| {
        let ready = |addresses: &[SocketAddr]| {
            for address in addresses {
                say_where(&format!("{} on {address}/udp", service.kind), &place.what);
            }
        };
        let services = std::slice::from_ref(service);
        serve(
            host,
            place.arguments.address(),
            services,
            tidewall_service::BATCH,
            counters,
            place.stop,
            ready,
        )
    })
}

/// Prints the service and its address.
fn say_where(service: &str, what: &str) {
    // A closed standard output is no reason not to serve.
    let _ = say_line(&format!(
        "{service}, {what}; process {}, Ctrl-C ends it",
        std::process::id()
    ));
}

fn rates(now: &ServiceCounts, last: &ServiceCounts, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
    let batches = now.batches.saturating_sub(last.batches);
    let received = now.received.saturating_sub(last.received);
    let batch = if batches > 0 {
        received as f64 / batches as f64
    } else {
        0.0
    };
    format!(
        "received {}/s, replied {}/s, {:.1} Mbit/s in, {batch:.1} a batch, {} errors",
        per_second(rate(now.received, last.received)),
        per_second(rate(now.replies, last.replies)),
        rate(now.bytes, last.bytes) * 8e-6,
        count(now.errors),
    )
}

fn totals(counts: &ServiceCounts, elapsed: Duration) -> String {
    format!(
        "received {} datagrams ({} bytes), replied {}, {} errors in {}",
        count(counts.received),
        count(counts.bytes),
        count(counts.replies),
        count(counts.errors),
        units::age(elapsed),
    )
}

#[cfg(test)]
mod tests;
