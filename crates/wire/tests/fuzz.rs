//! Fuzz targets of every parser. `tidewall_fuzz` describes how they are run;
//! `BOLERO_RANDOM_TEST_TIME_MS` sets for how long.
//!
//! Every target checks that nothing panics, and that a parsed value can be emitted and
//! parses the same way again.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tidewall_fuzz::Seed;
use tidewall_wire::acp;
use tidewall_wire::ethernet::{self, EtherType, MacAddress};
use tidewall_wire::icmp::{self, Message, v4, v6};
use tidewall_wire::ipv4::{self, FragmentOffset};
use tidewall_wire::ipv6::{self, Fragment};
use tidewall_wire::resp;
use tidewall_wire::udp::{self, Addresses, Checksum};
use tidewall_wire::{Protocol, checksum};

/// Time for random inputs to each target in an ordinary test run.
const TIME: Duration = Duration::from_millis(400);

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
];

#[test]
fn fuzz_frame() {
    fuzz("frame", frame);
}

#[test]
fn fuzz_ipv4() {
    fuzz("ipv4", ipv4);
}

#[test]
fn fuzz_ipv6() {
    fuzz("ipv6", ipv6);
}

#[test]
fn fuzz_udp() {
    fuzz("udp", udp);
}

#[test]
fn fuzz_icmp() {
    fuzz("icmp", |bytes| {
        icmp_message(bytes);
    });
}

#[test]
fn fuzz_acp() {
    fuzz("acp", acp_frames);
}

#[test]
fn fuzz_resp() {
    fuzz("resp", resp_values);
}

