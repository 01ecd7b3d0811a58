//! Decides which frames the stack sends itself, and to which link address.
//!
//! The kernel keeps routes and neighbours. Its routing tables are read whole and looked
//! up by prefix (`tables`). Tables with more than prefixes and routers (policy rules with
//! selectors, several paths) are not: the kernel is asked per destination. Neighbours are
//! asked for per next hop. Answers are short-lived.
//!
//! A destination without a neighbour on our own interface goes through the kernel socket
//! that holds the port. Examples are loopback, another interface, an address still being
//! resolved, and multicast. Sending through that socket also makes the kernel resolve the
//! neighbour. So there is no second ARP here, and a destination that the kernel can reach
//! is never unreachable through us.
//!
//! Questions are limited. Beyond the limit the last answer counts, although it is old. An
//! answer to a frame then goes to the link address that the frame came from.

mod tables;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall_manager::client::Client;
use tidewall_sys::netlink::{self, Rtnetlink};
use tidewall_wire::ethernet::MacAddress;

use crate::ip::path_mtu::PathMtus;
use crate::ip::recent::Recent;
use tables::Tables;
pub use tables::TablesReader;

/// Lifetime of an answer. A neighbour that moves announces it to the kernel, and we
/// follow within this time.
pub const LIFETIME: Duration = Duration::from_secs(1);
/// The time for which a destination stays with the kernel before we ask again: about a
/// link's time to answer an ARP request.
const RETRY: Duration = Duration::from_millis(20);
/// The time for which a next hop without a link address stays so.
const RETRY_HOP: Duration = Duration::from_millis(1);
/// Destinations, and next hops, that are kept at least.
const ENTRIES: usize = 4096;
/// Questions per second. Replying to spoofed sources must not turn into one
/// netlink request per datagram; the excess goes through the kernel socket.
const QUESTIONS: u32 = 10_000;
/// Questions that may be about destinations, so that strangers' addresses leave some for
/// next hops.
const OF_DESTINATIONS: u32 = QUESTIONS / 2;
/// Questions that may be about destinations whose link address is known already, and so
/// are not needed.
const OF_HINTED: u32 = QUESTIONS / 4;

/// Neighbour states in which the link address may be used (linux/neighbour.h).
const NUD_USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NUD_STALE: u16 = 0x04;

/// The way to send to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// In a frame that the stack sends.
    Link {
        /// The source address.
        source: IpAddr,
        /// The link address of the next hop.
        neighbour: MacAddress,
        /// Longest IP datagram that reaches the destination whole, in bytes, as
        /// far as is known; the interface may allow less.
        mtu: usize,
    },
    /// Through the kernel socket.
    Kernel,
}

/// The path to a destination for a connection, which cannot use a kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// In frames that the stack sends.
    Known {
        /// The source address.
        source: IpAddr,
        /// The link address of the next hop.
        neighbour: MacAddress,
    },
    /// By our interface; the kernel has been asked to find the neighbour.
    Resolving {
        /// The source address.
        source: IpAddr,
    },
    /// Not known, since too many questions were asked lately.
    Unasked,
    /// Not by our interface.
    Kernel,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    route: Route,
    expires: Instant,
}

/// A next hop, as the kernel answered.
#[derive(Clone, Copy, Debug)]
struct Hop {
    /// `None`: no link address that may be used.
    neighbour: Option<netlink::Neighbour>,
    expires: Instant,
    /// The kernel was asked just now.
    is_new: bool,
}

/// The path to a destination by our interface.
#[derive(Clone, Copy, Debug)]
struct Way {
    source: IpAddr,
    /// The router, or the destination itself.
    next: IpAddr,
    on_link: bool,
    /// As [`netlink::Route::mtu`].
    mtu: usize,
}

/// No more questions may be asked now.
#[derive(Clone, Copy, Debug)]
struct OverBudget;

/// The source of answers.
#[derive(Debug)]
enum Oracle {
    Kernel {
        netlink: Rtnetlink,
        interface: u32,
        /// The manager that may resolve neighbours, if this process may not.
        manager: Option<Arc<Client>>,
    },
    /// A link with one neighbour: the in-memory device.
    Fixed {
        sources: Vec<IpAddr>,
        neighbour: MacAddress,
    },
}

