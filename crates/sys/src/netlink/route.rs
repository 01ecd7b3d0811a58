//! rtnetlink(7): routes, neighbours, interfaces, addresses, and notifications of changes.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{Protocol, RecvFlags, SocketFlags, bind, recv};

use super::{
    Client, NLM_F_ACK, NLM_F_DUMP, NLM_F_ECHO, attribute, attributes, find, messages, neighbour,
    open, word,
};
use crate::address::chunk;

/// Protocol number 0, which rustix writes as `None`.
const NETLINK_ROUTE: Option<Protocol> = None;
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWNETCONF: u16 = 80;
const RTM_DELNETCONF: u16 = 81;
/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, and the groups of
/// RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF and RTNLGRP_MPLS_NETCONF.
const CHANGES: u32 = 0x1 | 0x10 | 0x100 | 1 << 23 | 1 << 24 | 1 << 28;
const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_INFO_KIND: u16 = 1;
const IFLA_STATS64: u16 = 23;
const IFLA_PROMISCUITY: u16 = 30;
/// Kinds of interfaces whose IFLA_LINK names their other end.
const PAIRS: [&str; 2] = ["veth", "netkit"];
pub(super) const IFLA_XDP: u16 = 43;
/// Attribute of the only program; of the driver's and of the generic one if another is
/// offloaded.
const XDP_PROGRAMS: [u16; 3] = [4, 5, 6];
const IFLA_NEW_NETNSID: u16 = 45;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;
/// Members of `struct rtnl_link_stats64`.
const RX_PACKETS: usize = 0;
const TX_PACKETS: usize = 1;
const TX_DROPPED: usize = 7;
const RX_FIFO_ERRORS: usize = 14;
const RX_MISSED_ERRORS: usize = 15;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_DELNEIGH: u16 = 29;
/// `RTMGRP_NEIGH`.
const NEIGHBOURS: u32 = 0x4;
/// RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE.
const ROUTES: u32 = 0x40 | 0x80 | 0x400 | 0x4_0000;
/// In a request for a route: return the table's own entry, not the resulting route.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const RTA_METRICS: u16 = 8;
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;
pub(super) const RTN_UNICAST: u8 = 1;
pub(super) const RTN_LOCAL: u8 = 2;
/// `rtm_protocol` of routes that follow from an interface's addresses.
const RTPROT_KERNEL: u8 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// linux/pkt_sched.h: the parent of a root queueing discipline.
const TC_H_ROOT: u32 = 0xffff_ffff;

/// How long an answer may take. The kernel has it ready when it accepts the request, and
/// callers that need a route for each datagram cannot wait.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// False for local, broadcast, multicast and rejected destinations.
    pub unicast: bool,
    /// The destination is an address of this host.
    pub local: bool,
    /// Index of the interface.
    pub interface: u32,
    /// The router; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Source address that the kernel would use.
    pub source: Option<IpAddr>,
    /// The longest IP datagram, in bytes, from the route or an exception to it;
    /// [`usize::MAX`]: as the interface's. 0 if the MTU is locked: then IPv4 datagrams
    /// must not be sent with don't-fragment set, however short.
    pub mtu: usize,
}

impl Route {
    /// Parses the body of a message.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
        let fixed = body.first_chunk::<12>()?;
        let v4 = i32::from(fixed[0]) == libc::AF_INET;
        let mut route = Route {
            unicast: fixed[7] == RTN_UNICAST,
            local: fixed[7] == RTN_LOCAL,
            ..Route::NONE
        };
        for (kind, value) in attributes(body.get(12..).unwrap_or_default()) {
            match kind {
                RTA_OIF => route.interface = word(value),
                RTA_GATEWAY => route.gateway = address(value),
                // A router of the other IP version: its address family comes first.
                RTA_VIA => route.gateway = address(value.get(2..).unwrap_or_default()),
                RTA_PREFSRC => route.source = address(value),
                RTA_METRICS => route.mtu = mtu(value, v4),
                _ => {}
            }
        }
        Some(route)
    }

    /// The route for a destination to which none leads.
    pub(super) const NONE: Route = Route {
        unicast: false,
        local: false,
        interface: 0,
        gateway: None,
        source: None,
        mtu: usize::MAX,
    };
}

/// Frames that an interface has counted since it was created: members of `struct
/// rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames received.
    pub rx_packets: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Frames that were not sent for lack of space.
    pub tx_dropped: u64,
    /// Frames that a full FIFO lost.
    pub rx_fifo_errors: u64,
    /// Frames that found no receive descriptor.
    pub rx_missed_errors: u64,
}

