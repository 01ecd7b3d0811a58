//! Errors as a Linux socket gives them.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::{Events, PollFd};
use tidewall::{BindOptions, MtuDiscover, UdpSocket};
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::Side;
use tidewall_wire::checksum::update;

use super::support::*;

/// A far socket connected to the near end's port 5000, and the frame it sent.
fn connected(bed: &Bed) -> (UdpSocket, Vec<u8>) {
    let socket = bed.service();
    socket.connect(at(NEAR4, 5000)).unwrap();
    let tap = bed.far_tap();
    socket.send(b"question").unwrap();
    let sent = tap.take().remove(0).bytes;
    (socket, sent)
}

#[test]
fn a_connected_socket_hears_its_peer_only() {
    let bed = Bed::new();
    let (socket, _) = connected(&bed);
    assert_eq!(socket.peer_addr().unwrap(), at(NEAR4, 5000));
    assert_eq!(socket.local_addr().unwrap(), service());
    bed.inject(&datagram(at(NEAR4, 5001), service(), b"wrong port"));
    bed.inject(&datagram(at(OTHER4, 5000), service(), b"wrong host"));
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"answer"));
    assert_eq!(drain(&socket), [(b"answer".to_vec(), at(NEAR4, 5000))]);
    assert_eq!(bed.driver(Counter::Unowned), 2);
}

#[test]
fn connecting_again_moves_or_keeps_the_flow() {
    let bed = Bed::new();
    let (socket, _) = connected(&bed);
    socket.connect(at(NEAR4, 5000)).unwrap();
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"the same peer"));
    assert_eq!(payloads(&socket), [b"the same peer"]);
    socket.connect(at(NEAR4, 5001)).unwrap();
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"the old peer"));
    bed.inject(&datagram(at(NEAR4, 5001), service(), b"the new peer"));
    assert_eq!(payloads(&socket), [b"the new peer"]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_connected_and_an_unconnected_socket_share_a_port() {
    let bed = Bed::new();
    let shared = BindOptions {
        reuse_address: true,
        ..BindOptions::default()
    };
    let all = UdpSocket::bind_with(&bed.far, anywhere(SERVICE), shared).unwrap();
    let one = UdpSocket::bind_with(&bed.far, anywhere(SERVICE), shared).unwrap();
    all.set_nonblocking(true).unwrap();
    one.set_nonblocking(true).unwrap();
    one.connect(at(NEAR4, 5000)).unwrap();
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"peer"));
    bed.inject(&datagram(at(NEAR4, 5001), service(), b"anyone"));
    assert_eq!(payloads(&one), [b"peer"]);
    assert_eq!(payloads(&all), [b"anyone"]);
    drop(one);
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"peer again"));
    assert_eq!(payloads(&all), [b"peer again"]);
}

#[test]
fn a_socket_bound_to_an_address_leaves_others_alone() {
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, service());
    socket.connect(at(NEAR4, 5000)).unwrap();
    assert_eq!(socket.local_addr().unwrap(), service());
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"mine"));
    bed.inject(&datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"not mine"));
    assert_eq!(payloads(&socket), [b"mine"]);
    assert_eq!(bed.driver(Counter::Unowned), 1);
}

#[test]
fn port_unreachable_refuses_a_connected_socket_once() {
    let bed = Bed::new();
    let (socket, sent) = connected(&bed);
    bed.inject(&unreachable(NEAR4, 3, &sent));
    let error = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(errno(error), libc::ECONNREFUSED);
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.far.snapshot().counters.icmp_errors, 1);
    assert_eq!(bed.outstanding(), 0);
    // The flow goes on.
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"here after all"));
    assert_eq!(payloads(&socket), [b"here after all"]);
}

/// As on Linux: an error is nothing to read. Data before it is.
#[test]
fn a_refused_socket_has_an_error_and_nothing_to_read() {
    let bed = Bed::new();
    let (socket, sent) = connected(&bed);
    let descriptors = Descriptors::new(&bed.far, 16);
    let socket = descriptors.open(socket, Flags::NONBLOCK).unwrap();
    let ready = || {
        let mut set = [PollFd::new(socket, Events::IN)];
        descriptors.poll(&mut set, Some(Duration::ZERO)).unwrap();
        Events::from_bits(u32::from(set[0].revents as u16))
    };
    assert_eq!(ready(), Events::NONE);
    bed.inject(&unreachable(NEAR4, 3, &sent));
    assert_eq!(ready(), Events::ERR);
    let error = descriptors.file(socket).unwrap().take_error().unwrap();
    assert_eq!(error.map(errno), Some(libc::ECONNREFUSED));
    assert_eq!(ready(), Events::NONE);
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"data"));
    assert_eq!(ready(), Events::IN);
}

