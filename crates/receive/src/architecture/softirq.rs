//! The receive softirq of RHIP's analysis (§II.C and §III): Linux's since NAPI.
//!
//! The interrupt only wakes it. It takes at most Bp frames per round through the protocol
//! to the socket queues, and no application runs meanwhile. A round that empties the
//! device ends with the interrupt enabled again (mode 3). One that does not leaves the
//! rest to ksoftirqd, which runs behind the application but completes the rounds that it
//! begins (modes 1 and 2).
//!
//! Both are one thread here, at SCHED_FIFO ahead of the application. To run behind it,
//! the thread waits after a round of leftovers until the application goes to sleep,
//! having emptied its queue, or has used its quantum. (Tried: an ordinary thread of nice
//! 19 between the rounds. Time at SCHED_FIFO is not charged to it, so the scheduler owes
//! it time for ever and runs it first.)

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidewall_device::queue::{Interrupt, InterruptModeration, KernelDelivered, Received};
use tidewall_sys::WakeFd;

use super::{HostCounters, Occupancy, Upcalls, find};
use crate::control::{self, Activity, TIMER_BATCH, TIMER_BATCHES, Waiting};
use crate::poller::{self, Poller, Shared};

/// Longest time that leftovers wait behind an application that does not sleep. A time
/// slice of the paper's kernel was a hundred milliseconds at nice 0; a service that
/// answers within that is not what it starves here.
const QUANTUM: Duration = Duration::from_millis(10);
/// How often a stopped softirq (a budget of zero) checks the queues again.
const STOPPED: Duration = Duration::from_micros(100);

/// The softirq's wait behind the application.
#[derive(Debug, Default)]
pub(super) struct Behind {
    waits: AtomicBool,
    wake: OnceLock<WakeFd>,
}

impl Behind {
    /// Creates what [`Behind::wait`] waits on.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let _ = self.wake.set(WakeFd::new()?);
        Ok(())
    }

    /// Waits until [`Behind::run`], for `timeout` at most.
    fn wait(&self, timeout: Duration) {
        let Some(wake) = self.wake.get() else {
            return;
        };
        self.waits.store(true, Ordering::SeqCst);
        wake.wait(&[], Some(timeout));
        self.waits.store(false, Ordering::SeqCst);
        wake.clear();
    }

    /// Ends a wait in progress.
    pub(super) fn run(&self) {
        if self.waits.load(Ordering::SeqCst)
            && let Some(wake) = self.wake.get()
        {
            wake.signal();
        }
    }
}

pub(super) struct ReceiveSoftirq {
    pub(super) poller: Arc<Mutex<Poller>>,
    pub(super) shared: Arc<Shared>,
    pub(super) upcalls: Arc<Upcalls>,
    pub(super) occupancy: Arc<Occupancy>,
    pub(super) counters: Arc<HostCounters>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) wake: Arc<WakeFd>,
}

/// The effects of a round on the channels.
#[derive(Default)]
struct Sorted {
    /// Channels that received frames.
    ready: Vec<u16>,
    buffer_use: f32,
}

/// The action after a round.
enum Next {
    /// Leftovers: behind the application.
    Behind,
    /// No frame may be taken: run behind the application, after a pause.
    Stopped,
    /// The device is empty: sleep until it interrupts. That is with the next frame or, if
    /// true, when its timer expires.
    Sleep(Vec<i32>, bool),
    /// It was empty until the interrupt was enabled.
    Again,
}

impl ReceiveSoftirq {
    pub(super) fn run(self) {
        let behind = &self.counters.behind;
        let start = Instant::now();
        let mut interrupted = false;
        let mut sent = 0;
        let mut timer_batches = 0u32;
        let mut coalesced = false;
        while !self.stop.load(Ordering::Acquire) {
            let before = std::mem::replace(&mut sent, (self.upcalls.sent)());
            let activity = Activity {
                interrupted,
                sent: sent.wrapping_sub(before),
            };
            interrupted = false;
            timer_batches = timer_batches.wrapping_add(1);
            let delivered =
                activity.interrupted && coalesced && !timer_batches.is_multiple_of(TIMER_BATCHES);
            let next = match delivered {
                true => self.delivered(start, activity),
                false => None,
            };
            match next.unwrap_or_else(|| self.round(start, activity)) {
                Next::Behind => behind.wait(QUANTUM),
                Next::Stopped => behind.wait(STOPPED),
                Next::Sleep(descriptors, timer) => {
                    coalesced = timer;
                    self.wake.wait(&descriptors, None);
                    interrupted = true;
                }
                Next::Again => {}
            }
        }
    }