impl LinkCounters {
    fn parse(stats: &[u8]) -> Self {
        let count = |member: usize| chunk(stats, member * 8).map_or(0, u64::from_ne_bytes);
        LinkCounters {
            rx_packets: count(RX_PACKETS),
            tx_packets: count(TX_PACKETS),
            tx_dropped: count(TX_DROPPED),
            rx_fifo_errors: count(RX_FIFO_ERRORS),
            rx_missed_errors: count(RX_MISSED_ERRORS),
        }
    }
}

/// The current state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The kind of a virtual interface (`veth`); empty for others.
    pub kind: String,
    /// `IFF_UP`: enabled by the administrator.
    pub up: bool,
    /// `IFF_LOWER_UP`: there is a carrier.
    pub carrier: bool,
    /// `IFF_LOOPBACK`.
    pub loopback: bool,
    /// MTU: bytes of an IP datagram.
    pub mtu: Option<usize>,
    /// Its Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Its counters.
    pub counters: Option<LinkCounters>,
    /// The kernel's id of its XDP program, if it has one; not of an offloaded one.
    pub xdp_program: Option<u32>,
    /// Index of the bridge, bond or similar of which it is a port; 0 for none.
    pub controller: u32,
    /// How many users request frames that are not for this host (`promiscuity` of `ip -d
    /// link`).
    pub promiscuity: u32,
    /// The interface at its other end or below it. Also the id of that interface's
    /// network namespace, if it is another.
    peer: (u32, Option<u32>),
}

impl Link {
    /// Parses the body of a message; `None` for a bridge's message about its port.
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
            name: String::new(),
            kind: String::new(),
            up: has(libc::IFF_UP),
            carrier: has(libc::IFF_LOWER_UP),
            loopback: has(libc::IFF_LOOPBACK),
            mtu: None,
            mac: None,
            counters: None,
            xdp_program: None,
            controller: 0,
            promiscuity: 0,
            peer: (0, None),
        };
        for (kind, value) in attributes(body.get(16..).unwrap_or_default()) {
            match kind {
                IFLA_IFNAME => link.name = text(value),
                IFLA_LINKINFO => {
                    link.kind = find(value, IFLA_INFO_KIND).map(text).unwrap_or_default()
                }
                IFLA_MTU => link.mtu = Some(word(value) as usize),
                IFLA_ADDRESS => link.mac = value.try_into().ok(),
                IFLA_STATS64 => link.counters = Some(LinkCounters::parse(value)),
                IFLA_XDP => {
                    let mut programs = XDP_PROGRAMS.iter();
                    link.xdp_program = programs.find_map(|&kind| find(value, kind)).map(word);
                }
                IFLA_MASTER => link.controller = word(value),
                IFLA_PROMISCUITY => link.promiscuity = word(value),
                IFLA_LINK => link.peer.0 = word(value),
                IFLA_LINK_NETNSID => link.peer.1 = Some(word(value)),
                _ => {}
            }
        }
        Some(link)
    }

    /// True for an interface on top of the one with index `below`, such as a VLAN or a
    /// macvlan.
    pub fn is_above(&self, below: u32) -> bool {
        self.peer == (below, None) && !PAIRS.contains(&self.kind.as_str())
    }
}

/// A change in the network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface was added or changed.
    Link(Link),
    /// The interface of this index no longer exists.
    Gone(u32),
    /// The interface of this index is in another network namespace now.
    Moved(u32),
    /// An address was added or removed.
    Address,
    /// An interface, by index, has lost this neighbour. Reported only with
    /// [`Monitor::with_neighbours`].
    NeighbourGone(u32, IpAddr),
    /// A route or a policy rule was added or removed. The kernel does not announce the
    /// routes of an interface that goes down. Reported only with
    /// [`Monitor::with_routes`].
    Routes,
    /// Forwarding, or a similar setting, changed on an interface.
    Settings,
    /// The kernel had more notifications than there was space for.
    Missed,
}

/// An rtnetlink socket that receives notifications of changes.
#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
}

