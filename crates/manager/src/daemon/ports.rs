//! The owners of ports, and the sockets that hold them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use tidewall_device::demux::ANY;
use tidewall_device::demux::layout::Protocol;

/// A port on one local address or, if that is unspecified, on all of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Local address; IPv4 is never mapped into IPv6.
    pub address: IpAddr,
    /// Not 0.
    pub port: u16,
}

impl PortKey {
    /// On all addresses of both families.
    pub fn on_all(protocol: Protocol, port: u16) -> [Self; 2] {
        ANY.map(|address| PortKey {
            protocol,
            address,
            port,
        })
    }

    /// True where it is on all addresses of its family.
    pub fn is_on_all(&self) -> bool {
        self.address.is_unspecified()
    }
}

/// Ranges of ports, as `7`, `7,53` or `7,8000-8100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRanges(Vec<RangeInclusive<u16>>);

impl PortRanges {
    /// Whether a port is in one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

impl FromStr for PortRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let port = |text: &str| text.parse().ok().filter(|&port: &u16| port > 0);
            let (first, last) = (port(first)?, port(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        ranges
            .map(PortRanges)
            .ok_or_else(|| "ports are 1 to 65535, as 7, 7,53 or 7,8000-8100".to_owned())
    }
}

/// Facts about a passed socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// SO_PROTOCOL.
    pub protocol: Protocol,
    /// Its local address.
    pub local: SocketAddr,
    /// True for an IPv6 socket without IPV6_V6ONLY, which also receives IPv4.
    pub dual: bool,
    /// SO_COOKIE.
    pub cookie: u64,
    /// True in the manager's own network namespace.
    pub here: bool,
    /// The result of the kernel's binding rules for it.
    pub proof: Proof,
}

impl HolderFacts {
    /// True if it is still bound as an earlier check found it.
    pub(super) fn is_bound_as(&self, before: &HolderFacts) -> bool {
        HolderFacts {
            proof: before.proof,
            ..*self
        } == *before
    }

    /// The ports that it is bound to.
    pub fn keys(&self) -> Vec<PortKey> {
        let address = self.local.ip().to_canonical();
        if self.dual && address.is_unspecified() {
            return PortKey::on_all(self.protocol, self.local.port()).into();
        }
        vec![PortKey {
            protocol: self.protocol,
            address,
            port: self.local.port(),
        }]
    }
}

/// Whether the kernel's binding rules give the frames of a socket's ports to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// No other user has a socket there, or can bind one.
    Alone,
    /// No other user has a socket there, but one could be bound: the socket has
    /// SO_REUSEADDR and, for TCP, does not listen.
    Shareable,
    /// A socket of this user is also there.
    Beside(u32),
    /// No other user can bind a socket there, but this one has connections of the port.
    /// They are those of a server that had the port before, or that accepted them under
    /// another user than at bind time.
    BesideConnections(u32),
    /// It has a peer, and its port may belong to the socket that accepted it.
    Connected,
    /// It receives frames of another interface only.
    OtherDevice,
    /// It is bound to an address that the host does not have.
    NotLocal,
    /// The kernel did not report it; its error.
    Unknown(i32),
}

/// The owner of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) application: u16,
    /// Number of sockets that hold it. Zero: an earlier run left it, or it could not be
    /// disowned.
    pub(super) holders: u32,
}

/// A socket by which an application owns ports.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) application: u16,
    pub(super) keys: Vec<PortKey>,
    pub(super) facts: HolderFacts,
    /// Another user could bind a socket there.
    pub(super) is_shareable: bool,
    /// Start of the current check, if there is one.
    pub(super) looked_at: Option<Duration>,
}

/// All owned ports, without leased ones, and their holders by cookie.
#[derive(Debug, Default)]
pub(super) struct Ports {
    owned: HashMap<PortKey, Owned>,
    holders: HashMap<u64, Held>,
}

impl Ports {
    pub(super) fn get(&self, key: &PortKey) -> Option<Owned> {
        self.owned.get(key).copied()
    }

    pub(super) fn held_by(&self, cookie: u64) -> Option<&Held> {
        self.holders.get(&cookie)
    }

    /// All holders, by their cookies.
    pub(super) fn holders(&self) -> impl Iterator<Item = (u64, &Held)> {
        self.holders.iter().map(|(&cookie, held)| (cookie, held))
    }

    /// Number of ports; one on all addresses of both families counts once.
    pub(super) fn count(&self) -> usize {
        self.names(|_| true).count()
    }

    /// Number of ports of an application, counted as [`Ports::count`] does.
    pub(super) fn count_of(&self, application: u16) -> usize {
        self.names(|owned| owned.application == application).count()
    }

    /// The first of each pair on all addresses of both families.
    fn names(&self, of: impl Fn(&Owned) -> bool) -> impl Iterator<Item = &PortKey> {
        let is_second = |key: &PortKey, owned: &Owned| {
            let [first, second] = PortKey::on_all(key.protocol, key.port);
            let other = self.owned.get(&first);
            *key == second && other.is_some_and(|it| it.application == owned.application)
        };
        let owned = self.owned.iter();
        owned
            .filter(move |(key, owned)| of(owned) && !is_second(key, owned))
            .map(|(key, _)| key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortKey, Owned)> {
        self.owned.iter().map(|(&key, &owned)| (key, owned))
    }

    /// Enters a port of an application without a holder.
    pub(super) fn insert_unheld(&mut self, key: PortKey, application: u16) {
        let owned = Owned {
            application,
            holders: 0,
        };
        self.owned.insert(key, owned);
    }

    /// Enters a holder of an application's ports, which no other application holds.
    pub(super) fn hold(&mut self, held: Held) {
        for &key in &held.keys {
            let application = held.application;
            let owned = self.owned.entry(key).or_insert(Owned {
                application,
                holders: 0,
            });
            owned.application = application;
            owned.holders += 1;
        }
        self.holders.insert(held.facts.cookie, held);
    }

    pub(super) fn held_by_mut(&mut self, cookie: u64) -> Option<&mut Held> {
        self.holders.get_mut(&cookie)
    }

    /// Removes a holder. Returns the ports that no longer have one.
    pub(super) fn let_go(&mut self, cookie: u64) -> Vec<PortKey> {
        let Some(held) = self.holders.remove(&cookie) else {
            return Vec::new();
        };
        let mut unheld = held.keys;
        unheld.retain(|key| match self.owned.get_mut(key) {
            Some(owned) => {
                owned.holders = owned.holders.saturating_sub(1);
                owned.holders == 0
            }
            None => false,
        });
        unheld
    }

    /// Removes a port that has no holder.
    pub(super) fn remove(&mut self, key: &PortKey) {
        self.owned.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_numbers_and_ranges() {
        let ranges: PortRanges = "7,8000-8100".parse().unwrap();
        let outside = [6, 8, 7999, 8101].map(|port| ranges.contains(port));
        assert_eq!(outside, [false; 4]);
        assert!([7, 8000, 8100].iter().all(|&port| ranges.contains(port)));
        for wrong in ["", "0", "7,", "9-7", "65536", "a", "1-2-3", "-7"] {
            assert!(wrong.parse::<PortRanges>().is_err(), "{wrong}");
        }
    }
}
