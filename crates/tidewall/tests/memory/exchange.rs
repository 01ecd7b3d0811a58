//! Datagrams that arrive as they should.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidewall::{BindOptions, Received, UdpSocket};
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{LinkConfig, Side};
use tidewall_protocol::udp::Checksum;

use super::support::*;

/// Answers everything with itself; how many there were.
fn echo(socket: &UdpSocket) -> usize {
    let asked = drain(socket);
    for (payload, source) in &asked {
        assert_eq!(socket.send_to(payload, *source).unwrap(), payload.len());
    }
    asked.len()
}

#[test]
fn echo_over_ipv4_in_every_size_that_fits() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    for size in [0, 1, 2, 7, 8, 255, 256, 257, 1471, 1472] {
        let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
        assert_eq!(client.send_to(&payload, service_address()).unwrap(), size);
        assert_eq!(echo(&service), 1, "{size} bytes");
        assert_eq!(
            drain(&client),
            [(payload, service_address())],
            "{size} bytes"
        );
    }
    assert_eq!(bed.outstanding(), 0);
    assert_eq!(bed.far.snapshot().counters.protocol.len(), 0);
}

fn service_address() -> SocketAddr {
    service()
}

#[test]
fn echo_over_ipv6_in_every_size_that_fits() {
    let bed = Bed::new();
    let client = nonblocking(&bed.near, at(NEAR6, 0));
    let service = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    for size in [0, 1, 2, 7, 8, 256, 257, 1451, 1452] {
        let payload: Vec<u8> = (0..size).map(|n| (n * 7) as u8).collect();
        client.send_to(&payload, at(FAR6, SERVICE)).unwrap();
        assert_eq!(echo(&service), 1, "{size} bytes");
        assert_eq!(
            drain(&client),
            [(payload, at(FAR6, SERVICE))],
            "{size} bytes"
        );
    }
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_dual_stack_socket_names_ipv4_peers_as_mapped_and_can_answer_them() {
    let bed = Bed::new();
    let client = bed.near_socket();
    let service = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE));
    client.send_to(b"four", self::service()).unwrap();
    let asked = drain(&service);
    let mapped = SocketAddr::new(
        NEAR4.to_ipv6_mapped().into(),
        client.local_addr().unwrap().port(),
    );
    assert_eq!(asked, [(b"four".to_vec(), mapped)]);
    service.send_to(b"back", mapped).unwrap();
    assert_eq!(drain(&client), [(b"back".to_vec(), self::service())]);
}

/// Sends everything back that a socket has got, from the address asked.
fn answer(service: &UdpSocket) {
    while let Ok(1..) = service.recv_batch(8, |asked| {
        let Received { local, source, .. } = asked;
        assert_eq!(local, asked.destination.ip());
        service.queue_from(asked.payload, local, source).unwrap();
    }) {}
    service.flush().unwrap();
}

#[test]
fn answers_come_from_the_address_that_was_asked() {
    let bed = Bed::new();
    let four = nonblocking(&bed.near, anywhere(0));
    let six = nonblocking(&bed.near, at(NEAR6, 0));
    // Bound to both families, to one, and to an address of its own.
    for (bound, asked) in [
        (Ipv6Addr::UNSPECIFIED.into(), FAR4.into()),
        (Ipv6Addr::UNSPECIFIED.into(), SECOND4.into()),
        (Ipv6Addr::UNSPECIFIED.into(), FAR6.into()),
        (Ipv6Addr::UNSPECIFIED.into(), SECOND6.into()),
        (Ipv4Addr::UNSPECIFIED.into(), SECOND4.into()),
        (IpAddr::from(SECOND4), IpAddr::from(SECOND4)),
    ] {
        let service = nonblocking(&bed.far, at(bound, SERVICE));
        let client = if asked.is_ipv4() { &four } else { &six };
        client.send_to(b"?", at(asked, SERVICE)).unwrap();
        answer(&service);
        assert_eq!(drain(client), [(b"?".to_vec(), at(asked, SERVICE))]);
    }
}

