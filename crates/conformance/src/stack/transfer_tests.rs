//! What writers and readers see beyond bytes.

use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp;
use tidewall_wire::tcp::Flags;

use super::tests::{Pair, exchange, pair};
use super::*;

/// Length and PSH of each packet with data that the client sends, which arrive.
fn sent(pair: &mut Pair) -> Vec<(usize, bool)> {
    let mut packets = Vec::new();
    while let Some((_, packet)) = pair.client.packet_out() {
        let segment = tcp::input(&packet, 20, &InputOptions::default()).unwrap();
        let push = segment.header.flags.contains(Flags::PSH);
        if !segment.payload.is_empty() {
            packets.push((segment.payload.len(), push));
        }
        pair.server.packet_in(&packet);
    }
    packets
}

/// What the server acknowledges arrives.
fn acknowledge(pair: &mut Pair) {
    let delay = pair.server.now() + Duration::from_millis(50);
    pair.server.advance(delay);
    while let Some((_, packet)) = pair.server.packet_out() {
        pair.client.packet_in(&packet);
    }
}

#[test]
fn what_the_engine_gives_is_what_leaves() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let (client, fd) = (&mut pair.client, pair.to_server);
    assert_eq!(client.write(fd, &[1; 3000]), Ok(3000));
    let mss = usize::try_from(client.tcp_info(fd).unwrap().snd_mss).unwrap();
    let segments = [(mss, false), (mss, false), (3000 - 2 * mss, true)];
    assert_eq!(sent(&mut pair), segments);
    acknowledge(&mut pair);
    // With a device that cuts them, a burst is one packet.
    pair.client.set_segmentation_offload(true);
    let address = pair.client.peer_address(fd).unwrap();
    let fd = pair
        .client
        .socket(libc::AF_INET, libc::SOCK_STREAM, 0)
        .unwrap();
    assert_eq!(pair.client.connect(fd, address), Err(Failure::Blocked));
    exchange(&mut pair.client, &mut pair.server);
    assert_eq!(pair.client.write(fd, &[2; 3000]), Ok(3000));
    assert_eq!(sent(&mut pair), [(3000, true)]);
}

#[test]
fn more_is_for_one_call() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let (client, fd) = (&mut pair.client, pair.to_server);
    assert_eq!(client.send(fd, b"head", libc::MSG_MORE), Ok(4));
    assert_eq!(sent(&mut pair), []);
    assert_eq!(pair.client.send(pair.to_server, b"body", 0), Ok(4));
    assert_eq!(sent(&mut pair), [(8, true)]);
}

#[test]
fn a_writer_is_woken_when_a_third_is_free() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let (client, fd) = (&mut pair.client, pair.to_server);
    let bytes = 20_000i32.to_ne_bytes();
    client
        .setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)
        .unwrap();
    let size = client.getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF);
    assert_eq!(size, Ok(40_000i32.to_ne_bytes().to_vec()));
    let data = vec![4; 100_000];
    let taken = client.send(fd, &data, 0).unwrap();
    // What the engine's buffer holds, which what was sent stays in.
    assert_eq!(taken, 20_000);
    assert_eq!(client.send(fd, &data, 0), Err(Failure::Blocked));
    let changes = client.changes();
    let mut poll = [PollFd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    }];
    assert_eq!(client.poll(&mut poll), Ok(0));
    exchange(&mut pair.client, &mut pair.server);
    acknowledge(&mut pair);
    assert_ne!(pair.client.changes(), changes);
    assert_eq!(pair.client.poll(&mut poll), Ok(1));
    assert!(pair.client.send(fd, &data, 0).is_ok());
}

#[test]
fn what_waits_to_be_sent_keeps_a_writer_waiting() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let (client, fd) = (&mut pair.client, pair.to_server);
    let lowat = 4000i32.to_ne_bytes();
    client
        .setsockopt(fd, libc::IPPROTO_TCP, 25, &lowat)
        .unwrap();
    // Ten segments may leave.
    assert_eq!(client.write(fd, &[1; 18_000]), Ok(18_000));
    assert!(client.tcp_info(fd).unwrap().notsent_bytes < 4000);
    let mut poll = [PollFd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    }];
    assert_eq!(client.poll(&mut poll), Ok(0));
    exchange(&mut pair.client, &mut pair.server);
    acknowledge(&mut pair);
    assert_eq!(pair.client.poll(&mut poll), Ok(1));
}

#[test]
fn what_is_left_is_told_with_what_is_read() {
    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let on = 1i32.to_ne_bytes();
    let (fd, inquiry) = (pair.to_client, 36);
    pair.server
        .setsockopt(fd, libc::IPPROTO_TCP, inquiry, &on)
        .unwrap();
    pair.client.write(pair.to_server, &[7; 50]).unwrap();
    pair.client.shutdown(pair.to_server, libc::SHUT_WR).unwrap();
    exchange(&mut pair.client, &mut pair.server);
    let mut left = |bytes: usize| {
        let received = pair.server.receive(fd, &mut vec![0; bytes], 0).unwrap();
        (received.bytes, received.left)
    };
    assert_eq!(left(20), (20, Some(30)));
    // The end of the stream counts as a byte.
    assert_eq!(left(30), (30, Some(1)));
    assert_eq!(left(30), (0, Some(1)));
}

#[test]
fn a_listener_announces_the_segment_it_was_told() {
    for (domain, to, expected) in [
        (libc::AF_INET, "192.0.2.2:8080", 1000),
        (libc::AF_INET6, "[2001:db8::2]:8080", 1000),
    ] {
        let mut pair = pair(domain, to);
        let size = 1000i32.to_ne_bytes();
        let listener = Host::FIRST_FD;
        pair.server
            .setsockopt(listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &size)
            .unwrap();
        let fd = pair.client.socket(domain, libc::SOCK_STREAM, 0).unwrap();
        let _ = pair.client.connect(fd, to.parse().unwrap());
        exchange(&mut pair.client, &mut pair.server);
        // Timestamps take twelve.
        let info = pair.client.tcp_info(fd).unwrap();
        assert_eq!(info.snd_mss, expected - 12);
    }
}

#[test]
fn a_device_without_room_leaves_packets_with_the_engine() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let mut pair = pair(libc::AF_INET, "192.0.2.2:8080");
    let room = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&room);
    pair.client.set_room(move || asked.load(Ordering::Relaxed));
    let (client, fd) = (&mut pair.client, pair.to_server);
    assert_eq!(client.write(fd, b"held"), Ok(4));
    let unsent = |client: &mut Host| client.ioctl(fd, 0x894b, 0);
    client.advance(client.now() + Duration::from_secs(5));
    assert_eq!(client.packet_out(), None);
    assert_eq!(unsent(client), Ok(4));
    room.store(true, Ordering::Relaxed);
    let now = client.now() + Duration::from_millis(1);
    client.advance(now);
    assert_eq!(unsent(client), Ok(0));
    let (at, packet) = client.packet_out().unwrap();
    assert_eq!(at, now);
    assert!(packet.ends_with(b"held"));
    // What was in flight is sent again by its timer, once there is room.
    room.store(false, Ordering::Relaxed);
    client.advance(now + Duration::from_secs(5));
    assert!(!client.has_packet_out());
    room.store(true, Ordering::Relaxed);
    let (at, packet) = client.packet_out().unwrap();
    assert_eq!(at, now + Duration::from_secs(5));
    assert!(packet.ends_with(b"held"));
    assert_eq!(client.packet_out(), None);
}
