//! Asking the kernel for one route and one neighbour (rtnetlink(7)).
//!
//! The well-kept netlink crates bring an async runtime or forty seconds of
//! compilation; two request types need neither. Only the socket calls are
//! unsafe; messages are built and read as bytes.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::snapshot::DeviceLosses;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR.
const CHANGES: u32 = 0x1 | 0x10 | 0x100;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_STATS64: u16 = 23;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;
/// Members of `struct rtnl_link_stats64`.
const RX_PACKETS: usize = 0;
const TX_DROPPED: usize = 7;
const RX_FIFO_ERRORS: usize = 14;
const RX_MISSED_ERRORS: usize = 15;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
/// Take the neighbour for used: resolve it, or check it when stale.
const NTF_USE: u8 = 1;
const NLMSG_ERROR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const HEADER: usize = 16;

/// A way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelRoute {
    /// False for local, broadcast, multicast and refused destinations.
    pub(crate) unicast: bool,
    /// The destination is an address of this host.
    pub(crate) local: bool,
    pub(crate) interface: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) source: Option<IpAddr>,
    /// Longest IP datagram, in bytes, as the route or an exception to it says;
    /// [`usize::MAX`]: as the interface's. 0 where IPv4 datagrams may not be sent
    /// with don't-fragment set, however short: the MTU is locked.
    pub(crate) mtu: usize,
}

/// A neighbour's link address and its NUD state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelNeighbour {
    pub(crate) address: [u8; 6],
    pub(crate) state: u16,
}

/// An interface as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    /// `IFF_UP`: by the administrator's will.
    pub(crate) up: bool,
    /// `IFF_LOWER_UP`: there is a carrier.
    pub(crate) carrier: bool,
    /// Bytes of an IP datagram.
    pub(crate) mtu: Option<usize>,
    pub(crate) mac: Option<[u8; 6]>,
    /// Frames received since it was made.
    pub(crate) received: Option<u64>,
    /// Frames lost since then.
    pub(crate) losses: DeviceLosses,
    /// The interface at its other end or below it, and the id of that one's network
    /// namespace where it is another.
    peer: (u32, Option<u32>),
}

impl Link {
    /// From the body of a message; `None` for a bridge's word on its port.
    fn parse(body: &[u8]) -> Option<Self> {
        // struct ifinfomsg: family, pad, type (u16), index, flags, change
        let fixed = body.first_chunk::<16>()?;
        if fixed[0] != libc::AF_UNSPEC as u8 {
            return None;
        }
        let flags = word(&fixed[8..12]);
        let has = |flag: i32| flags & flag as u32 != 0;
        let mut link = Link {
            index: word(&fixed[4..8]),
            up: has(libc::IFF_UP),
            carrier: has(libc::IFF_LOWER_UP),
            mtu: None,
            mac: None,
            received: None,
            losses: DeviceLosses::default(),
            peer: (0, None),
        };
        for (kind, value) in attributes(body.get(16..).unwrap_or_default()) {
            match kind {
                IFLA_MTU => link.mtu = Some(word(value) as usize),
                IFLA_ADDRESS => link.mac = value.try_into().ok(),
                IFLA_STATS64 => {
                    let count = |member: usize| {
                        let count = value.get(member * 8..)?.first_chunk()?;
                        Some(u64::from_ne_bytes(*count))
                    };
                    let lost = |member| count(member).unwrap_or(0);
                    link.received = count(RX_PACKETS);
                    link.losses = DeviceLosses {
                        receive_ring: lost(RX_MISSED_ERRORS) + lost(RX_FIFO_ERRORS),
                        sent: lost(TX_DROPPED),
                    };
                }
                IFLA_LINK => link.peer.0 = word(value),
                IFLA_LINK_NETNSID => link.peer.1 = Some(word(value)),
                _ => {}
            }
        }
        Some(link)
    }
}

/// What changed in the network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An interface, or something about it.
    Link(Link),
    /// There is no interface of this index any more.
    Gone(u32),
    /// An address came or went.
    Address,
    /// The kernel had more to say than there was room for.
    Missed,
}

/// A rtnetlink socket that hears of changes.
#[derive(Debug)]
pub(crate) struct Monitor {
    fd: OwnedFd,
}