impl Monitor {
    /// Opens a monitor of the caller's network namespace.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn open() -> io::Result<Self> {
        Self::of(CHANGES)
    }

    /// As [`Monitor::with_routes`], and also reports neighbours.
    ///
    /// # Errors
    /// As there.
    pub fn with_neighbours() -> io::Result<Self> {
        Self::of(CHANGES | ROUTES | NEIGHBOURS)
    }

    /// As [`Monitor::open`], and also reports routes and policy rules.
    ///
    /// # Errors
    /// As there.
    pub fn with_routes() -> io::Result<Self> {
        Self::of(CHANGES | ROUTES)
    }

    fn of(groups: u32) -> io::Result<Self> {
        let socket = open(NETLINK_ROUTE, SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Monitor { socket })
    }

    /// Readable when there is a change.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The changes since the last call.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut buffer = [0u8; 16_384];
        loop {
            let length = match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::NOBUFS) => {
                    changes.push(Change::Missed);
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(_) => return changes,
            };
            for (header, body) in messages(buffer.get(..length).unwrap_or_default()) {
                changes.extend(match header.kind {
                    RTM_NEWLINK => Link::parse(body).map(Change::Link),
                    RTM_DELLINK => Link::parse(body).map(|link| {
                        let values = body.get(16..).unwrap_or_default();
                        match find(values, IFLA_NEW_NETNSID) {
                            Some(_) => Change::Moved(link.index),
                            None => Change::Gone(link.index),
                        }
                    }),
                    RTM_NEWADDR | RTM_DELADDR => Some(Change::Address),
                    RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWRULE | RTM_DELRULE => {
                        (changes.last() != Some(&Change::Routes)).then_some(Change::Routes)
                    }
                    RTM_NEWNETCONF | RTM_DELNETCONF => {
                        (changes.last() != Some(&Change::Settings)).then_some(Change::Settings)
                    }
                    RTM_DELNEIGH => neighbour::fields(body)
                        .map(|(interface, address, _)| Change::NeighbourGone(interface, address)),
                    _ => None,
                });
            }
        }
    }
}

impl AsFd for Monitor {
    /// Readable when there is a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An rtnetlink socket for one request at a time.
#[derive(Debug)]
pub struct Rtnetlink(pub(super) Client);

impl Rtnetlink {
    /// Opens a socket in the caller's network namespace.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn open() -> io::Result<Self> {
        Self::with_timeout(TIMEOUT)
    }

    /// As [`Rtnetlink::open`], for requests that may take longer, such as those that wait
    /// for all CPUs.
    ///
    /// # Errors
    /// As there.
    pub fn with_timeout(timeout: Duration) -> io::Result<Self> {
        Client::open(NETLINK_ROUTE, timeout).map(Rtnetlink)
    }

