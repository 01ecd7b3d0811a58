//! Addresses as the stack and the kernel write them.

use std::net::{IpAddr, SocketAddr};

/// Returns true for multicast, broadcast and scoped addresses, which stay with the
/// kernel.
pub fn stays_with_kernel(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified() || v4.is_loopback()
        }
        IpAddr::V6(v6) => {
            v6.is_multicast()
                || v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_unicast_link_local()
        }
    }
}

/// Returns the address to which a socket is bound, unless it is any.
pub fn specified(bound: SocketAddr) -> Option<IpAddr> {
    let address = bound.ip().to_canonical();
    (!address.is_unspecified()).then_some(address)
}

/// Converts an IPv4-mapped address to IPv4.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Converts an IPv4 address to IPv4-mapped.
pub fn to_v6(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(IpAddr::V6(v4.to_ipv6_mapped()), address.port()),
        IpAddr::V6(_) => address,
    }
}
