//! Datagram sockets: their options, and per-packet control messages (ip(7), ipv6(7)).

use std::io::{IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use tidewall::{OpenFile, UdpSocket};

use crate::address::{canonical, check_datagram_family, of_datagram, shown};
use crate::option::{between, int, timeval};
use crate::socket::Socket;
use crate::{ControlMessage, Errno, Posix, Received, Result, errno, lock};

/// Default of `net.ipv4.ip_default_ttl` and `net.ipv6.conf.*.hop_limit`, which a value of
/// −1 selects.
pub(crate) const HOPS: u8 = 64;

/// Options that attach a control message to each datagram: level, option, and message type.
/// The message's level is the option's. In the order in which messages are delivered.
const MESSAGES: [(i32, i32, i32); 6] = [
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVPKTINFO,
        libc::IPV6_PKTINFO,
    ),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_TOS),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVHOPLIMIT,
        libc::IPV6_HOPLIMIT,
    ),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_TCLASS),
];

/// Returns an option's bit in [`Socket::messages`]. An IPv4 socket has none of the IPv6
/// options.
pub(crate) fn message_bit(domain: i32, level: i32, option: i32) -> Option<u8> {
    if level == libc::IPPROTO_IPV6 && domain != libc::AF_INET6 {
        return None;
    }
    let found = MESSAGES
        .iter()
        .position(|it| (it.0, it.1) == (level, option));
    found.map(|at| 1 << at)
}

/// The bit in [`Socket::messages`] that marks a datagram begun with MSG_MORE.
const BEGUN: u8 = 1 << 7;
const _: () = assert!(MESSAGES.len() < 7);

impl Socket {
    /// Reports whether a call with MSG_MORE has begun a datagram.
    pub(crate) fn has_begun_datagram(&self) -> bool {
        self.messages.load(Ordering::Relaxed) & BEGUN != 0
    }

    pub(crate) fn note_begun_datagram(&self, begun: bool) {
        match begun {
            true => self.messages.fetch_or(BEGUN, Ordering::Relaxed),
            false => self.messages.fetch_and(!BEGUN, Ordering::Relaxed),
        };
    }
}

/// All message options, to be carried over.
pub(crate) fn message_options() -> impl Iterator<Item = (i32, i32)> {
    MESSAGES
        .into_iter()
        .map(|(level, option, _)| (level, option))
}

impl Posix {
    /// Sets an option; `None` if it is not specific to datagram sockets.
    pub(crate) fn set_of_datagrams(
        &self,
        file: &OpenFile,
        socket: &Socket,
        (level, option): (i32, i32),
        value: &[u8],
    ) -> Option<Result<()>> {
        if let Some(bit) = message_bit(socket.domain, level, option) {
            return Some(int(value).map(|value| match value {
                0 => drop(socket.messages.fetch_and(!bit, Ordering::Relaxed)),
                _ => drop(socket.messages.fetch_or(bit, Ordering::Relaxed)),
            }));
        }
        let OpenFile::Datagram(datagrams) = file else {
            return None;
        };
        Some(set(datagrams, socket, (level, option), value))
    }

