//! Channels that connections borrow.
//!
//! A connection has a channel of its own while there are enough: other flows' frames are not
//! in its way then. When all are lent, the least used of a few goes to the connection that
//! needs one more.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::CHANNELS;
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_receive::poller::Done;
use tidewall_stack::channels::{ChannelSet, FIRST_OWN};
use tidewall_stack::core::Core;
use tidewall_stack::endpoint::Endpoint;
use tidewall_stack::lock::{Mutex, lock, rank};

use super::Tcp;
use super::connection::ConnectionInner;
use super::frames::Deferred;

/// Frames that may wait in a channel of the pool, a queue: two polls' worth of data
/// while the application works on the last one. The window that is advertised keeps to
/// that ([`tidewall_protocol::tcp::Connection::set_receive_room`]), with room left for
/// acknowledgments.
pub(super) const POOLED_LIMIT: u32 = 256;
/// Channels that stay open without an owner.
const POOL_MAX: usize = 64;
/// Channels that are not lent: they are for listeners and UDP sockets.
const RESERVED: usize = 256;
/// Channels among which the least used is looked for.
const SAMPLE: u16 = 16;

/// The channels that connections borrow.
pub(super) struct Lending {
    /// Open, and waiting for their next owner.
    pooled: Mutex<Vec<ChannelSet>, rank::Leaf>,
    /// Owns those meanwhile.
    keeper: Arc<Keeper>,
    /// Channels that are lent or in the pool.
    open: AtomicUsize,
    /// The channel with which the next search for the least used one begins.
    hand: AtomicU16,
}

impl Default for Lending {
    fn default() -> Self {
        Lending {
            pooled: Mutex::default(),
            keeper: Arc::new(Keeper),
            open: AtomicUsize::new(0),
            hand: AtomicU16::new(0),
        }
    }
}

impl Tcp {
    /// Lends a channel to a connection that had `frames` of late: one of the pool or a new
    /// one. When all are lent, it is one that was used less than half as much; frames that
    /// were still in it are kept in `deferred`.
    pub(super) fn lend_channel(
        &self,
        core: &Core,
        frames: u16,
        deferred: &mut Deferred,
    ) -> Option<ChannelSet> {
        let lending = &self.lending;
        if let Some(set) = lock(&lending.pooled).pop() {
            return Some(set);
        }
        let lendable = CHANNELS - usize::from(FIRST_OWN) - RESERVED;
        if lending.open.load(Ordering::Relaxed) >= lendable {
            return self.take_least_used(core, frames, deferred);
        }
        let _binding = lock(&core.binding);
        let id = core.channels.allocate().ok()?;
        let queues = &core.receiver.queues;
        let set = core.channels.open(queues, id, POOLED_LIMIT).ok()?;
        // Before the number is another endpoint's.
        self.keep_channel(core, &set);
        lending.open.fetch_add(1, Ordering::Relaxed);
        Some(set)
    }

    /// Takes the least used channel of a few.
    fn take_least_used(
        &self,
        core: &Core,
        frames: u16,
        deferred: &mut Deferred,
    ) -> Option<ChannelSet> {
        let now = core.now();
        let most = frames.checked_sub(1)? / 2;
        let first = self.lending.hand.fetch_add(SAMPLE, Ordering::Relaxed);
        let mut least = None;
        for step in 0..SAMPLE {
            let number = first.wrapping_add(step) % CHANNELS as u16;
            let Some(connection) = core.channels.endpoint(number).and_then(as_connection) else {
                continue;
            };
            let used = connection.channel_usage(now);
            let Some(used) = used.filter(|&used| used <= most) else {
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
        let set = connection.give_up_channel(core, deferred)?;
        self.counters.channel_taken();
        Some(set)
    }

    /// Makes the pool the owner of a channel.
    pub(super) fn keep_channel(&self, core: &Core, set: &ChannelSet) {
        let keeper = self.lending.keeper.clone();
        core.channels.set_endpoint(set.id.index(), Some(keeper));
    }

    /// Takes a lent channel back. Frames still in it are kept in `deferred`.
    pub(super) fn take_channel_back(
        &self,
        core: &Core,
        mut set: ChannelSet,
        deferred: &mut Deferred,
    ) {
        self.keep_channel(core, &set);
        empty(&mut set, deferred);
        {
            let mut pooled = lock(&self.lending.pooled);
            if pooled.len() < POOL_MAX {
                pooled.push(set);
                return;
            }
        }
        core.channels.set_endpoint(set.id.index(), None);
        core.channels.close(&core.receiver.queues, set);
        self.lending.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An endpoint as a connection, if it is one.
pub(super) fn as_connection(endpoint: Arc<dyn Endpoint>) -> Option<Arc<ConnectionInner>> {
    let endpoint: Arc<dyn Any + Send + Sync> = endpoint;
    endpoint.downcast().ok()
}

/// Moves what is in a channel out of its frames: it is of flows that the channel was for
/// before.
pub(super) fn empty(set: &mut ChannelSet, deferred: &mut Deferred) {
    let id = set.id;
    for channel in &mut set.channels {
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

/// Owns the channels of the pool: frames that come to one are its last owner's.
struct Keeper;

impl Endpoint for Keeper {
    fn on_frames(self: Arc<Self>, core: &Core, channel: u16) {
        Deferred::collect(core, |deferred| {
            let mut pooled = lock(&Tcp::of(core).lending.pooled);
            if let Some(set) = pooled.iter_mut().find(|set| set.id.index() == channel) {
                empty(set, deferred);
            }
        });
    }

    fn on_reassembled(&self, core: &Core, _id: ChannelId, datagram: Reassembled) {
        Tcp::of(core).keep_reassembled(core, datagram);
    }
}

/// How many frames an endpoint had lately: half of them are forgotten each second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    frames: u16,
    /// A second of the stack's time, modulo 2^16.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_forgotten_by_halves() {
        let at = Duration::from_secs;
        let mut usage = Usage::default();
        assert_eq!(usage.frames(at(70_000)), 0);
        usage.add(100, at(70_000));
        usage.add(28, at(70_000));
        assert_eq!(
            [0, 1, 2, 8].map(|later| usage.frames(at(70_000 + later))),
            [128, 64, 32, 0]
        );
        usage.add(1, at(70_001));
        assert_eq!(usage.frames(at(70_002)), 32);
        usage.add(1_000_000, at(70_002));
        assert_eq!(usage.frames(at(70_002)), u16::MAX);
    }
}
