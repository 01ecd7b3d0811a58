//! Who holds a local port: in the kernel a socket, in the driver's tables the
//! trusted level's entry.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use tidewall_device::afxdp::EMBEDDED_APPLICATION;
use tidewall_device::demux::Tables;
use tidewall_device::demux::layout::Protocol;

/// Ports with listeners or connections. A port's frames are ours until the
/// last of its users is gone, those in TIME-WAIT included; what belongs to none
/// of them goes to the kernel.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    used: Mutex<HashMap<u16, Use>>,
}

#[derive(Debug, Default)]
struct Use {
    users: usize,
    /// Addresses for which the driver was told that the port is ours.
    owned: Vec<Option<IpAddr>>,
    /// The kernel socket that keeps others from an ephemeral port.
    held: Option<OwnedFd>,
}

impl Ports {
    /// One more user of a port; `held` is kept until the last is gone.
    ///
    /// # Errors
    /// What the tables report.
    pub(crate) fn enter(
        &self,
        tables: &Tables,
        address: Option<IpAddr>,
        port: u16,
        held: Option<OwnedFd>,
    ) -> io::Result<()> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = used.entry(port).or_default();
        if !entry.owned.contains(&address) {
            if let Err(error) = tables.own_port(Protocol::Tcp, address, port, EMBEDDED_APPLICATION)
            {
                if entry.users == 0 {
                    used.remove(&port);
                }
                return Err(error);
            }
            entry.owned.push(address);
        }
        entry.users += 1;
        if held.is_some() {
            entry.held = held;
        }
        Ok(())
    }

    /// One more user of a port that has one.
    pub(crate) fn again(&self, port: u16) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = used.get_mut(&port) {
            entry.users += 1;
        }
    }

    /// One user less.
    pub(crate) fn leave(&self, tables: &Tables, port: u16) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = used.get_mut(&port) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0
            && let Some(entry) = used.remove(&port)
        {
            for address in entry.owned {
                // A table that cannot forget costs the driver one look.
                let _ = tables.disown_port(Protocol::Tcp, address, port);
            }
        }
    }

    /// True when somebody uses a port.
    pub(crate) fn is_used(&self, port: u16) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.contains_key(&port)
    }
}
