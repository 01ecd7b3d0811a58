//! The kernel's routing tables, read in one dump and looked up by prefix.
//!
//! One dump answers for every destination; a request per destination costs two system
//! calls. [`Routing`] answers only what is certain: rules without selectors, and one
//! unicast route per prefix. For everything else it reports that the kernel must be
//! asked.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use super::route::{RTM_GETROUTE, Route, Rtnetlink, address};
use super::{NLM_F_DUMP, attributes, find, word};

const RTM_GETRULE: u16 = 34;
const RTA_DST: u16 = 1;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
/// Attributes of a route that this module understands: RTA_DST, RTA_OIF, RTA_GATEWAY,
/// RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_FLOW, RTA_CACHEINFO, RTA_TABLE, RTA_VIA,
/// RTA_PREF, RTA_EXPIRES. Not RTA_MULTIPATH, RTA_ENCAP, RTA_NH_ID.
const PLAIN: [u16; 12] = [
    RTA_DST,
    4,
    5,
    RTA_PRIORITY,
    7,
    8,
    11,
    12,
    RTA_TABLE,
    18,
    20,
    23,
];
const RTN_THROW: u8 = 9;
/// In `rtm_flags`: an exception to a route (RTM_F_CLONED).
const CLONED: u32 = 0x200;
/// RTNH_F_DEAD: its interface is down.
const DEAD: u32 = 0x01;
/// RTNH_F_LINKDOWN, RTNH_F_UNRESOLVED: a sysctl decides whether the route counts.
const DOUBTFUL: u32 = 0x10 | 0x20;
/// FR_ACT_TO_TBL: a rule that names a table.
const TO_TABLE: u8 = 1;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
/// Attributes of a rule without selectors: FRA_PRIORITY, FRA_TABLE, FRA_PAD,
/// FRA_PROTOCOL.
const UNCONDITIONAL: [u16; 4] = [6, FRA_TABLE, 18, 21];
/// FIB_RULE_PERMANENT.
const PERMANENT: u32 = 1;

/// A snapshot of a network namespace's routing tables.
#[derive(Debug, Default)]
pub struct Routing {
    /// For IPv4 and for IPv6; `None` if the kernel must be asked each time.
    families: [Option<Family>; 2],
}

/// A route that [`Routing::route`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The route. Its source is `None` if the kernel chooses one.
    pub route: Route,
    /// Number of the route, for state kept per route while these tables last. Zero for
    /// destinations without a route.
    pub number: u32,
}

/// Tables of one address family.
#[derive(Debug)]
struct Family {
    /// In the order in which rules name the tables.
    tables: Vec<Table>,
    /// The only address of this host that is neither loopback nor link-local, if there is
    /// just one.
    only: Option<IpAddr>,
}

/// Prefixes by their length, longest first.
type Table = Vec<(u8, HashMap<u128, Prefix>)>;

/// The entry of one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    Route {
        metric: u32,
        found: Found,
    },
    /// The lookup continues in the next table.
    Throw {
        metric: u32,
    },
    Ask,
}

impl Rtnetlink {
    /// Reads the routing tables.
    ///
    /// # Errors
    /// ENOBUFS for more than `most` routes; the kernel's errors. This socket is unusable
    /// after an error.
    pub fn routing(&mut self, most: usize) -> io::Result<Routing> {
        let mut families = [None, None];
        let mut number = 0;
        for (family, place) in [libc::AF_INET, libc::AF_INET6]
            .into_iter()
            .zip(&mut families)
        {
            let family = family as u8;
            // struct fib_rule_hdr
            let mut header = [0; 12];
            header[0] = family;
            let mut rules = Vec::new();
            self.0
                .each(RTM_GETRULE, NLM_F_DUMP, &header, &mut |_, body| {
                    if body.first() == Some(&family) {
                        rules.push(table_of_rule(body));
                    }
                    Ok(())
                })?;
            let rules: Option<Vec<u32>> = rules.into_iter().collect();
            let Some(rules) = rules.filter(|rules| !rules.is_empty()) else {
                continue;
            };
            let mut read = Family::new(rules.len());
            let mut understood = true;
            self.0
                .each(RTM_GETROUTE, NLM_F_DUMP, &header, &mut |_, body| {
                    number += 1;
                    if number as usize > most {
                        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
                    }
                    understood &= read.add(body, family, &rules, number);
                    Ok(())
                })?;
            *place = understood.then(|| read.done());
        }
        Ok(Routing { families })
    }
}

impl Routing {
    /// The route to a destination; `None` if the kernel must be asked.
    pub fn route(&self, destination: IpAddr) -> Option<Found> {
        if is_special(destination) {
            return None;
        }
        let family = self.family(destination)?;
        for table in &family.tables {
            match look(table, destination) {
                Some(Prefix::Route { found, .. }) => return Some(found),
                Some(Prefix::Ask) => return None,
                Some(Prefix::Throw { .. }) | None => {}
            }
        }
        Some(Found {
            route: Route::NONE,
            number: 0,
        })
    }

    /// Whether an address belongs to this host; `None` if the kernel must be asked.
    pub fn is_local(&self, address: IpAddr) -> Option<bool> {
        self.route(address).map(|found| found.route.local)
    }

    /// The source address that the kernel chooses over IPv6 for any global destination.
    /// Known if this host has only one address that is neither loopback nor link-local.
    pub fn only_source(&self, destination: IpAddr) -> Option<IpAddr> {
        match destination {
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => self.family(destination)?.only,
            _ => None,
        }
    }