#[test]
fn a_source_that_is_named_wins_and_must_be_ours() {
    let bed = Bed::new();
    let client = bed.near_socket();
    let to = client.local_addr().unwrap();
    let bound = nonblocking(&bed.far, at(FAR4, SERVICE));
    let connected = nonblocking(&bed.far, at(FAR4, SERVICE + 1));
    connected.connect(to).unwrap();
    let any = nonblocking(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE + 2));
    for (socket, port) in [
        (&bound, SERVICE),
        (&connected, SERVICE + 1),
        (&any, SERVICE + 2),
    ] {
        for (named, seen) in [
            (SECOND4.into(), SECOND4),
            (SECOND4.to_ipv6_mapped().into(), SECOND4),
            (IpAddr::from(Ipv4Addr::UNSPECIFIED), FAR4),
            (Ipv6Addr::UNSPECIFIED.into(), FAR4),
        ] {
            assert_eq!(socket.send_from(b"x", named, to).unwrap(), 1);
            assert_eq!(drain(&client), [(b"x".to_vec(), at(seen, port))], "{named}");
        }
        for (foreign, expected) in [
            (IpAddr::from(NEAR4), libc::ENETUNREACH),
            (Ipv4Addr::LOCALHOST.into(), libc::EINVAL),
            (Ipv4Addr::new(224, 0, 0, 1).into(), libc::EINVAL),
            (FAR6.into(), libc::EINVAL),
        ] {
            let error = socket.send_from(b"x", foreign, to).unwrap_err();
            assert_eq!(errno(error), expected, "{foreign}");
        }
        assert_eq!(drain(&client), []);
    }
}

fn sockets_of_one_family(bed: &Bed) -> (UdpSocket, UdpSocket) {
    let four = nonblocking(&bed.far, anywhere(SERVICE));
    let how = BindOptions {
        only_v6: true,
        ..BindOptions::default()
    };
    let six = UdpSocket::bind_with(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE), how).unwrap();
    six.set_nonblocking(true).unwrap();
    (four, six)
}

#[test]
fn an_ipv4_socket_never_gets_ipv6() {
    let bed = Bed::new();
    let four = bed.service();
    bed.inject(&datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"six"));
    bed.inject(&datagram(at(NEAR4, 5000), self::service(), b"four"));
    assert_eq!(drain(&four), [(b"four".to_vec(), at(NEAR4, 5000))]);
    assert_eq!(bed.outstanding(), 0);
    assert_eq!(bed.driver(Counter::Unowned), 1);
}

#[test]
fn a_port_may_have_one_socket_a_family() {
    let bed = Bed::new();
    let (four, six) = sockets_of_one_family(&bed);
    for round in 0..3 {
        bed.inject(&datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"six"));
        bed.inject(&datagram(at(NEAR4, 5000), self::service(), b"four"));
        assert_eq!(
            drain(&four),
            [(b"four".to_vec(), at(NEAR4, 5000))],
            "round {round}"
        );
        assert_eq!(
            drain(&six),
            [(b"six".to_vec(), at(NEAR6, 5000))],
            "round {round}"
        );
    }
    drop(six);
    bed.inject(&datagram(at(NEAR4, 5000), self::service(), b"four"));
    assert_eq!(payloads(&four), [b"four"]);
    let how = BindOptions {
        only_v6: true,
        ..BindOptions::default()
    };
    let six = UdpSocket::bind_with(&bed.far, at(Ipv6Addr::UNSPECIFIED, SERVICE), how).unwrap();
    six.set_nonblocking(true).unwrap();
    drop(four);
    bed.inject(&datagram(at(NEAR6, 5000), at(FAR6, SERVICE), b"six"));
    assert_eq!(payloads(&six), [b"six"]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn batches_are_sent_with_one_flush_and_received_in_order() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    let batch: Vec<Vec<u8>> = (0..100).map(number).collect();
    let sent = client.send_batch(batch.iter().map(|payload| (&payload[..], self::service())));
    assert_eq!(sent.unwrap(), 100);
    assert_eq!(numbers(&service), (0..100).collect::<Vec<_>>());

    client.queue_to(b"waits", self::service()).unwrap();
    assert_eq!(drain(&service), []);
    client.flush().unwrap();
    assert_eq!(payloads(&service), [b"waits"]);
}

#[test]
fn a_batch_stops_at_the_first_datagram_that_cannot_be_sent() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    let good = (&b"good"[..], self::service());
    let bad = (&b"bad"[..], at(FAR4, 0));
    assert_eq!(client.send_batch([good, bad, good]).unwrap(), 1);
    assert_eq!(
        errno(client.send_batch([bad, good]).unwrap_err()),
        libc::EINVAL
    );
    assert_eq!(payloads(&service), [b"good"]);
}

