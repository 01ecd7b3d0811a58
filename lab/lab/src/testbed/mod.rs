//! The test bed: a client's and a server's network namespace, one veth pair
//! between them, and the ways in which Linux can receive on it.
//!
//! ```text
//!   namespace tw-PID-a (client, CPU 0)       namespace tw-PID-b (server, CPU 1)
//!   10.77.0.1 fd77::1  tw-a ═══════ veth, n queues ═══════ tw-b  10.77.0.2 fd77::2
//! ```
//!
//! With [`Config::bridge`] there is a third namespace in the middle, for a
//! [bridge](crate::bridge), and a second server:
//!
//! ```text
//!   tw-PID-a (client)          tw-PID-m (bridge)         tw-PID-b (server)
//!   10.77.0.1  tw-a ══ veth ══ tw-ma    tw-mb ══ veth ══ tw-b  10.77.0.2
//!                                       tw-mr ══ veth ══ tw-r  10.77.0.3
//!                                                        tw-PID-r (rival)
//! ```
//!
//! Nothing outside the namespaces is touched. They are removed when the test bed is
//! dropped. If the process dies, however it dies, a restorer removes them. The next test
//! bed sweeps up those that even a restorer could not remove.

mod bridged;
mod mode;
pub mod privilege;
mod realtime;
mod steering;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use serde::Deserialize;
use tidewall_manager::restore::{Restorer, Undo};
use tidewall_wire::ethernet::MacAddress;

use crate::command::{absolute, run, run_line};
use crate::environment::Environment;
use crate::worker::scratch_directory;

use bridged::Bridged;
pub use bridged::{
    MIDDLE_CLIENT, MIDDLE_RIVAL, MIDDLE_SERVER, RIVAL, RIVAL_INTERFACE, RIVAL_MAC_ADDRESS,
};
use mode::FOR_EVER;
pub(crate) use mode::SUSPEND;
pub use mode::{BusyTimeout, Mode};
pub(crate) use realtime::RealTime;

/// Interface of the client.
pub const CLIENT_INTERFACE: &str = "tw-a";
/// Interface of the server.
pub const SERVER_INTERFACE: &str = "tw-b";
/// Interface of the client whose frames are never received: see [`Config::sink`].
pub const SINK_INTERFACE: &str = "tw-c";
/// Its other end.
const SINK_PEER: &str = "tw-d";
/// Interface of the client that leads nowhere: see [`Config::void`].
pub const VOID_INTERFACE: &str = "tw-v";
/// Addresses of the client.
pub const CLIENT: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 77, 0, 1),
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
);
/// Addresses of the server.
pub const SERVER: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(10, 77, 0, 2),
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
);
/// Unowned addresses whose packets the server routes to the client: the sources of a
/// flood. Network and length of prefix.
pub const NOWHERE: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 78, 0, 0), 16);
/// Number of further IPv4 addresses of the client. Linux searches for a free port among
/// those of an address: with 8 addresses, that takes a third of a generator's time at
/// 50,000 connections/s.
const MORE_CLIENTS: u8 = 32;
/// Ethernet address of the client.
pub const CLIENT_MAC_ADDRESS: MacAddress = MacAddress([0x02, 0x77, 0, 0, 0, 1]);
/// Ethernet address of the server.
pub const SERVER_MAC_ADDRESS: MacAddress = MacAddress([0x02, 0x77, 0, 0, 0, 2]);
/// The kernel's directory of named namespaces.
const NAMESPACES: &str = "/run/netns";

/// The configuration of a test bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Queues of the veth pair in each direction, 1 to 8.
    pub queues: u32,
    /// Transmit queue of the client's kernel sockets, which on a veth is the server's
    /// receive queue; `None`: the last.
    pub client_queue: Option<u32>,
    /// The veth pair has a second queue for a system whose device steers
    /// (`Testbed::set_steering`), and one queue for all others. Requires one queue.
    pub steerable: bool,
    /// A second veth pair in the client's namespace, [`SINK_INTERFACE`], whose ring is
    /// never emptied. A frame sent there costs the sender as much as a full ring does,
    /// and the server nothing.
    pub sink: bool,
    /// A bridge without ports in the client's namespace, [`VOID_INTERFACE`]. A frame sent
    /// there costs the sender as much as sending does, and nothing else. A full ring
    /// costs twice that, as the kernel spends a system call of its own on each frame that
    /// finds no room.
    pub void: bool,
    /// The client's interface drops packets for [`NOWHERE`]. A real attacker never
    /// receives the answers to spoofed addresses.
    pub xdp_sink: bool,
    /// A namespace in the middle for a bridge, and a second server.
    pub bridge: bool,
    /// Processor of the client and the sender.
    pub client_cpu: usize,
    /// Processor of the server, and of all receiving for it.
    pub server_cpu: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            queues: 1,
            client_queue: None,
            steerable: false,
            sink: false,
            void: false,
            xdp_sink: false,
            bridge: false,
            client_cpu: 0,
            server_cpu: 1,
        }
    }
}

