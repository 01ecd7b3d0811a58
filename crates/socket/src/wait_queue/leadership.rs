//! Which sleeping thread receives for the others.
//!
//! Of the threads that sleep on sockets of one stack, one *leads*: it sleeps on
//! the device too, and when frames arrive it sorts them and wakes the threads that
//! they are for. A leader that returns to its application wakes another sleeper,
//! which leads in its place. So an idle stack has no thread that runs, and a frame
//! wakes one thread, not all.
//!
//! A leader that frames for others alone have woken again and again, such as a thread that
//! only accepts beside one that serves, resigns: else it would be woken for each request
//! before the thread that serves it. That one leads when it sleeps next, and leaves without
//! waking who has resigned; meanwhile the helper looks, as it does for one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{WaitQueue, Waker};
use crate::lock::{Mutex, lock, rank};

/// Who leads: at most one sleeper at a time.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    taken: AtomicBool,
    /// Who has it.
    leader: Mutex<Option<Arc<Waker>>, rank::Leaf>,
    /// Everyone asleep on this stack.
    sleepers: WaitQueue,
}

impl Leadership {
    /// Enters the sleepers; true when the caller leads.
    pub(crate) fn enter(&self, waker: &Arc<Waker>) -> bool {
        self.sleepers.enter(waker, false);
        self.lead(waker)
    }

    /// True while somebody leads.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Makes the leader look at the device again. A thread that is just taking
    /// the lead looks anyway.
    pub(crate) fn wake_leader(&self) {
        if let Some(leader) = &*lock(&self.leader) {
            leader.wake();
        }
    }

    /// Tries to lead, for a sleeper that was woken without data.
    pub(crate) fn lead(&self, waker: &Arc<Waker>) -> bool {
        let leads = !self.taken.swap(true, Ordering::SeqCst);
        if leads {
            *lock(&self.leader) = Some(waker.clone());
        }
        leads
    }

    /// True if another sleeper has been woken and has not looked yet.
    pub(crate) fn has_woken_another(&self, waker: &Arc<Waker>) -> bool {
        self.sleepers.is_other_signalled(waker)
    }

    /// The leader leads no more, and sleeps on. Another that has not resigned is woken to,
    /// if one sleeps.
    pub(crate) fn resign(&self, waker: &Arc<Waker>) {
        waker.has_resigned.store(true, Ordering::Relaxed);
        self.pass_on(waker, true);
    }

    /// Leaves the sleepers, and wakes one of them to lead if nobody does: the
    /// caller did, or was woken to while it was leaving.
    pub(crate) fn leave(&self, waker: &Arc<Waker>, led: bool) {
        self.sleepers.leave(waker);
        waker.has_resigned.store(false, Ordering::Relaxed);
        self.pass_on(waker, led);
    }

    fn pass_on(&self, waker: &Arc<Waker>, led: bool) {
        if led {
            *lock(&self.leader) = None;
            // SeqCst, here and in `lead`: either we see a newcomer's entry, or
            // it sees that nobody leads.
            self.taken.store(false, Ordering::SeqCst);
        }
        if !self.taken.load(Ordering::SeqCst) {
            self.sleepers.wake_other(waker);
        }
    }
}
