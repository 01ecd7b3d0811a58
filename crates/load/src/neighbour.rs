//! From a destination to an interface, a source address and two Ethernet
//! addresses, as the kernel knows them; and whether a blast may go there.
//!
//! Asks the program `ip` (iproute2), in the calling thread's namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tidewall_wire::ethernet::MacAddress;

use crate::raw_socket::bind_to_interface;
use crate::report::InterfaceCounters;
use crate::spec::invalid;

/// How long the kernel gets to find a neighbour: it asks three times, a second
/// apart, but on a working link the first answer comes at once.
const ASK_FOR: Duration = Duration::from_millis(1500);
/// The discard service (RFC 863), where the datagram that makes the kernel ask
/// for the neighbour does no harm.
const DISCARD_PORT: u16 = 9;

/// What an interface is, as far as blasting through it is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// `lo`: nothing leaves the namespace.
    Loopback,
    /// One end of a virtual pair.
    Veth,
    /// Anything else, by the kernel's name for its kind or of its link type.
    Other(String),
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its Ethernet address; zeros when it has none.
    pub mac: MacAddress,
    /// Most bytes of an IP packet.
    pub mtu: u32,
    /// What it is.
    pub kind: LinkKind,
}

/// A way to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the interface.
    pub interface: String,
    /// The router, or the destination itself when it is on the link.
    pub next_hop: IpAddr,
    /// Source address that the kernel would use.
    pub source: Option<IpAddr>,
}

#[derive(Deserialize)]
struct LinkText {
    ifindex: u32,
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    mtu: u32,
    link_type: Option<String>,
    address: Option<String>,
    linkinfo: Option<LinkInfoText>,
}

#[derive(Deserialize)]
struct LinkInfoText {
    info_kind: Option<String>,
}

#[derive(Deserialize)]
struct RouteText {
    dev: Option<String>,
    gateway: Option<IpAddr>,
    via: Option<ViaText>,
    prefsrc: Option<IpAddr>,
}

#[derive(Deserialize)]
struct ViaText {
    host: IpAddr,
}

#[derive(Deserialize)]
struct NeighbourText {
    lladdr: Option<String>,
}

/// Runs `ip -json` and returns the first of the objects it prints.
fn ip<T: for<'de> Deserialize<'de>>(arguments: &[&str]) -> io::Result<Option<T>> {
    let command = || format!("ip {}", arguments.join(" "));
    let output = Command::new("ip")
        .args(["-json", "-details"])
        .args(arguments)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                "the program `ip` is missing: install the package iproute2",
            ),
            _ => io::Error::new(error.kind(), format!("cannot run `ip`: {error}")),
        })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!(
            "`{}`: {}",
            command(),
            reason.trim()
        )));
    }
    if output.stdout.trim_ascii().is_empty() {
        return Ok(None);
    }
    let objects: Vec<T> = serde_json::from_slice(&output.stdout)
        .map_err(|error| io::Error::other(format!("`{}` printed: {error}", command())))?;
    Ok(objects.into_iter().next())
}

/// The interface of this name in the caller's namespace.
///
/// # Errors
/// `NotFound` when there is none; what running `ip` gives.
pub fn link(name: &str) -> io::Result<Link> {
    let text: LinkText = ip(&["link", "show", "dev", name])
        .map_err(|error| io::Error::new(error.kind(), format!("no interface {name:?}: {error}")))?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no interface {name:?}")))?;
    Ok(text.into_link())
}

impl LinkText {
    fn into_link(self) -> Link {
        let info_kind = self.linkinfo.and_then(|info| info.info_kind);
        let kind = match info_kind.as_deref() {
            _ if self.flags.iter().any(|flag| flag == "LOOPBACK") => LinkKind::Loopback,
            Some("veth") => LinkKind::Veth,
            Some(other) => LinkKind::Other(other.to_owned()),
            None => LinkKind::Other(self.link_type.unwrap_or_default()),
        };
        Link {
            name: self.ifname,
            index: self.ifindex,
            mac: self
                .address
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            mtu: self.mtu,
            kind,
        }
    }
}

/// The kernel's route to `destination`, through `interface` if one is named.
///
/// # Errors
/// When there is no route, with what mends it; what running `ip` gives.
pub fn route(destination: IpAddr, interface: Option<&str>) -> io::Result<Route> {
    let target = destination.to_string();
    let mut arguments = vec!["route", "get", target.as_str()];
    if let Some(interface) = interface {
        arguments.extend(["oif", interface]);
    }
    let text: RouteText = ip(&arguments)
        .map_err(|error| {
            io::Error::new(
                io::ErrorKind::NetworkUnreachable,
                format!(
                    "no route to {destination} ({error}); add one, say with \
                     `ip route add {destination} dev {}`",
                    interface.unwrap_or("INTERFACE")
                ),
            )
        })?
        .ok_or(io::ErrorKind::NetworkUnreachable)?;
    let interface = text.dev.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NetworkUnreachable,
            format!("the route to {destination} leads to no interface"),
        )
    })?;
    Ok(Route {
        interface,
        next_hop: text
            .gateway
            .or(text.via.map(|via| via.host))
            .unwrap_or(destination),
        source: text.prefsrc,
    })
}

