//! The kernel's descriptors among those that a context polls.
//!
//! They sit in one epoll descriptor of the kernel's, so that idle ones cost nothing.
//! Of the threads that wait in the context one sleeps on it, the *watcher*, so that
//! the kernel wakes one of them; one that leaves while there is no watcher wakes
//! another, which becomes it.
//!
//! Descriptors that only the kernel knows about are entered as the application
//! wants them, and what epoll says of them is reported to the application. Sockets
//! of ours that the kernel has a part in, and sets with such in them, are entered
//! for changes of their input alone: the socket itself remembers that there is some,
//! and what nobody asks about must not keep a thread awake.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use slab::Slab;

use rustix::event::epoll::Event;

use super::exchange::Role;
use super::registration::Registration;
use crate::events::Events;
use crate::raw::epoll::{self, Epoll};
use crate::wait_queue::WaitQueue;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::Waker;

/// Waits with something to do after which the kernel is asked although nobody has
/// said that anything is ready.
const POLL_EVERY: u32 = 16;
/// Most descriptors that are asked for at once: 48 KiB.
const AT_ONCE: usize = 4096;

thread_local! {
    /// What a call finds ready; kept so that a call allocates nothing.
    static FIRED: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn with_fired<R>(call: impl FnOnce(&mut Vec<Event>) -> R) -> R {
    // A thread that is ending has lost it.
    let mut fired = FIRED.try_with(RefCell::take).unwrap_or_default();
    let result = call(&mut fired);
    let _ = FIRED.try_with(|place| place.replace(fired));
    result
}

/// Gives what is ready in an epoll set of somebody else's, `most` of it, to `each`, with
/// the data that it was entered with there. Does not wait.
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

/// See the module.
#[derive(Default)]
pub(super) struct KernelDescriptors {
    epoll: OnceLock<Epoll>,
    /// Those with a descriptor in `epoll`, by key.
    registrations: Mutex<Slab<Arc<Registration>>, rank::Leaf>,
    /// How many they are.
    count: AtomicUsize,
    /// Those of them of which only the kernel knows what they are ready for.
    kernel_only: AtomicUsize,
    /// Somebody has said that some are ready, and nobody has looked since.
    ready: AtomicBool,
    /// A sleep that has just ended has found none ready: who asks once more learns nothing.
    none: AtomicBool,
    /// The waker of the thread that polls `epoll`, as an address.
    watcher: Role,
}

impl KernelDescriptors {
    /// The context ends: registrations point to it, and it to them.
    pub(super) fn close(&self) {
        let registrations = std::mem::take(&mut *lock(&self.registrations));
        drop(registrations);
    }

    // ---- Sleeping -----------------------------------------------------------

    /// The epoll descriptor, if the waker is to sleep on it; -1: another does, or
    /// there is none.
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

    /// A waker has left the context's list: one of those who are still there
    /// watches, if nobody does.
    pub(super) fn leave(&self, waker: &Arc<Waker>, others: &WaitQueue) {
        if self.epoll.get().is_some() && self.watcher.leave(Arc::as_ptr(waker).addr()) {
            others.threads().wake_one();
        }
    }

    /// True when somebody has said that there is something to look at.
    pub(super) fn is_noted_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// The kernel has said so, or somebody wants it asked.
    pub(super) fn note_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// A sleep on them has ended, and none was ready.
    pub(super) fn note_none(&self) {
        self.none.store(true, Ordering::Relaxed);
    }

    /// A wait begins: it must see what is ready by now.
    pub(super) fn begin_wait(&self) {
        self.none.store(false, Ordering::Relaxed);
    }

    // ---- What is in it ------------------------------------------------------

    /// The epoll descriptor, made at the first use. threads in `waiting` sleep without it.
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

    /// Enters a registration's descriptor.
    ///
    /// # Errors
    /// What epoll reports: EPERM, EEXIST, EBADF, ENOSPC, ENOMEM.
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

    /// A registration's interest has changed, which is the kernel's to know only of
    /// what it alone knows about.
    ///
    /// # Errors
    /// What epoll reports.
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

    /// A registration is retired.
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

    /// True when only the kernel knows what some are ready for: a call that must not miss
    /// them insists.
    pub(super) fn has_kernel_only(&self) -> bool {
        self.kernel_only.load(Ordering::Relaxed) != 0
    }

    // ---- What is ready ------------------------------------------------------

    /// True when some are ready; asks the kernel.
    pub(super) fn is_ready(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
            && self
                .epoll
                .get()
                .is_some_and(|epoll| tidewall_sys::ready_now(epoll.descriptor(), libc::POLLIN) != 0)
    }

    /// Asks the kernel which descriptors are ready, `most` of them: when it has said
    /// that some are, every so many waits, and if `insist`, but not just after a sleep on
    /// them. Those that only the
    /// kernel knows about are given to `each`, with what they are ready for; sockets
    /// that it has a part in are notified.
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
            // Nobody would ever take it back.
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
            // Level-triggered: what was ready may still be so next time.
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

    /// As [`KernelDescriptors::poll`], and puts all that are ready on the ready list: for
    /// calls that treat them as any other.
    ///
    /// # Errors
    /// EINTR.
    pub(super) fn mark_ready(&self, wait: u32, insist: bool) -> io::Result<()> {
        let mut mark = |registration: &Arc<Registration>, _: Events| registration.mark_ready();
        self.poll(wait, insist, usize::MAX, &mut mark)?;
        // What is level-triggered comes again and again.
        for _ in 0..self.count.load(Ordering::Relaxed) / AT_ONCE {
            self.poll(wait, insist, usize::MAX, &mut mark)?;
        }
        Ok(())
    }
}
