//! A connection as the owner of a channel and a timer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidewall_device::demux::{ChannelId, Waits};
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_stack::channels::ChannelSet;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;

use super::{ConnectionInner, NEVER};
use crate::tcp::Tcp;
use crate::tcp::channels::Part;
use crate::tcp::frames::Deferred;
use crate::tcp::lending::empty;

impl Endpoint for ConnectionInner {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        let polled = self.wait_queue.frames_arrived();
        if self.closed.load(Ordering::Acquire) {
            // No application processes them.
            Tcp::of(core).on_closing_frames(core, &self);
        } else if !polled && self.becomes_pending() {
            Tcp::of(core).add_pending_connection(self);
        }
    }

    /// Processed by the thread that received them: waking the connection's owner would
    /// cost more.
    fn on_waited_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        self.process(core);
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        self.with(core, |state, deferred| {
            if state.detached {
                return;
            }
            let now = core.now();
            state.armed = NEVER;
            // An acknowledgment in the channel may cancel the timer.
            self.take_frames(core, state, deferred);
            if state
                .connection
                .next_timeout()
                .is_some_and(|due| due <= now)
            {
                state.connection.timeout(now);
            }
            state.held_up = false;
            self.update(core, state, deferred);
            self.notify_changes(state);
        });
    }

    fn copy_out(self: Arc<Self>, core: &Core) {
        Deferred::collect(core, |deferred| {
            let Some(mut state) = self.try_lock() else {
                return;
            };
            if self.take_frames(core, &mut state, deferred) > 0 {
                self.update(core, &mut state, deferred);
                self.notify_changes(&mut state);
            }
        });
    }

    fn on_reassembled(&self, core: &Core, _id: ChannelId, datagram: Reassembled) {
        Tcp::of(core).keep_reassembled(core, datagram);
    }
}

impl ConnectionInner {
    /// Frames that came lately through its channel; `None` if it has none, or a thread is
    /// busy with it.
    pub(in crate::tcp) fn channel_usage(&self, now: Duration) -> Option<u16> {
        let state = self.try_lock()?;
        let has_channel = state.channel.is_some();
        has_channel.then(|| state.usage.frames(now))
    }

    /// Gives its channel to another connection; what was still in it is kept in
    /// `deferred`.
    pub(in crate::tcp) fn give_up_channel(
        &self,
        core: &Core,
        deferred: &mut Deferred,
    ) -> Option<ChannelSet> {
        // Locked until its flow is elsewhere: it must not end before.
        let mut state = self.try_lock()?;
        let mut set = state.leave_channel()?;
        state.waits = Waits::None;
        Tcp::of(core).enter_flow(
            core,
            &self.flow,
            Tcp::of(core).channels.shared.id,
            Part::Shared,
        );
        Tcp::of(core).keep_channel(core, &set);
        empty(&mut set, deferred);
        Some(set)
    }

    /// Memory is short: gives back what can be had without loss. Returns what it still
    /// holds, in bytes, if it may be reset for that.
    pub(in crate::tcp) fn reclaim(&self) -> Option<usize> {
        let mut state = self.try_lock()?;
        state.connection.prune();
        state.is_orphan().then(|| state.connection.memory())
    }

    /// Ends it at once, with a reset to the peer.
    pub(in crate::tcp) fn reset(self: Arc<Self>, core: &Core) {
        self.with(core, |state, deferred| {
            state.connection.abort();
            self.update(core, state, deferred);
        });
    }
}
