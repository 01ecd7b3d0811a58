//! The UDP sockets of a stack, and the owner of each port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use tidewall_device::demux::layout::Protocol;
use tidewall_device::demux::{ANY, ChannelId};
use tidewall_device::queue::KernelDelivered;
use tidewall_manager::client::Patience;
use tidewall_stack::address::{canonical, specified};
use tidewall_stack::core::Core;
use tidewall_stack::lock::{ReadGuard, RwLock, WriteGuard, lock, rank};
use tidewall_stack::snapshot::{SocketSnapshot, StackSnapshot};

use super::BindOptions;
use super::inner::{Families, SocketInner};
use crate::udp::reservation::PortReservation;

/// UDP state of one stack: its sockets by channel number.
#[derive(Default)]
pub struct Udp {
    sockets: RwLock<BTreeMap<u16, Arc<SocketInner>>, rank::UdpSockets>,
}

impl Udp {
    /// The UDP of a stack that has UDP sockets.
    pub(super) fn of(core: &Core) -> &Self {
        core.protocol()
    }

    fn read(&self) -> ReadGuard<'_, BTreeMap<u16, Arc<SocketInner>>, rank::UdpSockets> {
        self.sockets.read()
    }

    fn write(&self) -> WriteGuard<'_, BTreeMap<u16, Arc<SocketInner>>, rank::UdpSockets> {
        self.sockets.write()
    }

    /// Returns all sockets.
    pub(crate) fn all(&self) -> Vec<Arc<SocketInner>> {
        self.read().values().cloned().collect()
    }

    /// Enters a socket under its channel number.
    pub(super) fn register(&self, core: &Core, socket: Arc<SocketInner>) {
        let number = socket.id().index();
        self.write().insert(number, socket.clone());
        core.channels.set_endpoint(number, Some(socket));
    }

    /// Removes a socket and its table entries.
    pub(super) fn unregister(&self, core: &Core, socket: &Arc<SocketInner>) {
        let number = socket.id().index();
        core.channels.set_endpoint(number, None);
        self.write().remove(&number);
        let ends = socket.ends();
        if let Some(peer) = ends.peer {
            core.tables
                .disconnect(Protocol::Udp, canonical(ends.local), canonical(peer));
        }
        // A port without a table entry costs the driver one look-up.
        let _ = self.unlisten(core, socket);
        let (address, port) = table_key(socket);
        for &owned in address.as_ref().map_or(&ANY[..], std::slice::from_ref) {
            if !self.is_owned_by_another(owned, port) {
                let owner = &core.netdev.owner;
                owner.disown_port(Protocol::Udp, Some(owned), port);
            }
        }
        if let Some(holder) = &socket.reservation {
            core.netdev.owner.close_datagrams(holder.as_fd());
        }
    }

    /// Makes the driver deliver the port's datagrams to the socket.
    pub(super) fn listen(&self, core: &Core, socket: &Arc<SocketInner>) -> io::Result<()> {
        let (address, port) = table_key(socket);
        core.tables
            .listen(Protocol::Udp, address, port, socket.id())?;
        core.netdev.owner.own_port(Protocol::Udp, address, port)
    }

    /// Requests the port of a socket about to be created from a manager. The caller waits
    /// for the answer, so it holds no lock.
    pub(super) fn ask_for_port(
        &self,
        core: &Core,
        holder: &PortReservation,
        local: SocketAddr,
        how: &BindOptions,
        patience: Patience,
    ) -> io::Result<()> {
        let (address, port) = key(local, Families::of(local, how));
        let owner = &core.netdev.owner;
        owner.ask_for_port(Protocol::Udp, address, port, Some(holder.as_fd()), patience)
    }

    /// Ends delivery to the socket; another one that shares the port replaces it.
    pub(super) fn unlisten(&self, core: &Core, socket: &Arc<SocketInner>) -> io::Result<()> {
        let (address, port) = table_key(socket);
        core.tables.unlisten(Protocol::Udp, address, port);
        let successor = {
            let sockets = self.read();
            sockets
                .values()
                .find(|other| {
                    other.id() != socket.id()
                        && other.peer().is_none()
                        && table_key(other) == (address, port)
                })
                .cloned()
        };
        match successor {
            Some(successor) => self.listen(core, &successor),
            None => Ok(()),
        }
    }

    /// Returns true if a socket of the stack needs the port at this address, or at all of a
    /// family if that is unspecified.
    fn is_owned_by_another(&self, address: IpAddr, port: u16) -> bool {
        let sockets = self.read();
        sockets.values().any(|other| {
            let (other_address, other_port) = table_key(other);
            let covers = match other_address {
                Some(other) => other == address,
                None => address.is_unspecified(),
            };
            covers && other_port == port
        })
    }

    /// Chooses among the in-memory device's ports.
    pub(super) fn bind_without_kernel(
        &self,
        core: &Core,
        address: SocketAddr,
        how: &BindOptions,
    ) -> io::Result<SocketAddr> {
        if specified(address).is_some_and(|address| !lock(&core.ip.routes).is_own(address)) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let shares = how.reuse_address || how.reuse_port;
        let families = Families::of(address, how);
        let taken = |port: u16, shares: bool| {
            let sockets = self.read();
            sockets.values().any(|other| {
                let bound = other.ends().bound;
                let addresses = (specified(bound), specified(address));
                bound.port() == port
                    && !(shares && other.shares_port)
                    && (families == other.families()
                        || families == Families::Both
                        || other.families() == Families::Both)
                    && !matches!(addresses, (Some(theirs), Some(ours)) if theirs != ours)
            })
        };
        match address.port() {
            0 => (32_768..=60_999)
                .find(|&port| !taken(port, false))
                .map(|port| SocketAddr::new(address.ip(), port))
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE)),
            port if taken(port, shares) => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            _ => Ok(address),
        }
    }
}

