//! Channels of TCP: each connection's own, and those that many share.
//!
//! A connection has a channel of its own while there are enough: then nobody
//! else's frames are in its way. When they are all lent, the least used of a few
//! goes to the connection that needs one more. Connections without one share a channel, and
//! those in TIME-WAIT another, small and emptied last. In both the driver gives
//! each flow a part only ([`ApplicationTables::set_share`](tidewall_device::demux::ApplicationTables::set_share)),
//! as it does half-open ones in their listener's.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::{CHANNELS, FLOW_BUCKETS, FLOW_WAYS, Protocol};
use tidewall_protocol::tcp::FourTuple;
use tidewall_receive::poller::{Channel, Done};

use super::connection::ConnectionInner;
use super::frames::Deferred;
use crate::owner::Owner;
use crate::stack::{Core, QueueHandle, lock};

/// Number of the channel that connections without one of their own share.
pub(crate) const SHARED_CHANNEL: u16 = 2;
/// Number of the channel that connections in TIME-WAIT share.
pub(crate) const TIME_WAIT_CHANNEL: u16 = 3;
/// Channels with numbers up to this one are not anybody's alone.
pub(crate) const LAST_SHARED: u16 = TIME_WAIT_CHANNEL;
/// Frames that may wait in the shared channel, a queue.
const SHARED_LIMIT: u32 = 1024;
/// Frames that may wait in TIME-WAIT's: last acknowledgments, and SYNs of clients
/// that come again, as many as may come in one burst.
const TIME_WAIT_LIMIT: u32 = 256;
/// Frames of one flow in TIME-WAIT: more want an acknowledgment, of which few are
/// sent.
const TIME_WAIT_SHARE: u32 = 4;
/// A flow gets one frame in so many of another channel that it shares.
const PARTS: u32 = 16;
/// Frames that may wait for one connection, a queue: a poll's worth of data
/// while the application works on the last one. Acknowledgments have room
/// beside it when the advertised window is full, since the window counts bytes
/// that have not been read wherever they are.
const CONNECTION_LIMIT: u32 = 256;
/// Channels that stay open for the next connections.
const POOL_MAX: usize = 64;
/// Channels that connections leave to listeners and UDP sockets.
const RESERVED: usize = 256;
/// Channels among which the least used is looked for.
const SAMPLE: u16 = 16;
/// Flows from which on single buckets of the driver's table overflow: up to there
/// connections in TIME-WAIT may stay.
const FLOWS_MAX: usize = FLOW_BUCKETS * FLOW_WAYS / 10 * 7;

/// What a flow may have of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// All of it.
    All = 0,
    /// A part of the shared channel.
    Shared = 1,
    /// A part of TIME-WAIT's.
    TimeWait = 2,
    /// A part of its listener's, being half open.
    HalfOpen = 3,
}

/// A channel, on every queue.
#[derive(Debug)]
pub(crate) struct ChannelSet {
    pub(crate) id: ChannelId,
    pub(crate) channels: Box<[Channel]>,
}

impl ChannelSet {
    pub(crate) fn looks_empty(&self) -> bool {
        self.channels.iter().all(Channel::looks_empty)
    }

    /// Moves what is in it out of its frames: it is of flows that it was for before.
    pub(super) fn empty(&mut self, deferred: &mut Deferred) {
        let id = self.id;
        for channel in &mut self.channels {
            if channel.looks_empty() {
                continue;
            }
            let shared = channel.shared().clone();
            let mut done = Done::default();
            while let Some(frame) = channel.remove() {
                deferred.keep(&shared, &frame);
                done.add(&shared, frame);
            }
            shared.give_back(id, done);
        }
    }
}

/// A channel that many flows share.
pub(crate) struct SharedChannel {
    pub(crate) id: ChannelId,
    part: Part,
    channels: Mutex<Box<[Channel]>>,
    /// Frames wait for a thread that may run the protocol.
    waiting: AtomicBool,
}

impl SharedChannel {
    fn open(queues: &[QueueHandle], number: u16, limit: u32, part: Part) -> io::Result<Self> {
        let id = ChannelId::new(number, 1);
        let mut channels = Vec::with_capacity(queues.len());
        for queue in queues {
            set_part(queue, part, limit);
            channels.push(lock(&queue.poller).open_channel(id, limit)?);
        }
        Ok(SharedChannel {
            id,
            part,
            channels: Mutex::new(channels.into()),
            waiting: AtomicBool::new(false),
        })
    }
}

fn set_part(queue: &QueueHandle, part: Part, limit: u32) {
    let most = match part {
        Part::TimeWait => TIME_WAIT_SHARE,
        _ => limit.div_ceil(PARTS),
    };
    queue.shared.tables().set_share(part as u8, most as u16);
}

/// TCP's channels of one stack.
pub(crate) struct Channels {
    /// Of connections that have none.
    pub(crate) shared: SharedChannel,
    pub(crate) time_wait: SharedChannel,
    /// Connections that the application has closed, with frames that a thread of a
    /// host architecture has left there.
    closing: Mutex<Vec<Arc<ConnectionInner>>>,
    /// Open, and waiting for the next connection.
    pool: Mutex<Vec<ChannelSet>>,
    /// Open for connections.
    open: AtomicUsize,
    /// Where the search for the least used one goes on.
    hand: AtomicU16,
}