    /// Takes what the device's timer delivered, where receive control coalesces. `None`:
    /// poll, since it does not coalesce, or more frames may be left.
    fn delivered(&self, start: Instant, activity: Activity) -> Option<Next> {
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = |poller: &mut Poller, sorted: &mut Sorted| {
            poller.take_delivered(|_, received| self.frame(received, sorted))
        };
        let (seen, waiting) = self.take(&mut poller, taken, start, activity);
        let coalesces = matches!(waiting, Waiting::Sleep(interval) if !interval.is_zero());
        let few = (1..TIMER_BATCH as u32).contains(&seen.frames);
        (coalesces && few && !poller.is_stopped()).then(|| Next::Sleep(poller.descriptors(), true))
    }

    fn round(&self, start: Instant, activity: Activity) -> Next {
        let (next, kernel_delivered) = {
            let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
            let next = self.polls(&mut poller, start, activity);
            if poller.take_doubt() {
                (self.upcalls.doubt)();
            }
            next
        };
        for (kernel_delivered, payload) in kernel_delivered {
            (self.upcalls.kernel_delivered)(kernel_delivered, &payload);
        }
        next
    }

    /// Makes a masked poll and, if it leaves nothing behind, a second one that re-enables
    /// the interrupt.
    fn polls(
        &self,
        poller: &mut Poller,
        start: Instant,
        activity: Activity,
    ) -> (Next, Vec<(KernelDelivered, Vec<u8>)>) {
        // A timer that expired between two rounds would make softirq poll the device,
        // without a budget.
        poller.set_moderation(InterruptModeration::BusyPoll);
        let poll = |interrupt| {
            move |poller: &mut Poller, sorted: &mut Sorted| self.polled(poller, interrupt, sorted)
        };
        let (seen, waiting) = self.take(poller, poll(Interrupt::Masked), start, activity);
        // This must precede reading the descriptors: each arriving probe adds its own.
        let kernel_delivered = poller.take_kernel_delivered();
        if poller.is_stopped() {
            return (Next::Stopped, kernel_delivered);
        }
        if seen.exhausted {
            return (Next::Behind, kernel_delivered);
        }
        let interval = match waiting {
            Waiting::Sleep(interval) => interval,
            Waiting::Poll => Duration::ZERO,
        };
        poller.set_moderation(InterruptModeration::DeferFor(interval));
        // A poll starts the timer, or, if it is armed and finds nothing, enables the
        // interrupt.
        let interrupt = if interval.is_zero() {
            Interrupt::Armed
        } else {
            Interrupt::Masked
        };
        let (seen, _) = self.take(poller, poll(interrupt), start, Activity::default());
        let next = if poller.is_stopped() {
            Next::Stopped
        } else if seen.exhausted {
            Next::Behind
        } else if interval.is_zero() && seen.frames > 0 {
            Next::Again
        } else {
            Next::Sleep(poller.descriptors(), !interval.is_zero())
        };
        (next, kernel_delivered)
    }

    fn polled(
        &self,
        poller: &mut Poller,
        interrupt: Interrupt,
        sorted: &mut Sorted,
    ) -> poller::Round {
        // A device that went away delivers nothing.
        poller
            .take_round(interrupt, |_, received| self.frame(received, sorted))
            .unwrap_or_default()
    }

    /// Makes one round and reports it to receive control.
    fn take(
        &self,
        poller: &mut Poller,
        taken: impl FnOnce(&mut Poller, &mut Sorted) -> poller::Round,
        start: Instant,
        activity: Activity,
    ) -> (control::Round, Waiting) {
        let mut sorted = Sorted::default();
        let full = self.counters.channel_full.load(Ordering::Relaxed);
        let taken = taken(poller, &mut sorted);
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

    /// Runs protocol and socket queue for one frame.
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
