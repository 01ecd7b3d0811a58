//! Decides when the device's interrupt is deferred.
//!
//! Polling by the stack needs the deferral: without it each poll ends by enabling the
//! interrupt. The kernel's own traffic pays for it, since after each of its frames the
//! next one waits for the timer. A forwarded TCP stream keeps 0.6 of its throughput
//! (docs/decisions/index.md). So interrupts are deferred while frames for the stack come, and
//! not while few come beside many for the kernel. They stay deferred while most frames
//! for the kernel are dropped beyond its rates: the interrupts would be a flood's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewall_device::demux::layout::{Class, Counter};
use tidewall_receive::control::Waiting;
use tidewall_receive::poller::Poller;

use crate::core::Core;
use crate::lock::{Mutex, lock, rank};

/// Interval of the looks whether frames still come.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Kernel frames per stack frame from which the interrupt is left to the kernel.
const KERNELS: u64 = 8;

/// Whether interrupts are deferred, and the number of frames that defers them.
#[derive(Debug)]
pub struct Deferral {
    deferred: AtomicBool,
    /// Our frames since the last look; counted while nothing is deferred.
    frames: AtomicU64,
    /// The number of frames that defers interrupts.
    needed: AtomicU64,
    /// Held while the device is switched; taken after a queue's poller.
    switch: Mutex<(), rank::Leaf>,
}

impl Deferral {
    /// Creates the state with which a stack starts: interrupts are deferred.
    pub(crate) fn new() -> Self {
        Deferral {
            deferred: true.into(),
            frames: 0.into(),
            needed: 1.into(),
            switch: Mutex::default(),
        }
    }

    /// Returns true while interrupts are deferred.
    pub fn is_on(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    /// Notes that `frames` came for the stack. Returns true when the control thread is to
    /// look again.
    #[inline]
    #[must_use]
    pub fn came(&self, frames: usize, poller: &mut Poller) -> bool {
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
        if self.deferred.swap(deferred, Ordering::Relaxed) != deferred
            && !poller.set_deferral(deferred)
        {
            // The next look, or the next frames, ask again.
            self.deferred.store(!deferred, Ordering::Relaxed);
        }
    }
}

/// The control thread's looks.
#[derive(Debug)]
pub struct DeferralWatch {
    next: Option<Instant>,
    /// At the last look.
    frames: Frames,
}

/// Frames that the driver has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Frames {
    ours: u64,
    /// Frames given to the kernel, and frames dropped for want of a token of their class.
    passed: u64,
    dropped: u64,
}

impl Frames {
    fn of(core: &Core) -> Self {
        let mut sums = Frames::default();
        for queue in &core.receiver.queues {
            let driver = queue.shared.driver();
            for ours in [driver.counter(Counter::Channel), driver.overflowed()] {
                sums.ours = sums.ours.wrapping_add(ours);
            }
            for class in Class::ALL {
                let counts = driver.class(class);
                sums.passed = sums.passed.wrapping_add(counts.passed);
                sums.dropped = sums.dropped.wrapping_add(counts.dropped);
            }
        }
        sums
    }

    fn since(self, before: Self) -> Self {
        Frames {
            ours: self.ours.wrapping_sub(before.ours),
            passed: self.passed.wrapping_sub(before.passed),
            dropped: self.dropped.wrapping_sub(before.dropped),
        }
    }

    /// Returns the number of stack frames that outweigh the kernel's: if fewer come, the
    /// interrupt is left to the kernel. Zero while most frames for the kernel are a flood
    /// that the driver program drops.
    fn worth(self) -> u64 {
        if self.dropped > self.passed {
            0
        } else {
            self.passed / KERNELS
        }
    }
}

impl DeferralWatch {
    /// Creates a watch whose first look is after one interval.
    pub(crate) fn new() -> Self {
        DeferralWatch {
            next: Some(Instant::now() + LOOK_EVERY),
            frames: Frames::default(),
        }
    }

    /// Returns the time until the next look; `None`: until frames come.
    pub fn timeout(&self) -> Option<Duration> {
        let next = self.next?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks, if a look is due: changes the deferral, and what it takes to defer again.
    pub fn poll(&mut self, core: &Core) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        if core.receiver.architecture.has_threads() {
            // The threads set the deferral themselves.
            self.next = None;
            return;
        }
        let deferral = &core.receiver.deferral;
        let frames = Frames::of(core);
        let came = frames.since(std::mem::replace(&mut self.frames, frames));
        if self.next.is_some() {
            let few = core.receiver.waiting() == Waiting::Sleep(Duration::ZERO)
                && came.ours < came.worth();
            if let Some(queue) = core.receiver.queues.first()
                && deferral.is_on()
                && (came.ours == 0 || few)
            {
                deferral.set(false, &mut queue.poller.lock());
            }
            deferral.frames.store(0, Ordering::Relaxed);
            let needed = came.worth().max(1);
            deferral.needed.store(needed, Ordering::Relaxed);
        }
        let looks = deferral.is_on() || deferral.needed.load(Ordering::Relaxed) > 1;
        self.next = looks.then(|| now + LOOK_EVERY);
    }
}
