//! Ranges of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A range of IP addresses that share their first bits, as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// The text was not an IP address, a slash and a number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPrefix;

impl fmt::Display for InvalidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a prefix such as 10.1.0.0/16 or fd00::/64")
    }
}

impl std::error::Error for InvalidPrefix {}

impl Prefix {
    /// The prefix of the first `length` bits of `address`; the others are
    /// cleared.
    ///
    /// # Errors
    /// [`InvalidPrefix`] when `length` is over the address's bits.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, InvalidPrefix> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if length > bits {
            return Err(InvalidPrefix);
        }
        let prefix = Prefix { address, length };
        Ok(Prefix {
            address: prefix.with_host_bits(0),
            length,
        })
    }

    /// The lowest address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Number of leading bits that all addresses share.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Which bits of an address's last four bytes are not the prefix's.
    pub(crate) fn low_mask(&self) -> u32 {
        let host_bits = match self.address {
            IpAddr::V4(_) => 32u8.saturating_sub(self.length),
            IpAddr::V6(_) => 128u8.saturating_sub(self.length),
        };
        match host_bits {
            32.. => u32::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// The address whose remaining bits are the low bits of `host`.
    pub(crate) fn with_host_bits(&self, host: u128) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shr(self.length.into()).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(
                    (address.to_bits() & !mask) | (host as u32 & mask),
                ))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shr(self.length.into()).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(
                    (address.to_bits() & !mask) | (host & mask),
                ))
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let (address, length) = text.split_once('/').ok_or(InvalidPrefix)?;
        Prefix::new(
            address.parse().map_err(|_| InvalidPrefix)?,
            length.parse().map_err(|_| InvalidPrefix)?,
        )
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
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
