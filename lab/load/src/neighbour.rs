//! Finds the interface, source address and two Ethernet addresses for a destination, as
//! the kernel knows them, and checks whether a blast may go there.
//!
//! The lookups use the calling thread's namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use tidewall_sys::netlink::{self, Rtnetlink};
use tidewall_sys::set_option_bytes;
use tidewall_wire::ethernet::MacAddress;

use crate::report::InterfaceCounters;
use crate::spec::invalid;

/// Longest wait for the kernel to find a neighbour. It sends three requests, a second
/// apart, but on a working link the first answer arrives at once.
const ASK_FOR: Duration = Duration::from_millis(1500);
/// The discard service (RFC 863). The datagram that makes the kernel resolve the
/// neighbour does no harm there.
const DISCARD_PORT: u16 = 9;

/// The kind of an interface, as far as blasting through it is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// `lo`: nothing leaves the namespace.
    Loopback,
    /// One end of a virtual pair.
    Veth,
    /// Anything else, by the kernel's name for its kind; empty for hardware.
    Other(String),
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its Ethernet address; zeros if it has none.
    pub mac: MacAddress,
    /// Most bytes of an IP packet.
    pub mtu: u32,
    /// Its kind.
    pub kind: LinkKind,
}

/// A route to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the interface.
    pub interface: String,
    /// The router, or the destination itself if it is on the link.
    pub next_hop: IpAddr,
    /// Source address that the kernel would use.
    pub source: Option<IpAddr>,
}

/// Returns the interface of this name in the caller's namespace.
///
/// # Errors
/// ENODEV if there is none.
pub fn link(name: &str) -> io::Result<Link> {
    Rtnetlink::open()
        .and_then(|mut netlink| netlink.link_named(name))
        .map(Link::of)
        .map_err(|error| io::Error::new(error.kind(), format!("no interface {name:?}: {error}")))
}

impl Link {
    fn of(link: netlink::Link) -> Self {
        let kind = match link.kind.as_str() {
            _ if link.loopback => LinkKind::Loopback,
            "veth" => LinkKind::Veth,
            _ => LinkKind::Other(link.kind),
        };
        Link {
            name: link.name,
            index: link.index,
            mac: link.mac.map(MacAddress).unwrap_or_default(),
            mtu: link.mtu.and_then(|mtu| mtu.try_into().ok()).unwrap_or(0),
            kind,
        }
    }
}

/// Returns the kernel's route to `destination`, through `interface` if one is named.
///
/// # Errors
/// An error with the remedy if there is no route; ENODEV if there is no such interface.
pub fn route(destination: IpAddr, interface: Option<&str>) -> io::Result<Route> {
    let mut netlink = Rtnetlink::open()?;
    let through = interface.map(link).transpose()?.map(|link| link.index);
    let route = netlink.route(destination, None, through).map_err(|error| {
        io::Error::new(
            io::ErrorKind::NetworkUnreachable,
            format!(
                "no route to {destination} ({error}); add one, say with \
                 `ip route add {destination} dev {}`",
                interface.unwrap_or("INTERFACE")
            ),
        )
    })?;
    Ok(Route {
        interface: netlink.link(route.interface)?.name,
        next_hop: route.gateway.unwrap_or(destination),
        source: route.source,
    })
}

/// Returns the Ethernet address of a neighbour on `link`. If the kernel does not know it,
/// sends one datagram to `destination`'s discard port so that the kernel resolves it, and
/// waits up to 1.5 s for the answer. On a loopback interface all addresses are zero.
///
/// # Errors
/// `HostUnreachable` if the neighbour does not answer, with the command that configures
/// the neighbour by hand.
pub fn mac(link: &Link, next_hop: IpAddr, destination: IpAddr) -> io::Result<MacAddress> {
    if link.kind == LinkKind::Loopback {
        return Ok(MacAddress::default());
    }
    let mut netlink = Rtnetlink::open()?;
    let mut known = || match netlink.neighbour(link.index, next_hop) {
        Ok(neighbour) => Ok(Some(MacAddress(neighbour.address))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    if let Some(mac) = known()? {
        return Ok(mac);
    }
    ask(link, destination)?;
    let begin = Instant::now();
    while begin.elapsed() < ASK_FOR {
        if let Some(mac) = known()? {
            return Ok(mac);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(io::Error::new(
        io::ErrorKind::HostUnreachable,
        format!(
            "{next_hop} does not answer on {name}: is it up? Its Ethernet address can be given, \
             or given to the kernel with `ip neigh replace {next_hop} lladdr ADDRESS dev {name}`",
            name = link.name
        ),
    ))
}

fn ask(link: &Link, destination: IpAddr) -> io::Result<()> {
    let (local, remote): (IpAddr, SocketAddr) = match destination {
        IpAddr::V4(_) => (
            Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::new(destination, DISCARD_PORT),
        ),
        // The scope matters for link-local addresses only.
        IpAddr::V6(address) => (
            Ipv6Addr::UNSPECIFIED.into(),
            SocketAddrV6::new(address, DISCARD_PORT, 0, link.index).into(),
        ),
    };
    let socket = UdpSocket::bind((local, 0))?;
    bind_to_interface(&socket, &link.name)?;
    socket.send_to(&[], remote).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot reach {destination} by {}: {error}", link.name),
        )
    })?;
    Ok(())
}

/// Binds a socket to an interface (SO_BINDTODEVICE).
pub(crate) fn bind_to_interface(socket: impl AsFd, interface: &str) -> io::Result<()> {
    let name = interface.as_bytes();
    set_option_bytes(socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)
}

/// Returns true if the calling thread is in another network namespace than process 1.
/// Returns false if that cannot be known, for example because `/proc` hides other
/// processes.
pub fn in_own_namespace() -> bool {
    // Reading the link /proc/1/ns/net takes all of process 1's capabilities, which root
    // in a container or virtual machine may lack. But every namespace has its own
    // /proc/net, and any user can see the inode numbers of its files.
    let of = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/net/dev")).ok()?;
        Some((file.dev(), file.ino()))
    };
    matches!((of("thread-self"), of("1")), (Some(ours), Some(first)) if ours != first)
}

