//! The thread that sees to connections while the application is elsewhere.
//!
//! The protocol runs when the application calls. One that computes for long, or
//! never calls again, would leave its peers without acknowledgments, and data
//! unsent. So when no thread of the application has been here for a tick, this
//! one does what is due: at the application's own priority, on its bill. It inherits the
//! priority of the thread that starts it, and follows its changes ([`owner`]).
//!
//! While the application calls, the thread looks a hundred times a second; while
//! nothing happens it sleeps. An application thread that sleeps in the stack
//! does everything itself. Each thread that leaves the stack wakes the helper if that
//! sleeps; where threads leave it several times per look the helper does not sleep, as
//! looking costs less than being woken.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lock::{Mutex, lock, rank};
use crate::readiness::poll_context::PollContext;
use crate::stack::Core;
use owner::Owner;
use tidewall_sys::WakeFd;

mod owner;

/// How long the application may stay away before its connections are seen to.
const TICK: Duration = Duration::from_millis(8);
/// Ticks without anything to do after which the thread sleeps.
const QUIET_TICKS: u32 = 3;
/// Threads that leave the stack between two looks, from which on the helper goes on
/// looking although one sleeps there.
const BUSY_LEAVES: u32 = 2;
/// A sleeping thread looks after this long all the same, where nobody sleeps on
/// the device.
const LONGEST: Duration = Duration::from_millis(250);

/// Rounds that may find frames before it sleeps all the same.
const ROUNDS_TO_ARM: u32 = 4;

/// The thread, and how it is woken.
pub(crate) struct Helper {
    allowed: bool,
    wake_fd: WakeFd,
    /// It sleeps, and must be woken to see anything.
    asleep: AtomicBool,
    ended: AtomicBool,
    /// Calls of the application.
    calls: AtomicU32,
    /// How often a thread that slept in the stack has left it.
    leaves: AtomicU32,
    /// How often the helper was woken.
    #[cfg(test)]
    woken: AtomicU32,
    thread: Mutex<Option<JoinHandle<()>>, rank::Leaf>,
    /// Selectors, epoll sets and the like.
    contexts: Mutex<Vec<Weak<PollContext>>, rank::Helper>,
}

impl std::fmt::Debug for Helper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

impl Helper {
    pub(crate) fn new(allowed: bool) -> io::Result<Self> {
        Ok(Helper {
            allowed,
            wake_fd: WakeFd::new()?,
            asleep: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            leaves: AtomicU32::new(0),
            #[cfg(test)]
            woken: AtomicU32::new(0),
            thread: Mutex::default(),
            contexts: Mutex::default(),
        })
    }

