//! Beside the kernel: ports, localhost, and everything that is not ours.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket as KernelSocket};
use std::time::{Duration, Instant};

use tidewall::UdpSocket;

use super::raw_system::Packets;
use super::support::*;

pub fn a_port_has_one_owner_on_the_host() {
    let stack = stack();
    let in_use = |error: std::io::Error| error.raw_os_error() == Some(libc::EADDRINUSE);
    let theirs = KernelSocket::bind(at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    let bind = |address| UdpSocket::bind(&stack, address).map(drop);
    assert!(in_use(
        bind(at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap_err()
    ));
    assert!(in_use(bind(at(HERE4, SERVICE)).unwrap_err()));
    assert!(in_use(
        bind(at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap_err()
    ));
    // The other family's address is free.
    bind(at(HERE6, SERVICE)).unwrap();
    drop(theirs);
    let ours = UdpSocket::bind(&stack, at(HERE4, SERVICE)).unwrap();
    let kernel = |address| KernelSocket::bind(address).map(drop);
    assert!(in_use(kernel(at(HERE4, SERVICE)).unwrap_err()));
    assert!(in_use(
        kernel(at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap_err()
    ));
    assert_eq!(
        bind(at(PEER4, SERVICE)).unwrap_err().raw_os_error(),
        Some(libc::EADDRNOTAVAIL)
    );
    drop(ours);
    kernel(at(HERE4, SERVICE)).unwrap();
    assert_eq!(stack.snapshot().sockets.len(), 0);
}

pub fn localhost_reaches_the_same_socket() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let peer = peer_socket(PEER4);
    for (local, to) in [
        (at(Ipv4Addr::LOCALHOST, 0), at(Ipv4Addr::LOCALHOST, SERVICE)),
        (at(Ipv6Addr::LOCALHOST, 0), at(Ipv6Addr::LOCALHOST, SERVICE)),
        (at(HERE4, 0), at(HERE4, SERVICE)),
    ] {
        let client = KernelSocket::bind(local).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        for n in 0..5u8 {
            ask(&client, to, &[n; 100]);
            ask(&peer, at(HERE4, SERVICE), &[n; 10]);
        }
    }
    let seen = stack.snapshot().sockets[0].clone();
    assert_eq!(seen.through_kernel, 15);
    assert!(seen.received >= 30, "{seen:?}");
    echo.finish();
}

/// Sends datagrams from the peer as fast as the kernel does for `time`, with
/// a rest after every 64.
pub fn flood(port: u16, time: Duration) -> std::thread::JoinHandle<u64> {
    spawn_in_peer(move || {
        let socket = KernelSocket::bind(at(PEER4, 0)).unwrap();
        let end = Instant::now() + time;
        let mut sent = 0;
        while Instant::now() < end {
            for _ in 0..64 {
                sent += u64::from(socket.send_to(&[0; 18], at(HERE4, port)).is_ok());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        sent
    })
}

pub fn localhost_is_served_while_the_network_floods() {
    let stack = stack();
    let service = UdpSocket::bind(&stack, at(Ipv4Addr::UNSPECIFIED, SERVICE)).unwrap();
    service
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let flood = flood(SERVICE, Duration::from_secs(2));
    let client = std::thread::spawn(|| {
        let client = KernelSocket::bind(at(Ipv4Addr::LOCALHOST, 0)).unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(400)))
            .unwrap();
        // Into the flood.
        std::thread::sleep(Duration::from_millis(200));
        (0..4)
            .filter(|_| ask_once(&client, at(Ipv4Addr::LOCALHOST, SERVICE), b"still there?"))
            .count()
    });
    let mut flooded = 0u64;
    // A service slow enough never to find its channel empty.
    while service
        .recv_batch(4, |received| {
            if received.payload == b"still there?" {
                service.send_to(received.payload, received.source).unwrap();
            } else {
                flooded += 1;
                let end = Instant::now() + Duration::from_micros(20);
                while Instant::now() < end {}
            }
        })
        .is_ok()
    {}
    assert!(flooded > 1000, "{flooded} datagrams are no flood");
    assert!(flood.join().unwrap() > 1000);
    assert_eq!(
        client.join().unwrap(),
        4,
        "questions from localhost that were answered"
    );
}

pub fn ping_and_tcp_go_on_beside_a_stack() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    ask(&client, at(HERE4, SERVICE), b"x");
    let peer = peer_namespace();
    for address in [HERE4.to_string(), HERE6.to_string()] {
        let report = shell(&format!(
            "ip netns exec {peer} ping -c 3 -i 0.05 -W 1 {address}"
        ));
        assert!(report.contains(" 0% packet loss"), "{report}");
    }
    let listener = TcpListener::bind(at(HERE4, 8080)).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut total = 0;
        let mut buffer = [0; 65_536];
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                got => total += got,
            }
        }
        stream.write_all(&total.to_be_bytes()).unwrap();
    });
    let total = in_peer(|| {
        let mut stream =
            TcpStream::connect_timeout(&at(HERE4, 8080), Duration::from_secs(2)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream.write_all(&vec![7; 3_000_000]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut total = [0; 8];
        stream.read_exact(&mut total).unwrap();
        usize::from_be_bytes(total)
    });
    assert_eq!(total, 3_000_000);
    server.join().unwrap();
    // And out of here, with the peer listening.
    let theirs = in_peer(|| TcpListener::bind(at(PEER4, 8081)).unwrap());
    let stream = TcpStream::connect_timeout(&at(PEER4, 8081), Duration::from_secs(2)).unwrap();
    theirs.accept().unwrap();
    drop(stream);
    ask(&client, at(HERE4, SERVICE), b"x");
    assert!(stack.snapshot().queues[0].kernel["established"].0 > 100);
    echo.finish();
}

pub fn a_flood_at_the_kernel_is_limited_and_an_owned_port_served() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let client = peer_socket(PEER4);
    ask(&client, at(HERE4, SERVICE), b"before");
    let flood = flood(SERVICE + 1, Duration::from_secs(1));
    let mut answered = 0;
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while !flood.is_finished() {
        answered += u32::from(ask_once(&client, at(HERE4, SERVICE), b"during"));
    }
    let sent = flood.join().unwrap();
    let snapshot = stack.snapshot();
    echo.finish();
    let (passed, dropped) = snapshot.queues[0].kernel["udp"];
    assert!(dropped > sent / 4, "{dropped} of {sent} were dropped");
    // 10,000 per second and a burst of 512, or half as much again, for a little more than
    // a second, and the sender's share.
    assert!(passed < 24_000, "{passed} passed");
    assert!(answered > 100, "{answered} answers in a second");
}

