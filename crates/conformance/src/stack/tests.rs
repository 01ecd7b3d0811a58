//! Two hosts, connected by hand.

use core::time::Duration;

use super::*;

const LISTEN: &str = "[::]:8080";

fn host(addresses: &[&str]) -> Host {
    Host::new(HostConfig {
        addresses: addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
        ..HostConfig::default()
    })
}

/// Carries packets both ways until none is left.
pub(super) fn exchange(a: &mut Host, b: &mut Host) {
    while a.has_packet_out() || b.has_packet_out() {
        while let Some((_, packet)) = a.packet_out() {
            b.packet_in(&packet);
        }
        while let Some((_, packet)) = b.packet_out() {
            a.packet_in(&packet);
        }
    }
}

pub(super) struct Pair {
    pub(super) client: Host,
    pub(super) server: Host,
    pub(super) to_server: Fd,
    pub(super) to_client: Fd,
}

/// A connection from a client of `domain` to a dual-stack server.
pub(super) fn pair(domain: i32, to: &str) -> Pair {
    let mut client = host(&["192.0.2.1", "2001:db8::1"]);
    let mut server = host(&["192.0.2.2", "2001:db8::2"]);
    let listener = server
        .socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
        .unwrap();
    server.bind(listener, LISTEN.parse().unwrap()).unwrap();
    server.listen(listener, 5).unwrap();
    let eagain = Failure::Errno(libc::EAGAIN);
    assert_eq!(server.accept(listener), Err(eagain));
    let to_server = client.socket(domain, libc::SOCK_STREAM, 0).unwrap();
    let to = to.parse().unwrap();
    assert_eq!(client.connect(to_server, to), Err(Failure::Blocked));
    exchange(&mut client, &mut server);
    client.connect(to_server, to).unwrap();
    let again = client.connect(to_server, to);
    assert_eq!(again, Err(Failure::Errno(libc::EISCONN)));
    let (to_client, peer) = server.accept(listener).unwrap();
    let ours = client.local_address(to_server).unwrap();
    assert_eq!(peer.ip().to_canonical(), ours.ip().to_canonical());
    assert!(peer.is_ipv6());
    Pair {
        client,
        server,
        to_server,
        to_client,
    }
}

#[test]
fn both_families_and_the_mapped_one_carry_bytes() {
    for (domain, to) in [
        (libc::AF_INET, "192.0.2.2:8080"),
        (libc::AF_INET6, "[2001:db8::2]:8080"),
        (libc::AF_INET6, "[::ffff:192.0.2.2]:8080"),
    ] {
        let mut pair = pair(domain, to);
        assert_eq!(pair.client.write(pair.to_server, b"request"), Ok(7));
        exchange(&mut pair.client, &mut pair.server);
        let mut buffer = [0; 100];
        let server = &mut pair.server;
        assert_eq!(server.ioctl(pair.to_client, libc::FIONREAD, 0), Ok(7));
        assert_eq!(
            server.recv(pair.to_client, &mut buffer, libc::MSG_PEEK),
            Ok(7)
        );
        assert_eq!(server.read(pair.to_client, &mut buffer), Ok(7));
        assert_eq!(&buffer[..7], b"request");
        let blocked = server.read(pair.to_client, &mut buffer);
        assert_eq!(blocked, Err(Failure::Blocked));
        let info = server.tcp_info(pair.to_client).unwrap();
        assert_eq!(info.field("tcpi_state"), Some(1));
        assert_eq!(info.field("tcpi_snd_cwnd"), Some(10));
        let advertised = if to.contains("db8") { 1440 } else { 1460 };
        assert_eq!(info.advmss, advertised);
        // The layout of `linux/tcp.h`.
        let bytes = info.to_bytes();
        assert_eq!(bytes.len(), 280);
        assert_eq!(bytes[80..84], info.snd_cwnd.to_ne_bytes());
        assert_eq!(bytes[120..128], info.bytes_acked.to_ne_bytes());
    }
}

#[test]
fn both_ends_close_and_one_waits() {
    let Pair {
        mut client,
        mut server,
        to_server,
        to_client,
    } = pair(libc::AF_INET, "192.0.2.2:8080");
    client.shutdown(to_server, libc::SHUT_WR).unwrap();
    let pipe = client.write(to_server, b"late");
    assert_eq!(pipe, Err(Failure::Errno(libc::EPIPE)));
    exchange(&mut client, &mut server);
    assert_eq!(server.read(to_client, &mut [0; 8]), Ok(0));
    server.close(to_client).unwrap();
    exchange(&mut client, &mut server);
    client.close(to_server).unwrap();
    assert!(server.connections.is_empty());
    assert_eq!(client.time_wait.len(), 1);
    client.advance(Duration::from_secs(61));
    assert!(client.time_wait.is_empty());
    let bad = client.read(to_server, &mut [0; 8]);
    assert_eq!(bad, Err(Failure::Errno(libc::EBADF)));
}

