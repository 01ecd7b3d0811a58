//! Calls on the kernel's sockets with addresses and flags as this crate has them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrAny, SocketFlags, SocketType, recvmsg, sendmsg, sendmsg_addr, socket_with,
};
use tidewall_sys::interface;
use tidewall_sys::netlink::Rtnetlink;

/// A socket that is not yet bound; closed on exec.
pub(crate) fn socket(
    v6: bool,
    kind: SocketType,
    flags: SocketFlags,
    protocol: Option<Protocol>,
) -> io::Result<OwnedFd> {
    let family = match v6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    Ok(socket_with(
        family,
        kind,
        flags | SocketFlags::CLOEXEC,
        protocol,
    )?)
}

/// An address, if it is an internet one.
pub(crate) fn internet(address: Option<SocketAddrAny>) -> Option<SocketAddr> {
    address.and_then(|address| address.try_into().ok())
}

/// `recvmsg`, with the sender's address if it is an internet one.
pub(crate) fn receive(
    fd: impl AsFd,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> io::Result<(usize, Option<SocketAddr>)> {
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
    let received = recvmsg(fd, buffers, &mut RecvAncillaryBuffer::default(), flags)?;
    Ok((received.bytes, internet(received.address)))
}

/// `sendmsg`, to an address or to the peer; SIGPIPE is not raised.
pub(crate) fn send(
    fd: impl AsFd,
    buffers: &[IoSlice<'_>],
    destination: Option<SocketAddr>,
    flags: i32,
) -> io::Result<usize> {
    let flags = SendFlags::from_bits_retain(flags.cast_unsigned()) | SendFlags::NOSIGNAL;
    let mut none = SendAncillaryBuffer::default();
    Ok(match destination {
        Some(destination) => sendmsg_addr(fd, &destination, buffers, &mut none, flags)?,
        None => sendmsg(fd, buffers, &mut none, flags)?,
    })
}

/// Addresses of the network namespace at which `interface` is reached, its own
/// first: those of other interfaces too (a service address on `lo`), but not
/// loopback addresses, nor the link-local ones of other links.
pub(crate) fn local_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let index = interface::index(interface).ok();
    let elsewhere = |address: &IpAddr| {
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        !address.is_loopback() && !link_local
    };
    let (mut addresses, mut others) = (Vec::new(), Vec::new());
    for (link, address) in Rtnetlink::open()?.addresses()? {
        if Some(link) == index {
            addresses.push(address);
        } else if elsewhere(&address) {
            others.push(address);
        }
    }
    others.retain(|address| !addresses.contains(address));
    addresses.append(&mut others);
    Ok(addresses)
}
