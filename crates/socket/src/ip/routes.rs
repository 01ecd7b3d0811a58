//! Which frames we may send ourselves, and to which link address.
//!
//! The kernel keeps routes and neighbours; this is a short-lived cache of its
//! answers. Whatever it cannot answer with a neighbour on our own interface
//! (loopback, another interface, an address still being resolved, multicast)
//! goes through the kernel socket that holds the port, which also makes the
//! kernel resolve the neighbour. So there is no second ARP here, and a
//! destination is never unreachable through us that is reachable through the
//! kernel.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewall_manager::client::Client;
use tidewall_sys::netlink::{self, Rtnetlink};
use tidewall_wire::ethernet::MacAddress;

use crate::ip::path_mtu::PathMtus;

/// How long an answer counts. A neighbour that moves announces it to the
/// kernel, and we follow within this time.
const LIFETIME: Duration = Duration::from_secs(1);
/// How long a destination stays with the kernel before we ask again: about a
/// link's time to answer an ARP request.
const RETRY: Duration = Duration::from_millis(20);
/// Destinations remembered.
const ENTRIES: usize = 4096;
/// Questions a second. Replying to spoofed sources must not turn into one
/// netlink request a datagram; the excess goes through the kernel socket.
const QUESTIONS: u32 = 5_000;

/// Neighbour states in which the link address may be used (linux/neighbour.h).
const NUD_USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NUD_STALE: u16 = 0x04;

/// How to send to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// In a frame of our own.
    Link {
        source: IpAddr,
        neighbour: MacAddress,
        /// Longest IP datagram that reaches the destination whole, in bytes, as
        /// far as is known; the interface may allow less.
        mtu: usize,
    },
    /// Through the kernel socket.
    Kernel,
}

/// How a connection, which cannot go through a kernel socket, gets to a
/// destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// In frames of our own.
    Known {
        source: IpAddr,
        neighbour: MacAddress,
    },
    /// By our interface; the kernel has been asked to find the neighbour.
    Resolving { source: IpAddr },
    /// Not by our interface.
    Kernel,
}

#[derive(Debug)]
struct Entry {
    route: Route,
    expires: Instant,
}

/// Where answers come from.
#[derive(Debug)]
enum Oracle {
    Kernel {
        netlink: Rtnetlink,
        interface: u32,
        /// Who may have neighbours found, where that is another process.
        manager: Option<Arc<Client>>,
    },
    /// A link with one neighbour: the in-memory device.
    Fixed {
        sources: Vec<IpAddr>,
        neighbour: MacAddress,
    },
}

