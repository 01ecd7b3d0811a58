//! Channels: which endpoint owns each, and those that are open for the next one.
//!
//! A connection has a channel of its own while there are enough: then nobody
//! else's frames are in its way. When all are lent, the least used of a few goes to
//! the endpoint that needs one more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::CHANNELS;
use tidewall_receive::poller::{Channel, Done, WAITED};

use crate::endpoint::Endpoint;
use crate::lock::{Mutex, RwLock, lock, rank};
use crate::receiver::QueueHandle;
use crate::stack::Core;
use crate::tcp::frames::Deferred;

/// Channel that gets fragments without a transport header.
pub(crate) const FRAGMENT_CHANNEL: u16 = 1;
/// Channel that connections without one of their own share.
pub(crate) const SHARED_CHANNEL: u16 = 2;
/// Channel that connections in TIME-WAIT share.
pub(crate) const TIME_WAIT_CHANNEL: u16 = 3;
/// Channels with numbers from this one on belong to one endpoint each.
const FIRST_OWN: u16 = TIME_WAIT_CHANNEL + 1;
/// Frames that may wait in a channel of the pool, a queue: two polls' worth of data
/// while the application works on the last one. The window that is advertised keeps to
/// that ([`tidewall_protocol::tcp::Connection::set_receive_room`]), with room left for
/// acknowledgments.
pub(crate) const POOLED_LIMIT: u32 = 256;
/// Channels that stay open without an owner.
const POOL_MAX: usize = 64;
/// Channels that are not lent: they are for listeners and UDP sockets.
const RESERVED: usize = 256;
/// Channels among which the least used is looked for.
const SAMPLE: u16 = 16;

/// A channel, on every queue.
#[derive(Debug)]
pub(crate) struct ChannelSet {
    pub(crate) id: ChannelId,
    pub(crate) channels: Box<[Channel]>,
}

impl ChannelSet {
    /// Frames that the driver has dropped since the channel was opened, as it was full.
    pub(crate) fn dropped(&self, core: &Core) -> u64 {
        let queues = core.receiver.queues.iter();
        let dropped = |queue: &QueueHandle| {
            let queue = queue.shared.queue();
            core.tables.dropped(queue, self.id.index())
        };
        queues.map(dropped).sum()
    }

    pub(crate) fn looks_empty(&self) -> bool {
        self.channels.iter().all(Channel::looks_empty)
    }

