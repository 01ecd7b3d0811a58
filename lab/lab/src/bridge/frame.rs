//! The bridge's view of a frame: whether it is impaired, its flow, and whether it may be
//! marked.

use std::net::IpAddr;

use tidewall_simulator::link::Ecn;
use tidewall_wire::checksum;

/// Bytes of an Ethernet header; frames with a VLAN tag are not read.
const ETHERNET: usize = 14;
/// Next header values (IANA).
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Neighbour discovery (RFC 4861 §4): router solicitation to redirect.
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// An IP packet as the bridge sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its bytes, from the IP header on.
    pub(super) bytes: u32,
    /// Its ECN field.
    pub(super) ecn: Ecn,
    /// Its source and destination.
    pub(super) flow: Flow,
}

/// Both ends of a packet. Ports are zero if there are none, as in all but the first
/// fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
}

impl Flow {
    /// Returns the same flow as the other end sees it.
    pub(super) fn reversed(self) -> Self {
        Flow {
            source: self.destination,
            destination: self.source,
        }
    }
}

/// Returns the destination and the source of a frame.
pub(super) fn addresses(frame: &[u8]) -> Option<([u8; 6], [u8; 6])> {
    Some((*frame.first_chunk()?, *frame.get(6..)?.first_chunk()?))
}

/// Returns a packet that is to be impaired: IP, other than neighbour discovery. ARP and
/// everything else passes at once.
pub(super) fn see(frame: &[u8]) -> Option<Seen> {
    let packet = frame.get(ETHERNET..)?;
    let ports = |at: usize| {
        let port = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        port(at).zip(port(at + 2)).unwrap_or((0, 0))
    };
    let word = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    match frame.get(12..ETHERNET)? {
        [0x08, 0x00] => {
            let header = packet.first_chunk::<20>()?;
            let is_first = word(6)? & 0x1fff == 0;
            let (source, destination) = match header[9] {
                TCP | UDP if is_first => ports(usize::from(header[0] & 15) * 4),
                _ => (0, 0),
            };
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            Some(Seen {
                // Without the padding of short Ethernet frames.
                bytes: u32::from(word(2)?).min(packet.len() as u32),
                ecn: Ecn::of(header[1]),
                flow: Flow {
                    source: (address(12)?, source),
                    destination: (address(16)?, destination),
                },
            })
        }
        [0x86, 0xdd] => {
            let header = packet.first_chunk::<40>()?;
            let next = header[6];
            if next == ICMPV6
                && packet
                    .get(40)
                    .is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind))
            {
                return None;
            }
            let (source, destination) = match next {
                TCP | UDP => ports(40),
                _ => (0, 0),
            };
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            Some(Seen {
                bytes: (u32::from(word(4)?) + 40).min(packet.len() as u32),
                ecn: Ecn::of((header[0] << 4) | (header[1] >> 4)),
                flow: Flow {
                    source: (address(8)?, source),
                    destination: (address(24)?, destination),
                },
            })
        }
        _ => None,
    }
}

/// Sets congestion experienced in the frame of an IP packet (RFC 3168 §5), and corrects
/// its header checksum.
pub(super) fn mark(frame: &mut [u8]) {
    match frame.get(12..ETHERNET) {
        Some([0x08, 0x00]) => {
            let Some(header) = frame
                .get_mut(ETHERNET..)
                .and_then(|p| p.first_chunk_mut::<20>())
            else {
                return;
            };
            let old = u16::from_be_bytes([header[0], header[1]]);
            header[1] = Ecn::mark(header[1]);
            let new = u16::from_be_bytes([header[0], header[1]]);
            let sum = u16::from_be_bytes([header[10], header[11]]);
            let sum = checksum::update(sum, old, new).to_be_bytes();
            [header[10], header[11]] = sum;
        }
        Some([0x86, 0xdd]) => {
            // The two bits are the third and fourth from the top of the second
            // byte.
            if let Some(byte) = frame.get_mut(ETHERNET + 1) {
                *byte |= 0x30;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(tos: u8, protocol: u8, fragment: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[12..14].copy_from_slice(&[8, 0]);
        let packet = &mut frame[14..];
        packet[..10].copy_from_slice(&[0x45, tos, 0, 44, 0, 0, 0, 0, 64, protocol]);
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[20..24].copy_from_slice(&[0x12, 0x34, 0, 80]);
        let sum = checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn a_packet_is_seen_with_its_ends_and_without_padding() {
        let seen = see(&ipv4(2, TCP, 0)).unwrap();
        assert_eq!((seen.bytes, seen.ecn), (44, Ecn::Capable));
        assert_eq!(seen.flow.source, ([10, 0, 0, 1].into(), 0x1234));
        assert_eq!(seen.flow.destination, ([10, 0, 0, 2].into(), 80));
        assert_eq!(seen.flow.reversed().reversed(), seen.flow);
        // Fragments beyond the first have no ports, and neither has ICMP.
        assert_eq!(see(&ipv4(0, UDP, 1)).unwrap().flow.source.1, 0);
        assert_eq!(see(&ipv4(0, 1, 0)).unwrap().flow.source.1, 0);
    }

    #[test]
    fn resolution_is_not_impaired() {
        let mut arp = ipv4(0, TCP, 0);
        arp[13] = 6;
        assert_eq!(see(&arp), None);
        let mut frame = vec![0; 90];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14] = 0x60;
        frame[18..20].copy_from_slice(&36u16.to_be_bytes());
        frame[20] = ICMPV6;
        frame[54] = 135;
        assert_eq!(see(&frame), None, "a neighbour solicitation");
        frame[54] = 128;
        assert_eq!(see(&frame).unwrap().bytes, 76, "an echo request");
        assert_eq!(see(&frame[..30]), None, "cut off");
        assert_eq!(see(&[]), None);
    }

    #[test]
    fn a_mark_leaves_the_header_undamaged() {
        let mut frame = ipv4(2, TCP, 0);
        mark(&mut frame);
        assert_eq!(see(&frame).unwrap().ecn, Ecn::Experienced);
        assert_eq!(checksum::checksum(&frame[14..34]), 0);
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14..16].copy_from_slice(&[0x60, 0x20]);
        assert_eq!(see(&frame).unwrap().ecn, Ecn::Capable);
        mark(&mut frame);
        assert_eq!(see(&frame).unwrap().ecn, Ecn::Experienced);
        assert_eq!(frame[14..16], [0x60, 0x30]);
        mark(&mut []);
    }
}