/// Returns the table key of a socket's binding: an address, any of one family
/// (unspecified), or any of both (none).
fn table_key(socket: &SocketInner) -> (Option<IpAddr>, u16) {
    key(socket.ends().bound, socket.families())
}

fn key(bound: SocketAddr, families: Families) -> (Option<IpAddr>, u16) {
    let both = bound.ip().is_unspecified() && families == Families::Both;
    ((!both).then_some(bound.ip().to_canonical()), bound.port())
}

impl tidewall_stack::protocol::Protocol for Udp {
    fn take_kernel_delivered(
        &self,
        core: &Core,
        datagram: KernelDelivered,
        payload: &[u8],
    ) -> bool {
        if datagram.protocol != Protocol::Udp {
            return false;
        }
        let target = {
            let sockets = self.read();
            sockets
                .values()
                .filter(|socket| socket.wants(datagram.source, datagram.destination))
                .max_by_key(|socket| {
                    let bound = socket.ends().bound.ip();
                    (socket.peer().is_some(), !bound.is_unspecified())
                })
                .cloned()
        };
        match target {
            Some(socket) => socket.push_kernel_delivered(datagram, payload),
            None => core.causes.no_socket(),
        }
        true
    }

    fn lose_device(&self, _core: &Core) {
        let sockets = self.all();
        for socket in sockets.iter().filter(|it| !it.has_kernel_part()) {
            socket.fail(libc::ENODEV);
        }
    }

    fn datagram_ports(&self) -> Vec<(u16, ChannelId)> {
        let sockets = self.all();
        let of = |socket: &Arc<SocketInner>| (socket.ends().local.port(), socket.id());
        sockets.iter().map(of).collect()
    }

    fn describe(&self, core: &Core, snapshot: &mut StackSnapshot) {
        let sockets = self.all();
        let described = sockets.iter().map(|socket| {
            let number = socket.id().index();
            let ends = socket.ends();
            let (received, through_kernel) = socket.counts();
            let (occupancy, dropped_full) = core.channel_counts(number);
            {
                let mut described = SocketSnapshot::default();
                described.channel = number;
                described.protocol = "udp".to_owned();
                described.local = ends.local.to_string();
                described.peer = ends.peer.map(|peer| peer.to_string());
                described.received = received;
                described.through_kernel = through_kernel;
                described.occupancy = occupancy;
                described.limit = socket.limit();
                described.dropped_full = dropped_full;
                described
            }
        });
        snapshot.sockets.extend(described);
    }
}
