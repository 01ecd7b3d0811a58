//! Errors as routers and peers send them, and as attackers forge them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::udp::{self, Checksum, Output};
use tidewall_wire::ethernet::{self, MacAddress};

const LOCAL4: &str = "192.0.2.1:5000";
const REMOTE4: &str = "198.51.100.7:53";
const LOCAL6: &str = "[2001:db8::1]:5000";
const REMOTE6: &str = "[2001:db8:1::7]:53";
const ROUTER4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1);

/// The datagram that we sent and that the error is about.
fn sent(local: &str, remote: &str) -> Vec<u8> {
    let out = Output {
        source_mac: MacAddress::default(),
        destination_mac: MacAddress::default(),
        source: local.parse().unwrap(),
        destination: remote.parse().unwrap(),
        traffic_class: 0,
        hop_limit: 64,
        identification: 0,
        checksum: Checksum::Software,
    };
    let mut frame = [0; 100];
    let length = udp::output(&mut frame, &out, b"sixteen bytes....").unwrap();
    frame[ethernet::HEADER_LEN..length].to_vec()
}

/// An error of this type about a datagram.
fn message_of(kind: u8, code: u8, second_word: u32, body: &[u8]) -> Message<'_> {
    Message {
        kind,
        code,
        rest: second_word.to_be_bytes(),
        body,
    }
}

/// The datagram in which a router sends us an ICMP message.
fn from_router4(message: &Message<'_>) -> Vec<u8> {
    let mut body = vec![0; 300];
    let here = Ipv4Addr::new(192, 0, 2, 1);
    let length = message
        .emit(Addresses::V4(ROUTER4, here), &mut body)
        .unwrap();
    let header = ipv4::Header {
        tos: 0xc0,
        identification: 1,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: ipv4::FragmentOffset::ZERO,
        ttl: 60,
        protocol: Protocol::ICMP,
        source: ROUTER4,
        destination: here,
        options: ipv4::Options::NONE,
    };
    let mut bytes = vec![0; 20];
    header.emit(length, &mut bytes).unwrap();
    bytes.extend(&body[..length]);
    bytes
}

fn from_router6(message: &Message<'_>) -> Vec<u8> {
    let header = ipv6::Header {
        traffic_class: 0,
        flow_label: 0,
        next_header: Protocol::ICMPV6,
        hop_limit: 60,
        source: ROUTER6,
        destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    };
    let mut body = vec![0; 300];
    let length = message
        .emit(Addresses::V6(header.source, header.destination), &mut body)
        .unwrap();
    let mut bytes = vec![0; 40];
    header.emit(length, &mut bytes).unwrap();
    bytes.extend(&body[..length]);
    bytes
}

fn unreachable4(code: u8) -> Result<FlowError, DropReason> {
    let quoted = sent(LOCAL4, REMOTE4);
    let message = message_of(v4::kind::DESTINATION_UNREACHABLE, code, 0, &quoted[..28]);
    error(&from_router4(&message), 20)
}

fn unreachable6(code: u8) -> Result<FlowError, DropReason> {
    let quoted = sent(LOCAL6, REMOTE6);
    error(
        &from_router6(&message_of(
            v6::kind::DESTINATION_UNREACHABLE,
            code,
            0,
            &quoted,
        )),
        40,
    )
}

#[test]
fn a_closed_port_refuses_the_flow_that_was_quoted() {
    let got = unreachable4(3).unwrap();
    assert_eq!(
        got,
        FlowError {
            local: LOCAL4.parse().unwrap(),
            remote: REMOTE4.parse().unwrap(),
            errno: ECONNREFUSED,
            hard: true,
            mtu: None,
            offender: ROUTER4.into(),
            kind: 3,
            code: 3,
            sequence: None,
        }
    );
    let got = unreachable6(4).unwrap();
    assert_eq!(
        (got.local, got.remote),
        (LOCAL6.parse().unwrap(), REMOTE6.parse().unwrap())
    );
    assert_eq!(
        (got.errno, got.hard, got.offender),
        (ECONNREFUSED, true, ROUTER6.into())
    );
}

