//! What the demux reads in a frame: just enough to tell whose it is.
//!
//! The full parsers are in `tidewall-wire`; these stop at what
//! `bpf/demux.bpf.c` looks at, in its order, so that both judge alike.

use std::net::{IpAddr, SocketAddr};

use super::layout::LOCALS;
use super::siphash::siphash;

/// Offset of the IP header: a frame with a tag is not parsed on.
pub(super) const NETWORK: usize = 14;
pub(super) const V4_HEADER: usize = 20;
pub(super) const V6_HEADER: usize = 40;
/// More in one datagram is an attack.
const EXTENSION_HEADERS: usize = 8;

pub(super) const ICMP: u8 = 1;
pub(super) const IGMP: u8 = 2;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// Bytes `at..at + N` of a frame.
pub(super) fn read<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

pub(super) fn read_u8(frame: &[u8], at: usize) -> Option<u8> {
    frame.get(at).copied()
}

pub(super) fn read_u16(frame: &[u8], at: usize) -> Option<u16> {
    read(frame, at).map(u16::from_be_bytes)
}

/// The 16 bytes of an address; IPv4 as IPv4-mapped (RFC 4291 §2.5.5.2).
pub(super) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let value = u128::from_ne_bytes(bytes);
    let (low, high) = (value as u64, (value >> 64) as u64);
    if cfg!(target_endian = "little") {
        [low, high]
    } else {
        [high, low]
    }
}

/// An address as the tables hold it: two words in memory order.
pub(super) fn address_words(address: IpAddr) -> [u64; 2] {
    words(address_bytes(address))
}

fn mapped(address: [u8; 4]) -> [u64; 2] {
    words(std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets())
}

/// Where the probing for a local address begins.
pub(super) fn local_slot(address: [u64; 2]) -> usize {
    let folded = address[0] ^ address[1];
    let word = (folded >> 32) as u32 ^ folded as u32;
    (word.wrapping_mul(0x9e37_79b1) >> (32 - LOCALS.trailing_zeros())) as usize
}

/// Two ends of a flow, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) local: [u64; 2],
    pub(super) remote: [u64; 2],
    pub(super) local_port: u16,
    pub(super) remote_port: u16,
    pub(super) protocol: u8,
}

impl Ends {
    pub(super) fn connected(local: SocketAddr, remote: SocketAddr, protocol: u8) -> Self {
        Ends {
            local: address_words(local.ip()),
            remote: address_words(remote.ip()),
            local_port: local.port(),
            remote_port: remote.port(),
            protocol,
        }
    }

    pub(super) fn listening(local: [u64; 2], local_port: u16, protocol: u8) -> Self {
        Ends {
            local,
            remote: [0; 2],
            local_port,
            remote_port: 0,
            protocol,
        }
    }

    pub(super) fn is_v4(&self) -> bool {
        let [a, b, c, d] = [0, 0, 0xff, 0xff];
        self.local[0] == 0 && self.local[1].to_ne_bytes().first_chunk::<4>() == Some(&[a, b, c, d])
    }
}

/// SipHash-1-3 (Aumasson & Bernstein, 2012) of a flow: an attacker who does not
/// know the key cannot fill one bucket.
pub(super) fn flow_hash(key: [u64; 2], ends: &Ends) -> u64 {
    siphash::<1, 3>(key, flow_words(ends))
}

/// The byte of a flow's hash that neither of its buckets' numbers has; never 0.
pub(super) fn flow_tag(hash: u64) -> u8 {
    ((hash >> 24) as u8).max(1)
}

/// SipHash-2-4 of a flow and perhaps one word more, for SYN cookies.
pub(super) fn cookie_hash(key: [u64; 2], ends: &Ends, word: Option<u64>) -> u64 {
    siphash::<2, 4>(key, flow_words(ends).chain(word))
}

/// What is hashed of a flow: two words, or five.
fn flow_words(ends: &Ends) -> impl Iterator<Item = u64> {
    let last = |word: u64| {
        let [.., a, b, c, d] = word.to_ne_bytes();
        u64::from(u32::from_ne_bytes([a, b, c, d]))
    };
    let addresses = if ends.is_v4() {
        let both = last(ends.local[1]) << 32 | last(ends.remote[1]);
        [Some(both), None, None, None]
    } else {
        let ([a, b], [c, d]) = (ends.local, ends.remote);
        [a, b, c, d].map(Some)
    };
    let ports = u64::from(ends.local_port.to_be()) << 32
        | u64::from(ends.remote_port.to_be()) << 16
        | u64::from(ends.protocol);
    addresses.into_iter().flatten().chain([ports])
}

