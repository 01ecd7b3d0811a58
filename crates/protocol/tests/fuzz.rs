//! Fuzz targets of every engine. `tidewall_fuzz` describes how they are run;
//! `BOLERO_RANDOM_TEST_TIME_MS` sets for how long.
//!
//! Random bytes seldom have a valid checksum, so each input is tried twice: as it is, and
//! with lengths and checksums corrected.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidewall_fuzz::Seed;
use tidewall_protocol::ip::reassembly::{Limits, Reassembled, Reassembler};
use tidewall_protocol::udp::{self, Checksum, InputOptions, Output};
use tidewall_protocol::{DropReason, icmp};
use tidewall_wire::ethernet::{self, MacAddress};
use tidewall_wire::icmp::{Message, v4, v6};
use tidewall_wire::ipv4::FragmentOffset;
use tidewall_wire::udp::Addresses;
use tidewall_wire::{Protocol, checksum, ipv4, ipv6};

#[path = "tcp/frames.rs"]
mod frames;
#[path = "tcp/fuzzed.rs"]
mod fuzzed;
#[path = "tcp/link.rs"]
#[allow(dead_code, reason = "shared with the test `tcp`")]
mod link;
#[path = "tcp/random.rs"]
#[allow(dead_code, reason = "shared with the test `tcp`")]
mod random;

use fuzzed::{tcp_input, tcp_pair, tcp_peer, tcp_sent, tcp_thaw};

/// Time for random inputs to each target in an ordinary test run.
const TIME: Duration = Duration::from_millis(500);

const OFFLOAD: InputOptions = InputOptions {
    checksum_offload_possible: true,
    verified: false,
};
const WIRE: InputOptions = InputOptions {
    checksum_offload_possible: false,
    verified: false,
};

#[test]
fn fuzz_udp_input() {
    fuzz("udp_input", |bytes| {
        udp_input(bytes);
        udp_input(&mended(bytes));
    });
}

#[test]
fn fuzz_udp_output() {
    fuzz("udp_output", udp_output);
}

#[test]
fn fuzz_icmp_error() {
    fuzz("icmp_error", |bytes| {
        icmp_error(bytes);
        icmp_error(&mended(bytes));
    });
}

#[test]
fn fuzz_reassembly_of_one() {
    fuzz("reassembly_of_one", |bytes| {
        let mut reassembler = Reassembler::default();
        for bytes in [bytes, &mended(bytes)] {
            if let Ok(Some(whole)) = reassembler.insert(Duration::ZERO, bytes, Some(1)) {
                assert_sound(&whole);
            }
        }
    });
}

#[test]
fn fuzz_reassembly_script() {
    fuzz("reassembly_script", reassembly_script);
}

#[test]
fn fuzz_tcp_input() {
    fuzz("tcp_input", |bytes| {
        tcp_input(bytes);
        tcp_input(&mended(bytes));
    });
}

#[test]
fn fuzz_tcp_peer() {
    fuzz("tcp_peer", tcp_peer);
}

#[test]
fn fuzz_tcp_pair() {
    fuzz("tcp_pair", tcp_pair);
}

#[test]
fn fuzz_tcp_thaw() {
    fuzz("tcp_thaw", tcp_thaw);
}

tidewall_fuzz::targets!(seeds, TIME);

/// The offset of the transport header that the driver program would report.
fn transport_offset(bytes: &[u8]) -> usize {
    if let Ok(packet) = ipv4::Packet::new(bytes) {
        packet.header_len()
    } else if let Ok(packet) = ipv6::Packet::new(bytes)
        && let Ok(found) = packet.extensions()
    {
        found.transport
    } else {
        bytes.first().map_or(0, |byte| usize::from(*byte))
    }
}

fn udp_input(bytes: &[u8]) {
    let transport = transport_offset(bytes);
    let strict = udp::input(bytes, transport, &WIRE);
    let lenient = udp::input(bytes, transport, &OFFLOAD);
    if let Ok(datagram) = &strict {
        assert_eq!(Ok(datagram), lenient.as_ref());
        // Wrong metadata may lose a datagram, but must not change it.
        assert_eq!(
            udp::input(bytes, transport + 1, &WIRE),
            Err(DropReason::TransportOffset)
        );
    } else if lenient.is_ok() {
        assert_eq!(strict, Err(DropReason::UdpChecksum));
    }
    let Ok(datagram) = lenient else {
        return;
    };
    assert!(datagram.payload.start >= transport + 8 && datagram.payload.end <= bytes.len());
    assert_eq!(datagram.source.is_ipv4(), datagram.destination.is_ipv4());
}