/// Rejects a blast through an interface that is neither `lo` nor a veth inside its own
/// network namespace, unless `allow_any`. Always rejects a blast with a varied source
/// through such an interface.
pub(crate) fn permit(
    link: &Link,
    own_namespace: bool,
    allow_any: bool,
    spoof: bool,
) -> io::Result<()> {
    let safe = match link.kind {
        LinkKind::Loopback => true,
        LinkKind::Veth => own_namespace,
        LinkKind::Other(_) => false,
    };
    let name = &link.name;
    if safe || (allow_any && !spoof) {
        Ok(())
    } else if spoof {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "varied source addresses leave only by lo or by a veth in a network namespace \
                 of its own; {name} is neither"
            ),
        ))
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{name} is neither lo nor a veth in a network namespace of its own: a blast \
                 through it may reach others. If its network is yours, allow any interface"
            ),
        ))
    }
}

/// Returns the interface's transmit counters in the calling thread's namespace. `None` if
/// it is not there.
pub(crate) fn counters(interface: &str) -> Option<InterfaceCounters> {
    let link = Rtnetlink::open().ok()?.link_named(interface).ok()?;
    let counters = link.counters?;
    Some(InterfaceCounters {
        packets: counters.tx_packets,
        dropped: counters.tx_dropped,
    })
}

/// The path of a blast.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) link: Link,
    pub(crate) source: IpAddr,
    pub(crate) destination_mac: MacAddress,
}

#[cfg(test)]
impl Path {
    /// A path over a veth, from 10.0.0.1.
    pub(crate) fn of_tests() -> Self {
        let link = Link {
            name: "x".into(),
            index: 1,
            mac: MacAddress::default(),
            mtu: 1500,
            kind: LinkKind::Veth,
        };
        Path {
            link,
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            destination_mac: MacAddress::default(),
        }
    }
}

/// Finds the path for a blast; values in the specification are not looked up.
pub(crate) fn find(spec: &crate::BlastSpec) -> io::Result<Path> {
    let destination = spec.destination.ip();
    let by_frame = spec.kind != crate::SenderKind::Socket;
    let complete = spec.interface.is_some()
        && (!by_frame
            || (spec.destination_mac.is_some() && (spec.source.is_some() || spec.spoof.is_some())));
    let found = match complete {
        true => None,
        false => Some(route(destination, spec.interface.as_deref())?),
    };
    let name = spec
        .interface
        .as_deref()
        .or(found.as_ref().map(|route| route.interface.as_str()));
    let link = link(name.ok_or_else(|| invalid("no interface is known"))?)?;
    permit(
        &link,
        in_own_namespace(),
        spec.allow_any_interface,
        spec.spoof.is_some(),
    )?;

    let unspecified = match destination {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let source = spec
        .source
        .or(spec.spoof.map(|prefix| prefix.address()))
        .or(found.as_ref().and_then(|route| route.source));
    if !by_frame {
        // The kernel fills in the rest.
        return Ok(Path {
            link,
            source: spec.source.unwrap_or(unspecified),
            destination_mac: MacAddress::default(),
        });
    }
    let source = source.ok_or_else(|| {
        invalid(format!(
            "{name} has no address of {destination}'s kind: give a source, or add one with \
             `ip address add ADDRESS dev {name}`",
            name = link.name
        ))
    })?;
    let destination_mac = match (spec.destination_mac, &found) {
        (Some(mac), _) => mac,
        (None, Some(route)) => mac(&link, route.next_hop, destination)?,
        (None, None) => mac(&link, destination, destination)?,
    };
    Ok(Path {
        link,
        source,
        destination_mac,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: LinkKind) -> Link {
        Link {
            kind,
            ..Path::of_tests().link
        }
    }

    #[test]
    fn only_closed_links_are_blasted_through() {
        let other = || LinkKind::Other("ether".into());
        // kind, own namespace, any allowed, varied source; allowed?
        let cases = [
            (LinkKind::Loopback, false, false, true, true),
            (LinkKind::Veth, true, false, true, true),
            (LinkKind::Veth, false, false, false, false),
            (LinkKind::Veth, false, true, false, true),
            (LinkKind::Veth, false, true, true, false),
            (other(), true, false, false, false),
            (other(), true, true, false, true),
            (other(), true, true, true, false),
        ];
        for (kind, own, any, spoof, allowed) in cases {
            let case = format!("{kind:?} {own} {any} {spoof}");
            let result = permit(&link(kind), own, any, spoof);
            assert_eq!(result.is_ok(), allowed, "{case}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        let lo = super::link("lo").unwrap();
        assert_eq!((lo.index, lo.kind), (1, LinkKind::Loopback));
        assert!(super::link("none").is_err());
        assert!(counters("lo").is_some() && counters("none").is_none());
    }
}
