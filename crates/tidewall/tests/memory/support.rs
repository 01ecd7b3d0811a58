//! Support for the tests: a link with a stack at each end, and frames
//! made by hand.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall::{MemoryConfig, Stack, UdpSocket};
use tidewall_device::demux::Tables;
use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{Link, LinkConfig, Side, Tap, pair};
use tidewall_protocol::udp::{Checksum, Output, output};
use tidewall_wire::checksum::{Sum, checksum};
use tidewall_wire::ethernet::MacAddress;

pub const NEAR4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const FAR4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const NEAR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const FAR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// More addresses of the far end.
pub const SECOND4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
pub const SECOND6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
/// A host behind the near end that has no stack.
pub const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const NEAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const FAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// Port of the service in most tests.
pub const SERVICE: u16 = 7000;
/// Rounds after which a stack has looked at everything that was sent: more
/// than the device ring holds, and enough to write lost frames off.
const ROUNDS: usize = 10;

/// A link, a stack at each end.
pub struct Bed {
    pub link: Link,
    pub near: Stack,
    pub far: Stack,
    /// The far driver's tables.
    pub tables: Tables,
    clock: Arc<AtomicU64>,
}

impl Bed {
    pub fn new() -> Bed {
        Bed::with(LinkConfig::default())
    }

    pub fn with(config: LinkConfig) -> Bed {
        let queues = config.queues;
        let (link, a, b) = pair(config).unwrap();
        let tables = b.tables.clone();
        assert_eq!(b.queues.len(), queues as usize);
        let clock = Arc::new(AtomicU64::new(0));
        let now = |clock: &Arc<AtomicU64>| {
            let clock = clock.clone();
            move || Duration::from_millis(clock.load(Ordering::Relaxed))
        };
        let near = MemoryConfig {
            addresses: vec![NEAR4.into(), NEAR6.into()],
            mac: NEAR_MAC,
            peer: FAR_MAC,
        };
        let far = MemoryConfig {
            addresses: vec![FAR4.into(), FAR6.into(), SECOND4.into(), SECOND6.into()],
            mac: FAR_MAC,
            peer: NEAR_MAC,
        };
        Bed {
            link,
            near: Stack::in_memory_on_clock(a, near, now(&clock)).unwrap(),
            far: Stack::in_memory_on_clock(b, far, now(&clock)).unwrap(),
            tables,
            clock,
        }
    }

    /// Moves both stacks' clocks and the link's.
    pub fn advance(&self, by: Duration) {
        let now = self.clock.load(Ordering::Relaxed) + by.as_millis() as u64;
        self.clock.store(now, Ordering::Relaxed);
        self.link.advance_to(Duration::from_millis(now));
    }

    pub fn near_socket(&self) -> UdpSocket {
        nonblocking(&self.near, SocketAddr::new(NEAR4.into(), 0))
    }

    /// The service at the far end, bound to any IPv4 address.
    pub fn service(&self) -> UdpSocket {
        nonblocking(&self.far, anywhere(SERVICE))
    }

    /// A frame from the near end's wire.
    pub fn inject(&self, frame: &[u8]) {
        self.link.inject(Side::B, frame);
    }

    pub fn driver(&self, counter: Counter) -> u64 {
        let queues = self.far.snapshot().queues.len() as u32;
        (0..queues)
            .map(|queue| self.tables.trusted.counter(queue, counter))
            .sum()
    }

    /// A counter of the far protocol stage.
    pub fn protocol(&self, name: &str) -> u64 {
        self.far
            .snapshot()
            .counters
            .protocol
            .get(name)
            .copied()
            .unwrap_or(0)
    }

    /// A reassembly counter of the far stack.
    pub fn fragments(&self, name: &str) -> u64 {
        self.far
            .snapshot()
            .counters
            .fragments
            .get(name)
            .copied()
            .unwrap_or(0)
    }

    /// Credit that is out for all far channels, the fragment channel included,
    /// after everything has been looked at and `socket` has been emptied.
    pub fn outstanding(&self) -> u32 {
        let queues = self.far.snapshot().queues.len() as u32;
        (0..queues)
            .flat_map(|queue| (0..4096u16).map(move |channel| (queue, channel)))
            .map(|(queue, channel)| {
                self.tables
                    .embedded
                    .head(queue, channel)
                    .wrapping_sub(self.tables.embedded.tail(queue, channel))
            })
            .sum()
    }

    pub fn far_tap(&self) -> Tap {
        self.link.tap()
    }
}

