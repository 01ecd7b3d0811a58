//! UDP and TCP SYN frames made once and sent many times.
//!
//! Everything but the source address and the source port is fixed. These two can be
//! changed in a finished frame, and the checksums are updated without reading the rest
//! again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidewall_wire::checksum::Sum;
use tidewall_wire::ethernet::{EtherType, MacAddress};
use tidewall_wire::ipv4::FragmentOffset;
use tidewall_wire::tcp::{self, Flags, Options, Timestamps};
use tidewall_wire::udp::{Addresses, Checksum};
use tidewall_wire::{EmitError, Protocol, ethernet, ipv4, ipv6, udp};

use crate::spec::{PAYLOAD_MAX, invalid};

/// Time to live and hop limit of our packets (RFC 1122 §3.2.1.7 asks for at least 64).
const HOPS: u8 = 64;

/// Returns the header of a SYN segment: that of a Linux client on Ethernet.
fn syn() -> tcp::Header {
    tcp::Header {
        // Any number will do; a server's answer does not depend on it.
        sequence: 0x5eed_0001,
        flags: Flags::SYN,
        window: 64_240,
        options: Options {
            maximum_segment_size: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: 0x0100_0000,
                echo: 0,
            }),
            ..Options::default()
        },
        ..tcp::Header::default()
    }
}

/// The contents of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// A datagram with this many bytes of payload.
    Udp(u16),
    Syn,
}

impl Transport {
    fn protocol(self) -> Protocol {
        match self {
            Transport::Udp(_) => Protocol::UDP,
            Transport::Syn => Protocol::TCP,
        }
    }

    fn len(self) -> usize {
        match self {
            Transport::Udp(payload) => udp::HEADER_LEN + usize::from(payload),
            Transport::Syn => syn().header_len(),
        }
    }

    /// Returns the offset of the checksum in it.
    fn checksum_at(self) -> usize {
        match self {
            Transport::Udp(_) => 6,
            Transport::Syn => tcp::CHECKSUM_OFFSET.into(),
        }
    }
}

/// A frame and what is needed to change its source.
#[derive(Clone, Debug)]
pub struct Template {
    frame: Vec<u8>,
    /// Offset of the source address in the IP header.
    source_at: usize,
    /// Offset of the UDP or TCP header.
    transport_at: usize,
    transport: Transport,
    /// Sum of the IPv4 header without a source address; unused for IPv6.
    ip_sum: Sum,
    /// Sum of the bytes covered by the UDP or TCP checksum, without source address and
    /// port.
    transport_sum: Sum,
}

/// The ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Ethernet source.
    pub source_mac: MacAddress,
    /// Ethernet destination.
    pub destination_mac: MacAddress,
    /// IP source and source port.
    pub source: SocketAddr,
    /// IP destination and destination port, of the same IP version.
    pub destination: SocketAddr,
}

impl Template {
    /// Builds the frame from and to `ends` with `payload` bytes of zeros, all checksums
    /// filled in.
    ///
    /// # Errors
    /// `InvalidInput` if the IP versions differ or the payload exceeds [`PAYLOAD_MAX`].
    pub fn new(ends: &Ends, payload: u16) -> io::Result<Self> {
        if payload > PAYLOAD_MAX {
            return Err(invalid(format!(
                "the payload must be 0 to {PAYLOAD_MAX} bytes"
            )));
        }
        Self::of(ends, Transport::Udp(payload))
    }

    /// Builds a TCP SYN segment from and to `ends` with the options of a Linux client
    /// (maximum segment size 1460, window scale, SACK, timestamps), all checksums filled
    /// in.
    ///
    /// # Errors
    /// `InvalidInput` if the IP versions differ.
    pub fn syn(ends: &Ends) -> io::Result<Self> {
        Self::of(ends, Transport::Syn)
    }

