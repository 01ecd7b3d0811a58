//! The memory of an idle UDP socket. A separate binary, because it counts every
//! allocation of the process.

mod raw_count;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidewall::tcp::Interest;
use tidewall::{MemoryConfig, Selector, Stack, TcpListener, TcpStream, UdpSocket};
use tidewall_device::memory::{LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

/// Sockets bound; fewer than there are channels.
const SOCKETS: u16 = 2000;
/// Most bytes an idle socket may take beside its frames.
const LIMIT: usize = 2048;

/// TCP connections before counting begins, and as many are counted.
const CONNECTIONS: usize = 5000;
/// Most bytes an idle TCP connection may take.
const TCP_LIMIT: usize = 1536;

fn stack(queues: u32) -> Stack {
    let (_, _, end) = pair(LinkConfig {
        queues,
        frames: 256,
        ..LinkConfig::default()
    })
    .unwrap();
    let config = MemoryConfig {
        addresses: vec![Ipv4Addr::new(10, 0, 0, 2).into()],
        mac: MacAddress([2, 0, 0, 0, 0, 2]),
        peer: MacAddress([2, 0, 0, 0, 0, 1]),
    };
    Stack::in_memory(end, config).unwrap()
}

/// Bytes for each of many sockets, counted from the first.
fn bytes_a_socket(stack: &Stack, address: Ipv4Addr, connected: bool) -> usize {
    let mut sockets = Vec::with_capacity(SOCKETS.into());
    let before = raw_count::bytes();
    for port in 0..SOCKETS {
        let socket =
            UdpSocket::bind(stack, SocketAddr::new(address.into(), 10_000 + port)).unwrap();
        if connected {
            socket
                .connect(SocketAddr::from(([10, 0, 0, 1], 5000)))
                .unwrap();
        }
        sockets.push(socket);
    }
    (raw_count::bytes() - before).div_ceil(SOCKETS.into())
}

/// Bytes for each of many TCP connections that have exchanged something, beyond
/// those that have channels. Both ends are counted, so half of what is
/// allocated.
fn bytes_a_connection() -> usize {
    let (_, near, far) = pair(LinkConfig::default()).unwrap();
    let on = |end, own: u8, other: u8| {
        let config = MemoryConfig {
            addresses: vec![Ipv4Addr::new(10, 0, 0, own).into()],
            mac: MacAddress([2, 0, 0, 0, 0, own]),
            peer: MacAddress([2, 0, 0, 0, 0, other]),
        };
        Stack::in_memory_on_clock(end, config, || Duration::ZERO).unwrap()
    };
    let (near, far) = (on(near, 1, 2), on(far, 2, 1));
    let service = SocketAddr::from(([10, 0, 0, 2], 80));
    let listener = TcpListener::bind(&far, service).unwrap();
    listener.set_nonblocking(true).unwrap();
    let selectors = [Selector::new(&near).unwrap(), Selector::new(&far).unwrap()];
    selectors[1].add(&listener, 0, Interest::READABLE).unwrap();
    let mut events = Vec::new();
    let mut streams: Vec<TcpStream> = Vec::with_capacity(2 * CONNECTIONS);
    let mut servers = Vec::with_capacity(CONNECTIONS);
    let mut before = 0;
    let mut turn = || {
        for _ in 0..20 {
            for selector in &selectors {
                selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
            }
        }
    };
    while streams.len() < 2 * CONNECTIONS {
        if streams.len() >= CONNECTIONS && before == 0 {
            before = raw_count::bytes();
        }
        let mut clients = Vec::new();
        for _ in 0..50 {
            let stream = TcpStream::connect_nonblocking(&near, service).unwrap();
            selectors[0].add(&stream, 1, Interest::READABLE).unwrap();
            clients.push(stream);
        }
        turn();
        while let Ok((server, _)) = listener.accept() {
            server.set_nonblocking(true).unwrap();
            selectors[1].add(&server, 2, Interest::READABLE).unwrap();
            (&server).write_all(b"welcome").unwrap();
            servers.push(server);
        }
        turn();
        for client in &clients {
            assert_eq!((&mut &*client).read(&mut [0; 16]).unwrap(), 7);
        }
        turn();
        streams.append(&mut clients);
    }
    assert_eq!(servers.len(), streams.len());
    (raw_count::bytes() - before).div_ceil(2 * (streams.len() - CONNECTIONS))
}

#[test]
fn an_idle_socket_takes_no_more_than_two_kibibytes() {
    // The only test of this binary: another thread's allocations would count.
    let before = raw_count::bytes();
    let held = vec![0u8; 12_345];
    assert_eq!(raw_count::bytes() - before, held.len());
    drop(held);
    for queues in [1, 8] {
        let stack = stack(queues);
        for (what, address, connected) in [
            ("bound to any address", Ipv4Addr::UNSPECIFIED, false),
            ("bound to one address", Ipv4Addr::new(10, 0, 0, 2), false),
            ("connected", Ipv4Addr::UNSPECIFIED, true),
        ] {
            let bytes = bytes_a_socket(&stack, address, connected);
            println!("idle UDP socket, {queues} queue(s), {what}: {bytes} bytes");
            assert!(bytes <= LIMIT, "{bytes} bytes, {queues} queues, {what}");
        }
    }
    let bytes = bytes_a_connection();
    println!("idle TCP connection: {bytes} bytes");
    assert!(bytes <= TCP_LIMIT, "{bytes} bytes a connection");
}