pub fn anywhere(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

pub fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// The service's address.
pub fn service() -> SocketAddr {
    at(FAR4, SERVICE)
}

pub fn nonblocking(stack: &Stack, address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(stack, address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Everything that a nonblocking socket can get, in order, until its stack has
/// found nothing for many rounds.
pub fn drain(socket: &UdpSocket) -> Vec<(Vec<u8>, SocketAddr)> {
    let mut found = Vec::new();
    let mut quiet = 0;
    while quiet < ROUNDS {
        let got = socket.recv_batch(64, |received| {
            found.push((received.payload.to_vec(), received.source));
        });
        match got {
            Ok(_) => quiet = 0,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                quiet += 1;
            }
        }
    }
    found
}

pub fn payloads(socket: &UdpSocket) -> Vec<Vec<u8>> {
    drain(socket)
        .into_iter()
        .map(|(payload, _)| payload)
        .collect()
}

/// Sequence numbers of the datagrams that `number` made.
pub fn numbers(socket: &UdpSocket) -> Vec<u32> {
    payloads(socket)
        .iter()
        .map(|payload| read_number(payload))
        .collect()
}

pub fn number(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

pub fn read_number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

pub fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        kind => panic!("no errno: {kind}"),
    })
}

/// A correct datagram as a frame.
pub fn datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    datagram_with(source, destination, payload, |_| {})
}

/// A datagram whose headers `change` may alter before checksums are computed.
pub fn datagram_with(
    source: SocketAddr,
    destination: SocketAddr,
    payload: &[u8],
    change: impl FnOnce(&mut Output),
) -> Vec<u8> {
    let mut how = Output {
        source_mac: NEAR_MAC,
        destination_mac: FAR_MAC,
        source,
        destination,
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        checksum: Checksum::Software,
    };
    change(&mut how);
    let mut frame = vec![0; 66_000];
    let length = output(&mut frame, &how, payload).unwrap();
    frame.truncate(length);
    frame
}

/// Puts the IPv4 header checksum right.
pub fn mend_v4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// One fragment of a datagram.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// First byte of IP payload it carries.
    pub start: usize,
    pub frame: Vec<u8>,
}

/// Cuts a datagram's frame into fragments of at most `size` bytes of IP
/// payload; a multiple of eight.
pub fn fragment(frame: &[u8], identification: u32, size: usize) -> Vec<Fragment> {
    let v6 = frame[12..14] == [0x86, 0xdd];
    let headers = if v6 { 54 } else { 34 };
    let payload = &frame[headers..];
    let piece = |start: usize| {
        let end = (start + size).min(payload.len());
        slice(
            frame,
            identification,
            start,
            &payload[start..end],
            end < payload.len(),
        )
    };
    (0..payload.len()).step_by(size).map(piece).collect()
}

/// A fragment with any offset and content, under the headers of `frame`.
pub fn slice(
    frame: &[u8],
    identification: u32,
    start: usize,
    bytes: &[u8],
    more: bool,
) -> Fragment {
    let offset = (start / 8) as u16;
    let mut cut;
    if frame[12..14] == [0x86, 0xdd] {
        cut = frame[..54].to_vec();
        cut[18..20].copy_from_slice(&(8 + bytes.len() as u16).to_be_bytes());
        cut.extend([cut[20], 0]);
        cut[20] = 44;
        cut.extend((offset << 3 | u16::from(more)).to_be_bytes());
        cut.extend(identification.to_be_bytes());
    } else {
        cut = frame[..34].to_vec();
        cut[16..18].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
        cut[18..20].copy_from_slice(&(identification as u16).to_be_bytes());
        cut[20..22].copy_from_slice(&(offset | u16::from(more) << 13).to_be_bytes());
        mend_v4(&mut cut);
    }
    cut.extend(bytes);
    Fragment { start, frame: cut }
}

/// An ICMP destination unreachable of `code` from `router` about a frame that
/// the far end sent.
pub fn unreachable(router: Ipv4Addr, code: u8, about: &[u8]) -> Vec<u8> {
    let quoted = &about[14..42.min(about.len())];
    let mut frame = about[..34].to_vec();
    let (from, to): (Vec<u8>, Vec<u8>) = (frame[6..12].to_vec(), frame[..6].to_vec());
    frame[..6].copy_from_slice(&from);
    frame[6..12].copy_from_slice(&to);
    frame[16..18].copy_from_slice(&(28 + quoted.len() as u16).to_be_bytes());
    frame[20..22].fill(0);
    frame[23] = 1;
    frame[30..34].copy_from_slice(&about[26..30]);
    frame[26..30].copy_from_slice(&router.octets());
    mend_v4(&mut frame);
    let mut icmp = vec![3, code, 0, 0, 0, 0, 0, 0];
    icmp.extend(quoted);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend(icmp);
    frame
}

/// An ICMPv6 destination unreachable of `code` from the near end about a frame
/// that the far end sent.
pub fn unreachable_v6(code: u8, about: &[u8]) -> Vec<u8> {
    let quoted = &about[14..];
    let mut frame = about[..54].to_vec();
    let length = 8 + quoted.len();
    frame[18..20].copy_from_slice(&(length as u16).to_be_bytes());
    frame[20] = 58;
    frame[22..38].copy_from_slice(&about[38..54]);
    frame[38..54].copy_from_slice(&about[22..38]);
    let mut icmp = vec![1, code, 0, 0, 0, 0, 0, 0];
    icmp.extend(quoted);
    let sum = Sum::ZERO
        .bytes(&frame[22..54])
        .double_word(length as u32)
        .word(58)
        .bytes(&icmp)
        .checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    frame.extend(icmp);
    frame
}