    fn of(ends: &Ends, transport: Transport) -> io::Result<Self> {
        let destination = ends.destination.ip();
        let (addresses, ip_len, ethertype) = match (ends.source.ip(), destination) {
            (IpAddr::V4(_), IpAddr::V4(to)) => (
                Addresses::V4(Ipv4Addr::UNSPECIFIED, to),
                ipv4::HEADER_LEN,
                EtherType::IPV4,
            ),
            (IpAddr::V6(_), IpAddr::V6(to)) => (
                Addresses::V6(Ipv6Addr::UNSPECIFIED, to),
                ipv6::HEADER_LEN,
                EtherType::IPV6,
            ),
            _ => return Err(invalid("source and destination must be of one IP version")),
        };
        let transport_at = ethernet::HEADER_LEN + ip_len;
        let mut frame = vec![0; transport_at + transport.len()];
        let header = ethernet::Header {
            destination: ends.destination_mac,
            source: ends.source_mac,
            ethertype,
        };
        emit(
            &header,
            addresses,
            ends.destination.port(),
            transport,
            &mut frame,
        )
        .map_err(|error| invalid(error.to_string()))?;

        let source_at = match destination {
            IpAddr::V4(_) => ethernet::HEADER_LEN + 12,
            IpAddr::V6(_) => ethernet::HEADER_LEN + 8,
        };
        let checksum = word_at(&frame, transport_at + transport.checksum_at());
        let mut template = Template {
            // A checksum is the complement of the wanted sum.
            ip_sum: Sum::ZERO.word(!word_at(&frame, source_at - 2)),
            transport_sum: Sum::ZERO.word(!checksum),
            frame: Vec::new(),
            source_at,
            transport_at,
            transport,
        };
        template.set_source(&mut frame, ends.source.ip(), ends.source.port());
        template.frame = frame;
        Ok(template)
    }

    /// Returns the whole frame, Ethernet header first, without the check sequence.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Changes the source of `frame`, a copy of [`Template::frame`], and its
    /// checksums. An address of the other IP version, or a buffer shorter than
    /// the headers, changes nothing.
    pub fn set_source(&self, frame: &mut [u8], address: IpAddr, port: u16) {
        let Some((ip, transport)) = frame.split_at_mut_checked(self.transport_at) else {
            return;
        };
        if transport.len() < self.transport.len() {
            return;
        }
        let sum = match address {
            IpAddr::V4(address) if self.is_v4() => {
                let bits = address.to_bits();
                write_at(ip, self.source_at, &address.octets());
                let checksum = self.ip_sum.double_word(bits).checksum();
                // The header checksum lies just before the source address.
                write_at(ip, self.source_at - 2, &checksum.to_be_bytes());
                self.transport_sum.double_word(bits)
            }
            IpAddr::V6(address) if !self.is_v4() => {
                write_at(ip, self.source_at, &address.octets());
                self.transport_sum.bytes(&address.octets())
            }
            _ => return,
        };
        let checksum = match (sum.word(port).checksum(), self.transport) {
            // Zero would mean "no checksum" (RFC 768).
            (0, Transport::Udp(_)) => 0xffff,
            (checksum, _) => checksum,
        };
        write_at(transport, 0, &port.to_be_bytes());
        write_at(
            transport,
            self.transport.checksum_at(),
            &checksum.to_be_bytes(),
        );
    }

    /// Returns the offsets of the words that change with the source address.
    pub(crate) fn places(&self) -> Places {
        let address_len = if self.is_v4() { 4 } else { 16 };
        Places {
            address_end: self.source_at + address_len,
            ip_checksum: self.is_v4().then_some(self.source_at - 2),
            transport_checksum: self.transport_at + self.transport.checksum_at(),
        }
    }

    fn is_v4(&self) -> bool {
        self.transport_at == ethernet::HEADER_LEN + ipv4::HEADER_LEN
    }
}

/// Offsets of the words in a frame that change with its source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Just behind the source address.
    pub(crate) address_end: usize,
    /// The IPv4 header's checksum.
    pub(crate) ip_checksum: Option<usize>,
    /// The UDP or TCP checksum.
    pub(crate) transport_checksum: usize,
}

