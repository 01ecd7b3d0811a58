//! Segments of kernels' TCP that go on between two interfaces, in their frames.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewall::EmbeddedConfig;
use tidewall::forward::{Arrived, Forwarder, Heading, Output};

use super::device::set_mtu;
use super::raw_system;
use super::support::*;

const OUT4: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 1);
const FAR4: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);
const OUT6: Ipv6Addr = Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 1);
const FAR6: Ipv6Addr = Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 2);
/// The addresses that clients know: of no interface before, on the peer's link.
const VIRTUAL4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 99);
const VIRTUAL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x99);
const SERVER: u16 = 9000;
/// Port towards the server, of IPv4; the next is IPv6's.
const FROM: u16 = 61_000;
/// Bytes each way.
const BYTES: usize = 4 << 20;

fn is_v6(address: SocketAddr) -> u16 {
    address.is_ipv6().into()
}

/// Translates addresses and ports, and nothing else: connections go on from end to end.
fn translate(
    output: &mut Output,
    arrived: &mut Arrived<'_>,
    clients: &mut [Option<SocketAddr>; 2],
) {
    let from = arrived.interface();
    let Some(segment) = arrived.segment() else {
        return;
    };
    let (mut header, mut flow) = (segment.header, segment.flow);
    let family = is_v6(flow.local);
    let (traffic_class, length) = (segment.traffic_class, segment.payload.len());
    let address = |v4: Ipv4Addr, v6: Ipv6Addr| match family {
        0 => IpAddr::from(v4),
        _ => IpAddr::from(v6),
    };
    if from == 0 {
        clients[usize::from(family)] = Some(flow.remote);
        flow.local = at(address(OUT4, OUT6), FROM + family);
        flow.remote = at(address(FAR4, FAR6), SERVER);
    } else {
        assert_eq!(flow.local, at(address(OUT4, OUT6), FROM + family));
        let Some(client) = clients[usize::from(family)] else {
            return;
        };
        flow.local = at(address(VIRTUAL4, VIRTUAL6), SERVICE);
        flow.remote = client;
    }
    header.source_port = flow.local.port();
    header.destination_port = flow.remote.port();
    let heading = Heading {
        flow,
        header,
        traffic_class,
    };
    output.forward(1 - from, &heading, arrived, 0..length);
}

pub fn connections_of_kernels_pass_in_place() {
    pass_in_place(1500);
}

pub fn segments_in_several_frames_pass_in_place() {
    pass_in_place(9000);
}

pub fn segments_in_many_frames_pass_in_place() {
    pass_in_place(65_535);
}

fn pass_in_place(mtu: usize) {
    set_mtu(mtu);
    let (far, peer) = (third_namespace(), peer_namespace());
    shell(&format!(
        "ip netns add {far}; ip -n {far} link set lo up
         ip link add tw-out type veth peer name tw-far netns {far}
         ip addr add {OUT4}/24 dev tw-out; ip -n {far} addr add {FAR4}/24 dev tw-far
         ip addr add {OUT6}/64 dev tw-out nodad; ip -n {far} addr add {FAR6}/64 dev tw-far nodad
         ip link set tw-out mtu {mtu}; ip -n {far} link set tw-far mtu {mtu}
         ip link set tw-out up; ip -n {far} link set tw-far up
         ip netns exec {peer} ethtool -K {PEER} tso off gso off
         ip netns exec {far} ethtool -K tw-far tso off gso off"
    ));
    let there = File::open(format!("/run/netns/{far}")).unwrap();
    let servers = std::thread::spawn(move || {
        raw_system::enter(&there).unwrap();
        [FAR4.into(), FAR6.into()]
            .map(|address: IpAddr| TcpListener::bind(at(address, SERVER)).unwrap())
    });
    for listener in servers.join().unwrap() {
        // Echoes one connection.
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = vec![0; 65_536];
            while let Ok(got @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..got]).unwrap();
            }
        });
    }
    let config = |name: &str| EmbeddedConfig::new(name).control(false);
    let mut forwarder = Forwarder::open(vec![config(HERE), config("tw-out")]).unwrap();
    for stack in forwarder.stacks() {
        assert_eq!(stack.warnings(), [] as [String; 0]);
    }
    let kernels = forwarder.claim_ports(1, 40_000..=50_000).unwrap_err();
    assert!(
        kernels.to_string().contains("ip_local_port_range"),
        "{kernels}"
    );
    forwarder.claim_ports(1, FROM..=FROM + 1).unwrap();
    for address in [VIRTUAL4.into(), VIRTUAL6.into()] {
        forwarder.claim(0, at(address, SERVICE)).unwrap_err();
        forwarder.add_address(0, address).unwrap();
        forwarder.claim(0, at(address, SERVICE)).unwrap();
        // The port has an owner now.
        TcpListener::bind(at(address, SERVICE)).unwrap_err();
    }
    let stop = AtomicBool::new(false);
    let forwarder = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut clients = [None; 2];
            while !stop.load(Ordering::Relaxed) {
                forwarder.wait(Some(Duration::from_millis(10))).unwrap();
                let translate = |output: &mut Output, arrived: &mut Arrived<'_>| {
                    translate(output, arrived, &mut clients)
                };
                forwarder.receive(translate);
            }
            forwarder
        });
        for address in [VIRTUAL4.into(), VIRTUAL6.into()] {
            exchange(address);
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    let mut forwarder = forwarder;
    let counters = forwarder.output().counters();
    println!("{counters:?}");
    // Segments of the first handshakes may have come through the kernel.
    assert!(
        counters.in_place as usize > 2 * 2 * BYTES / (mtu - 40),
        "{counters:?}"
    );
    assert!(counters.copied < 20, "{counters:?}");
    assert_eq!(counters.refused, 0);
    let held = shell("ip address show dev tw-here");
    assert!(held.contains("10.77.0.99/32"), "{held}");
    drop(forwarder);
    let left = shell("ip address show dev tw-here");
    assert!(
        !left.contains("10.77.0.99") && !left.contains("fd77::99"),
        "{left}"
    );
}

/// Sends bytes and gets them back, from the peer.
fn exchange(address: IpAddr) {
    in_peer(move || {
        let mut stream = TcpStream::connect(at(address, SERVICE)).unwrap();
        let sent: Vec<u8> = (0..BYTES as u32).map(|n| (n ^ n >> 8) as u8).collect();
        let mut sender = stream.try_clone().unwrap();
        let bytes = sent.clone();
        let sending = std::thread::spawn(move || {
            sender.write_all(&bytes).unwrap();
            sender.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        sending.join().unwrap();
        assert!(
            back == sent,
            "{} of {} bytes came back",
            back.len(),
            sent.len()
        );
    });
}