/// What one datagram of the kernel's holds.
fn receive<'a>(fd: &impl AsRawFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: `buffer` is writable for its length.
    let got = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    Ok(buffer.get(..got).unwrap_or_default())
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        let fd = open(libc::SOCK_NONBLOCK)?;
        // SAFETY: all-zero is a valid sockaddr_nl.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = CHANGES;
        // SAFETY: a valid sockaddr_nl of the length given, for the call's duration.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&address as *const libc::sockaddr_nl).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Monitor { fd })
    }

    /// Readable when there is a change.
    pub(crate) fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// What has changed since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut buffer = [0u8; 16_384];
        loop {
            let mut messages = match receive(&self.fd, &mut buffer) {
                Ok(messages) => messages,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS) => {
                        changes.push(Change::Missed);
                        continue;
                    }
                    Some(libc::EINTR) => continue,
                    _ => return changes,
                },
            };
            while let Some(header) = messages.first_chunk::<HEADER>() {
                let length = word(&header[..4]) as usize;
                let Some(body) = messages.get(HEADER..length) else {
                    break;
                };
                changes.extend(match u16::from_ne_bytes([header[4], header[5]]) {
                    RTM_NEWLINK => Link::parse(body).map(Change::Link),
                    RTM_DELLINK => Link::parse(body).map(|link| Change::Gone(link.index)),
                    RTM_NEWADDR | RTM_DELADDR => Some(Change::Address),
                    _ => None,
                });
                let next = length.next_multiple_of(4);
                messages = messages.get(next..).unwrap_or_default();
            }
        }
    }
}

