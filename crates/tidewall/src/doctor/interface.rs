//! One interface: driver, XDP, MTU, offloads, the peer of a veth.

use std::io;

use serde::Deserialize;
use serde_json::Value;
use tidewall_device::afxdp::Checksums;
use tidewall_device::interface::{driver, queue_count, transmit_queue_count};
use tidewall_manager::ethtool;
use tidewall_manager::{XdpMode, check_generic};
use tidewall_socket::snapshot::StackSnapshot;
use tidewall_sys::netlink::{Netdev, XDP_BASIC, XDP_REDIRECT, XDP_ZERO_COPY, XSK_TX_CHECKSUM};

use super::{Finding, control, line_of, queues, tool};
use crate::stat::Pair;
use crate::stat::view::{UNSEEN_CAUSE, UNSEEN_CURE};

/// Largest MTU at which a driver attaches a program that takes frames whole,
/// as veth measured it (one page less headroom and tail).
const MTU_MAX: u64 = 3506;

/// Drivers of Linux 6.8 with native XDP, for kernels that do not say so
/// themselves.
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

/// `ip -details -json link show`, of it what matters here.
#[derive(Clone, Debug, Default, Deserialize)]
struct Link {
    ifindex: u32,
    #[serde(default)]
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    mtu: u64,
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

/// Everything about an interface of this network namespace.
pub fn check(name: &str, live: &[StackSnapshot]) -> Vec<Finding> {
    let owner = live.iter().find(|stack| stack.interface == name);
    if let Some(elsewhere) = owner.filter(|stack| !same_namespace(stack.process)) {
        return vec![Finding::unknown(
            "interface",
            format!(
                "{name} of process {} is in another network namespace; look there: nsenter -t {} -m -n tidewall \
                 doctor --interface {name}",
                elsewhere.process, elsewhere.process
            ),
        )];
    }
    let json = match tool("ip", &["-details", "-json", "link", "show"]) {
        Ok(json) => json,
        Err(error) => {
            return vec![Finding {
                mend: Some("apt-get install iproute2".to_owned()),
                ..Finding::unknown("interface", format!("{name} cannot be looked at: {error}"))
            }];
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
        mtu(name, link.mtu),
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

/// True when a process lives in this process's network namespace; on doubt too.
fn same_namespace(process: u32) -> bool {
    let own = std::fs::read_link("/proc/self/ns/net").ok();
    let other = std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    own.is_none() || other.is_none() || own == other
}

/// The value after `name:` in a listing of ethtool.
pub fn value_of<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    listing
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

/// Whether an offload is on; `None` where the driver does not have it.
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

/// `generic`: why generic XDP does not help there, where it does not.
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
            Some(refusal) => Finding::problem(CHECK, refusal, mend),
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

/// Mode, queues and checksums: of the live stack, or what one would have.
/// `zero_copy`: what the driver's zero-copy mode does on transmission, where it
/// has one; `features`: its XDP features, where the kernel tells.
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
            "{}, {} XDP would run in {mode}, {} receive and {} transmit queues, checksums {checksums}",
            driver.unwrap_or("unknown driver"),
            xdp.name(),
            number(queue_count(name)),
            number(transmit_queue_count(name)),
        ),
    )
}

/// Whether virtio-net has a transmit queue for each processor beside its own.
fn transmit_queues(name: &str) -> Option<Finding> {
    let most = ethtool::Channels::read(name).ok()?.receive_limit;
    let own = transmit_queue_count(name)?;
    let processors = processors(&line_of("/sys/devices/system/cpu/possible")?)?;
    locked_transmission(name, own, processors, most)
}

/// Processors in a list such as `0-3,8`: the kernel counts to the last one.
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

/// Frames of owned ports that the kernel had to receive.
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

/// Whether packets come to a stack's interface of which its program sees none.
pub fn unseen(pair: &Pair) -> Option<Finding> {
    let packets = pair.unseen()?;
    let stack = &pair.now;
    Some(Finding::problem(
        "frames past Tidewall",
        format!(
            "{packets} packets came to {}, and the driver program saw none of them. {UNSEEN_CAUSE} {UNSEEN_CURE}",
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

fn mtu(name: &str, mtu: u64) -> Finding {
    const CHECK: &str = "MTU";
    if mtu <= MTU_MAX {
        return Finding::ok(CHECK, mtu.to_string());
    }
    Finding::problem(
        CHECK,
        format!("{mtu}: the driver program takes frames whole, and attaches up to {MTU_MAX} only"),
        format!("ip link set dev {name} mtu 1500"),
    )
}

fn offloads(name: &str, link: &Link, all: &[Link]) -> Vec<Finding> {
    const CHECK: &str = "offloads";
    let listing = match tool("ethtool", &["-k", name]) {
        Ok(listing) => listing,
        Err(error) => {
            return vec![Finding {
                mend: Some("apt-get install ethtool".to_owned()),
                ..Finding::unknown(CHECK, format!("those of {name} cannot be read: {error}"))
            }];
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
            // virtio_net and vmxnet3 do; a driver that does not refuses the
            // program, and the message then says so.
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
        // Harmless once a program is attached: veth then runs NAPI in any case.
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
fn peer(name: &str, link: &Link, all: &[Link]) -> Option<Finding> {
    const CHECK: &str = "peer's offloads";
    if link.kind() != "veth" {
        return None;
    }
    let index = link.link_index.or_else(|| {
        let peer = link.link.as_ref()?;
        all.iter()
            .find(|other| &other.ifname == peer)
            .map(|other| other.ifindex)
    });
    let (peer, listing, prefix) = match (link.link_netnsid, &link.link) {
        (None, Some(peer)) => (
            peer.clone(),
            tool("ethtool", &["-k", peer]).ok()?,
            String::new(),
        ),
        (Some(id), _) => match elsewhere(id, index) {
            Some(found) => found,
            None => {
                return Some(Finding::ok(
                    CHECK,
                    format!(
                        "the peer of {name} is in a namespace without a name; there: ethtool -k PEER"
                    ),
                ));
            }
        },
        (None, None) => return None,
    };
    Some(match offload(&listing, "tx-checksumming") {
        Some(true) => Finding::warning(
            CHECK,
            format!(
                "{peer} leaves checksums to the device, so what local senders send through it carries none that can \
                 be verified; Tidewall recognises and accepts them"
            ),
            format!("{prefix}ethtool -K {peer} tx off"),
        ),
        _ => Finding::ok(CHECK, format!("{peer} sends whole checksums")),
    })
}

/// The peer in a named network namespace: its name, its offloads, and the
/// prefix of commands that run there.
fn elsewhere(namespace: i64, index: Option<u32>) -> Option<(String, String, String)> {
    let index = index?;
    let list = tool("ip", &["netns", "list-id"]).ok()?;
    let name = namespace_name(&list, namespace)?;
    let links = links(&tool("ip", &["-n", &name, "-details", "-json", "link", "show"]).ok()?);
    let peer = links
        .iter()
        .find(|link| link.ifindex == index)?
        .ifname
        .clone();
    let listing = tool("ip", &["netns", "exec", &name, "ethtool", "-k", &peer]).ok()?;
    Some((peer, listing, format!("ip netns exec {name} ")))
}

/// The name in a line such as `nsid 0 (iproute2 netns name: tw-a)`.
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
mod tests {
    use tidewall_socket::snapshot::DeviceSnapshot;

    use super::super::Severity;
    use super::super::firewall::tests::stack;
    use super::*;

    const FEATURES: &str = "Features for tw-a:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\n\
                            generic-receive-offload: on\nlarge-receive-offload: off [fixed]\nrx-vlan-offload: on\n\
                            rx-gro-hw: off [fixed]\n";

    #[test]
    fn ethtool_s_listing_is_read() {
        assert_eq!(offload(FEATURES, "tx-checksumming"), Some(true));
        assert_eq!(offload(FEATURES, "tx-checksum-ipv4"), Some(false));
        assert_eq!(offload(FEATURES, "none-such"), None);
        assert_eq!(
            value_of("driver: veth\nversion: 1.0\n", "driver"),
            Some("veth")
        );
    }

    #[test]
    fn the_link_s_state_and_program_are_read_from_ip() {
        let json = r#"[{"ifindex":5,"link_index":4,"ifname":"tw-b","flags":["BROADCAST","UP","LOWER_UP"],"mtu":1500,
            "linkinfo":{"info_kind":"veth"},"link_netnsid":0,
            "xdp":{"mode":1,"prog":{"id":42,"name":"tw_demux","jited":1}}},
            {"ifindex":6,"ifname":"down","flags":[],"mtu":9000}]"#;
        let all = links(json);
        assert_eq!(all.len(), 2);
        let finding = state(&all[0]);
        assert_eq!(finding.severity, Severity::Ok);
        assert_eq!(
            state(&all[1]).mend.as_deref(),
            Some("ip link set dev down up")
        );
        assert_eq!(all[0].kind(), "veth");
        let finding = attached("tw-b", &all[0], None);
        assert_eq!(finding.severity, Severity::Problem);
        assert!(
            finding
                .mend
                .is_some_and(|mend| mend.contains("bpftool prog show id 42"))
        );
        let owner = stack(7, "ni-lrp", "0.0.0.0:7");
        assert_eq!(
            attached("tw-b", &all[0], Some(&owner)).severity,
            Severity::Ok
        );
        assert_eq!(
            attached("down", &all[1], Some(&owner)).severity,
            Severity::Problem
        );
        assert_eq!(
            mtu("down", all[1].mtu).mend.as_deref(),
            Some("ip link set dev down mtu 1500")
        );
        assert_eq!(mtu("x", 3506).severity, Severity::Ok);
    }

    #[test]
    fn drivers_are_asked_first_and_looked_up_second() {
        let native = |driver, features| native("x", driver, features, None);
        assert_eq!(native(Some("veth"), Some(0x23)).severity, Severity::Ok);
        // A card gets generic XDP, what stands on another interface does not.
        assert_eq!(native(Some("e1000e"), Some(0)).severity, Severity::Warning);
        let refused = super::native("x", None, Some(0), Some("x stands on y".to_owned()));
        assert_eq!(refused.severity, Severity::Problem);
        assert_eq!(refused.text, "x stands on y");
        assert_eq!(
            native(Some("veth"), Some(XDP_BASIC)).severity,
            Severity::Problem
        );
        assert_eq!(native(Some("ice"), None).severity, Severity::Ok);
        assert_eq!(native(Some("e1000e"), None).severity, Severity::Warning);
    }

    #[test]
    fn offloads_that_hide_frames_are_named() {
        assert_eq!(
            own_offloads("x", "veth", FEATURES, &[])[0].severity,
            Severity::Ok
        );
        let merged = FEATURES.replace(
            "large-receive-offload: off [fixed]",
            "large-receive-offload: on",
        );
        assert_eq!(
            own_offloads("x", "", &merged, &[])[0].severity,
            Severity::Ok,
            "drivers see to it themselves"
        );
        let tagged = own_offloads("x", "", FEATURES, &["x.7"]);
        assert_eq!(tagged[0].mend.as_deref(), Some("ethtool -K x rxvlan off"));
    }

    #[test]
    fn the_device_of_a_stack_is_that_of_its_snapshot() {
        let finding = device("x", Some("mlx5_core"), None, Some(XSK_TX_CHECKSUM), None);
        assert!(
            finding.text.ends_with("zero-copy, ? receive and ? transmit queues, checksums by the device (its driver says so)"),
            "{}",
            finding.text
        );
        let finding = device("x", Some("ice"), None, Some(0), None);
        assert!(
            finding.text.contains("checksums in software ("),
            "{}",
            finding.text
        );
        let finding = device("x", Some("veth"), None, None, None);
        assert!(finding.text.contains("copy mode"), "{}", finding.text);
        let mut owner = stack(7, "ni-lrp", "0.0.0.0:7");
        owner.device = Some(DeviceSnapshot {
            driver: "igb".to_owned(),
            xdp: "native".to_owned(),
            zero_copy: false,
            receive_queues: 2,
            transmit_queues: 2,
            checksums: Checksums::Proven.to_string(),
        });
        assert_eq!(
            device("x", None, None, None, Some(&owner)).text,
            "igb, native XDP, copy mode, 2 receive and 2 transmit queues, checksums by the device (proven at start)"
        );
    }

    #[test]
    fn shared_transmit_queues_are_said_in_dmesg_s_words() {
        assert_eq!(processors("0-3"), Some(4));
        assert_eq!(processors("0"), Some(1));
        assert_eq!(processors("0-3,8\n"), Some(9));
        assert_eq!(processors(""), None);
        let finding = locked_transmission("x", 2, 2, 2).unwrap();
        assert_eq!(finding.severity, Severity::Ok);
        assert!(
            finding.text.contains("XDP request 4 queues but max is 2"),
            "{}",
            finding.text
        );
        assert_eq!(locked_transmission("x", 2, 2, 4), None);
    }

    #[test]
    fn packets_that_the_program_does_not_see_are_a_problem() {
        let owner = stack(7, "ni-lrp", "0.0.0.0:7");
        let mut pair = Pair::new(owner.clone(), Some(owner));
        assert_eq!(unseen(&pair), None);
        pair.received = Some(40);
        let finding = unseen(&pair).unwrap();
        assert_eq!(finding.severity, Severity::Problem);
        assert!(
            finding.text.starts_with("40 packets came to "),
            "{}",
            finding.text
        );
        assert_eq!(finding.mend.as_deref(), Some("kill -TERM 7"));
    }

    #[test]
    fn frames_past_tidewall_are_a_warning() {
        let mut owner = stack(7, "ni-lrp", "0.0.0.0:7");
        assert_eq!(past_tidewall(&owner), None);
        owner.queues.push(serde_json::from_value(serde_json::json!({
            "driver": {"no-metadata": 62}, "kernel": {}, "delivered": 0, "stale": 0,
            "lost_in_ring": 0, "rounds": 0, "empty_rounds": 0, "transmitted": 0,
            "no_transmit_frame": 0, "host": {}, "control": {"policy": "", "budget": 0, "interval": 0,
            "mode": "", "buffer_use": 0.0, "exhausted_rounds": 0, "interrupts": 0, "overflowed": 0}
        })).unwrap());
        let finding = past_tidewall(&owner).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.text.starts_with("62 frames"), "{}", finding.text);
    }

    #[test]
    fn namespaces_are_found_by_their_number() {
        let list = "nsid 0 (iproute2 netns name: tw-a)\nnsid 1 \n";
        assert_eq!(namespace_name(list, 0).as_deref(), Some("tw-a"));
        assert_eq!(namespace_name(list, 1), None);
        assert_eq!(namespace_name(list, 2), None);
    }
}
