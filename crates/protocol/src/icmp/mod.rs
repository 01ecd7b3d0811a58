//! ICMP errors (RFC 792, RFC 1122 §3.2.2 and §4.1.3.3, RFC 4443): which flow each
//! concerns, and the errno that Linux reports for it.
//!
//! The tables follow Linux's `icmp_err_convert`, `icmpv6_err_convert`, `__udp4_lib_err`
//! and `__udp6_lib_err`. Anyone can forge an ICMP error (RFC 5927). A result of this
//! module may be reported to the owner of the flow and may lower a path MTU. It must
//! never end anything.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use tidewall_wire::icmp::{self, Message, v4, v6};
use tidewall_wire::udp::Addresses;
use tidewall_wire::{Protocol, ipv4, ipv6};

pub use crate::DropReason;
use crate::errno::*;
use crate::ip;

/// The smallest path MTU that is believed over IPv4: Linux's `min_pmtu` default. A lower
/// value is raised to it, so that a forged error cannot make every datagram too long.
pub const MTU_MIN_V4: u32 = 552;

/// The smallest path MTU over IPv6 (RFC 8200 §5, RFC 8201 §4).
pub const MTU_MIN_V6: u32 = 1280;

/// Bytes of a quoted transport header that an error must have to be used: what RFC 792
/// guarantees and Linux requires.
const QUOTED_TRANSPORT: usize = 8;

/// An ICMP error about a flow of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// The flow's local end: the source of the quoted datagram.
    pub local: SocketAddr,
    /// The flow's remote end: the destination of the quoted datagram.
    pub remote: SocketAddr,
    /// The errno that Linux reports to a socket.
    pub errno: i32,
    /// Linux's "fatal": a hard error is reported to a connected socket. A soft error is
    /// reported only to a socket that asked for it (`IP_RECVERR`); see
    /// [`FlowError::is_reported`].
    pub hard: bool,
    /// The path MTU in bytes, for an error about size that names one; at least
    /// [`MTU_MIN_V4`] or [`MTU_MIN_V6`].
    pub mtu: Option<u32>,
    /// The sender of the error: the peer or a router on the path.
    pub offender: IpAddr,
    /// The ICMP or ICMPv6 type (`ee_type`).
    pub kind: u8,
    /// The ICMP or ICMPv6 code (`ee_code`).
    pub code: u8,
    /// For TCP, the quoted segment's sequence number. An error about a segment that is
    /// not in flight is forged, or too old to matter (RFC 5927 §4.1).
    pub sequence: Option<u32>,
}

impl FlowError {
    /// Whether a Linux UDP socket would report it. A socket with `IP_RECVERR` reports all
    /// errors; any other reports only hard ones, and only when connected.
    pub const fn is_reported(&self, connected: bool, receive_errors: bool) -> bool {
        receive_errors || (connected && self.hard)
    }
}

/// The flow that a quoted packet names.
struct Quoted {
    local: SocketAddr,
    remote: SocketAddr,
    sequence: Option<u32>,
}

/// The meaning of an error: errno, whether it is hard, and the path MTU.
type Meaning = ((i32, bool), Option<u32>);

/// Reads an ICMP or ICMPv6 error. `bytes` start at the IP header of the error itself;
/// `transport_offset` is the offset of the ICMP header in the frame's metadata.
///
/// Reads only errors that quote a UDP datagram sent from the address to which the error
/// was sent ([`tcp_error`] is for TCP). The caller decides whether such a flow exists.
pub fn error(bytes: &[u8], transport_offset: usize) -> Result<FlowError, DropReason> {
    read(bytes, transport_offset, Protocol::UDP)
}

/// As [`error`], for errors that quote a TCP segment. Their [`FlowError::sequence`] is
/// always set.
pub fn tcp_error(bytes: &[u8], transport_offset: usize) -> Result<FlowError, DropReason> {
    read(bytes, transport_offset, Protocol::TCP)
}

