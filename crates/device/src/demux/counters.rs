//! The driver program's counters, for processes that may not write them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::kernel::ClassCounts;
use super::layout::{Class, Counter, QUEUES, Queue};
use super::raw_tables::Memory;

/// Read-only counters of the driver program for one queue. Clones read the same.
#[derive(Clone, Debug)]
pub struct DriverCounters {
    queues: Arc<Memory<[Queue; QUEUES]>>,
    queue: u32,
}

impl DriverCounters {
    pub(super) fn new(queues: Arc<Memory<[Queue; QUEUES]>>, queue: u32) -> Self {
        DriverCounters { queues, queue }
    }

    /// Maps the counters of queue 0 in the driver program's map `queues`. The map is
    /// frozen: this process need not be allowed to write it.
    ///
    /// # Errors
    /// EINVAL when the map is too short; what mapping it reports.
    pub fn of_map(map: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::new(Arc::new(Memory::frozen(map)?), 0))
    }

    /// The counters of another queue of the device.
    pub fn of_queue(&self, queue: u32) -> Self {
        Self::new(self.queues.clone(), queue)
    }

    fn queue(&self) -> Option<&Queue> {
        self.queues.get().get(self.queue as usize)
    }

    /// A counter's value since the program was loaded.
    pub fn counter(&self, counter: Counter) -> u64 {
        let place = self
            .queue()
            .and_then(|queue| queue.counters.get(counter as usize));
        place.map_or(0, |place| place.load(Relaxed))
    }

    /// Frames dropped because the socket's channel, or all channels of its application,
    /// had no room.
    pub fn overflowed(&self) -> u64 {
        [Counter::ChannelFull, Counter::ApplicationFull]
            .map(|counter| self.counter(counter))
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// Kernel-bound frames of a class, passed and dropped.
    pub fn class(&self, class: Class) -> ClassCounts {
        let bucket = self
            .queue()
            .and_then(|queue| queue.classes.get(class as usize));
        bucket.map_or(ClassCounts::default(), |bucket| ClassCounts {
            passed: bucket.passed.load(Relaxed),
            dropped: bucket.dropped.load(Relaxed),
        })
    }

    /// True where the driver program writes its metadata into the first bytes of each
    /// frame of the queue, not before the frame.
    pub fn metadata_in_frame(&self) -> bool {
        self.queue()
            .is_some_and(|queue| queue.metadata_in_frame.load(Acquire) != 0)
    }
}