    /// The kernel's route to `destination`, from `source` and through the
    /// interface of index `through` if given.
    ///
    /// # Errors
    /// ENETUNREACH, EHOSTUNREACH, EACCES according to the routing table.
    pub fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        through: Option<u32>,
    ) -> io::Result<Route> {
        self.route_as(destination, source, through, 0)
    }

    /// True if a route through an interface leads to `address` on its link: a unicast
    /// neighbour, or a router.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn reaches(&mut self, interface: u32, address: IpAddr) -> io::Result<bool> {
        // Without this check, an interface without a route would count as leading
        // everywhere.
        match self.route_as(address, None, Some(interface), RTM_F_FIB_MATCH) {
            Ok(route) => Ok(route.unicast
                && route.interface == interface
                && route.gateway.is_none_or(|gateway| gateway == address)),
            // According to the routing table.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => {
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    fn route_as(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        through: Option<u32>,
        flags: u32,
    ) -> io::Result<Route> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let source_bits = if source.is_some() { bits } else { 0 };
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
        let mut body = vec![family(destination), bits, source_bits];
        body.resize(8, 0);
        body.extend(flags.to_ne_bytes());
        attribute(&mut body, RTA_DST, &octets(destination));
        if let Some(source) = source {
            attribute(&mut body, RTA_SRC, &octets(source));
        }
        if let Some(interface) = through {
            attribute(&mut body, RTA_OIF, &interface.to_ne_bytes());
        }
        let reply = self.0.first(RTM_GETROUTE, 0, &body)?;
        Route::parse(&reply).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The interface of this index.
    ///
    /// # Errors
    /// ENODEV when there is none.
    pub fn link(&mut self, index: u32) -> io::Result<Link> {
        self.link_with(index, None)
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// ENODEV when there is none.
    pub fn link_named(&mut self, name: &str) -> io::Result<Link> {
        self.link_with(0, Some((IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat())))
    }

    /// The interface at the other end of a virtual pair.
    ///
    /// # Errors
    /// EPERM and the like if its network namespace is not accessible.
    pub fn peer(&mut self, link: &Link) -> io::Result<Link> {
        let (index, namespace) = link.peer;
        let namespace = namespace.map(u32::to_ne_bytes);
        let within = namespace.as_ref().map(|id| (IFLA_TARGET_NETNSID, &id[..]));
        self.link_with(index, within)
    }

    fn link_with(&mut self, index: u32, extra: Option<(u16, &[u8])>) -> io::Result<Link> {
        // struct ifinfomsg: family, pad, type (u16), index, flags, change
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.resize(16, 0);
        if let Some((kind, value)) = extra {
            attribute(&mut body, kind, value);
        }
        let reply = self.0.first(RTM_GETLINK, 0, &body)?;
        Link::parse(&reply).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Every interface of the network namespace.
    ///
    /// # Errors
    /// ENOBUFS, ENOMEM.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.0.exchange(RTM_GETLINK, NLM_F_DUMP, &[0; 16])?;
        Ok(answers
            .iter()
            .filter_map(|(_, body)| Link::parse(body))
            .collect())
    }

    /// True if routes make this host accept packets for addresses that no interface has
    /// (`ip route add local`).
    ///
    /// # Errors
    /// ENOBUFS for more than `most` routes; the kernel's errors. This socket is unusable
    /// after an error.
    pub fn has_local_routes(&mut self, most: usize) -> io::Result<bool> {
        let (mut routes, mut found) = (0, false);
        for family in [libc::AF_INET, libc::AF_INET6] {
            // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
            let mut header = [0; 12];
            header[0] = family as u8;
            self.0
                .each(RTM_GETROUTE, NLM_F_DUMP, &header, &mut |_, body| {
                    routes += 1;
                    found |= matches!(body.get(5..8), Some(&[protocol, _, RTN_LOCAL]) if protocol != RTPROT_KERNEL);
                    match routes > most {
                        true => Err(Errno::NOBUFS.into()),
                        false => Ok(()),
                    }
                })?;
        }
        Ok(found)
    }

    /// Every address of the network namespace, with the index of its interface.
    ///
    /// # Errors
    /// ENOBUFS, ENOMEM.
    pub fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr)>> {
        // struct ifaddrmsg: family, prefixlen, flags, scope, index
        let answers = self.0.exchange(RTM_GETADDR, NLM_F_DUMP, &[0; 8])?;
        let entry = |(_, body): &(u16, Vec<u8>)| {
            let interface = u32::from_ne_bytes(chunk(body, 4)?);
            let values = body.get(8..)?;
            // On a point-to-point link IFA_ADDRESS is the peer's address.
            let value = find(values, IFA_LOCAL).or_else(|| find(values, IFA_ADDRESS))?;
            Some((interface, address(value)?))
        };
        Ok(answers.iter().filter_map(entry).collect())
    }

    /// Addresses of the network namespace that reach an interface, its own first. They
    /// include those of other interfaces (a service address on `lo`), but neither
    /// loopback addresses nor the link-local ones of other links.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn addresses_at(&mut self, index: u32) -> io::Result<Vec<IpAddr>> {
        let elsewhere = |address: &IpAddr| {
            let link_local = match address {
                IpAddr::V4(address) => address.is_link_local(),
                IpAddr::V6(address) => address.is_unicast_link_local(),
            };
            !address.is_loopback() && !link_local
        };
        let (mut addresses, mut others) = (Vec::new(), Vec::new());
        for (link, address) in self.addresses()? {
            if link == index {
                addresses.push(address);
            } else if elsewhere(&address) {
                others.push(address);
            }
        }
        others.retain(|address| !addresses.contains(address));
        addresses.append(&mut others);
        Ok(addresses)
    }

    /// True when the root queueing discipline of an interface is a FIFO that accepts
    /// nothing: a `pfifo` or `bfifo` with limit 0 (tc-pfifo(8)).
    ///
    /// # Errors
    /// ENODEV; the kernel's errors.
    pub fn refuses_packets(&mut self, interface: u32) -> io::Result<bool> {
        // struct tcmsg: family and pad, index, handle, parent, info
        let body = [0, interface, 0, TC_H_ROOT, 0]
            .map(u32::to_ne_bytes)
            .concat();
        // Without NLM_F_ECHO only watchers of queueing disciplines are notified. For a
        // built-in one (`noqueue`) there is only an acknowledgment.
        let flags = NLM_F_ACK | NLM_F_ECHO;
        let answers = self.0.exchange(libc::RTM_GETQDISC, flags, &body)?;
        let mut of_disciplines = answers
            .iter()
            .filter(|(kind, _)| *kind == libc::RTM_NEWQDISC);
        Ok(of_disciplines
            .next_back()
            .is_some_and(|(_, body)| refuses(body.get(body.len().min(20)..).unwrap_or_default())))
    }
}

