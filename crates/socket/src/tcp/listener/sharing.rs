//! Listeners at one address (SO_REUSEPORT), and the owner of each connection.
//!
//! The driver delivers SYNs to the channel of one of them, whose protocol creates the
//! connections. The hash of a connection's flow determines the listener that accepts it.

use std::sync::Arc;

use tidewall_device::demux::CookieMode;
use tidewall_protocol::tcp::FourTuple;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;

use super::ListenerInner;
use crate::tcp::Tcp;
use crate::tcp::connection::ConnectionInner;

impl Tcp {
    /// Returns the listeners at the address of one that shares it (SO_REUSEPORT),
    /// including itself while it listens.
    pub(super) fn sharers(&self, listener: &ListenerInner) -> Vec<Arc<ListenerInner>> {
        if !listener.shares {
            return Vec::new();
        }
        let listeners = lock(&self.listeners);
        let of_port = listeners.get(&listener.local.port());
        let all = of_port.into_iter().flatten();
        all.filter(|other| listener.is_beside(other))
            .cloned()
            .collect()
    }

    /// Returns the listener that owns a connection; `None` if the address is not shared.
    pub(super) fn sharer(
        &self,
        listener: &ListenerInner,
        flow: &FourTuple,
    ) -> Option<Arc<ListenerInner>> {
        let mut sharers = self.sharers(listener);
        let place = self.flows.hash(flow).checked_rem(sharers.len() as u64)?;
        Some(sharers.swap_remove(place as usize))
    }
}

impl ListenerInner {
    /// Makes the driver deliver the beginnings of connections to another listener at the
    /// address, or to none.
    pub(super) fn bequeath(&self, core: &Core) {
        let _binding = lock(&core.binding);
        let port = self.local.port();
        match Tcp::of(core).sharers(self).pop() {
            Some(successor) if successor.listen(core).is_ok() => {
                // The successor sets the driver's cookie mode again.
                *lock(&successor.cookies) = CookieMode::Off;
                let _ = core.tables.set_cookies(port, CookieMode::Off);
            }
            _ => core.tables.unlisten_tcp(self.key(), port),
        }
    }

    /// Returns true for one that listens at the same address.
    fn is_beside(&self, other: &ListenerInner) -> bool {
        self.shares && other.shares && self.key() == other.key() && other.is_served()
    }

    /// Reports whether frames wait in its channel because no connection may be added.
    /// Frames of others that have the address arrive by the same channel.
    pub(super) fn is_held_back(&self) -> bool {
        !self.shares && self.is_full()
    }

    /// Queues a connection that another listener at the address has created. Returns
    /// false if this one is closed, and resets waiting connections, or has done so.
    pub(super) fn take_over(&self, connection: &Arc<ConnectionInner>) -> bool {
        {
            let mut accepted = lock(&self.accepted);
            if self.is_shut() {
                return false;
            }
            self.enter(&mut accepted, connection.clone());
        }
        self.announce(true);
        true
    }
}