#[test]
fn every_hard_error_has_its_errno() {
    for (code, expected) in [
        (2, libc::ENOPROTOOPT),
        (3, libc::ECONNREFUSED),
        (7, libc::EHOSTDOWN),
        (9, libc::ENETUNREACH),
        (10, libc::EHOSTUNREACH),
        (13, libc::EHOSTUNREACH),
    ] {
        let bed = Bed::new();
        let (socket, sent) = connected(&bed);
        bed.inject(&unreachable(OTHER4, code, &sent));
        assert_eq!(
            errno(socket.recv(&mut [0; 8]).unwrap_err()),
            expected,
            "code {code}"
        );
    }
}

/// An ICMP message about size from a router: over IPv4 fragmentation needed, over
/// IPv6 packet too big.
fn too_big(mtu: u16, about: &[u8]) -> Vec<u8> {
    let (mut frame, icmp, place, kind) = match about[12] {
        8 => (unreachable(OTHER4, 4, about), 34, 40, [3, 4]),
        _ => (unreachable_v6(0, about), 54, 60, [2, 0]),
    };
    let before = u16::from_be_bytes([frame[icmp], frame[icmp + 1]]);
    frame[icmp..icmp + 2].copy_from_slice(&kind);
    frame[place..place + 2].copy_from_slice(&mtu.to_be_bytes());
    let sum = u16::from_be_bytes([frame[icmp + 2], frame[icmp + 3]]);
    let sum = update(update(sum, before, u16::from_be_bytes(kind)), 0, mtu);
    frame[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn a_path_mtu_is_kept_to_by_all_sockets_and_for_its_destination_only() {
    for (near, far, headers) in [
        (at(NEAR4, 5000), at(FAR4, SERVICE), 28),
        (at(NEAR6, 5000), at(FAR6, SERVICE), 48),
    ] {
        let bed = Bed::new();
        let socket = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
        let tap = bed.far_tap();
        let send = |to, size: usize| socket.send_to(&vec![0; size], to);
        send(near, 1400).unwrap();
        let sent = tap.take().remove(0).bytes;
        bed.inject(&too_big(1300, &sent));
        // It is not reported: the socket has no peer.
        assert_eq!(drain(&socket), []);
        assert_eq!(bed.far.snapshot().counters.icmp_errors, 1);
        // Here is no kernel that could cut it.
        let refused = send(near, 1300 - headers + 1).unwrap_err();
        assert_eq!(errno(refused), libc::EMSGSIZE);
        send(near, 1300 - headers).unwrap();
        let elsewhere = if near.is_ipv4() {
            at(OTHER4, 5000)
        } else {
            at(SECOND6, 1)
        };
        send(elsewhere, 1400).unwrap();
        // A larger one is not believed, a smaller one is.
        for (mtu, longest) in [(1400, 1300), (1290, 1290)] {
            bed.inject(&too_big(mtu, &sent));
            drain(&socket);
            send(near, longest - headers).unwrap();
            assert!(send(near, longest - headers + 1).is_err());
        }
        let other = nonblocking(&bed.far, at(far.ip(), SERVICE + 1));
        other.connect(near).unwrap();
        assert_eq!(other.mtu().unwrap(), 1290);
        assert_eq!(errno(other.send(&[0; 1400]).unwrap_err()), libc::EMSGSIZE);
        other.set_mtu_discover(MtuDiscover::Probe).unwrap();
        other.send(&[0; 1400]).unwrap();
        assert_eq!(errno(other.send(&[0; 1473]).unwrap_err()), libc::EMSGSIZE);
        assert_eq!(bed.outstanding(), 0);
    }
}

#[test]
fn a_connected_socket_hears_of_the_path_mtu_once() {
    let bed = Bed::new();
    let (socket, sent) = connected(&bed);
    bed.inject(&too_big(1300, &sent));
    assert_eq!(errno(socket.recv(&mut [0; 8]).unwrap_err()), libc::EMSGSIZE);
    assert_eq!(drain(&socket), []);
    socket.set_mtu_discover(MtuDiscover::Dont).unwrap();
    bed.inject(&too_big(1200, &sent));
    assert_eq!(drain(&socket), []);
    // One who only sends hears of it too.
    socket.set_mtu_discover(MtuDiscover::Do).unwrap();
    bed.inject(&too_big(1100, &sent));
    bed.advance(Duration::from_millis(20));
    assert_eq!(errno(socket.send(&[0; 1150]).unwrap_err()), libc::EMSGSIZE);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn soft_errors_are_not_reported() {
    let bed = Bed::new();
    let (socket, sent) = connected(&bed);
    for code in [0, 1, 5, 11, 12] {
        bed.inject(&unreachable(OTHER4, code, &sent));
    }
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.far.snapshot().counters.icmp_errors, 5);
}

#[test]
fn icmpv6_reaches_its_flow_too() {
    let bed = Bed::new();
    let socket = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    socket.connect(at(NEAR6, 5000)).unwrap();
    let tap = bed.far_tap();
    socket.send(b"question").unwrap();
    let sent = tap.take().remove(0).bytes;
    bed.inject(&unreachable_v6(4, &sent));
    assert_eq!(
        errno(socket.recv(&mut [0; 8]).unwrap_err()),
        libc::ECONNREFUSED
    );
    assert_eq!(drain(&socket), []);
}

#[test]
fn a_pending_error_waits_behind_data_and_send_reports_it() {
    let bed = Bed::new();
    let (socket, sent) = connected(&bed);
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"first"));
    bed.inject(&unreachable(NEAR4, 3, &sent));
    let mut buffer = [0; 8];
    assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
    // As on Linux, the next call of any kind reports it, once.
    let _ = drain_quietly(&socket);
    bed.inject(&unreachable(NEAR4, 3, &sent));
    let error = socket.recv(&mut buffer).unwrap_err();
    assert_eq!(errno(error), libc::ECONNREFUSED);
    assert_eq!(socket.send(b"again").unwrap(), 5);
    assert!(socket.take_error().unwrap().is_none());
}

