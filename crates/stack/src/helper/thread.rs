//! The work of the helper thread.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::owner::Owner;
use super::{BUSY_LEAVES, Helper, LONGEST, QUIET_TICKS, TICK};
use crate::core::Core;
use crate::lock::lock;

/// Rounds that may find frames before it sleeps all the same.
const ROUNDS_TO_ARM: u32 = 4;

impl Helper {
    /// Starts the thread, with the first socket that needs it.
    ///
    /// # Errors
    /// EAGAIN.
    pub fn start(core: &Arc<Core>) -> io::Result<()> {
        let helper = core.helper.clone();
        let mut thread = lock(&helper.thread);
        if !helper.allowed || thread.is_some() || helper.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let (core, own) = (Arc::downgrade(core), helper.clone());
        let owner = Owner::of_this_thread();
        let started = std::thread::Builder::new()
            .name("tidewall-helper".to_owned())
            .spawn(move || own.run(&core, owner))?;
        *thread = Some(started);
        Ok(())
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
            // A sleeping helper must not keep the stack alive.
            drop(core);
            // A signal that interrupts it is a reason to check, too.
            let _ = tidewall_sys::poll_readable(&descriptors, timeout, None, &mut fired);
            self.asleep.store(false, Ordering::SeqCst);
            if fired.first() == Some(&0) {
                self.wake_fd.clear();
            }
            if quiet >= QUIET_TICKS && !fired.is_empty() {
                // New work: the application has a tick to do it.
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
                // A thread that sleeps in the stack does the work.
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

    /// Returns what to sleep on while idle, and for how long.
    fn idle(&self, core: &Core, descriptors: &mut Vec<i32>) -> Option<Duration> {
        if core.receiver.leadership.is_taken() {
            // The leader does all work, and wakes the helper when it leaves. But it does
            // not know of timers that others arm.
            let next = core.next_timer(core.now());
            return next.map(|next| next + TICK);
        }
        if !core.receiver.architecture.has_threads() {
            for queue in &core.receiver.queues {
                descriptors.extend(queue.poller.lock().descriptors());
            }
            // The last round arms the device, so that it interrupts for the next frame.
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
        let next = core.next_timer(core.now());
        Some(next.map_or(LONGEST, |next| next.clamp(TICK, LONGEST)))
    }

    /// Returns true when there is work that no thread in the stack may do.
    fn something_waits(&self, core: &Core) -> bool {
        let contexts = lock(&self.contexts);
        core.output.is_due()
            || core.protocols.iter().any(|it| it.has_waiting_frames())
            || core.is_late(core.now())
            || contexts
                .iter()
                .filter_map(Weak::upgrade)
                .any(|context| !context.has_thread_inside() && context.has_unprocessed_frames())
    }

    /// Does what the thread does when it wakes. Returns true if there was any work.
    pub fn attend_now(&self, core: &Core) -> bool {
        if core.receiver.leadership.is_taken() && !self.something_waits(core) {
            // A thread that sleeps in the stack does it.
            return false;
        }
        let waited = self.something_waits(core);
        self.see_to(core) || waited
    }

    /// Does the work that is due. Returns true if there was any.
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
        for protocol in &core.protocols {
            protocol.process_pending(core);
        }
        let due = core.output.is_due() || core.is_late(core.now());
        if core.before_sleep(core.now()) && core.receiver.round(core, false).is_ok() {
            core.flush();
        }
        frames > 0 || due
    }
}
