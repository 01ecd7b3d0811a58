//! Whose are the ports, and by which sockets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use tidewall_device::demux::layout::Protocol;

/// A port on one local address, or with `None` on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Local address.
    pub address: Option<IpAddr>,
    /// Not 0.
    pub port: u16,
}

impl PortKey {
    /// Of a socket bound there.
    pub fn of(protocol: Protocol, local: SocketAddr) -> Self {
        let address = local.ip().to_canonical();
        PortKey {
            protocol,
            address: (!address.is_unspecified()).then_some(address),
            port: local.port(),
        }
    }

    /// On all addresses.
    pub fn any(protocol: Protocol, port: u16) -> Self {
        PortKey {
            protocol,
            address: None,
            port,
        }
    }
}

/// What the kernel says of a socket that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderFacts {
    /// SO_PROTOCOL.
    pub protocol: Protocol,
    /// Where it is bound.
    pub local: SocketAddr,
    /// SO_COOKIE.
    pub cookie: u64,
    /// True where no other socket can be bound there and hold the port at the same time
    /// and be exclusive, too: a listener, or a datagram socket, that shares with nobody.
    pub exclusive: bool,
    /// True in the manager's own network namespace.
    pub here: bool,
}

/// Whose a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) application: u16,
    /// Sockets that hold it. None: an earlier run left it, or it could not be disowned.
    pub(super) holders: u32,
    /// Its one holder, where that is exclusive: cookie and address.
    exclusive: Option<(u64, IpAddr)>,
}

/// All ports that are owned, those of leases aside, and their holders by cookie.
#[derive(Debug, Default)]
pub(super) struct Ports {
    owned: HashMap<PortKey, Owned>,
    holders: HashMap<u64, PortKey>,
}

impl Ports {
    pub(super) fn get(&self, key: &PortKey) -> Option<Owned> {
        self.owned.get(key).copied()
    }

    /// The port that a socket holds.
    pub(super) fn held_by(&self, cookie: u64) -> Option<(PortKey, Owned)> {
        let key = self.holders.get(&cookie)?;
        Some((*key, self.get(key)?))
    }

    pub(super) fn count(&self) -> usize {
        self.owned.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortKey, Owned)> {
        self.owned.iter().map(|(&key, &owned)| (key, owned))
    }

    /// A port of an application that nobody holds.
    pub(super) fn insert_unheld(&mut self, key: PortKey, application: u16) {
        self.remove(&key);
        let owned = Owned {
            application,
            holders: 0,
            exclusive: None,
        };
        self.owned.insert(key, owned);
    }

    /// Whether a holder proves that all earlier ones are gone: the kernel would not have
    /// bound it beside them.
    pub(super) fn displaces(owned: &Owned, holder: &HolderFacts) -> bool {
        holder.exclusive
            && owned
                .exclusive
                .is_some_and(|(_, address)| address == holder.local.ip())
    }

    /// Enters a holder of an application's port. Another application's are forgotten.
    pub(super) fn hold(&mut self, key: PortKey, application: u16, holder: &HolderFacts) {
        let exclusive = || Some((holder.cookie, holder.local.ip())).filter(|_| holder.exclusive);
        match self.owned.get_mut(&key) {
            Some(owned)
                if owned.application == application
                    && owned.holders > 0
                    && !Self::displaces(owned, holder) =>
            {
                owned.holders += 1;
                owned.exclusive = None;
            }
            _ => {
                self.remove(&key);
                let owned = Owned {
                    application,
                    holders: 1,
                    exclusive: exclusive(),
                };
                self.owned.insert(key, owned);
            }
        }
        self.holders.insert(holder.cookie, key);
    }

    /// Forgets a holder; how many the port has left.
    pub(super) fn let_go(&mut self, cookie: u64) -> u32 {
        let Some(key) = self.holders.remove(&cookie) else {
            return 0;
        };
        let Some(owned) = self.owned.get_mut(&key) else {
            return 0;
        };
        owned.holders = owned.holders.saturating_sub(1);
        if owned.holders == 0 {
            owned.exclusive = None;
        }
        owned.holders
    }

    pub(super) fn remove(&mut self, key: &PortKey) {
        match self.owned.remove(key) {
            Some(Owned {
                exclusive: Some((cookie, _)),
                ..
            }) if self.holders.get(&cookie) == Some(key) => drop(self.holders.remove(&cookie)),
            Some(owned) if owned.holders > 0 => self.holders.retain(|_, held| held != key),
            _ => {}
        }
    }
}
