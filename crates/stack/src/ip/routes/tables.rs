//! The kernel's routing tables, as they were read last.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tidewall_sys::netlink::{Routing, Rtnetlink};

use super::Way;
use crate::core::Core;
use crate::lock::lock;

/// Routes of a table that is read. Reading more, at each change that a router reports,
/// would cost more than questions do.
const MOST: usize = 16_384;
/// Factor for the least pause between two readings of the tables: so many times the
/// duration of the last one.
const PAUSE: u32 = 20;

/// Routing tables, and what was learned about them.
#[derive(Debug)]
pub(super) struct Tables {
    routing: Routing,
    /// The source that the kernel chooses over IPv4 if a route names none, by the number
    /// of the route.
    sources: HashMap<u32, IpAddr>,
}

impl Tables {
    pub(super) fn new(routing: Routing) -> Self {
        Tables {
            routing,
            sources: HashMap::new(),
        }
    }

    /// Returns the path to a destination: `Some(None)` for the kernel or another
    /// interface, `None` if the kernel has to be asked. An address or a route that is
    /// missing may have come since the tables were read.
    pub(super) fn route(
        &self,
        destination: IpAddr,
        source: Option<IpAddr>,
        named: bool,
        interface: u32,
    ) -> Option<Option<Way>> {
        let found = self.routing.route(destination).filter(|it| it.number > 0)?;
        // Over IPv6 the kernel looks at a source only if the application names it.
        if let Some(source) = source.filter(|source| source.is_ipv4() || named)
            && self.routing.is_local(source) != Some(true)
        {
            return None;
        }
        let own = source
            .or(found.route.source)
            .or_else(|| self.sources.get(&found.number).copied())
            .or_else(|| self.routing.only_source(destination));
        if own.is_none() && found.route.unicast && found.route.interface == interface {
            return None;
        }
        Some(Way::by(destination, own, &found.route, interface))
    }

    /// The kernel has chosen this source for a destination.
    pub(super) fn learn(&mut self, destination: IpAddr, source: IpAddr) {
        // Over IPv6 it depends on the destination.
        if let (IpAddr::V4(_), Some(found)) = (destination, self.routing.route(destination)) {
            self.sources.insert(found.number, source);
        }
    }
}

/// Reads the routing tables again when they have changed. Until then the kernel is asked.
pub struct TablesReader {
    /// They have changed since they were read.
    changed: bool,
    /// Not to be read before this time.
    earliest: Instant,
}

impl TablesReader {
    /// Creates a reader that has not read them yet.
    pub(crate) fn new() -> Self {
        TablesReader {
            changed: true,
            earliest: Instant::now(),
        }
    }

    /// Notes that routes, rules, addresses or interfaces have changed.
    pub fn change(&mut self, core: &Core) {
        if !self.changed {
            self.changed = true;
            lock(&core.ip.routes).set_tables(None);
        }
    }

    /// Returns the time until they are to be read; `None`: they have not changed.
    pub fn timeout(&self) -> Option<Duration> {
        let left = self.earliest.saturating_duration_since(Instant::now());
        self.changed.then_some(left)
    }

    /// Reads them, if that is due.
    pub fn poll(&mut self, core: &Core) {
        let began = Instant::now();
        if !self.changed || began < self.earliest {
            return;
        }
        self.changed = false;
        // A separate socket: one whose dump was interrupted is of no use.
        let routing = Rtnetlink::open().and_then(|mut it| it.routing(MOST)).ok();
        lock(&core.ip.routes).set_tables(routing);
        let ended = Instant::now();
        self.earliest = ended + PAUSE * (ended - began);
    }
}
