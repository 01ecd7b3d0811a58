//! A path whose MTU is less than the interface's: a router between, and a client
//! behind it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket as KernelSocket};
use std::time::Duration;

use tidewall::{MtuDiscover, Stack};

use super::raw_system::{self, Packets};
use super::support::*;

const CLIENT4: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2);
const BOTH: [IpAddr; 2] = [IpAddr::V4(CLIENT4), IpAddr::V6(CLIENT6)];
/// MTU of the path, and a payload that does not fit it.
const MTU: usize = 1300;
const LONG: usize = 1400;

/// Makes the peer a router to a namespace of clients, by a link of that MTU.
fn route() {
    let (router, clients) = (peer_namespace(), third_namespace());
    shell(&format!(
        "ip netns add {clients}
         for each in {router} {clients}; do
            ip netns exec $each sh -c 'echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad'
         done
         ip -n {router} link add tw-far type veth peer name tw-client netns {clients}
         ip -n {router} addr add 10.78.0.1/24 dev tw-far
         ip -n {router} addr add fd78::1/64 dev tw-far nodad
         ip -n {clients} addr add {CLIENT4}/24 dev tw-client
         ip -n {clients} addr add {CLIENT6}/64 dev tw-client nodad
         ip -n {router} link set tw-far mtu {MTU} up
         ip -n {clients} link set tw-client mtu {MTU} up
         ip -n {clients} link set lo up
         ip -n {clients} route add default via 10.78.0.1
         ip -n {clients} -6 route add default via fd78::1
         ip netns exec {router} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward
            echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
         ip route add 10.78.0.0/24 via {PEER4}; ip -6 route add fd78::/64 via {PEER6}"
    ));
    // An interface that looks for duplicates of its addresses resolves no neighbour.
    let addresses = format!("ip -6 addr; ip -n {router} -6 addr; ip -n {clients} -6 addr");
    assert!(wait_until(|| !shell(&addresses).contains("tentative")));
}

/// A client's socket, which gives up after two seconds.
fn client(address: IpAddr) -> KernelSocket {
    let namespace = File::open(format!("/run/netns/{}", third_namespace())).unwrap();
    let socket = std::thread::spawn(move || {
        raw_system::enter(&namespace).unwrap();
        KernelSocket::bind((address, 0)).unwrap()
    });
    let socket = socket.join().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

fn here(family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => HERE4.into(),
        IpAddr::V6(_) => HERE6.into(),
    }
}

fn sent_by_itself(stack: &Stack) -> u64 {
    let snapshot = stack.snapshot();
    snapshot.queues.iter().map(|queue| queue.transmitted).sum()
}

/// Reports whether the kernel knows the MTU of the path to a client.
fn kernel_knows(address: IpAddr) -> bool {
    shell(&format!("ip route get {address}")).contains(&format!("mtu {MTU}"))
}

pub fn answers_longer_than_the_path_allows_arrive_whole() {
    route();
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    for (errors, address) in (1..).zip(BOTH) {
        let to = at(here(address), SERVICE);
        let socket = client(address);
        for _ in 0..3 {
            ask(&socket, to, b"short ones, until the neighbour is known");
        }
        assert!(!kernel_knows(address));
        // The client's own kernel cuts the question; the answer does not fit.
        assert!(!ask_once(&socket, to, &[1; LONG]));
        assert!(wait_until(
            || stack.snapshot().counters.icmp_errors == errors
        ));
        assert!(wait_until(|| kernel_knows(address)), "{address}");
        // Also once the route has been asked for again.
        for round in 0..20 {
            assert!(ask_once(&socket, to, &[2; LONG]), "{address}: {round}");
            std::thread::sleep(Duration::from_millis(100));
        }
        let before = sent_by_itself(&stack);
        let fits = MTU - if address.is_ipv4() { 28 } else { 48 };
        for _ in 0..10 {
            assert!(ask_once(&socket, to, &vec![3; fits]));
        }
        assert_eq!(sent_by_itself(&stack), before + 10, "{address}");
        assert_eq!(stack.snapshot().counters.icmp_errors, errors);
    }
    echo.finish();
    assert_eq!(stack.warnings(), [] as [String; 0]);
}

