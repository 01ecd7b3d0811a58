//! Datagram sockets between two stacks in memory: options, and control messages.

mod processes;

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use libc::{AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, SOCK_DGRAM, SOCK_NONBLOCK, SOL_SOCKET};
use processes::{CLIENT, SERVER, processes};
use tidewall::readiness::Events;
use tidewall_posix::{ControlMessage, Errno, PollFd, Posix, Received};

fn bound(posix: &Posix, domain: i32, port: u16) -> i32 {
    let fd = posix.socket(domain, SOCK_DGRAM | SOCK_NONBLOCK, 0).unwrap();
    let any: IpAddr = match domain {
        AF_INET => [0, 0, 0, 0].into(),
        _ => [0; 16].into(),
    };
    posix.bind(fd, SocketAddr::new(any, port)).unwrap();
    fd
}

fn set(posix: &Posix, fd: i32, level: i32, option: i32, value: i32) -> Result<(), Errno> {
    posix.setsockopt(fd, level, option, &value.to_ne_bytes())
}

fn received(posix: &Posix, fd: i32, room: usize) -> Received {
    let mut polled = [PollFd::new(fd, Events::IN)];
    assert_eq!(posix.poll(&mut polled, 10_000), Ok(1));
    let mut buffer = vec![0; room];
    posix
        .recvmsg(fd, &mut [IoSliceMut::new(&mut buffer)], 0)
        .unwrap()
}

fn message(level: i32, kind: i32, data: &[u8]) -> ControlMessage {
    let data = data.to_vec();
    ControlMessage { level, kind, data }
}

#[test]
fn a_datagram_says_where_it_went_and_how() {
    let (client, server) = processes();
    let (asks, answers) = (bound(&client, AF_INET, 7), bound(&server, AF_INET, 9));
    set(&client, asks, IPPROTO_IP, libc::IP_TOS, 0x48).unwrap();
    set(&client, asks, IPPROTO_IP, libc::IP_TTL, 7).unwrap();
    let to = Some(SocketAddr::from((SERVER, 9)));
    let ask = || client.sendmsg(asks, &[IoSlice::new(b"hello")], 0, to);
    ask().unwrap();
    let found = received(&server, answers, 3);
    assert_eq!((found.bytes, found.flags), (3, libc::MSG_TRUNC));
    assert_eq!(found.control(), []);
    for option in [libc::IP_RECVTOS, libc::IP_RECVTTL, libc::IP_PKTINFO] {
        set(&server, answers, IPPROTO_IP, option, 1).unwrap();
        assert_eq!(
            server.getsockopt(answers, IPPROTO_IP, option),
            Ok(1i32.to_ne_bytes().to_vec())
        );
    }
    ask().unwrap();
    let found = received(&server, answers, 9);
    assert_eq!((found.bytes, found.flags), (5, 0));
    assert_eq!(found.from, Some(SocketAddr::from((CLIENT, 7))));
    let own = SERVER.octets();
    let wanted = [
        message(IPPROTO_IP, libc::IP_PKTINFO, &[[0; 4], own, own].concat()),
        message(IPPROTO_IP, libc::IP_TTL, &7i32.to_ne_bytes()),
        message(IPPROTO_IP, libc::IP_TOS, &[0x48]),
    ];
    assert_eq!(found.control(), wanted);
    set(&server, answers, IPPROTO_IP, libc::IP_PKTINFO, 0).unwrap();
    ask().unwrap();
    assert_eq!(received(&server, answers, 9).control(), wanted[1..]);
}

