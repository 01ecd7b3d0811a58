//! One interface: driver, XDP, MTU, offloads, the peer of a veth.

use std::io;

use serde::Deserialize;
use serde_json::Value;
use tidewall::snapshot::StackSnapshot;
use tidewall_device::afxdp::{Checksums, Segmentation};
use tidewall_device::interface::{cuts_segments, driver, queue_count, transmit_queue_count};
use tidewall_manager::ethtool;
use tidewall_manager::{XdpMode, check_generic, lower_interfaces};
use tidewall_sys::netlink::{
    Netdev, XDP_BASIC, XDP_REDIRECT, XDP_RX_SG, XDP_ZERO_COPY, XSK_TX_CHECKSUM,
};

use super::{Finding, control, line_of, queues, tool};
use crate::stat::Pair;
use crate::stat::view::{UNSEEN_CAUSE, UNSEEN_REMEDY};

/// Largest MTU at which a driver without multi-buffer support attaches a program, as
/// measured on veth (one page less headroom and tail).
const MTU_MAX: u64 = 3506;

/// Drivers of Linux 6.8 with native XDP, for kernels that do not report it themselves.
const NATIVE: &[&str] = &[
    "atlantic",
    "bnxt_en",
    "ena",
    "fec",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "idpf",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "nfp",
    "qede",
    "sfc",
    "stmmac",
    "tun",
    "veth",
    "virtio_net",
    "vmxnet3",
];

