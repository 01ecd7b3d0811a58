//! Writes the headers that precede every transport header.

use tidewall_wire::ethernet::{self, EtherType, MacAddress};
use tidewall_wire::ipv4::{self, FragmentOffset};
use tidewall_wire::udp::Addresses;
use tidewall_wire::{EmitError, Protocol, ipv6};

/// Everything about a datagram except its addresses and what it carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub source_mac: MacAddress,
    pub destination_mac: MacAddress,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// The identification field; IPv4 only.
    pub identification: u16,
    pub protocol: Protocol,
}

/// Writes Ethernet and IP headers for a transport header and payload of `transport_len`
/// bytes; returns the frame from there on. IPv4 datagrams are sent with don't-fragment
/// set; IPv6's flow label is zero.
#[inline]
pub(crate) fn output<'a>(
    frame: &'a mut [u8],
    output: &Output,
    addresses: Addresses,
    transport_len: usize,
) -> Result<&'a mut [u8], EmitError> {
    let link = ethernet::Header {
        destination: output.destination_mac,
        source: output.source_mac,
        ethertype: match addresses {
            Addresses::V4(..) => EtherType::IPV4,
            Addresses::V6(..) => EtherType::IPV6,
        },
    };
    let rest = link.emit(frame)?;
    match addresses {
        Addresses::V4(source, destination) => ipv4::Header {
            tos: output.traffic_class,
            identification: output.identification,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: FragmentOffset::ZERO,
            ttl: output.hop_limit,
            protocol: output.protocol,
            source,
            destination,
            options: ipv4::Options::NONE,
        }
        .emit(transport_len, rest),
        Addresses::V6(source, destination) => ipv6::Header {
            traffic_class: output.traffic_class,
            flow_label: 0,
            next_header: output.protocol,
            hop_limit: output.hop_limit,
            source,
            destination,
        }
        .emit(transport_len, rest),
    }
}