/// Writes a datagram of zeros or a SYN segment with the unspecified address and
/// port 0 as its source.
fn emit(
    header: &ethernet::Header,
    addresses: Addresses,
    destination_port: u16,
    transport: Transport,
    frame: &mut [u8],
) -> Result<(), EmitError> {
    let (length, protocol) = (transport.len(), transport.protocol());
    let rest = header.emit(frame)?;
    let rest = match addresses {
        Addresses::V4(source, destination) => ipv4::Header {
            tos: 0,
            // None is needed where fragmenting is forbidden (RFC 6864 §4.1).
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: FragmentOffset::ZERO,
            ttl: HOPS,
            protocol,
            source,
            destination,
            options: ipv4::Options::NONE,
        }
        .emit(length, rest)?,
        Addresses::V6(source, destination) => ipv6::Header {
            traffic_class: 0,
            flow_label: 0,
            next_header: protocol,
            hop_limit: HOPS,
            source,
            destination,
        }
        .emit(length, rest)?,
    };
    match transport {
        Transport::Udp(payload) => udp::Header {
            source_port: 0,
            destination_port,
        }
        .emit(
            addresses,
            &vec![0; payload.into()],
            Checksum::Software,
            rest,
        )
        .map(|_| ()),
        Transport::Syn => tcp::Header {
            destination_port,
            ..syn()
        }
        .emit(addresses, &[], Checksum::Software, rest)
        .map(|_| ()),
    }
}

fn word_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |word| u16::from_be_bytes(*word))
}