    /// Returns an option; `None` if other sockets have it as well.
    pub(crate) fn of_datagrams(
        &self,
        file: &OpenFile,
        socket: &Socket,
        (level, option): (i32, i32),
    ) -> Option<Result<i32>> {
        if let Some(bit) = message_bit(socket.domain, level, option) {
            return Some(Ok(
                (socket.messages.load(Ordering::Relaxed) & bit != 0).into()
            ));
        }
        let OpenFile::Datagram(datagrams) = file else {
            return None;
        };
        match (level, option) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                Some(Ok(datagrams.tos().into()))
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                Some(Ok(datagrams.ttl().into()))
            }
            (libc::SOL_SOCKET, libc::SO_ERROR | libc::SO_TYPE | libc::SO_DOMAIN)
            | (libc::SOL_SOCKET, libc::SO_PROTOCOL | libc::SO_ACCEPTCONN | libc::SO_RCVTIMEO) => {
                None
            }
            // The kernel socket that holds the port has the options that it was bound
            // with.
            _ => Some(Err(Errno(libc::ENOPROTOOPT))),
        }
    }

    /// Receives one datagram, with the control messages that the socket's options
    /// request.
    pub(crate) fn receive_datagram(
        &self,
        datagrams: &UdpSocket,
        socket: &Socket,
        buffers: &mut [IoSliceMut<'_>],
        flags: i32,
    ) -> Result<Received> {
        let at_once = flags & libc::MSG_DONTWAIT != 0;
        let wanted = socket.messages.load(Ordering::Relaxed) & !BEGUN;
        let mut result = Received::default();
        let each = |packet: tidewall::Received<'_>| {
            let length = packet.payload.len();
            // Reading from memory cannot fail.
            let copied = (&mut &*packet.payload)
                .read_vectored(buffers)
                .unwrap_or_default();
            if copied < length {
                result.flags |= libc::MSG_TRUNC;
            }
            result.bytes = match flags & libc::MSG_TRUNC {
                0 => copied,
                _ => length,
            };
            result.from = Some(shown(packet.source, socket.domain));
            if wanted != 0 {
                result.packet = self.messages(&packet, wanted);
            }
        };
        let received = match flags & libc::MSG_PEEK {
            0 => datagrams.receive_batch(1, at_once, each),
            _ => datagrams.peek(at_once, each),
        };
        received.map_err(errno).map(|_| result)
    }

    fn messages(&self, packet: &tidewall::Received<'_>, wanted: u8) -> Vec<ControlMessage> {
        let destination = packet.destination.ip();
        let is_v4 = destination.to_canonical().is_ipv4();
        let interface = packet
            .interface
            .unwrap_or_else(|| self.stack().interface_index());
        let each = MESSAGES.iter().enumerate();
        let wanted = each.filter(|(at, _)| wanted & 1 << at != 0);
        let messages = wanted.filter_map(|(_, &(level, _, kind))| {
            let class = i32::from(packet.traffic_class).to_ne_bytes();
            let hops = i32::from(packet.hop_limit).to_ne_bytes();
            let data = match (level, kind) {
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let to = match destination {
                        IpAddr::V4(to) => to.to_ipv6_mapped(),
                        IpAddr::V6(to) => to,
                    };
                    [&to.octets()[..], &interface.to_ne_bytes()].concat()
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let (IpAddr::V4(own), IpAddr::V4(to)) =
                        (packet.local.to_canonical(), destination.to_canonical())
                    else {
                        return None;
                    };
                    [interface.to_ne_bytes(), own.octets(), to.octets()].concat()
                }
                // Each family has its own. The hop limit of a datagram that the kernel
                // reassembled is unknown.
                _ if (level == libc::IPPROTO_IP) != is_v4 || packet.hop_limit == 0 => return None,
                (_, libc::IP_TOS) if is_v4 => vec![packet.traffic_class],
                (_, libc::IPV6_TCLASS) => class.to_vec(),
                _ => hops.to_vec(),
            };
            Some(ControlMessage { level, kind, data })
        });
        messages.collect()
    }

    /// Parses the destination address of a sending call on a datagram socket, given as C
    /// bytes; `None` means its peer.
    ///
    /// # Errors
    /// EINVAL for a truncated address, EAFNOSUPPORT for another family.
    pub fn destination(&self, fd: i32, bytes: &[u8]) -> Result<Option<SocketAddr>> {
        of_datagram(bytes, self.socket_of(fd)?.domain)
    }

    /// Sends a datagram as [`Posix::sendmsg`] does, from an address of this host
    /// (IP_PKTINFO, IPV6_PKTINFO). With the unspecified address it is the same as
    /// `sendmsg`.
    ///
    /// # Errors
    /// EOPNOTSUPP for another file, EDESTADDRREQ without a destination address; the
    /// errors that [`UdpSocket::send_from`] reports.
    pub fn send_from(
        &self,
        fd: i32,
        buffers: &[IoSlice<'_>],
        source: IpAddr,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        let file = self.file(fd)?;
        let OpenFile::Datagram(datagrams) = &*file else {
            return Err(Errno(libc::EOPNOTSUPP));
        };
        let to = match to {
            Some(to) => {
                check_datagram_family(to, self.socket_of(fd)?.domain)?;
                canonical(to)
            }
            None => datagrams
                .peer_addr()
                .map_err(|_| Errno(libc::EDESTADDRREQ))?,
        };
        let joined: Vec<u8>;
        let payload: &[u8] = match buffers {
            [one] => one,
            many => {
                joined = many
                    .iter()
                    .flat_map(|piece| piece.iter().copied())
                    .collect();
                &joined
            }
        };
        datagrams.send_from(payload, source, to).map_err(errno)
    }
}

/// Parses IP_TTL and IPV6_UNICAST_HOPS; `None` for the default.
pub(crate) fn hops_of(value: &[u8]) -> Result<Option<u8>> {
    match int(value)? {
        -1 => Ok(None),
        hops => between(hops, 1, 255).map(|hops| Some(hops as u8)),
    }
}

fn set(datagrams: &UdpSocket, socket: &Socket, which: (i32, i32), value: &[u8]) -> Result<()> {
    match which {
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            datagrams.set_tos(int(value)? as u8).map_err(errno)
        }
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            let hops = hops_of(value)?.unwrap_or(HOPS);
            datagrams.set_ttl(hops).map_err(errno)
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            let timeout = timeval(value)?;
            datagrams.set_read_timeout(timeout).map_err(errno)?;
            lock(&socket.state).options.set_read_timeout(timeout)
        }
        _ => Err(Errno(libc::ENOPROTOOPT)),
    }
}