    /// Starts the thread, with the first TCP socket.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<()> {
        let helper = core.tcp.helper.clone();
        let mut thread = lock(&helper.thread);
        if !helper.allowed || thread.is_some() || helper.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let (core, own) = (Arc::downgrade(core), helper.clone());
        let owner = Owner::of_this_thread();
        let started = std::thread::Builder::new()
            .name("tidewall-tcp".to_owned())
            .spawn(move || own.run(&core, owner))?;
        *thread = Some(started);
        Ok(())
    }

    pub(crate) fn is_running(&self) -> bool {
        lock(&self.thread).is_some()
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake_fd.signal();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// The application calls: it does what is due itself.
    pub(crate) fn application_is_here(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls of the application so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Something waits that the application may not see to soon.
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            #[cfg(test)]
            self.woken.fetch_add(1, Ordering::Relaxed);
            self.wake_fd.signal();
        }
    }

    /// A thread that slept in the stack leaves it: from now on nobody may be there who
    /// sees to connections.
    pub(crate) fn thread_leaves(&self) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn add_context(&self, context: &Arc<PollContext>) {
        lock(&self.contexts).push(Arc::downgrade(context));
    }

    pub(crate) fn remove_context(&self, context: &Arc<PollContext>) {
        lock(&self.contexts).retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(context)));
    }

    fn run(&self, core: &Weak<Core>, mut owner: Owner) {
        let mut seen = self.calls.load(Ordering::Relaxed);
        let mut left = self.leaves.load(Ordering::Relaxed);
        let mut quiet = 0;
        let mut fired = Vec::new();
        loop {
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let Some(core) = core.upgrade() else { return };
            if let Some(warning) = owner.follow() {
                core.netdev.warn(warning);
            }
            let mut descriptors = vec![self.wake_fd.descriptor()];
            let timeout = if quiet < QUIET_TICKS {
                Some(TICK)
            } else {
                self.asleep.store(true, Ordering::SeqCst);
                self.idle(&core, &mut descriptors)
            };
            let core_again = Arc::downgrade(&core);
            // Nobody may find the stack alive because we sleep.
            drop(core);
            // A signal that interrupts it is a reason to look, too.
            let _ = tidewall_sys::poll_readable(&descriptors, timeout, None, &mut fired);
            self.asleep.store(false, Ordering::SeqCst);
            if fired.first() == Some(&0) {
                self.wake_fd.clear();
            }
            if quiet >= QUIET_TICKS && !fired.is_empty() {
                // Something begins: the application has a tick to see to it.
                quiet = 0;
                seen = self.calls.load(Ordering::Relaxed);
                continue;
            }
            let Some(core) = core_again.upgrade() else {
                return;
            };
            let calls = self.calls.load(Ordering::Relaxed);
            let leaves = self.leaves.load(Ordering::Relaxed);
            let left_since = leaves.wrapping_sub(std::mem::replace(&mut left, leaves));
            if core.receiver.leadership.is_taken() && !self.something_waits(&core) {
                // A thread that sleeps in the stack does.
                quiet = if left_since < BUSY_LEAVES {
                    QUIET_TICKS
                } else {
                    0
                };
            } else if calls != seen || self.see_to(&core) {
                quiet = 0;
            } else {
                quiet = quiet.saturating_add(1);
            }
            seen = calls;
        }
    }

    /// What to sleep on while nothing happens, and for how long.
    fn idle(&self, core: &Core, descriptors: &mut Vec<i32>) -> Option<Duration> {
        if core.receiver.leadership.is_taken() {
            // The leader does everything, and says so
            // when it leaves. But it does not know of timers that others arm.
            let next = core.tcp.next_timer(core.now());
            return next.map(|next| next + TICK);
        }
        if !core.receiver.architecture.has_threads() {
            for queue in &core.receiver.queues {
                descriptors.extend(queue.poller.lock().descriptors());
            }
            // So that the device says when something comes: armed with the last.
            for _ in 0..ROUNDS_TO_ARM {
                if core
                    .receiver
                    .round(core, true)
                    .is_ok_and(|round| round.armed)
                {
                    break;
                }
            }
            for queue in &core.receiver.queues {
                queue.poller.lock().refill_to_sleep();
            }
        }
        let next = core.tcp.next_timer(core.now());
        Some(next.map_or(LONGEST, |next| next.clamp(TICK, LONGEST)))
    }

    /// True when something waits that no thread in the stack may see to.
    fn something_waits(&self, core: &Core) -> bool {
        let contexts = lock(&self.contexts);
        core.tcp.sending.is_due()
            || core.tcp.has_pending()
            || core.tcp.has_shared_frames()
            || core.tcp.is_late(core.now())
            || contexts
                .iter()
                .filter_map(Weak::upgrade)
                .any(|context| !context.has_thread_inside() && context.has_unprocessed_frames())
    }

    /// As the thread when it wakes. True if there was anything to do.
    pub(crate) fn attend_now(&self, core: &Core) -> bool {
        if core.receiver.leadership.is_taken() && !self.something_waits(core) {
            // Who sleeps in the stack sees to it.
            return false;
        }
        let waited = self.something_waits(core);
        self.see_to(core) || waited
    }

    /// Does what is due. True if there was anything.
    fn see_to(&self, core: &Core) -> bool {
        let asleep_in_stack = core.receiver.leadership.is_taken();
        let frames = if asleep_in_stack {
            0
        } else {
            core.receiver
                .round(core, false)
                .map_or(0, |progress| progress.frames)
        };
        let contexts: Vec<_> = {
            let contexts = lock(&self.contexts);
            contexts.iter().filter_map(Weak::upgrade).collect()
        };
        for context in contexts {
            if !context.has_thread_inside() {
                context.process(core);
            }
        }
        core.tcp.process_pending(core);
        let due = core.tcp.sending.is_due() || core.tcp.is_late(core.now());
        if core.tcp.before_sleep(core, core.now()) && core.receiver.round(core, false).is_ok() {
            core.tcp.flush(core);
        }
        frames > 0 || due
    }
}

#[cfg(test)]
mod tests;
