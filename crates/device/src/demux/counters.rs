//! What the driver program counts, for those who may not write it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::kernel::ClassCounts;
use super::layout::{Class, Counter, Device, Queue};
use super::raw_tables::Memory;

/// The driver program's counters of one queue, to read only. Clones read the same.
#[derive(Clone, Debug)]
pub struct DriverCounters {
    device: Arc<Memory<Device>>,
    queue: u32,
}

impl DriverCounters {
    pub(super) fn new(device: Arc<Memory<Device>>, queue: u32) -> Self {
        DriverCounters { device, queue }
    }

    fn queue(&self) -> Option<&Queue> {
        self.device.get().queues.get(self.queue as usize)
    }

    /// A counter, since the program was loaded.
    pub fn counter(&self, counter: Counter) -> u64 {
        let place = self
            .queue()
            .and_then(|queue| queue.counters.get(counter as usize));
        place.map_or(0, |place| place.load(Relaxed))
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