#[test]
fn each_code_has_linux_errno() {
    // The numbers, not the names: these are what applications see.
    let expected4 = [
        (101, false),
        (113, false),
        (92, true),
        (111, true),
        (90, true),
        (95, false),
        (101, true),
        (112, true),
        (64, true),
        (101, true),
        (113, true),
        (101, false),
        (113, false),
        (113, true),
        (113, true),
        (113, true),
    ];
    for (code, expected) in expected4.into_iter().enumerate() {
        let got = unreachable4(code as u8).unwrap();
        assert_eq!((got.errno, got.hard), expected, "code {code}");
    }
    assert_eq!(unreachable4(16), Err(DropReason::IcmpIgnored));

    let expected6 = [
        (101, false),
        (13, true),
        (113, false),
        (113, false),
        (111, true),
        (13, true),
        (13, true),
        (71, true),
    ];
    for (code, expected) in expected6.into_iter().enumerate() {
        let got = unreachable6(code as u8).unwrap();
        assert_eq!((got.errno, got.hard), expected, "code {code}");
    }
}

#[test]
fn soft_errors_reach_only_sockets_that_asked() {
    let soft = unreachable4(1).unwrap();
    let hard = unreachable4(3).unwrap();
    assert!(!soft.is_reported(true, false) && soft.is_reported(false, true));
    assert!(hard.is_reported(true, false) && !hard.is_reported(false, false));
}

#[test]
fn a_path_mtu_is_reported_and_never_believed_too_small() {
    let quoted4 = sent(LOCAL4, REMOTE4);
    for (next_hop, believed) in [(1400, Some(1400)), (68, Some(552)), (0, None)] {
        let message = message_of(v4::kind::DESTINATION_UNREACHABLE, 4, next_hop, &quoted4);
        let got = error(&from_router4(&message), 20).unwrap();
        assert_eq!((got.errno, got.hard, got.mtu), (EMSGSIZE, true, believed));
    }
    let quoted6 = sent(LOCAL6, REMOTE6);
    for (next_hop, believed) in [(1400, Some(1400)), (576, Some(1280)), (0, Some(1280))] {
        let message = message_of(v6::kind::PACKET_TOO_BIG, 0, next_hop, &quoted6);
        let got = error(&from_router6(&message), 40).unwrap();
        assert_eq!((got.errno, got.hard, got.mtu), (EMSGSIZE, true, believed));
    }
}

#[test]
fn the_other_errors_are_read_too() {
    let quoted4 = sent(LOCAL4, REMOTE4);
    let quoted6 = sent(LOCAL6, REMOTE6);
    let v4 = |message| error(&from_router4(&message), 20).map(|got| (got.errno, got.hard));
    let v6 = |message| error(&from_router6(&message), 40).map(|got| (got.errno, got.hard));
    let quoted = &quoted4[..];
    assert_eq!(
        v4(message_of(v4::kind::TIME_EXCEEDED, 0, 0, quoted)),
        Ok((113, false))
    );
    assert_eq!(
        v4(message_of(v4::kind::PARAMETER_PROBLEM, 0, 1 << 24, quoted)),
        Ok((71, true))
    );
    let quoted = &quoted6[..];
    assert_eq!(
        v6(message_of(v6::kind::TIME_EXCEEDED, 1, 0, quoted)),
        Ok((113, false))
    );
    assert_eq!(
        v6(message_of(v6::kind::PARAMETER_PROBLEM, 1, 6, quoted)),
        Ok((71, true))
    );
    let unknown = message_of(100, 0, 0, quoted);
    assert_eq!(v6(unknown), Ok((71, false)));
}

