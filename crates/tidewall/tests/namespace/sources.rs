//! The addresses that datagrams come from, where the host has several.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket as KernelSocket};
use std::time::Duration;

use tidewall::{TcpListener, UdpSocket};
use tidewall_sys::netlink::Rtnetlink;

use super::kernel::peer_index;
use super::support::*;

const SECOND4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const SECOND6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x77, 1);
const LATER4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);
const LATER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 4);

fn add(address: impl Into<IpAddr>) {
    let address = address.into();
    let (prefix, how) = if address.is_ipv4() {
        (24, "")
    } else {
        (64, "nodad")
    };
    shell(&format!("ip addr add {address}/{prefix} dev {HERE} {how}"));
}

/// A link-local address seen from the peer.
fn on_link(address: Ipv6Addr) -> SocketAddr {
    SocketAddrV6::new(address, SERVICE, 0, peer_index()).into()
}

/// Asks in one frame and in fragments, often enough that the stack's frames answer. The
/// kernel sends the first frames of a stack and to a neighbour.
fn ask_in_every_way(socket: &KernelSocket, to: SocketAddr) {
    for size in [10, 10, 10, 1000, 10, 4000] {
        ask(socket, to, &vec![size as u8; size]);
    }
}

pub fn answers_come_from_the_address_that_was_asked() {
    for address in [IpAddr::from(SECOND4), SECOND6.into(), LINK_LOCAL.into()] {
        add(address);
    }
    let stack = stack();
    let links = format!(
        "ip -n {} -6 addr show dev {PEER} scope link -tentative",
        peer_namespace()
    );
    assert!(wait_until(|| shell(&links).contains("fe80")));
    let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
    let any = peer_socket(Ipv6Addr::UNSPECIFIED);
    // The peer's own link-local address comes a while after its link.
    let ready = || {
        let script = format!("ip -6 route show dev {PEER}; ip -6 addr show dev {PEER}");
        let state = in_peer(move || shell(&script));
        state.contains("fe80::/64") && !state.contains("tentative")
    };
    assert!(wait_until(ready));
    for bound in [
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
        Ipv4Addr::UNSPECIFIED.into(),
    ] {
        let echo = Echo::start_at(&stack, at(bound, SERVICE));
        ask_in_every_way(&four, at(SECOND4, SERVICE));
        ask_in_every_way(&four, at(HERE4, SERVICE));
        let here = KernelSocket::bind(at(Ipv4Addr::LOCALHOST, 0)).unwrap();
        here.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        ask_in_every_way(&here, at(Ipv4Addr::new(127, 0, 0, 9), SERVICE));
        ask_in_every_way(&here, at(SECOND4, SERVICE));
        if bound.is_ipv6() {
            ask_in_every_way(&six, at(SECOND6, SERVICE));
            ask_in_every_way(&six, at(HERE6, SERVICE));
            ask_in_every_way(&any, on_link(LINK_LOCAL));
            // From a peer that has no such address.
            let to = SocketAddrV6::new(LINK_LOCAL, SERVICE, 0, peer_index());
            ask_in_every_way(&six, to.into());
            let here = KernelSocket::bind(at(Ipv6Addr::LOCALHOST, 0)).unwrap();
            here.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            ask_in_every_way(&here, at(SECOND6, SERVICE));
        }
        let seen = stack.snapshot().sockets[0].clone();
        assert!(seen.through_kernel < seen.received, "{seen:?}");
        echo.finish();
    }
}

pub fn an_address_that_came_later_answers_by_itself() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    add(LATER4);
    add(LATER6);
    ask_in_every_way(&peer_socket(PEER4), at(LATER4, SERVICE));
    ask_in_every_way(&peer_socket(PEER6), at(LATER6, SERVICE));
    // The first may come before the driver knows the address.
    let by_kernel = || stack.snapshot().sockets[0].through_kernel;
    assert!(wait_until(|| {
        let before = by_kernel();
        ask_in_every_way(&peer_socket(PEER4), at(LATER4, SERVICE));
        by_kernel() == before
    }));
    echo.finish();
}

