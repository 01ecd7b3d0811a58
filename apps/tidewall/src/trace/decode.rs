//! Describes a frame's bytes. Captures may be cut short; unreadable parts are reported,
//! never guessed.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use tidewall_wire::ethernet::{self, EtherType};
use tidewall_wire::udp::{Addresses, ChecksumState};
use tidewall_wire::{Protocol, icmp, ipv4, ipv6, udp};

/// The contents of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// In one line: source, destination, contents.
    pub summary: String,
    /// Ethernet source.
    pub ethernet_source: Option<String>,
    /// Ethernet destination.
    pub ethernet_destination: Option<String>,
    /// VLAN, for tagged frames.
    pub vlan: Option<u16>,
    /// IP source.
    pub source: Option<IpAddr>,
    /// IP destination.
    pub destination: Option<IpAddr>,
    /// Transport protocol's name.
    pub protocol: Option<String>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// One line per layer, for people.
    pub layers: Vec<String>,
}

/// Decodes a frame that was `length` bytes long on the wire and of which
/// `bytes` were captured.
pub fn frame(bytes: &[u8], length: usize) -> Decoded {
    let mut decoded = Decoded::default();
    let summary = match ethernet::Frame::new(bytes) {
        Ok(frame) => ethernet_frame(&mut decoded, &frame, bytes.len() < length),
        Err(error) => format!("no Ethernet frame: {error}"),
    };
    decoded.summary = summary;
    decoded
}

fn ethernet_frame(decoded: &mut Decoded, frame: &ethernet::Frame<'_>, cut: bool) -> String {
    decoded.ethernet_source = Some(frame.source().to_string());
    decoded.ethernet_destination = Some(frame.destination().to_string());
    let mut layer = format!("ethernet {} > {}", frame.source(), frame.destination());
    decoded.vlan = frame.vlan();
    if let Some(vlan) = decoded.vlan {
        layer.push_str(&format!(", VLAN {vlan}"));
    }
    decoded.layers.push(layer);
    if decoded.vlan.is_some() {
        // The tag's content is behind it; the driver leaves such frames to the kernel
        // unread.
        return format!("{} > {} VLAN-tagged", frame.source(), frame.destination());
    }
    match frame.ethertype() {
        EtherType::IPV4 => ip4(decoded, frame.payload(), cut),
        EtherType::IPV6 => ip6(decoded, frame.payload(), cut),
        EtherType::MPLS => {
            let said = super::atm::labelled(frame.payload(), cut);
            decoded.layers.push(said.clone());
            said
        }
        EtherType::ARP => format!("{} > {} ARP", frame.source(), frame.destination()),
        other => format!(
            "{} > {} ethertype {:#06x}",
            frame.source(),
            frame.destination(),
            other.0
        ),
    }
}

fn ip4(decoded: &mut Decoded, bytes: &[u8], cut: bool) -> String {
    let packet = match ipv4::Packet::new_quoted(bytes) {
        Ok(packet) => packet,
        Err(error) => return damaged(decoded, "IPv4", &error.to_string()),
    };
    let (source, destination) = (
        IpAddr::V4(packet.source()),
        IpAddr::V4(packet.destination()),
    );
    let mut layer = format!(
        "ipv4 {source} > {destination}, {} bytes, ttl {}, tos {:#04x}",
        packet.total_length(),
        packet.ttl(),
        packet.tos()
    );
    if !packet.option_bytes().is_empty() {
        layer.push_str(&format!(
            ", {} bytes of options",
            packet.option_bytes().len()
        ));
    }
    if !packet.has_valid_checksum() {
        layer.push_str(", header checksum WRONG");
    }
    if !cut && bytes.len() < usize::from(packet.total_length()) {
        layer.push_str(", TRUNCATED");
    }
    let offset = packet.fragment_offset().bytes();
    if packet.is_fragment() {
        layer.push_str(&fragment(
            offset,
            packet.more_fragments(),
            packet.identification().into(),
        ));
    }
    decoded.layers.push(layer);
    let complete = !cut && !packet.is_fragment();
    network(
        decoded,
        source,
        destination,
        packet.protocol(),
        packet.payload(),
        offset,
        complete,
    )
}

