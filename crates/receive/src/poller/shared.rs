//! The part of a queue that every thread may use, and its channels.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidewall_device::demux::{ApplicationTables, ChannelId, DriverCounters};
use tidewall_device::frame::{Frame, FrameMemory};

use crate::channel::{Receiver, Run, Sender};
use crate::control;
use crate::free::{Chain, FreeStack};
use crate::slots::Slots;

/// Counters of one queue, one for each fate of a frame after the driver.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Frames appended to a channel.
    pub delivered: AtomicU64,
    /// Dropped: the channel was closed while the frame was on its way.
    pub stale: AtomicU64,
    /// Admitted by the driver but never seen: no room in the receive ring or no empty
    /// frame. Their credit was returned.
    pub lost_in_ring: AtomicU64,
    /// Rounds.
    pub rounds: AtomicU64,
    /// Frames that rounds made the driver process, including kernel-bound and dropped
    /// ones; the rest arrived by interrupt.
    pub driven: AtomicU64,
    /// Rounds that found nothing.
    pub empty_rounds: AtomicU64,
    /// Rounds that used up their budget.
    pub exhausted_rounds: AtomicU64,
    /// Wake-ups of the poller by the device.
    pub interrupts: AtomicU64,
    /// Frames that found their channel full.
    pub overflowed: AtomicU64,
    /// Frames of polls that were timed.
    pub timed_frames: AtomicU64,
    /// Time that these polls took, ns.
    pub timed: AtomicU64,
}

/// The part of a queue that every thread may use at once.
#[derive(Debug)]
pub struct Shared {
    pub(super) queue: u32,
    /// The lowest index among the frames that it receives into.
    pub(super) first_frame: u32,
    pub(super) slots: Slots,
    pub(super) free: FreeStack,
    pub(super) ends: Box<[ChannelEnd]>,
    pub(super) memory: FrameMemory,
    pub(super) tables: Arc<ApplicationTables>,
    pub(super) driver: DriverCounters,
    pub(super) counters: QueueCounters,
    /// Held while a host architecture appends, and while a channel closes.
    pub(super) appending: Mutex<()>,
    /// The state of receive control, for observers: written on a change and at the end of
    /// an interval.
    pub(super) control: Mutex<Option<control::State>>,
    pub(super) recorder: control::Recorder,
}

/// The appending side of one channel number.
#[derive(Debug)]
pub(super) struct ChannelEnd {
    /// Id of the channel that is open under this number, 0 when none.
    pub(super) id: AtomicU32,
    pub(super) sender: Sender,
}

/// The removing side of one open channel on one queue; closing returns the number.
#[derive(Debug)]
pub struct Channel {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ChannelId,
    pub(super) receiver: Receiver,
}

impl Shared {
    /// Number of the device queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Frame memory of the queue.
    pub fn memory(&self) -> &FrameMemory {
        &self.memory
    }

    /// Counters since the start.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Records receive control's input.
    pub fn recorder(&self) -> &control::Recorder {
        &self.recorder
    }

    /// The state of receive control here; `None` without it.
    pub fn control(&self) -> Option<control::State> {
        *self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The application's demux tables.
    pub fn tables(&self) -> &Arc<ApplicationTables> {
        &self.tables
    }

    /// The driver program's counters of the queue.
    pub fn driver(&self) -> &DriverCounters {
        &self.driver
    }

    /// Returns frames removed from channel `id`, and their credit: the driver admits as
    /// many again. Costs two atomic operations, however many.
    pub fn give_back(&self, id: ChannelId, done: Done) {
        if done.frames > 0 {
            self.free.put_chain(&self.slots, done.chain);
            self.give_credit(id, done.frames);
        }
    }

    /// Returns credit alone, of datagrams whose frames were returned earlier because
    /// their bytes were copied out.
    pub fn give_credit(&self, id: ChannelId, frames: u32) {
        self.tables.tail_add(self.queue, id.index(), frames);
    }

    /// Returns one frame, without credit.
    pub fn free(&self, frame: Frame) {
        self.free.put(&self.slots, frame);
    }

    /// Appends to a channel for the threads of a host architecture, which enforce its
    /// bound themselves (the driver has counted nothing).
    pub(crate) fn append(&self, id: ChannelId, frame: Frame) -> Result<(), Frame> {
        let _appending = self
            .appending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match self.ends.get(id.index() as usize) {
            Some(end) if end.id.load(Ordering::Acquire) == id.value() => {
                let mut run = Run::default();
                run.add(&self.slots, frame);
                end.sender.append(&self.slots, run);
                self.counters.delivered.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(frame),
        }
    }
}

impl Channel {
    /// The channel's id.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// The queue it is on.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn end(&self) -> Option<&ChannelEnd> {
        self.shared.ends.get(self.id.index() as usize)
    }

    /// True when there is certainly nothing in it.
    pub fn looks_empty(&self) -> bool {
        self.end()
            .is_none_or(|end| end.sender.looks_empty(&self.receiver))
    }

    /// Returns the result of `look` for the oldest frame, which stays in the channel.
    pub fn look<T>(&mut self, look: impl FnOnce(&Frame) -> T) -> Option<T> {
        let end = self.shared.ends.get(self.id.index() as usize)?;
        end.sender
            .look(&self.shared.slots, &mut self.receiver, look)
    }

    /// Removes the oldest frame. [`Shared::give_back`] returns it and its credit.
    pub fn remove(&mut self) -> Option<Frame> {
        let end = self.shared.ends.get(self.id.index() as usize)?;
        end.sender.remove(&self.shared.slots, &mut self.receiver)
    }
}

/// Frames of one channel that the receiver is done with.
#[derive(Debug, Default)]
pub struct Done {
    chain: Chain,
    frames: u32,
}

impl Done {
    /// Adds a frame that was removed from the channel.
    pub fn add(&mut self, shared: &Shared, frame: Frame) {
        self.chain.add(&shared.slots, frame);
        self.frames += 1;
    }
}