/// A running test bed; dropping it removes it.
pub struct Testbed {
    config: Config,
    client: String,
    server: String,
    bridged: Option<Bridged>,
    mode: Option<Mode>,
    busy_timeout: BusyTimeout,
    steers: bool,
    // Dropped in this order: first the namespaces, last the restorer.
    _namespaces: Vec<Undo>,
    restorer: Restorer,
}

/// A second test bed of one process needs another name.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Testbed {
    /// Builds a test bed. Call it early: the restorer it starts keeps an image of the
    /// process as it is now.
    ///
    /// # Errors
    /// A missing program or privilege, in words; the output of a failed step. Removes
    /// everything built so far.
    pub fn new(config: Config) -> anyhow::Result<Self> {
        let ip = absolute("ip")?;
        let restorer = Restorer::start().context("cannot start the restorer")?;
        sweep();
        let number = match NUMBER.fetch_add(1, Ordering::Relaxed) {
            0 => String::new(),
            number => number.to_string(),
        };
        let process = std::process::id();
        let client = format!("tw-{process}-a{number}");
        let server = format!("tw-{process}-b{number}");
        let bridged = config.bridge.then(|| Bridged {
            middle: format!("tw-{process}-m{number}"),
            rival: format!("tw-{process}-r{number}"),
        });
        let mut namespaces = Vec::new();
        let further = bridged.iter().flat_map(Bridged::namespaces);
        for name in [&client, &server].into_iter().chain(further) {
            namespaces.push(restorer.on_exit_run(&[&ip, "netns", "del", name])?);
            run(&ip, &["netns", "add", name])?;
        }
        let testbed = Testbed {
            config,
            client,
            server,
            bridged: bridged.clone(),
            mode: None,
            busy_timeout: BusyTimeout::default(),
            steers: false,
            _namespaces: namespaces,
            restorer,
        };
        match &bridged {
            Some(bridged) => testbed.build_bridged(&ip, bridged)?,
            None => testbed.build(&ip)?,
        }
        Ok(testbed)
    }

    fn build(&self, ip: &str) -> anyhow::Result<()> {
        let queues = self.queues();
        run_line(&format!(
            "{ip} -n {} link add {CLIENT_INTERFACE} address {CLIENT_MAC_ADDRESS} {queues} \
             type veth peer name {SERVER_INTERFACE} netns {} address {SERVER_MAC_ADDRESS} {queues}",
            self.client, self.server
        ))?;
        let to_client = [(CLIENT, CLIENT_MAC_ADDRESS)];
        let to_server = [(SERVER, SERVER_MAC_ADDRESS)];
        set_up(ip, &self.client, CLIENT_INTERFACE, CLIENT, &to_server)?;
        set_up(ip, &self.server, SERVER_INTERFACE, SERVER, &to_client)?;
        // A sender on the same host would leave checksums unfinished, unlike any frame
        // from a wire.
        self.in_client(&["ethtool", "-K", CLIENT_INTERFACE, "tx", "off"])?;
        // The server's packets are received on the client's processor and time: the
        // spinning client polls its device itself. Steering by RPS instead costs both
        // sides an inter-processor interrupt per reply, which in a virtual machine takes
        // longer than everything measured here.
        self.in_client(&["ethtool", "-K", CLIENT_INTERFACE, "gro", "on"])?;
        self.in_client_shell(&format!(
            "echo 1000 > /sys/class/net/{CLIENT_INTERFACE}/napi_defer_hard_irqs; \
             echo 500000 > /sys/class/net/{CLIENT_INTERFACE}/gro_flush_timeout",
        ))?;
        if self.config.queues > 1 {
            // A blast chooses its own queue, the first by default.
            self.in_client_shell(&format!(
                "for q in /sys/class/net/{CLIENT_INTERFACE}/queues/tx-*; do echo 0 > $q/xps_cpus; done",
            ))?;
            self.send_on(self.config.client_cpu, self.client_queue())?;
        }
        if self.config.steerable {
            self.set_queues(1)?;
        }
        self.add_clients()?;
        if self.config.sink {
            self.build_sink(ip)?;
        }
        if self.config.void {
            let client = &self.client;
            for what in [
                "add VOID type bridge",
                "set VOID addrgenmode none",
                "set VOID up",
            ] {
                let what = what.replace("VOID", VOID_INTERFACE);
                run_line(&format!("{ip} -n {client} link {what}"))?;
            }
        }
        Ok(())
    }

    /// Adds addresses for the client, each with its own ports, and the route back to the
    /// unowned ones.
    fn add_clients(&self) -> anyhow::Result<()> {
        let mut own = String::new();
        let mut known = format!(
            "ip route add {}/{} via {}; ",
            NOWHERE.0, NOWHERE.1, CLIENT.0
        );
        for address in more_clients() {
            own += &format!("ip address add {address}/24 dev {CLIENT_INTERFACE}; ");
            known += &format!(
                "ip neigh replace {address} lladdr {CLIENT_MAC_ADDRESS} dev {SERVER_INTERFACE} \
                 nud permanent; "
            );
        }
        self.in_client_shell(&own)?;
        self.in_server_shell(&known)
    }

    /// Builds the sink: a device that was polled once waits for its timer, which is hours
    /// away, so its ring fills up and stays full.
    fn build_sink(&self, ip: &str) -> anyhow::Result<()> {
        const HOURS: u64 = 6 * 3600 * 1_000_000_000;
        let (client, queues) = (&self.client, self.queues());
        run_line(&format!(
            "{ip} -n {client} link add {SINK_INTERFACE} {queues} \
             type veth peer name {SINK_PEER} {queues}"
        ))?;
        for interface in [SINK_INTERFACE, SINK_PEER] {
            run_line(&format!(
                "{ip} -n {client} link set {interface} addrgenmode none"
            ))?;
        }
        self.in_client_shell(&format!(
            "ethtool -K {SINK_PEER} gro on; cd /sys/class/net/{SINK_PEER}; \
             echo {FOR_EVER} > napi_defer_hard_irqs; echo {HOURS} > gro_flush_timeout; \
             ip link set {SINK_PEER} up; ip link set {SINK_INTERFACE} up"
        ))
    }

    /// Returns the number of queues of a veth, for `ip link add`.
    fn queues(&self) -> String {
        let queues = self.config.queues + u32::from(self.config.steerable);
        format!("numtxqueues {queues} numrxqueues {queues}")
    }

    /// Returns the transmit queue of the client's kernel sockets.
    fn client_queue(&self) -> u32 {
        let last = self.config.queues.saturating_sub(1);
        self.config
            .client_queue
            .map_or(last, |queue| queue.min(last))
    }

    /// Sends the client's packets from a processor on `queue` of several (XPS).
    fn send_on(&self, cpu: usize, queue: u32) -> anyhow::Result<()> {
        self.in_client_shell(&format!(
            "echo {} > /sys/class/net/{CLIENT_INTERFACE}/queues/tx-{queue}/xps_cpus",
            cpu_mask(cpu)
        ))
    }

    /// Returns the configuration with which it was built.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Returns the client's namespace.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns the server's namespace.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the restorer, which restores settings if this process cannot.
    pub fn restorer(&self) -> &Restorer {
        &self.restorer
    }

    /// Runs a program in the client's namespace.
    pub(crate) fn in_client(&self, command: &[&str]) -> anyhow::Result<String> {
        self.inside(&self.client, command)
    }

    /// Runs a program in the server's namespace.
    pub(crate) fn in_server(&self, command: &[&str]) -> anyhow::Result<String> {
        self.inside(&self.server, command)
    }

    fn in_client_shell(&self, script: &str) -> anyhow::Result<()> {
        self.in_client(&["sh", "-ec", script]).map(drop)
    }

    pub(crate) fn in_server_shell(&self, script: &str) -> anyhow::Result<()> {
        self.in_server(&["sh", "-ec", script]).map(drop)
    }

    /// Runs a command in a namespace. `ip netns exec` mounts the namespace's own /sys,
    /// which has its interfaces' settings.
    fn inside(&self, namespace: &str, command: &[&str]) -> anyhow::Result<String> {
        let mut all = vec!["netns", "exec", namespace];
        all.extend(command);
        run("ip", &all)
    }

    /// Fills in the fields of the environment that only the test bed knows.
    ///
    /// # Errors
    /// The error of `ip` or `ethtool`.
    pub fn describe(&self, environment: &mut Environment) -> anyhow::Result<()> {
        #[derive(Deserialize)]
        struct Link {
            qdisc: String,
        }
        let text = run_line(&format!(
            "ip -n {} -json link show {CLIENT_INTERFACE}",
            self.client
        ))?;
        let links: Vec<Link> = serde_json::from_str(&text).context("ip -json link")?;
        environment.qdisc = links
            .into_iter()
            .next()
            .map(|link| link.qdisc)
            .unwrap_or_default();
        environment.receiver_cpu = self.config.server_cpu;
        environment.sender_cpu = self.config.client_cpu;
        let client = self.in_client(&["ethtool", "-k", CLIENT_INTERFACE])?;
        let server = self.in_server(&["ethtool", "-k", SERVER_INTERFACE])?;
        environment.offloads = offloads("client", &client);
        environment
            .offloads
            .append(&mut offloads("server", &server));
        environment
            .offloads
            .insert("queues".into(), self.config.queues.to_string());
        Ok(())
    }
}

