//! Converts between packet bytes and the script's model with live numbers.

use std::net::{IpAddr, SocketAddr};

use tidewall_wire::checksum::Sum;
use tidewall_wire::icmp::{Message, v4, v6};
use tidewall_wire::udp::{Addresses, ChecksumState};
use tidewall_wire::{Protocol, ipv4, ipv6, tcp};

use crate::script::{EcnCheck, Icmp, IpFields, Tcp, TcpFlags, TcpOption, TcpOptions};

/// Hop limit of inbound packets, as any Linux peer sends them.
const HOP_LIMIT: u8 = 64;

/// Accurate ECN's bit, the lowest of the reserved four (RFC 9768).
const ACCURATE_ECN: u8 = 0x01;

/// A parsed outbound packet; sequence numbers are live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) ip: IpFields,
    pub(super) tcp: Tcp,
    pub(super) payload: Vec<u8>,
}

/// A segment's datagram from its IP header on. `tcp` has live numbers; its ports are
/// ignored.
pub(super) fn segment(
    source: SocketAddr,
    destination: SocketAddr,
    ip: IpFields,
    tcp: &Tcp,
    payload: &[u8],
) -> Result<Vec<u8>, String> {
    let mut bytes = header(source, destination, tcp);
    bytes.extend_from_slice(payload);
    if bytes.len() > ipv4::DATAGRAM_MAX {
        return Err("the packet is longer than IP allows".into());
    }
    let addresses = addresses(source.ip(), destination.ip())?;
    let sum = addresses.pseudo_header(Protocol::TCP, bytes.len());
    put_checksum(&mut bytes, usize::from(tcp::CHECKSUM_OFFSET), sum);
    datagram(source.ip(), destination.ip(), ip, Protocol::TCP, &bytes)
}

/// A TCP header and its options, with a zero checksum.
fn header(source: SocketAddr, destination: SocketAddr, tcp: &Tcp) -> Vec<u8> {
    let mut options = Vec::new();
    if let TcpOptions::List(list) = &tcp.options {
        for option in list {
            emit_option(option, &mut options);
        }
    }
    options.resize(options.len().next_multiple_of(4).min(40), 0);
    let words = (tcp::HEADER_LEN + options.len()) / 4;
    let mut bytes = Vec::with_capacity(tcp::HEADER_MAX);
    bytes.extend(source.port().to_be_bytes());
    bytes.extend(destination.port().to_be_bytes());
    bytes.extend(tcp.sequence.to_be_bytes());
    bytes.extend(tcp.acknowledgment.unwrap_or(0).to_be_bytes());
    let reserved = if tcp.flags.accurate_ecn {
        ACCURATE_ECN
    } else {
        0
    };
    bytes.push((words as u8) << 4 | reserved);
    bytes.push(tcp.flags.bits);
    bytes.extend(tcp.window.unwrap_or(0).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(tcp.urgent.to_be_bytes());
    bytes.extend(options);
    bytes
}

fn emit_option(option: &TcpOption, bytes: &mut Vec<u8>) {
    // The parser limits options to 40 bytes, so a length fits its byte.
    let length = option.wire_length() as u8;
    match option {
        TcpOption::End => bytes.push(0),
        TcpOption::Nop => bytes.push(1),
        TcpOption::Mss(mss) => {
            bytes.extend([2, length]);
            bytes.extend(mss.to_be_bytes());
        }
        TcpOption::WindowScale(shift) => bytes.extend([3, length, *shift]),
        TcpOption::SackPermitted => bytes.extend([4, length]),
        TcpOption::Sack(blocks) => {
            bytes.extend([5, length]);
            for (first, end) in blocks {
                bytes.extend(first.to_be_bytes());
                bytes.extend(end.to_be_bytes());
            }
        }
        TcpOption::Timestamps { value, echo } => {
            bytes.extend([8, length]);
            bytes.extend(value.to_be_bytes());
            bytes.extend(echo.to_be_bytes());
        }
        TcpOption::Md5(data) => {
            bytes.extend([19, length]);
            bytes.extend(data);
        }
        TcpOption::FastOpen(data) => {
            bytes.extend([34, length]);
            bytes.extend(data);
        }
        TcpOption::FastOpenExperimental(data) => {
            bytes.extend([254, length, 0xf9, 0x89]);
            bytes.extend(data);
        }
        TcpOption::Other { kind, data } => {
            bytes.extend([*kind, length]);
            bytes.extend(data);
        }
    }
}

/// The two ends of a packet.
fn addresses(source: IpAddr, destination: IpAddr) -> Result<Addresses, String> {
    Addresses::new(source, destination).ok_or("the two ends are of different families".into())
}

fn put_checksum(bytes: &mut [u8], at: usize, sum: Sum) {
    let value = sum.bytes(bytes).checksum().to_be_bytes();
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value);
    }
}

