//! Data in the SYN (RFC 7413), with the kernel's TCP at the other end.

use std::io::{Read, Write};
use std::net::TcpListener as KernelListener;
use std::time::Duration;

use tidewall::{ListenOptions, TcpListener, TcpStream};

use super::raw_system;
use super::support::*;

const TIMEOUT: Duration = Duration::from_secs(5);

fn enable_in_peer() {
    let peer = peer_namespace();
    shell(&format!(
        "ip netns exec {peer} sysctl -qw net.ipv4.tcp_fastopen=3"
    ));
}

/// A counter of the peer's kernel.
fn counter_of_peer(name: &'static str) -> u64 {
    in_peer(move || {
        let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        for [names, values] in lines.as_chunks::<2>().0 {
            if let Some(place) = names.iter().position(|other| *other == name) {
                return values[place].parse().unwrap();
            }
        }
        panic!("the kernel has no {name}")
    })
}

pub fn kernel_clients_open_connections_by_their_syns() {
    enable_in_peer();
    let stack = stack();
    let options = ListenOptions {
        fast_open: 16,
        ..ListenOptions::default()
    };
    let listener = TcpListener::bind_with(&stack, at(HERE4, SERVICE), options).unwrap();
    for round in 0..4 {
        let client = spawn_in_peer(|| {
            let mut stream = raw_system::connect_fast_open(at(HERE4, SERVICE)).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(b"request").unwrap();
            let mut answer = [0; 6];
            stream.read_exact(&mut answer).unwrap();
            answer
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert!(!stream.is_kernels());
        let mut request = [0; 7];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(&request, b"request");
        assert_eq!(stream.info().unwrap().syn_data, round > 0, "{round}");
        stream.write_all(b"answer").unwrap();
        assert_eq!(&client.join().unwrap(), b"answer");
        if round == 1 {
            // The kernel is given another cookie while the old one is good.
            stack.rotate_fast_open_key().unwrap();
        }
    }
    assert_eq!(counter_of_peer("TCPFastOpenActive"), 3);
    assert_eq!(counter_of_peer("TCPFastOpenActiveFail"), 0);
}

pub fn streams_open_connections_of_the_kernel_by_their_syns() {
    enable_in_peer();
    let stack = stack();
    let listener = in_peer(|| {
        let listener = KernelListener::bind(at(PEER4, SERVICE)).unwrap();
        raw_system::take_fast_open(&listener, 16).unwrap();
        listener
    });
    let echo = std::thread::spawn(move || {
        for stream in listener.incoming().take(4) {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut buffer = vec![0; 20_000];
            stream.read_exact(&mut buffer).unwrap();
            stream.write_all(&buffer).unwrap();
        }
    });
    let sent: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
    for round in 0..4 {
        let mut stream = TcpStream::connect_fast_open(&stack, at(PEER4, SERVICE)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == sent);
        let info = stream.info().unwrap();
        assert_eq!(
            (info.syn_data, info.retransmissions),
            (round > 0, 0),
            "{round}"
        );
    }
    echo.join().unwrap();
    assert_eq!(counter_of_peer("TCPFastOpenCookieReqd"), 1);
    assert_eq!(counter_of_peer("TCPFastOpenPassive"), 3);
    assert_eq!(counter_of_peer("TCPFastOpenPassiveFail"), 0);
}

pub fn the_kernel_that_does_not_take_data_gets_it_again() {
    enable_in_peer();
    let stack = stack();
    let listener = in_peer(|| {
        let listener = KernelListener::bind(at(PEER4, SERVICE)).unwrap();
        raw_system::take_fast_open(&listener, 16).unwrap();
        listener
    });
    let peer = peer_namespace();
    for (taken, settings) in [
        (false, ""),
        (true, ""),
        // Other keys: the cookie is stale, and a new one comes.
        (false, "net.ipv4.tcp_fastopen_key=1-2-3-4"),
        (true, ""),
        // It takes none at all any more.
        (false, "net.ipv4.tcp_fastopen=1"),
    ] {
        if !settings.is_empty() {
            shell(&format!("ip netns exec {peer} sysctl -qw {settings}"));
        }
        let mut stream = TcpStream::connect_fast_open(&stack, at(PEER4, SERVICE)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"request").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut request = [0; 7];
        accepted.read_exact(&mut request).unwrap();
        assert_eq!(&request, b"request");
        accepted.write_all(b"answer").unwrap();
        stream.read_exact(&mut request[..6]).unwrap();
        assert_eq!(stream.info().unwrap().syn_data, taken, "{settings}");
    }
}