/// The part of `ip -details -json link show` that matters here.
#[derive(Clone, Debug, Default, Deserialize)]
struct Link {
    ifindex: u32,
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    mtu: u64,
    qdisc: Option<String>,
    /// The device below: the peer of a veth, the parent of a VLAN.
    link: Option<String>,
    link_index: Option<u32>,
    link_netnsid: Option<i64>,
    xdp: Option<Value>,
    linkinfo: Option<Info>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Info {
    #[serde(default)]
    info_kind: String,
}

impl Link {
    fn kind(&self) -> &str {
        self.linkinfo
            .as_ref()
            .map_or("", |info| info.info_kind.as_str())
    }
}

fn links(json: &str) -> Vec<Link> {
    serde_json::from_str(json).unwrap_or_default()
}

/// Checks an interface of this network namespace: one that was `named`, or that of a live
/// stack. A stack may be in another namespace.
pub fn check(name: &str, live: &[StackSnapshot], named: bool) -> Vec<Finding> {
    let (owner, elsewhere) = stacks_of(name, live, same_namespace);
    if let (None, Some(process), false) = (owner, elsewhere, named) {
        return vec![Finding::unknown(
            "interface",
            format!(
                "{name} of process {process} is in another network namespace; look there: \
                 nsenter -t {process} -m -n tidewall doctor --interface {name}"
            ),
        )];
    }
    let json = match tool("ip", &["-details", "-json", "link", "show"]) {
        Ok(json) => json,
        Err(error) => {
            let text = format!("{name} cannot be looked at: {error}");
            return vec![Finding::warning(
                "interface",
                text,
                "apt-get install iproute2",
            )];
        }
    };
    let all = links(&json);
    let Some(link) = all.iter().find(|link| link.ifname == name) else {
        return vec![Finding::problem(
            "interface",
            format!("there is no {name}"),
            "ip link",
        )];
    };
    let mut netdev = Netdev::open().ok();
    let mut asked = |question: fn(&mut Netdev, u32) -> io::Result<u64>| {
        question(netdev.as_mut()?, link.ifindex).ok()
    };
    let features = asked(Netdev::xdp_features);
    let zero_copy = features
        .filter(|features| features & XDP_ZERO_COPY != 0)
        .map(|_| asked(Netdev::xsk_features).unwrap_or(0));
    let napis = netdev.and_then(|mut netdev| netdev.queues(link.ifindex).ok());
    let driver = driver(name).ok();
    let mut findings = vec![
        state(link),
        native(
            name,
            driver.as_deref(),
            features,
            check_generic(name).err().map(|refusal| refusal.to_string()),
        ),
        device(name, driver.as_deref(), features, zero_copy, owner),
        attached(name, link, owner),
        mtu(name, link.mtu, features),
    ];
    if driver.as_deref() == Some("virtio_net") {
        findings.extend(transmit_queues(name));
    }
    findings.extend(owner.and_then(past_tidewall));
    findings.extend(offloads(name, link, &all));
    findings.extend(peer(name, link, &all));
    findings.extend(queues::sysfs(name, link.ifindex, link.kind(), owner));
    findings.push(queues::napi(name, link.kind(), napis.as_deref()));
    findings.extend(control::check(name, link.ifindex, link.kind()));
    findings
}

/// Returns the stack that owns an interface of this network namespace, and a process with
/// an interface of that name in another.
fn stacks_of<'a>(
    name: &str,
    live: &'a [StackSnapshot],
    is_here: impl Fn(u32) -> bool,
) -> (Option<&'a StackSnapshot>, Option<u32>) {
    let (here, elsewhere): (Vec<_>, Vec<_>) = (live.iter())
        .filter(|stack| stack.interface == name)
        .partition(|stack| is_here(stack.process));
    let first = |stacks: &[&'a StackSnapshot]| stacks.first().copied();
    (first(&here), first(&elsewhere).map(|stack| stack.process))
}

/// Returns true if a process lives in this process's network namespace, or if that is in
/// doubt.
fn same_namespace(process: u32) -> bool {
    let own = std::fs::read_link("/proc/self/ns/net").ok();
    let other = std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    own.is_none() || other.is_none() || own == other
}

/// Returns the value after `name:` in an ethtool listing.
pub fn value_of<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    listing
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

/// Returns whether an offload is on; `None` if the driver does not have it.
fn offload(listing: &str, name: &str) -> Option<bool> {
    Some(value_of(listing, name)?.starts_with("on"))
}

fn state(link: &Link) -> Finding {
    const CHECK: &str = "interface";
    let has = |flag: &str| link.flags.iter().any(|found| found == flag);
    let name = &link.ifname;
    if !has("UP") {
        return Finding::problem(
            CHECK,
            format!("{name} is down"),
            format!("ip link set dev {name} up"),
        );
    }
    if !has("LOWER_UP") {
        return Finding::warning(
            CHECK,
            format!("{name} has no carrier: its cable or its peer is down"),
            "ip link",
        );
    }
    Finding::ok(CHECK, format!("{name} is up"))
}

/// Reports native XDP. `generic`: why generic XDP does not help, if it does not.
fn native(
    name: &str,
    driver: Option<&str>,
    features: Option<u64>,
    generic: Option<String>,
) -> Finding {
    const CHECK: &str = "native XDP";
    let driver = driver.unwrap_or("its driver");
    let mend = "use another interface, such as a veth; see: ethtool -i";
    match features {
        Some(features) if features & XDP_BASIC == 0 => match generic {
            Some(refusal) => match lower_interfaces(name).first() {
                Some(lower) => Finding::problem(
                    CHECK,
                    refusal,
                    format!("tidewall doctor --interface {lower}"),
                ),
                None => Finding::problem(CHECK, refusal, mend),
            },
            None => Finding::warning(
                CHECK,
                format!(
                    "{driver} of {name} has none; generic XDP is used, which makes a buffer of each frame before it can be dropped"
                ),
                "for the full rate use a card whose driver has native XDP",
            ),
        },
        Some(features) if features & XDP_REDIRECT == 0 => Finding::problem(
            CHECK,
            format!("{driver} of {name} cannot redirect frames to AF_XDP sockets"),
            mend,
        ),
        Some(_) => Finding::ok(CHECK, format!("{driver} of {name} has it")),
        None if NATIVE.contains(&driver) => {
            Finding::ok(CHECK, format!("{driver} is known to have it"))
        }
        None => Finding::warning(
            CHECK,
            format!("{driver} is not known to have it, and this kernel does not say"),
            format!("try it: tidewall serve echo --interface {name}"),
        ),
    }
}

/// Reports mode, queues and checksums of the live stack, or of a future one. `zero_copy`:
/// the effect of the driver's zero-copy mode on transmission, if it has one; `features`:
/// its XDP features, if the kernel reports them.
fn device(
    name: &str,
    driver: Option<&str>,
    features: Option<u64>,
    zero_copy: Option<u64>,
    owner: Option<&StackSnapshot>,
) -> Finding {
    const CHECK: &str = "device";
    if let Some(device) = owner.and_then(|stack| stack.device.as_ref()) {
        return Finding::ok(CHECK, device.to_string());
    }
    let (mode, checksums) = match zero_copy {
        None => (
            "copy mode",
            "as a test frame shows when a stack starts".to_owned(),
        ),
        Some(features) if features & XSK_TX_CHECKSUM != 0 => {
            ("zero-copy", Checksums::Announced.to_string())
        }
        Some(_) => ("zero-copy", Checksums::NotAnnounced.to_string()),
    };
    let xdp = match features {
        Some(features) if features & XDP_BASIC == 0 => XdpMode::Generic,
        _ => XdpMode::Native,
    };
    let number = |count: Option<u32>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
    Finding::ok(
        CHECK,
        format!(
            "{}, {} XDP would run in {mode}, {} receive and {} transmit queues, checksums {checksums}, \
             segments cut {}",
            driver.unwrap_or("unknown driver"),
            xdp.name(),
            number(queue_count(name)),
            number(transmit_queue_count(name)),
            if cuts_segments(name).unwrap_or(false) {
                Segmentation::ByDevice
            } else {
                Segmentation::ByKernel
            },
        ),
    )
}

/// Reports whether virtio-net has a transmit queue for each processor beside its own.
fn transmit_queues(name: &str) -> Option<Finding> {
    let most = ethtool::Channels::read(name).ok()?.receive_limit;
    let own = transmit_queue_count(name)?;
    let processors = processors(&line_of("/sys/devices/system/cpu/possible")?)?;
    locked_transmission(name, own, processors, most)
}

/// Returns the number of processors in a list such as `0-3,8`: the kernel counts to the
/// last one.
fn processors(possible: &str) -> Option<u32> {
    let last = possible.trim().rsplit([',', '-']).next()?;
    last.parse::<u32>().ok()?.checked_add(1)
}

fn locked_transmission(name: &str, own: u32, processors: u32, most: u32) -> Option<Finding> {
    let wanted = own.saturating_add(processors);
    (wanted > most).then(|| {
        Finding::ok(
            "XDP transmission",
            format!(
                "{name} shares transmit queues under a lock with what the driver program answers itself, such as SYN \
                 cookies, so that is slower: virtio_net wants {wanted} queues, its {own} and one a processor, of at \
                 most {most} (dmesg: XDP request {wanted} queues but max is {most})"
            ),
        )
    })
}

/// Reports frames of owned ports that the kernel had to receive.
fn past_tidewall(stack: &StackSnapshot) -> Option<Finding> {
    let frames = stack.no_metadata();
    (frames > 0).then(|| {
        Finding::warning(
            "frames past Tidewall",
            format!(
                "{frames} frames of owned ports went through the kernel, without early discard: {} gives no room for \
                 metadata (driver: no-metadata)",
                stack.interface
            ),
            format!("use another device or driver; see: tidewall stat {}", stack.process),
        )
    })
}

/// Reports packets that reach a stack's interface if its program sees none of them.
pub fn unseen(pair: &Pair) -> Option<Finding> {
    let packets = pair.unseen()?;
    let stack = &pair.now;
    Some(Finding::problem(
        "frames past Tidewall",
        format!(
            "{packets} packets came to {}, and the driver program saw none of them. {UNSEEN_CAUSE} {UNSEEN_REMEDY}",
            stack.interface
        ),
        format!("kill -TERM {}", stack.process),
    ))
}

fn attached(name: &str, link: &Link, owner: Option<&StackSnapshot>) -> Finding {
    const CHECK: &str = "XDP program";
    let id = link.xdp.as_ref().and_then(|xdp| {
        let program = xdp
            .get("prog")
            .or_else(|| xdp.get("attached")?.get(0)?.get("prog"))?;
        program.get("id")?.as_u64()
    });
    match (&link.xdp, owner) {
        (None, None) => Finding::ok(CHECK, format!("none on {name}")),
        (None, Some(stack)) => Finding::problem(
            CHECK,
            format!(
                "process {} has a stack on {name}, but no program is attached: it receives nothing",
                stack.process
            ),
            format!("restart the service: kill -TERM {}", stack.process),
        ),
        // XDP_ATTACHED_SKB of linux/if_link.h.
        (Some(xdp), Some(stack)) if xdp.get("mode").and_then(Value::as_u64) == Some(2) => {
            Finding::warning(
                CHECK,
                format!(
                    "that of process {} runs in generic mode, after the kernel has built an skb: \
                     early discard saves little",
                    stack.process
                ),
                "use an interface whose driver has native XDP",
            )
        }
        (Some(_), Some(stack)) => Finding::ok(
            CHECK,
            format!("on {name}, that of process {}", stack.process),
        ),
        (Some(_), None) => {
            let id = id.map_or_else(|| "?".to_owned(), |id| id.to_string());
            Finding::problem(
                CHECK,
                format!("another one (id {id}) is on {name}: opening a stack would end in EBUSY"),
                format!(
                    "who is it: bpftool prog show id {id}\nip link set dev {name} xdp off\nif that fails, a link \
                     holds it: bpftool link show; then end that process or bpftool link detach id LINK"
                ),
            )
        }
    }
}

fn mtu(name: &str, mtu: u64, features: Option<u64>) -> Finding {
    const CHECK: &str = "MTU";
    if mtu <= MTU_MAX {
        return Finding::ok(CHECK, mtu.to_string());
    }
    if features.is_some_and(|features| features & XDP_RX_SG != 0) {
        let text = format!("{mtu}: frames come in several buffers (Linux 6.6 and later)");
        return Finding::ok(CHECK, text);
    }
    Finding::problem(
        CHECK,
        format!(
            "{mtu}: the driver gives XDP no frames in several buffers (xdp-features: rx-sg), \
             and attaches the program up to {MTU_MAX} only"
        ),
        format!("ip link set dev {name} mtu 1500"),
    )
}

fn offloads(name: &str, link: &Link, all: &[Link]) -> Vec<Finding> {
    const CHECK: &str = "offloads";
    let listing = match tool("ethtool", &["-k", name]) {
        Ok(listing) => listing,
        Err(error) => {
            let text = format!("those of {name} cannot be read: {error}");
            return vec![Finding::warning(CHECK, text, "apt-get install ethtool")];
        }
    };
    let tagged: Vec<&str> = all
        .iter()
        .filter(|other| other.kind() == "vlan" && other.link.as_deref() == Some(name))
        .map(|other| other.ifname.as_str())
        .collect();
    own_offloads(name, link.kind(), &listing, &tagged)
}

fn own_offloads(name: &str, kind: &str, listing: &str, tagged: &[&str]) -> Vec<Finding> {
    const CHECK: &str = "offloads";
    let mut findings = Vec::new();
    for (feature, short) in [("large-receive-offload", "lro"), ("rx-gro-hw", "rx-gro-hw")] {
        if offload(listing, feature) == Some(true) {
            // virtio_net and vmxnet3 do; any other driver rejects the program, and the
            // message then says so.
            findings.push(Finding::ok(
                CHECK,
                format!(
                    "{feature} of {name} is on; most drivers switch it off themselves while a program is attached \
                     (should one refuse: ethtool -K {name} {short} off)"
                ),
            ));
        }
    }
    if !tagged.is_empty() && offload(listing, "rx-vlan-offload") == Some(true) {
        findings.push(Finding::warning(
            CHECK,
            format!(
                "{name} strips VLAN tags before the driver program sees them: datagrams of {} look untagged and may \
                 be taken by Tidewall",
                tagged.join(", ")
            ),
            format!("ethtool -K {name} rxvlan off"),
        ));
    }
    if kind == "veth" && offload(listing, "generic-receive-offload") == Some(false) {
        // Harmless once a program is attached: veth then runs NAPI anyway.
        findings.push(Finding::ok(
            CHECK,
            format!("GRO of {name} is off; an attached program makes veth poll all the same"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("those of {name} suit")));
    }
    findings
}

/// The sending end of a veth.
fn peer(name: &str, link: &Link, all: &[Link]) -> Vec<Finding> {
    const CHECK: &str = "peer's offloads";
    if link.kind() != "veth" {
        return Vec::new();
    }
    let index = link.link_index.or_else(|| {
        let peer = link.link.as_ref()?;
        all.iter()
            .find(|other| &other.ifname == peer)
            .map(|other| other.ifindex)
    });
    let found = match (link.link_netnsid, &link.link) {
        (None, Some(peer)) => tool("ethtool", &["-k", peer]).ok().map(|listing| Peer {
            name: peer.clone(),
            qdisc: (all.iter().find(|other| Some(other.ifindex) == index))
                .and_then(|other| other.qdisc.clone()),
            listing,
            prefix: String::new(),
        }),
        (Some(id), _) => match elsewhere(id, index) {
            Some(found) => Some(found),
            None => {
                return vec![Finding::ok(
                    CHECK,
                    format!(
                        "the peer of {name} is in a namespace without a name; there: ethtool -k PEER"
                    ),
                )];
            }
        },
        (None, None) => None,
    };
    let Some(found) = found else {
        return Vec::new();
    };
    let queue = queue_of(name, &found);
    let Peer {
        name: peer,
        listing,
        prefix,
        ..
    } = found;
    let offloads = match offload(&listing, "tx-checksumming") {
        Some(true) => Finding::warning(
            CHECK,
            format!(
                "{peer} leaves checksums to the device, so what local senders send through it carries none that can \
                 be verified; Tidewall recognises and accepts them"
            ),
            format!("{prefix}ethtool -K {peer} tx off"),
        ),
        _ => Finding::ok(CHECK, format!("{peer} sends whole checksums")),
    };
    [offloads].into_iter().chain(queue).collect()
}

/// The other end of a veth.
struct Peer {
    name: String,
    qdisc: Option<String>,
    /// `ethtool -k`
    listing: String,
    /// Prefix of commands that run in its namespace.
    prefix: String,
}

/// Reports whether the peer holds its senders back while the ring of 256 places is full.
/// Since Linux 6.16 veth does so if the sending end has a queueing discipline.
fn queue_of(name: &str, peer: &Peer) -> Option<Finding> {
    const CHECK: &str = "peer's queue";
    let Peer {
        name: peer,
        qdisc,
        prefix,
        ..
    } = peer;
    let finding = match qdisc.as_deref()? {
        "noqueue" => Finding::ok(
            CHECK,
            format!(
                "{peer} has none: what it sends while the 256 places of {name} are full is lost; with one, \
                 Linux 6.16 and later hold its senders back"
            ),
        )
        .mended_by(format!(
            "{prefix}tc qdisc replace dev {peer} root pfifo limit 1000"
        )),
        qdisc => Finding::ok(CHECK, format!("{peer} has {qdisc}")),
    };
    Some(finding)
}

/// Finds the peer in a named network namespace.
fn elsewhere(namespace: i64, index: Option<u32>) -> Option<Peer> {
    let index = index?;
    let list = tool("ip", &["netns", "list-id"]).ok()?;
    let name = namespace_name(&list, namespace)?;
    let links = links(&tool("ip", &["-n", &name, "-details", "-json", "link", "show"]).ok()?);
    let peer = links.into_iter().find(|link| link.ifindex == index)?;
    let ethtool = ["netns", "exec", &name, "ethtool", "-k", &peer.ifname];
    Some(Peer {
        listing: tool("ip", &ethtool).ok()?,
        name: peer.ifname,
        qdisc: peer.qdisc,
        prefix: format!("ip netns exec {name} "),
    })
}

/// Returns the name in a line such as `nsid 0 (iproute2 netns name: tw-a)`.
fn namespace_name(list: &str, id: i64) -> Option<String> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nsid") && words.next()?.parse() == Ok(id)).then(|| {
            Some(
                line.split_once("name:")?
                    .1
                    .trim()
                    .trim_end_matches(')')
                    .to_owned(),
            )
        })?
    })
}

#[cfg(test)]
mod tests;