/// Reads an error that quotes a packet of `transport`.
fn read(
    bytes: &[u8],
    transport_offset: usize,
    transport: Protocol,
) -> Result<FlowError, DropReason> {
    let protocols = [Protocol::ICMP, Protocol::ICMPV6];
    let received = ip::input(bytes, transport_offset, protocols)?;
    let message = Message::parse(received.transport).map_err(|_| DropReason::Truncated)?;
    if !icmp::has_valid_checksum(received.addresses, received.transport) {
        return Err(DropReason::IcmpChecksum);
    }
    let (offender, addressed, meaning, flow): (IpAddr, IpAddr, _, _) = match received.addresses {
        Addresses::V4(source, destination) => {
            let flow = quoted_v4(message.body, transport);
            (
                source.into(),
                destination.into(),
                meaning_v4(&message),
                flow,
            )
        }
        Addresses::V6(source, destination) => {
            let flow = quoted_v6(message.body, transport);
            (
                source.into(),
                destination.into(),
                meaning_v6(&message),
                flow,
            )
        }
    };
    let ((errno, hard), mtu) = meaning?;
    let Quoted {
        local,
        remote,
        sequence,
    } = flow?;
    if local.ip() != addressed {
        return Err(DropReason::IcmpQuotedSource);
    }
    Ok(FlowError {
        local,
        remote,
        errno,
        hard,
        mtu,
        offender,
        kind: message.kind,
        code: message.code,
        sequence,
    })
}

/// Linux's `icmp_err_convert`: the errno and whether it is hard, indexed by the code of
/// destination unreachable.
const UNREACHABLE_V4: [(i32, bool); 16] = [
    (ENETUNREACH, false),  // 0 net unreachable
    (EHOSTUNREACH, false), // 1 host unreachable
    (ENOPROTOOPT, true),   // 2 protocol unreachable
    (ECONNREFUSED, true),  // 3 port unreachable
    // 4 fragmentation needed: soft in Linux's table, but `__udp4_lib_err` makes it hard
    // for a socket that discovers the path MTU, as our sockets do.
    (EMSGSIZE, true),
    (EOPNOTSUPP, false),   // 5 source route failed
    (ENETUNREACH, true),   // 6 destination network unknown
    (EHOSTDOWN, true),     // 7 destination host unknown
    (ENONET, true),        // 8 source host isolated
    (ENETUNREACH, true),   // 9 network prohibited
    (EHOSTUNREACH, true),  // 10 host prohibited
    (ENETUNREACH, false),  // 11 network unreachable for type of service
    (EHOSTUNREACH, false), // 12 host unreachable for type of service
    (EHOSTUNREACH, true),  // 13 filtered (RFC 1812)
    (EHOSTUNREACH, true),  // 14 host precedence violation
    (EHOSTUNREACH, true),  // 15 precedence cutoff
];

fn meaning_v4(message: &Message<'_>) -> Result<Meaning, DropReason> {
    let (code, mtu) = (message.code, message.mtu_v4());
    Ok(match message.kind {
        v4::kind::DESTINATION_UNREACHABLE => {
            // Linux drops codes it does not know.
            let meaning = UNREACHABLE_V4
                .get(usize::from(code))
                .ok_or(DropReason::IcmpIgnored)?;
            let mtu = (code == v4::unreachable::FRAGMENTATION_NEEDED && mtu != 0)
                .then(|| u32::from(mtu).max(MTU_MIN_V4));
            (*meaning, mtu)
        }
        v4::kind::TIME_EXCEEDED => ((EHOSTUNREACH, false), None),
        v4::kind::PARAMETER_PROBLEM => ((EPROTO, true), None),
        // The kernel handles redirects; source quench is dead (RFC 6633).
        _ => return Err(DropReason::IcmpIgnored),
    })
}