fn udp_output(bytes: &[u8]) {
    let Some((control, payload)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let [family, checksum, room, class, hops, a, b, c] = *control;
    let address = |v6: bool, low: u8| -> SocketAddr {
        let ip = if v6 {
            format!("[2001:db8::{low:x}]")
        } else {
            format!("192.0.2.{low}")
        };
        format!("{ip}:{}", u16::from_be_bytes([low, c]))
            .parse()
            .unwrap()
    };
    let out = Output {
        source_mac: MacAddress([2, 0, 0, 0, 0, a]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, b]),
        source: address(family & 1 != 0, a),
        destination: address(family & 2 != 0, b),
        traffic_class: class,
        hop_limit: hops,
        identification: u16::from_be_bytes([a, c]),
        checksum: [Checksum::Software, Checksum::Offload, Checksum::None]
            [usize::from(checksum % 3)],
    };
    let mut frame = vec![0x5a; payload.len() + usize::from(room)];
    match udp::output(&mut frame, &out, payload) {
        Ok(length) => {
            assert!(frame[length..].iter().all(|byte| *byte == 0x5a));
            let bytes = &frame[ethernet::HEADER_LEN..length];
            let got = udp::input(bytes, transport_offset(bytes), &OFFLOAD).unwrap();
            assert_eq!((got.source, got.destination), (out.source, out.destination));
            assert_eq!((got.traffic_class, got.hop_limit), (class, hops));
            assert_eq!(&bytes[got.payload], payload);
        }
        Err(error) => {
            let fits = frame.len() >= payload.len() + udp::HEADERS_V6;
            let mixed = out.source.is_ipv4() != out.destination.is_ipv4();
            let unsummed = out.checksum == Checksum::None && out.source.is_ipv6();
            assert!(!fits || mixed || unsummed, "{error}");
        }
    }
}

fn icmp_error(bytes: &[u8]) {
    let Ok(found) = icmp::error(bytes, transport_offset(bytes)) else {
        return;
    };
    assert_eq!(found.local.is_ipv4(), found.remote.is_ipv4());
    assert!(found.errno > 0);
    let least = if found.local.is_ipv4() {
        icmp::MTU_MIN_V4
    } else {
        icmp::MTU_MIN_V6
    };
    assert!(found.mtu.is_none_or(|mtu| mtu >= least));
}

/// Reads its input as a list of fragments, six bytes for each, and sends them.
fn reassembly_script(bytes: &[u8]) {
    let limits = Limits {
        datagrams: 8,
        bytes: 20_000,
        fragments: 6,
        ..Limits::default()
    };
    let mut reassembler = Reassembler::new(limits);
    let mut now = Duration::ZERO;
    for step in bytes.chunks_exact(6) {
        let [kind, id, at, length, fill, wait] = *step else {
            continue;
        };
        now += Duration::from_millis(u64::from(wait) * 100);
        let length = usize::from(length % 40) * 8 + usize::from(kind & 4 != 0 && kind & 1 == 0);
        let payload = vec![fill & 1; length];
        let at = u16::from(at % 48) * 8;
        let more = kind & 1 != 0;
        let bytes = if kind & 2 != 0 {
            fragment6(u32::from(id % 4), at, more, &payload)
        } else {
            fragment4(u16::from(id % 4), at, more, &payload)
        };
        match reassembler.insert(now, &bytes, (at == 0).then_some(u64::from(id % 4))) {
            Ok(Some(whole)) => {
                assert_sound(&whole);
                assert_eq!(whole.tag, Some(u64::from(id % 4)));
            }
            Ok(None) => assert!(reassembler.next_expiry().is_some_and(|expiry| expiry > now)),
            Err(cause) => assert!(!cause.name().is_empty()),
        }
        assert!(reassembler.datagrams() <= limits.datagrams);
        assert!(reassembler.bytes() <= limits.bytes);
        assert_eq!(reassembler.bytes() == 0, reassembler.datagrams() == 0);
    }
    reassembler.expire(now + Duration::from_secs(60));
    assert_eq!((reassembler.bytes(), reassembler.datagrams()), (0, 0));
    let counters = *reassembler.counters();
    assert!(counters.reassembled + counters.atomic <= counters.fragments);
}