#[test]
fn a_receive_batch_keeps_to_its_limit() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    for n in 0..10 {
        client.send_to(&number(n), self::service()).unwrap();
    }
    let mut found = Vec::new();
    assert_eq!(
        service.recv_batch(0, |_| panic!("asked for none")).unwrap(),
        0
    );
    for expected in [3, 3, 3, 1] {
        let got = service
            .recv_batch(3, |r| found.push(read_number(r.payload)))
            .unwrap();
        assert_eq!(got, expected);
    }
    assert_eq!(found, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_socket_may_be_used_from_inside_its_own_receive() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    for n in 0..6 {
        client.send_to(&number(n), self::service()).unwrap();
    }
    let mut inner = Vec::new();
    let mut outer = Vec::new();
    service
        .recv_batch(2, |received| {
            outer.push(read_number(received.payload));
            service.queue_to(received.payload, received.source).unwrap();
            let _ = service.recv_batch(1, |nested| inner.push(read_number(nested.payload)));
        })
        .unwrap();
    service.flush().unwrap();
    assert_eq!((outer, inner), (vec![0, 1], vec![2, 3]));
    assert_eq!(numbers(&service), [4, 5]);
    assert_eq!(numbers(&client), [0, 1]);
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn a_long_datagram_is_cut_to_the_buffer_and_the_rest_is_gone() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    client.send_to(b"0123456789", self::service()).unwrap();
    client.send_to(b"next", self::service()).unwrap();
    let mut buffer = [b'-'; 4];
    let (length, source) = service.recv_from(&mut buffer).unwrap();
    assert_eq!((length, &buffer), (4, b"0123"));
    assert_eq!(source, at(NEAR4, client.local_addr().unwrap().port()));
    assert_eq!(service.recv(&mut buffer).unwrap(), 4);
    assert_eq!(&buffer, b"next");
    client.send_to(b"gone", self::service()).unwrap();
    assert_eq!(service.recv(&mut []).unwrap(), 0);
    assert_eq!(drain(&service), []);
}

