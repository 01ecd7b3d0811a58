//! Internet socket addresses in the kernel's format: `struct sockaddr_in` and `struct
//! sockaddr_in6`, as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of the longer of the two.
pub(crate) const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// Space for an address, aligned as the structures are.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct RawAddress(pub [u8; ADDRESS_BYTES]);

impl RawAddress {
    pub(crate) const EMPTY: RawAddress = RawAddress([0; ADDRESS_BYTES]);

    /// The address and its length in bytes.
    pub fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::EMPTY;
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = raw.0.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(2, &address.port().to_be_bytes());
        let (family, length) = match address {
            SocketAddr::V4(v4) => {
                put(4, &v4.ip().octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                put(4, &v6.flowinfo().to_ne_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        put(0, &(family as libc::sa_family_t).to_ne_bytes());
        (raw, length as libc::socklen_t)
    }

    /// The address; `None` for one that is truncated or of another family.
    pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes(chunk(bytes, 0)?);
        let port = u16::from_be_bytes(chunk(bytes, 2)?);
        match i32::from(family) {
            libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
                let ip = Ipv4Addr::from_octets(chunk(bytes, 4)?);
                Some(SocketAddr::new(IpAddr::V4(ip), port))
            }
            libc::AF_INET6 => Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from_octets(chunk(bytes, 8)?),
                port,
                u32::from_ne_bytes(chunk(bytes, 4)?),
                u32::from_ne_bytes(chunk(bytes, 24)?),
            ))),
            _ => None,
        }
    }
}

/// `N` bytes from `at` on.
pub(crate) fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["10.1.2.3:4567", "[fd00::1]:9", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(
                RawAddress::parse(&RawAddress::new(address).0.0),
                Some(address)
            );
        }
        assert_eq!(RawAddress::parse(&RawAddress::EMPTY.0), None);
    }
}
