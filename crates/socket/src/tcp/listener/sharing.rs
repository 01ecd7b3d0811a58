//! Listeners at one address (SO_REUSEPORT): whose a connection is.
//!
//! The driver gives SYNs to the channel of one of them, whose protocol makes the
//! connections; each is accepted from the one that its flow's hash says.

use std::sync::Arc;

use tidewall_device::demux::CookieMode;
use tidewall_protocol::tcp::FourTuple;

use super::ListenerInner;
use crate::tcp::Tcp;
use crate::tcp::connection::ConnectionInner;
use tidewall_stack::core::Core;
use tidewall_stack::lock::lock;

impl Tcp {
    /// Those that listen at the address of one that shares it (SO_REUSEPORT); itself too,
    /// while it does.
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

    /// Whose a connection is of those; `None` where nobody shares.
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
    /// Has the driver give another listener what begins connections to its address, or nobody.
    pub(super) fn bequeath(&self, core: &Core) {
        let _binding = lock(&core.binding);
        let port = self.local.port();
        match Tcp::of(core).sharers(self).pop() {
            Some(successor) if successor.listen(core).is_ok() => {
                // It says anew what the driver is to do about them.
                *lock(&successor.cookies) = CookieMode::Off;
                let _ = core.tables.set_cookies(port, CookieMode::Off);
            }
            _ => core.tables.unlisten_tcp(self.key(), port),
        }
    }

    /// True for one that listens at the same address.
    fn is_beside(&self, other: &ListenerInner) -> bool {
        self.shares && other.shares && self.key() == other.key() && other.is_served()
    }

    /// Whether frames wait in its channel, as no connection may be added. Those of others
    /// that have the address come by the same channel.
    pub(super) fn is_held_back(&self) -> bool {
        !self.shares && self.is_full()
    }

    /// A connection that another at the address has made is to be accepted. False where
    /// this one is closed, and resets those that wait, or has done so.
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