fn datagram(
    source: IpAddr,
    destination: IpAddr,
    ip: IpFields,
    protocol: Protocol,
    payload: &[u8],
) -> Result<Vec<u8>, String> {
    let ecn = match ip.ecn {
        None | Some(EcnCheck::NotCapable | EcnCheck::CapableAny) => 0,
        Some(EcnCheck::Capable1) => 1,
        Some(EcnCheck::Capable0) => 2,
        Some(EcnCheck::Experienced) => 3,
    };
    let class = ip.traffic_class.unwrap_or(ecn);
    let hops = ip.hop_limit.unwrap_or(HOP_LIMIT);
    let mut bytes;
    let result = match addresses(source, destination)? {
        Addresses::V4(source, destination) => {
            let header = ipv4::Header {
                tos: class,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: ipv4::FragmentOffset::ZERO,
                ttl: hops,
                protocol,
                source,
                destination,
                options: ipv4::Options::NONE,
            };
            bytes = vec![0; header.header_len()];
            header.emit(payload.len(), &mut bytes).map(|_| ())
        }
        Addresses::V6(source, destination) => {
            let header = ipv6::Header {
                traffic_class: class,
                flow_label: ip.flow_label.unwrap_or(0),
                next_header: protocol,
                hop_limit: hops,
                source,
                destination,
            };
            bytes = vec![0; ipv6::HEADER_LEN];
            header.emit(payload.len(), &mut bytes).map(|_| ())
        }
    };
    result.map_err(|error| error.to_string())?;
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// An ICMP error from the peer about a segment sent to it. `quoted` has live numbers;
/// `length` is the segment's payload. IPv4's names of types and codes are also accepted
/// for IPv6 and vice versa, where the meaning is the same.
pub(super) fn icmp_error(
    icmp: &Icmp,
    ip: IpFields,
    local: SocketAddr,
    remote: SocketAddr,
    quoted: &Tcp,
    length: u16,
) -> Result<Vec<u8>, String> {
    let segment = header(local, remote, quoted);
    // Enough of the datagram to be accepted; its length field covers the rest.
    let payload = vec![0; usize::from(length)];
    let whole = [&segment[..], &payload].concat();
    let mut quote = datagram(
        local.ip(),
        remote.ip(),
        IpFields::default(),
        Protocol::TCP,
        &whole,
    )?;
    quote.truncate(quote.len() - usize::from(length));
    let mut body = vec![0; 1280];
    let (source, destination) = (remote.ip(), local.ip());
    let addresses = addresses(source, destination)?;
    let (protocol, (kind, code, rest)) = match addresses {
        Addresses::V4(..) => (Protocol::ICMP, error_v4(icmp)?),
        Addresses::V6(..) => (Protocol::ICMPV6, error_v6(icmp)?),
    };
    let message = Message {
        kind,
        code,
        rest: rest.to_be_bytes(),
        body: &quote,
    };
    let length = message
        .emit(addresses, &mut body)
        .map_err(|error| error.to_string())?;
    body.truncate(length);
    datagram(source, destination, ip, protocol, &body)
}

/// Type, code and second word of an error's header.
type ErrorHeader = (u8, u8, u32);

fn error_v4(icmp: &Icmp) -> Result<ErrorHeader, String> {
    let unreachable = |code| {
        let mtu = u16::try_from(icmp.mtu.unwrap_or(0))
            .map_err(|_| "an ICMP message has 16 bits for the MTU".to_owned())?;
        Ok((v4::kind::DESTINATION_UNREACHABLE, code, mtu.into()))
    };
    match (icmp.kind.as_str(), icmp.code.as_deref()) {
        ("packet_too_big", None) => unreachable(v4::unreachable::FRAGMENTATION_NEEDED),
        ("unreachable", Some(code)) => unreachable(match code {
            "net_unreachable" | "no_route" => v4::unreachable::NET,
            "host_unreachable" | "address_unreachable" => v4::unreachable::HOST,
            "protocol_unreachable" => v4::unreachable::PROTOCOL,
            "port_unreachable" => v4::unreachable::PORT,
            "frag_needed" => v4::unreachable::FRAGMENTATION_NEEDED,
            "source_route_failed" => 5,
            "net_unknown" => 6,
            "host_unknown" => 7,
            "source_host_isolated" => 8,
            "net_prohibited" => 9,
            "host_prohibited" => 10,
            "net_unreachable_for_tos" => 11,
            "host_unreachable_for_tos" => 12,
            "packet_filtered" | "admin_prohibited" => 13,
            "precedence_violation" => 14,
            "precedence_cutoff" => 15,
            _ => return Err(unknown(icmp)),
        }),
        ("time_exceeded", _) => Ok((v4::kind::TIME_EXCEEDED, 0, 0)),
        ("parameter_problem", _) => Ok((v4::kind::PARAMETER_PROBLEM, 0, 0)),
        ("source_quench", None) => Ok((v4::kind::SOURCE_QUENCH, 0, 0)),
        _ => Err(unknown(icmp)),
    }
}

fn error_v6(icmp: &Icmp) -> Result<ErrorHeader, String> {
    let unreachable = |code| Ok((v6::kind::DESTINATION_UNREACHABLE, code, 0));
    match (icmp.kind.as_str(), icmp.code.as_deref()) {
        ("packet_too_big", None) | ("unreachable", Some("frag_needed")) => {
            Ok((v6::kind::PACKET_TOO_BIG, 0, icmp.mtu.unwrap_or(0)))
        }
        ("unreachable", Some(code)) => unreachable(match code {
            "net_unreachable" | "no_route" => v6::unreachable::NO_ROUTE,
            "host_unreachable" | "address_unreachable" => v6::unreachable::ADDRESS,
            "port_unreachable" => v6::unreachable::PORT,
            "admin_prohibited" | "packet_filtered" => v6::unreachable::PROHIBITED,
            _ => return Err(unknown(icmp)),
        }),
        ("time_exceeded", _) => Ok((v6::kind::TIME_EXCEEDED, 0, 0)),
        ("parameter_problem", _) => Ok((v6::kind::PARAMETER_PROBLEM, 0, 0)),
        _ => Err(unknown(icmp)),
    }
}

fn unknown(icmp: &Icmp) -> String {
    format!("no such message: {icmp}")
}

/// Parses an outbound packet, and checks checksums and lengths.
pub(super) fn parse(bytes: &[u8]) -> Result<Segment, String> {
    let (source, destination, ip, protocol, payload): (IpAddr, IpAddr, _, _, _);
    if bytes.first().is_some_and(|byte| byte >> 4 == 4) {
        let packet = ipv4::Packet::new(bytes).map_err(|error| error.to_string())?;
        if !packet.has_valid_checksum() {
            return Err("the IPv4 header's checksum is wrong".into());
        }
        source = packet.source().into();
        destination = packet.destination().into();
        ip = (packet.tos(), packet.ttl(), None);
        protocol = packet.protocol();
        payload = packet.payload();
    } else {
        let packet = ipv6::Packet::new(bytes).map_err(|error| error.to_string())?;
        source = packet.source().into();
        destination = packet.destination().into();
        ip = (
            packet.traffic_class(),
            packet.hop_limit(),
            Some(packet.flow_label()),
        );
        protocol = packet.next_header();
        payload = packet.payload();
    }
    if protocol != Protocol::TCP {
        return Err(format!("a packet of IP protocol {} left", protocol.0));
    }
    let packet = tcp::Packet::new(payload).map_err(|error| error.to_string())?;
    let state = packet.checksum_state(addresses(source, destination)?);
    if state != ChecksumState::Valid {
        return Err("the TCP checksum is wrong".into());
    }
    let header = packet.header();
    let at = packet.header_len();
    let options = payload.get(tcp::HEADER_LEN..at).unwrap_or_default();
    let reserved = payload.get(12).copied().unwrap_or(0) & 0x0f;
    if reserved & !ACCURATE_ECN != 0 {
        return Err("reserved bits are set".into());
    }
    let length = u16::try_from(packet.payload().len()).unwrap_or(u16::MAX);
    let flags = TcpFlags {
        bits: header.flags.0,
        accurate_ecn: reserved != 0,
    };
    let word = |at: usize| {
        let pair = payload
            .get(at..at + 2)
            .and_then(|pair| pair.try_into().ok());
        u16::from_be_bytes(pair.unwrap_or_default())
    };
    Ok(Segment {
        source: SocketAddr::new(source, header.source_port),
        destination: SocketAddr::new(destination, header.destination_port),
        ip: IpFields {
            ecn: Some(match ip.0 & 3 {
                0 => EcnCheck::NotCapable,
                1 => EcnCheck::Capable1,
                2 => EcnCheck::Capable0,
                _ => EcnCheck::Experienced,
            }),
            traffic_class: Some(ip.0),
            hop_limit: Some(ip.1),
            flow_label: ip.2,
        },
        tcp: Tcp {
            ports: Some((header.source_port, header.destination_port)),
            flags,
            sequence: header.sequence,
            length,
            acknowledgment: (flags.bits & 0x10 != 0).then_some(header.acknowledgment),
            window: Some(header.window),
            urgent: word(18),
            options: TcpOptions::List(parse_options(options)?),
        },
        payload: packet.payload().to_vec(),
    })
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut options = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        if kind < 2 {
            options.push(if kind == 0 {
                TcpOption::End
            } else {
                TcpOption::Nop
            });
            bytes = rest;
            continue;
        }
        let length = usize::from(*rest.first().unwrap_or(&0));
        let data = bytes.get(2..length);
        let Some(data) = data else {
            return Err(format!("TCP option {kind} has a wrong length"));
        };
        options.push(parse_option(kind, data));
        bytes = bytes.get(length..).unwrap_or_default();
    }
    Ok(options)
}