#[test]
fn nobody_listens() {
    let mut client = host(&["192.0.2.1"]);
    let mut server = host(&["192.0.2.2"]);
    let fd = client
        .socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)
        .unwrap();
    let to = "192.0.2.2:80".parse().unwrap();
    let progress = client.connect(fd, to);
    assert_eq!(progress, Err(Failure::Errno(libc::EINPROGRESS)));
    let already = client.connect(fd, to);
    assert_eq!(already, Err(Failure::Errno(libc::EALREADY)));
    exchange(&mut client, &mut server);
    let mut fds = [PollFd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    }];
    assert_eq!(client.poll(&mut fds), Ok(1));
    let told = libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
    assert_eq!(fds[0].revents, told);
    let error = client.getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    assert_eq!(error, Ok(libc::ECONNREFUSED.to_ne_bytes().to_vec()));
}

#[test]
fn an_edge_is_told_once() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let set = pair.server.epoll_create(1).unwrap();
    let event = EpollEvent {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        data: 7,
    };
    let add = libc::EPOLL_CTL_ADD;
    pair.server
        .epoll_ctl(set, add, pair.to_client, event)
        .unwrap();
    let told = |pair: &mut Pair| {
        let events = pair.server.epoll_wait(set, 8).unwrap();
        events.iter().map(|event| event.data).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut pair), []);
    for _ in 0..2 {
        pair.client.write(pair.to_server, b"x").unwrap();
        exchange(&mut pair.client, &mut pair.server);
        assert_eq!(told(&mut pair), [7]);
        assert_eq!(told(&mut pair), []);
    }
}

#[test]
fn timers_expire_at_their_times() {
    let mut client = host(&["192.0.2.1"]);
    let fd = client.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let to = "192.0.2.2:80".parse().unwrap();
    assert_eq!(client.connect(fd, to), Err(Failure::Blocked));
    client.advance(Duration::from_secs(300));
    let mut left = Vec::new();
    while let Some((at, _)) = client.packet_out() {
        left.push(at.as_secs());
    }
    assert_eq!(left, [0, 1, 3, 7, 15, 31, 63]);
    let timed_out = client.connect(fd, to);
    assert_eq!(timed_out, Err(Failure::Errno(libc::ETIMEDOUT)));
}

#[test]
fn options_are_those_that_sockets_have() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let (host, fd) = (&mut pair.client, pair.to_server);
    let unknown = Err(Failure::Errno(libc::ENOPROTOOPT));
    let one = 1i32.to_ne_bytes();
    for (level, option) in [
        (libc::SOL_SOCKET, libc::SO_MARK),
        (libc::IPPROTO_IP, libc::IP_FREEBIND),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
        (libc::IPPROTO_TCP, 250),
    ] {
        assert_eq!(host.setsockopt(fd, level, option, &one), unknown);
        assert_eq!(host.getsockopt(fd, level, option).err(), unknown.err());
    }
    let tcp = libc::IPPROTO_TCP;
    for size in [-1, 87, 32_768, 65_536 + 1000] {
        let size = i32::to_ne_bytes(size);
        let set = host.setsockopt(fd, tcp, libc::TCP_MAXSEG, &size);
        assert_eq!(set, Err(Failure::Errno(libc::EINVAL)));
    }
    // The algorithm that runs.
    let name = |host: &mut Host| host.getsockopt(fd, tcp, libc::TCP_CONGESTION).unwrap();
    assert_eq!(name(host), b"cubic\0\0\0\0\0\0\0\0\0\0\0");
    let set = host.setsockopt(fd, tcp, libc::TCP_CONGESTION, b"bbr");
    assert_eq!(set, Err(Failure::Errno(libc::ENOENT)));
    host.setsockopt(fd, tcp, libc::TCP_CONGESTION, b"reno")
        .unwrap();
    assert_eq!(name(host), b"reno\0\0\0\0\0\0\0\0\0\0\0\0");
    let value = |host: &mut Host| {
        let value = host.getsockopt(fd, tcp, libc::TCP_LINGER2).unwrap();
        i32::from_ne_bytes(value.try_into().unwrap())
    };
    for (set, got) in [(0, 60), (5, 5), (1000, 120), (-7, -1)] {
        let set = i32::to_ne_bytes(set);
        host.setsockopt(fd, tcp, libc::TCP_LINGER2, &set).unwrap();
        assert_eq!(value(host), got);
    }
}
