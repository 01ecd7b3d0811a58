//! Channels that many connections share, and the driver's table of flows.
//!
//! Connections without a channel of their own ([`super::lending`]) share one, and
//! those in TIME-WAIT another, small and emptied last. In both, the driver limits each flow
//! to a share ([`ApplicationTables::set_share`]), as it limits half-open flows in the channel
//! of their listener.
//!
//! [`ApplicationTables::set_share`]: tidewall_device::demux::ApplicationTables::set_share

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::{FLOW_BUCKETS, FLOW_WAYS, Protocol};
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::tcp::FourTuple;
use tidewall_receive::poller::Channel;
use tidewall_stack::channels::COMMON_CHANNELS;
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::receiver::QueueHandle;

use super::Tcp;
use super::connection::ConnectionInner;

/// Frames that may wait in the shared channel, per queue.
const SHARED_LIMIT: u32 = 1024;
/// Frames that may wait in the TIME-WAIT channel: last acknowledgments, and SYNs of
/// returning clients, as many as may arrive in one burst.
const TIME_WAIT_LIMIT: u32 = 256;
/// Frames per flow in TIME-WAIT: more would request an acknowledgment, of which few are
/// sent.
const TIME_WAIT_SHARE: u32 = 4;
/// A flow gets one frame in this many of any other channel that it shares.
const PARTS: u32 = 16;
/// Frames per flow in its handshake: the segment that ends it and an initial window of
/// ten segments (RFC 6928). The peer may send the window a second time before the
/// listener's thread runs.
const HALF_OPEN_SHARE: u32 = 32;
/// Frames per flow that may wait in the shared channel, per queue.
pub(super) const SHARED_MOST: u16 = SHARED_LIMIT.div_ceil(PARTS) as u16;
/// Number of flows from which single buckets of the driver's table overflow; up to it,
/// connections in TIME-WAIT may stay.
const FLOWS_MAX: usize = FLOW_BUCKETS * FLOW_WAYS / 10 * 7;

/// A flow's share of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// All of it.
    All = 0,
    /// A share of the shared channel.
    Shared = 1,
    /// A share of the TIME-WAIT channel.
    TimeWait = 2,
    /// A share of its listener's channel, while it is half open.
    HalfOpen = 3,
}

/// A channel that many flows share.
pub(crate) struct SharedChannel {
    pub(crate) id: ChannelId,
    part: Part,
    channels: Mutex<Box<[Channel]>, rank::Leaf>,
    /// Frames wait for a thread that may run the protocol.
    waiting: AtomicBool,
}

impl SharedChannel {
    fn open(queues: &[QueueHandle], number: u16, limit: u32, part: Part) -> io::Result<Arc<Self>> {
        let id = ChannelId::new(number, 1);
        let mut channels = Vec::with_capacity(queues.len());
        let most = match part {
            Part::TimeWait => TIME_WAIT_SHARE,
            _ => limit.div_ceil(PARTS),
        };
        for queue in queues {
            set_part(queue, part, most);
            channels.push(queue.poller.lock().open_channel(id, limit)?);
        }
        Ok(Arc::new(SharedChannel {
            id,
            part,
            channels: Mutex::new(channels.into()),
            waiting: AtomicBool::new(false),
        }))
    }
}

/// Sets the most frames per flow.
fn set_part(queue: &QueueHandle, part: Part, most: u32) {
    queue.shared.tables().set_share(part as u8, most as u16);
}

/// TCP's channels of one stack.
pub(crate) struct Channels {
    /// The channel of connections without their own.
    pub(crate) shared: Arc<SharedChannel>,
    pub(crate) time_wait: Arc<SharedChannel>,
    /// Connections closed by the application that have frames, left there by a thread of
    /// a host architecture.
    closing: Mutex<Vec<Arc<ConnectionInner>>, rank::Leaf>,
}

impl Channels {
    pub(super) fn open(queues: &[QueueHandle]) -> io::Result<Self> {
        for queue in queues {
            set_part(queue, Part::HalfOpen, HALF_OPEN_SHARE);
        }
        // Those of connections without one of their own, and of connections in TIME-WAIT.
        let [shared, time_wait] = COMMON_CHANNELS;
        Ok(Channels {
            shared: SharedChannel::open(queues, shared, SHARED_LIMIT, Part::Shared)?,
            time_wait: SharedChannel::open(queues, time_wait, TIME_WAIT_LIMIT, Part::TimeWait)?,
            closing: Mutex::default(),
        })
    }
}

impl Endpoint for SharedChannel {
    fn on_frames(self: Arc<Self>, core: &Core, _channel: u16) {
        match self.part {
            Part::TimeWait => Tcp::of(core).on_time_wait_frames(),
            _ => Tcp::of(core).on_shared_frames(core),
        }
    }

