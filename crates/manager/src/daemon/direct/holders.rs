//! What the kernel says of sockets: those that hold ports, and ports that none holds.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use tidewall_device::demux::layout::Protocol;
use tidewall_sys::{option, option_bytes};

use crate::daemon::ports::HolderFacts;

/// The host that sockets are to be of.
#[derive(Clone, Copy, Debug)]
pub struct Holders {
    /// The manager's network namespace.
    namespace: u64,
}

impl Holders {
    /// Of this process's network namespace.
    ///
    /// # Errors
    /// What the kernel reports.
    pub(super) fn here() -> io::Result<Self> {
        let namespace = namespace(&tidewall_sys::interface::any_socket()?)?;
        Ok(Holders { namespace })
    }

    /// What the kernel says of a socket; `None` for one that is no bound TCP or UDP socket. May
    /// block as long as the socket's owner likes.
    pub fn facts(self, socket: BorrowedFd<'_>) -> Option<HolderFacts> {
        facts(socket, self.namespace)
    }
}

fn facts(socket: BorrowedFd<'_>, here: u64) -> Option<HolderFacts> {
    let number = option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()?;
    let protocol = crate::protocol::transport(u8::try_from(number).ok()?)?;
    let domain = sockopt::socket_domain(socket).ok()?;
    if ![AddressFamily::INET, AddressFamily::INET6].contains(&domain) {
        return None;
    }
    let local: SocketAddr = getsockname(socket).ok()?.try_into().ok()?;
    let shared = sockopt::socket_reuseport(socket).ok()?;
    let alone = match protocol {
        Protocol::Tcp => sockopt::socket_acceptconn(socket).ok()?,
        Protocol::Udp => !sockopt::socket_reuseaddr(socket).ok()?,
    };
    Some(HolderFacts {
        protocol,
        local,
        cookie: sockopt::socket_cookie(socket).ok()?,
        exclusive: alone && !shared,
        here: namespace(&socket).ok()? == here,
    })
}

/// The network namespace of a socket.
fn namespace(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = [0; 8];
    option_bytes(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Whether a socket can be bound to a port at all addresses.
pub(super) fn is_unbound(protocol: Protocol, port: u16) -> io::Result<bool> {
    let kind = match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC;
    // Of both families, where there are both.
    let (socket, address) = match socket_with(AddressFamily::INET6, kind, flags, None) {
        Ok(socket) => (socket, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        Err(_) => {
            let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
            (socket, Ipv4Addr::UNSPECIFIED.into())
        }
    };
    match bind(&socket, &SocketAddr::new(address, port)) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
