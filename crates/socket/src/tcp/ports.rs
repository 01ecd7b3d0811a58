//! Who holds a local port: in the kernel a socket, in the driver's tables the
//! trusted level's entry.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use tidewall_device::demux::layout::Protocol;
use tidewall_device::forked::Unshared;
use tidewall_manager::client::Patience;

use tidewall_stack::device_owner::DeviceOwner;
use tidewall_stack::lock::{Mutex, lock, rank};

/// Ports with listeners or connections. A port's frames are ours until the
/// last of its users is gone, those in TIME-WAIT included; what belongs to none
/// of them goes to the kernel.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    used: Mutex<HashMap<u16, Use>, rank::Ports>,
    /// Ephemeral ports given by [`Ports::ephemeral`].
    given: AtomicU32,
}

/// Linux's ephemeral ports (`ip_local_port_range`).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

#[derive(Debug, Default)]
struct Use {
    users: usize,
    /// Addresses for which the port is ours in the driver's tables.
    owned: Vec<Option<IpAddr>>,
    /// The kernel's sockets that keep others from it.
    held: Vec<Unshared<OwnedFd>>,
}

impl Ports {
    /// One more user of a port; `held` is kept until the last is gone. `holder`: the
    /// socket that is bound there, where that is another. Of a port that has no user on this
    /// address a manager is asked, which the caller waits for and so holds no lock.
    ///
    /// # Errors
    /// What the tables and the manager report.
    pub(crate) fn enter(
        &self,
        owner: &DeviceOwner,
        address: Option<IpAddr>,
        port: u16,
        held: Option<Unshared<OwnedFd>>,
        holder: Option<BorrowedFd<'_>>,
        patience: Patience,
    ) -> io::Result<()> {
        let mut used = lock(&self.used);
        let entry = used.entry(port).or_default();
        // A user already, so that the last of the others does not take the port with it.
        entry.users += 1;
        let is_owned = entry.owned.contains(&address);
        drop(used);
        if !is_owned {
            let holder = held.as_ref().map(|held| held.as_fd()).or(holder);
            let protocol = Protocol::Tcp;
            let owned = owner
                .ask_for_port(protocol, address, port, holder, patience)
                .and_then(|()| owner.own_port(protocol, address, port));
            if let Err(error) = owned {
                self.leave(owner, port);
                return Err(error);
            }
        }
        let mut used = lock(&self.used);
        let entry = used.entry(port).or_default();
        if !entry.owned.contains(&address) {
            entry.owned.push(address);
        }
        entry.held.extend(held);
        Ok(())
    }

    /// One more user of a port that has one.
    pub(crate) fn again(&self, port: u16) {
        let mut used = lock(&self.used);
        if let Some(entry) = used.get_mut(&port) {
            entry.users += 1;
        }
    }

    /// One user less.
    pub(crate) fn leave(&self, owner: &DeviceOwner, port: u16) {
        let mut used = lock(&self.used);
        let Some(entry) = used.get_mut(&port) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0
            && let Some(entry) = used.remove(&port)
        {
            for address in entry.owned {
                owner.disown_port(Protocol::Tcp, address, port);
            }
        }
    }

    /// An ephemeral port that nobody uses here, where no kernel chooses one: the
    /// one after the last, so that a peer which remembers a connection in
    /// TIME-WAIT does not at once see another of its ports (RFC 6056 §3.3.1).
    pub(crate) fn ephemeral(&self) -> Option<u16> {
        let count = EPHEMERAL.len() as u32;
        let used = lock(&self.used);
        EPHEMERAL
            .map(|_| self.given.fetch_add(1, Ordering::Relaxed) % count)
            .map(|place| EPHEMERAL.start() + place as u16)
            .find(|port| !used.contains_key(port))
    }
}
