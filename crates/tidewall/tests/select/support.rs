//! A link with a stack at each end, the near one with descriptors.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use tidewall::descriptor::{Descriptors, Flags};
use tidewall::readiness::DescriptorSet;
use tidewall::{MemoryConfig, Stack, UdpSocket};
use tidewall_device::memory::{Link, LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const NOW: Option<Duration> = Some(Duration::ZERO);
/// No number.
pub const NOBODY: [i32; 0] = [];
/// Longer than anything takes that works.
pub const LONG: Option<Duration> = Some(Duration::from_secs(20));

pub struct Bed {
    _link: Link,
    pub near: Stack,
    _far: Stack,
    pub table: Descriptors,
    /// Sends to the near end's sockets.
    sender: UdpSocket,
}

impl Bed {
    pub fn new() -> Self {
        let (link, a, b) = pair(LinkConfig::default()).unwrap();
        let config = |address: Ipv4Addr, mac, peer| MemoryConfig {
            addresses: vec![address.into()],
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            peer: MacAddress([2, 0, 0, 0, 0, peer]),
        };
        let near = Stack::in_memory(a, config(NEAR, 1, 2)).unwrap();
        let far = Stack::in_memory(b, config(FAR, 2, 1)).unwrap();
        let sender = UdpSocket::bind(&far, SocketAddr::from((FAR, 9))).unwrap();
        Bed {
            _link: link,
            table: Descriptors::new(&near, 1 << 20),
            near,
            _far: far,
            sender,
        }
    }

    /// A datagram socket on a port.
    pub fn datagram(&self, port: u16) -> i32 {
        let socket = UdpSocket::bind(&self.near, SocketAddr::from((NEAR, port))).unwrap();
        self.table.open(socket, Flags::NONBLOCK).unwrap()
    }

    /// A datagram comes to a port.
    pub fn comes(&self, port: u16) {
        self.sender.send_to(b"x", (NEAR, port).into()).unwrap();
    }

    /// Creates a kernel eventfd.
    pub fn counter(&self) -> i32 {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let counter = eventfd(0, flags).unwrap();
        self.table.open(counter, Flags::NONE).unwrap()
    }

    pub fn add(&self, counter: i32) {
        self.table.write(counter, &1u64.to_ne_bytes()).unwrap();
    }

    /// Those of some numbers that can be read, by `select`.
    pub fn select(&self, numbers: &[i32], timeout: Option<Duration>) -> io::Result<Vec<i32>> {
        let mut read: DescriptorSet = numbers.iter().copied().collect();
        let nfds = read.nfds();
        let count = self
            .table
            .select(nfds, Some(&mut read), None, None, timeout)?;
        assert_eq!(count, read.len());
        Ok(read.iter().collect())
    }
}

pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    let error = result.unwrap_err();
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Interrupted => libc::EINTR,
        kind => panic!("no errno: {kind}"),
    })
}
