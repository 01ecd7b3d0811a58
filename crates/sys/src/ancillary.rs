//! Ancillary data (cmsg(3)) as bytes: a header of length, level and type, and
//! the payload, each aligned to a machine word.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::address::chunk;

/// Space for the data that [`Ancillary`] is read from, with all options on.
pub(crate) const CONTROL_BYTES: usize = 192;
/// Bytes of `struct cmsghdr`.
const HEADER: usize = size_of::<libc::cmsghdr>();
const WORD: usize = size_of::<usize>();

/// Space for ancillary data.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control(pub(crate) [u8; CONTROL_BYTES]);

impl Control {
    pub(crate) const EMPTY: Control = Control([0; CONTROL_BYTES]);

    /// Writes the message that sets a datagram's source address and, if `interface` is
    /// not 0, its interface (IP_PKTINFO, IPV6_PKTINFO). Returns the bytes used.
    pub(crate) fn set_source(&mut self, source: IpAddr, interface: u32) -> usize {
        // struct in_pktinfo: ifindex, spec_dst, addr; struct in6_pktinfo: addr,
        // ifindex.
        let mut payload = [0; size_of::<libc::in6_pktinfo>()];
        let (level, kind, length) = match source {
            IpAddr::V4(source) => {
                payload[..4].copy_from_slice(&interface.to_ne_bytes());
                payload[4..8].copy_from_slice(&source.octets());
                let length = size_of::<libc::in_pktinfo>();
                (libc::IPPROTO_IP, libc::IP_PKTINFO, length)
            }
            IpAddr::V6(source) => {
                payload[..16].copy_from_slice(&source.octets());
                payload[16..].copy_from_slice(&interface.to_ne_bytes());
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, payload.len())
            }
        };
        let Control(bytes) = self;
        bytes[..WORD].copy_from_slice(&(HEADER + length).to_ne_bytes());
        bytes[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        bytes[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER..HEADER + payload.len()].copy_from_slice(&payload);
        HEADER + length.next_multiple_of(WORD)
    }
}

/// The ancillary data of a received packet, as far as the socket's options request it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// The destination address of the datagram: a local, group or broadcast address.
    pub destination: Option<IpAddr>,
    /// The local address for an answer; over IPv6 `None` for a datagram to a group.
    pub local: Option<IpAddr>,
    /// The index of the interface on which it arrived; 0 if unknown.
    pub interface: u32,
    /// IP_TOS, IPV6_TCLASS.
    pub traffic_class: u8,
    /// IP_TTL, IPV6_HOPLIMIT.
    pub hop_limit: u8,
    /// SCM_TIMESTAMPNS: the time of arrival.
    pub timestamp: Option<SystemTime>,
    /// `tp_status` of PACKET_AUXDATA.
    pub packet_status: u32,
}

impl Ancillary {
    /// Reads the messages in `control`; stops at a truncated one.
    pub(crate) fn parse(control: &[u8]) -> Self {
        let mut data = Self::default();
        let mut rest = control;
        while let Some(length) = chunk(rest, 0).map(usize::from_ne_bytes) {
            let (Some(level), Some(kind), Some(payload)) = (
                chunk(rest, WORD).map(i32::from_ne_bytes),
                chunk(rest, WORD + 4).map(i32::from_ne_bytes),
                rest.get(HEADER..length),
            ) else {
                break;
            };
            data.read(level, kind, payload);
            rest = rest
                .get(length.next_multiple_of(WORD)..)
                .unwrap_or_default();
        }
        data
    }

    fn read(&mut self, level: i32, kind: i32, payload: &[u8]) {
        let v4 = |at| chunk(payload, at).map(|ip| IpAddr::V4(Ipv4Addr::from_octets(ip)));
        let index = |at| chunk(payload, at).map_or(0, u32::from_ne_bytes);
        let small = || chunk(payload, 0).map_or(0, |bytes| i32::from_ne_bytes(bytes) as u8);
        match (level, kind) {
            // ipi_spec_dst and ipi_addr. On an IPv6 socket this comes after IPV6_PKTINFO,
            // and has more information.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                self.interface = index(0);
                self.local = v4(4);
                self.destination = v4(8);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = chunk(payload, 0).map(Ipv6Addr::from_octets);
                self.interface = index(16);
                self.destination = ip.map(IpAddr::V6);
                self.local = ip.filter(|ip| !ip.is_multicast()).map(IpAddr::V6);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.traffic_class = payload.first().copied().unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.traffic_class = small(),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.hop_limit = small();
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                let part = |at| chunk(payload, at).map(i64::from_ne_bytes);
                if let (Some(seconds), Some(nanoseconds)) = (part(0), part(8)) {
                    let since = Duration::new(seconds.cast_unsigned(), nanoseconds as u32);
                    self.timestamp = UNIX_EPOCH.checked_add(since);
                }
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                self.packet_status = chunk(payload, 0).map_or(0, u32::from_ne_bytes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_laid_out_as_it_is_read() {
        for source in ["192.0.2.7", "2001:db8::7"] {
            let source: IpAddr = source.parse().unwrap();
            let mut control = Control::EMPTY;
            let used = control.set_source(source, 3);
            let read = Ancillary::parse(&control.0[..used]);
            assert_eq!((read.local, read.interface), (Some(source), 3));
            for length in 0..used {
                let _ = Ancillary::parse(&control.0[..length]);
            }
        }
        assert_eq!(Ancillary::parse(&[0; 64]), Ancillary::default());
    }
}