impl Channels {
    pub(super) fn open(queues: &[QueueHandle]) -> io::Result<Self> {
        for queue in queues {
            set_part(queue, Part::HalfOpen, super::listener::CHANNEL_LIMIT);
        }
        Ok(Channels {
            shared: SharedChannel::open(queues, SHARED_CHANNEL, SHARED_LIMIT, Part::Shared)?,
            time_wait: SharedChannel::open(
                queues,
                TIME_WAIT_CHANNEL,
                TIME_WAIT_LIMIT,
                Part::TimeWait,
            )?,
            closing: Mutex::default(),
            pool: Mutex::default(),
            open: AtomicUsize::new(0),
            hand: AtomicU16::new(0),
        })
    }

    /// Channels that connections may still open.
    fn left(&self) -> usize {
        let others = usize::from(LAST_SHARED) + 1;
        (CHANNELS - others).saturating_sub(self.open.load(Ordering::Relaxed))
    }
}

/// How many frames a connection had lately: half of them are forgotten each
/// second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    frames: u16,
    /// Of the stack's time, modulo 2^16.
    second: u16,
}

impl Usage {
    /// As of now.
    pub(super) fn frames(self, now: Duration) -> u16 {
        let passed = (now.as_secs() as u16).wrapping_sub(self.second);
        self.frames.checked_shr(passed.into()).unwrap_or(0)
    }

    pub(super) fn add(&mut self, frames: usize, now: Duration) {
        let more = u16::try_from(frames).unwrap_or(u16::MAX);
        *self = Usage {
            frames: self.frames(now).saturating_add(more),
            second: now.as_secs() as u16,
        };
    }
}

impl Core {
    // ---- Flows ----------------------------------------------------------------

    /// Enters a flow and its channel into the driver's table. Where that has no
    /// room a connection in TIME-WAIT makes some. False if none could.
    pub(crate) fn tcp_enter_flow(&self, flow: &FourTuple, id: ChannelId, part: Part) -> bool {
        let FourTuple { local, remote } = *flow;
        let enter = || {
            self.tables
                .connect_sharing(Protocol::Tcp, local, remote, id, part as u8)
        };
        match enter() {
            Ok(()) => return true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(_) => return false,
        }
        let waiting = self.tcp.channels.time_wait.id;
        let other = self
            .tables
            .replaceable(Protocol::Tcp, local, remote, waiting);
        let Some((local, remote)) = other else {
            return false;
        };
        self.tcp_evict_time_wait(FourTuple { local, remote });
        enter().is_ok()
    }

    /// True while the driver's table has so many flows that those in TIME-WAIT must
    /// make room.
    pub(super) fn tcp_has_many_flows(&self) -> bool {
        self.tables.flows() > FLOWS_MAX
    }

    // ---- Channels that many share -----------------------------------------------

    /// Frames came to the shared channel. Threads of a host architecture deliver
    /// while they hold their queue, where no protocol may run.
    pub(crate) fn tcp_shared_ready(&self) {
        if self.architecture.has_threads() {
            self.tcp_shared_later();
        } else {
            self.tcp_take_shared(&self.tcp.channels.shared);
        }
    }

    /// Frames came to the channel of a connection that the application has closed.
    pub(super) fn tcp_closing_ready(&self, connection: &Arc<ConnectionInner>) {
        if !self.architecture.has_threads() {
            connection.process(self);
        } else if connection.becomes_pending() {
            lock(&self.tcp.channels.closing).push(connection.clone());
            self.tcp_shared_later();
        }
    }

    /// Leaves the shared channel's frames to a thread that sleeps in the stack, or calls.
    pub(super) fn tcp_shared_later(&self) {
        self.tcp
            .channels
            .shared
            .waiting
            .store(true, Ordering::Release);
        self.leadership.wake_leader();
        self.tcp.helper.wake();
    }

    /// Frames came to TIME-WAIT's channel: their turn is when nothing else is due.
    pub(crate) fn tcp_time_wait_ready(&self) {
        self.tcp
            .channels
            .time_wait
            .waiting
            .store(true, Ordering::Release);
        self.tcp.helper.wake();
    }

    /// True when frames were left in a shared channel.
    pub(super) fn tcp_has_shared_frames(&self) -> bool {
        let Channels {
            shared, time_wait, ..
        } = &self.tcp.channels;
        shared.waiting.load(Ordering::Acquire) || time_wait.waiting.load(Ordering::Acquire)
    }

    /// Runs the protocol on reassembled segments and on frames that were left to
    /// later, TIME-WAIT's last.
    pub(super) fn tcp_take_left_frames(&self) {
        let Channels {
            shared, time_wait, ..
        } = &self.tcp.channels;
        for channel in [shared, time_wait] {
            if channel.waiting.load(Ordering::Relaxed)
                && channel.waiting.swap(false, Ordering::AcqRel)
            {
                if channel.part == Part::Shared {
                    self.tcp_take_reassembled();
                    self.tcp_take_closing();
                }
                self.tcp_take_shared(channel);
            }
        }
    }

