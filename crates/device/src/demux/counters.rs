//! What the driver program counts, for those who may not write it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::kernel::ClassCounts;
use super::layout::{Class, Counter, QUEUES, Queue};
use super::raw_tables::Memory;

/// The driver program's counters of one queue, to read only. Clones read the same.
#[derive(Clone, Debug)]
pub struct DriverCounters {
    queues: Arc<Memory<[Queue; QUEUES]>>,
    queue: u32,
}

impl DriverCounters {
    pub(super) fn new(queues: Arc<Memory<[Queue; QUEUES]>>, queue: u32) -> Self {
        DriverCounters { queues, queue }
    }

    /// Those of queue 0 in the driver program's map `queues`, which is frozen: this
    /// process need not be one that may write it.
    ///
    /// # Errors
    /// EINVAL when the map is too short; what mapping it reports.
    pub fn of_map(map: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::new(Arc::new(Memory::frozen(map)?), 0))
    }

    /// Those of another queue of the device.
    pub fn of_queue(&self, queue: u32) -> Self {
        Self::new(self.queues.clone(), queue)
    }

    fn queue(&self) -> Option<&Queue> {
        self.queues.get().get(self.queue as usize)
    }

    /// A counter, since the program was loaded.
    pub fn counter(&self, counter: Counter) -> u64 {
        let place = self
            .queue()
            .and_then(|queue| queue.counters.get(counter as usize));
        place.map_or(0, |place| place.load(Relaxed))
    }

    /// Frames for sockets that found no room, in their channel or in all of their
    /// application's.
    pub fn overflowed(&self) -> u64 {
        [Counter::ChannelFull, Counter::ApplicationFull]
            .map(|counter| self.counter(counter))
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// What happened to kernel-bound frames of a class.
    pub fn class(&self, class: Class) -> ClassCounts {
        let bucket = self
            .queue()
            .and_then(|queue| queue.classes.get(class as usize));
        bucket.map_or(ClassCounts::default(), |bucket| ClassCounts {
            passed: bucket.passed.load(Relaxed),
            dropped: bucket.dropped.load(Relaxed),
        })
    }

    /// True where the driver program writes its metadata as the first bytes of each frame
    /// of the queue, not before it.
    pub fn metadata_in_frame(&self) -> bool {
        self.queue()
            .is_some_and(|queue| queue.metadata_in_frame.load(Acquire) != 0)
    }
}
