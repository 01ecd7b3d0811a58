//! Holders of local ports: a kernel socket, and the trusted entry in the driver's tables.

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

/// Ports with listeners or connections. The stack receives a port's frames until its last
/// user is gone, including those in TIME-WAIT. Frames without an owner among them go to
/// the kernel.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    used: Mutex<HashMap<u16, Use>, rank::Ports>,
    /// Ephemeral ports allocated by [`Ports::ephemeral`].
    given: AtomicU32,
}

/// Linux's ephemeral ports (`ip_local_port_range`).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

#[derive(Debug, Default)]
struct Use {
    users: usize,
    /// Addresses for which the driver's tables assign the port to the stack.
    owned: Vec<Option<IpAddr>>,
    /// The kernel sockets that reserve it.
    held: Vec<Unshared<OwnedFd>>,
}

impl Ports {
    /// Adds a user of a port; `held` is kept until the last user is gone. `holder`: the
    /// socket that is bound there, if that is another. If a port has no user on this
    /// address, it is requested from a manager. The caller waits for the reply, so it holds
    /// no lock.
    ///
    /// # Errors
    /// The errors of the tables and the manager.
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
        // Counted as a user already, so that the last of the others does not release the
        // port.
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

    /// Adds a user to a port that has one.
    pub(crate) fn again(&self, port: u16) {
        let mut used = lock(&self.used);
        if let Some(entry) = used.get_mut(&port) {
            entry.users += 1;
        }
    }

    /// Removes a user.
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

    /// Returns an ephemeral port unused here, if no kernel chooses one: the one after the
    /// last. A peer that remembers a connection in TIME-WAIT then does not at once see
    /// the same port again (RFC 6056 §3.3.1).
    pub(crate) fn ephemeral(&self) -> Option<u16> {
        let count = EPHEMERAL.len() as u32;
        let used = lock(&self.used);
        EPHEMERAL
            .map(|_| self.given.fetch_add(1, Ordering::Relaxed) % count)
            .map(|place| EPHEMERAL.start() + place as u16)
            .find(|port| !used.contains_key(port))
    }
}
