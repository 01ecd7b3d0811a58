//! A UDP engine and a peer: the peer accepts what we send, and the engine refuses a
//! hostile packet with the right cause.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;
use proptest::prelude::*;
use tidewall_wire::ethernet::{self, EtherType, MacAddress};
use tidewall_wire::{checksum, ipv4, ipv6};

const LINK: usize = ethernet::HEADER_LEN;
const WIRE: InputOptions = InputOptions {
    checksum_offload_possible: false,
    verified: false,
};
const VIRTUAL: InputOptions = InputOptions {
    checksum_offload_possible: true,
    verified: false,
};

fn template(source: &str, destination: &str) -> Output {
    Output {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        checksum: Checksum::Software,
    }
}

fn v4() -> Output {
    template("192.0.2.1:5000", "192.0.2.2:7")
}

fn v6() -> Output {
    template("[2001:db8::1]:5000", "[2001:db8::2]:7")
}

/// The frame as the peer receives it.
fn sent(out: &Output, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xaa; 2048];
    let length = output(&mut frame, out, payload).unwrap();
    frame.truncate(length);
    frame
}

/// The IP datagram alone.
fn datagram(out: &Output, payload: &[u8]) -> Vec<u8> {
    sent(out, payload).split_off(LINK)
}

/// Recomputes the checksum of an IPv4 header after a change.
fn mend_v4(bytes: &mut [u8]) {
    let header_len = usize::from(bytes[0] & 0xf) * 4;
    bytes[10..12].fill(0);
    let checksum = checksum::checksum(&bytes[..header_len]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn refused(bytes: &[u8], transport: usize) -> DropReason {
    input(bytes, transport, &WIRE).unwrap_err()
}

#[test]
fn what_we_send_over_ipv4_a_peer_accepts() {
    let out = Output {
        traffic_class: 0xb8,
        hop_limit: 3,
        ..v4()
    };
    let frame = sent(&out, b"hello");
    let link = ethernet::Frame::new(&frame).unwrap();
    assert_eq!(link.ethertype(), EtherType::IPV4);
    assert_eq!(
        (link.source(), link.destination()),
        (out.source_mac, out.destination_mac)
    );
    let packet = ipv4::Packet::new(&frame[LINK..]).unwrap();
    assert!(packet.dont_fragment());
    let got = input(&frame[LINK..], 20, &WIRE).unwrap();
    assert_eq!(
        got,
        Datagram {
            source: out.source,
            destination: out.destination,
            payload: 28..33,
            traffic_class: 0xb8,
            hop_limit: 3,
        }
    );
    assert_eq!(&frame[LINK..][got.payload], b"hello");
}

#[test]
fn what_we_send_over_ipv6_a_peer_accepts() {
    let out = Output {
        traffic_class: 0x2e,
        hop_limit: 255,
        ..v6()
    };
    let bytes = datagram(&out, b"hello");
    let got = input(&bytes, 40, &WIRE).unwrap();
    assert_eq!((got.source, got.destination), (out.source, out.destination));
    assert_eq!((got.traffic_class, got.hop_limit), (0x2e, 255));
    assert_eq!(&bytes[got.payload], b"hello");
}

#[test]
fn a_payload_already_in_place_makes_the_same_frame() {
    for (out, headers) in [(v4(), HEADERS_V4), (v6(), HEADERS_V6)] {
        let mut frame = vec![0x55; headers + 9];
        frame[headers..headers + 5].copy_from_slice(b"hello");
        assert_eq!(output_around(&mut frame, &out, 5), Ok(headers + 5));
        assert_eq!(frame[..headers + 5], sent(&out, b"hello"));
        assert_eq!(frame[headers + 5..], [0x55; 4]);
    }
}

#[test]
fn an_empty_payload_is_a_datagram() {
    let bytes = datagram(&v4(), b"");
    assert_eq!(input(&bytes, 20, &WIRE).unwrap().payload, 28..28);
}

#[test]
fn link_padding_and_bytes_after_the_udp_length_are_left_out() {
    let mut bytes = datagram(&v4(), b"hi");
    bytes.resize(46, 0);
    assert_eq!(input(&bytes, 20, &WIRE).unwrap().payload, 28..30);

    // An IP payload longer than the UDP length: RFC 768 does not forbid it.
    let mut bytes = datagram(&v4(), b"hi");
    bytes.extend(b"trailer");
    bytes[3] += 7;
    mend_v4(&mut bytes);
    assert_eq!(input(&bytes, 20, &WIRE).unwrap().payload, 28..30);
}

#[test]
fn a_checksum_left_to_offload_is_taken_only_where_there_is_no_wire() {
    for (out, transport) in [(v4(), 20), (v6(), 40)] {
        let bytes = datagram(
            &Output {
                checksum: Checksum::Offload,
                ..out
            },
            b"hello",
        );
        assert_eq!(refused(&bytes, transport), DropReason::UdpChecksum);
        assert_eq!(
            input(&bytes, transport, &VIRTUAL).unwrap().source,
            out.source
        );
    }
}

#[test]
fn damage_is_noticed_everywhere() {
    let good = datagram(&v4(), b"hello");
    for at in 20..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x20;
        let cause = input(&bytes, 20, &VIRTUAL).unwrap_err();
        let length = at == 24 || at == 25;
        assert!(
            cause == DropReason::UdpChecksum || (length && cause == DropReason::UdpLength),
            "byte {at}: {cause}"
        );
    }
    let mut bytes = good.clone();
    bytes[8] ^= 1;
    assert_eq!(refused(&bytes, 20), DropReason::HeaderChecksum);
}

#[test]
fn no_checksum_is_taken_over_ipv4_and_not_over_ipv6() {
    let bytes = datagram(
        &Output {
            checksum: Checksum::None,
            ..v4()
        },
        b"hello",
    );
    assert!(input(&bytes, 20, &WIRE).is_ok());

    let mut bytes = datagram(&v6(), b"hello");
    bytes[46..48].fill(0);
    assert_eq!(refused(&bytes, 40), DropReason::UdpNoChecksum);
    let mut frame = [0; 100];
    let out = Output {
        checksum: Checksum::None,
        ..v6()
    };
    assert_eq!(
        output(&mut frame, &out, b"hello"),
        Err(OutputError::ChecksumRequired)
    );
}

#[test]
fn metadata_is_not_believed() {
    let bytes = datagram(&v4(), b"hello");
    for transport in [0, 19, 21, 24, 33, 34, usize::MAX] {
        assert_eq!(refused(&bytes, transport), DropReason::TransportOffset);
    }
    let bytes = datagram(&v6(), b"hello");
    for transport in [0, 39, 48, usize::MAX] {
        assert_eq!(refused(&bytes, transport), DropReason::TransportOffset);
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let good = datagram(&v4(), b"hello");
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        mend_v4(&mut bytes);
        bytes
    };
    assert_eq!(refused(&[], 0), DropReason::Truncated);
    assert_eq!(refused(&good[..19], 20), DropReason::Truncated);
    assert_eq!(refused(&good[..32], 20), DropReason::Truncated);
    assert_eq!(refused(&with(3, 34), 20), DropReason::Truncated);
    assert_eq!(refused(&with(3, 32), 20), DropReason::UdpLength);
    assert_eq!(refused(&with(3, 27), 20), DropReason::UdpLength);
    assert_eq!(refused(&with(3, 19), 20), DropReason::HeaderLength);
    assert_eq!(refused(&with(25, 7), 20), DropReason::UdpLength);
    assert_eq!(refused(&with(25, 0), 20), DropReason::UdpLength);
    assert_eq!(refused(&with(25, 14), 20), DropReason::UdpLength);
    let mut bytes = good.clone();
    bytes[0] = 0x55;
    assert_eq!(refused(&bytes, 20), DropReason::Version);
}

#[test]
fn fragments_and_other_protocols_are_not_for_this_engine() {
    let mut bytes = datagram(&v4(), b"hello");
    bytes[6] = 0x20;
    mend_v4(&mut bytes);
    assert_eq!(refused(&bytes, 20), DropReason::Fragment);
    bytes[6] = 0;
    bytes[9] = 6;
    mend_v4(&mut bytes);
    assert_eq!(refused(&bytes, 20), DropReason::Protocol);
    let mut bytes = datagram(&v6(), b"hello");
    bytes[6] = 58;
    assert_eq!(refused(&bytes, 40), DropReason::Protocol);
}

#[test]
fn options_and_extension_headers_are_walked_over() {
    let mut bytes = datagram(&v4(), b"hello");
    bytes.splice(20..20, [1, 1, 1, 0]);
    bytes[0] = 0x46;
    bytes[3] += 4;
    mend_v4(&mut bytes);
    assert_eq!(input(&bytes, 24, &WIRE).unwrap().payload, 32..37);

    let with = |extensions: &[u8], first: u8| {
        let mut bytes = datagram(&v6(), b"hello");
        bytes.splice(40..40, extensions.iter().copied());
        bytes[5] += extensions.len() as u8;
        bytes[6] = first;
        bytes
    };
    // Destination options, then an atomic fragment header.
    let bytes = with(&[44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 0, 1, 2, 3, 4], 60);
    assert_eq!(input(&bytes, 56, &WIRE).unwrap().payload, 64..69);
    let bytes = with(&[17, 0, 0, 1, 1, 2, 3, 4], 44);
    assert_eq!(refused(&bytes, 48), DropReason::Fragment);
    let bytes = with(&[0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0], 60);
    assert_eq!(refused(&bytes, 56), DropReason::ExtensionHeaders);
}

#[test]
fn sources_that_nobody_may_send_from_are_refused() {
    for source in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        let out = template(&format!("{source}:5000"), "192.0.2.2:7");
        assert_eq!(
            refused(&datagram(&out, b"hello"), 20),
            DropReason::MartianSource,
            "{source}"
        );
    }
    for source in ["::", "::1", "ff02::1", "::ffff:192.0.2.1"] {
        let out = template(&format!("[{source}]:5000"), "[2001:db8::2]:7");
        assert_eq!(
            refused(&datagram(&out, b"hello"), 40),
            DropReason::MartianSource,
            "{source}"
        );
    }
}

