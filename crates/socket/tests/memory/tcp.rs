//! Streams between two stacks that run in real time, helper threads and all.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use tidewall_device::memory::{LinkConfig, pair_on_clock};
use tidewall_socket::tcp::{Event, Interest, ListenOptions, State};
use tidewall_socket::{MemoryConfig, Selector, Stack, TcpListener, TcpStream};
use tidewall_wire::ethernet::MacAddress;

use super::support::{FAR4, FAR6, NEAR4, NEAR6, at};

const PORT: u16 = 80;
/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

fn stacks_with(config: LinkConfig) -> (Stack, Stack) {
    let start = Instant::now();
    let (_, a, b) = pair_on_clock(config, move || start.elapsed()).unwrap();
    let stack = |end, addresses: [IpAddr; 2], mac, peer| {
        let config = MemoryConfig {
            addresses: addresses.into(),
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        Stack::in_memory(end, config).unwrap()
    };
    (
        stack(a, [NEAR4.into(), NEAR6.into()], 1, 2),
        stack(b, [FAR4.into(), FAR6.into()], 2, 1),
    )
}

fn stacks() -> (Stack, Stack) {
    stacks_with(LinkConfig::default())
}

/// Two connected streams: the near one connected, the far one was accepted.
fn streams(near: &Stack, far: &Stack) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(far, at(FAR4, PORT)).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap().0);
    let client = TcpStream::connect_timeout(near, &at(FAR4, PORT), PATIENCE).unwrap();
    let server = accepting.join().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn a_blocking_echo_over_both_families() {
    let (near, far) = stacks();
    let listener = TcpListener::bind(&far, at(std::net::Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, peer) = listener.accept().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer);
            assert!(peer.is_ipv6(), "{peer}");
            let mut buffer = [0; 4096];
            loop {
                match stream.read(&mut buffer).unwrap() {
                    0 => break,
                    length => stream.write_all(&buffer[..length]).unwrap(),
                }
            }
        }
    });
    for address in [IpAddr::from(FAR4), IpAddr::from(FAR6)] {
        let mut client = TcpStream::connect(&near, at(address, PORT)).unwrap();
        assert_eq!(client.peer_addr().unwrap(), at(address, PORT));
        assert!(!client.is_kernels());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = pattern(3000);
        client.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == sent);
        assert_eq!(client.info().unwrap().state, State::Established);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut back).unwrap(), 0);
    }
    server.join().unwrap();
}

#[test]
fn megabytes_arrive_intact_each_way() {
    let (near, far) = stacks();
    let (client, server) = streams(&near, &far);
    let sent = pattern(4 << 20);
    std::thread::scope(|scope| {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let sent = &sent;
            scope.spawn(move || {
                let mut from = from;
                from.write_all(sent).unwrap();
                from.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut to = to;
                let mut got = Vec::new();
                to.read_to_end(&mut got).unwrap();
                assert!(got == *sent, "{} bytes", got.len());
            });
        }
    });
}