    fn family(&self, of: IpAddr) -> Option<&Family> {
        let [v4, v6] = &self.families;
        if of.is_ipv4() {
            v4.as_ref()
        } else {
            v6.as_ref()
        }
    }
}

impl Family {
    fn new(tables: usize) -> Self {
        Family {
            tables: vec![Vec::new(); tables],
            only: None,
        }
    }

    /// Adds a route of a dump. Returns false for a route that makes every answer of this
    /// family uncertain.
    fn add(&mut self, body: &[u8], family: u8, rules: &[u32], number: u32) -> bool {
        let Some(fixed) = body.first_chunk::<12>() else {
            return false;
        };
        // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
        let flags = word(&fixed[8..12]);
        if fixed[0] != family || flags & (CLONED | DEAD) != 0 {
            return true;
        }
        if fixed[2] != 0 {
            // Also selected by source.
            return false;
        }
        let values = body.get(12..).unwrap_or_default();
        let v4 = i32::from(family) == libc::AF_INET;
        let Some(route) = Route::parse(body) else {
            return false;
        };
        let table = find(values, RTA_TABLE).map_or(u32::from(fixed[4]), word);
        let metric = find(values, RTA_PRIORITY).map_or(0, word);
        let length = fixed[1];
        let start = match find(values, RTA_DST).map(address) {
            Some(Some(start)) => key(start, length),
            Some(None) => return false,
            None => 0,
        };
        let plain = attributes(values).all(|(kind, _)| PLAIN.contains(&kind));
        let prefix = match fixed[7] {
            _ if fixed[3] != 0 || flags & DOUBTFUL != 0 || !plain => Prefix::Ask,
            RTN_THROW => Prefix::Throw { metric },
            _ => Prefix::Route {
                metric,
                found: Found { route, number },
            },
        };
        for (_, of_rule) in rules
            .iter()
            .zip(&mut self.tables)
            .filter(|it| *it.0 == table)
        {
            let place = match of_rule.binary_search_by(|it| length.cmp(&it.0)) {
                Ok(place) => place,
                Err(place) => {
                    of_rule.insert(place, (length, HashMap::new()));
                    place
                }
            };
            if let Some((_, prefixes)) = of_rule.get_mut(place) {
                let entry = prefixes.entry(start);
                let merged = |old: &mut Prefix| *old = either(*old, prefix, v4, length);
                entry.and_modify(merged).or_insert(prefix);
            }
        }
        true
    }

    fn done(mut self) -> Self {
        let whole = |it: &&(u8, HashMap<u128, Prefix>)| it.0 == 128;
        let tables = self.tables.iter().flatten().filter(whole);
        let prefixes = tables.flat_map(|(_, prefixes)| prefixes);
        let mut own = prefixes.filter_map(|(&start, prefix)| {
            let address = Ipv6Addr::from(start);
            let counts = !address.is_loopback() && !address.is_unicast_link_local();
            match prefix {
                Prefix::Route { found, .. } => {
                    (counts && found.route.local).then_some(Some(address))
                }
                Prefix::Ask => counts.then_some(None),
                Prefix::Throw { .. } => None,
            }
        });
        self.only = match (own.next(), own.next()) {
            (Some(Some(only)), None) => Some(only.into()),
            _ => None,
        };
        self
    }
}

/// Decides which of two routes to one prefix counts. Among several default routes of
/// IPv4, and any of IPv6, the kernel chooses by whether the router answers.
fn either(one: Prefix, other: Prefix, v4: bool, length: u8) -> Prefix {
    let metric = |prefix: &Prefix| match *prefix {
        Prefix::Route { metric, .. } | Prefix::Throw { metric } => Some(metric),
        Prefix::Ask => None,
    };
    match (metric(&one), metric(&other)) {
        (Some(first), Some(second)) if v4 && length > 0 && first != second => {
            if first < second {
                one
            } else {
                other
            }
        }
        _ => Prefix::Ask,
    }
}

/// The longest prefix of a table that matches this address.
fn look(table: &Table, address: IpAddr) -> Option<Prefix> {
    let mut found = table
        .iter()
        .filter_map(|(length, prefixes)| prefixes.get(&key(address, *length)).copied());
    found.next()
}

/// The first `length` bits of an address; IPv4 uses the highest bits.
fn key(address: IpAddr, length: u8) -> u128 {
    let bits = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    match 128 - u32::from(length.min(128)) {
        128 => 0,
        rest => bits >> rest << rest,
    }
}

/// Destinations that the kernel handles outside its tables.
fn is_special(destination: IpAddr) -> bool {
    destination.is_multicast()
        || destination.is_unspecified()
        || destination.is_loopback()
        || match destination {
            IpAddr::V4(v4) => v4.is_broadcast() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
        }
}

/// The table that a rule without selectors names; `None` for any other rule.
fn table_of_rule(body: &[u8]) -> Option<u32> {
    // family, dst_len, src_len, tos, table, two reserved bytes, action, flags
    let fixed = body.first_chunk::<12>()?;
    let values = body.get(12..)?;
    let understood = attributes(values).all(|(kind, value)| {
        // No prefix is suppressed: -1.
        UNCONDITIONAL.contains(&kind) || kind == FRA_SUPPRESS_PREFIXLEN && word(value) == u32::MAX
    });
    let conditional = fixed[1..4] != [0; 3] || word(&fixed[8..12]) & !PERMANENT != 0;
    if conditional || !understood || fixed[7] != TO_TABLE {
        return None;
    }
    Some(find(values, FRA_TABLE).map_or(u32::from(fixed[4]), word))
}
