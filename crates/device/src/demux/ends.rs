//! Addresses and flows as the tables hold them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidewall_wire::atm::pseudowire::Label;

use super::layout::{PROTOCOL_CIRCUIT, Protocol};

/// The 16 bytes of an address; IPv4 as IPv4-mapped (RFC 4291 §2.5.5.2).
pub(super) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An address as the tables hold it: two words in memory order.
pub(super) fn address_words(address: IpAddr) -> [u64; 2] {
    zerocopy::transmute!(address_bytes(address))
}

/// An address from the words that the tables hold.
pub(super) fn address_of(words: [u64; 2]) -> IpAddr {
    let bytes: [u8; 16] = zerocopy::transmute!(words);
    Ipv6Addr::from(bytes).to_canonical()
}

/// A label in place of an address: the tables hold its 20 bits like those of an IPv4
/// address.
pub(super) fn label_address(label: Label) -> IpAddr {
    Ipv4Addr::from_bits(label.value()).into()
}

/// The two ends of a flow, as this host sees them: `struct ends` of `bpf/headers.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Ends {
    pub(super) local: [u64; 2],
    /// Zero for a listener.
    pub(super) remote: [u64; 2],
    /// Network order.
    pub(super) local_port: u16,
    /// Network order, 0 for a listener.
    pub(super) remote_port: u16,
    pub(super) protocol: u8,
    pub(super) version: u8,
    pad: u16,
}

impl Ends {
    pub(super) fn listening(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        let version = if address.to_canonical().is_ipv4() {
            4
        } else {
            6
        };
        Ends {
            local: address_words(address),
            remote: [0; 2],
            local_port: port.to_be(),
            remote_port: 0,
            protocol: protocol as u8,
            version,
            pad: 0,
        }
    }

    pub(super) fn connected(protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> Self {
        Ends {
            remote: address_words(remote.ip()),
            remote_port: remote.port().to_be(),
            ..Self::listening(protocol, local.ip(), local.port())
        }
    }

    pub(super) fn circuit(label: Label) -> Self {
        Ends {
            remote: address_words(Ipv4Addr::UNSPECIFIED.into()),
            protocol: PROTOCOL_CIRCUIT as u8,
            version: 0,
            ..Self::listening(Protocol::Udp, label_address(label), 0)
        }
    }

    /// The local port and its protocol.
    pub(super) fn port(&self) -> (Protocol, u16) {
        let protocol = match self.protocol {
            6 => Protocol::Tcp,
            _ => Protocol::Udp,
        };
        (protocol, u16::from_be(self.local_port))
    }
}

/// The byte of a flow's hash that is in neither bucket number; never 0.
pub(super) fn flow_tag(hash: u64) -> u8 {
    ((hash >> 24) as u8).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::raw_native::flow_hash;
    use super::*;

    fn ends(local: &str, remote: &str) -> Ends {
        Ends::connected(
            Protocol::Udp,
            local.parse().unwrap(),
            remote.parse().unwrap(),
        )
    }

    #[test]
    fn a_flow_is_hashed_by_siphash_1_3() {
        let mut bytes = Vec::new();
        let word = u64::from(u32::from_ne_bytes([192, 0, 2, 1])) << 32
            | u64::from(u32::from_ne_bytes([198, 51, 100, 7]));
        bytes.extend(word.to_le_bytes());
        let word = u64::from(4660u16.to_be()) << 32 | u64::from(80u16.to_be()) << 16 | 17;
        bytes.extend(word.to_le_bytes());
        // `DefaultHasher` is SipHash-1-3 with zero keys.
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hasher::write(&mut hasher, &bytes);
        let ends = ends("192.0.2.1:4660", "198.51.100.7:80");
        assert_eq!(flow_hash([0, 0], &ends), std::hash::Hasher::finish(&hasher));
    }

    /// Consecutive labels have distinct first buckets. A secret key decides which share
    /// the second.
    #[test]
    fn labels_are_spread() {
        let hash = |key, label| flow_hash(key, &Ends::circuit(Label::new(label).unwrap()));
        let buckets = |key| {
            let hashes = (0..4096).map(|number| hash(key, 0x1_0000 + number) & 0x7fff);
            hashes.collect::<std::collections::BTreeSet<_>>().len()
        };
        for key in [[0x243f_6a88_85a3_08d3, 1], [0x1319_8a2e_0370_7344, 2]] {
            // Chosen at random, 4,096 of 32,768 have 3,850 distinct ones.
            assert!(buckets(key) > 3700, "{}", buckets(key));
        }
        assert_ne!(hash([1, 2], 65_636) >> 32, hash([1 << 40, 2], 65_636) >> 32);
    }

    #[test]
    fn a_key_changes_the_hash() {
        let four = ends("10.0.0.1:1", "10.0.0.2:2");
        let six = ends("[fd00::1]:1", "[fd00::2]:2");
        assert_ne!(flow_hash([1, 2], &four), flow_hash([1, 3], &four));
        assert_ne!(flow_hash([1, 2], &six), flow_hash([2, 2], &six));
    }

    #[test]
    fn an_address_has_the_same_words_however_it_is_written() {
        let words = |text: &str| address_words(text.parse().unwrap());
        assert_eq!(words("192.0.2.1"), words("::ffff:192.0.2.1"));
        assert_ne!(words("192.0.2.1"), words("192.0.2.2"));
    }
}