#[test]
fn what_cannot_be_sent_is_refused_with_linux_errno() {
    let mut frame = vec![0; 70_000];
    let mixed = template("192.0.2.1:5000", "[2001:db8::2]:7");
    let error = output(&mut frame, &mixed, b"hello").unwrap_err();
    assert_eq!((error, error.errno()), (OutputError::AddressFamily, 97));
    for (out, limit) in [(v4(), 65_507), (v6(), 65_527)] {
        let payload = vec![0; limit + 1];
        assert!(output(&mut frame, &out, &payload[1..]).is_ok());
        let error = output(&mut frame, &out, &payload).unwrap_err();
        assert_eq!(
            (error, error.errno()),
            (OutputError::MessageTooLong { limit }, 90)
        );
        assert_eq!(
            output(&mut frame[..50], &out, &payload),
            Err(OutputError::MessageTooLong { limit })
        );
    }
    for available in [0, 13, 14, 41, 46] {
        assert_eq!(
            output(&mut frame[..available], &v4(), b"hello"),
            Err(OutputError::FrameTooSmall {
                needed: 47,
                available
            })
        );
    }
    assert!(output_around(&mut frame, &v4(), usize::MAX).is_err());
}

fn address(v6: bool) -> impl Strategy<Value = IpAddr> {
    // Unicast only: others are refused by design.
    (1u8..127, any::<[u8; 3]>(), any::<[u8; 12]>()).prop_map(move |(a, [b, c, d], rest)| {
        if v6 {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&[0x20, b, c, d]);
            octets[4..].copy_from_slice(&rest);
            Ipv6Addr::from(octets).into()
        } else {
            Ipv4Addr::new(a, b, c, d).into()
        }
    })
}

proptest! {
    #[test]
    fn what_is_sent_is_received(
        (source, destination) in any::<bool>().prop_flat_map(|v6| (address(v6), address(v6))),
        (source_port, destination_port, traffic_class, hop_limit, identification)
            in any::<(u16, u16, u8, u8, u16)>(),
        checksum in prop::sample::select(vec![Checksum::Software, Checksum::Offload]),
        payload in prop::collection::vec(any::<u8>(), 0..1500),
    ) {
        let out = Output {
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
            traffic_class,
            hop_limit,
            identification,
            checksum,
            ..v4()
        };
        let bytes = datagram(&out, &payload);
        let transport = if source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let got = input(&bytes, transport, &VIRTUAL).unwrap();
        prop_assert_eq!((got.source, got.destination), (out.source, out.destination));
        prop_assert_eq!((got.traffic_class, got.hop_limit), (traffic_class, hop_limit));
        prop_assert_eq!(&bytes[got.payload], &payload[..]);
    }
}