    /// Moves what is in it out of its frames: it is of flows that it was for before.
    pub(crate) fn empty(&mut self, deferred: &mut Deferred) {
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

/// All channels of a stack.
pub(crate) struct ChannelPool {
    /// By channel number; `None`: the channel is closed.
    endpoints: RwLock<Box<[Owner]>, rank::Endpoints>,
    numbers: Mutex<Numbers, rank::Leaf>,
    /// Open, and waiting for their next owner.
    pooled: Mutex<Vec<ChannelSet>, rank::Leaf>,
    /// Owns those meanwhile.
    keeper: Arc<Keeper>,
    /// Channels that are lent or in the pool.
    open: AtomicUsize,
    /// Where the search for the least used one goes on.
    hand: AtomicU16,
}

type Owner = Option<Arc<dyn Endpoint>>;

struct Numbers {
    next: u16,
    generations: Box<[u16]>,
}

impl Default for ChannelPool {
    fn default() -> Self {
        ChannelPool {
            endpoints: RwLock::new((0..CHANNELS).map(|_| None).collect()),
            numbers: Mutex::new(Numbers {
                next: 0,
                generations: vec![1; CHANNELS].into(),
            }),
            pooled: Mutex::default(),
            keeper: Arc::new(Keeper),
            open: AtomicUsize::new(0),
            hand: AtomicU16::new(0),
        }
    }
}

impl ChannelPool {
    /// The owner of a channel.
    pub(crate) fn endpoint(&self, channel: u16) -> Option<Arc<dyn Endpoint>> {
        let endpoints = self.endpoints.read();
        endpoints.get(usize::from(channel))?.clone()
    }

    /// Sets the owner of a channel; `None`: it is closed.
    pub(crate) fn set_endpoint(&self, channel: u16, endpoint: Owner) {
        let mut endpoints = self.endpoints.write();
        let before = endpoints
            .get_mut(usize::from(channel))
            .and_then(|place| std::mem::replace(place, endpoint));
        drop(endpoints);
        // Outside the lock: this may be the last reference.
        drop(before);
    }

    /// Frames came to a channel, which has [`WAITED`] beside its number if nobody waits
    /// for them.
    pub(crate) fn on_frames(&self, core: &Core, channel: u16) {
        let number = channel & !WAITED;
        let Some(endpoint) = self.endpoint(number) else {
            return;
        };
        if channel == number {
            endpoint.on_frames(core, number);
        } else {
            endpoint.on_waited_frames(core, number);
        }
    }

    /// Frame memory is short: slow receivers' frames move to buffers of their own
    /// size, lowest priority first, so that nobody else's frames run out. They keep
    /// their credit, so the bound on each channel stands.
    pub(crate) fn copy_out(&self, core: &Core) {
        let mut endpoints: Vec<_> = {
            let endpoints = self.endpoints.read();
            endpoints.iter().flatten().cloned().collect()
        };
        endpoints.sort_by_key(|endpoint| endpoint.priority());
        for endpoint in endpoints {
            endpoint.copy_out(core);
        }
    }

    /// A free channel number with a new generation.
    ///
    /// # Errors
    /// ENFILE when all are open.
    pub(crate) fn allocate(&self) -> io::Result<ChannelId> {
        let endpoints = self.endpoints.read();
        let mut numbers = lock(&self.numbers);
        let Numbers { next, generations } = &mut *numbers;
        for _ in FIRST_OWN..CHANNELS as u16 {
            let number = FIRST_OWN + *next % (CHANNELS as u16 - FIRST_OWN);
            *next = next.wrapping_add(1);
            let free = endpoints
                .get(usize::from(number))
                .is_some_and(Option::is_none);
            if let (true, Some(generation)) = (free, generations.get_mut(usize::from(number))) {
                *generation = generation.wrapping_add(1).max(1);
                return Ok(ChannelId::new(number, *generation));
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENFILE))
    }

    /// Opens a channel on every queue.
    ///
    /// # Errors
    /// ENOMEM; it is then open on none.
    pub(crate) fn open(
        &self,
        queues: &[QueueHandle],
        id: ChannelId,
        limit: u32,
    ) -> io::Result<ChannelSet> {
        let mut channels = Vec::with_capacity(queues.len());
        for queue in queues {
            match queue.poller.lock().open_channel(id, limit) {
                Ok(channel) => channels.push(channel),
                Err(error) => {
                    let channels = channels.into();
                    self.close(queues, ChannelSet { id, channels });
                    return Err(error);
                }
            }
        }
        let channels = channels.into();
        Ok(ChannelSet { id, channels })
    }

    /// Closes a channel on every queue.
    pub(crate) fn close(&self, queues: &[QueueHandle], set: ChannelSet) {
        for channel in set.channels {
            let queue = queues
                .iter()
                .find(|queue| Arc::ptr_eq(&queue.shared, channel.shared()));
            if let Some(queue) = queue {
                queue.poller.lock().close_channel(channel);
            }
        }
    }

    /// Lends a channel to an endpoint that had `frames` of late: one of the pool, a
    /// new one, or, when all are lent, one that was used less than half as much. What
    /// was still in that is kept in `deferred`.
    pub(crate) fn lend(
        &self,
        core: &Core,
        frames: u16,
        deferred: &mut Deferred,
    ) -> Option<ChannelSet> {
        if let Some(set) = lock(&self.pooled).pop() {
            return Some(set);
        }
        let lendable = CHANNELS - usize::from(FIRST_OWN) - RESERVED;
        if self.open.load(Ordering::Relaxed) >= lendable {
            return self.least_used(core, frames, deferred);
        }
        let _binding = lock(&core.binding);
        let id = self.allocate().ok()?;
        let set = self.open(&core.receiver.queues, id, POOLED_LIMIT).ok()?;
        // Before the number is another endpoint's.
        self.keep(&set);
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(set)
    }

    /// The least used channel of a few.
    fn least_used(&self, core: &Core, frames: u16, deferred: &mut Deferred) -> Option<ChannelSet> {
        let now = core.now();
        let most = frames.checked_sub(1)? / 2;
        let first = self.hand.fetch_add(SAMPLE, Ordering::Relaxed);
        let mut least = None;
        for step in 0..SAMPLE {
            let number = first.wrapping_add(step) % CHANNELS as u16;
            let Some(endpoint) = self.endpoint(number) else {
                continue;
            };
            let Some(used) = endpoint.channel_usage(now).filter(|&used| used <= most) else {
                continue;
            };
            if least.as_ref().is_none_or(|&(other, _)| used < other) {
                least = Some((used, endpoint));
            }
            if used == 0 {
                break;
            }
        }
        let (_, endpoint) = least?;
        let set = endpoint.give_up_channel(core, deferred)?;
        core.tcp.counters.channel_taken();
        Some(set)
    }

    /// Makes the pool the owner of a channel.
    pub(crate) fn keep(&self, set: &ChannelSet) {
        self.set_endpoint(set.id.index(), Some(self.keeper.clone()));
    }

    /// Takes a lent channel back. What is still in it is kept in `deferred`.
    pub(crate) fn give_back(&self, core: &Core, mut set: ChannelSet, deferred: &mut Deferred) {
        self.keep(&set);
        set.empty(deferred);
        {
            let mut pooled = lock(&self.pooled);
            if pooled.len() < POOL_MAX {
                pooled.push(set);
                return;
            }
        }
        self.set_endpoint(set.id.index(), None);
        self.close(&core.receiver.queues, set);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Owns the channels of the pool: frames that come to one are its last owner's.
struct Keeper;

impl Endpoint for Keeper {
    fn on_frames(self: Arc<Self>, core: &Core, channel: u16) {
        Deferred::collect(core, |deferred| {
            let mut pooled = lock(&core.channels.pooled);
            if let Some(set) = pooled.iter_mut().find(|set| set.id.index() == channel) {
                set.empty(deferred);
            }
        });
    }
}

/// How many frames an endpoint had lately: half of them are forgotten each second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    frames: u16,
    /// Of the stack's time, modulo 2^16.
    second: u16,
}

impl Usage {
    /// As of now.
    pub(crate) fn frames(self, now: Duration) -> u16 {
        let passed = (now.as_secs() as u16).wrapping_sub(self.second);
        self.frames.checked_shr(passed.into()).unwrap_or(0)
    }

    pub(crate) fn add(&mut self, frames: usize, now: Duration) {
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