pub fn tagged_and_unknown_frames_are_counted() {
    let stack = stack();
    let echo = Echo::start(&stack, SERVICE);
    let mac = std::fs::read_to_string(format!("/sys/class/net/{HERE}/address")).unwrap();
    let mut to: Vec<u8> = mac
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    to.extend([2, 0, 0, 0, 0, 9]);
    let frame = |ethertype: [u8; 2], body: &[u8]| [&to[..], &ethertype, body].concat();
    let frames = [
        frame(
            [0x81, 0x00],
            &[
                0, 5, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 2,
            ],
        ),
        frame([0x88, 0xb5], &[0; 46]),
        frame([0x08, 0x00], &[0x45, 0, 0, 99, 0, 0]),
        frame([0x08, 0x00], &[0x55; 40]),
    ];
    in_peer(move || {
        let packets = Packets::open(peer_index()).unwrap();
        for frame in &frames {
            packets.send(frame).unwrap();
        }
    });
    let counted = |name: &str| {
        let queues = stack.snapshot().queues;
        queues
            .iter()
            .filter_map(|queue| queue.driver.get(name))
            .sum::<u64>()
    };
    for name in ["tagged", "unknown", "truncated", "malformed"] {
        assert!(
            wait_until(|| counted(name) >= 1),
            "{name}: {:?}",
            stack.snapshot().queues
        );
    }
    ask(&peer_socket(PEER4), at(HERE4, SERVICE), b"none of it hurt");
    echo.finish();
}

/// Index of the peer's interface.
pub fn peer_index() -> u32 {
    let peer = peer_namespace();
    shell(&format!(
        "ip netns exec {peer} cat /sys/class/net/{PEER}/ifindex"
    ))
    .trim()
    .parse()
    .unwrap()
}
