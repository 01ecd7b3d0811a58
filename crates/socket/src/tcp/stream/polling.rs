//! Streams as contexts poll them.

use std::sync::Arc;

use tidewall_readiness::Events;
use tidewall_readiness::registration::{File, Pollable};
use tidewall_readiness::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;

use super::{Inner, TcpStream};
use crate::tcp::kernel_stream::KernelStream;

impl File for TcpStream {
    fn pollable(&self) -> Option<Arc<dyn Pollable>> {
        Some(self.own_connection()?.clone())
    }

    fn wait_queue(&self) -> &WaitQueue {
        match &self.inner {
            Inner::Own(connection) => &connection.wait_queue,
            Inner::Kernel(kernel) => &kernel.wait_queue,
        }
    }

    fn descriptor(&self) -> i32 {
        self.kernels().map_or(-1, KernelStream::descriptor)
    }

    fn is_of(&self, stack: &StackHandle) -> bool {
        self.stack.is(stack)
    }

    /// `None` for a kernel connection.
    fn ready_now(&self, core: &Core) -> Option<Events> {
        let connection = self.own_connection()?;
        let mut state = connection.look();
        if state.has_frames() {
            drop(state);
            connection.process(core);
            state = connection.look();
        }
        Some(state.events())
    }
}
