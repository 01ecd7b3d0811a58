//! What owns a channel.

use std::sync::Arc;
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_protocol::ip::reassembly::Reassembled;

use crate::channels::ChannelSet;
use crate::stack::Core;
use crate::tcp::frames::Deferred;

/// The owner of a channel, and of at most one timer: a UDP socket, a circuit, a TCP
/// listener, a TCP connection, the channels that connections share.
pub(crate) trait Endpoint: Send + Sync {
    /// Frames came to `channel`: one call for a run of them. Nothing is locked.
    fn on_frames(self: Arc<Self>, core: &Core, channel: u16);

    /// Frames came to `channel` for which nobody waits. Nothing is locked.
    fn on_waited_frames(self: Arc<Self>, core: &Core, channel: u16) {
        self.on_frames(core, channel);
    }

    /// Its timer has expired.
    fn on_timer(self: Arc<Self>, _core: &Core) {}

    /// The last fragment of a datagram came whose first one was in channel `id`. The
    /// caller may hold a queue. By default its flow says which connection it is for.
    fn on_reassembled(&self, core: &Core, _id: ChannelId, datagram: Reassembled) {
        core.tcp.keep_reassembled(core, datagram);
    }

    /// Frame memory is short: what waits in frames moves to buffers of its own size.
    /// An endpoint that a thread is busy with is left alone: it is not slow.
    fn copy_out(self: Arc<Self>, _core: &Core) {}

    /// Those of low priority are copied out first.
    fn priority(&self) -> u8 {
        u8::MAX
    }

    /// Frames that came lately through its channel; `None` if it does not lend that,
    /// or a thread is busy with it.
    fn channel_usage(&self, _now: Duration) -> Option<u16> {
        None
    }

    /// Gives its channel to another endpoint; what was still in it is kept in
    /// `deferred`.
    fn give_up_channel(&self, _core: &Core, _deferred: &mut Deferred) -> Option<ChannelSet> {
        None
    }

    /// Memory is short: gives back what can be had without loss. Returns what it still
    /// holds, in bytes, if it may be reset for that.
    fn reclaim(&self) -> Option<usize> {
        None
    }

    /// Ends it at once, with a reset to the peer.
    fn reset(self: Arc<Self>, _core: &Core) {}
}
