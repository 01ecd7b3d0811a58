//! Sleeping until a socket has something, without a thread of our own.
//!
//! Of the threads that sleep on sockets of one stack, one *leads*: it sleeps on
//! the device too, and when frames arrive it sorts them and wakes the others'
//! waiters. A leader that returns to its application wakes a follower, which
//! leads in its place. So an idle stack has no thread that runs, and a frame
//! wakes one thread, not all.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::raw::poll::WakeFd;

/// A sleeping thread.
#[derive(Debug)]
pub(crate) struct Waiter {
    wake: WakeFd,
    /// Whether `wake` is signalled, so that nobody pays for a system call that
    /// would change nothing.
    signalled: AtomicBool,
}

impl Waiter {
    pub(crate) fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.wake.signal();
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.wake.descriptor()
    }

    /// Takes the signal back; look for what it was about afterwards, since one
    /// that comes meanwhile is taken back too.
    pub(crate) fn clear(&self) {
        self.wake.clear();
        self.signalled.store(false, Ordering::Release);
    }

    /// As [`Waiter::clear`], without a system call when there is nothing to
    /// take back. A signal that is just being given may survive it.
    pub(crate) fn clear_if_signalled(&self) {
        if self.signalled.load(Ordering::Acquire) {
            self.clear();
        }
    }
}

thread_local! {
    static WAITER: RefCell<Option<Arc<Waiter>>> = const { RefCell::new(None) };
}

/// The calling thread's waiter; one descriptor a thread, made at first use.
pub(crate) fn thread_waiter() -> io::Result<Arc<Waiter>> {
    WAITER.with(|slot| {
        let mut slot = slot.borrow_mut();
        match &*slot {
            Some(waiter) => Ok(waiter.clone()),
            None => {
                let waiter = Arc::new(Waiter {
                    wake: WakeFd::new()?,
                    signalled: AtomicBool::new(false),
                });
                Ok(slot.insert(waiter).clone())
            }
        }
    })
}

/// Something that a thread can sleep on.
pub(crate) trait Waitable {
    /// Who is woken when frames come for it.
    fn waiters(&self) -> &WaitList;

    /// True when there is something to look at; the sleeper then returns.
    fn has_input(&self) -> bool;

    /// A descriptor of the kernel that is slept on too; -1: none.
    fn kernel_descriptor(&self) -> i32 {
        -1
    }

    /// The descriptor was readable.
    fn kernel_has_input(&self) {}
}

/// Threads that wait for one thing.
#[derive(Debug, Default)]
pub(crate) struct WaitList {
    /// Length of `list`; read without the lock by those who wake.
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Waiter>>>,
}

impl WaitList {
    pub(crate) fn enter(&self, waiter: &Arc<Waiter>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(waiter.clone());
        self.count.store(list.len(), Ordering::SeqCst);
    }

    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| !Arc::ptr_eq(other, waiter));
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// Wakes everyone here. A waiter looks for data after `enter` and before
    /// it sleeps, so data made visible before this call is never missed: the
    /// fences order "append, then read count" against "count, then look".
    pub(crate) fn wake_all(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        WAITER.with(|slot| {
            // A sleeper that sorts frames itself looks for data before it goes
            // on sleeping: it need not wake itself, at two system calls each.
            let own = slot.try_borrow().ok();
            let own = own.as_ref().and_then(|own| own.as_ref());
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            for waiter in list.iter() {
                if !own.is_some_and(|own| Arc::ptr_eq(own, waiter)) {
                    waiter.signal();
                }
            }
        });
    }

    /// Wakes one thread other than `except`.
    pub(crate) fn wake_one(&self, except: &Arc<Waiter>) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiter) = list.iter().find(|other| !Arc::ptr_eq(other, except)) {
            waiter.signal();
        }
    }
}

/// Who leads. Taken by at most one sleeper at a time.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    taken: AtomicBool,
    /// Who has it.
    leader: Mutex<Option<Arc<Waiter>>>,
    /// Everyone asleep on this stack.
    sleepers: WaitList,
}

impl Leadership {
    /// Enters the sleepers; true when the caller leads.
    pub(crate) fn sleep(&self, waiter: &Arc<Waiter>) -> bool {
        self.sleepers.enter(waiter);
        self.lead(waiter)
    }

    /// True while somebody leads.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Makes the leader look at the device again. A thread that is just taking
    /// the lead looks anyway.
    pub(crate) fn nudge(&self) {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = &*leader {
            leader.signal();
        }
    }

    /// Tries to lead, for a sleeper that was woken without data.
    pub(crate) fn lead(&self, waiter: &Arc<Waiter>) -> bool {
        let leads = !self.taken.swap(true, Ordering::SeqCst);
        if leads {
            *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiter.clone());
        }
        leads
    }

    /// Leaves the sleepers, and hands leadership on if nobody has it: the
    /// caller's own, or one that was handed to the caller while it was leaving.
    pub(crate) fn wake(&self, waiter: &Arc<Waiter>, led: bool) {
        self.sleepers.leave(waiter);
        if led {
            *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
            // SeqCst, here and in `lead`: either we see a newcomer's entry, or
            // it sees that nobody leads.
            self.taken.store(false, Ordering::SeqCst);
        }
        if !self.taken.load(Ordering::SeqCst) {
            self.sleepers.wake_one(waiter);
        }
    }
}

#[cfg(test)]
mod tests;
