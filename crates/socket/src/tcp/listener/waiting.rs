//! Input of a listener's channel and of the kernel, and its waiters.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidewall_device::demux::ChannelId;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_readiness::Events;
use tidewall_readiness::registration::Pollable;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::lock;
use tidewall_stack::threads::{Waitable, Waker};

use super::ListenerInner;
use crate::tcp::Tcp;

impl Endpoint for ListenerInner {
    /// A full accept queue leaves frames in the channel: the driver then drops those
    /// after them.
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        if self.is_held_back() {
            return;
        }
        if !self.wait_queue.frames_arrived() {
            Tcp::of(core).add_pending_listener();
        }
    }

    fn on_timer(self: Arc<Self>, core: &Core) {
        self.run_timer(core);
    }

    fn on_reassembled(&self, core: &Core, _id: ChannelId, datagram: Reassembled) {
        Tcp::of(core).keep_reassembled(core, datagram);
    }
}

impl Pollable for ListenerInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    fn events(&self) -> Events {
        if self.refuses() {
            return Events::WRITABLE | Events::HUP;
        }
        let own = self.waiting.load(Ordering::SeqCst) > 0;
        Events::NONE.with_if(Events::READABLE, own || self.kernel_has_connections())
    }

    fn has_unprocessed_frames(&self) -> bool {
        let state = lock(&self.state);
        let channel = state.channel.as_ref();
        channel.is_some_and(|set| !set.looks_empty())
    }

    fn process_frames(self: Arc<Self>, core: &Core) {
        self.process(core);
    }

    fn kernel_has_input(&self) {
        self.kernel_input.note();
    }
}

impl Waitable for ListenerInner {
    fn enter(&self, waker: &Arc<Waker>) {
        self.wait_queue.enter(waker, true);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        self.may_accept() || (!self.is_held_back() && self.has_unprocessed_frames())
    }

    fn kernel_descriptor(&self) -> i32 {
        self.kernel.as_ref().map_or(-1, |kernel| kernel.as_raw_fd())
    }

    fn kernel_has_input(&self) {
        self.kernel_input.note();
    }
}