/// The Ethernet address of a neighbour on `link`. When the kernel does not know
/// it, makes it ask by sending one datagram to `destination`'s discard port,
/// and waits up to 1.5 s for the answer. On a loopback interface all addresses
/// are zero.
///
/// # Errors
/// `HostUnreachable` when the neighbour does not answer, with the command that
/// tells the kernel by hand.
pub fn mac(link: &Link, next_hop: IpAddr, destination: IpAddr) -> io::Result<MacAddress> {
    if link.kind == LinkKind::Loopback {
        return Ok(MacAddress::default());
    }
    if let Some(mac) = known(link, next_hop)? {
        return Ok(mac);
    }
    ask(link, destination)?;
    let begin = Instant::now();
    while begin.elapsed() < ASK_FOR {
        if let Some(mac) = known(link, next_hop)? {
            return Ok(mac);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(io::Error::new(
        io::ErrorKind::HostUnreachable,
        format!(
            "{next_hop} does not answer on {name}: is it up? Its Ethernet address can be given, \
             or told to the kernel with `ip neigh replace {next_hop} lladdr ADDRESS dev {name}`",
            name = link.name
        ),
    ))
}

fn known(link: &Link, next_hop: IpAddr) -> io::Result<Option<MacAddress>> {
    let next_hop = next_hop.to_string();
    let text: Option<NeighbourText> = ip(&["neigh", "show", &next_hop, "dev", &link.name])?;
    Ok(text
        .and_then(|text| text.lladdr)
        .and_then(|text| text.parse().ok()))
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
    bind_to_interface(socket.as_fd(), &link.name)?;
    socket.send_to(&[], remote).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot reach {destination} by {}: {error}", link.name),
        )
    })?;
    Ok(())
}

/// True when the calling thread is in another network namespace than process 1.
/// False when that cannot be known, say because `/proc` hides other processes.
pub fn in_own_namespace() -> bool {
    // Reading the link /proc/1/ns/net takes all of process 1's capabilities,
    // which root in a container or virtual machine may lack. But every
    // namespace has its own /proc/net, whose files have their own numbers, and
    // those anybody may see.
    let of = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/net/dev")).ok()?;
        Some((file.dev(), file.ino()))
    };
    matches!((of("thread-self"), of("1")), (Some(ours), Some(first)) if ours != first)
}

/// Refuses a blast through an interface that is neither `lo` nor a veth inside
/// a network namespace of its own, unless `allow_any`; and, whatever was
/// allowed, one that would lie about its source there.
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

/// The interface's transmit counters in the calling thread's namespace, from
/// `/proc/thread-self/net/dev`. `None` when it is not there.
pub(crate) fn counters(interface: &str) -> Option<InterfaceCounters> {
    parse_counters(
        &std::fs::read_to_string("/proc/thread-self/net/dev").ok()?,
        interface,
    )
}

fn parse_counters(text: &str, interface: &str) -> Option<InterfaceCounters> {
    let numbers = text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        (name.trim() == interface).then_some(numbers)
    })?;
    // Eight numbers of reception, then bytes, packets, errors and drops sent.
    let mut sent = numbers
        .split_ascii_whitespace()
        .skip(8)
        .map(|number| number.parse().ok());
    let packets = sent.nth(1)??;
    let dropped = sent.nth(1)??;
    Some(InterfaceCounters { packets, dropped })
}

/// What a blast needs to know of its way.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) link: Link,
    pub(crate) source: IpAddr,
    pub(crate) destination_mac: MacAddress,
}

/// Finds the way for a blast; what the specification gives is not asked for.
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
            name: "x".into(),
            index: 1,
            mac: MacAddress::default(),
            mtu: 1500,
            kind,
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
    fn links_are_recognised() {
        let parse = |text: &str| serde_json::from_str::<LinkText>(text).unwrap().into_link();
        let veth = parse(
            r#"{"ifindex":2,"link_index":2,"ifname":"vA","flags":["BROADCAST","UP"],"mtu":1500,
               "link_type":"ether","address":"22:6c:27:0a:5c:d8","linkinfo":{"info_kind":"veth"}}"#,
        );
        assert_eq!((veth.index, veth.mtu, veth.kind), (2, 1500, LinkKind::Veth));
        assert_eq!(veth.mac.to_string(), "22:6c:27:0a:5c:d8");
        let lo = parse(
            r#"{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP"],"mtu":65536,
               "link_type":"loopback","address":"00:00:00:00:00:00"}"#,
        );
        assert_eq!(lo.kind, LinkKind::Loopback);
        let nic = parse(r#"{"ifindex":4,"ifname":"eth0","flags":[],"link_type":"ether"}"#);
        assert_eq!(nic.kind, LinkKind::Other("ether".into()));
    }

    #[test]
    fn routes_by_a_router_and_by_the_other_ip_version() {
        let hop = |text: &str| {
            let text: RouteText = serde_json::from_str(text).unwrap();
            text.gateway
                .or(text.via.map(|via| via.host))
                .unwrap()
                .to_string()
        };
        assert_eq!(
            hop(r#"{"dst":"9.9.9.9","gateway":"10.0.0.1","dev":"x"}"#),
            "10.0.0.1"
        );
        let via = r#"{"dst":"9.9.9.9","via":{"family":"inet6","host":"fe80::1"},"dev":"x"}"#;
        assert_eq!(hop(via), "fe80::1");
    }

    #[test]
    fn counters_are_those_of_the_interface() {
        let text = "Inter-|   Receive     |  Transmit\n face |bytes packets errs drop\n\
            \x20   lo: 3193 29 0 0 0 0 0 0 3193 30 0 0 0 0 0 0\n\
            \x20 vA: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        let counters = |name| parse_counters(text, name);
        assert_eq!(
            counters("vA"),
            Some(InterfaceCounters {
                packets: 10,
                dropped: 12
            })
        );
        assert_eq!(
            counters("lo"),
            Some(InterfaceCounters {
                packets: 30,
                dropped: 0
            })
        );
        assert_eq!(counters("v"), None);
    }
}