/// Linux's `tab_unreach`, indexed by the code of destination unreachable.
const UNREACHABLE_V6: [(i32, bool); 7] = [
    (ENETUNREACH, false),  // 0 no route
    (EACCES, true),        // 1 prohibited
    (EHOSTUNREACH, false), // 2 beyond scope
    (EHOSTUNREACH, false), // 3 address unreachable
    (ECONNREFUSED, true),  // 4 port unreachable
    (EACCES, true),        // 5 failed policy
    (EACCES, true),        // 6 reject route
];

fn meaning_v6(message: &Message<'_>) -> Result<Meaning, DropReason> {
    Ok(match message.kind {
        v6::kind::DESTINATION_UNREACHABLE => {
            let meaning = UNREACHABLE_V6.get(usize::from(message.code)).copied();
            (meaning.unwrap_or((EPROTO, true)), None)
        }
        // Soft in Linux's table; hard where the path MTU is discovered, as over IPv4.
        v6::kind::PACKET_TOO_BIG => ((EMSGSIZE, true), Some(message.mtu_v6().max(MTU_MIN_V6))),
        v6::kind::TIME_EXCEEDED => ((EHOSTUNREACH, false), None),
        v6::kind::PARAMETER_PROBLEM => ((EPROTO, true), None),
        // RFC 4443 §2.4 (a): an unknown error is passed on; types from 128 on are not
        // errors.
        0..128 => ((EPROTO, false), None),
        _ => return Err(DropReason::IcmpIgnored),
    })
}

fn quoted_v4(quoted: &[u8], wanted: Protocol) -> Result<Quoted, DropReason> {
    // The quote's own checksum is not checked: routers have changed its TTL.
    let packet = ipv4::Packet::new_quoted(quoted).map_err(|_| DropReason::IcmpQuote)?;
    if packet.fragment_offset() != ipv4::FragmentOffset::ZERO {
        return Err(DropReason::IcmpQuotedFragment);
    }
    let (source, destination, sequence) = ports(packet.protocol(), wanted, packet.payload())?;
    Ok(Quoted {
        local: SocketAddrV4::new(packet.source(), source).into(),
        remote: SocketAddrV4::new(packet.destination(), destination).into(),
        sequence,
    })
}

fn quoted_v6(quoted: &[u8], wanted: Protocol) -> Result<Quoted, DropReason> {
    let packet = ipv6::Packet::new_quoted(quoted).map_err(|_| DropReason::IcmpQuote)?;
    let found = packet.extensions().map_err(|_| DropReason::IcmpQuote)?;
    if found
        .fragment
        .is_some_and(|fragment| fragment.offset != ipv4::FragmentOffset::ZERO)
    {
        return Err(DropReason::IcmpQuotedFragment);
    }
    let transport = quoted.get(found.transport..).ok_or(DropReason::IcmpQuote)?;
    let (source, destination, sequence) = ports(found.protocol, wanted, transport)?;
    Ok(Quoted {
        local: SocketAddrV6::new(packet.source(), source, 0, 0).into(),
        remote: SocketAddrV6::new(packet.destination(), destination, 0, 0).into(),
        sequence,
    })
}

/// The ports, and the sequence number where the transport is TCP.
fn ports(
    protocol: Protocol,
    wanted: Protocol,
    transport: &[u8],
) -> Result<(u16, u16, Option<u32>), DropReason> {
    if protocol != wanted {
        return Err(DropReason::IcmpQuotedProtocol);
    }
    let [a, b, c, d, e, f, g, h] = *transport
        .first_chunk::<QUOTED_TRANSPORT>()
        .ok_or(DropReason::IcmpQuote)?;
    let sequence = (wanted == Protocol::TCP).then(|| u32::from_be_bytes([e, f, g, h]));
    Ok((
        u16::from_be_bytes([a, b]),
        u16::from_be_bytes([c, d]),
        sequence,
    ))
}

#[cfg(test)]
mod tests;