    /// The timer of TIME-WAIT; the other channel has none.
    fn on_timer(self: Arc<Self>, core: &Core) {
        Tcp::of(core).expire_time_wait(core);
    }

    fn on_reassembled(&self, core: &Core, _id: ChannelId, datagram: Reassembled) {
        Tcp::of(core).keep_reassembled(core, datagram);
    }
}

impl Tcp {
    // ---- Flows ----------------------------------------------------------------

    /// Enters a flow and its channel into the driver's table. If the table is full, a
    /// connection in TIME-WAIT is evicted. Returns false if none could be.
    pub(crate) fn enter_flow(
        &self,
        core: &Core,
        flow: &FourTuple,
        id: ChannelId,
        part: Part,
    ) -> bool {
        let FourTuple { local, remote } = *flow;
        let enter = || {
            core.tables
                .connect_sharing(Protocol::Tcp, local, remote, id, part as u8)
        };
        match enter() {
            Ok(()) => return true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(_) => return false,
        }
        let waiting = self.channels.time_wait.id;
        let other = core
            .tables
            .replaceable(Protocol::Tcp, local, remote, waiting);
        let Some((local, remote)) = other else {
            return false;
        };
        self.evict_time_wait(core, FourTuple { local, remote });
        enter().is_ok()
    }

    /// Returns true while the driver's table has so many flows that those in TIME-WAIT
    /// must make room.
    pub(super) fn has_many_flows(&self, core: &Core) -> bool {
        core.tables.flows() > FLOWS_MAX
    }

    // ---- Channels that many share -----------------------------------------------

    /// Called when frames arrived in the shared channel. Threads of a host architecture
    /// deliver while they hold their queue, when no protocol may run.
    pub(crate) fn on_shared_frames(&self, core: &Core) {
        if core.receiver.architecture.has_threads() {
            self.defer_shared(core);
        } else {
            self.take_shared(core, &self.channels.shared);
        }
    }

    /// Called when frames arrived in the channel of a connection that the application has
    /// closed.
    pub(super) fn on_closing_frames(&self, core: &Core, connection: &Arc<ConnectionInner>) {
        if !core.receiver.architecture.has_threads() {
            connection.process(core);
        } else if connection.becomes_pending() {
            lock(&self.channels.closing).push(connection.clone());
            self.defer_shared(core);
        }
    }

    /// Leaves the shared channel's frames to a thread that sleeps in the stack, or calls.
    pub(super) fn defer_shared(&self, core: &Core) {
        self.channels.shared.waiting.store(true, Ordering::Release);
        core.receiver.leadership.wake_leader();
        self.helper.wake();
    }

    /// Called when frames arrived in the TIME-WAIT channel: they are processed when
    /// nothing else is due.
    pub(crate) fn on_time_wait_frames(&self) {
        self.channels
            .time_wait
            .waiting
            .store(true, Ordering::Release);
        self.helper.wake();
    }

    /// Returns true when frames were left in a shared channel.
    pub(super) fn has_shared_frames(&self) -> bool {
        let Channels {
            shared, time_wait, ..
        } = &self.channels;
        shared.waiting.load(Ordering::Acquire) || time_wait.waiting.load(Ordering::Acquire)
    }

    /// Runs the protocol on reassembled segments and on deferred frames, those of
    /// TIME-WAIT last.
    pub(super) fn take_waiting_frames(&self, core: &Core) {
        let Channels {
            shared, time_wait, ..
        } = &self.channels;
        for channel in [shared, time_wait] {
            if channel.waiting.load(Ordering::Relaxed)
                && channel.waiting.swap(false, Ordering::AcqRel)
            {
                if channel.part == Part::Shared {
                    self.take_reassembled(core);
                    self.take_closing(core);
                }
                self.take_shared(core, channel);
            }
        }
    }

    fn take_closing(&self, core: &Core) {
        let closing = std::mem::take(&mut *lock(&self.channels.closing));
        for connection in closing {
            connection.clear_pending();
            connection.process(core);
        }
    }

    /// Runs the protocol on the frames in a shared channel.
    fn take_shared(&self, core: &Core, shared: &SharedChannel) {
        let mut frames = Vec::new();
        for (number, queue) in core.receiver.queues.iter().enumerate() {
            {
                let mut channels = lock(&shared.channels);
                let Some(channel) = channels.get_mut(number) else {
                    continue;
                };
                while let Some(frame) = channel.remove() {
                    frames.push(frame);
                }
            }
            self.process_frames(core, &queue.shared, number, shared.id, &mut frames);
        }
        core.tables.renew_shares(shared.part as u8);
    }

    /// Called when a listener has emptied its channel.
    pub(super) fn renew_half_open(&self, core: &Core) {
        core.tables.renew_shares(Part::HalfOpen as u8);
    }
}

#[cfg(test)]
mod tests;
