//! What an idle UDP socket costs. A binary of its own, because it counts every
//! allocation of the process.

mod raw_count;

use std::net::{Ipv4Addr, SocketAddr};

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_socket::{MemoryConfig, Stack, UdpSocket};
use tidewall_wire::ethernet::MacAddress;

/// Sockets bound; fewer than there are channels.
const SOCKETS: u16 = 2000;
/// Most bytes an idle socket may take beside its frames.
const LIMIT: usize = 2048;

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
}