fn assert_sound(whole: &Reassembled) {
    assert!(whole.transport <= whole.bytes.len());
    assert_eq!(transport_offset(&whole.bytes), whole.transport);
    if let Ok(packet) = ipv4::Packet::new(&whole.bytes) {
        assert!(packet.has_valid_checksum() && !packet.is_fragment());
        assert_eq!(usize::from(packet.total_length()), whole.bytes.len());
    } else {
        let packet = ipv6::Packet::new(&whole.bytes).unwrap();
        assert_eq!(packet.payload().len() + ipv6::HEADER_LEN, whole.bytes.len());
    }
}

/// The same bytes with correct version, lengths and checksums.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.truncate(65_535);
    match bytes.first().map(|byte| byte & 0x80 == 0) {
        Some(true) if bytes.len() >= 28 => mend_v4(&mut bytes),
        Some(false) if bytes.len() >= 48 => mend_v6(&mut bytes),
        _ => {}
    }
    bytes
}

fn mend_v4(bytes: &mut [u8]) {
    bytes[0] = 0x45;
    // A permitted source address.
    bytes[12] = bytes[12] % 126 + 1;
    let total = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::checksum(&bytes[..20]);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    let (header, transport) = bytes.split_at_mut(20);
    let packet_source = <[u8; 4]>::try_from(&header[12..16]).unwrap().into();
    let packet_destination = <[u8; 4]>::try_from(&header[16..20]).unwrap().into();
    match header[9] {
        17 => {
            let length = transport.len() as u16;
            let pseudo = checksum::pseudo_header_v4(
                packet_source,
                packet_destination,
                Protocol::UDP,
                length,
            );
            mend_transport(transport, 6, Some(length), pseudo);
        }
        1 => mend_transport(transport, 2, None, checksum::Sum::ZERO),
        6 => {
            let length = transport.len() as u16;
            let pseudo = checksum::pseudo_header_v4(
                packet_source,
                packet_destination,
                Protocol::TCP,
                length,
            );
            mend_transport(transport, 16, None, pseudo);
        }
        _ => {}
    }
}

fn mend_v6(bytes: &mut [u8]) {
    bytes[0] = 0x60;
    bytes[8] = 0x20;
    let length = (bytes.len() - 40) as u16;
    bytes[4..6].copy_from_slice(&length.to_be_bytes());
    let Ok(found) = ipv6::Packet::new(bytes).unwrap().extensions() else {
        return;
    };
    let source = <[u8; 16]>::try_from(&bytes[8..24]).unwrap().into();
    let destination = <[u8; 16]>::try_from(&bytes[24..40]).unwrap().into();
    let transport = &mut bytes[found.transport..];
    let length = transport.len() as u16;
    let pseudo = checksum::pseudo_header_v6(source, destination, found.protocol, length.into());
    match found.protocol {
        Protocol::UDP => mend_transport(transport, 6, Some(length), pseudo),
        Protocol::ICMPV6 => mend_transport(transport, 2, None, pseudo),
        Protocol::TCP => mend_transport(transport, 16, None, pseudo),
        _ => {}
    }
}