#[derive(Debug)]
pub(crate) struct Routes {
    oracle: Oracle,
    cache: HashMap<(IpAddr, Option<IpAddr>), Entry>,
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
            cache: HashMap::new(),
            path_mtus: PathMtus::default(),
            window: None,
            questions: 0,
        }
    }

    /// The interface is no more: all ways are the kernel's.
    pub(crate) fn lose_interface(&mut self) {
        if let Oracle::Kernel { interface, .. } = &mut self.oracle {
            // No route has it.
            *interface = 0;
        }
        self.cache.clear();
    }

    /// True for an address of ours, on the in-memory device.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        matches!(&self.oracle, Oracle::Fixed { sources, .. } if sources.contains(&address))
    }

    /// Index of our interface; 0 on a link that the kernel knows nothing of.
    pub(crate) fn interface(&self) -> u32 {
        match self.oracle {
            Oracle::Kernel { interface, .. } => interface,
            Oracle::Fixed { .. } => 0,
        }
    }

    /// The route to `destination`, from `source` if the socket has one. One that
    /// is `named` by the application may be anything; if it is not this host's,
    /// the kernel is to say so.
    pub(crate) fn find(
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
        if let Some(entry) = self.cache.get(&(destination, source))
            && entry.expires > now
        {
            return entry.route;
        }
        if !self.may_ask(now) {
            return Route::Kernel;
        }
        let (route, lifetime, this_time) = match self.ask(destination, source, named, now) {
            // A stale neighbour may be used, but only traffic through the
            // kernel makes it check that the neighbour is still there.
            Some((route, netlink::Neighbour { state, .. })) if state & NUD_STALE != 0 => {
                (route, LIFETIME, Route::Kernel)
            }
            Some((route, _)) => (route, LIFETIME, route),
            None => (Route::Kernel, RETRY, Route::Kernel),
        };
        let expires = now + lifetime;
        self.remember((destination, source), Entry { route, expires });
        this_time
    }

    /// Enters an answer. Of a full cache any other goes: a host that has us answer many
    /// sources must not keep the rest from being known.
    fn remember(&mut self, key: (IpAddr, Option<IpAddr>), entry: Entry) {
        if self.cache.len() >= ENTRIES && !self.cache.contains_key(&key) {
            let place = RandomState::new().hash_one(key) as usize % ENTRIES;
            let victim = self.cache.keys().nth(place).copied();
            victim.and_then(|victim| self.cache.remove(&victim));
        }
        self.cache.insert(key, entry);
    }

    /// The link address for `destination` from `source`, if that needs no question
    /// to the kernel.
    pub(crate) fn known(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        now: Instant,
    ) -> Option<MacAddress> {
        let key = (destination, Some(source));
        let is_known = match &self.oracle {
            Oracle::Fixed { .. } => true,
            Oracle::Kernel { .. } => self.cache.get(&key).is_some_and(|it| it.expires > now),
        };
        match is_known.then(|| self.find(destination, Some(source), false, now))? {
            Route::Link { neighbour, .. } => Some(neighbour),
            Route::Kernel => None,
        }
    }

    /// The way to `destination` for a connection, from `source` if it has one.
    pub(crate) fn neighbour(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        now: Instant,
    ) -> Neighbour {
        let known = |source, neighbour| Neighbour::Known { source, neighbour };
        if let Route::Link {
            source, neighbour, ..
        } = self.find(destination, source, false, now)
        {
            return known(source, neighbour);
        }
        if !self.may_ask(now) {
            return Neighbour::Kernel;
        }
        let Oracle::Kernel {
            netlink,
            interface,
            manager,
        } = &mut self.oracle
        else {
            return Neighbour::Kernel;
        };
        let Ok(route) = netlink.route(destination, source, None) else {
            return Neighbour::Kernel;
        };
        let own = source.or(route.source);
        let (true, Some(source)) = (route.unicast && route.interface == *interface, own) else {
            return Neighbour::Kernel;
        };
        let next = route.gateway.unwrap_or(destination);
        let state = netlink.neighbour(*interface, next).ok();
        if state.is_none_or(|found| found.state & (NUD_USABLE & !NUD_STALE) == 0) {
            // Without a datagram of ours through it, the kernel neither looks
            // for a neighbour nor checks one that is stale.
            let _ = match manager {
                Some(manager) => manager.resolve(next),
                None => netlink.use_neighbour(*interface, next),
            };
        }
        match state {
            Some(found) if found.state & NUD_USABLE != 0 => {
                known(source, MacAddress(found.address))
            }
            _ => Neighbour::Resolving { source },
        }
    }

    /// A router has reported that datagrams to `destination`, from `source`, may
    /// have no more than `bytes` on their way. Of a destination that nothing was
    /// sent to lately that is forged: `None`. Else whether the kernel, too, should
    /// hear of it now.
    pub(crate) fn report_mtu(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        bytes: usize,
        now: Instant,
    ) -> Option<bool> {
        let mut sent_to = matches!(self.oracle, Oracle::Fixed { .. });
        for source in [None, Some(source)] {
            if let Some(entry) = self.cache.get_mut(&(destination, source)) {
                sent_to = true;
                if let Route::Link { mtu, .. } = &mut entry.route {
                    *mtu = bytes.min(*mtu);
                }
            }
        }
        sent_to.then(|| self.path_mtus.report(destination, bytes, now))
    }

    fn may_ask(&mut self, now: Instant) -> bool {
        match self.window {
            Some(start) if now.duration_since(start) < Duration::from_secs(1) => {
                self.questions += 1;
            }
            _ => {
                self.window = Some(now);
                self.questions = 1;
            }
        }
        self.questions <= QUESTIONS
    }

    fn ask(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        named: bool,
        now: Instant,
    ) -> Option<(Route, netlink::Neighbour)> {
        let Oracle::Kernel {
            netlink, interface, ..
        } = &mut self.oracle
        else {
            return None;
        };
        // Of IPv4 the next question has this in it, of IPv6 it has not.
        if let (Some(address @ IpAddr::V6(_)), true) = (source, named)
            && !netlink
                .route(address, None, None)
                .is_ok_and(|route| route.local)
        {
            return None;
        }
        let route = netlink.route(destination, source, None).ok()?;
        if !route.unicast || route.interface != *interface {
            return None;
        }
        let source = source.or(route.source)?;
        let next = route.gateway.unwrap_or(destination);
        let neighbour = netlink.neighbour(*interface, next).ok()?;
        if neighbour.state & NUD_USABLE == 0 {
            return None;
        }
        let link = Route::Link {
            source,
            neighbour: MacAddress(neighbour.address),
            mtu: route.mtu.min(self.path_mtus.find(destination, now)),
        };
        Some((link, neighbour))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_still_takes_answers() {
        let mut routes = Routes::fixed(Vec::new(), MacAddress::default());
        let now = Instant::now();
        for number in 0..3 * ENTRIES as u32 {
            let key = (IpAddr::V4(number.into()), None);
            let entry = Entry {
                route: Route::Kernel,
                expires: now + LIFETIME,
            };
            routes.remember(key, entry);
            assert!(routes.cache.contains_key(&key));
            assert!(routes.cache.len() <= ENTRIES);
        }
        // It is not always the same that goes.
        let old = |number: &u32| {
            routes
                .cache
                .contains_key(&(IpAddr::V4((*number).into()), None))
        };
        let of_first = (0..ENTRIES as u32).filter(old).count();
        assert!((100..1500).contains(&of_first), "{of_first}");
    }
}
