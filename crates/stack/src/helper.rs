//! The thread that serves connections while the application is busy elsewhere.
//!
//! The protocol runs when the application calls. An application that computes for long,
//! or never calls again, would leave its peers without acknowledgments, and data unsent.
//! When no application thread has called for a tick, this thread does the work that is
//! due. It runs at the application's own priority, and its CPU time is the application's.
//! It inherits the priority of the thread that starts it, and follows its changes
//! (`owner`).
//!
//! While the application calls, the thread checks a hundred times per second; without
//! traffic it sleeps. An application thread that sleeps in the stack does all work
//! itself. A thread that leaves the stack wakes a sleeping helper. If threads leave it
//! several times per check, the helper does not sleep, as a check costs less than a
//! wake-up.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewall_sys::WakeFd;

use crate::core::Core;
use crate::lock::{Mutex, lock, rank};

mod owner;
mod thread;

/// How long the application may be absent before its connections are served.
const TICK: Duration = Duration::from_millis(8);
/// Idle ticks after which the thread sleeps.
const QUIET_TICKS: u32 = 3;
/// Threads that leave the stack between two checks, from which on the helper keeps
/// checking although one sleeps there.
const BUSY_LEAVES: u32 = 2;
/// Longest sleep of the helper when no thread sleeps on the device.
const LONGEST: Duration = Duration::from_millis(250);

/// A context that threads wait on: an epoll set, a selector, a thread's `select`.
pub trait Context: Send + Sync {
    /// Returns true while a thread waits here, or is about to.
    fn has_thread_inside(&self) -> bool;

    /// Returns true when frames wait that the protocol has not processed.
    fn has_unprocessed_frames(&self) -> bool;

    /// Runs the protocol on the frames that wait.
    fn process(&self, core: &Core);
}

/// The thread, and the means to wake it.
pub struct Helper {
    allowed: bool,
    wake_fd: WakeFd,
    /// It sleeps, and must be woken to notice anything.
    asleep: AtomicBool,
    ended: AtomicBool,
    /// Number of calls of the application.
    calls: AtomicU32,
    /// How often a thread that slept in the stack has left it.
    leaves: AtomicU32,
    /// How often the helper was woken.
    #[cfg(test)]
    woken: AtomicU32,
    thread: Mutex<Option<JoinHandle<()>>, rank::Leaf>,
    /// Selectors, epoll sets and similar contexts.
    contexts: Mutex<Vec<Weak<dyn Context>>, rank::Helper>,
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

    pub(crate) fn is_running(&self) -> bool {
        lock(&self.thread).is_some()
    }

    /// Returns false for a stack that never runs the thread (in memory, on a clock).
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Stops the thread, and waits for it.
    pub fn stop(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake_fd.signal();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Records that the application calls: it does the work that is due itself.
    #[inline]
    pub fn application_is_here(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of application calls so far.
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Wakes the helper for work that the application may not do soon.
    #[inline]
    pub fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            #[cfg(test)]
            self.woken.fetch_add(1, Ordering::Relaxed);
            self.wake_fd.signal();
        }
    }

    /// Called when a thread that slept in the stack leaves it: from now on there may be
    /// no thread that serves connections.
    #[inline]
    pub fn thread_leaves(&self) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    /// Makes the thread serve a context while no thread waits in it.
    pub fn add_context(&self, context: &Arc<dyn Context>) {
        lock(&self.contexts).push(Arc::downgrade(context));
    }

    /// Undoes [`Helper::add_context`].
    pub fn remove_context(&self, context: &Arc<dyn Context>) {
        let is =
            |other: &Weak<dyn Context>| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(context));
        lock(&self.contexts).retain(|other| !is(other));
    }
}

#[cfg(test)]
mod tests;