#[test]
fn a_socket_of_both_families_names_addresses_of_ipv4_as_mapped() {
    let (client, server) = processes();
    let (asks, answers) = (bound(&client, AF_INET, 7), bound(&server, AF_INET6, 9));
    let v6 = [
        libc::IPV6_RECVPKTINFO,
        libc::IPV6_RECVHOPLIMIT,
        libc::IPV6_RECVTCLASS,
    ];
    for option in v6 {
        set(&server, answers, IPPROTO_IPV6, option, 1).unwrap();
        let of_ipv4 = set(&client, asks, IPPROTO_IPV6, option, 1);
        assert_eq!(of_ipv4, Err(Errno(libc::ENOPROTOOPT)));
    }
    set(&server, answers, IPPROTO_IP, libc::IP_RECVTTL, 1).unwrap();
    let to = Some(SocketAddr::from((SERVER, 9)));
    client
        .sendmsg(asks, &[IoSlice::new(b"hello")], 0, to)
        .unwrap();
    let mapped = SERVER.to_ipv6_mapped().octets();
    let wanted = [
        message(
            IPPROTO_IPV6,
            libc::IPV6_PKTINFO,
            &[&mapped[..], &[0; 4]].concat(),
        ),
        message(IPPROTO_IP, libc::IP_TTL, &64i32.to_ne_bytes()),
    ];
    assert_eq!(received(&server, answers, 9).control(), wanted);
}

#[test]
fn an_answer_leaves_from_the_address_that_was_asked() {
    let (client, server) = processes();
    let (asks, answers) = (bound(&client, AF_INET, 7), bound(&server, AF_INET, 9));
    let to = Some(SocketAddr::from((CLIENT, 7)));
    let own = IpAddr::from(SERVER);
    let pieces = [IoSlice::new(b"hel"), IoSlice::new(b"lo")];
    assert_eq!(server.send_from(answers, &pieces, own, to), Ok(5));
    let found = received(&client, asks, 9);
    assert_eq!(found.bytes, 5);
    assert_eq!(found.from, Some(SocketAddr::new(own, 9)));
    let nowhere = server.send_from(answers, &pieces, own, None);
    assert_eq!(nowhere, Err(Errno(libc::EDESTADDRREQ)));
    let other = server.send_from(answers, &pieces, [0; 16].into(), to);
    assert_eq!(other, Ok(5));
    let stream = server.socket(AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let stream = server.send_from(stream, &pieces, own, to);
    assert_eq!(stream, Err(Errno(libc::EOPNOTSUPP)));
}

#[test]
fn options_of_a_datagram_socket_are_its_own() {
    let (client, _) = processes();
    let fd = bound(&client, AF_INET, 7);
    let get = |level, option| {
        let value = client.getsockopt(fd, level, option);
        value.map(|value| i32::from_ne_bytes(*value.first_chunk().unwrap()))
    };
    assert_eq!(get(SOL_SOCKET, libc::SO_PROTOCOL), Ok(libc::IPPROTO_UDP));
    assert_eq!(get(SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
    assert_eq!(get(IPPROTO_IP, libc::IP_TTL), Ok(64));
    for (value, result, after) in [
        (9, Ok(()), 9),
        (0, Err(Errno::INVAL), 9),
        (256, Err(Errno::INVAL), 9),
        (-1, Ok(()), 64),
    ] {
        assert_eq!(set(&client, fd, IPPROTO_IP, libc::IP_TTL, value), result);
        assert_eq!(get(IPPROTO_IP, libc::IP_TTL), Ok(after));
    }
    set(&client, fd, IPPROTO_IP, libc::IP_TOS, 0x20).unwrap();
    assert_eq!(get(IPPROTO_IP, libc::IP_TOS), Ok(0x20));
    // TCP options are rejected.
    let missing = Err(Errno(libc::ENOPROTOOPT));
    assert_eq!(get(SOL_SOCKET, libc::SO_RCVBUF), missing);
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY), missing);
    let timeout = [3i64.to_ne_bytes(), 5i64.to_ne_bytes()].concat();
    client
        .setsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)
        .unwrap();
    let found = client.getsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO);
    assert_eq!(found, Ok(timeout));
    let limit = std::time::Duration::from_micros(3_000_005);
    assert_eq!(client.read_timeout(fd), Some(limit));
    assert_eq!(client.write_timeout(fd), None);
}