pub fn who_only_sends_keeps_to_the_path_mtu_too() {
    route();
    let stack = stack();
    for address in BOTH {
        let socket = bind(&stack, at(here(address), SERVICE));
        let client = client(address);
        let to = client.local_addr().unwrap();
        let mut buffer = [0; 2000];
        client
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let mut sent = 0;
        let arrives = wait_until(|| {
            socket.send_to(&[4; LONG], to).unwrap();
            sent += 1;
            client.recv(&mut buffer).is_ok_and(|length| length == LONG)
        });
        assert!(arrives, "{address}: none of {sent}");
        client
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        while client.set_nonblocking(true).is_ok() && client.recv(&mut buffer).is_ok() {}
        client.set_nonblocking(false).unwrap();
        for _ in 0..10 {
            socket.send_to(&[5; LONG], to).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), LONG);
        }
    }
}

pub fn a_socket_that_wants_no_fragments_gets_emsgsize() {
    route();
    let stack = stack();
    for address in BOTH {
        let socket = bind(&stack, at(here(address), SERVICE));
        assert_eq!(socket.mtu_discover(), MtuDiscover::Want);
        socket.set_mtu_discover(MtuDiscover::Do).unwrap();
        let client = client(address);
        socket.connect(client.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 2000];
        let long = || socket.send(&[6; LONG]);
        let errno = |result: io::Result<usize>| result.unwrap_err().raw_os_error();
        // The first may be the kernel's, which does not know the neighbour.
        let mut sent = long();
        assert!(wait_until(|| {
            socket.send(b"short").unwrap();
            client.recv(&mut buffer).unwrap();
            sent_by_itself(&stack) > 0
        }));
        assert!(wait_until(|| {
            sent = long();
            sent.is_err()
        }));
        assert_eq!(errno(sent), Some(libc::EMSGSIZE));
        assert_eq!(errno(long()), Some(libc::EMSGSIZE));
        assert_eq!(socket.mtu().unwrap(), MTU);
        let fits = MTU - if address.is_ipv4() { 28 } else { 48 };
        assert_eq!(errno(socket.send(&vec![7; fits + 1])), Some(libc::EMSGSIZE));
        socket.send(&vec![7; fits]).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), fits);
        // Others are cut, and one who probes is not.
        for manner in [MtuDiscover::Want, MtuDiscover::Dont] {
            socket.set_mtu_discover(manner).unwrap();
            assert_eq!(long().unwrap(), LONG);
            assert_eq!(client.recv(&mut buffer).unwrap(), LONG, "{manner:?}");
        }
        socket.set_mtu_discover(MtuDiscover::Probe).unwrap();
        assert_eq!(long().unwrap(), LONG);
        assert_eq!(errno(socket.send(&[8; 1473])), Some(libc::EMSGSIZE));
        // Without don't-fragment the router cuts it.
        for manner in [MtuDiscover::Interface, MtuDiscover::Omit] {
            socket.set_mtu_discover(manner).unwrap();
            if address.is_ipv4() {
                assert_eq!(long().unwrap(), LONG);
                assert_eq!(client.recv(&mut buffer).unwrap(), LONG, "{manner:?}");
            }
        }
        assert_eq!(socket.mtu_discover(), MtuDiscover::Omit);
    }
}

