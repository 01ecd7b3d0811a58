//! Channels: which endpoint owns each.

use std::io;
use std::sync::Arc;

use tidewall_device::demux::ChannelId;
use tidewall_device::demux::layout::CHANNELS;
use tidewall_receive::poller::{Channel, WAITED};

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::lock::{Mutex, RwLock, lock, rank};
use crate::receiver::QueueHandle;

/// Default for the frames that may wait for a socket, per queue. One poll delivers up to
/// 128, so this is room for several while the application works on a batch.
pub const DEFAULT_RECEIVE_LIMIT: u32 = 512;
/// The channel of fragments without a transport header.
pub const FRAGMENT_CHANNEL: u16 = 1;
/// The first shared channel of a protocol, for sockets without their own, and the second.
pub const COMMON_CHANNELS: [u16; 2] = [2, 3];
/// Channels with numbers from this one on belong to one endpoint each.
pub const FIRST_OWN: u16 = 4;

/// A channel, on every queue.
#[derive(Debug)]
pub struct ChannelSet {
    /// The channel's number and generation.
    pub id: ChannelId,
    /// The channel on each queue, in the order of the queues.
    pub channels: Box<[Channel]>,
}

impl ChannelSet {
    /// Frames that the driver has dropped since the channel was opened, as it was full.
    pub fn dropped(&self, core: &Core) -> u64 {
        let queues = core.receiver.queues.iter();
        let dropped = |queue: &QueueHandle| {
            let queue = queue.shared.queue();
            core.tables.dropped(queue, self.id.index())
        };
        queues.map(dropped).sum()
    }

    /// Returns true when no frame is seen to wait on any queue.
    #[inline]
    pub fn looks_empty(&self) -> bool {
        self.channels.iter().all(Channel::looks_empty)
    }
}

/// All channels of a stack.
pub struct ChannelPool {
    /// By channel number; `None`: the channel is closed.
    endpoints: RwLock<Box<[Owner]>, rank::Endpoints>,
    numbers: Mutex<Numbers, rank::Leaf>,
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
        }
    }
}

impl ChannelPool {
    /// The owner of a channel.
    pub fn endpoint(&self, channel: u16) -> Option<Arc<dyn Endpoint>> {
        let endpoints = self.endpoints.read();
        endpoints.get(usize::from(channel))?.clone()
    }

    /// Sets the owner of a channel; `None`: it is closed.
    pub fn set_endpoint(&self, channel: u16, endpoint: Owner) {
        let mut endpoints = self.endpoints.write();
        let before = endpoints
            .get_mut(usize::from(channel))
            .and_then(|place| std::mem::replace(place, endpoint));
        drop(endpoints);
        // Outside the lock: this may be the last reference.
        drop(before);
    }

    /// Passes on that frames came to a channel. The number carries [`WAITED`] if no
    /// thread waits for them.
    pub fn on_frames(&self, core: &Core, channel: u16) {
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

    /// Copies slow receivers' frames out when frame memory is short, so that other
    /// sockets' frames do not run out. The frames move to buffers of their own size,
    /// lowest priority first. They keep their credit, so the bound on each channel
    /// stands.
    pub fn copy_out(&self, core: &Core) {
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
    pub fn allocate(&self) -> io::Result<ChannelId> {
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
    pub fn open(
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
    pub fn close(&self, queues: &[QueueHandle], set: ChannelSet) {
        for channel in set.channels {
            let queue = queues
                .iter()
                .find(|queue| Arc::ptr_eq(&queue.shared, channel.shared()));
            if let Some(queue) = queue {
                queue.poller.lock().close_channel(channel);
            }
        }
    }
}
