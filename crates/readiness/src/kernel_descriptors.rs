//! Kernel descriptors among those that a context polls.
//!
//! They are in one kernel epoll descriptor, so that idle ones cost nothing. One of the
//! threads that wait in the context, the *watcher*, sleeps on it, so that the kernel
//! wakes only one of them. A thread that leaves while there is no watcher wakes another,
//! which becomes it.
//!
//! Descriptors that only the kernel knows are entered with the application's interest,
//! and epoll's results for them are reported to the application. Sockets that have a
//! kernel part, and sets that contain such sockets, are entered for changes of their
//! input alone. The socket itself remembers that there is input, and input that no thread
//! requests must not keep a thread awake.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::epoll::Event;
use slab::Slab;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::Waker;

use super::exchange::Role;
use super::registration::Registration;
use crate::events::Events;
use crate::raw::epoll::{self, Epoll};
use crate::wait_queue::WaitQueue;

/// After this many waits that had other work, the kernel is polled although no descriptor
/// was noted as ready.
const POLL_EVERY: u32 = 16;
/// Most descriptors that one query returns: 48 KiB.
const AT_ONCE: usize = 4096;

thread_local! {
    /// Ready descriptors of a call; kept so that a call allocates nothing.
    static FIRED: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn with_fired<R>(call: impl FnOnce(&mut Vec<Event>) -> R) -> R {
    // A thread that is ending has lost it.
    let mut fired = FIRED.try_with(RefCell::take).unwrap_or_default();
    let result = call(&mut fired);
    let _ = FIRED.try_with(|place| place.replace(fired));
    result
}

/// Passes the ready entries of another's epoll set, at most `most`, to `each`, with the
/// data registered there. Does not wait.
///
/// # Errors
/// EINTR.
pub(super) fn fetch(
    set: BorrowedFd<'_>,
    most: usize,
    each: &mut dyn FnMut(u64, Events),
) -> io::Result<()> {
    with_fired(|fired| {
        epoll::ready(set, most.min(AT_ONCE), fired)?;
        for &Event { flags, data } in fired.iter() {
            each(data.u64(), Events::from_bits(flags.bits()));
        }
        Ok(())
    })
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct KernelDescriptors {
    epoll: OnceLock<Epoll>,
    /// Registrations with a descriptor in `epoll`, by key.
    registrations: Mutex<Slab<Arc<Registration>>, rank::Leaf>,
    /// Number of those registrations.
    count: AtomicUsize,
    /// Those whose readiness only the kernel knows.
    kernel_only: AtomicUsize,
    /// Some were noted as ready, and have not been polled since.
    ready: AtomicBool,
    /// A sleep that has just ended has found none ready, so another query would find
    /// nothing.
    none: AtomicBool,
    /// The waker of the thread that polls `epoll`, as an address.
    watcher: Role,
}

impl KernelDescriptors {
    /// Ends the cycle of references between the context and its registrations.
    pub(super) fn close(&self) {
        let registrations = std::mem::take(&mut *lock(&self.registrations));
        drop(registrations);
    }

    // ---- Sleeping -----------------------------------------------------------

    /// Returns the epoll descriptor, if the waker is to sleep on it. Returns -1 if
    /// another thread does, or if there is none.
    pub(super) fn descriptor_for(&self, waker: &Arc<Waker>) -> i32 {
        let Some(epoll) = self.epoll.get() else {
            return -1;
        };
        if self.watcher.take(Arc::as_ptr(waker).addr()) {
            epoll.descriptor()
        } else {
            -1
        }
    }

    /// Called when a waker has left the context's list: without a watcher, one of the
    /// remaining threads becomes it.
    pub(super) fn leave(&self, waker: &Arc<Waker>, others: &WaitQueue) {
        if self.epoll.get().is_some() && self.watcher.leave(Arc::as_ptr(waker).addr()) {
            others.threads().wake_one();
        }
    }

    /// Returns true if something was noted as ready.
    pub(super) fn is_noted_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Notes that the kernel has reported readiness, or that a caller wants it polled.
    pub(super) fn note_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Notes that a sleep on them has ended, and none was ready.
    pub(super) fn note_none(&self) {
        self.none.store(true, Ordering::Relaxed);
    }

    /// Begins a wait, which must see what is ready by now.
    pub(super) fn begin_wait(&self) {
        self.none.store(false, Ordering::Relaxed);
    }

    // ---- Contents -----------------------------------------------------------

    /// Returns the epoll descriptor, created at the first use. Threads in `waiting` sleep
    /// without it.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn make(&self, waiting: &WaitQueue) -> io::Result<&Epoll> {
        if self.epoll.get().is_none() && self.epoll.set(Epoll::new()?).is_ok() {
            self.ready.store(true, Ordering::SeqCst);
            waiting.threads().wake_all();
        }
        self.epoll
            .get()
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Adds a registration's descriptor.
    ///
    /// # Errors
    /// Epoll's errors: EPERM, EEXIST, EBADF, ENOSPC, ENOMEM.
    pub(super) fn add(
        &self,
        registration: &Arc<Registration>,
        waiting: &WaitQueue,
    ) -> io::Result<()> {
        let epoll = self.make(waiting)?;
        let key = lock(&self.registrations).insert(registration.clone());
        let interest = registration.kernel_interest();
        if let Err(error) = epoll.add(registration.descriptor, key as u64, interest) {
            let forgotten = lock(&self.registrations).try_remove(key);
            drop(forgotten);
            return Err(error);
        }
        registration.kernel_key.store(key, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        if registration.may_need_kernel() {
            self.kernel_only.fetch_add(1, Ordering::Relaxed);
        }
        self.note_ready();
        Ok(())
    }

    /// Called when a registration's interest has changed. The kernel needs to know only
    /// if it alone knows the file.
    ///
    /// # Errors
    /// Epoll's errors.
    pub(super) fn change(&self, registration: &Registration) -> io::Result<()> {
        if !registration.is_kernel_only() {
            return Ok(());
        }
        let key = registration.kernel_key.load(Ordering::Relaxed);
        match self.epoll.get() {
            Some(epoll) if key != usize::MAX => {
                let interest = registration.kernel_interest();
                epoll.modify(registration.descriptor, key as u64, interest)?;
                self.note_ready();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes a retired registration.
    pub(super) fn remove(&self, registration: &Registration) {
        let key = registration.kernel_key.swap(usize::MAX, Ordering::Relaxed);
        if key == usize::MAX {
            return;
        }
        if let Some(epoll) = self.epoll.get() {
            let _ = epoll.remove(registration.descriptor);
        }
        let forgotten = lock(&self.registrations).try_remove(key);
        drop(forgotten);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if registration.may_need_kernel() {
            self.kernel_only.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns true if only the kernel knows the readiness of some: a call that must not
    /// miss them insists.
    pub(super) fn has_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Relaxed) != 0
    }

    // ---- Readiness ----------------------------------------------------------

    /// Polls the kernel; returns true when some are ready.
    pub(super) fn is_ready(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
            && self
                .epoll
                .get()
                .is_some_and(|epoll| tidewall_sys::ready_now(epoll.descriptor(), libc::POLLIN) != 0)
    }

    /// Polls the kernel for ready descriptors, at most `most`. It does so when some were
    /// noted as ready, every so many waits, and if `insist`, but not just after a sleep
    /// on them. `each` receives descriptors that only the kernel knows, with their
    /// readiness. Sockets that have a kernel part are notified.
    ///
    /// # Errors
    /// EINTR.
    pub(super) fn poll(
        &self,
        wait: u32,
        insist: bool,
        most: usize,
        each: &mut dyn FnMut(&Arc<Registration>, Events),
    ) -> io::Result<()> {
        let count = self.count.load(Ordering::Relaxed);
        if count == 0 {
            // No later poll would clear it.
            self.ready.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if !self.is_noted_ready() {
            let known = self.none.swap(false, Ordering::Relaxed);
            if known || !insist && !wait.is_multiple_of(POLL_EVERY) {
                return Ok(());
            }
        }
        let Some(epoll) = self.epoll.get() else {
            return Ok(());
        };
        with_fired(|fired| {
            let asked = epoll.ready(most.min(count).min(AT_ONCE), fired);
            // Level-triggered: a descriptor that was ready may still be so next time.
            self.ready.store(!fired.is_empty(), Ordering::Relaxed);
            for &Event { flags, data } in fired.iter() {
                let key = data.u64() as usize;
                let registration = lock(&self.registrations).get(key).cloned();
                let Some(registration) = registration.filter(|it| it.is_active()) else {
                    continue;
                };
                if registration.is_kernel_only() {
                    each(&registration, Events::from_bits(flags.bits()));
                } else {
                    registration.kernel_has_input();
                }
            }
            asked
        })
    }

    /// As [`KernelDescriptors::poll`], and puts all that are ready on the ready list, for
    /// calls that treat them like any other.
    ///
    /// # Errors
    /// EINTR.
    pub(super) fn mark_ready(&self, wait: u32, insist: bool) -> io::Result<()> {
        let mut mark = |registration: &Arc<Registration>, _: Events| registration.mark_ready();
        self.poll(wait, insist, usize::MAX, &mut mark)?;
        // A level-triggered descriptor is returned again and again.
        for _ in 0..self.count.load(Ordering::Relaxed) / AT_ONCE {
            self.poll(wait, insist, usize::MAX, &mut mark)?;
        }
        Ok(())
    }
}
