//! The driver program's parsing of well-formed frames, compared with an independent
//! parser: is the frame for this host, in which fragment of what protocol, from where to
//! where.

mod demux_support;

use std::net::{IpAddr, SocketAddr};

use demux_support::{HASH_KEY, Random, corpus, mutate};
use etherparse::{IpNumber, NetSlice, SlicedPacket};
use tidewall_device::demux::layout::{Counter, Kind, Metadata, Protocol};
use tidewall_device::demux::{ChannelId, Tables, Verdict, drive};

const LOCALS: [&str; 4] = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "fe80::1"];
/// Channel of a flow; those of listeners are the numbers of their protocols.
const CONNECTED: u16 = 100;

/// Tables of a host whose every port is owned, with a channel that identifies the
/// protocol.
fn tables() -> Tables {
    let tables = Tables::in_memory_with_key(HASH_KEY).unwrap();
    tables
        .trusted
        .set_locals(&LOCALS.map(|text| text.parse().unwrap()))
        .unwrap();
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let index = protocol as u16;
        for port in 1..=u16::MAX {
            tables.trusted.own_port(protocol, None, port, 0).unwrap();
            let channel = ChannelId::new(index, port);
            tables
                .embedded
                .listen(protocol, None, port, channel)
                .unwrap();
        }
        tables.embedded.set_limit(0, index, u32::MAX);
    }
    tables.embedded.set_limit(0, CONNECTED, u32::MAX);
    tables
}

/// The other parser's view of a unicast IP datagram.
#[derive(Debug)]
struct Datagram {
    version: u8,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Start of its payload, after all IP headers.
    start: usize,
    end: usize,
    kind: Kind,
    ports: Option<[u16; 2]>,
}

#[derive(Debug)]
enum Expected {
    Datagram(Datagram),
    /// For the kernel, by this counter.
    Kernel(Counter),
}

/// `None` for a frame that is not well formed.
fn expected(frame: &[u8]) -> Option<Expected> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    if frame[0] & 1 != 0 {
        return Some(Expected::Kernel(Counter::Multicast));
    }
    if !packet.link_exts.is_empty() {
        // An old tag type, which is not one of IEEE 802.1Q's.
        let counter = if frame[12..14] == [0x91, 0] {
            Counter::Unknown
        } else {
            Counter::Tagged
        };
        return Some(Expected::Kernel(counter));
    }
    let net = packet.net.as_ref();
    let (version, source, destination, payload): (_, IpAddr, IpAddr, _) = match net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let [source, destination] = [header.source_addr(), header.destination_addr()];
            (4, source.into(), destination.into(), ip.payload())
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let [source, destination] = [header.source_addr(), header.destination_addr()];
            // A jumbogram to the other parser; and limits of the program.
            let headers = ip.extensions().clone().into_iter();
            let is_fragment =
                |header: &_| matches!(header, etherparse::Ipv6ExtensionSlice::Fragment(_));
            if header.payload_length() == 0
                || headers.clone().count() > 8
                || headers.filter(is_fragment).count() > 1
            {
                return None;
            }
            (6, source.into(), destination.into(), ip.payload())
        }
        Some(NetSlice::Arp(_)) => return Some(Expected::Kernel(Counter::Frames)),
        // No circuit is open.
        None if frame[12..14] == [0x88, 0x47] => {
            return Some(Expected::Kernel(Counter::NoCircuit));
        }
        None => return Some(Expected::Kernel(Counter::Unknown)),
    };
    let broadcast = destination == IpAddr::from([255; 4]);
    if destination.is_multicast() || broadcast {
        return Some(Expected::Kernel(Counter::Multicast));
    }
    if !LOCALS.iter().any(|local| local.parse() == Ok(destination)) {
        return Some(Expected::Kernel(Counter::NotLocal));
    }
    let start = payload.payload.as_ptr() as usize - frame.as_ptr() as usize;
    let kind = match (payload.fragmented, first_fragment(net?)) {
        (false, _) => Kind::Datagram,
        (true, true) => Kind::FirstFragment,
        (true, false) => Kind::Fragment,
    };
    let with_ports = [IpNumber::UDP, IpNumber::TCP].contains(&payload.ip_number);
    let ports = match payload.payload {
        _ if !with_ports || kind == Kind::Fragment => None,
        &[a, b, c, d, high, low, ..] => {
            // The other parser reads no transport header in a fragment, and takes a
            // UDP length of 0 for a jumbogram (RFC 2675).
            let (udp, length) = (payload.ip_number == IpNumber::UDP, payload.payload.len());
            if length < if udp { 8 } else { 20 } || udp && u16::from_be_bytes([high, low]) < 8 {
                return None;
            }
            Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
        }
        _ => return None,
    };
    if let (Kind::Datagram, Some(transport)) = (kind, &packet.transport) {
        let read = match transport {
            etherparse::TransportSlice::Udp(udp) => {
                Some([udp.source_port(), udp.destination_port()])
            }
            etherparse::TransportSlice::Tcp(tcp) => {
                Some([tcp.source_port(), tcp.destination_port()])
            }
            _ => None,
        };
        assert_eq!(ports, read);
    }
    Some(Expected::Datagram(Datagram {
        version,
        source,
        destination,
        protocol: payload.ip_number.0,
        start,
        end: start + payload.payload.len(),
        kind,
        ports,
    }))
}