pub fn groups_are_answered_from_the_usual_address() {
    add(SECOND4);
    add(LINK_LOCAL);
    let stack = stack();
    for bound in [
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
        Ipv4Addr::UNSPECIFIED.into(),
    ] {
        let echo = Echo::start_at(&stack, at(bound, SERVICE));
        let peer = peer_socket(PEER4);
        peer.set_broadcast(true).unwrap();
        let mut buffer = [0; 16];
        for group in [Ipv4Addr::new(10, 77, 0, 255), Ipv4Addr::BROADCAST] {
            in_peer({
                let peer = peer.try_clone().unwrap();
                move || peer.send_to(b"everybody?", at(group, SERVICE)).unwrap()
            });
            let (length, from) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!((length, from), (10, at(HERE4, SERVICE)));
        }
        if bound.is_ipv6() {
            let peer = peer_socket(PEER6);
            let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            // A link that came up just now has no route to groups yet.
            let group = on_link(group);
            assert!(wait_until(|| peer.send_to(b"everybody?", group).is_ok()));
            let (length, from) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!((length, from), (10, at(HERE6, SERVICE)));
        }
        echo.finish();
    }
}

pub fn a_source_that_is_not_ours_is_refused() {
    add(SECOND4);
    add(SECOND6);
    let stack = stack();
    let (four, six) = (peer_socket(PEER4), peer_socket(PEER6));
    let mut buffer = [0; 16];
    // A named source is used, whatever the socket is bound to.
    let bound4 = bind(&stack, at(HERE4, SERVICE));
    let bound6 = bind(&stack, at(HERE6, SERVICE));
    let any = bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE + 1));
    for (socket, port) in [(&bound4, SERVICE), (&any, SERVICE + 1)] {
        let to = four.local_addr().unwrap();
        for _ in 0..3 {
            for named in [SECOND4, HERE4] {
                socket.send_from(b"x", named.into(), to).unwrap();
                let (_, from) = four.recv_from(&mut buffer).unwrap();
                assert_eq!(from, at(named, port));
            }
        }
        refused(socket, to, Ipv4Addr::new(224, 0, 0, 1), &[libc::EINVAL]);
        refused(socket, to, HERE6, &[libc::EINVAL]);
        // Kernels differ.
        refused(socket, to, PEER4, &[libc::EINVAL, libc::ENETUNREACH]);
    }
    for (socket, port) in [(&bound6, SERVICE), (&any, SERVICE + 1)] {
        let to = six.local_addr().unwrap();
        for _ in 0..3 {
            for named in [SECOND6, HERE6] {
                socket.send_from(b"x", named.into(), to).unwrap();
                let (_, from) = six.recv_from(&mut buffer).unwrap();
                assert_eq!(from, at(named, port));
            }
        }
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        for named in [PEER6, group] {
            refused(socket, to, named, &[libc::EINVAL]);
        }
        refused(socket, to, HERE4, &[libc::EINVAL]);
    }
}

fn refused(socket: &UdpSocket, to: SocketAddr, named: impl Into<IpAddr>, errnos: &[i32]) {
    let named = named.into();
    let error = socket.send_from(b"x", named, to).unwrap_err();
    let found = error.raw_os_error().unwrap_or(0);
    assert!(errnos.contains(&found), "{named}: {error}");
}

/// The scope says by which of several interfaces an answer leaves.
pub fn a_link_local_peer_of_a_connection_has_a_scope() {
    add(LINK_LOCAL);
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let index = Rtnetlink::open().unwrap().link_named(HERE).unwrap().index;
    let ready = || in_peer(|| shell(&format!("ip -6 addr show dev {PEER} scope link -tentative")));
    assert!(wait_until(|| ready().contains("fe80")));
    let _client = in_peer(|| std::net::TcpStream::connect(on_link(LINK_LOCAL)).unwrap());
    let (server, peer) = listener.accept().unwrap();
    let shown = [
        peer,
        server.peer_addr().unwrap(),
        server.local_addr().unwrap(),
    ];
    for address in shown {
        let SocketAddr::V6(v6) = address else {
            panic!("{address}");
        };
        assert!(v6.ip().is_unicast_link_local());
        assert_eq!(v6.scope_id(), index);
    }
}