/// `struct ndmsg` (family, pad, ifindex, state, flags, type) and the address. Tests
/// whether the attributes of a queueing discipline are those of a FIFO with limit 0
/// (`struct tc_fifo_qopt`).
fn refuses(values: &[u8]) -> bool {
    let fifo = matches!(find(values, libc::TCA_KIND), Some(b"pfifo\0" | b"bfifo\0"));
    let limit = find(values, libc::TCA_OPTIONS).and_then(|options| chunk(options, 0));
    fifo && limit.map(u32::from_ne_bytes) == Some(0)
}

/// A zero-terminated string.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(value.get(..end.unwrap_or(value.len())).unwrap_or_default()).into()
}

/// The MTU from a route's metrics, as [`Route::mtu`].
fn mtu(metrics: &[u8], v4: bool) -> usize {
    let metric = |wanted| find(metrics, wanted).map(word);
    let locked = metric(RTAX_LOCK).is_some_and(|locks| locks & 1 << RTAX_MTU != 0);
    match metric(RTAX_MTU) {
        None | Some(0) => usize::MAX,
        Some(_) if v4 && locked => 0,
        Some(bytes) => bytes as usize,
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_not_a_unicast_route() {
        let mut netlink = Rtnetlink::open().expect("netlink needs no privilege");
        let route = netlink
            .route(IpAddr::from([127, 0, 0, 1]), None, None)
            .expect("lo has a route");
        assert!(!route.unicast);
    }

    #[test]
    fn the_first_interface_is_the_loopback_device() {
        let mut netlink = Rtnetlink::open().expect("netlink needs no privilege");
        let link = netlink.link(1).expect("every namespace has it");
        assert_eq!((link.index, link.mac), (1, Some([0; 6])));
        assert!(link.mtu.is_some() && link.counters.is_some());
        let error = netlink.link(u32::MAX >> 1).expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_unknown_neighbour_is_enoent() {
        let mut netlink = Rtnetlink::open().expect("netlink needs no privilege");
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
    fn a_fifo_with_limit_0_refuses() {
        let discipline = |name: &[u8], options: &[u8]| {
            let mut values = Vec::new();
            attribute(&mut values, libc::TCA_KIND, name);
            attribute(&mut values, 12, &[0]);
            attribute(&mut values, libc::TCA_OPTIONS, options);
            refuses(&values)
        };
        assert!(discipline(b"pfifo\0", &0u32.to_ne_bytes()));
        assert!(discipline(b"bfifo\0", &0u32.to_ne_bytes()));
        assert!(!discipline(b"pfifo\0", &1u32.to_ne_bytes()));
        assert!(!discipline(b"bfifo\0", &(1u32 << 24).to_ne_bytes()));
        // Its options begin with the number of bands.
        assert!(!discipline(b"pfifo_fast\0", &[0; 20]));
        assert!(!discipline(b"noqueue\0", &[]));
        assert!(!discipline(b"pfifo\0", &[0; 3]));
    }

    #[test]
    fn loopback_takes_packets() {
        let mut netlink = Rtnetlink::open().expect("netlink needs no privilege");
        for _ in 0..3 {
            assert!(!netlink.refuses_packets(1).expect("lo is there"));
        }
        assert!(netlink.refuses_packets(u32::MAX >> 1).is_err());
    }

    #[test]
    fn loopback_has_its_name_and_its_address() {
        let mut netlink = Rtnetlink::open().expect("netlink needs no privilege");
        let link = netlink.link_named("lo").expect("every namespace has it");
        assert_eq!((link.index, &*link.name, link.loopback), (1, "lo", true));
        assert_eq!(link.kind, "");
        if link.up {
            let addresses = netlink.addresses().expect("a dump needs no privilege");
            assert!(
                addresses.contains(&(1, [127, 0, 0, 1].into())),
                "{addresses:?}"
            );
        }
        let error = netlink.link_named("none").expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
