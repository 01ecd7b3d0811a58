//! The kernel socket that holds a Tidewall socket's port.
//!
//! Because it is bound, the port has one owner on the machine, and conflicts in both
//! directions are the kernel's EADDRINUSE. Because it is a real socket, peers on this host
//! keep reaching the service. Receiving merges both.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType, bind, connect_unspec};

use tidewall_device::forked::Unshared;
use tidewall_stack::address::to_v6;
use tidewall_stack::kernel_calls;
use tidewall_sys::{Message, option, receive_message, send_message, set_option};

use crate::udp::BindOptions;

/// The kernel's information about one datagram.
pub(crate) struct KernelDatagram {
    pub(crate) length: usize,
    pub(crate) source: SocketAddr,
    pub(crate) destination: Option<IpAddr>,
    /// The local address to answer from, if there is one.
    pub(crate) local: Option<IpAddr>,
    /// Index of the interface that it came by, 0 where unknown.
    pub(crate) interface: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Has a socket say with each datagram where it came to, and how.
fn want_ancillary(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    if v6 {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
    }
    // For IPv6 too: of broadcasts only this says where to answer from.
    set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    if !v6 {
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct PortReservation {
    socket: Unshared<UdpSocket>,
    v6: bool,
}

impl AsFd for PortReservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PortReservation {
    pub(crate) fn bind(address: SocketAddr, how: &BindOptions) -> io::Result<Self> {
        let v6 = address.is_ipv6();
        let flags = SocketFlags::NONBLOCK;
        let socket = UdpSocket::from(kernel_calls::socket(v6, SocketType::DGRAM, flags, None)?);
        let fd = socket.as_fd();
        if how.reuse_address {
            set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        }
        if how.reuse_port {
            set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if v6 {
            let only = i32::from(how.only_v6);
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
        }
        want_ancillary(fd, v6)?;
        bind(fd, &address)?;
        let socket = Unshared::new(socket)?;
        Ok(PortReservation { socket, v6 })
    }

    /// A bound socket that an application has made, and how it is bound. Nothing of it
    /// changes before [`PortReservation::take_over`].
    ///
    /// # Errors
    /// EINVAL for one that is not bound, EPROTONOSUPPORT for another protocol than UDP.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<(Self, BindOptions)> {
        let of_socket = |name| option(&socket, libc::SOL_SOCKET, name);
        if of_socket(libc::SO_PROTOCOL)? != libc::IPPROTO_UDP {
            return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        }
        let v6 = of_socket(libc::SO_DOMAIN)? == libc::AF_INET6;
        let how = BindOptions {
            reuse_address: of_socket(libc::SO_REUSEADDR)? != 0,
            reuse_port: of_socket(libc::SO_REUSEPORT)? != 0,
            only_v6: v6 && option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)? != 0,
        };
        let socket = UdpSocket::from(socket);
        if socket.local_addr()?.port() == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let socket = Unshared::new(socket)?;
        Ok((PortReservation { socket, v6 }, how))
    }

    /// Sets what the stack needs of a socket that an application has made.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        want_ancillary(self.socket.as_fd(), self.v6)
    }

    /// The peer that it was given, if any.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    /// Takes the peer away. The port stays: `bound` to it, as before.
    pub(crate) fn disconnect(&self, bound: SocketAddr) -> io::Result<()> {
        connect_unspec(self.socket.as_fd())?;
        match self.local_addr()?.port() {
            // Linux gives up a port that it has chosen.
            0 => Ok(bind(self.socket.as_fd(), &bound)?),
            _ => Ok(()),
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    pub(crate) fn send_to(
        &self,
        payload: &[u8],
        destination: SocketAddr,
        connected: bool,
    ) -> io::Result<usize> {
        // One that was adopted may be blocking for those who share it.
        let destination = (!connected).then_some(destination);
        self.send(&[IoSlice::new(payload)], destination, libc::MSG_DONTWAIT)
    }

    /// Sends with flags of sendmsg(2), to the peer without a destination.
    pub(crate) fn send(
        &self,
        buffers: &[IoSlice<'_>],
        destination: Option<SocketAddr>,
        flags: i32,
    ) -> io::Result<usize> {
        let shown = |it| if self.v6 { to_v6(it) } else { it };
        kernel_calls::send(&*self.socket, buffers, destination.map(shown), flags)
    }

    /// Sends from `source`, on `interface` if that is not 0.
    pub(crate) fn send_from(
        &self,
        payload: &[u8],
        source: IpAddr,
        interface: u32,
        destination: SocketAddr,
    ) -> io::Result<usize> {
        let message = Message {
            payload,
            destination: Some(destination),
            source,
            interface,
        };
        send_message(self.socket.as_fd(), &message, libc::MSG_DONTWAIT)
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<KernelDatagram> {
        let received = receive_message(self.socket.as_fd(), buffer, libc::MSG_DONTWAIT)?;
        let ancillary = received.ancillary;
        Ok(KernelDatagram {
            length: received.length.min(buffer.len()),
            source: received.source.ok_or(io::ErrorKind::InvalidData)?,
            destination: ancillary.destination,
            local: ancillary.local,
            interface: ancillary.interface,
            traffic_class: ancillary.traffic_class,
            hop_limit: ancillary.hop_limit,
        })
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    pub(crate) fn set_traffic_class(&self, value: u8) -> io::Result<()> {
        self.set_both(libc::IP_TOS, libc::IPV6_TCLASS, value)
    }

    pub(crate) fn set_hop_limit(&self, value: u8) -> io::Result<()> {
        self.set_both(libc::IP_TTL, libc::IPV6_UNICAST_HOPS, value)
    }

    /// Sets an option of IPv4 and of IPv6 as far as it sends both.
    pub(crate) fn set_both(&self, v4: i32, v6: i32, value: u8) -> io::Result<()> {
        let (fd, value) = (self.socket.as_fd(), i32::from(value));
        if self.v6 {
            set_option(fd, libc::IPPROTO_IPV6, v6, value)?;
        }
        set_option(fd, libc::IPPROTO_IP, v4, value)
    }

    /// Sets an option of IPv6.
    pub(crate) fn set_v6(&self, name: i32, value: i32) -> io::Result<()> {
        set_option(self.socket.as_fd(), libc::IPPROTO_IPV6, name, value)
    }

    /// Reads an option of the family that its peer is of.
    pub(crate) fn get(&self, v4: i32, v6: i32) -> io::Result<i32> {
        let is_v4 = self.socket.peer_addr()?.ip().to_canonical().is_ipv4();
        self.get_of(is_v4, v4, v6)
    }

    /// Reads an option of the family that it is of.
    pub(crate) fn get_own(&self, v4: i32, v6: i32) -> io::Result<i32> {
        self.get_of(!self.v6, v4, v6)
    }

    fn get_of(&self, is_v4: bool, v4: i32, v6: i32) -> io::Result<i32> {
        let (level, name) = match is_v4 {
            true => (libc::IPPROTO_IP, v4),
            false => (libc::IPPROTO_IPV6, v6),
        };
        option(self.socket.as_fd(), level, name)
    }
}