#[derive(Debug)]
/// Routes to destinations, cached, and their next hops.
pub struct Routes {
    oracle: Oracle,
    destinations: Recent<(IpAddr, Option<IpAddr>), Entry>,
    hops: Recent<IpAddr, Hop>,
    tables: Option<Tables>,
    path_mtus: PathMtus,
    window: Option<Instant>,
    questions: u32,
}

impl Routes {
    pub(crate) fn of_interface(interface: u32, manager: Option<Arc<Client>>) -> io::Result<Self> {
        Ok(Self::new(Oracle::Kernel {
            netlink: Rtnetlink::open()?,
            interface,
            manager,
        }))
    }

    pub(crate) fn fixed(sources: Vec<IpAddr>, neighbour: MacAddress) -> Self {
        Self::new(Oracle::Fixed { sources, neighbour })
    }

    fn new(oracle: Oracle) -> Self {
        Routes {
            oracle,
            destinations: Recent::new(ENTRIES),
            hops: Recent::new(ENTRIES),
            tables: None,
            path_mtus: PathMtus::default(),
            window: None,
            questions: 0,
        }
    }

    /// Marks the interface as gone: every route leads to the kernel.
    pub fn lose_interface(&mut self) {
        if let Oracle::Kernel { interface, .. } = &mut self.oracle {
            // No route has it.
            *interface = 0;
        }
        self.destinations = Recent::new(ENTRIES);
        self.hops = Recent::new(ENTRIES);
        self.tables = None;
    }

    /// Returns true for one of this host's addresses, on the in-memory device.
    pub fn is_own(&self, address: IpAddr) -> bool {
        matches!(&self.oracle, Oracle::Fixed { sources, .. } if sources.contains(&address))
    }

    /// Index of our interface; 0 on a link that the kernel knows nothing of.
    pub fn interface(&self) -> u32 {
        match self.oracle {
            Oracle::Kernel { interface, .. } => interface,
            Oracle::Fixed { .. } => 0,
        }
    }

    /// Returns the route to `destination`, from `source` if the socket has one. A source
    /// that is `named` by the application may be any address; the kernel decides whether
    /// it belongs to this host.
    pub fn find(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        named: bool,
        now: Instant,
    ) -> Route {
        if let Oracle::Fixed { sources, neighbour } = &self.oracle {
            if named && source.is_some_and(|source| !sources.contains(&source)) {
                return Route::Kernel;
            }
            let own = source.or_else(|| {
                sources
                    .iter()
                    .copied()
                    .find(|a| a.is_ipv4() == destination.is_ipv4())
            });
            return match own {
                Some(source) => Route::Link {
                    source,
                    neighbour: *neighbour,
                    mtu: self.path_mtus.find(destination, now),
                },
                None => Route::Kernel,
            };
        }
        let key = (destination, source);
        let kept = self.destinations.get(&key).copied();
        if let Some(entry) = kept.filter(|entry| entry.expires > now) {
            return entry.route;
        }
        let asked = self.ask(destination, source, named, now);
        let Ok((route, expires, this_time)) = asked else {
            return kept.map_or(Route::Kernel, |entry| entry.route);
        };
        self.destinations.insert(key, Entry { route, expires });
        this_time
    }

    /// The route to `destination` and until when it counts; and the one to use now.
    fn ask(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        named: bool,
        now: Instant,
    ) -> Result<(Route, Instant, Route), OverBudget> {
        let by_kernel = (Route::Kernel, now + RETRY, Route::Kernel);
        let Some(way) = self.way(destination, source, named, OF_DESTINATIONS, now)? else {
            return Ok(by_kernel);
        };
        let hop = self.hop(way.next, now)?;
        let Some(neighbour) = hop.neighbour else {
            return Ok(by_kernel);
        };
        let route = self.link(destination, &way, neighbour, now);
        // A stale neighbour may be used, but only traffic through the
        // kernel makes it check that the neighbour is still there.
        let is_checked = hop.is_new && neighbour.state & NUD_STALE != 0;
        let this_time = if is_checked { Route::Kernel } else { route };
        Ok((route, hop.expires.max(now + RETRY), this_time))
    }

