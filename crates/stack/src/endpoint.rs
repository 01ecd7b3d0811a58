//! The owner of a channel.

use std::any::Any;
use std::sync::Arc;

use tidewall_device::demux::ChannelId;
use tidewall_protocol::ip::reassembly::Reassembled;

use crate::core::Core;

/// The owner of a channel, and of at most one timer. It is a UDP socket, a circuit, a TCP
/// listener, a TCP connection, or the channels that connections share.
pub trait Endpoint: Any + Send + Sync {
    /// Called when frames came to `channel`: one call for a run of them. No lock is held.
    fn on_frames(self: Arc<Self>, core: &Core, channel: u16);

    /// Called when frames came to `channel` that need wake no thread. No lock is held.
    fn on_waited_frames(self: Arc<Self>, core: &Core, channel: u16) {
        self.on_frames(core, channel);
    }

    /// Called when its timer has expired.
    fn on_timer(self: Arc<Self>, _core: &Core) {}

    /// The last fragment of a datagram came whose first one was in channel `id`. The
    /// caller may hold a queue. By default the datagram is dropped and counted.
    fn on_reassembled(&self, core: &Core, _id: ChannelId, _datagram: Reassembled) {
        core.causes.no_socket();
    }

    /// Moves waiting data out of frames into buffers of its own size, when frame memory
    /// is short. An endpoint that a thread is busy with is left alone: it is not slow.
    fn copy_out(self: Arc<Self>, _core: &Core) {}

    /// Returns the priority; endpoints of low priority are copied out first.
    fn priority(&self) -> u8 {
        u8::MAX
    }
}
