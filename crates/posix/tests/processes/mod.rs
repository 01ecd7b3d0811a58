//! Two processes with one stack each, on a link in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use tidewall::{MemoryConfig, Stack};
use tidewall_device::memory::{LinkConfig, pair_on_clock};
use tidewall_posix::{Posix, PosixConfig};
use tidewall_wire::ethernet::MacAddress;

/// The client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A client process and a server process.
pub fn processes() -> (Posix, Posix) {
    let start = Instant::now();
    let (_, a, b) = pair_on_clock(LinkConfig::default(), move || start.elapsed()).unwrap();
    let stack = |end, address: Ipv4Addr, mac, peer| {
        let config = MemoryConfig {
            addresses: vec![IpAddr::from(address)],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        Posix::new(
            &Stack::in_memory(end, config).unwrap(),
            PosixConfig::default(),
        )
    };
    let client = stack(a, CLIENT, 1, 2);
    (client, stack(b, SERVER, 2, 1))
}
