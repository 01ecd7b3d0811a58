//! Interrupt and softirq of LRP's comparators: two threads with a queue
//! between them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidewall_device::queue::{Interrupt, Received};
use tidewall_sys::WakeFd;

use super::ip_queue::IpQueue;
use super::{Architecture, HostCounters, Occupancy, Posted, Upcalls, find};
use crate::poller::{Poller, Shared};

pub(super) struct InterruptHandler {
    pub(super) architecture: Architecture,
    pub(super) poller: Arc<Mutex<Poller>>,
    pub(super) shared: Arc<Shared>,
    pub(super) upcalls: Arc<Upcalls>,
    pub(super) occupancy: Arc<Occupancy>,
    pub(super) counters: Arc<HostCounters>,
    pub(super) posted: Arc<IpQueue<Posted>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) wake: Arc<WakeFd>,
}

impl Drop for InterruptHandler {
    fn drop(&mut self) {
        // No more frames follow: this ends the softirq.
        self.posted.close();
    }
}

impl InterruptHandler {
    pub(super) fn run(self) {
        let mut interrupt = Interrupt::Masked;
        while !self.stop.load(Ordering::Acquire) {
            let (taken, kernel_delivered, descriptors) = {
                let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
                let taken = poller.take_round(interrupt, |_, received| self.frame(received));
                let taken = taken.map_or(0, |round| round.frames);
                if poller.take_doubt() {
                    (self.upcalls.doubt)();
                }
                (
                    taken,
                    poller.take_kernel_delivered(),
                    if taken == 0 {
                        poller.descriptors()
                    } else {
                        Vec::new()
                    },
                )
            };
            for (kernel_delivered, payload) in kernel_delivered {
                (self.upcalls.kernel_delivered)(kernel_delivered, &payload);
            }
            interrupt = match (taken, interrupt) {
                (0, Interrupt::Masked) => Interrupt::Armed,
                (0, Interrupt::Armed) => {
                    self.wake.wait(&descriptors, None);
                    Interrupt::Masked
                }
                _ => Interrupt::Masked,
            };
        }
    }

    fn frame(&self, received: Received) {
        let Received { frame, metadata } = received;
        match self.architecture {
            Architecture::Bsd => self.post(Posted {
                frame,
                metadata,
                channel: None,
            }),
            Architecture::EarlyDemux => {
                if let Some((id, frame, metadata)) =
                    find(&self.shared, frame, &metadata, &self.counters)
                {
                    if self.occupancy.reserve(&self.shared, id, &self.counters) {
                        self.post(Posted {
                            frame,
                            metadata,
                            channel: Some(id),
                        });
                    } else {
                        self.shared.free(frame);
                    }
                }
            }
            Architecture::Softirq | Architecture::SoftLrp | Architecture::Tidewall => {
                let found = find(&self.shared, frame, &metadata, &self.counters);
                let Some((id, frame, _)) = found else { return };
                if !self.occupancy.reserve(&self.shared, id, &self.counters) {
                    self.shared.free(frame);
                } else if self
                    .occupancy
                    .append(&self.shared, id, frame, &self.counters)
                {
                    (self.upcalls.ready)(id.index());
                }
            }
        }
    }

    fn post(&self, posted: Posted) {
        if let Err(posted) = self.posted.post(posted) {
            self.counters.ip_queue_full.fetch_add(1, Ordering::Relaxed);
            if let Some(id) = posted.channel {
                self.occupancy.release(&self.shared, id);
            }
            self.shared.free(posted.frame);
        }
    }
}

pub(super) struct Softirq {
    pub(super) shared: Arc<Shared>,
    pub(super) upcalls: Arc<Upcalls>,
    pub(super) occupancy: Arc<Occupancy>,
    pub(super) counters: Arc<HostCounters>,
}

impl Softirq {
    pub(super) fn run(self, posted: &IpQueue<Posted>) {
        posted.begin();
        while let Some(Posted {
            frame,
            metadata,
            channel,
        }) = posted.take()
        {
            // The socket queue is checked last in `bsd`, and was checked first
            // in `early-demux`.
            let (id, frame, metadata, reserved) = match channel {
                Some(id) => (id, frame, metadata, true),
                None => match find(&self.shared, frame, &metadata, &self.counters) {
                    Some((id, frame, metadata)) => (id, frame, metadata, false),
                    None => continue,
                },
            };
            if !(self.upcalls.input)(&self.shared, &frame, &metadata) {
                if reserved {
                    self.occupancy.release(&self.shared, id);
                }
                self.shared.free(frame);
            } else if !reserved && !self.occupancy.reserve(&self.shared, id, &self.counters) {
                self.shared.free(frame);
            } else if self
                .occupancy
                .append(&self.shared, id, frame, &self.counters)
            {
                (self.upcalls.ready)(id.index());
            }
        }
    }
}
