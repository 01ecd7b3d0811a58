//! When the device's interrupt is deferred.
//!
//! What we poll needs the deferral: without it each poll ends by enabling the
//! interrupt. The kernel's own traffic pays for it, since after each of its frames the
//! next one waits for the timer: a forwarded TCP stream keeps 0.6 of its throughput
//! (docs/decisions.md). So interrupts are deferred while frames of ours come, and not
//! while few come beside many of the kernel's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::{Class, Counter};
use tidewall_receive::control::Waiting;
use tidewall_receive::poller::Poller;

use crate::lock::{Mutex, lock, rank};
use crate::stack::Core;

/// How often it is looked whether frames still come.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many of the kernel's frames for one of ours, and the interrupt is the kernel's.
const KERNELS: u64 = 8;

/// Whether interrupts are deferred, and what it takes that they are.
#[derive(Debug)]
pub(crate) struct Deferral {
    deferred: AtomicBool,
    /// Our frames since the last look; counted while nothing is deferred.
    frames: AtomicU64,
    /// So many defer interrupts.
    needed: AtomicU64,
    /// Held while the device is switched; taken after a queue's poller.
    switch: Mutex<(), rank::Leaf>,
}

impl Deferral {
    pub(crate) fn new() -> Self {
        Deferral {
            deferred: true.into(),
            frames: 0.into(),
            needed: 1.into(),
            switch: Mutex::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    /// `frames` of ours came. True when the control thread is to look again.
    #[inline]
    #[must_use]
    pub(crate) fn came(&self, frames: usize, poller: &mut Poller) -> bool {
        frames > 0 && !self.is_on() && self.count(frames as u64, poller)
    }

    #[cold]
    fn count(&self, frames: u64, poller: &mut Poller) -> bool {
        let before = self.frames.fetch_add(frames, Ordering::Relaxed);
        let enough = before + frames >= self.needed.load(Ordering::Relaxed);
        if enough {
            self.set(true, poller);
        }
        enough
    }

    fn set(&self, deferred: bool, poller: &mut Poller) {
        let _switch = lock(&self.switch);
        if self.deferred.swap(deferred, Ordering::Relaxed) != deferred {
            poller.set_deferral(deferred);
        }
    }
}

/// The control thread's looks.
#[derive(Debug)]
pub(crate) struct DeferralWatch {
    next: Option<Instant>,
    /// Ours, and what the driver gave to the kernel, at the last look.
    frames: [u64; 2],
}

impl DeferralWatch {
    pub(crate) fn new() -> Self {
        DeferralWatch {
            next: Some(Instant::now() + LOOK_EVERY),
            frames: [0; 2],
        }
    }

    /// How long to wait until the next look; `None`: until frames come.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let next = self.next?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn poll(&mut self, core: &Core) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        if core.receiver.architecture.has_threads() {
            // They say so themselves.
            self.next = None;
            return;
        }
        let deferral = &core.receiver.deferral;
        let frames = frames(core);
        let before = std::mem::replace(&mut self.frames, frames);
        let [ours, kernels] = std::array::from_fn(|of| frames[of].wrapping_sub(before[of]));
        if self.next.is_some() {
            let few = core.receiver.waiting() == Waiting::Sleep(Duration::ZERO)
                && kernels > ours * KERNELS;
            if let Some(queue) = core.receiver.queues.first()
                && deferral.is_on()
                && (ours == 0 || few)
            {
                deferral.set(false, &mut queue.poller.lock());
            }
            deferral.frames.store(0, Ordering::Relaxed);
            let needed = (kernels / KERNELS).max(1);
            deferral.needed.store(needed, Ordering::Relaxed);
        }
        let looks = deferral.is_on() || deferral.needed.load(Ordering::Relaxed) > 1;
        self.next = looks.then(|| now + LOOK_EVERY);
    }
}

fn frames(core: &Core) -> [u64; 2] {
    let mut sums = [0u64; 2];
    for queue in &core.receiver.queues {
        let driver = queue.shared.driver();
        for counter in [Counter::Channel, Counter::ChannelFull] {
            sums[0] = sums[0].wrapping_add(driver.counter(counter));
        }
        for class in Class::ALL {
            sums[1] = sums[1].wrapping_add(driver.class(class).passed);
        }
    }
    sums
}