/// Brings an interface up with its addresses and its neighbours' entries.
fn set_up(
    ip: &str,
    namespace: &str,
    interface: &str,
    own: (Ipv4Addr, Ipv6Addr),
    peers: &[((Ipv4Addr, Ipv6Addr), MacAddress)],
) -> anyhow::Result<()> {
    let ip = |arguments: String| run_line(&format!("{ip} -n {namespace} {arguments}"));
    ip("link set lo up".to_owned())?;
    // No router solicitations and no duplicate address detection: the link carries only
    // what the experiment sends.
    ip(format!("link set {interface} addrgenmode none"))?;
    ip(format!("address add {}/24 dev {interface}", own.0))?;
    ip(format!("address add {}/64 dev {interface} nodad", own.1))?;
    ip(format!("link set {interface} up"))?;
    for (addresses, mac) in peers {
        for address in [IpAddr::from(addresses.0), IpAddr::from(addresses.1)] {
            ip(format!(
                "neigh replace {address} lladdr {mac} dev {interface} nud permanent"
            ))?;
        }
    }
    Ok(())
}

/// Returns the offloads that affect an experiment's results.
fn offloads(side: &str, text: &str) -> BTreeMap<String, String> {
    const NAMES: [&str; 6] = [
        "rx-checksumming",
        "tx-checksumming",
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
        "tx-udp-segmentation",
    ];
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.trim().split_once(':')?;
            let value = value.split_whitespace().next()?;
            NAMES
                .contains(&name)
                .then(|| (format!("{side} {name}"), value.to_owned()))
        })
        .collect()
}