    fn tcp_take_closing(&self) {
        let closing = std::mem::take(&mut *lock(&self.tcp.channels.closing));
        for connection in closing {
            connection.clear_pending();
            connection.process(self);
        }
    }

    /// Runs the protocol on what waits in a shared channel.
    fn tcp_take_shared(&self, shared: &SharedChannel) {
        let mut frames = Vec::new();
        for (number, queue) in self.queues.iter().enumerate() {
            {
                let mut channels = lock(&shared.channels);
                let Some(channel) = channels.get_mut(number) else {
                    continue;
                };
                while let Some(frame) = channel.remove() {
                    frames.push(frame);
                }
            }
            self.tcp_take(&queue.shared, number, shared.id, &mut frames);
        }
        self.tables.renew_shares(shared.part as u8);
    }

    /// A listener has emptied its channel.
    pub(super) fn tcp_renew_half_open(&self) {
        self.tables.renew_shares(Part::HalfOpen as u8);
    }

    // ---- Channels of connections --------------------------------------------------

    /// Frames came to a channel that waits for its next connection: they are
    /// its last one's.
    pub(crate) fn tcp_take_pooled(&self, number: u16) {
        let mut deferred = Deferred::default();
        {
            let mut pool = lock(&self.tcp.channels.pool);
            if let Some(set) = pool.iter_mut().find(|set| set.id.index() == number) {
                set.empty(&mut deferred);
            }
        }
        self.tcp_run_deferred(deferred);
    }

    /// A channel for a connection that had `frames` of late: a new one, or, when
    /// all are lent, one that was used less than half as much. What was still in
    /// that is put off until `deferred`.
    pub(crate) fn tcp_channel(&self, frames: u16, deferred: &mut Deferred) -> Option<ChannelSet> {
        if let Some(set) = lock(&self.tcp.channels.pool).pop() {
            return Some(set);
        }
        if self.tcp.channels.left() <= RESERVED {
            return self.tcp_least_used_channel(frames, deferred);
        }
        let _binding = lock(&self.binding);
        let id = self.allocate_channel().ok()?;
        let channels = self.open_channels(id, CONNECTION_LIMIT).ok()?.into();
        let set = ChannelSet { id, channels };
        // Before the number is somebody else's.
        self.set_owner(id.index(), Owner::Pooled);
        self.tcp.channels.open.fetch_add(1, Ordering::Relaxed);
        Some(set)
    }

    /// The least used channel of a few.
    fn tcp_least_used_channel(&self, frames: u16, deferred: &mut Deferred) -> Option<ChannelSet> {
        let now = self.now();
        let most = frames.checked_sub(1)? / 2;
        let first = self.tcp.channels.hand.fetch_add(SAMPLE, Ordering::Relaxed);
        let mut least = None;
        for step in 0..SAMPLE {
            let Owner::Connection(connection) =
                self.owner(first.wrapping_add(step) % CHANNELS as u16)
            else {
                continue;
            };
            let Some(used) = connection.channel_usage(now).filter(|&used| used <= most) else {
                continue;
            };
            if least.as_ref().is_none_or(|&(other, _)| used < other) {
                least = Some((used, connection));
            }
            if used == 0 {
                break;
            }
        }
        let (_, connection) = least?;
        let set = connection.give_up_channel(self, deferred)?;
        self.tcp.counters.channel_taken();
        Some(set)
    }

    /// Takes a channel back. What is still in it is put off until `deferred`.
    pub(crate) fn tcp_return_channel(&self, mut set: ChannelSet, deferred: &mut Deferred) {
        self.set_owner(set.id.index(), Owner::Pooled);
        set.empty(deferred);
        {
            let mut pool = lock(&self.tcp.channels.pool);
            if pool.len() < POOL_MAX {
                pool.push(set);
                return;
            }
        }
        self.set_owner(set.id.index(), Owner::None);
        self.close_channels(set);
        self.tcp.channels.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Opens a channel on every queue.
    ///
    /// # Errors
    /// ENOMEM; it is then open on none.
    pub(crate) fn open_channels(&self, id: ChannelId, limit: u32) -> io::Result<Vec<Channel>> {
        let mut channels = Vec::with_capacity(self.queues.len());
        for queue in &self.queues {
            match lock(&queue.poller).open_channel(id, limit) {
                Ok(channel) => channels.push(channel),
                Err(error) => {
                    let channels = channels.into();
                    self.close_channels(ChannelSet { id, channels });
                    return Err(error);
                }
            }
        }
        Ok(channels)
    }

    /// Closes a channel on every queue.
    pub(crate) fn close_channels(&self, set: ChannelSet) {
        for channel in set.channels {
            let queue = self
                .queues
                .iter()
                .find(|queue| std::sync::Arc::ptr_eq(&queue.shared, channel.shared()));
            if let Some(queue) = queue {
                queue
                    .poller
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .close_channel(channel);
            }
        }
    }
}

#[cfg(test)]
mod tests;
