//! Sleeping until a socket has something, without a thread of our own.
//!
//! Of the threads that sleep on sockets of one stack, one *leads*: it sleeps on
//! the device too, and when frames arrive it sorts them and wakes the others'
//! waiters. A leader that returns to its application wakes a follower, which
//! leads in its place. So an idle stack has no thread that runs, and a frame
//! wakes one thread, not all.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw::poll::WakeFd;

/// A sleeping thread.
#[derive(Debug)]
pub(crate) struct Waiter {
    wake_fd: WakeFd,
    /// Whether `wake` is signalled, so that nobody pays for a system call that
    /// would change nothing.
    signalled: AtomicBool,
}

impl Waiter {
    /// Wakes it. False when it has been woken and has not looked yet.
    pub(crate) fn wake(&self) -> bool {
        let first = !self.signalled.swap(true, Ordering::SeqCst);
        if first {
            self.wake_fd.signal();
        }
        first
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.wake_fd.descriptor()
    }

    /// Takes the signal back; look for what it was about afterwards, since one
    /// that comes meanwhile is taken back too.
    pub(crate) fn clear(&self) {
        self.wake_fd.clear();
        // A full barrier: what is looked at next is read after this is seen.
        self.signalled.swap(false, Ordering::SeqCst);
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

/// The calling thread's waiter; one descriptor a thread, made at first use. A
/// thread that is ending has lost it, and gets one for the call.
pub(crate) fn thread_waiter() -> io::Result<Arc<Waiter>> {
    let known = WAITER.try_with(|slot| slot.borrow().clone());
    if let Ok(Some(waiter)) = known {
        return Ok(waiter);
    }
    let waiter = Arc::new(Waiter {
        wake_fd: WakeFd::new()?,
        signalled: AtomicBool::new(false),
    });
    let _ = WAITER.try_with(|slot| slot.replace(Some(waiter.clone())));
    Ok(waiter)
}

/// Something that a thread can sleep on.
pub(crate) trait Waitable {
    /// Who is woken when frames come for it.
    fn waiters(&self) -> &WaitList;

    /// True when there is something to look at; the sleeper then returns.
    fn has_input(&self) -> bool;

    /// True when one sleeper is enough for one thing that comes: it takes it.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// A descriptor of the kernel that is slept on too; -1: none.
    fn kernel_descriptor(&self) -> i32 {
        -1
    }

    /// The same, for a thread that sleeps: where several do, one may be enough.
    fn slept_on(&self, _waiter: &Arc<Waiter>) -> i32 {
        self.kernel_descriptor()
    }

    /// The descriptor was readable.
    fn kernel_has_input(&self) {}

    /// A thread that slept on it does so no more.
    fn leave(&self, waiter: &Arc<Waiter>) {
        self.waiters().leave(waiter);
    }
}

/// A thread in a [`WaitList`].
#[derive(Debug)]
struct Entry {
    waiter: Arc<Waiter>,
    /// It takes what it is woken for, so that one of its kind is enough.
    exclusive: bool,
}

/// Threads that wait for one thing.
#[derive(Debug, Default)]
pub(crate) struct WaitList {
    /// Length of `list`; read without the lock by those who wake.
    count: AtomicU32,
    // A pointer: nobody waits for most sockets, and there are many.
    #[allow(clippy::box_collection)]
    list: Mutex<Option<Box<Vec<Entry>>>>,
}

/// True for the calling thread's own waiter, which need not be woken: a sleeper
/// that sorts frames itself looks for data before it goes on sleeping, and a
/// signal would cost it two system calls.
fn is_own(waiter: &Arc<Waiter>) -> bool {
    let own = WAITER.try_with(|slot| {
        let own = slot.try_borrow().ok();
        let own = own.as_ref().and_then(|own| own.as_ref());
        own.is_some_and(|own| Arc::ptr_eq(own, waiter))
    });
    // A thread that is ending waits for nothing.
    own.unwrap_or(false)
}

impl WaitList {
    #[allow(clippy::box_collection)]
    fn lock(&self) -> MutexGuard<'_, Option<Box<Vec<Entry>>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, waiter: &Arc<Waiter>) {
        self.enter_as(waiter, false);
    }

    /// Enters a waiter; see [`Waitable::is_exclusive`].
    pub(crate) fn enter_as(&self, waiter: &Arc<Waiter>, exclusive: bool) {
        let mut list = self.lock();
        let list = list.get_or_insert_default();
        list.push(Entry {
            waiter: waiter.clone(),
            exclusive,
        });
        self.count.store(list.len() as u32, Ordering::SeqCst);
    }

    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) {
        let mut list = self.lock();
        let list = list.get_or_insert_default();
        list.retain(|other| !Arc::ptr_eq(&other.waiter, waiter));
        self.count.store(list.len() as u32, Ordering::SeqCst);
    }

    /// True when nobody waits. A waiter looks for data after `enter` and before
    /// it sleeps, so data made visible before this call is never missed: the
    /// fences order "append, then read count" against "count, then look".
    pub(crate) fn is_empty(&self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Wakes everyone here.
    pub(crate) fn wake_all(&self) {
        if self.is_empty() {
            return;
        }
        let list = self.lock();
        let list = list.as_deref().map_or(&[][..], Vec::as_slice);
        for entry in list.iter().filter(|entry| !is_own(&entry.waiter)) {
            entry.waiter.wake();
        }
    }

    /// Something came that one thread takes: wakes everyone who only looks, and
    /// of those who take one that has not been woken, the last that came first
    /// (its caches are warm). False when nobody is here.
    pub(crate) fn wake_next(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let list = self.lock();
        let list = list.as_deref().map_or(&[][..], Vec::as_slice);
        let mut taken = list.iter().any(|e| e.exclusive && is_own(&e.waiter));
        for entry in list.iter().rev() {
            if !entry.exclusive {
                if !is_own(&entry.waiter) {
                    entry.waiter.wake();
                }
            } else if !taken {
                taken = entry.waiter.wake();
            }
        }
        !list.is_empty()
    }

    /// Frames came that somebody must run the protocol on: one of those here
    /// does. False when nobody is here.
    pub(crate) fn wake_any(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let list = self.lock();
        let list = list.as_deref().map_or(&[][..], Vec::as_slice);
        if !list.iter().any(|entry| is_own(&entry.waiter))
            && let Some(entry) = list.last()
        {
            entry.waiter.wake();
        }
        !list.is_empty()
    }

    /// Wakes one thread other than `except`.
    pub(crate) fn wake_one(&self, except: &Arc<Waiter>) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let list = self.lock();
        let list = list.as_deref().map_or(&[][..], Vec::as_slice);
        let other = |entry: &&Entry| !Arc::ptr_eq(&entry.waiter, except);
        if let Some(entry) = list.iter().find(other) {
            entry.waiter.wake();
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
    pub(crate) fn enter(&self, waiter: &Arc<Waiter>) -> bool {
        self.sleepers.enter(waiter);
        self.lead(waiter)
    }

    /// True while somebody leads.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Makes the leader look at the device again. A thread that is just taking
    /// the lead looks anyway.
    pub(crate) fn wake_leader(&self) {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = &*leader {
            leader.wake();
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
    pub(crate) fn leave(&self, waiter: &Arc<Waiter>, led: bool) {
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
