//! Next hops: of very many hosts, and of one whose link address changes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use tidewall::TcpListener;
use tidewall_sys::netlink::Rtnetlink;

use super::raw_system::Packets;
use super::support::*;

/// First of the addresses behind the peer from which requests come.
const STRANGERS: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// Frames of a call.
const BURST: u32 = 32;

/// A question from stranger `number`, in a frame.
fn question(to: [u8; 6], from: [u8; 6], number: u32) -> Vec<u8> {
    let source = Ipv4Addr::from(STRANGERS.to_bits() + number);
    let mut ip = vec![0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0];
    ip.extend(source.octets());
    ip.extend(HERE4.octets());
    let sum = tidewall_wire::checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [9000u16, SERVICE, 16, 0].map(u16::to_be_bytes).concat();
    [&to[..], &from[..], &[8, 0], &ip, &udp, b"question"].concat()
}

/// Datagrams that the kernel of this namespace has sent.
fn by_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let of_udp: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("Udp:"))
        .collect();
    let place = of_udp[0].split(' ').position(|word| word == "OutDatagrams");
    of_udp[1]
        .split(' ')
        .nth(place.unwrap())
        .unwrap()
        .parse()
        .unwrap()
}

/// However many hosts are answered, and however fast others come: one router leads to all.
pub fn answers_to_many_hosts_leave_by_the_stack() {
    shell(&format!("ip route add {STRANGERS}/9 via {PEER4}"));
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    until_it_transmits(&stack, || ask(&client, at(HERE4, SERVICE), b"first"));
    let link = |name| Rtnetlink::open().unwrap().link_named(name).unwrap();
    let here = link(HERE).mac.unwrap();
    let (packets, there) = in_peer(move || {
        let peer = link(PEER);
        (Packets::sender(peer.index).unwrap(), peer.mac.unwrap())
    });
    for strangers in [3_000, 20_000, 200_000] {
        let delivered = || -> u64 {
            let queues = stack.snapshot().queues;
            queues.iter().map(|queue| queue.transmitted).sum()
        };
        let (own, kernels) = (delivered(), by_kernel());
        let began = Instant::now();
        for first in (0..strangers).step_by(BURST as usize) {
            let burst = (first..first + BURST).map(|number| question(here, there, number));
            packets.send_all(&burst.collect::<Vec<_>>());
            // Some 100,000 a second, and what is lost is not judged.
            let due = Duration::from_micros(10) * first;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        ask(&client, at(HERE4, SERVICE), b"last");
        let (own, kernels) = (delivered() - own, by_kernel() - kernels);
        println!("{strangers} hosts: {own} answers by the stack, {kernels} by the kernel");
        assert!(own > u64::from(strangers) / 10, "{own} of {strangers}");
        assert!(
            kernels * 100 <= own,
            "{kernels} by the kernel, {own} by the stack"
        );
    }
    echo.finish();
}

/// Without an announcement, to a peer that sends nothing: the kernel finds it out by asking,
/// and repetitions go where its answer says.
pub fn a_neighbour_with_another_link_address_is_followed() {
    let timers = format!("/proc/sys/net/ipv4/neigh/{HERE}");
    shell(&format!(
        "echo 500 >{timers}/base_reachable_time_ms; echo 1 >{timers}/delay_first_probe_time
         echo 100 >{timers}/retrans_time_ms"
    ));
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let mut client = in_peer(|| KernelStream::connect(at(HERE4, SERVICE)).unwrap());
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"a").unwrap();
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    in_peer(|| shell(&format!("ip link set {PEER} address 02:00:00:00:77:02")));
    server.write_all(b"b").unwrap();
    let began = Instant::now();
    client.read_exact(&mut byte).expect("it is found");
    println!("found after {:?}", began.elapsed());
    assert_eq!(byte, *b"b");
}
