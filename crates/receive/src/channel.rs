//! Channels: one queue of frames per socket and device queue.
//!
//! A channel is a linked list through the frames themselves, so an idle one costs twelve
//! bytes and a full one no more. The poller of the device queue appends; the socket's
//! receiver removes; neither waits for the other. The bound is not enforced here but by
//! the driver, which stops admitting frames at the channel's credit (see
//! [`crate::credit`]).
//!
//! The list is Vyukov's intrusive queue ("Intrusive MPSC node-based queue",
//! 1024cores.net): a stub node allows the last frame to leave without another one
//! arriving.

use tidewall_device::frame::Frame;

use crate::raw;
use crate::slots::{NIL, Slots};
use crate::sync::{AtomicU32, Ordering};

/// The appending end, for the queue's poller.
#[derive(Debug)]
pub struct Sender {
    newest: AtomicU32,
    stub: u32,
}

/// The removing end, for one receiver at a time.
#[derive(Debug)]
pub struct Receiver {
    oldest: u32,
}

/// Frames to append with one atomic operation.
#[derive(Debug)]
pub struct Run {
    first: u32,
    last: u32,
    length: u32,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            first: NIL,
            last: NIL,
            length: 0,
        }
    }
}

impl Run {
    /// Adds a frame at the end.
    pub fn add(&mut self, slots: &Slots, frame: Frame) {
        let node = raw::store(slots, frame);
        slots.set_next(node, NIL, Ordering::Relaxed);
        if self.first == NIL {
            self.first = node;
        } else {
            slots.set_next(self.last, node, Ordering::Relaxed);
        }
        self.last = node;
        self.length += 1;
    }

    /// Frames in the run.
    pub fn length(&self) -> u32 {
        self.length
    }
}

impl Sender {
    /// An empty channel, number `channel` of its queue.
    pub fn new(slots: &Slots, channel: u32) -> Self {
        let stub = slots.frames() + channel;
        Sender {
            newest: AtomicU32::new(stub),
            stub,
        }
    }

    /// The removing end of an empty channel. Create only one: two would return the same
    /// frame twice. This is for the owner of the channel table only.
    pub fn receiver(&self) -> Receiver {
        Receiver { oldest: self.stub }
    }

    /// Appends a run.
    pub fn append(&self, slots: &Slots, run: Run) {
        if run.first != NIL {
            self.link(slots, run.first, run.last);
        }
    }

    fn link(&self, slots: &Slots, first: u32, last: u32) {
        // AcqRel: publishes the run's own links and contents to the receiver
        // that reads `newest`, and orders us after the previous appender.
        let previous = self.newest.swap(last, Ordering::AcqRel);
        // Release: the receiver reaches `first` through this link.
        slots.set_next(previous, first, Ordering::Release);
    }

    /// True when there is certainly nothing to remove; the receiver's view may be newer.
    /// Cheap enough to check before every poll.
    pub fn looks_empty(&self, receiver: &Receiver) -> bool {
        receiver.oldest == self.stub && self.newest.load(Ordering::Acquire) == self.stub
    }

    /// Returns the result of `look` for the oldest frame, which stays; `None` as for
    /// [`Sender::remove`].
    pub fn look<T>(
        &self,
        slots: &Slots,
        receiver: &mut Receiver,
        look: impl FnOnce(&Frame) -> T,
    ) -> Option<T> {
        let oldest = match receiver.oldest {
            stub if stub == self.stub => slots.next(stub, Ordering::Acquire),
            oldest => oldest,
        };
        if oldest == NIL {
            return None;
        }
        Some(raw::glance(slots, oldest, look))
    }

    /// Removes the oldest frame. `None` when the channel is empty, or when its
    /// next frame is being appended at this moment.
    pub fn remove(&self, slots: &Slots, receiver: &mut Receiver) -> Option<Frame> {
        let mut oldest = receiver.oldest;
        let mut next = slots.next(oldest, Ordering::Acquire);
        if oldest == self.stub {
            if next == NIL {
                return None;
            }
            receiver.oldest = next;
            oldest = next;
            next = slots.next(oldest, Ordering::Acquire);
        }
        if next == NIL {
            if self.newest.load(Ordering::Acquire) != oldest {
                return None;
            }
            // `oldest` is the only node left: append the stub, so that it can leave.
            slots.set_next(self.stub, NIL, Ordering::Relaxed);
            self.link(slots, self.stub, self.stub);
            next = slots.next(oldest, Ordering::Acquire);
            if next == NIL {
                return None;
            }
        }
        receiver.oldest = next;
        Some(raw::retrieve(slots, oldest))
    }
}
