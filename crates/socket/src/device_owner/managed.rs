//! The device of a stack that has no privileges: another process, the manager, owns it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{Shutdown, shutdown, sockopt::socket_cookie};
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::Client;

/// What the stack has of the manager.
pub(crate) struct Managed {
    pub(super) client: Arc<Client>,
    // Held while the manager is asked, by those who bind and close, under other locks.
    ports: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    /// TCP's, with what names the holder of each to the manager.
    held: HashMap<(Option<IpAddr>, u16), u64>,
    /// Leased ports of TCP that no connection has, in the order in which they are taken.
    free: VecDeque<u16>,
    /// Those that connections have.
    taken: HashSet<u16>,
}

impl Managed {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Managed {
            client,
            ports: Mutex::default(),
        }
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        // What is in it is whole between calls.
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`super::DeviceOwner::own_port`].
    pub(super) fn own_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut ports = self.ports();
        if protocol == Protocol::Tcp && address.is_none() && ports.taken.contains(&port) {
            return Ok(());
        }
        let holder = holder.ok_or(io::ErrorKind::Unsupported)?;
        let cookie = self.client.own_port(protocol, holder)?;
        if protocol == Protocol::Tcp {
            ports.held.insert((address, port), cookie);
        }
        Ok(())
    }

    /// See [`super::DeviceOwner::disown_port`].
    pub(super) fn disown_port(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        if protocol == Protocol::Udp {
            // Each holder lets go by itself.
            return;
        }
        let mut ports = self.ports();
        if let Some(cookie) = ports.held.remove(&(address, port)) {
            // A manager that is gone forgets it.
            let _ = self.client.disown_port(cookie);
        } else if ports.taken.remove(&port) {
            ports.free.push_back(port);
        }
    }

    /// See [`super::DeviceOwner::close_datagrams`].
    pub(super) fn close_datagrams(&self, holder: BorrowedFd<'_>) {
        if let Ok(cookie) = socket_cookie(holder) {
            let _ = self.client.disown_port(cookie);
        }
    }

    /// See [`super::DeviceOwner::close_listener`].
    pub(super) fn close_listener(&self, holder: BorrowedFd<'_>, shared: bool) {
        // The manager's client has a copy of it as long as connections are there, which holds
        // the port, and is not to listen.
        match socket_cookie(holder) {
            Ok(cookie) if shared => self.client.leave_port_unheld(cookie),
            _ => drop(shutdown(holder, Shutdown::Read)),
        }
    }

    /// A port for a connection, of those that are leased. The longest unused comes first,
    /// and each block in an order that nobody can guess (RFC 6056 §3.3.1).
    pub(super) fn outgoing_port(&self) -> io::Result<u16> {
        let mut ports = self.ports();
        if ports.free.is_empty() {
            let block = self.client.lease(Protocol::Tcp)?;
            let mut leased: Vec<u16> = (block.first..=block.first + (block.count - 1)).collect();
            let order = RandomState::new();
            leased.sort_by_key(|port| order.hash_one(port));
            ports.free.extend(leased);
        }
        let port = ports
            .free
            .pop_front()
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        ports.taken.insert(port);
        Ok(port)
    }
}