    fn link(
        &mut self,
        destination: IpAddr,
        way: &Way,
        neighbour: netlink::Neighbour,
        now: Instant,
    ) -> Route {
        Route::Link {
            source: way.source,
            neighbour: MacAddress(neighbour.address),
            mtu: way.mtu.min(self.path_mtus.find(destination, now)),
        }
    }

    /// Returns the link address for `destination` from `source`, if that needs no
    /// question to the kernel. An answer that came no longer than `asked` ago counts even
    /// if it is older than others may be.
    pub fn known(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        asked: Duration,
        now: Instant,
    ) -> Option<MacAddress> {
        let route = match &self.oracle {
            Oracle::Fixed { .. } => self.find(destination, Some(source), false, now),
            Oracle::Kernel { .. } => {
                let entry = self.destinations.get(&(destination, Some(source)))?;
                (entry.expires + asked > now).then_some(entry.route)?
            }
        };
        match route {
            Route::Link { neighbour, .. } => Some(neighbour),
            Route::Kernel => None,
        }
    }

    /// Returns the path to `destination` for a connection, from `source` if it has one.
    /// `hint`: the link address of the segment that is being answered.
    pub fn neighbour(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        hint: Option<MacAddress>,
        now: Instant,
    ) -> Neighbour {
        let known = |source, neighbour| Neighbour::Known { source, neighbour };
        if let Oracle::Fixed { .. } = self.oracle {
            return match self.find(destination, source, false, now) {
                Route::Link {
                    source, neighbour, ..
                } => known(source, neighbour),
                Route::Kernel => Neighbour::Kernel,
            };
        }
        let key = (destination, source);
        let kept = self.destinations.get(&key).copied();
        let old = kept.and_then(|entry| match entry.route {
            Route::Link {
                source, neighbour, ..
            } => Some((known(source, neighbour), entry.expires)),
            Route::Kernel => None,
        });
        if let Some((found, _)) = old.filter(|(_, expires)| *expires > now) {
            return found;
        }
        let hinted = |source| hint.map(|hint| known(source, hint));
        if is_link_local(destination)
            && let Some(found) = source.and_then(hinted)
        {
            return found;
        }
        let most = hint.map_or(OF_DESTINATIONS, |_| OF_HINTED);
        let way = match self.way(destination, source, false, most, now) {
            Ok(Some(way)) => way,
            Ok(None) => return Neighbour::Kernel,
            Err(OverBudget) => {
                let old = old.map(|(found, _)| found);
                let found = old.or_else(|| source.and_then(hinted));
                return found.unwrap_or(Neighbour::Unasked);
            }
        };
        // For a host on the link the kernel would find the same. It would cost a
        // question, and an entry per source address that a sender invents.
        let is_found = |it: &&Hop| it.expires > now && it.neighbour.is_some();
        if let Some(found) = hinted(way.source)
            && way.on_link
            && self.hops.get(&way.next).filter(is_found).is_none()
        {
            return found;
        }
        let Ok(hop) = self.hop(way.next, now) else {
            let old = old.map(|(found, _)| found);
            return old.or(hinted(way.source)).unwrap_or(Neighbour::Unasked);
        };
        let is_certain = |found: netlink::Neighbour| found.state & NUD_STALE == 0;
        if hop.is_new && !hop.neighbour.is_some_and(is_certain) {
            self.resolve(way.next);
        }
        let Some(neighbour) = hop.neighbour else {
            let resolving = Neighbour::Resolving { source: way.source };
            return hinted(way.source).unwrap_or(resolving);
        };
        let route = self.link(destination, &way, neighbour, now);
        let expires = hop.expires.max(now + RETRY);
        self.destinations.insert(key, Entry { route, expires });
        known(way.source, MacAddress(neighbour.address))
    }

    /// Makes the kernel resolve a neighbour, or check a stale one. It does neither unless
    /// one of our datagrams goes through it.
    fn resolve(&mut self, next: IpAddr) {
        if let Oracle::Kernel {
            netlink,
            interface,
            manager,
        } = &mut self.oracle
        {
            let _ = match manager {
                Some(manager) => manager.resolve(next),
                None => netlink.use_neighbour(*interface, next),
            };
        }
    }

    /// Takes the routing tables as they are now; `None`: the kernel is asked per destination.
    pub fn set_tables(&mut self, routing: Option<netlink::Routing>) {
        self.tables = routing.map(Tables::new);
        self.destinations.expire(|entry| &mut entry.expires);
    }

