use tidewall::snapshot::DeviceSnapshot;
use tidewall_device::afxdp::Segmentation;

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

/// Two containers may have an `eth0` each.
#[test]
fn a_stack_of_another_namespace_owns_no_interface_here() {
    let live = [1, 2].map(|process| stack(process, "tidewall", "0.0.0.0:7"));
    let of = |name: &str, here: u32| {
        let (owner, elsewhere) = stacks_of(name, &live, |process| process == here);
        (owner.map(|stack| stack.process), elsewhere)
    };
    assert_eq!(of("tw-x", 2), (Some(2), Some(1)));
    assert_eq!(of("tw-x", 3), (None, Some(1)));
    assert_eq!(of("tw-y", 2), (None, None));
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
    let owner = stack(7, "tidewall", "0.0.0.0:7");
    assert_eq!(
        attached("tw-b", &all[0], Some(&owner)).severity,
        Severity::Ok
    );
    assert_eq!(
        attached("down", &all[1], Some(&owner)).severity,
        Severity::Problem
    );
    assert_eq!(
        mtu("down", all[1].mtu, Some(0x3)).mend.as_deref(),
        Some("ip link set dev down mtu 1500")
    );
    assert_eq!(mtu("x", 3506, None).severity, Severity::Ok);
    assert_eq!(mtu("x", 9000, Some(0x23)).severity, Severity::Ok);
}

#[test]
fn drivers_are_asked_first_and_looked_up_second() {
    let native = |driver, features| native("x", driver, features, None);
    assert_eq!(native(Some("veth"), Some(0x23)).severity, Severity::Ok);
    // A card gets generic XDP; a device stacked on another interface does not.
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
        finding.text.contains("zero-copy, ? receive and ? transmit queues, checksums by the device (its driver says so), segments cut by the kernel ("),
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
    let mut owner = stack(7, "tidewall", "0.0.0.0:7");
    owner.device = Some({
        let mut device = DeviceSnapshot::default();
        device.driver = "igb".to_owned();
        device.xdp = "native".to_owned();
        device.receive_queues = 2;
        device.transmit_queues = 2;
        device.checksums = Checksums::Proven.to_string();
        device.segmentation = Segmentation::ByDevice.to_string();
        device
    });
    assert_eq!(
        device("x", None, None, None, Some(&owner)).text,
        "igb, native XDP, copy mode, 2 receive and 2 transmit queues, checksums by the device (proven at start), segments cut by the device"
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
    let owner = stack(7, "tidewall", "0.0.0.0:7");
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
    let mut owner = stack(7, "tidewall", "0.0.0.0:7");
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

#[test]
fn a_veths_peer_without_a_queue_is_named() {
    let peer = |qdisc: &str| Peer {
        name: "p".to_owned(),
        qdisc: Some(qdisc.to_owned()),
        listing: String::new(),
        prefix: "ip netns exec tw-a ".to_owned(),
    };
    assert_eq!(
        queue_of("x", &peer("noqueue")).unwrap().mend.as_deref(),
        Some("ip netns exec tw-a tc qdisc replace dev p root pfifo limit 1000")
    );
    assert_eq!(queue_of("x", &peer("pfifo")).unwrap().mend, None);
}
