//! The receive softirq of RHIP's analysis (§II.C and §III): Linux's since NAPI.
//!
//! The interrupt only wakes it. It takes at most Bp frames a round through the
//! protocol to the socket queues, and no application runs meanwhile. A round
//! that empties the device ends with the interrupt enabled again (mode 3); one
//! that does not leaves the rest to ksoftirqd, which runs behind the
//! application but whose rounds, once begun, are completed (modes 1 and 2).
//!
//! Both are one thread here: at SCHED_FIFO ahead of the application, and
//! between the rounds of leftovers at the lowest ordinary priority behind it
//! (nice 19, as ksoftirqd was in the paper's 2.6.18).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidewall_device::queue::{Interrupt, Patience, Received};

use super::{HostCounters, Occupancy, SOFTIRQ_PRIORITY, Upcalls, find};
use crate::control::{self, Activity, Waiting};
use crate::poller::{Poller, Shared};
use crate::raw::{self, WakeFd};

/// How often a stopped softirq (a budget of zero) looks at the queues again.
const STOPPED: Duration = Duration::from_micros(100);

pub(super) struct ReceiveSoftirq {
    pub(super) poller: Arc<Mutex<Poller>>,
    pub(super) shared: Arc<Shared>,
    pub(super) upcalls: Arc<Upcalls>,
    pub(super) occupancy: Arc<Occupancy>,
    pub(super) counters: Arc<HostCounters>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) wake: Arc<WakeFd>,
}

/// What a round did to the channels.
#[derive(Default)]
struct Sorted {
    /// Channels that got frames.
    ready: Vec<u16>,
    buffer_use: f32,
}

/// What is to be done after a round.
enum Next {
    /// Leftovers: behind the application.
    Behind,
    /// Nothing may be taken: behind it, and not at once.
    Stopped,
    /// The device is empty: sleep until it interrupts.
    Sleep(Vec<i32>),
    /// It was empty until the interrupt was enabled.
    Again,
}

impl ReceiveSoftirq {
    pub(super) fn run(self) {
        let start = Instant::now();
        let mut behind = false;
        let mut interrupted = false;
        let mut sent = 0;
        while !self.stop.load(Ordering::Acquire) {
            if behind {
                // A round is not preempted, whoever runs it.
                let _ = raw::set_fifo(SOFTIRQ_PRIORITY);
            }
            let before = std::mem::replace(&mut sent, (self.upcalls.sent)());
            let activity = Activity {
                interrupted,
                sent: sent.wrapping_sub(before),
            };
            let next = self.round(start, activity);
            interrupted = false;
            match next {
                Next::Behind | Next::Stopped => {
                    behind = raw::set_background().is_ok();
                    if matches!(next, Next::Stopped) {
                        self.wake.wait(&[], Some(STOPPED));
                    }
                }
                Next::Sleep(descriptors) => {
                    behind = false;
                    self.wake.wait(&descriptors, None);
                    interrupted = true;
                }
                Next::Again => behind = false,
            }
        }
    }

    fn round(&self, start: Instant, activity: Activity) -> Next {
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, waiting) = self.take(&mut poller, Interrupt::Masked, start, activity);
        // Before the descriptors are asked for: each lesson has its own.
        let mut payload = Vec::new();
        while let Some(stray) = poller.take_stray(&mut payload) {
            (self.upcalls.stray)(stray, &payload);
        }
        match waiting {
            _ if poller.is_stopped() => Next::Stopped,
            _ if seen.exhausted => {
                // A timer that expired between two rounds would have the device
                // polled in softirq, without a budget.
                poller.set_patience(Patience::Long);
                Next::Behind
            }
            Waiting::Sleep(interval) if !interval.is_zero() => {
                if poller.set_patience(Patience::Sleep(interval)) {
                    // The timer that runs has another length.
                    Next::Again
                } else {
                    Next::Sleep(poller.descriptors())
                }
            }
            Waiting::Sleep(_) | Waiting::Poll => {
                poller.set_patience(Patience::Sleep(Duration::ZERO));
                // Only a poll that finds nothing has enabled the interrupt.
                let activity = Activity::default();
                let (seen, _) = self.take(&mut poller, Interrupt::Armed, start, activity);
                if seen.exhausted {
                    Next::Behind
                } else if seen.frames > 0 {
                    Next::Again
                } else {
                    Next::Sleep(poller.descriptors())
                }
            }
        }
    }

    /// One round, told to receive control.
    fn take(
        &self,
        poller: &mut Poller,
        interrupt: Interrupt,
        start: Instant,
        activity: Activity,
    ) -> (control::Round, Waiting) {
        let mut sorted = Sorted::default();
        let full = self.counters.channel_full.load(Ordering::Relaxed);
        let taken = poller
            .take_round(interrupt, |_, received| self.frame(received, &mut sorted))
            .unwrap_or_default();
        let overflowed = self
            .counters
            .channel_full
            .load(Ordering::Relaxed)
            .wrapping_sub(full);
        for &channel in &sorted.ready {
            (self.upcalls.ready)(channel);
        }
        let buffer_use = match overflowed {
            _ if poller.is_stopped() => self.fullest(poller),
            0 => sorted.buffer_use,
            _ => 1.0,
        };
        let seen = control::Round {
            frames: taken.frames as u32,
            exhausted: taken.exhausted,
            buffer_use,
            overflowed: u32::try_from(overflowed).unwrap_or(u32::MAX),
        };
        let waiting = poller
            .control(start.elapsed(), &seen, activity)
            .unwrap_or(Waiting::Sleep(Duration::ZERO));
        (seen, waiting)
    }

    /// Protocol and socket queue for one frame.
    fn frame(&self, received: Received, sorted: &mut Sorted) {
        let Received { frame, metadata } = received;
        let Some((id, frame, metadata)) = find(&self.shared, frame, &metadata, &self.counters)
        else {
            return;
        };
        if !(self.upcalls.input)(&self.shared, &frame, &metadata)
            || !self.occupancy.reserve(&self.shared, id, &self.counters)
        {
            self.shared.free(frame);
            return;
        }
        if self
            .occupancy
            .append(&self.shared, id, frame, &self.counters)
        {
            let (waiting, limit) = self.occupancy.waiting(&self.shared, id);
            sorted.buffer_use = sorted
                .buffer_use
                .max(waiting as f32 / limit.max(1) as f32)
                .min(1.0);
            if !sorted.ready.contains(&id.index()) {
                sorted.ready.push(id.index());
            }
        }
    }

    /// Use of the fullest socket queue.
    fn fullest(&self, poller: &Poller) -> f32 {
        poller
            .open_channels()
            .map(|id| {
                let (waiting, limit) = self.occupancy.waiting(&self.shared, id);
                (waiting as f32 / limit.max(1) as f32).min(1.0)
            })
            .fold(0.0, f32::max)
    }
}