fn open(flags: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A rtnetlink socket for one request at a time.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let fd = open(0)?;
        let timeout = libc::timeval {
            tv_sec: 0,
            tv_usec: 100_000,
        };
        // SAFETY: a valid timeval for the call's duration.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&timeout as *const libc::timeval).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        Ok(Netlink { fd, sequence: 0 })
    }

    /// The kernel's route to `destination`, from `source` if given.
    ///
    /// # Errors
    /// ENETUNREACH, EHOSTUNREACH, EACCES as the routing table says.
    pub(crate) fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> io::Result<KernelRoute> {
        let family = family(destination);
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
        let mut body = vec![
            family,
            bits,
            if source.is_some() { bits } else { 0 },
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        attribute(&mut body, RTA_DST, &octets(destination));
        if let Some(source) = source {
            attribute(&mut body, RTA_SRC, &octets(source));
        }
        let reply = self.request(RTM_GETROUTE, 0, &body)?;
        let fixed = reply.get(..12).ok_or(io::ErrorKind::InvalidData)?;
        let mut route = KernelRoute {
            unicast: fixed[7] == RTN_UNICAST,
            local: fixed[7] == RTN_LOCAL,
            interface: 0,
            gateway: None,
            source: None,
            mtu: usize::MAX,
        };
        for (kind, value) in attributes(reply.get(12..).unwrap_or_default()) {
            match kind {
                RTA_OIF => route.interface = word(value),
                RTA_GATEWAY => route.gateway = address(value),
                RTA_PREFSRC => route.source = address(value),
                RTA_METRICS => route.mtu = mtu(value, destination.is_ipv4()),
                _ => {}
            }
        }
        Ok(route)
    }

    /// An interface.
    ///
    /// # Errors
    /// ENODEV when there is none of this index.
    pub(crate) fn link(&mut self, index: u32) -> io::Result<Link> {
        self.link_in(None, index)
    }

    /// What an interface has lost since it was made. `veth`: it is one, whose
    /// receive ring its peer fills, and counts what did not fit.
    ///
    /// # Errors
    /// ENODEV when there is none of this index.
    pub(crate) fn losses(&mut self, index: u32, veth: bool) -> io::Result<DeviceLosses> {
        let link = self.link(index)?;
        let mut losses = link.losses;
        let (peer, namespace) = link.peer;
        // Whoever may not look into the peer's namespace knows only its own side.
        if veth && let Ok(peer) = self.link_in(namespace, peer) {
            losses.receive_ring += peer.losses.sent;
        }
        Ok(losses)
    }

    fn link_in(&mut self, namespace: Option<u32>, index: u32) -> io::Result<Link> {
        // struct ifinfomsg: family, pad, type (u16), index, flags, change
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
        if let Some(namespace) = namespace {
            attribute(&mut body, IFLA_TARGET_NETNSID, &namespace.to_ne_bytes());
        }
        let reply = self.request(RTM_GETLINK, 0, &body)?;
        Link::parse(&reply).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The neighbour entry of `address` on `interface`.
    ///
    /// # Errors
    /// ENOENT when there is none.
    pub(crate) fn neighbour(
        &mut self,
        interface: u32,
        address: IpAddr,
    ) -> io::Result<KernelNeighbour> {
        // struct ndmsg: family, pad[3], ifindex, state, flags, type
        let mut body = vec![family(address), 0, 0, 0];
        body.extend_from_slice(&interface.to_ne_bytes());
        body.extend_from_slice(&[0; 4]);
        attribute(&mut body, NDA_DST, &octets(address));
        let reply = self.request(RTM_GETNEIGH, 0, &body)?;
        let state = reply.get(8..10).ok_or(io::ErrorKind::InvalidData)?;
        let state = u16::from_ne_bytes([state[0], state[1]]);
        attributes(reply.get(12..).unwrap_or_default())
            .find(|(kind, value)| *kind == NDA_LLADDR && value.len() == 6)
            .and_then(|(_, value)| value.try_into().ok())
            .map(|address| KernelNeighbour { address, state })
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Makes the kernel find the link address of `address`, or check the one it
    /// has, as a datagram through it would.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN.
    pub(crate) fn use_neighbour(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        let mut body = vec![family(address), 0, 0, 0];
        body.extend_from_slice(&interface.to_ne_bytes());
        // State (u16), flags, type.
        body.extend_from_slice(&[0, 0, NTF_USE, 0]);
        attribute(&mut body, NDA_DST, &octets(address));
        self.request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_ACK, &body)
            .map(drop)
    }

    /// Sends one request and returns the body of its reply; empty for an
    /// acknowledgment.
    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        // SAFETY: `message` is valid for its length for the call's duration.
        let sent = unsafe {
            libc::send(
                self.fd.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0u8; 8192];
        loop {
            let reply = receive(&self.fd, &mut buffer)?;
            let Some(header) = reply.first_chunk::<HEADER>() else {
                continue;
            };
            let length = word(&header[..4]) as usize;
            let sequence = word(&header[8..12]);
            if sequence != self.sequence {
                // The reply to a request that timed out earlier.
                continue;
            }
            let body = reply
                .get(HEADER..length.min(reply.len()))
                .unwrap_or_default();
            if u16::from_ne_bytes([header[4], header[5]]) == NLMSG_ERROR {
                let error = word(body.get(..4).unwrap_or(&[0; 4])) as i32;
                if error == 0 {
                    return Ok(Vec::new());
                }
                return Err(io::Error::from_raw_os_error(-error));
            }
            return Ok(body.to_vec());
        }
    }
}

/// The MTU among a route's metrics, as [`KernelRoute::mtu`].
fn mtu(metrics: &[u8], v4: bool) -> usize {
    let metric = |wanted| {
        let mut found = attributes(metrics).filter(|(kind, _)| *kind == wanted);
        found.next().map(|(_, value)| word(value))
    };
    let locked = metric(RTAX_LOCK).is_some_and(|locks| locks & 1 << RTAX_MTU != 0);
    match metric(RTAX_MTU) {
        None | Some(0) => usize::MAX,
        Some(_) if v4 && locked => 0,
        Some(bytes) => bytes as usize,
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_not_a_unicast_route() {
        let mut netlink = Netlink::open().expect("netlink needs no privilege");
        let route = netlink
            .route(IpAddr::from([127, 0, 0, 1]), None)
            .expect("lo has a route");
        assert!(!route.unicast);
    }

    #[test]
    fn the_first_interface_is_the_loopback_device() {
        let mut netlink = Netlink::open().expect("netlink needs no privilege");
        let link = netlink.link(1).expect("every namespace has it");
        assert_eq!((link.index, link.mac), (1, Some([0; 6])));
        assert!(link.mtu.is_some() && link.received.is_some());
        let error = netlink.link(u32::MAX >> 1).expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_unknown_neighbour_is_enoent() {
        let mut netlink = Netlink::open().expect("netlink needs no privilege");
        let error = netlink
            .neighbour(1, IpAddr::from([192, 0, 2, 1]))
            .expect_err("no such neighbour");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn metrics_without_an_mtu_set_no_limit() {
        let mut metrics = Vec::new();
        assert_eq!(mtu(&metrics, true), usize::MAX);
        attribute(&mut metrics, RTAX_MTU, &1300u32.to_ne_bytes());
        assert_eq!((mtu(&metrics, true), mtu(&metrics, false)), (1300, 1300));
        attribute(&mut metrics, RTAX_LOCK, &(1u32 << RTAX_MTU).to_ne_bytes());
        assert_eq!((mtu(&metrics, true), mtu(&metrics, false)), (0, 1300));
    }

    #[test]
    fn attributes_survive_a_cut_anywhere() {
        let mut message = Vec::new();
        attribute(&mut message, RTA_DST, &[10, 0, 0, 1]);
        attribute(&mut message, RTA_OIF, &3u32.to_ne_bytes());
        for length in 0..=message.len() {
            let found = attributes(&message[..length]).count();
            assert_eq!(found, length / 8);
        }
    }
}
