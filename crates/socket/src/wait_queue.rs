//! Who waits for an endpoint, and how they are woken.
//!
//! Every endpoint has a [`WaitQueue`], as a file has in Linux and in gVisor
//! (pkg/waiter). In it are threads, which sleep in a call on the endpoint itself,
//! and [`Registration`]s of contexts that poll many endpoints (epoll sets, `select`,
//! selectors). There are two verbs: a thread is *woken* ([`Waker::wake`]), a
//! registration is *notified* of a mask of events, which puts it on its context's
//! ready list. What changes an endpoint calls [`WaitQueue::notify`] or its kin
//! after the change is visible.
//!
//! A call that blocks registers, checks again, sleeps, and unregisters:
//!
//! ```text
//!  loop {
//!      if let Some(result) = attempt() { return result }
//!      queue.enter(&waker, exclusive);          // from here on it is woken
//!      if !has_input() { sleep on the waker }   // what came before `enter` is seen here
//!      queue.leave(&waker);
//!  }
//! ```
//!
//! The check after `enter` closes the window in which something comes and finds
//! nobody to wake; the fence in [`WaitQueue::has_threads`] orders it. `Receiver::sleep`
//! does this for every call; [`PollContext::wait`] for every context.
//!
//! [`PollContext::wait`]: crate::readiness::poll_context::PollContext::wait
//! [`Registration`]: crate::readiness::registration::Registration

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::lock::{Mutex, lock, rank};
use crate::readiness::Events;

mod leadership;
mod registrations;
mod waker;

pub(crate) use leadership::Leadership;
pub(crate) use registrations::CURRENT_CONTEXT;
use registrations::Registrations;
use waker::is_own;
pub use waker::{Interrupter, interrupt_sleep, take_interruption};
pub(crate) use waker::{Waker, thread_waker, woken_higher, yield_to_higher};

/// Something that a thread can sleep on.
pub(crate) trait Waitable {
    /// Who is woken when something comes for it.
    fn wait_queue(&self) -> &WaitQueue;

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

    /// The descriptor that this sleeper polls: where several do, one may be enough.
    fn descriptor_for(&self, _waker: &Arc<Waker>) -> i32 {
        self.kernel_descriptor()
    }

    /// The descriptor was readable.
    fn kernel_has_input(&self) {}

    /// A sleep on the descriptor has ended, and it was not readable.
    fn kernel_has_none(&self) {}

    /// A thread that slept on it does so no more.
    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue().leave(waker);
    }
}

/// A thread in a [`WaitQueue`].
#[derive(Debug)]
struct WaitEntry {
    waker: Arc<Waker>,
    /// It takes what it is woken for, so that one of its kind is enough (Linux's
    /// WQ_FLAG_EXCLUSIVE).
    exclusive: bool,
}

impl WaitEntry {
    /// Whether it may be woken to lead in place of `other`.
    fn would_lead(&self, other: &Arc<Waker>) -> bool {
        !Arc::ptr_eq(&self.waker, other) && !self.waker.has_resigned.load(Ordering::Relaxed)
    }
}

/// Threads and registrations that wait for one endpoint. See the module.
#[derive(Default)]
pub(crate) struct WaitQueue {
    /// Length of `threads`; read without the lock by those who wake.
    thread_count: AtomicU32,
    /// Length of `registrations`, likewise.
    registration_count: AtomicU32,
    // A pointer: nobody sleeps on most sockets, and there are many.
    #[allow(clippy::box_collection)]
    threads: Mutex<Option<Box<Vec<WaitEntry>>>, rank::Leaf>,
    registrations: Mutex<Registrations, rank::WaitQueue>,
}

impl std::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitQueue")
            .field("threads", &self.thread_count)
            .field("registrations", &self.registration_count)
            .finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// Enters a thread; see [`Waitable::is_exclusive`].
    pub(crate) fn enter(&self, waker: &Arc<Waker>, exclusive: bool) {
        self.change_threads(|threads| {
            threads.push(WaitEntry {
                waker: waker.clone(),
                exclusive,
            });
        });
    }

    /// Takes a thread out.
    pub(crate) fn leave(&self, waker: &Arc<Waker>) {
        self.change_threads(|threads| threads.retain(|it| !Arc::ptr_eq(&it.waker, waker)));
    }

    fn change_threads(&self, change: impl FnOnce(&mut Vec<WaitEntry>)) {
        let mut threads = lock(&self.threads);
        let threads = threads.get_or_insert_default();
        change(threads);
        self.thread_count
            .store(threads.len() as u32, Ordering::SeqCst);
    }

    /// False when no thread waits. One looks for data after `enter` and before it
    /// sleeps, so data made visible before this call is never missed: the fences
    /// order "append, then read count" against "count, then look".
    pub(crate) fn has_threads(&self) -> bool {
        fence(Ordering::SeqCst);
        self.thread_count.load(Ordering::Relaxed) != 0
    }

    /// Calls `each` with the threads, unless there are none. True if there are.
    fn with_threads(&self, each: impl FnOnce(&[WaitEntry])) -> bool {
        if !self.has_threads() {
            return false;
        }
        let threads = lock(&self.threads);
        let threads = threads.as_deref().map_or(&[][..], Vec::as_slice);
        each(threads);
        !threads.is_empty()
    }

    /// The endpoint changed: wakes every thread and notifies the registrations.
    pub(crate) fn notify(&self, changed: Events) {
        self.wake_all();
        self.notify_registrations(changed);
    }

    /// Something came that one thread takes: as [`WaitQueue::notify`], of the
    /// threads with [`WaitQueue::wake_one`].
    pub(crate) fn notify_one(&self, changed: Events) {
        self.wake_one();
        self.notify_registrations(changed);
    }

    /// Frames came that the protocol has not processed: one thread is woken to do
    /// it. False when no context polls the endpoint.
    pub(crate) fn frames_arrived(&self) -> bool {
        self.wake_any();
        self.enter_frames_with_contexts()
    }

    /// Wakes every thread.
    pub(crate) fn wake_all(&self) {
        self.with_threads(|threads| {
            for entry in threads.iter().filter(|entry| !is_own(&entry.waker)) {
                entry.waker.wake();
            }
        });
    }

    /// Wakes every thread that only looks, and of the exclusive ones one that has not
    /// been woken yet, the last that came first (its caches are warm). False when no
    /// thread waits.
    pub(crate) fn wake_one(&self) -> bool {
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

    /// Wakes one thread, whatever it waits for, to run the protocol. False when no
    /// thread waits.
    pub(crate) fn wake_any(&self) -> bool {
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
    fn wake_highest(&self, except: &Arc<Waker>) {
        self.with_threads(|threads| {
            let would_lead = threads.iter().rev().filter(|it| it.would_lead(except));
            if let Some(entry) = would_lead.max_by_key(|entry| entry.waker.priority()) {
                entry.waker.wake();
            }
        });
    }

    /// True if a thread that has not resigned has a higher priority than `waker`.
    fn has_higher(&self, waker: &Arc<Waker>) -> bool {
        let mut has = false;
        self.with_threads(|threads| {
            let is_higher = |it: &WaitEntry| it.waker.priority() > waker.priority();
            has = threads
                .iter()
                .any(|it| it.would_lead(waker) && is_higher(it));
        });
        has
    }

    /// True if a thread of no lower priority than `waker` has been woken and has not looked yet.
    fn is_other_signalled(&self, waker: &Arc<Waker>) -> bool {
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
