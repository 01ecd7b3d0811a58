//! Packets that are longer than a frame of memory: they come in several.

use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream as KernelStream};
use std::time::{Duration, Instant};

use tidewall::tuning::Architecture;
use tidewall::{Stack, TcpListener, UdpSocket};

use super::device::set_mtu;
use super::support::*;
use super::tcp_bulk::{receive_all, send_all};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest payload of UDP over IPv4.
const LONGEST: usize = 65_507;

/// Moves so many bytes to the stack and back, and says how many MB/s each took.
fn bulk(stack: &Stack, listener: &TcpListener, to: IpAddr, total: usize, mtu: usize) {
    let client = spawn_in_peer(move || {
        let stream = KernelStream::connect((to, SERVICE)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        send_all(&stream, total);
        stream.shutdown(Shutdown::Write).unwrap();
        receive_all(&stream, total);
    });
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let began = Instant::now();
    receive_all(&stream, total);
    let received = began.elapsed();
    let info = stream.info().unwrap();
    let began = Instant::now();
    send_all(&stream, total);
    stream.shutdown(Shutdown::Write).unwrap();
    client.join().unwrap();
    let sent = began.elapsed();
    let rate = |time: Duration| total as f64 / time.as_secs_f64() / 1e6;
    println!(
        "MTU {mtu} to {to}: received {:.0} MB/s in {} segments, sent {:.0} MB/s, {} lost in ring",
        rate(received),
        info.segments_received,
        rate(sent),
        stack.snapshot().queues[0].lost_in_ring,
    );
    let headers = if to.is_ipv4() { 40 } else { 60 };
    // With timestamps.
    let full = mtu - headers - 12;
    // A segment fills no more than half of the peer's first window.
    let least = full.min(32_768);
    let mss = info.send_mss as usize;
    assert!((least..=full).contains(&mss), "MTU {mtu}: {mss}");
    let whole = total / full;
    let came = info.segments_received as usize;
    assert!(came < whole * 2, "MTU {mtu}: {came} segments for {whole}");
}

pub fn segments_longer_than_a_frame_move_both_ways() {
    // The first for comparison.
    for mtu in [1500, 9000, 65_535] {
        set_mtu(mtu);
        let stack = stack();
        let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
        for to in [IpAddr::from(HERE4), IpAddr::from(HERE6)] {
            bulk(&stack, &listener, to, 32 << 20, mtu);
        }
        assert_eq!(stack.warnings(), [] as [String; 0]);
    }
}

fn payload(length: usize, mark: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ mark).collect()
}

pub fn datagrams_longer_than_a_frame_move_both_ways() {
    for mtu in [9000, 65_535] {
        set_mtu(mtu);
        let stack = stack();
        let echo = Echo::start(&stack, SERVICE);
        for (here, peer) in [
            (IpAddr::from(HERE4), IpAddr::from(PEER4)),
            (IpAddr::from(HERE6), IpAddr::from(PEER6)),
        ] {
            let peer = peer_socket(peer);
            for mark in 0..8 {
                // Lengths at which a piece begins, and odd ones.
                for length in [1, 3798, 3799, 3811, 7638, 8000, 8001, 60_000, 60_001] {
                    ask(&peer, at(here, SERVICE), &payload(length, mark));
                }
                if here.is_ipv4() {
                    ask(&peer, at(here, SERVICE), &payload(LONGEST, mark));
                }
            }
        }
        let queue = &stack.snapshot().queues[0];
        assert_eq!(queue.lost_in_ring, 0, "MTU {mtu}: {queue:?}");
        assert!(queue.delivered >= 128, "MTU {mtu}: {queue:?}");
        echo.finish();
        assert_eq!(stack.warnings(), [] as [String; 0]);
    }
}

pub fn a_flood_of_long_datagrams_keeps_no_frames() {
    set_mtu(9000);
    let stack = stack();
    let socket = UdpSocket::bind(&stack, at(HERE4, SERVICE)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let peer = peer_socket(PEER4);
    let datagram = payload(8900, 1);
    let mut received = 0;
    // More frames than there are, many times over.
    for _ in 0..40 {
        for _ in 0..1500 {
            peer.send_to(&datagram, (HERE4, SERVICE)).unwrap();
        }
        while let Ok(count) = socket.recv_batch(64, |it| assert!(it.payload == datagram)) {
            received += count;
        }
    }
    let queue = &stack.snapshot().queues[0];
    let count = |name: &str| queue.driver.get(name).copied().unwrap_or(0);
    let discarded = count("channel-full") + count("application-full");
    println!("{received} received, {discarded} discarded early");
    assert!(received > 8192, "{received}");
    assert!(discarded > 1000, "{queue:?}");
    drop(socket);
    let echo = Echo::start(&stack, SERVICE);
    for mark in 0..=255 {
        ask(&peer, at(HERE4, SERVICE), &payload(8900, mark));
    }
    echo.finish();
}

pub fn the_mtu_may_change_while_the_stack_runs() {
    let stack = stack();
    let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    let echo = Echo::start(&stack, SERVICE + 1);
    let client = spawn_in_peer(|| {
        let stream = KernelStream::connect((HERE4, SERVICE)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    });
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let client = client.join().unwrap();
    for mtu in [9000, 1500, 65_535, 3000] {
        set_mtu(mtu);
        let peer = peer_socket(PEER4);
        for length in [100, 8000, 60_000] {
            ask(&peer, at(HERE4, SERVICE + 1), &payload(length, 7));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| send_some(&client));
            receive_some(&stream);
            scope.spawn(|| send_some(&stream));
            receive_some(&client);
        });
    }
    // Began with an MTU that became smaller.
    echo.finish();
    drop((stream, client, listener, stack));
    set_mtu(9000);
    let stack = self::stack();
    let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
    set_mtu(1500);
    let client = spawn_in_peer(|| {
        let stream = KernelStream::connect((HERE4, SERVICE)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        receive_some(&stream);
    });
    let (stream, _) = listener.accept().unwrap();
    send_some(&stream);
    client.join().unwrap();
    assert_eq!(stack.warnings(), [] as [String; 0]);
}

const SOME: usize = 4 << 20;

fn send_some<S>(stream: &S)
where
    for<'a> &'a S: std::io::Write,
{
    send_all(stream, SOME);
}

fn receive_some<S>(mut stream: &S)
where
    for<'a> &'a S: std::io::Read,
{
    use std::io::Read;
    let mut bytes = vec![0; SOME];
    stream.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().any(|&byte| byte != 0));
}

pub fn every_architecture_receives_long_packets() {
    set_mtu(9000);
    for architecture in Architecture::ALL {
        let stack = Stack::embedded(config().architecture(architecture).receiver_cpu(1)).unwrap();
        let echo = Echo::start(&stack, SERVICE + 1);
        let listener = TcpListener::bind(&stack, at(Ipv6Addr::UNSPECIFIED, SERVICE)).unwrap();
        let peer = peer_socket(PEER4);
        for length in [100, 8000, 60_000] {
            ask(&peer, at(HERE4, SERVICE + 1), &payload(length, 9));
        }
        bulk(&stack, &listener, HERE4.into(), 2 << 20, 9000);
        echo.finish();
    }
}