/// Place of a datagram among its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Not fragmented, or an atomic fragment (RFC 6946).
    Whole,
    /// Has the transport header; more follow.
    First,
    /// `transport` is its payload.
    Later,
}

/// An IP datagram whose lengths hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) version: u8,
    pub(super) protocol: u8,
    pub(super) transport: usize,
    pub(super) end: usize,
    /// Of the IPv6 fragment header when fragmented, else 0.
    pub(super) fragment: usize,
    pub(super) part: Part,
    pub(super) source: [u64; 2],
    pub(super) destination: [u64; 2],
}

/// Why a frame is not a datagram to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Truncated,
    Malformed,
    /// To a group or to everybody.
    Multicast,
}

/// Parses the IPv4 header (RFC 791 §3.1).
pub(super) fn parse_v4(frame: &[u8]) -> Result<Datagram, Refused> {
    let header: [u8; V4_HEADER] = read(frame, NETWORK).ok_or(Refused::Truncated)?;
    let length = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || length < V4_HEADER || total < length {
        return Err(Refused::Malformed);
    }
    let end = NETWORK + total;
    if end > frame.len() {
        return Err(Refused::Truncated);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let part = match (fragment & 0x1fff != 0, fragment & 0x2000 != 0) {
        (true, _) => Part::Later,
        (false, true) => Part::First,
        (false, false) => Part::Whole,
    };
    let datagram = Datagram {
        version: 4,
        protocol: header[9],
        transport: NETWORK + length,
        end,
        fragment: 0,
        part,
        source: mapped([header[12], header[13], header[14], header[15]]),
        destination: mapped([header[16], header[17], header[18], header[19]]),
    };
    if header[16] >> 4 == 14 || header[16..20] == [255; 4] {
        return Err(Refused::Multicast);
    }
    Ok(datagram)
}

/// Parses the IPv6 header and its extension headers (RFC 8200 §§3, 4).
pub(super) fn parse_v6(frame: &[u8]) -> Result<Datagram, Refused> {
    let header: [u8; V6_HEADER] = read(frame, NETWORK).ok_or(Refused::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(Refused::Malformed);
    }
    let transport = NETWORK + V6_HEADER;
    let end = transport + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > frame.len() {
        return Err(Refused::Truncated);
    }
    if header[24] == 0xff {
        return Err(Refused::Multicast);
    }
    let walked = walk_extensions(frame, transport, end, header[6]).ok_or(Refused::Malformed)?;
    let address = |at: usize| {
        header
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .copied()
            .map(words)
    };
    Ok(Datagram {
        version: 6,
        protocol: walked.protocol,
        transport: walked.transport,
        end,
        fragment: if walked.part == Part::Whole {
            0
        } else {
            walked.fragment
        },
        part: walked.part,
        source: address(8).unwrap_or_default(),
        destination: address(24).unwrap_or_default(),
    })
}

/// Where a chain of extension headers ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walked {
    protocol: u8,
    transport: usize,
    fragment: usize,
    part: Part,
}

/// `None` for a header past `end`, for more than [`EXTENSION_HEADERS`] and for
/// a second fragment header.
fn walk_extensions(frame: &[u8], mut at: usize, end: usize, mut next: u8) -> Option<Walked> {
    let mut fragment = 0;
    let mut part = Part::Whole;
    for _ in 0..=EXTENSION_HEADERS {
        if !matches!(
            next,
            HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
        ) {
            return Some(Walked {
                protocol: next,
                transport: at,
                fragment,
                part,
            });
        }
        if at + 8 > end {
            return None;
        }
        let header: [u8; 8] = read(frame, at)?;
        match next {
            FRAGMENT => {
                if fragment != 0 {
                    return None;
                }
                fragment = at;
                at += 8;
                let field = u16::from_be_bytes([header[2], header[3]]);
                if field & 0xfff8 != 0 {
                    let part = Part::Later;
                    return Some(Walked {
                        protocol: header[0],
                        transport: at,
                        fragment,
                        part,
                    });
                }
                if field & 1 != 0 {
                    part = Part::First;
                }
            }
            AUTHENTICATION => at += (usize::from(header[1]) + 2) * 4,
            _ => at += (usize::from(header[1]) + 1) * 8,
        }
        if at > end {
            return None;
        }
        next = header[0];
    }
    None
}