#[test]
fn messages_that_tell_a_socket_nothing_are_ignored() {
    let quoted = sent(LOCAL4, REMOTE4);
    for kind in [v4::kind::SOURCE_QUENCH, v4::kind::REDIRECT, 13] {
        let message = message_of(kind, 0, 0, &quoted);
        assert_eq!(
            error(&from_router4(&message), 20),
            Err(DropReason::IcmpIgnored)
        );
    }
    let echo = message_of(v4::kind::ECHO, 0, 0x0001_0001, &quoted);
    assert_eq!(
        error(&from_router4(&echo), 20),
        Err(DropReason::IcmpIgnored)
    );
    let redirect = message_of(137, 0, 0, &quoted);
    assert_eq!(
        error(&from_router6(&redirect), 40),
        Err(DropReason::IcmpIgnored)
    );
}

#[test]
fn damaged_and_forged_errors_are_refused() {
    let quoted = sent(LOCAL4, REMOTE4);
    let about = |quoted: &[u8]| {
        error(
            &from_router4(&message_of(v4::kind::DESTINATION_UNREACHABLE, 3, 0, quoted)),
            20,
        )
    };
    let mut damaged = from_router4(&message_of(v4::kind::TIME_EXCEEDED, 0, 0, &quoted));
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(error(&damaged, 20), Err(DropReason::IcmpChecksum));
    assert_eq!(error(&damaged, 24), Err(DropReason::TransportOffset));
    // Not a byte less than the eight of the UDP header.
    assert!(about(&quoted[..28]).is_ok());
    for length in [0, 19, 20, 27] {
        assert_eq!(
            about(&quoted[..length]),
            Err(DropReason::IcmpQuote),
            "{length}"
        );
    }
    assert_eq!(about(&sent(LOCAL6, REMOTE6)), Err(DropReason::IcmpQuote));
    assert_eq!(
        about(&sent("192.0.2.9:5000", REMOTE4)),
        Err(DropReason::IcmpQuotedSource)
    );
    let mut tcp = quoted.clone();
    tcp[9] = 6;
    assert_eq!(about(&tcp), Err(DropReason::IcmpQuotedProtocol));
    let message = message_of(v4::kind::DESTINATION_UNREACHABLE, 4, 0, &tcp[..28]);
    let found = tcp_error(&from_router4(&message), 20).unwrap();
    assert_eq!(
        found.sequence,
        Some(u32::from_be_bytes(tcp[24..28].try_into().unwrap()))
    );
    assert_eq!((found.errno, found.mtu), (EMSGSIZE, None));
    let message = message_of(v4::kind::DESTINATION_UNREACHABLE, 3, 0, &quoted);
    assert_eq!(
        tcp_error(&from_router4(&message), 20),
        Err(DropReason::IcmpQuotedProtocol)
    );
    let mut fragment = quoted.clone();
    fragment[7] = 8;
    assert_eq!(about(&fragment), Err(DropReason::IcmpQuotedFragment));

    let quoted = sent(LOCAL6, REMOTE6);
    let about = |quoted: &[u8]| {
        error(
            &from_router6(&message_of(v6::kind::DESTINATION_UNREACHABLE, 4, 0, quoted)),
            40,
        )
    };
    assert!(about(&quoted[..48]).is_ok());
    assert_eq!(about(&quoted[..47]), Err(DropReason::IcmpQuote));
    assert_eq!(about(&quoted[..39]), Err(DropReason::IcmpQuote));
    assert_eq!(
        about(&sent("[2001:db8::9]:1", REMOTE6)),
        Err(DropReason::IcmpQuotedSource)
    );
    // A later fragment of the datagram that we sent.
    let mut fragment = quoted.clone();
    fragment.splice(40..40, [17, 0, 0, 9, 0, 0, 0, 1]);
    fragment[5] += 8;
    fragment[6] = 44;
    assert_eq!(about(&fragment), Err(DropReason::IcmpQuotedFragment));
    let mut damaged = from_router6(&message_of(v6::kind::TIME_EXCEEDED, 0, 0, &quoted));
    damaged[41] ^= 1;
    assert_eq!(error(&damaged, 40), Err(DropReason::IcmpChecksum));
}
