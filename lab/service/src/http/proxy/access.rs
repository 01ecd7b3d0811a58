//! The permitted clients of a forward proxy, and its permitted destinations.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A block of addresses, as `10.0.0.0/8`; a single address is one, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cidr(IpNet);

impl Cidr {
    /// Returns whether it contains an address; a v4-mapped address counts as the one it
    /// maps.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Cidr {
    type Err = String;

    /// Parses `ADDRESS` or `ADDRESS/LENGTH`. Ignores bits behind the length.
    fn from_str(text: &str) -> Result<Self, String> {
        let block = text.parse::<IpNet>().ok();
        let block = block.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let unmapped = block.and_then(|block| match (block, block.addr().to_canonical()) {
            // The first 96 of the 128 bits of a mapped address mark it as one.
            (IpNet::V6(_), address @ IpAddr::V4(_)) => {
                IpNet::new(address, block.prefix_len().checked_sub(96)?).ok()
            }
            _ => Some(block),
        });
        unmapped.map(Cidr).ok_or_else(|| {
            format!("{text} is no block of addresses, such as 10.0.0.0/8 or fd00::/8")
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The rules of a forward proxy; forbidden requests are answered 403.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// The clients that are answered; empty: all.
    pub clients: Vec<Cidr>,
    /// Permitted destinations beside the public Internet. Addresses of this host and of
    /// internal networks (loopback, link-local, private and the like) are otherwise
    /// forbidden. Through a proxy a client could reach what it cannot reach itself, such
    /// as a cloud's metadata or an admin port.
    pub destinations: Vec<Cidr>,
}

impl Access {
    /// Returns whether a client is answered.
    pub fn admits(&self, client: IpAddr) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|block| block.contains(client))
    }

    /// Returns whether the proxy connects to an address. It is called for each address of
    /// a name, on each look-up, since an earlier check of a name need not hold any more.
    pub fn reaches(&self, destination: IpAddr) -> bool {
        let named = |block: &Cidr| block.contains(destination);
        self.destinations.iter().any(named) || is_public(destination) && !is_own(destination)
    }
}

/// Returns whether an address of either family is public, or embeds a public one (RFC
/// 6890 and IANA's registries of special-purpose addresses).
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        // This network, private, loopback, multicast, reserved and broadcast.
        (0 | 10 | 127 | 224.., _, _)
            // Shared with a provider, link-local, private.
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments, benchmarks.
            | (192, 0, 0)
            | (198, 18 | 19, _)
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let low = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // NAT64 (RFC 6052) and 6to4 (RFC 3056) lead to an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => is_public_v4(low(a, b)),
        [0x2002, a, b, ..] => is_public_v4(low(a, b)),
        // Teredo does too, hidden (RFC 4380).
        [0x2001, 0, ..] => false,
        // Global unicast. Outside of it are ::, ::1, the other embedded IPv4
        // addresses, local, link-local and multicast ones.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Returns whether an address is this host's. The kernel knows: it allows binding only to
/// such an address, and uses it as the source when sending to it.
fn is_own(address: IpAddr) -> bool {
    let binds = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    let (own, nobodys): (_, IpAddr) = match address.to_canonical() {
        // Reserved (RFC 1112), and where packets are discarded (RFC 6666).
        address @ IpAddr::V4(_) => (address, Ipv4Addr::new(240, 0, 0, 1).into()),
        address @ IpAddr::V6(_) => {
            let nobodys = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);
            (address, nobodys.into())
        }
    };
    if !binds(own) {
        return false;
    }
    // With net.ipv4.ip_nonlocal_bind, every address can be bound.
    !binds(nobodys) || speaks_to_itself(own)
}

fn speaks_to_itself(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn blocks_are_read() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "10",
            "10.0.0.0/33",
            "::/129",
            "a.example",
            "10.0.0.0/",
            "::ffff:0:0/95",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_block_holds_its_own() {
        let within = |block: &str, text: &str| {
            let block: Cidr = block.parse().unwrap();
            block.contains(address(text))
        };
        assert!(within("10.1.2.3/8", "10.255.0.1"));
        assert!(!within("10.0.0.0/8", "11.0.0.1"));
        assert!(within("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(within("0.0.0.0/0", "8.8.8.8") && !within("0.0.0.0/0", "2001:db8::1"));
        assert!(within("fd00::/8", "fd12::1") && !within("fd00::/8", "fe80::1"));
        assert!(within("::1", "::1") && !within("::1", "::2"));
    }

    #[test]
    fn the_inside_is_not_reached() {
        let access = Access::default();
        for text in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.5",
            "100.100.100.200",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2001:0:1::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!access.reaches(address(text)), "{text}");
        }
        for text in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(access.reaches(address(text)), "{text}");
        }
    }

    #[test]
    fn what_is_allowed_is_reached() {
        let access = Access {
            destinations: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
            ..Access::default()
        };
        assert!(access.reaches(address("10.0.0.5")));
        assert!(access.reaches(address("::ffff:10.0.0.5")));
        assert!(access.reaches(address("::1")));
        assert!(!access.reaches(address("127.0.0.1")));
        assert!(!access.reaches(address("192.168.0.1")));
    }

    #[test]
    fn clients_are_all_or_those_named() {
        let mut access = Access::default();
        assert!(access.admits(address("203.0.113.5")));
        access.clients = vec!["192.0.2.0/24".parse().unwrap()];
        assert!(access.admits(address("192.0.2.7")));
        assert!(access.admits(address("::ffff:192.0.2.7")));
        assert!(!access.admits(address("203.0.113.5")) && !access.admits(address("::1")));
    }

    /// Every host has the addresses of loopback.
    #[test]
    fn the_kernel_knows_which_addresses_are_own() {
        assert!(is_own(address("127.0.0.1")) && is_own(address("127.9.9.9")));
        assert!(is_own(address("::ffff:127.0.0.1")));
        assert!(!is_own(address("203.0.113.1")));
        assert!(speaks_to_itself(address("127.0.0.1")));
        assert!(!speaks_to_itself(address("203.0.113.1")));
    }
}
