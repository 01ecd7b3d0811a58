//! How a socket of either family shows and accepts addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidewall_sys::RawAddress;

use crate::{Errno, Result};

/// Returns an address as the protocol uses it: IPv4-mapped addresses become IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns an address as a socket of the family shows it. The scope stays: a reply to a
/// link-local address leaves by the interface that the scope names.
pub(crate) fn shown(address: SocketAddr, domain: i32) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if domain == libc::AF_INET6 => {
            SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())
        }
        _ => address,
    }
}

/// Returns the wildcard address of a family.
pub(crate) fn wildcard(domain: i32) -> IpAddr {
    if domain == libc::AF_INET6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// Parses the address argument of a call that sends a datagram by a socket of the family.
/// `None` for an address that means the connected peer.
pub(crate) fn of_datagram(bytes: &[u8], domain: i32) -> Result<Option<SocketAddr>> {
    let invalid = Errno(libc::EINVAL);
    let family = bytes.first_chunk().ok_or(invalid)?;
    let (family, least) = match (domain, u16::from_ne_bytes(*family).into()) {
        (libc::AF_INET6, libc::AF_UNSPEC) => return Ok(None),
        // RFC 2133's structure has no scope.
        (libc::AF_INET6, libc::AF_INET6) => (libc::AF_INET6, 24),
        (libc::AF_INET, libc::AF_INET | libc::AF_UNSPEC) | (libc::AF_INET6, libc::AF_INET) => {
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        (libc::AF_INET, _) if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        _ => return Err(invalid),
    };
    if bytes.len() < least {
        return Err(invalid);
    }
    let mut whole = [0; size_of::<libc::sockaddr_in6>()];
    for (place, byte) in whole.iter_mut().zip(bytes) {
        *place = *byte;
    }
    whole[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    Ok(RawAddress::parse(&whole))
}

/// Checks that a datagram socket of a family may use an address: an IPv6 socket accepts both
/// families.
pub(crate) fn check_datagram_family(address: SocketAddr, domain: i32) -> Result<()> {
    match (domain, address) {
        (libc::AF_INET6, SocketAddr::V4(_)) => Ok(()),
        _ => check_family(address, domain),
    }
}

/// Checks that a TCP socket of a family may connect to an address.
pub(crate) fn check_peer(address: SocketAddr, domain: i32, only_v6: bool) -> Result<()> {
    check_family(address, domain)?;
    match address {
        // Linux: a socket with IPV6_V6ONLY cannot reach a mapped address.
        SocketAddr::V6(it) if only_v6 && it.ip().to_ipv4_mapped().is_some() => {
            Err(Errno(libc::ENETUNREACH))
        }
        _ => Ok(()),
    }
}

/// Checks that a socket of a family may use an address.
pub(crate) fn check_family(address: SocketAddr, domain: i32) -> Result<()> {
    match (domain, address) {
        (libc::AF_INET, SocketAddr::V6(_)) => Err(Errno(libc::EAFNOSUPPORT)),
        (libc::AF_ATMPVC | libc::AF_ATMSVC, _) => Err(Errno(libc::EAFNOSUPPORT)),
        // Linux: an address too short for the family.
        (libc::AF_INET6, SocketAddr::V4(_)) => Err(Errno(libc::EINVAL)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddrV6;

    #[test]
    fn an_address_is_shown_with_its_scope() {
        let link_local = SocketAddrV6::new("fe80::7".parse().unwrap(), 53, 0, 3).into();
        assert_eq!(shown(link_local, libc::AF_INET6), link_local);
        let v4 = "10.0.0.1:53".parse().unwrap();
        assert_eq!(shown(v4, libc::AF_INET), v4);
        let mapped = "[::ffff:10.0.0.1]:53".parse().unwrap();
        assert_eq!(shown(v4, libc::AF_INET6), mapped);
    }
}