fn parse_option(kind: u8, data: &[u8]) -> TcpOption {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap_or_default());
    match (kind, data) {
        (2, [high, low]) => TcpOption::Mss(u16::from_be_bytes([*high, *low])),
        (3, [shift]) => TcpOption::WindowScale(*shift),
        (4, []) => TcpOption::SackPermitted,
        (5, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => TcpOption::Sack(
            blocks
                .chunks_exact(8)
                .map(|block| (word(&block[..4]), word(&block[4..])))
                .collect(),
        ),
        (8, [value @ .., _, _, _, _]) if value.len() == 4 => TcpOption::Timestamps {
            value: word(value),
            echo: word(&data[4..]),
        },
        (19, data) => TcpOption::Md5(data.to_vec()),
        (34, data) => TcpOption::FastOpen(data.to_vec()),
        (254, [0xf9, 0x89, data @ ..]) => TcpOption::FastOpenExperimental(data.to_vec()),
        (kind, data) => TcpOption::Other {
            kind,
            data: data.to_vec(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{self, Action, Transport};

    fn tcp(text: &str) -> (IpFields, Tcp) {
        let mut script = script::parse(&format!("0 {text}")).unwrap();
        match script.events.remove(0).action {
            Action::Packet(packet) => match packet.transport {
                Transport::Tcp(tcp) => (packet.ip, tcp),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_built_is_read_back() {
        for text in [
            "< S 7:7(0) win 8 <mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 7>",
            "< [ce] FRPEWUA. 1:4(3) ack 9 win 65535 urg 3 <nop,nop,sack 1:2 3:4>",
            "< - 1:1(0) win 0 <FOEXP 0102,nop,nop,generic 77 00,eol,eol,eol,eol,eol>",
            "< . 1:1(0) ack 1 win 0 <md5 00112233445566778899aabbccddeeff,nop,nop>",
            "< . 1:1(0) ack 1 win 0 <FO 0123456789abcdef,nop,nop>",
        ] {
            let (ip, tcp) = tcp(text);
            for (source, destination) in [
                ("192.0.2.1:40000", "192.168.0.1:8080"),
                ("[2001:db8::1]:40000", "[fd3d::1]:8080"),
            ] {
                let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
                let payload = &b"abc"[..usize::from(tcp.length)];
                let bytes = segment(source, destination, ip, &tcp, payload).unwrap();
                let found = parse(&bytes).unwrap();
                assert_eq!((found.source, found.destination), (source, destination));
                assert_eq!(found.payload, payload);
                assert_eq!(found.ip.ecn, ip.ecn.or(Some(EcnCheck::NotCapable)));
                let ports = Some((40000, 8080));
                let expected = Tcp {
                    ports,
                    ..tcp.clone()
                };
                assert_eq!(found.tcp, expected, "{text}");
                // With one more bit, the checksum detects it.
                let mut damaged = bytes;
                *damaged.last_mut().unwrap() ^= 1;
                assert!(parse(&damaged).is_err());
            }
        }
    }

    #[test]
    fn icmp_errors_are_what_the_engine_reads() {
        let (_, quoted) = tcp("< . 5:105(100) ack 1");
        let icmp = |kind: &str, code: Option<&str>| Icmp {
            kind: kind.into(),
            code: code.map(Into::into),
            mtu: Some(1400),
            id: None,
            quoted: None,
        };
        for (local, remote) in [
            ("192.168.0.1:8080", "192.0.2.1:40000"),
            ("[fd3d::1]:8080", "[2001:db8::1]:40000"),
        ] {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            for (kind, code) in [
                ("unreachable", Some("frag_needed")),
                ("packet_too_big", None),
                ("unreachable", Some("port_unreachable")),
            ] {
                let message = icmp(kind, code);
                let bytes =
                    icmp_error(&message, IpFields::default(), local, remote, &quoted, 100).unwrap();
                let transport = if local.is_ipv4() { 20 } else { 40 };
                let found = tidewall_protocol::icmp::tcp_error(&bytes, transport).unwrap();
                assert_eq!((found.local, found.remote), (local, remote));
                assert_eq!(found.mtu.is_some(), code != Some("port_unreachable"));
            }
            let nonsense = icmp("unreachable", Some("never_heard_of"));
            let result = icmp_error(&nonsense, IpFields::default(), local, remote, &quoted, 0);
            assert!(result.unwrap_err().contains("no such message"));
        }
    }
}