    /// Takes a router's report that datagrams from `source` to `destination` may have at
    /// most `bytes`. Returns `None` for a destination that nothing was sent to lately:
    /// that report is forged. Otherwise returns whether the kernel, too, should be
    /// notified now.
    pub fn report_mtu(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        bytes: usize,
        now: Instant,
    ) -> Option<bool> {
        let mut sent_to = matches!(self.oracle, Oracle::Fixed { .. });
        for source in [None, Some(source)] {
            if let Some(entry) = self.destinations.get_mut(&(destination, source)) {
                sent_to = true;
                if let Route::Link { mtu, .. } = &mut entry.route {
                    *mtu = bytes.min(*mtu);
                }
            }
        }
        sent_to.then(|| self.path_mtus.report(destination, bytes, now))
    }

    /// Counts a question, if this second's are no more than `most` with it.
    fn may_ask(&mut self, most: u32, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        if self
            .window
            .is_none_or(|start| now.duration_since(start) >= second)
        {
            self.window = Some(now);
            self.questions = 0;
        }
        let may = self.questions < most;
        self.questions += u32::from(may);
        may
    }

    /// Returns the path to a destination; `None`: the kernel, by another interface, or
    /// nothing. Asks the kernel if this second's questions are no more than `most`.
    fn way(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        named: bool,
        most: u32,
        now: Instant,
    ) -> Result<Option<Way>, OverBudget> {
        let interface = self.interface();
        let tables = self.tables.as_ref();
        if let Some(found) = tables.and_then(|it| it.route(destination, source, named, interface)) {
            return Ok(found);
        }
        if !self.may_ask(most, now) {
            return Err(OverBudget);
        }
        let Oracle::Kernel { netlink, .. } = &mut self.oracle else {
            return Ok(None);
        };
        // For IPv4 the next question contains this check, for IPv6 it does not.
        if let (Some(address @ IpAddr::V6(_)), true) = (source, named)
            && !netlink
                .route(address, None, None)
                .is_ok_and(|route| route.local)
        {
            return Ok(None);
        }
        // A frame from a link-local address came by this interface.
        let through = is_link_local(destination).then_some(interface);
        let Ok(route) = netlink.route(destination, source, through) else {
            return Ok(None);
        };
        if let (Some(tables), Some(own), None) = (&mut self.tables, route.source, source) {
            tables.learn(destination, own);
        }
        Ok(Way::by(
            destination,
            source.or(route.source),
            &route,
            interface,
        ))
    }

    /// Returns the next hop of this address, as the kernel reports it or reported it
    /// lately.
    fn hop(&mut self, next: IpAddr, now: Instant) -> Result<Hop, OverBudget> {
        let kept = self.hops.get(&next).copied();
        let lasts = |it: &Hop| it.expires > now;
        if let Some(hop) = kept.filter(lasts) {
            return Ok(hop);
        }
        if !self.may_ask(QUESTIONS, now) {
            return kept.filter(|it| it.neighbour.is_some()).ok_or(OverBudget);
        }
        let Oracle::Kernel {
            netlink, interface, ..
        } = &mut self.oracle
        else {
            return Err(OverBudget);
        };
        let found = netlink.neighbour(*interface, next).ok();
        let neighbour = found.filter(|found| found.state & NUD_USABLE != 0);
        let lifetime = neighbour.map_or(RETRY_HOP, |_| LIFETIME);
        let hop = Hop {
            neighbour,
            expires: now + lifetime,
            is_new: false,
        };
        self.hops.insert(next, hop);
        Ok(Hop {
            is_new: true,
            ..hop
        })
    }
}

impl Way {
    /// By a route, if that is by this interface; `source`: the address that sends.
    fn by(
        destination: IpAddr,
        source: Option<IpAddr>,
        route: &netlink::Route,
        interface: u32,
    ) -> Option<Self> {
        (route.unicast && route.interface == interface).then_some(Way {
            source: source?,
            next: route.gateway.unwrap_or(destination),
            on_link: route.gateway.is_none(),
            mtu: route.mtu,
        })
    }
}

/// Returns true for an address that is on the link whatever the routes are.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