impl Datagram {
    /// Ends of a datagram to us; `ports` as on the wire.
    pub(super) fn ends(&self, ports: [u8; 4]) -> Ends {
        let [a, b, c, d] = ports;
        Ends {
            local: self.destination,
            remote: self.source,
            local_port: u16::from_be_bytes([c, d]),
            remote_port: u16::from_be_bytes([a, b]),
            protocol: self.protocol,
        }
    }

    /// Ends of the flow that an ICMP error quotes: UDP or TCP that was sent
    /// from the address the error came to. `None` for anything else.
    pub(super) fn quoted_ends(&self, frame: &[u8]) -> Option<Ends> {
        let frame = frame.get(..self.end)?;
        let message = *read::<8>(frame, self.transport)?.first()?;
        let at = self.transport + 8;
        let (protocol, local, remote, ports) = if self.version == 4 {
            // RFC 792: unreachable, time exceeded, parameter problem.
            let header: [u8; V4_HEADER] = read(frame, at)?;
            let length = usize::from(header[0] & 15) * 4;
            let later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
            if !matches!(message, 3 | 11 | 12) || header[0] >> 4 != 4 || length < V4_HEADER || later
            {
                return None;
            }
            let source = mapped([header[12], header[13], header[14], header[15]]);
            let destination = mapped([header[16], header[17], header[18], header[19]]);
            (header[9], source, destination, at + length)
        } else {
            // RFC 4443: types 1 to 4 are errors with a defined quotation.
            let header: [u8; V6_HEADER] = read(frame, at)?;
            if !matches!(message, 1..=4) || header[0] >> 4 != 6 {
                return None;
            }
            let walked = walk_extensions(frame, at + V6_HEADER, self.end, header[6])?;
            if walked.part == Part::Later {
                return None;
            }
            let address = |at: usize| header.get(at..)?.first_chunk().copied().map(words);
            (walked.protocol, address(8)?, address(24)?, walked.transport)
        };
        if local != self.destination || !matches!(protocol, UDP | TCP) {
            return None;
        }
        let [a, b, c, d] = read(frame, ports)?;
        Some(Ends {
            local,
            remote,
            local_port: u16::from_be_bytes([a, b]),
            remote_port: u16::from_be_bytes([c, d]),
            protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's SipHash-1-3 of `00 01 … 0f` as two words
    /// is what the standard library computes for the same bytes and keys 0.
    #[test]
    fn flow_hash_is_siphash_1_3_over_words() {
        let ends = Ends::connected(
            "192.0.2.1:4660".parse().unwrap(),
            "198.51.100.7:80".parse().unwrap(),
            UDP,
        );
        let mut bytes = Vec::new();
        let word = u64::from(u32::from_ne_bytes([192, 0, 2, 1])) << 32
            | u64::from(u32::from_ne_bytes([198, 51, 100, 7]));
        bytes.extend(word.to_le_bytes());
        let word = u64::from(4660u16.to_be()) << 32 | u64::from(80u16.to_be()) << 16 | 17;
        bytes.extend(word.to_le_bytes());
        // `DefaultHasher` is SipHash-1-3 with zero keys.
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hasher::write(&mut hasher, &bytes);
        assert_eq!(flow_hash([0, 0], &ends), std::hash::Hasher::finish(&hasher));
    }

    #[test]
    fn a_key_changes_the_hash_and_the_family_decides_the_words() {
        let four = Ends::connected(
            "10.0.0.1:1".parse().unwrap(),
            "10.0.0.2:2".parse().unwrap(),
            UDP,
        );
        let six = Ends::connected(
            "[fd00::1]:1".parse().unwrap(),
            "[fd00::2]:2".parse().unwrap(),
            UDP,
        );
        assert!(four.is_v4() && !six.is_v4());
        assert_ne!(flow_hash([1, 2], &four), flow_hash([1, 3], &four));
        assert_ne!(flow_hash([1, 2], &six), flow_hash([2, 2], &six));
    }
}
