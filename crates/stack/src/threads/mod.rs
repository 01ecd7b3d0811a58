//! Threads that sleep in a call, and how they are woken.
//!
//! Lives here: the lists of sleepers, each thread's [`Waker`], and the choice of the
//! thread that polls the device for all ([`Leadership`]).
//!
//! Does not live here: the sleep itself (`Receiver::sleep`), and contexts that poll many
//! endpoints (tidewall-readiness).
//!
//! A call that blocks enters a list of [`Sleepers`], checks again, sleeps, and leaves:
//!
//! ```text
//!  loop {
//!      if let Some(result) = attempt() { return result }
//!      sleepers.enter(&waker, exclusive);       // from here on it is woken
//!      if !has_input() { sleep on the waker }   // what came before `enter` is seen here
//!      sleepers.leave(&waker);
//!  }
//! ```
//!
//! The check after `enter` closes the window in which something comes and finds no thread
//! to wake; the fence in [`Sleepers::is_empty`] orders it. `Receiver::sleep` does this
//! for every call.
//!
//! Read first: [`Sleepers`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::lock::{Mutex, lock, rank};

mod leadership;
mod waker;

pub use leadership::Leadership;
use waker::is_own;
pub use waker::{Interrupter, interrupt_sleep, take_interruption};
pub use waker::{Waker, thread_waker, woken_higher, yield_to_higher};

/// Something that a thread can sleep on.
pub trait Waitable {
    /// A thread is about to sleep on it: from now on it is woken.
    fn enter(&self, waker: &Arc<Waker>);

    /// Called when a thread that slept on it no longer does.
    fn leave(&self, waker: &Arc<Waker>);

    /// Returns true when there is something to look at; the sleeper then returns.
    fn has_input(&self) -> bool;

    /// A descriptor of the kernel that is slept on too; -1: none.
    fn kernel_descriptor(&self) -> i32 {
        -1
    }

    /// Returns the descriptor that this sleeper polls: if several threads sleep, one of
    /// them may be enough.
    fn descriptor_for(&self, _waker: &Arc<Waker>) -> i32 {
        self.kernel_descriptor()
    }

    /// The descriptor was readable.
    fn kernel_has_input(&self) {}

    /// A sleep on the descriptor has ended, and it was not readable.
    fn kernel_has_none(&self) {}
}

/// A thread in a list of [`Sleepers`].
#[derive(Debug)]
struct WaitEntry {
    waker: Arc<Waker>,
    /// It consumes the event that wakes it, so one such thread is enough (Linux's
    /// WQ_FLAG_EXCLUSIVE).
    exclusive: bool,
}

impl WaitEntry {
    /// Whether it may be woken to lead in place of `other`.
    fn would_lead(&self, other: &Arc<Waker>) -> bool {
        !Arc::ptr_eq(&self.waker, other) && !self.waker.has_resigned.load(Ordering::Relaxed)
    }
}

/// The list of threads that sleep on one object.
///
/// Its length is kept beside it, in a field with room for it: sockets are many.
#[derive(Default)]
pub struct ThreadList(
    // A pointer: no thread sleeps on most sockets.
    #[allow(clippy::box_collection)] Mutex<Option<Box<Vec<WaitEntry>>>, rank::Leaf>,
);

/// Threads that sleep on one thing.
#[derive(Clone, Copy)]
pub struct Sleepers<'a> {
    /// Their number; wakers read it without the lock.
    pub count: &'a AtomicU32,
    /// The threads.
    pub threads: &'a ThreadList,
}

impl Sleepers<'_> {
    /// Enters a thread; see `WaitEntry::exclusive`.
    pub fn enter(self, waker: &Arc<Waker>, exclusive: bool) {
        self.change_threads(|threads| {
            threads.push(WaitEntry {
                waker: waker.clone(),
                exclusive,
            });
        });
    }

    /// Takes a thread out.
    pub fn leave(self, waker: &Arc<Waker>) {
        self.change_threads(|threads| threads.retain(|it| !Arc::ptr_eq(&it.waker, waker)));
    }

    fn change_threads(self, change: impl FnOnce(&mut Vec<WaitEntry>)) {
        let mut threads = lock(&self.threads.0);
        let threads = threads.get_or_insert_default();
        change(threads);
        self.count.store(threads.len() as u32, Ordering::SeqCst);
    }

    /// Returns false when no thread waits. A thread looks for data after `enter` and
    /// before it sleeps, so data made visible before this call is never missed. The
    /// fences order "append, then read count" against "count, then look".
    #[inline]
    pub fn is_empty(self) -> bool {
        fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Calls `each` with the threads, unless there are none. Returns true if there are.
    fn with_threads(self, each: impl FnOnce(&[WaitEntry])) -> bool {
        if self.is_empty() {
            return false;
        }
        let threads = lock(&self.threads.0);
        let threads = threads.as_deref().map_or(&[][..], Vec::as_slice);
        each(threads);
        !threads.is_empty()
    }

    /// Wakes every thread.
    #[inline]
    pub fn wake_all(self) {
        self.with_threads(|threads| {
            for entry in threads.iter().filter(|entry| !is_own(&entry.waker)) {
                entry.waker.wake();
            }
        });
    }

    /// Wakes every thread that only looks, and one exclusive thread that has not been
    /// woken yet. That one is the last that came first (its caches are warm). Returns
    /// false when no thread waits.
    #[inline]
    pub fn wake_one(self) -> bool {
        self.with_threads(|threads| {
            let mut taken = threads.iter().any(|e| e.exclusive && is_own(&e.waker));
            for entry in threads.iter().rev() {
                if !entry.exclusive {
                    if !is_own(&entry.waker) {
                        entry.waker.wake();
                    }
                } else if !taken {
                    taken = entry.waker.wake();
                }
            }
        })
    }

    /// Wakes one thread, whatever it waits for, to run the protocol. Returns false when
    /// no thread waits.
    #[inline]
    pub fn wake_any(self) -> bool {
        self.with_threads(|threads| {
            if !threads.iter().any(|entry| is_own(&entry.waker))
                && let Some(entry) = threads.last()
            {
                entry.waker.wake();
            }
        })
    }

    /// Wakes the thread of the highest priority that has not resigned, other than `except`; of
    /// several the one that came first.
    fn wake_highest(self, except: &Arc<Waker>) {
        self.with_threads(|threads| {
            let would_lead = threads.iter().rev().filter(|it| it.would_lead(except));
            if let Some(entry) = would_lead.max_by_key(|entry| entry.waker.priority()) {
                entry.waker.wake();
            }
        });
    }

    /// Returns true if a thread that has not resigned has a higher priority than `waker`.
    fn has_higher(self, waker: &Arc<Waker>) -> bool {
        let mut has = false;
        self.with_threads(|threads| {
            let is_higher = |it: &WaitEntry| it.waker.priority() > waker.priority();
            has = threads
                .iter()
                .any(|it| it.would_lead(waker) && is_higher(it));
        });
        has
    }

    /// Returns true if a thread of no lower priority than `waker` has been woken and has
    /// not looked yet.
    fn is_other_signalled(self, waker: &Arc<Waker>) -> bool {
        let mut signalled = false;
        self.with_threads(|threads| {
            signalled = threads.iter().any(|entry| {
                !Arc::ptr_eq(&entry.waker, waker)
                    && entry.waker.signalled.load(Ordering::Relaxed)
                    && entry.waker.priority() >= waker.priority()
            });
        });
        signalled
    }
}

#[cfg(test)]
mod tests;