fn write_at(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = to.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

/// Returns pseudo-random bits for a packet's number, the same in every run (SplitMix64's
/// output function).
pub(crate) fn scatter(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewall_wire::udp::ChecksumState;

    fn ends(source: &str, destination: &str) -> Ends {
        Ends {
            source_mac: "02:00:00:00:00:0a".parse().unwrap(),
            destination_mac: "02:00:00:00:00:0b".parse().unwrap(),
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    /// Parses a frame with tidewall-wire, checks every checksum and length,
    /// and returns its ends and bytes of payload.
    fn parse(bytes: &[u8]) -> (Ends, usize) {
        let frame = ethernet::Frame::new(bytes).unwrap();
        let (source, destination, datagram) = match frame.ethertype() {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new(frame.payload()).unwrap();
                assert!(packet.has_valid_checksum());
                assert!(packet.dont_fragment() && !packet.is_fragment());
                assert_eq!((packet.ttl(), packet.protocol()), (HOPS, Protocol::UDP));
                assert_eq!(usize::from(packet.total_length()), frame.payload().len());
                let datagram = udp::Packet::new(packet.payload()).unwrap();
                let (source, destination) = (packet.source(), packet.destination());
                assert_eq!(
                    datagram.checksum_state(Addresses::V4(source, destination)),
                    ChecksumState::Valid
                );
                (IpAddr::V4(source), IpAddr::V4(destination), datagram)
            }
            EtherType::IPV6 => {
                let packet = ipv6::Packet::new(frame.payload()).unwrap();
                assert_eq!(
                    (packet.hop_limit(), packet.next_header()),
                    (HOPS, Protocol::UDP)
                );
                assert_eq!(
                    usize::from(packet.payload_length()) + 40,
                    frame.payload().len()
                );
                let datagram = udp::Packet::new(packet.payload()).unwrap();
                let (source, destination) = (packet.source(), packet.destination());
                assert_eq!(
                    datagram.checksum_state(Addresses::V6(source, destination)),
                    ChecksumState::Valid
                );
                (IpAddr::V6(source), IpAddr::V6(destination), datagram)
            }
            other => panic!("{other:?}"),
        };
        let ends = Ends {
            source_mac: frame.source(),
            destination_mac: frame.destination(),
            source: SocketAddr::new(source, datagram.source_port()),
            destination: SocketAddr::new(destination, datagram.destination_port()),
        };
        (ends, datagram.payload().len())
    }

    #[test]
    fn every_field_is_what_was_asked_for() {
        for ends in [
            ends("10.0.0.1:49152", "10.0.0.2:9"),
            ends("[fd00::1]:1", "[fd00::2]:65535"),
        ] {
            for payload in [0, 1, 8, 14, 513, 1452] {
                let template = Template::new(&ends, payload).unwrap();
                assert_eq!(parse(template.frame()), (ends, payload.into()));
            }
        }
    }

    #[test]
    fn the_source_can_be_changed() {
        for (ends, prefix) in [
            (ends("10.0.0.1:49152", "10.0.0.2:9"), "10.1.0.0/16"),
            (ends("[fd00::1]:49152", "[fd00::2]:9"), "fd01::/64"),
        ] {
            let prefix: crate::Prefix = prefix.parse().unwrap();
            let template = Template::new(&ends, 33).unwrap();
            let mut frame = template.frame().to_vec();
            for number in 0..2000 {
                let host = u128::from(scatter(number));
                let source = SocketAddr::new(prefix.with_host_bits(host), number as u16);
                template.set_source(&mut frame, source.ip(), source.port());
                assert_eq!(parse(&frame), (Ends { source, ..ends }, 33));
            }
        }
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_ones() {
        let ends = ends("10.0.0.1:49152", "10.0.0.2:9");
        let template = Template::new(&ends, 0).unwrap();
        let mut frame = template.frame().to_vec();
        let mut zeros = 0;
        for port in 1..=u16::MAX {
            template.set_source(&mut frame, ends.source.ip(), port);
            assert_ne!(frame[40..42], [0, 0]);
            zeros += usize::from(frame[40..42] == [0xff, 0xff]);
        }
        assert_eq!(zeros, 1, "exactly one port sums to zero");
    }

    #[test]
    fn nonsense_is_refused_or_ignored() {
        let mixed = ends("10.0.0.1:1", "[fd00::2]:9");
        assert!(Template::new(&mixed, 0).is_err());
        let ends = ends("10.0.0.1:1", "10.0.0.2:9");
        assert!(Template::new(&ends, 1473).is_err());
        let template = Template::new(&ends, 0).unwrap();
        let mut frame = template.frame().to_vec();
        template.set_source(&mut frame, "fd00::1".parse().unwrap(), 7);
        template.set_source(&mut [], ends.source.ip(), 7);
        assert_eq!(frame, template.frame());
    }

    /// Checks every checksum and length of a SYN frame; returns its ends.
    fn parse_syn(bytes: &[u8]) -> Ends {
        let frame = ethernet::Frame::new(bytes).unwrap();
        let (source, destination, segment) = match frame.ethertype() {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new(frame.payload()).unwrap();
                assert!(packet.has_valid_checksum());
                assert_eq!(packet.protocol(), Protocol::TCP);
                let segment = tcp::Packet::new(packet.payload()).unwrap();
                let (source, destination) = (packet.source(), packet.destination());
                assert_eq!(
                    segment.checksum_state(Addresses::V4(source, destination)),
                    ChecksumState::Valid
                );
                (IpAddr::V4(source), IpAddr::V4(destination), segment)
            }
            _ => {
                let packet = ipv6::Packet::new(frame.payload()).unwrap();
                assert_eq!(packet.next_header(), Protocol::TCP);
                let segment = tcp::Packet::new(packet.payload()).unwrap();
                let (source, destination) = (packet.source(), packet.destination());
                assert_eq!(
                    segment.checksum_state(Addresses::V6(source, destination)),
                    ChecksumState::Valid
                );
                (IpAddr::V6(source), IpAddr::V6(destination), segment)
            }
        };
        let header = segment.header();
        assert_eq!((header.flags, header.acknowledgment), (Flags::SYN, 0));
        assert_eq!(header.options, syn().options);
        assert!(segment.payload().is_empty());
        Ends {
            source_mac: frame.source(),
            destination_mac: frame.destination(),
            source: SocketAddr::new(source, header.source_port),
            destination: SocketAddr::new(destination, header.destination_port),
        }
    }

    #[test]
    fn a_syn_asks_for_a_connection_from_any_source() {
        for (ends, prefix) in [
            (ends("10.0.0.1:49152", "10.0.0.2:80"), "10.1.0.0/16"),
            (ends("[fd00::1]:49152", "[fd00::2]:80"), "fd01::/64"),
        ] {
            let prefix: crate::Prefix = prefix.parse().unwrap();
            let template = Template::syn(&ends).unwrap();
            assert_eq!(parse_syn(template.frame()), ends);
            let mut frame = template.frame().to_vec();
            for number in 0..2000 {
                let host = u128::from(scatter(number));
                let source = SocketAddr::new(prefix.with_host_bits(host), number as u16);
                template.set_source(&mut frame, source.ip(), source.port());
                assert_eq!(parse_syn(&frame), Ends { source, ..ends });
            }
        }
    }

    #[test]
    fn numbers_scatter() {
        let low_bytes: std::collections::HashSet<u8> =
            (0..2000).map(|number| scatter(number) as u8).collect();
        assert_eq!(low_bytes.len(), 256);
    }
}
