//! The datagram that tests whether the kernel admits a NAPI probe.

use tidewall_wire::ethernet::{self, EtherType};
use tidewall_wire::udp::{Addresses, Checksum};
use tidewall_wire::{ipv4, ipv6, udp};

/// Content of a test datagram.
const CONTENT: [u8; 8] = *b"tidewall";

/// Builds a UDP datagram from the sender of `frame` to its receiver, from port `source`
/// to port `port`. `None` if the frame holds no IP datagram.
pub(super) fn datagram(frame: &[u8], source: u16, port: u16) -> Option<Vec<u8>> {
    let frame = ethernet::Frame::new(frame).ok()?;
    let length = udp::HEADER_LEN + CONTENT.len();
    let mut made = vec![0; ethernet::HEADER_LEN + ipv6::HEADER_LEN + length];
    let rest = ethernet::Header::of(&frame).emit(&mut made).ok()?;
    let (addresses, rest) = match frame.ethertype() {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(frame.payload()).ok()?;
            let header = ipv4::Header {
                more_fragments: false,
                fragment_offset: ipv4::FragmentOffset::default(),
                protocol: tidewall_wire::Protocol::UDP,
                options: ipv4::Options::default(),
                ..ipv4::Header::of(&packet)
            };
            let rest = header.emit(length, rest).ok()?;
            (Addresses::V4(header.source, header.destination), rest)
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(frame.payload()).ok()?;
            let header = ipv6::Header {
                next_header: tidewall_wire::Protocol::UDP,
                ..ipv6::Header::of(&packet)
            };
            let rest = header.emit(length, rest).ok()?;
            (Addresses::V6(header.source, header.destination), rest)
        }
        _ => return None,
    };
    let header = udp::Header {
        source_port: source,
        destination_port: port,
    };
    header
        .emit(addresses, &CONTENT, Checksum::Software, rest)
        .ok()?;
    let left = rest.len() - length;
    made.truncate(made.len() - left);
    Some(made)
}