#[test]
fn fuzz_mac_address() {
    fuzz("mac_address", |bytes| {
        if let Ok(Ok(address)) = str::from_utf8(bytes).map(str::parse::<MacAddress>) {
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    });
}

tidewall_fuzz::targets!(seeds, TIME);

fn frame(bytes: &[u8]) {
    let Ok(frame) = ethernet::Frame::new(bytes) else {
        return;
    };
    let header = ethernet::Header::of(&frame);
    let mut again = [0; ethernet::HEADER_LEN];
    header.emit(&mut again).unwrap();
    assert_eq!(again, bytes[..ethernet::HEADER_LEN]);
    assert_eq!(frame.vlan().is_some(), frame.ethertype().is_tag());
    match frame.ethertype() {
        EtherType::IPV4 => ipv4(frame.payload()),
        EtherType::IPV6 => ipv6(frame.payload()),
        _ => {}
    }
}

fn ipv4(bytes: &[u8]) {
    if let Ok(quoted) = ipv4::Packet::new_quoted(bytes) {
        assert!(quoted.header_len() + quoted.payload().len() <= bytes.len());
    }
    let Ok(packet) = ipv4::Packet::new(bytes) else {
        return;
    };
    assert!(packet.option_bytes().len() <= 40);
    let header = ipv4::Header::of(&packet);
    let mut again = vec![0; packet.header_len()];
    header.emit(packet.payload().len(), &mut again).unwrap();
    again.extend(packet.payload());
    let again = ipv4::Packet::new(&again).unwrap();
    assert!(again.has_valid_checksum());
    assert_eq!(ipv4::Header::of(&again), header);
    if !packet.is_fragment() {
        transport(packet.protocol(), packet.payload());
    }
}

fn ipv6(bytes: &[u8]) {
    let Ok(packet) = ipv6::Packet::new(bytes) else {
        return;
    };
    let header = ipv6::Header::of(&packet);
    let mut again = vec![0; ipv6::HEADER_LEN];
    header.emit(packet.payload().len(), &mut again).unwrap();
    assert_eq!(again, bytes[..ipv6::HEADER_LEN]);
    let Ok(found) = packet.extensions() else {
        return;
    };
    let end = ipv6::HEADER_LEN + packet.payload().len();
    assert!((ipv6::HEADER_LEN..=end).contains(&found.transport));
    if let Some(fragment) = found.fragment {
        assert_eq!(bytes[fragment.announced_at], Protocol::FRAGMENT.0);
        let mut again = [0; ipv6::FRAGMENT_HEADER_LEN];
        fragment.emit(&mut again).unwrap();
        let sent = &bytes[fragment.at..fragment.at + ipv6::FRAGMENT_HEADER_LEN];
        // Reserved bits are sent as zero (RFC 8200 §4.5).
        assert_eq!(
            (again[0], again[2], again[3] & !6),
            (sent[0], sent[2], sent[3] & !6)
        );
        assert_eq!(again[4..], sent[4..]);
    }
    if found.fragment.is_none_or(|fragment| fragment.is_atomic()) {
        transport(found.protocol, &bytes[found.transport..end]);
    }
}

fn transport(protocol: Protocol, bytes: &[u8]) {
    match protocol {
        Protocol::UDP => udp(bytes),
        Protocol::ICMP | Protocol::ICMPV6 => icmp_message(bytes),
        _ => {}
    }
}

fn udp(bytes: &[u8]) {
    let Ok(packet) = udp::Packet::new(bytes) else {
        return;
    };
    assert_eq!(
        packet.payload().len() + udp::HEADER_LEN,
        usize::from(packet.length())
    );
    let header = udp::Header::of(&packet);
    for (kind, expected) in [
        (Checksum::Software, udp::ChecksumState::Valid),
        (Checksum::Offload, udp::ChecksumState::LeftToOffload),
        (Checksum::None, udp::ChecksumState::Absent),
    ] {
        let mut again = vec![0; usize::from(packet.length())];
        for family in [Addresses::V4(V4[0], V4[1]), Addresses::V6(V6[0], V6[1])] {
            header
                .emit(family, packet.payload(), kind, &mut again)
                .unwrap();
            let again = udp::Packet::new(&again).unwrap();
            assert_eq!(udp::Header::of(&again), header);
            assert_eq!(again.payload(), packet.payload());
            let state = again.checksum_state(family);
            // The sum of the pseudo-header may be the right checksum by chance.
            let chance = kind == Checksum::Offload && state == udp::ChecksumState::Valid;
            assert!(state == expected || chance, "{state:?}");
        }
    }
}

fn icmp_message(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else {
        return;
    };
    for addresses in [Addresses::V4(V4[0], V4[1]), Addresses::V6(V6[0], V6[1])] {
        let mut again = vec![0; bytes.len()];
        let length = message.emit(addresses, &mut again).unwrap();
        assert!(icmp::has_valid_checksum(addresses, &again[..length]));
        assert_eq!(Message::parse(&again[..length]), Ok(message));
    }
    if let Ok(quoted) = ipv4::Packet::new_quoted(message.body) {
        assert!(quoted.payload().len() < bytes.len());
    }
    if let Ok(quoted) = ipv6::Packet::new_quoted(message.body)
        && let Ok(found) = quoted.extensions()
    {
        assert!(found.transport <= bytes.len());
    }
}

/// The frames of a segment are consecutive, and rebuilt frames are the same except for
/// the content of null frames. A value ends at the same place however its bytes are cut.
/// A complete command with a key has the stated number of arguments.
fn resp_values(bytes: &[u8]) {
    let ends = |piece: usize| {
        let (mut scanner, mut at, mut ends) = (resp::Scanner::new(), 0, Vec::new());
        while at < bytes.len() {
            let end = bytes.len().min(at + piece);
            match scanner.scan(&bytes[at..end]) {
                Ok((taken, ended)) => {
                    at += taken;
                    assert!(taken > 0 && (ended || at == end));
                    ends.extend(ended.then_some(at));
                }
                Err(error) => return (ends, Some(error)),
            }
        }
        (ends, None)
    };
    let (whole, error) = ends(bytes.len().max(1));
    assert_eq!(ends(1), (whole.clone(), error));
    assert_eq!(ends(3), (whole.clone(), error));
    if let Some(mut arguments) = resp::arguments(bytes) {
        let (said, read) = (arguments.left(), arguments.by_ref().count());
        assert_eq!(said, read + arguments.left());
        if arguments.left() == 0 && said <= 64 {
            assert!(
                !whole.is_empty() || error == Some(resp::Error::TooLong),
                "{bytes:?}"
            );
            assert!(resp::key(bytes).is_some());
        }
    }
}

fn acp_frames(bytes: &[u8]) {
    let mut again = vec![0; bytes.len()];
    let mut builder = acp::Builder::new(&mut again);
    let mut end = 0;
    let mut frames = acp::Frames::new(bytes);
    let error = loop {
        match frames.next() {
            None => break None,
            Some(Err(error)) => break Some(error),
            Some(Ok(frame)) => {
                assert_eq!(frame.offset, end);
                match frame.kind {
                    acp::Kind::Data => builder.data(frame.payload).unwrap(),
                    acp::Kind::Null => builder.null(frame.payload.len() as u16).unwrap(),
                }
                end += frame.size();
                assert_eq!(builder.len(), end);
            }
        }
    };
    assert_eq!(frames.next(), None);
    assert_eq!(error.is_none(), end == bytes.len());
    assert_eq!(
        acp::Frames::new(&again[..end])
            .filter(Result::is_err)
            .count(),
        0
    );
}

#[test]
fn the_corpus_is_as_generated() {
    tidewall_fuzz::check_corpus(env!("CARGO_MANIFEST_DIR"), &seeds());
}

fn seeds() -> Vec<Seed> {
    let udp4 = datagram(Addresses::V4(V4[0], V4[1]), Checksum::Software);
    let left4 = datagram(Addresses::V4(V4[0], V4[1]), Checksum::Offload);
    let udp6 = datagram(Addresses::V6(V6[0], V6[1]), Checksum::Software);
    let plain4 = packet4(Protocol::UDP, &[], 0, false, &udp4);
    let plain6 = packet6(Protocol::UDP, &udp6);
    let unreachable4 = emitted(
        Addresses::V4(V4[0], V4[1]),
        Message {
            kind: v4::kind::DESTINATION_UNREACHABLE,
            code: v4::unreachable::PORT,
            rest: [0; 4],
            body: &plain4[..28],
        },
    );
    assert_eq!(checksum::checksum(&unreachable4), 0);
    let too_big6 = emitted(
        Addresses::V6(V6[0], V6[1]),
        Message {
            kind: v6::kind::PACKET_TOO_BIG,
            code: 0,
            rest: 1280u32.to_be_bytes(),
            body: &plain6,
        },
    );
    let chain6 = {
        let mut chain = Vec::new();
        for next in [
            Protocol::DESTINATION_OPTIONS,
            Protocol::ROUTING,
            Protocol::UDP,
        ] {
            chain.extend([next.0, 0, 1, 4, 0, 0, 0, 0]);
        }
        chain.extend(&udp6);
        packet6(Protocol::HOP_BY_HOP, &chain)
    };
    let first6 = packet6(Protocol::FRAGMENT, &fragment6(0, true, &udp6[..16]));
    let later6 = packet6(Protocol::FRAGMENT, &fragment6(16, false, &udp6[16..]));
    let atomic6 = packet6(Protocol::FRAGMENT, &fragment6(0, false, &udp6));
    let too_many6 = packet6(
        Protocol::DESTINATION_OPTIONS,
        &[[Protocol::DESTINATION_OPTIONS.0, 0, 1, 4, 0, 0, 0, 0]; 9].concat(),
    );
    let options4 = packet4(Protocol::UDP, &[1, 7, 7, 4, 0, 0, 0, 0, 0], 0, false, &udp4);
    let bad_options4 = packet4(Protocol::UDP, &[68, 60, 5], 0, false, &udp4);
    let first4 = packet4(Protocol::UDP, &[], 0, true, &udp4[..16]);
    let later4 = packet4(Protocol::UDP, &[], 16, false, &udp4[16..]);
    let teardrop4 = packet4(Protocol::UDP, &[], 8, false, &udp4[..8]);
    let ping_of_death4 = packet4(Protocol::ICMP, &[], 65_528, false, &[0; 100]);
    let (v4_type, v6_type) = (EtherType::IPV4, EtherType::IPV6);
    let mut padded4 = plain4.clone();
    padded4.resize(60, 0);
    let mut short_total4 = plain4.clone();
    short_total4[3] = 19;
    let mut tagged4 = vec![0x00, 0x2a, 0x08, 0x00];
    tagged4.extend(&plain4);
    let mut long_udp4 = plain4.clone();
    long_udp4[25] = 200;
    let seeds = [
        ("frame", "udp4", framed(v4_type, &plain4)),
        ("frame", "udp4-link-padding", framed(v4_type, &padded4)),
        (
            "frame",
            "udp4-left-to-offload",
            framed(v4_type, &packet4(Protocol::UDP, &[], 0, false, &left4)),
        ),
        ("frame", "udp4-options", framed(v4_type, &options4)),
        ("frame", "udp4-bad-options", framed(v4_type, &bad_options4)),
        ("frame", "udp4-tagged", framed(EtherType::VLAN, &tagged4)),
        (
            "frame",
            "udp4-total-length-below-header",
            framed(v4_type, &short_total4),
        ),
        (
            "frame",
            "udp4-udp-length-over-datagram",
            framed(v4_type, &long_udp4),
        ),
        ("frame", "fragment4-first", framed(v4_type, &first4)),
        ("frame", "fragment4-later", framed(v4_type, &later4)),
        ("frame", "fragment4-teardrop", framed(v4_type, &teardrop4)),
        (
            "frame",
            "fragment4-ping-of-death",
            framed(v4_type, &ping_of_death4),
        ),
        (
            "frame",
            "icmp4-port-unreachable",
            framed(
                v4_type,
                &packet4(Protocol::ICMP, &[], 0, false, &unreachable4),
            ),
        ),
        ("frame", "udp6", framed(v6_type, &plain6)),
        ("frame", "udp6-extensions", framed(v6_type, &chain6)),
        (
            "frame",
            "udp6-too-many-extensions",
            framed(v6_type, &too_many6),
        ),
        ("frame", "udp6-truncated", framed(v6_type, &plain6[..50])),
        ("frame", "fragment6-first", framed(v6_type, &first6)),
        ("frame", "fragment6-later", framed(v6_type, &later6)),
        ("frame", "fragment6-atomic", framed(v6_type, &atomic6)),
        (
            "frame",
            "icmp6-packet-too-big",
            framed(v6_type, &packet6(Protocol::ICMPV6, &too_big6)),
        ),
        (
            "frame",
            "tag-truncated",
            framed(EtherType::SERVICE_VLAN, &[0, 1]),
        ),
        ("ipv4", "plain", plain4),
        ("ipv4", "options", options4),
        ("ipv4", "bad-options", bad_options4),
        ("ipv4", "fragment", later4),
        ("ipv6", "plain", plain6),
        ("ipv6", "extensions", chain6),
        ("ipv6", "fragment-first", first6),
        ("ipv6", "fragment-later", later6),
        ("udp", "software", udp4),
        ("udp", "offload", left4),
        ("udp", "length-zero", vec![0x13, 0x88, 0, 53, 0, 0, 0, 0]),
        ("icmp", "unreachable4", unreachable4),
        ("icmp", "too-big6", too_big6),
        (
            "icmp",
            "echo4",
            emitted(
                Addresses::V4(V4[0], V4[1]),
                Message {
                    kind: v4::kind::ECHO,
                    code: 0,
                    rest: [0, 7, 0, 1],
                    body: b"ping",
                },
            ),
        ),
        ("acp", "data", b"\xac\x00\x00\x05frame".to_vec()),
        (
            "acp",
            "several",
            b"\xac\x00\x00\x00\xac\x01\x00\x02\x00\x00\xac\x00\x00\x01x".to_vec(),
        ),
        ("acp", "length-beyond-end", b"\xac\x00\xff\xffx".to_vec()),
        (
            "acp",
            "header-within-payload",
            b"\xac\x00\x00\x08\xac\x00\x00\x00\xac\x02\x00\x00".to_vec(),
        ),
        (
            "resp",
            "commands",
            b"*2\r\n$3\r\nGET\r\n$3\r\nabc\r\n*3\r\n$3\r\nset\r\n$2\r\nab\r\n$1\r\nx\r\n".to_vec(),
        ),
        (
            "resp",
            "nested",
            b"*2\r\n*2\r\n$1\r\nx\r\n*0\r\n:1\r\n*-1\r\n$-1\r\n+OK\r\n-ERR\r\n".to_vec(),
        ),
        ("resp", "deep", b"*1\r\n".repeat(17)),
        (
            "resp",
            "length-lies",
            b"*4294967295\r\n$536870912\r\nabc\r\n".to_vec(),
        ),
        (
            "resp",
            "eval",
            b"*4\r\n$4\r\neval\r\n$1\r\ns\r\n$1\r\n1\r\n$1\r\nk\r\n".to_vec(),
        ),
        ("mac_address", "good", b"02:00:5e:10:00:01".to_vec()),
        ("mac_address", "sign", b"02:00:5e:10:00:+1".to_vec()),
    ];
    seeds.map(Seed::from).to_vec()
}

fn framed(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let header = ethernet::Header {
        destination: MacAddress([2, 0, 0, 0, 0, 2]),
        source: MacAddress([2, 0, 0, 0, 0, 1]),
        ethertype,
    };
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn packet4(protocol: Protocol, options: &[u8], offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header {
        tos: 0,
        identification: 0x1234,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: FragmentOffset::from_bytes(offset).unwrap(),
        ttl: 64,
        protocol,
        source: V4[0],
        destination: V4[1],
        options: ipv4::Options::new(options).unwrap(),
    };
    let mut bytes = vec![0; header.header_len()];
    header.emit(payload.len(), &mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn packet6(next_header: Protocol, payload: &[u8]) -> Vec<u8> {
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        next_header,
        hop_limit: 64,
        source: V6[0],
        destination: V6[1],
    };
    let mut bytes = vec![0; ipv6::HEADER_LEN];
    header.emit(payload.len(), &mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn fragment6(offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let header = Fragment {
        at: ipv6::HEADER_LEN,
        announced_at: 6,
        next_header: Protocol::UDP,
        offset: FragmentOffset::from_bytes(offset).unwrap(),
        more,
        identification: 0x1234_5678,
    };
    let mut bytes = vec![0; ipv6::FRAGMENT_HEADER_LEN];
    header.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn datagram(addresses: Addresses, checksum: Checksum) -> Vec<u8> {
    let header = udp::Header {
        source_port: 5000,
        destination_port: 7,
    };
    let mut bytes = vec![0; udp::HEADER_LEN + 24];
    header
        .emit(addresses, b"twenty-four bytes of it.", checksum, &mut bytes)
        .unwrap();
    bytes
}

fn emitted(addresses: Addresses, message: Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; icmp::HEADER_LEN + 200];
    let length = message.emit(addresses, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}
