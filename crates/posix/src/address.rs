//! Addresses as sockets of either family show and take them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{Errno, Result};

/// An address as the protocol knows it: IPv4-mapped ones are IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// As a socket of a family shows an address.
pub(crate) fn shown(address: SocketAddr, domain: i32) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) if domain == libc::AF_INET6 => {
            SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())
        }
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// The wildcard of a family.
pub(crate) fn wildcard(domain: i32) -> IpAddr {
    if domain == libc::AF_INET6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// Checks that a socket of a family may be given an address.
pub(crate) fn check_family(address: SocketAddr, domain: i32) -> Result<()> {
    match (domain, address) {
        (libc::AF_INET, SocketAddr::V6(_)) => Err(Errno(libc::EAFNOSUPPORT)),
        (libc::AF_ATMPVC | libc::AF_ATMSVC, _) => Err(Errno(libc::EAFNOSUPPORT)),
        // Linux: an address too short for the family.
        (libc::AF_INET6, SocketAddr::V4(_)) => Err(Errno(libc::EINVAL)),
        _ => Ok(()),
    }
}