fn drain_quietly(socket: &UdpSocket) -> usize {
    (0..20).filter(|_| socket.recv(&mut [0; 8]).is_ok()).count()
}

#[test]
fn an_unconnected_socket_gets_no_error_and_a_forged_one_reaches_nobody() {
    let bed = Bed::new();
    let socket = bed.service();
    let tap = bed.far_tap();
    socket.send_to(b"question", at(NEAR4, 5000)).unwrap();
    let sent = tap.take().remove(0).bytes;
    bed.inject(&unreachable(NEAR4, 3, &sent));
    assert_eq!(drain(&socket), []);
    drop(socket);

    let (socket, sent) = connected(&bed);
    // About another flow of the port.
    let mut other = sent.clone();
    other[36..38].copy_from_slice(&6000u16.to_be_bytes());
    bed.inject(&unreachable(NEAR4, 3, &other));
    // Damaged.
    let mut damaged = unreachable(NEAR4, 3, &sent);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    bed.inject(&damaged);
    // Quoting less than the ports.
    let mut short = unreachable(NEAR4, 3, &sent);
    short.truncate(14 + 20 + 8 + 20 + 2);
    short[16..18].copy_from_slice(&50u16.to_be_bytes());
    mend_v4(&mut short);
    bed.inject(&short);
    assert_eq!(drain(&socket), []);
    assert_eq!(bed.protocol("icmp-checksum"), 1);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn mistakes_of_the_caller_have_their_errno() {
    let bed = Bed::new();
    let socket = bed.near_socket();
    assert_eq!(
        errno(socket.send(b"to whom?").unwrap_err()),
        libc::EDESTADDRREQ
    );
    assert_eq!(errno(socket.peer_addr().unwrap_err()), libc::ENOTCONN);
    assert_eq!(
        errno(socket.send_to(b"x", at(FAR4, 0)).unwrap_err()),
        libc::EINVAL
    );
    let long = vec![0; 65_508];
    assert_eq!(
        errno(socket.send_to(&long, service()).unwrap_err()),
        libc::EMSGSIZE
    );
    // There is no kernel here that could cut it into fragments.
    assert_eq!(
        errno(socket.send_to(&long[..1473], service()).unwrap_err()),
        libc::EMSGSIZE
    );
    assert_eq!(
        errno(socket.send_to(b"x", at(FAR6, SERVICE)).unwrap_err()),
        libc::EAFNOSUPPORT
    );
    assert_eq!(errno(socket.recv(&mut [0; 8]).unwrap_err()), libc::EAGAIN);
    assert_eq!(
        errno(socket.set_read_timeout(Some(Duration::ZERO)).unwrap_err()),
        libc::EINVAL
    );
    assert_eq!(
        errno(socket.connect(at(FAR4, 0)).unwrap_err()),
        libc::EINVAL
    );
    assert!(socket.take_error().unwrap().is_none());
    // Nothing of it left, or hurt the socket.
    assert_eq!(bed.link.wire_counters(Side::A).sent, 0);
    socket.send_to(b"x", service()).unwrap();
    assert_eq!(bed.link.wire_counters(Side::A).sent, 1);
}

#[test]
fn a_port_has_one_owner_unless_both_share() {
    let bed = Bed::new();
    let first = bed.service();
    let again = |how| UdpSocket::bind_with(&bed.far, anywhere(SERVICE), how).map(drop);
    assert_eq!(
        errno(again(BindOptions::default()).unwrap_err()),
        libc::EADDRINUSE
    );
    // Linux: both must have set it.
    let shared = BindOptions {
        reuse_port: true,
        ..BindOptions::default()
    };
    assert_eq!(errno(again(shared).unwrap_err()), libc::EADDRINUSE);
    drop(first);
    let _first = UdpSocket::bind_with(&bed.far, anywhere(SERVICE), shared).unwrap();
    again(shared).unwrap();
    assert_eq!(
        errno(again(BindOptions::default()).unwrap_err()),
        libc::EADDRINUSE
    );
}

#[test]
fn ports_of_the_stacks_choice_differ() {
    let bed = Bed::new();
    let sockets: Vec<UdpSocket> = (0..50).map(|_| bed.near_socket()).collect();
    let mut ports: Vec<u16> = sockets
        .iter()
        .map(|socket| socket.local_addr().unwrap().port())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
    assert!(ports[0] >= 32_768);
}

#[test]
fn a_foreign_address_cannot_be_bound() {
    let bed = Bed::new();
    let bind = |address: SocketAddr| UdpSocket::bind(&bed.far, address).map(drop);
    assert_eq!(
        errno(bind(at(OTHER4, SERVICE)).unwrap_err()),
        libc::EADDRNOTAVAIL
    );
    bind(service()).unwrap();
}

#[test]
fn a_read_timeout_ends_in_eagain() {
    let bed = Bed::new();
    let socket = UdpSocket::bind(&bed.far, anywhere(SERVICE)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    assert_eq!(socket.read_timeout(), Some(Duration::from_millis(5)));
    let start = Instant::now();
    assert_eq!(errno(socket.recv(&mut [0; 8]).unwrap_err()), libc::EAGAIN);
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert!(start.elapsed() < Duration::from_secs(2));
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"in time"));
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 7);
}