/// Returns the further addresses of the client.
pub fn more_clients() -> Vec<IpAddr> {
    (0..MORE_CLIENTS)
        .map(|number| IpAddr::from([10, 77, 0, 11 + number]))
        .collect()
}

/// Formats a set of one processor as in sysfs: words of 32 bits, commas between.
pub(crate) fn cpu_mask(cpu: usize) -> String {
    let mut mask = format!("{:x}", 1u64 << (cpu % 32));
    for _ in 0..cpu / 32 {
        mask += ",00000000";
    }
    mask
}

/// Removes the leftovers of test beds whose process is gone: their namespaces, and their
/// workers' files of counters.
fn sweep() {
    let stale = |name: &String| {
        let owner = name
            .strip_prefix("tw-")
            .and_then(|rest| rest.split('-').next());
        let owner = owner.and_then(|owner| owner.parse::<u32>().ok());
        owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists())
    };
    // Another lab may be sweeping too, so a failure means that it is done already.
    for name in names().iter().filter(|name| stale(name)) {
        let _ = run("ip", &["netns", "del", name]);
    }
    let directory = scratch_directory();
    for name in entries(&directory).iter().filter(|name| stale(name)) {
        let path = directory.join(name);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    }
}

/// Returns the named namespaces with a test bed's prefix.
pub fn names() -> Vec<String> {
    entries(Path::new(NAMESPACES))
}

/// Returns the names in a directory with a test bed's prefix.
fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("tw-"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_written_as_sysfs_reads_them() {
        assert_eq!(cpu_mask(0), "1");
        assert_eq!(cpu_mask(1), "2");
        assert_eq!(cpu_mask(31), "80000000");
        assert_eq!(cpu_mask(32), "1,00000000");
        assert_eq!(cpu_mask(65), "2,00000000,00000000");
    }

    #[test]
    fn offloads_are_picked_from_what_ethtool_prints() {
        let text = "Features for tw-a:\nrx-checksumming: on\ntx-checksumming: off\n\
                    \ttx-checksum-ip-generic: off\ngeneric-receive-offload: on [fixed]\nodd line\n";
        let offloads = offloads("client", text);
        assert_eq!(offloads.len(), 3);
        assert_eq!(offloads["client tx-checksumming"], "off");
        assert_eq!(offloads["client generic-receive-offload"], "on");
    }
}
