//! The device of a stack that has no privileges: another process, the manager, owns it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown, sockopt::socket_cookie};
use tidewall_device::demux::layout::Protocol;
use tidewall_manager::client::{Client, Patience};

use crate::lock::{Mutex, check_none_held, lock, rank};

/// The stack's connection to its manager.
pub struct Managed {
    pub(super) client: Arc<Client>,
    ports: Mutex<Ports, rank::Leaf>,
}

#[derive(Default)]
struct Ports {
    /// TCP's, with what names the holder of each to the manager.
    held: HashMap<(Option<IpAddr>, u16), u64>,
    /// Leased TCP ports without a connection, in the order in which they are used.
    free: VecDeque<u16>,
    /// Those that connections have.
    taken: HashSet<u16>,
}

impl Ports {
    /// A leased port that no connection has.
    fn take(&mut self) -> Option<u16> {
        let port = self.free.pop_front()?;
        self.taken.insert(port);
        Some(port)
    }
}

impl Managed {
    pub(super) fn new(client: Arc<Client>) -> Self {
        client.check_before_waiting(check_none_held);
        Managed {
            client,
            ports: Mutex::default(),
        }
    }

    /// See [`super::DeviceOwner::ask_for_port`].
    pub(super) fn ask_for_port(
        &self,
        protocol: Protocol,
        address: Option<IpAddr>,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
        patience: Patience,
    ) -> io::Result<()> {
        let is_leased = |port| lock(&self.ports).taken.contains(&port);
        if protocol == Protocol::Tcp && address.is_none() && is_leased(port) {
            return Ok(());
        }
        let holder = holder.ok_or(io::ErrorKind::Unsupported)?;
        let cookie = self.client.own_port_within(protocol, holder, patience)?;
        if protocol == Protocol::Tcp {
            let other = lock(&self.ports).held.insert((address, port), cookie);
            // Two threads have asked at once.
            if let Some(other) = other.filter(|&other| other != cookie) {
                self.client.disown_port(other);
            }
        }
        Ok(())
    }

    /// See [`super::DeviceOwner::disown_port`].
    pub(super) fn disown_port(&self, protocol: Protocol, address: Option<IpAddr>, port: u16) {
        if protocol == Protocol::Udp {
            // Each holder lets go by itself.
            return;
        }
        let mut ports = lock(&self.ports);
        if let Some(cookie) = ports.held.remove(&(address, port)) {
            self.client.disown_port(cookie);
        } else if ports.taken.remove(&port) {
            ports.free.push_back(port);
        }
    }

    /// See [`super::DeviceOwner::close_datagrams`].
    pub(super) fn close_datagrams(&self, holder: BorrowedFd<'_>) {
        if let Ok(cookie) = socket_cookie(holder) {
            self.client.disown_port(cookie);
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

    /// Returns a leased port for a connection. The longest unused comes first, and each
    /// block in an order that cannot be guessed (RFC 6056 §3.3.1).
    pub(super) fn outgoing_port(&self, patience: Patience) -> io::Result<u16> {
        if let Some(port) = lock(&self.ports).take() {
            return Ok(port);
        }
        let block = self.client.lease_within(Protocol::Tcp, patience)?;
        let last = block.first.saturating_add(block.count.saturating_sub(1));
        let mut leased: Vec<u16> = (block.first..=last).collect();
        let order = RandomState::new();
        leased.sort_by_key(|port| order.hash_one(port));
        let mut ports = lock(&self.ports);
        ports.free.extend(leased);
        let port = ports.take();
        port.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}