fn ip6(decoded: &mut Decoded, bytes: &[u8], cut: bool) -> String {
    let packet = match ipv6::Packet::new_quoted(bytes) {
        Ok(packet) => packet,
        Err(error) => return damaged(decoded, "IPv6", &error.to_string()),
    };
    let (source, destination) = (
        IpAddr::V6(packet.source()),
        IpAddr::V6(packet.destination()),
    );
    let mut layer = format!(
        "ipv6 {source} > {destination}, {} bytes, hop limit {}, traffic class {:#04x}",
        packet.payload_length(),
        packet.hop_limit(),
        packet.traffic_class()
    );
    let extensions = match packet.extensions() {
        Ok(extensions) => extensions,
        Err(error) => {
            layer.push_str(&format!(", {error}"));
            decoded.layers.push(layer);
            return format!("{source} > {destination} IPv6: {error}");
        }
    };
    let extended = extensions.transport.saturating_sub(ipv6::HEADER_LEN);
    if extended > 0 {
        layer.push_str(&format!(", {extended} bytes of extension headers"));
    }
    if !cut && packet.payload().len() < usize::from(packet.payload_length()) {
        layer.push_str(", TRUNCATED");
    }
    let piece = extensions.fragment.filter(|piece| !piece.is_atomic());
    let offset = piece.map_or(0, |piece| piece.offset.bytes());
    if let Some(piece) = piece {
        layer.push_str(&fragment(offset, piece.more, piece.identification));
    }
    decoded.layers.push(layer);
    let payload = packet.payload().get(extended..).unwrap_or_default();
    let complete = !cut && piece.is_none();
    network(
        decoded,
        source,
        destination,
        extensions.protocol,
        payload,
        offset,
        complete,
    )
}

fn fragment(offset: u16, more: bool, identification: u32) -> String {
    let last = if more { "" } else { ", the last" };
    format!(", fragment at {offset} of datagram {identification:#x}{last}")
}

fn damaged(decoded: &mut Decoded, what: &str, error: &str) -> String {
    decoded
        .layers
        .push(format!("{}: {error}", what.to_lowercase()));
    format!("damaged {what}: {error}")
}

fn network(
    decoded: &mut Decoded,
    source: IpAddr,
    destination: IpAddr,
    protocol: Protocol,
    payload: &[u8],
    offset: u16,
    complete: bool,
) -> String {
    decoded.source = Some(source);
    decoded.destination = Some(destination);
    let name = match protocol {
        Protocol::UDP => "UDP".to_owned(),
        other => other.to_string(),
    };
    decoded.protocol = Some(name.clone());
    if offset > 0 {
        return format!("{source} > {destination} {name} fragment at {offset}");
    }
    match protocol {
        Protocol::UDP | Protocol::TCP => {
            let [a, b, c, d, ..] = *payload else {
                return format!("{source} > {destination} {name}, ports missing");
            };
            let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            decoded.source_port = Some(ports.0);
            decoded.destination_port = Some(ports.1);
            let from = SocketAddr::new(source, ports.0);
            let to = SocketAddr::new(destination, ports.1);
            let detail = match protocol {
                Protocol::UDP => udp_detail(source, destination, payload, complete),
                _ => tcp_flags(payload),
            };
            decoded.layers.push(format!(
                "{} {} > {}{detail}",
                name.to_lowercase(),
                ports.0,
                ports.1
            ));
            format!("{from} > {to} {name}{detail}")
        }
        Protocol::ICMP | Protocol::ICMPV6 => {
            let detail = icmp_detail(protocol, payload);
            decoded
                .layers
                .push(format!("{}{detail}", name.to_lowercase()));
            format!("{source} > {destination} {name}{detail}")
        }
        _ => format!("{source} > {destination} {name}"),
    }
}

fn udp_detail(source: IpAddr, destination: IpAddr, payload: &[u8], complete: bool) -> String {
    let Ok(packet) = udp::Packet::new(payload) else {
        // A cut capture has only the length.
        return match payload {
            [_, _, _, _, high, low, ..] => {
                let length = u16::from_be_bytes([*high, *low]);
                let note = if complete { ", length WRONG" } else { "" };
                format!(", {} bytes{note}", length.saturating_sub(8))
            }
            _ => ", header cut".to_owned(),
        };
    };
    let bytes = packet.payload().len();
    if !complete {
        return format!(", {bytes} bytes");
    }
    let state = Addresses::new(source, destination).map_or(ChecksumState::Absent, |addresses| {
        packet.checksum_state(addresses)
    });
    let checksum = match state {
        ChecksumState::Valid => "checksum right",
        ChecksumState::LeftToOffload => "checksum left to offload",
        ChecksumState::Absent => "no checksum",
        ChecksumState::Invalid => "checksum WRONG",
    };
    format!(", {bytes} bytes, {checksum}")
}

fn tcp_flags(payload: &[u8]) -> String {
    // RFC 9293 §3.1: the flags are the low bits of the fourteenth byte.
    let Some(flags) = payload.get(13) else {
        return String::new();
    };
    let names: Vec<&str> = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"]
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| flags & (1 << bit) != 0)
        .map(|(_, name)| name)
        .collect();
    format!(
        ", flags {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join("+")
        }
    )
}