/// Connection tracking has not seen the flow that the error is about, and a rule
/// drops what it calls invalid, on the loopback device too. A longer
/// payload still goes through the kernel socket, and then tracking has seen it.
pub fn a_firewall_that_hides_errors_from_the_kernel_costs_one_more() {
    let name = "a_firewall_that_hides_errors_from_the_kernel_costs_one_more";
    if !tidewall_skip::has_programs(name, &["nft"]) {
        return;
    }
    route();
    shell(
        "nft add table inet f
         nft add chain inet f in '{ type filter hook input priority 0; }'
         nft add rule inet f in ct state invalid drop",
    );
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    for address in BOTH {
        let to = at(here(address), SERVICE);
        let socket = client(address);
        for _ in 0..3 {
            ask(&socket, to, b"short ones, until the neighbour is known");
        }
        // The first answers of a stack are the kernel's, so it has seen that flow.
        let socket = client(address);
        let lost = (0..5).take_while(|_| !ask_once(&socket, to, &[1; LONG]));
        let lost = lost.count();
        assert!((1..=2).contains(&lost), "{address}: {lost} lost");
        assert!(wait_until(|| kernel_knows(address)), "{address}");
        for _ in 0..10 {
            assert!(ask_once(&socket, to, &[2; LONG]), "{address}");
        }
    }
    echo.finish();
}

/// The MTU of a route is kept to without any error.
pub fn the_mtu_of_a_route_is_kept_to() {
    route();
    let stack = stack();
    shell(&format!(
        "ip route change 10.78.0.0/24 via {PEER4} mtu {MTU}
         ip -6 route change fd78::/64 via {PEER6} mtu {MTU}"
    ));
    let echo = Echo::start(&stack, SERVICE);
    for address in BOTH {
        let socket = client(address);
        for _ in 0..3 {
            ask(&socket, at(here(address), SERVICE), b"short");
        }
        for _ in 0..5 {
            assert!(ask_once(&socket, at(here(address), SERVICE), &[9; LONG]));
        }
    }
    assert_eq!(stack.snapshot().counters.icmp_errors, 0);
    echo.finish();
}

/// An error about what was never sent is forged: it changes nothing, here or in
/// the kernel.
pub fn forged_size_errors_change_nothing() {
    route();
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    for _ in 0..3 {
        ask(&peer, at(HERE4, SERVICE), b"short");
    }
    let packets = in_peer(|| Packets::open(super::kernel::peer_index()).unwrap());
    let quoted = datagram(HERE4, SERVICE, CLIENT4, 5000);
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend((MTU as u16).to_be_bytes());
    message.extend(&quoted[..28]);
    let sum = tidewall_wire::checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet_from_peer();
    frame.extend(ipv4(1, PEER4, HERE4, &message));
    packets.send(&frame).unwrap();
    assert!(wait_until(|| stack.snapshot().counters.icmp_errors == 1));
    let ignored = || {
        stack
            .snapshot()
            .counters
            .protocol
            .get("icmp-ignored")
            .copied()
    };
    assert!(
        wait_until(|| ignored() == Some(1)),
        "{:?}",
        stack.snapshot()
    );
    assert!(!kernel_knows(CLIENT4.into()));
    echo.finish();
}

/// An IPv4 datagram.
fn ipv4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    bytes[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    let sum = tidewall_wire::checksum::checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A UDP datagram that has no checksum and is longer than it looks.
fn datagram(from: Ipv4Addr, port: u16, to: Ipv4Addr, peer: u16) -> Vec<u8> {
    let mut header = port.to_be_bytes().to_vec();
    header.extend(peer.to_be_bytes());
    header.extend([5, 0x80, 0, 0]);
    ipv4(17, from, to, &header)
}

/// The Ethernet header of a frame from the peer to the stack.
fn ethernet_from_peer() -> Vec<u8> {
    let address = |interface: &str| {
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"));
        let bytes = |text: String| -> Vec<u8> {
            let parts = text.trim().split(':');
            parts
                .map(|part| u8::from_str_radix(part, 16).unwrap())
                .collect()
        };
        bytes(text.unwrap())
    };
    let mut header = address(HERE);
    header.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    header
}
