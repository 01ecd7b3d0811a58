//! Threads that wait for a connection.

use std::sync::Arc;

use tidewall_readiness::Events;
use tidewall_readiness::registration::Pollable;
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::core::Core;
use tidewall_stack::threads::{Waitable, Waker};

use super::ConnectionInner;

/// A thread that waits until a connection is ready for something.
pub(crate) struct Waiting<'a> {
    pub(crate) connection: &'a ConnectionInner,
    pub(crate) want: Events,
}

impl Pollable for ConnectionInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    // A caller that finds no space is notified once there is some.
    fn events(&self) -> Events {
        self.look().events()
    }

    fn has_unprocessed_frames(&self) -> bool {
        self.lock().has_frames()
    }

    fn process_frames(self: Arc<Self>, core: &Core) {
        self.process(core);
    }
}

impl Waitable for Waiting<'_> {
    fn enter(&self, waker: &Arc<Waker>) {
        self.connection.wait_queue.enter(waker, false);
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.connection.wait_queue.leave(waker);
    }

    fn has_input(&self) -> bool {
        let mut state = self.connection.lock();
        state.has_frames() || state.detached || state.events().intersects(self.want)
    }
}