fn first_fragment(net: &NetSlice<'_>) -> bool {
    match net {
        NetSlice::Ipv4(ip) => ip.header().fragments_offset().value() == 0,
        NetSlice::Ipv6(ip) => ip
            .extensions()
            .clone()
            .into_iter()
            .all(|header| match header {
                etherparse::Ipv6ExtensionSlice::Fragment(fragment) => {
                    fragment.fragment_offset().value() == 0
                }
                _ => true,
            }),
        NetSlice::Arp(_) => false,
    }
}

/// The driver program's result for a frame: its verdict and the metadata.
fn run(tables: &Tables, frame: &[u8]) -> (Verdict, Option<Metadata>) {
    let verdict = drive(tables, 0, &mut frame.to_vec(), 1_000_000_000);
    match verdict {
        Verdict::Channel(metadata) => (verdict, Some(metadata)),
        _ => (verdict, None),
    }
}

/// Compares; true if there was a datagram of a flow to compare.
fn judge(tables: &Tables, name: &str, frame: &[u8]) -> bool {
    let Some(expected) = expected(frame) else {
        return false;
    };
    let context = || format!("{name}: {expected:?}: {frame:02x?}");
    let counters = || Counter::ALL.map(|counter| tables.trusted.counters(0).counter(counter));
    let before = counters();
    let (verdict, metadata) = run(tables, frame);
    let datagram = match &expected {
        &Expected::Kernel(counter) => {
            assert!(matches!(verdict, Verdict::Kernel { .. }), "{}", context());
            let index = counter as usize;
            assert_eq!(counters()[index], before[index] + 1, "{}", context());
            return false;
        }
        Expected::Datagram(datagram) => datagram,
    };
    let Some([source, destination]) = datagram.ports.filter(|[.., port]| *port != 0) else {
        let quoted = Some(Some(Kind::IcmpError));
        let kind = metadata.map(|metadata| metadata.kind());
        assert!(
            kind.is_none() || kind == quoted,
            "{verdict:?} {}",
            context()
        );
        return false;
    };
    let metadata = metadata.unwrap_or_else(|| panic!("{verdict:?} {}", context()));
    let index = u16::from(datagram.protocol);
    assert_eq!(
        metadata.channel_id(),
        ChannelId::new(index, destination),
        "{}",
        context()
    );
    let read = (metadata.version, metadata.protocol, metadata.kind());
    let sought = (datagram.version, datagram.protocol, Some(datagram.kind));
    assert_eq!(read, sought, "{}", context());
    let read = [metadata.transport, metadata.end].map(usize::from);
    assert_eq!(read, [datagram.start, datagram.end], "{}", context());
    // Nor does it belong to another flow than the other parser's.
    let mapped = datagram.version == 6 && datagram.source.to_canonical().is_ipv4();
    if source != 0 && !mapped {
        let local = SocketAddr::new(datagram.destination, destination);
        let remote = SocketAddr::new(datagram.source, source);
        let protocol = if datagram.protocol == IpNumber::UDP.0 {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        let channel = ChannelId::new(CONNECTED, source);
        tables
            .embedded
            .connect(protocol, local, remote, channel)
            .unwrap();
        let (_, metadata) = run(tables, frame);
        tables.embedded.disconnect(protocol, local, remote);
        let found = metadata.map(|metadata| metadata.channel_id());
        assert_eq!(found, Some(channel), "{}", context());
    }
    true
}

#[test]
fn another_parser_reads_the_same_in_the_corpus() {
    let tables = tables();
    let judged = corpus()
        .iter()
        .filter(|sample| judge(&tables, &sample.name, &sample.bytes))
        .count();
    println!("{judged} datagrams of flows");
    assert!(judged > 50);
}

#[test]
fn another_parser_reads_the_same_in_mutations() {
    let tables = tables();
    let corpus = corpus();
    let mut random = Random(0x6a75_6467_6521);
    let judged = (0..100_000)
        .filter(|_| {
            let sample = &corpus[random.below(corpus.len())];
            let other = &corpus[random.below(corpus.len())];
            let mut bytes = sample.bytes.clone();
            mutate(&mut bytes, &other.bytes, &mut random);
            judge(&tables, &sample.name, &bytes)
        })
        .count();
    println!("{judged} datagrams of flows");
    assert!(judged > 10_000);
}
