//! Calls on kernel sockets with this crate's addresses and flags.

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
pub fn socket(
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
pub fn internet(address: Option<SocketAddrAny>) -> Option<SocketAddr> {
    address.and_then(|address| address.try_into().ok())
}

/// `recvmsg`, with the sender's address if it is an internet one.
pub fn receive(
    fd: impl AsFd,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> io::Result<(usize, Option<SocketAddr>)> {
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
    let received = recvmsg(fd, buffers, &mut RecvAncillaryBuffer::default(), flags)?;
    Ok((received.bytes, internet(received.address)))
}

/// `sendmsg`, to an address or to the peer; SIGPIPE is not raised.
pub fn send(
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

/// Returns [`Rtnetlink::addresses_at`] an interface; for one that does not exist, all
/// addresses of others.
pub fn local_addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let index = interface::index(interface).unwrap_or(0);
    Rtnetlink::open()?.addresses_at(index)
}
