//! A connection's readiness, its changes, and its opening.

use std::sync::Arc;

use tidewall_protocol::tcp::State as Phase;
use tidewall_readiness::Events;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;

use super::{Reported, State};
use crate::tcp::Tcp;
use crate::tcp::channels::SHARED_MOST;
use crate::tcp::lending::POOLED_LIMIT;
use crate::tcp::listener::ListenerInner;

impl State {
    /// Returns what it is ready for now, as Linux's tcp_poll does. A caller that finds no
    /// space is notified once there is some.
    pub(crate) fn events(&mut self) -> Events {
        if self.opening.awaits_syn_data {
            return Events::WRITABLE;
        }
        let connection = &self.connection;
        let mut events = Events::NONE;
        let received = connection.receive_closed();
        if received {
            events |= Events::READABLE | Events::RDHUP;
        } else if connection.readable() {
            events |= Events::READABLE;
        }
        if received && connection.send_closed() {
            events |= Events::HUP;
        }
        if connection.writable() {
            events |= Events::WRITABLE;
        } else {
            self.no_space = true;
        }
        events.with_if(
            Events::ERR,
            connection.has_error() || connection.has_notifications(),
        )
    }

    /// Assigns a channel of its own, which bounds its window.
    pub(super) fn enter_channel(&mut self, core: &Core, set: ChannelSet) {
        self.connection.set_receive_room(POOLED_LIMIT as u16);
        self.dropped_before = set.dropped(core) as u32;
        self.channel = Some(set);
    }

    /// Removes its own channel, if any: from now on it uses the shared one.
    pub(super) fn leave_channel(&mut self) -> Option<ChannelSet> {
        let set = self.channel.take()?;
        self.connection.set_receive_room(SHARED_MOST);
        Some(set)
    }

    /// Returns the frames that found its channel full since it owns the channel, and the
    /// channel's number; `None` if there were none.
    pub(crate) fn dropped_full(&self, core: &Core) -> Option<(u16, u32)> {
        let set = self.channel.as_ref()?;
        let dropped = (set.dropped(core) as u32).wrapping_sub(self.dropped_before);
        (dropped > 0).then_some((set.id.index(), dropped))
    }

    /// Records that a writer has found no space.
    pub(crate) fn note_no_space(&mut self) {
        self.no_space = true;
    }

    /// Returns the changes since the last call.
    pub(super) fn changes(&mut self) -> Events {
        let now = Reported::of(&self.connection);
        let mut changed = Events::NONE;
        if now != self.reported {
            let reported = self.reported;
            if now.received_to != reported.received_to {
                changed |= Events::DATA_CAME;
            }
            if now.notified != reported.notified {
                changed |= Events::ERR;
            }
            let same_state = Reported {
                received_to: now.received_to,
                notified: now.notified,
                ..reported
            };
            if now != same_state {
                changed = Events::STATE_CHANGED;
            }
            self.reported = now;
        }
        if self.no_space && self.connection.writable() {
            self.no_space = false;
            changed |= Events::SPACE_CAME;
        }
        changed
    }

    /// Releases a SYN that waits for the first write. Returns true if one did.
    pub(crate) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.opening.awaits_syn_data)
    }

    /// Returns true while the SYN waits for the first write.
    pub(crate) fn awaits_syn_data(&self) -> bool {
        self.opening.awaits_syn_data
    }

    /// Sets the listener to notify of the end of its handshake.
    pub(crate) fn opened_at(&mut self, listener: &Arc<ListenerInner>) {
        if self.detached {
            listener.fast_open_done(false);
        } else {
            self.opening.opened_at = Some(Arc::downgrade(listener));
        }
    }

    /// Records the outcome of a connection opened with Fast Open, and frees the
    /// listener's entry for one that a SYN has opened.
    pub(super) fn update_fast_open(&mut self, core: &Core) {
        if self.opening.fast {
            let (flow, now) = (*self.connection.flow(), core.now());
            if let Some(outcome) = self.connection.take_fast_open_outcome() {
                Tcp::of(core).fast_open.learn(&flow, &outcome, now);
            }
            if self.connection.take_fast_open_black_hole() {
                Tcp::of(core).fast_open.suspect(now);
            }
            self.opening.fast = self.connection.state() != Phase::Closed;
        }
        if self.opening.opened_at.is_some()
            && let Some(reset) = self.connection.take_fast_open_done()
            && let Some(listener) = self
                .opening
                .opened_at
                .take()
                .and_then(|listener| listener.upgrade())
        {
            listener.fast_open_done(reset);
        }
    }

    /// Returns true once the application has closed it.
    pub(in crate::tcp) fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// Returns true when the application has closed it and the peer has acknowledged
    /// everything: only the peer's FIN is missing.
    pub(super) fn is_done(&self) -> bool {
        self.orphan && self.connection.state() == Phase::FinWait2
    }

    /// Returns true when frames wait in its channel.
    pub(crate) fn has_frames(&self) -> bool {
        self.channel.as_ref().is_some_and(|set| !set.looks_empty())
    }

    /// Returns true when it has a channel of its own.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }
}