fn mend_transport(transport: &mut [u8], field: usize, length: Option<u16>, sum: checksum::Sum) {
    if transport.len() < 8.max(field + 2) {
        return;
    }
    if let Some(length) = length {
        transport[4..6].copy_from_slice(&length.to_be_bytes());
    }
    transport[field..field + 2].fill(0);
    let sum = match sum.bytes(transport).checksum() {
        0 if length.is_some() => 0xffff,
        sum => sum,
    };
    transport[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

fn seeds() -> Vec<Seed> {
    let udp4 = sent("192.0.2.1:5000", "192.0.2.2:7", Checksum::Software);
    let left4 = sent("192.0.2.1:5000", "192.0.2.2:7", Checksum::Offload);
    let udp6 = sent("[2001:db8::1]:5000", "[2001:db8::2]:7", Checksum::Software);
    let mut martian4 = sent("127.0.0.1:5000", "192.0.2.2:7", Checksum::None);
    martian4.resize(46, 0);
    let mut options6 = udp6.clone();
    options6.splice(40..40, [17, 0, 1, 4, 0, 0, 0, 0]);
    options6[5] += 8;
    options6[6] = 60;
    let unreachable4 = {
        let message = Message {
            kind: v4::kind::DESTINATION_UNREACHABLE,
            code: v4::unreachable::PORT,
            rest: [0; 4],
            body: &udp4[..28],
        };
        let mut body = vec![0; 100];
        let addresses = Addresses::V4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
        let length = message.emit(addresses, &mut body).unwrap();
        packet4(Protocol::ICMP, 1, 0, false, &body[..length])
    };
    let too_big6 = {
        let header = header6(Protocol::ICMPV6);
        let message = Message {
            kind: v6::kind::PACKET_TOO_BIG,
            code: 0,
            rest: 1280u32.to_be_bytes(),
            body: &udp6,
        };
        let mut body = vec![0; 200];
        // Sent to the quoted datagram's source.
        let addresses = Addresses::V6(header.destination, header.source);
        let length = message.emit(addresses, &mut body).unwrap();
        let header = ipv6::Header {
            source: header.destination,
            destination: header.source,
            ..header
        };
        let mut bytes = vec![0; 40];
        header.emit(length, &mut bytes).unwrap();
        bytes.extend(&body[..length]);
        bytes
    };
    let first4 = fragment4(7, 0, true, b"first fragment..");
    let first6 = fragment6(7, 0, true, b"first fragment..");
    let atomic6 = fragment6(7, 0, false, b"whole...");
    let ping_of_death4 = fragment4(7, 65_528, false, &[0; 100]);
    // Kind (1 more, 2 IPv6), id, offset, length (both in eights), fill, wait.
    let in_order = [
        [1, 1, 0, 2, 0, 0],
        [0, 1, 2, 1, 1, 1],
        [3, 1, 0, 2, 0, 0],
        [2, 1, 2, 1, 1, 1],
    ];
    let reversed = [[2, 1, 4, 1, 0, 0], [3, 1, 2, 2, 0, 0], [3, 1, 0, 2, 0, 0]];
    let teardrop = [[1, 1, 0, 3, 0, 0], [0, 1, 1, 1, 1, 0], [0, 1, 3, 1, 0, 0]];
    let duplicates = [[1, 2, 0, 2, 0, 0], [1, 2, 0, 2, 0, 0], [0, 2, 2, 1, 0, 255]];
    let late = [
        [3, 0, 0, 2, 0, 0],
        [3, 1, 0, 2, 0, 255],
        [3, 2, 0, 2, 0, 255],
        [2, 0, 2, 1, 0, 255],
    ];
    let script = |steps: &[[u8; 6]]| steps.concat();
    let tcp4 = tcp_sent(false);
    let tcp6 = tcp_sent(true);
    let step = |parts: &[[u8; 8]]| [&[7u8][..], &parts.concat()].concat();
    // A handshake, data in and out of order, an acknowledgment, a close.
    let session = step(&[
        [64 + 4, 0, 0, 0, 0, 1, 0, 0],
        [64, 0x12, 5, 180, 0, 0, 0x04, 255],
        [64 + 32, 0x10, 0, 0, 0, 0, 0, 100],
        [64 + 32, 0x18, 2, 0, 0, 0, 4, 90],
        [64 + 7, 0, 0, 0, 0, 0, 0, 200],
        [64, 0x10, 0, 0, 0, 0, 0, 9],
        [6, 7, 0, 0, 0, 0, 0, 0],
        [64 + 6, 3, 0, 0, 0, 0, 0, 0],
        [64 + 5, 0, 0, 0, 0, 0, 0, 0],
    ]);
    let frozen = vec![
        0xc0, 0xeb, 0x3f, 0xa7, 0x26, 0x26, 0x20, 0x2b, 0xf3, 0x92, 0xaa, 0x21, 0xba, 0xdf, 0xfd,
        0x0d, 0xcb, 0x97, 0xe8, 0x03, 0xcd, 0x4b, 0xc0, 0x6d, 0xc0, 0xd4, 0x03, 0x4f, 0x28, 0x66,
        0x80, 0xfb, 0x1a, 0x10, 0xdb, 0x05, 0xb9, 0xfa, 0xb4, 0xc5,
    ];
    let pair = [&[10, 5, 20, 30, 60, 0x77, 0xff, 1][..], &[0x5a; 300]].concat();
    let seeds = [
        ("tcp_input", "v4", tcp4.clone()),
        ("tcp_input", "v4-cut", tcp4[..30].to_vec()),
        ("tcp_input", "v6", tcp6),
        ("tcp_peer", "session", session),
        ("tcp_peer", "frozen-just-then", frozen),
        ("tcp_pair", "hostile", pair),
        ("tcp_thaw", "unchanged", Vec::new()),
        ("tcp_thaw", "changed", vec![0, 5, 1, 1, 0, 9]),
        ("udp_input", "v4", udp4.clone()),
        ("udp_input", "v4-left-to-offload", left4),
        ("udp_input", "v4-martian-padded", martian4),
        ("udp_input", "v6", udp6.clone()),
        ("udp_input", "v6-options", options6),
        ("udp_input", "v6-truncated", udp6[..47].to_vec()),
        (
            "udp_output",
            "v4",
            b"\x00\x00\x50\xb8\x40\x01\x02\x07hello".to_vec(),
        ),
        (
            "udp_output",
            "v6-offload",
            b"\x03\x01\x50\x00\xff\x01\x02\x07hello".to_vec(),
        ),
        (
            "udp_output",
            "mixed",
            b"\x01\x00\x50\x00\x40\x01\x02\x07hello".to_vec(),
        ),
        (
            "udp_output",
            "no-room",
            b"\x00\x00\x29\x00\x40\x01\x02\x07hello".to_vec(),
        ),
        ("icmp_error", "port-unreachable4", unreachable4.clone()),
        ("icmp_error", "cut-quote4", unreachable4[..50].to_vec()),
        ("icmp_error", "too-big6", too_big6),
        ("reassembly_of_one", "first4", first4),
        ("reassembly_of_one", "first6", first6),
        ("reassembly_of_one", "atomic6", atomic6),
        ("reassembly_of_one", "ping-of-death4", ping_of_death4),
        ("reassembly_script", "in-order", script(&in_order)),
        ("reassembly_script", "reversed", script(&reversed)),
        ("reassembly_script", "teardrop", script(&teardrop)),
        ("reassembly_script", "duplicates", script(&duplicates)),
        ("reassembly_script", "late", script(&late)),
    ];
    seeds.map(Seed::from).to_vec()
}

/// A UDP datagram from its IP header on.
fn sent(source: &str, destination: &str, checksum: Checksum) -> Vec<u8> {
    let out = Output {
        source_mac: MacAddress::default(),
        destination_mac: MacAddress::default(),
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        checksum,
    };
    let mut frame = [0; 100];
    let length = udp::output(&mut frame, &out, b"hello").unwrap();
    frame[ethernet::HEADER_LEN..length].to_vec()
}

fn packet4(protocol: Protocol, id: u16, at: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        tos: 0,
        identification: id,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: FragmentOffset::from_bytes(at).unwrap(),
        ttl: 64,
        protocol,
        source: [192, 0, 2, 2].into(),
        destination: [192, 0, 2, 1].into(),
        options: ipv4::Options::NONE,
    };
    let mut bytes = vec![0; 20];
    header.emit(payload.len(), &mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn fragment4(id: u16, at: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    packet4(Protocol::UDP, id, at, more, payload)
}

fn header6(next_header: Protocol) -> ipv6::Header {
    ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: 64,
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
    }
}

fn fragment6(id: u32, at: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let fragment = ipv6::Fragment {
        at: 40,
        announced_at: 6,
        next_header: Protocol::UDP,
        offset: FragmentOffset::from_bytes(at).unwrap(),
        more,
        identification: id,
    };
    let mut bytes = vec![0; 48];
    let rest = header6(Protocol::FRAGMENT)
        .emit(8 + payload.len(), &mut bytes)
        .unwrap();
    fragment.emit(rest).unwrap();
    bytes.extend(payload);
    bytes
}