fn icmp_detail(protocol: Protocol, payload: &[u8]) -> String {
    use icmp::{v4::kind as four, v6::kind as six};
    let message = match icmp::Message::parse(payload) {
        Ok(message) => message,
        Err(problem) => return format!(", {problem}"),
    };
    let (code, sequence) = (message.code, message.sequence());
    let ipv4 = protocol == Protocol::ICMP;
    let problem = match message.kind {
        four::DESTINATION_UNREACHABLE if ipv4 => "destination unreachable",
        four::TIME_EXCEEDED if ipv4 => "time exceeded",
        four::PARAMETER_PROBLEM if ipv4 => "parameter problem",
        four::ECHO if ipv4 => return format!(", echo request {sequence}"),
        four::ECHO_REPLY if ipv4 => return format!(", echo reply {sequence}"),
        kind if ipv4 => return format!(", type {kind} code {code}"),
        six::DESTINATION_UNREACHABLE => "destination unreachable",
        six::PACKET_TOO_BIG => return format!(", packet too big (MTU {})", message.mtu_v6()),
        six::TIME_EXCEEDED => "time exceeded",
        six::PARAMETER_PROBLEM => "parameter problem",
        six::ECHO_REQUEST => return format!(", echo request {sequence}"),
        six::ECHO_REPLY => return format!(", echo reply {sequence}"),
        kind => return format!(", type {kind} code {code}"),
    };
    format!(", {problem} (code {code})")
}

#[cfg(test)]
pub mod tests {
    use std::net::Ipv4Addr;

    use tidewall_wire::ethernet::MacAddress;

    use super::*;

    /// An Ethernet frame with a UDP datagram over IPv4.
    pub fn udp4(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MacAddress([2, 0, 0, 0, 0, 2]).0);
        bytes.extend(MacAddress([2, 0, 0, 0, 0, 1]).0);
        bytes.extend([0x08, 0x00]);
        let total = 28 + payload.len() as u16;
        let mut header = vec![
            0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        header[2..4].copy_from_slice(&total.to_be_bytes());
        let sum = internet_sum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(header);
        bytes.extend(40_000u16.to_be_bytes());
        bytes.extend(7u16.to_be_bytes());
        bytes.extend((8 + payload.len() as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(payload);
        bytes
    }

    /// Computes the sum of RFC 1071 in the slow and obvious way.
    fn internet_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn a_udp_datagram_is_one_line() {
        let bytes = udp4(b"fourteen bytes");
        let decoded = frame(&bytes, bytes.len());
        assert_eq!(
            decoded.summary,
            "10.0.0.1:40000 > 10.0.0.2:7 UDP, 14 bytes, no checksum"
        );
        assert_eq!(decoded.source, Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))));
        assert_eq!(
            (decoded.source_port, decoded.destination_port),
            (Some(40_000), Some(7))
        );
        assert_eq!(
            decoded.layers,
            [
                "ethernet 02:00:00:00:00:01 > 02:00:00:00:00:02",
                "ipv4 10.0.0.1 > 10.0.0.2, 42 bytes, ttl 64, tos 0x00",
                "udp 40000 > 7, 14 bytes, no checksum",
            ]
        );
    }

    #[test]
    fn damage_is_named_and_a_cut_capture_is_not_taken_for_damage() {
        let bytes = udp4(&[0; 400]);
        let cut = frame(&bytes[..256], bytes.len());
        assert_eq!(cut.summary, "10.0.0.1:40000 > 10.0.0.2:7 UDP, 400 bytes");
        let short = frame(&bytes[..256], 256);
        assert!(
            short
                .layers
                .iter()
                .any(|layer| layer.ends_with("TRUNCATED")),
            "{:?}",
            short.layers
        );
        assert!(short.summary.ends_with("length WRONG"), "{}", short.summary);

        let mut bytes = udp4(b"x");
        bytes[22] = 63;
        assert!(frame(&bytes, bytes.len()).layers[1].ends_with("header checksum WRONG"));
        bytes[41] = 1;
        assert!(
            frame(&bytes, bytes.len())
                .summary
                .ends_with("checksum WRONG")
        );
    }

    #[test]
    fn other_protocols_have_names() {
        let mut bytes = udp4(&[0; 32]);
        bytes[23] = 6;
        bytes[47] = 0b1_0010;
        assert_eq!(
            frame(&bytes, bytes.len()).summary,
            "10.0.0.1:40000 > 10.0.0.2:7 TCP, flags SYN+ACK"
        );
        bytes[23] = 1;
        bytes[34] = 8;
        assert!(
            frame(&bytes, bytes.len())
                .summary
                .contains("ICMP, echo request")
        );
        bytes[12..14].copy_from_slice(&[0x08, 0x06]);
        assert!(frame(&bytes, bytes.len()).summary.ends_with("ARP"));
        bytes[12..14].copy_from_slice(&[0x81, 0x00]);
        assert!(frame(&bytes, bytes.len()).summary.contains("VLAN"));
    }

    #[test]
    fn no_bytes_at_all_and_every_prefix_are_survived() {
        let bytes = udp4(b"payload");
        for end in 0..bytes.len() {
            let decoded = frame(&bytes[..end], bytes.len());
            assert!(!decoded.summary.is_empty());
        }
    }
}
