//! Ranges of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A range of IP addresses that share their first bits, such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "IpNet", into = "IpNet")]
pub struct Prefix(IpNet);

/// The text was not an IP address, a slash and a number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a prefix such as 10.1.0.0/16 or fd00::/64")]
pub struct InvalidPrefix;

impl Prefix {
    /// Creates the prefix of the first `length` bits of `address`; the others are
    /// cleared.
    ///
    /// # Errors
    /// [`InvalidPrefix`] if `length` exceeds the address's bits.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, InvalidPrefix> {
        let block = IpNet::new(address, length).map_err(|_| InvalidPrefix)?;
        Ok(block.into())
    }

    /// Returns the lowest address.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the number of leading bits that all addresses share.
    pub fn length(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns a mask of the bits in an address's last four bytes that are outside the
    /// prefix.
    pub(crate) fn low_mask(&self) -> u32 {
        match self.0 {
            IpNet::V4(block) => block.hostmask().to_bits(),
            IpNet::V6(block) => block.hostmask().to_bits() as u32,
        }
    }

    /// Returns the address whose remaining bits are the low bits of `host`.
    pub(crate) fn with_host_bits(&self, host: u128) -> IpAddr {
        match self.0 {
            IpNet::V4(block) => {
                let host = Ipv4Addr::from_bits(host as u32) & block.hostmask();
                (block.addr() | host).into()
            }
            IpNet::V6(block) => {
                let host = Ipv6Addr::from_bits(host) & block.hostmask();
                (block.addr() | host).into()
            }
        }
    }
}

impl From<IpNet> for Prefix {
    fn from(block: IpNet) -> Self {
        Prefix(block.trunc())
    }
}

impl From<Prefix> for IpNet {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let block: IpNet = text.parse().map_err(|_| InvalidPrefix)?;
        Ok(block.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_keeps_its_bits() {
        let prefix: Prefix = "10.1.2.3/16".parse().unwrap();
        assert_eq!(prefix.to_string(), "10.1.0.0/16");
        assert_eq!(
            prefix.with_host_bits(u128::MAX),
            "10.1.255.255".parse::<IpAddr>().unwrap()
        );
        let whole: Prefix = "10.1.2.3/32".parse().unwrap();
        assert_eq!(
            whole.with_host_bits(99),
            "10.1.2.3".parse::<IpAddr>().unwrap()
        );
        let none: Prefix = "::/0".parse().unwrap();
        assert_eq!(none.with_host_bits(1), "::1".parse::<IpAddr>().unwrap());
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "x/8",
            "10.0.0.0/-1",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(InvalidPrefix), "{text}");
        }
    }

    #[test]
    fn low_bits_of_a_prefix() {
        for (prefix, mask) in [
            ("10.1.0.0/16", 0xffff),
            ("10.1.2.3/32", 0),
            ("0.0.0.0/0", u32::MAX),
            ("fd00::/64", u32::MAX),
            ("fd00::/120", 0xff),
        ] {
            assert_eq!(
                prefix.parse::<Prefix>().unwrap().low_mask(),
                mask,
                "{prefix}"
            );
        }
    }
}