#[test]
fn a_device_that_goes_down_says_so_and_comes_back() {
    let bed = Bed::new();
    let (client, socket) = (bed.near_socket(), bed.service());
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"unseen"));
    bed.link.set_down(Side::B, true);
    assert_eq!(errno(socket.recv(&mut [0; 8]).unwrap_err()), libc::ENETDOWN);
    assert_eq!(
        errno(socket.send_to(b"x", at(NEAR4, 5000)).unwrap_err()),
        libc::ENETDOWN
    );
    client.send_to(b"into the void", service()).unwrap();
    assert_eq!(bed.link.port_counters(Side::B).down, 2);
    bed.link.set_down(Side::B, false);
    client.send_to(b"back again", service()).unwrap();
    assert_eq!(payloads(&socket), [b"back again"]);
    socket
        .send_to(b"answer", at(NEAR4, client.local_addr().unwrap().port()))
        .unwrap();
    // The datagram whose sending failed was in the ring, as with a device.
    assert_eq!(payloads(&client), [b"answer"]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn what_arrived_before_the_device_went_down_is_still_delivered() {
    let bed = Bed::new();
    let (socket, other) = (bed.service(), nonblocking(&bed.far, anywhere(SERVICE + 1)));
    bed.inject(&datagram(at(NEAR4, 5000), service(), b"before"));
    // The other's poll takes it into the channel.
    assert_eq!(drain(&other), []);
    bed.link.set_down(Side::B, true);
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 6);
    assert_eq!(errno(socket.recv(&mut [0; 8]).unwrap_err()), libc::ENETDOWN);
}