#[test]
fn empty_datagrams_are_datagrams() {
    let bed = Bed::new();
    let (client, service) = (bed.near_socket(), bed.service());
    client.send_to(b"", self::service()).unwrap();
    client.send_to(b"", self::service()).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(service.recv(&mut buffer).unwrap(), 0);
    assert_eq!(service.recv(&mut buffer).unwrap(), 0);
    assert_eq!(
        service.recv(&mut buffer).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn service_class_and_hops_travel_both_ways() {
    let bed = Bed::new();
    let tap = bed.link.tap();
    for (client, service, to) in [
        (bed.near_socket(), bed.service(), self::service()),
        (
            nonblocking(&bed.near, at(NEAR6, 0)),
            nonblocking(&bed.far, at(FAR6, SERVICE + 1)),
            at(FAR6, SERVICE + 1),
        ),
    ] {
        client.send_to(b"plain", to).unwrap();
        client.set_tos(0xb8).unwrap();
        client.set_ttl(3).unwrap();
        client.send_to(b"marked", to).unwrap();
        let mut seen = Vec::new();
        while service
            .recv_batch(8, |r| {
                seen.push((r.traffic_class, r.hop_limit, r.destination))
            })
            .is_ok()
        {}
        assert_eq!(seen, [(0, 64, to), (0xb8, 3, to)]);
        let frames: Vec<Vec<u8>> = tap
            .take()
            .into_iter()
            .map(|captured| captured.bytes)
            .collect();
        let on_the_wire = |frame: &[u8]| match frame[14] >> 4 {
            4 => (frame[15], frame[22]),
            _ => (frame[14] << 4 | frame[15] >> 4, frame[21]),
        };
        assert_eq!(on_the_wire(&frames[0]), (0, 64));
        assert_eq!(on_the_wire(&frames[1]), (0xb8, 3));
    }
    let client = bed.near_socket();
    assert_eq!(errno(client.set_ttl(0).unwrap_err()), libc::EINVAL);
    assert_eq!(errno(client.set_priority(7).unwrap_err()), libc::EINVAL);
    assert_eq!(
        errno(client.set_receive_limit(0).unwrap_err()),
        libc::EINVAL
    );
    assert_eq!(
        errno(client.set_receive_limit(65_537).unwrap_err()),
        libc::EINVAL
    );
}

#[test]
fn a_checksum_left_to_offload_is_no_damage_here() {
    let bed = Bed::new();
    let service = bed.service();
    let six = nonblocking(&bed.far, at(FAR6, SERVICE + 1));
    bed.inject(&datagram_with(
        at(NEAR4, 5000),
        self::service(),
        b"left to offload",
        |how| {
            how.checksum = Checksum::Offload;
        },
    ));
    bed.inject(&datagram_with(
        at(NEAR4, 5000),
        self::service(),
        b"none",
        |how| {
            how.checksum = Checksum::None;
        },
    ));
    bed.inject(&datagram_with(
        at(NEAR6, 5000),
        at(FAR6, SERVICE + 1),
        b"left too",
        |how| {
            how.checksum = Checksum::Offload;
        },
    ));
    assert_eq!(payloads(&service), [&b"left to offload"[..], b"none"]);
    assert_eq!(payloads(&six), [b"left too"]);
    assert!(bed.far.snapshot().counters.protocol.is_empty());
}

#[test]
fn what_leaves_has_correct_checksums_with_and_without_offload() {
    for checksum_offload in [false, true] {
        let bed = Bed::with(LinkConfig {
            checksum_offload,
            ..LinkConfig::default()
        });
        let tap = bed.link.tap();
        let (client, six) = (bed.near_socket(), nonblocking(&bed.near, at(NEAR6, 0)));
        for size in [0, 1, 255, 256, 257, 999, 1400] {
            let payload = vec![0xa5; size];
            client.send_to(&payload, self::service()).unwrap();
            six.send_to(&payload, at(FAR6, SERVICE)).unwrap();
        }
        let frames = tap.take();
        assert_eq!(frames.len(), 14);
        let strict = tidewall_protocol::udp::InputOptions::default();
        for frame in frames {
            let transport = if frame.bytes[14] >> 4 == 4 { 20 } else { 40 };
            let read = tidewall_protocol::udp::input(&frame.bytes[14..], transport, &strict);
            read.unwrap_or_else(|cause| panic!("{} bytes: {cause}", frame.bytes.len()));
        }
    }
}

#[test]
fn two_queues_share_the_work_and_lose_nothing() {
    let bed = Bed::with(LinkConfig {
        queues: 2,
        ..LinkConfig::default()
    });
    let service = bed.service();
    let clients: Vec<UdpSocket> = (0..16).map(|_| bed.near_socket()).collect();
    for n in 0..10 {
        for client in &clients {
            client.send_to(&number(n), self::service()).unwrap();
        }
    }
    let found = drain(&service);
    assert_eq!(found.len(), 160);
    for client in &clients {
        let port = client.local_addr().unwrap().port();
        let flow: Vec<u32> = found
            .iter()
            .filter(|(_, source)| source.port() == port)
            .map(|(payload, _)| read_number(payload))
            .collect();
        assert_eq!(
            flow,
            (0..10).collect::<Vec<_>>(),
            "the flow from port {port}"
        );
    }
    for queue in 0..2 {
        let seen = bed.tables.trusted.counter(queue, Counter::Channel);
        assert!(seen >= 20, "queue {queue} got {seen} of 160");
    }
    for (payload, source) in &found {
        service.send_to(payload, *source).unwrap();
    }
    for client in &clients {
        assert_eq!(numbers(client), (0..10).collect::<Vec<_>>());
    }
    assert_eq!(bed.outstanding(), 0);
}

#[test]
fn what_nobody_owns_is_the_kernels() {
    let bed = Bed::new();
    let service = bed.service();
    bed.inject(&datagram(
        at(NEAR4, 5000),
        at(FAR4, SERVICE + 1),
        b"other port",
    ));
    bed.inject(&datagram(
        at(NEAR4, 5000),
        at(OTHER4, SERVICE),
        b"other host",
    ));
    assert_eq!(drain(&service), []);
    assert_eq!(bed.link.take_kernel(Side::B).len(), 2);
    assert_eq!(bed.driver(Counter::Unowned), 1);
    assert_eq!(bed.driver(Counter::NotLocal), 1);
    drop(service);
    bed.inject(&datagram(at(NEAR4, 5000), self::service(), b"closed"));
    let other = nonblocking(&bed.far, anywhere(SERVICE + 2));
    assert_eq!(drain(&other), []);
    assert_eq!(bed.driver(Counter::Unowned), 2);
}
