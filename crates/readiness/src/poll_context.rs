//! A context: the object on which one call waits for many files.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tidewall_stack::core::Core;
use tidewall_stack::helper::{Context, Helper};
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::{Waitable, Waker};

use super::kernel_descriptors::KernelDescriptors;
use super::registration::{File, Registration};
use crate::events::Events;
use crate::raw::epoll::{Epoll, duplicate};
use crate::wait_queue::{CURRENT_CONTEXT, WaitQueue};
use waiting::EventCost;

mod waiting;

pub use waiting::{in_turn, note_sent_in_turn, turn_is_long};

thread_local! {
    static READIED: Cell<u32> = const { Cell::new(0) };
}

/// Returns how many files the calling thread has put on ready lists or on the lists of
/// unprocessed frames, modulo 2^32.
pub fn readied() -> u32 {
    READIED.get()
}

/// The kind of call that a registration is for; the kinds differ in the files that they
/// accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `epoll_ctl` and mio: a file that epoll rejects (EPERM) is rejected here too.
    Epoll,
    /// `select`, `poll` and `declare_interest`: such a file is always ready.
    Poll,
    /// A selector: a socket is in one at a time.
    Selector,
}

/// A list whose length is read without its lock.
pub(super) struct CountedList<T> {
    count: AtomicUsize,
    list: Mutex<VecDeque<T>, rank::Leaf>,
}

impl<T> Default for CountedList<T> {
    fn default() -> Self {
        CountedList {
            count: AtomicUsize::new(0),
            list: Mutex::default(),
        }
    }
}

impl<T> CountedList<T> {
    fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn change<R>(&self, change: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let mut list = lock(&self.list);
        let result = change(&mut list);
        self.count.store(list.len(), Ordering::SeqCst);
        result
    }

    fn take(&self) -> VecDeque<T> {
        self.change(std::mem::take)
    }
}

/// The object on which one call waits for many files: an epoll set's, a selector's, that
/// of a thread's `select` or of its event queue. Linux's `struct eventpoll`.
pub struct PollContext {
    /// Linux's ready list: registrations with an event, in the order of the events.
    ready: CountedList<Arc<Registration>>,
    /// Registrations with frames that the protocol has not processed.
    unprocessed: CountedList<Arc<Registration>>,
    /// Slots of retired registrations, for an epoll set, which has a table of them.
    retired: CountedList<usize>,
    is_epoll: bool,
    /// Threads that wait here, and sets that contain this one.
    pub wait_queue: WaitQueue,
    /// Threads between the beginning and the end of a wait.
    threads_inside: AtomicUsize,
    kernel: KernelDescriptors,
    /// Number of waits begun.
    waits: AtomicU32,
    cost: EventCost,
    /// The waiter is an event loop: it will wait again after handling its events.
    loops: AtomicBool,
    closed: AtomicBool,
    helper: Arc<Helper>,
}

impl std::fmt::Debug for PollContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollContext")
            .field("ready", &self.ready.count)
            .field("unprocessed", &self.unprocessed.count)
            .finish_non_exhaustive()
    }
}

impl PollContext {
    /// Creates a context on a stack. `is_epoll`: it belongs to an epoll set, which
    /// records retired slots (`PollContext::take_retired`).
    ///
    /// # Errors
    /// Those of starting the stack's helper thread.
    pub fn new(core: &Arc<Core>, is_epoll: bool) -> io::Result<Arc<Self>> {
        Helper::start(core)?;
        let context = Arc::new(PollContext {
            ready: CountedList::default(),
            unprocessed: CountedList::default(),
            retired: CountedList::default(),
            is_epoll,
            wait_queue: WaitQueue::default(),
            threads_inside: AtomicUsize::new(0),
            kernel: KernelDescriptors::default(),
            // Never equals the wait number that a new registration remembers.
            waits: AtomicU32::new(1),
            cost: EventCost::default(),
            loops: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            helper: core.helper.clone(),
        });
        core.helper
            .add_context(&(context.clone() as Arc<dyn Context>));
        Ok(context)
    }

    /// Ends the context: its registrations are not notified any more, and leave their
    /// sockets' wait queues in time.
    pub fn close(self: &Arc<Self>, core: &Core) {
        self.closed.store(true, Ordering::SeqCst);
        self.process(core);
        core.helper
            .remove_context(&(self.clone() as Arc<dyn Context>));
        // The registrations and the context point to each other.
        drop(self.ready.take());
        drop(self.unprocessed.take());
        self.kernel.close();
        self.wait_queue.close();
    }

    /// Sets whether the waiter is an event loop. A thread that waits for a single socket is
    /// not: its next wait may be for something else, and elsewhere.
    pub(super) fn set_loops(&self, loops: bool) {
        self.loops.store(loops, Ordering::Relaxed);
    }

    /// Reports whether held output leaves with the next wait here.
    pub fn loops(&self) -> bool {
        self.loops.load(Ordering::Relaxed)
    }

    /// Returns true once it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    // ---- Registrations ------------------------------------------------------

    /// Registers a file under the caller's key. If the file is ready already, the
    /// registration is put on the ready list at once.
    ///
    /// # Errors
    /// EEXIST for a second selector; epoll's errors for a kernel descriptor (EPERM,
    /// EBADF, ENOSPC, ENOMEM).
    pub fn register(
        self: &Arc<Self>,
        file: &dyn File,
        key: u64,
        interest: Events,
        interface: Interface,
    ) -> io::Result<Arc<Registration>> {
        let (source, wait_queue) = (file.pollable(), file.wait_queue());
        let descriptor = file.descriptor();
        let make = |descriptor, own| {
            let (context, source) = (self.clone(), source.as_ref().map(Arc::downgrade));
            Arc::new(Registration::new(
                context, source, descriptor, own, key, interest, interface,
            ))
        };
        let mut registration = make(descriptor, None);
        if !wait_queue.register(registration.clone()) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        if descriptor >= 0
            && let Err(error) = self.kernel.add(&registration, &self.wait_queue)
        {
            wait_queue.unregister(&registration);
            registration = match error.raw_os_error() {
                Some(libc::EPERM) if interface == Interface::Poll => make(-1, None),
                // The same kernel descriptor under another number.
                Some(libc::EEXIST) => {
                    let own = duplicate(descriptor)?;
                    let again = make(own.as_raw_fd(), Some(own));
                    self.kernel.add(&again, &self.wait_queue)?;
                    again
                }
                _ => return Err(error),
            };
            wait_queue.register(registration.clone());
        }
        // Covers changes before the registration.
        registration.mark_at_first();
        if source.is_some_and(|source| source.has_unprocessed_frames()) {
            wait_queue.enter_frames_with_contexts();
        }
        Ok(registration)
    }

    /// Records a retired slot, for an epoll set's table.
    pub(super) fn note_retired(&self, slot: usize) {
        if self.is_epoll && !self.is_closed() {
            self.retired.change(|retired| retired.push_back(slot));
        }
    }

    /// Calls `each` with the slots of registrations retired since the last call.
    pub(super) fn take_retired(&self, each: impl FnMut(usize)) {
        if self.retired.len() != 0 {
            self.retired.take().into_iter().for_each(each);
        }
    }

    /// Returns true for an epoll set's context.
    pub(super) fn is_epoll(&self) -> bool {
        self.is_epoll
    }

    // ---- Ready list ---------------------------------------------------------

    /// Puts a registration on the ready list, and wakes a thread that waits here. The
    /// caller has set its flag.
    pub(super) fn push_ready(&self, registration: Arc<Registration>) {
        let pushed = self.ready.change(|ready| {
            let open = !self.is_closed();
            if open {
                ready.push_back(registration);
            }
            open
        });
        if pushed {
            READIED.set(READIED.get().wrapping_add(1));
            if !self.is_current() {
                self.wait_queue.threads().wake_one();
            }
        }
    }

    /// Puts back registrations whose flags were left set: they are examined again, after
    /// the others.
    pub fn requeue(&self, registrations: &mut Vec<Arc<Registration>>) {
        if !registrations.is_empty() {
            self.ready
                .change(|ready| ready.extend(registrations.drain(..)));
        }
    }

    /// Returns the first entry of the ready list, which stays there.
    pub(super) fn first_ready(&self) -> Option<Arc<Registration>> {
        if !self.has_ready() {
            return None;
        }
        lock(&self.ready.list).front().cloned()
    }

    /// Takes the first off the ready list.
    pub(super) fn drop_first_ready(&self) {
        let first = self.ready.change(VecDeque::pop_front);
        drop(first);
    }

    /// Puts back a registration that is to be examined first. A thread that came to sleep
    /// here meanwhile has not seen it.
    pub(super) fn put_first_ready(&self, registration: Arc<Registration>) {
        self.ready.change(|ready| ready.push_front(registration));
        self.wait_queue.threads().wake_one();
    }

    /// Returns the length of the ready list.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Returns true when the ready list is not empty.
    pub fn has_ready(&self) -> bool {
        self.ready.len() != 0
    }

    /// Takes up to `most` registrations off the ready list, in order. Their flags stay
    /// set: the caller puts each back, or calls [`Registration::unmark`].
    pub fn take_ready(&self, most: usize, out: &mut Vec<Arc<Registration>>) {
        if !self.has_ready() {
            return;
        }
        self.ready.change(|ready| {
            let count = ready.len().min(most);
            out.extend(ready.drain(..count));
        });
    }

    /// Takes all registrations off the ready list. Their flags are cleared first, so
    /// that a later change is never lost.
    pub fn take_all(&self, out: &mut Vec<Arc<Registration>>) {
        let from = out.len();
        self.take_ready(usize::MAX, out);
        for registration in out.iter().skip(from) {
            registration.unmark();
        }
        out.retain(|registration| registration.is_active());
    }

    /// Passes up to `most` ready registrations to `each`, and keeps them on the list,
    /// behind the others: level-triggered. Those that are no longer ready leave the list
    /// until they are notified again.
    pub fn take_level_triggered(
        &self,
        most: usize,
        each: &mut dyn FnMut(&Arc<Registration>, Events),
    ) {
        if !self.has_ready() {
            return;
        }
        let mut batch = Vec::new();
        self.take_ready(most, &mut batch);
        batch.retain(|registration| {
            let ready = registration.level();
            if !ready.is_empty() {
                each(registration, ready);
            }
            !ready.is_empty()
        });
        self.requeue(&mut batch);
    }

    /// Returns true if a thread will pick up an event without being woken by another: one
    /// that sleeps here, or the calling one.
    pub(super) fn has_taker(&self) -> bool {
        !self.wait_queue.threads().is_empty() || self.is_current()
    }

    // ---- Frames -------------------------------------------------------------

    /// Enters a registration whose socket has received frames. The caller has set its
    /// flag. With `wake` a thread is woken for them. Returns true if a thread here
    /// processes them.
    pub fn push_unprocessed(&self, registration: Arc<Registration>, wake: bool) -> bool {
        let pushed = self.unprocessed.change(|unprocessed| {
            let open = !self.is_closed();
            if open {
                unprocessed.push_back(registration);
            }
            open
        });
        if !pushed {
            return false;
        }
        READIED.set(READIED.get().wrapping_add(1));
        let has_thread = self.wake_for_frames(wake);
        let above = self.wait_queue.enter_frames(wake && !has_thread, false);
        has_thread | above.has_thread
    }

    /// Called when frames wait in sockets of this context; with `wake` a thread is woken
    /// for them. Returns true if a thread here processes them.
    pub fn wake_for_frames(&self, wake: bool) -> bool {
        let inside = self.has_thread_inside();
        if wake && !self.is_current() {
            return self.wait_queue.threads().wake_any() | inside;
        }
        inside
    }

    /// Returns true when frames wait that the protocol has not processed.
    pub fn has_unprocessed_frames(&self) -> bool {
        self.unprocessed.len() != 0
    }

    /// Returns true while a thread waits here.
    pub fn has_thread_inside(&self) -> bool {
        self.threads_inside.load(Ordering::SeqCst) != 0
    }

    /// As [`PollContext::has_thread_inside`], or in a set that contains this one.
    pub fn is_waited_in(&self) -> bool {
        self.has_thread_inside() || self.wait_queue.has_thread_in_context()
    }

    /// Returns true when the calling thread waits here.
    fn is_current(&self) -> bool {
        CURRENT_CONTEXT.get() == std::ptr::from_ref(self).addr()
    }

    /// Returns the helper thread of the context's stack.
    pub fn helper(&self) -> &Arc<Helper> {
        &self.helper
    }

    /// Runs the protocol on the waiting frames.
    #[inline]
    pub fn process(&self, core: &Core) {
        if self.has_unprocessed_frames() {
            self.process_all(core);
        }
    }

    fn process_all(&self, core: &Core) {
        let mut taken = VecDeque::new();
        while self.has_unprocessed_frames() {
            // The lists exchange their memory.
            self.unprocessed
                .change(|unprocessed| std::mem::swap(unprocessed, &mut taken));
            for registration in taken.drain(..) {
                registration.unprocessed.leave();
                registration.process(core);
            }
        }
        if taken.capacity() > 0 {
            self.unprocessed.change(|unprocessed| {
                if unprocessed.capacity() == 0 {
                    *unprocessed = taken;
                }
            });
        }
    }

    // ---- Kernel descriptors -------------------------------------------------

    /// Returns the epoll descriptor of the kernel descriptors, for a context that
    /// contains this one.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn make_kernel_descriptor(&self) -> io::Result<i32> {
        self.kernel.make(&self.wait_queue).map(Epoll::descriptor)
    }

    /// Returns the kernel's part of this context's registrations.
    pub(super) fn kernel(&self) -> &KernelDescriptors {
        &self.kernel
    }

    /// Passes ready kernel descriptors to `each`, at most `most`, and notifies sockets
    /// that have a kernel part. The kernel is polled if it has reported readiness, now
    /// and then, and if `insist`.
    ///
    /// # Errors
    /// EINTR.
    pub fn poll_kernel(
        &self,
        insist: bool,
        most: usize,
        each: &mut dyn FnMut(&Arc<Registration>, Events),
    ) -> io::Result<()> {
        self.kernel.poll(self.wait_number(), insist, most, each)
    }

    /// As [`PollContext::poll_kernel`], and puts every one that is ready on the ready
    /// list, for calls that treat them like any other.
    ///
    /// # Errors
    /// EINTR.
    pub fn mark_kernel_ready(&self, insist: bool) -> io::Result<()> {
        self.kernel.mark_ready(self.wait_number(), insist)
    }
}

impl Waitable for PollContext {
    fn enter(&self, waker: &Arc<Waker>) {
        // One sleeper is enough for one thing that comes.
        self.wait_queue.enter(waker, true);
    }

    fn has_input(&self) -> bool {
        self.has_ready() || self.has_unprocessed_frames() || self.kernel.is_noted_ready()
    }

    fn descriptor_for(&self, waker: &Arc<Waker>) -> i32 {
        self.kernel.descriptor_for(waker)
    }

    fn kernel_has_input(&self) {
        self.kernel.note_ready();
    }

    fn kernel_has_none(&self) {
        self.kernel.note_none();
    }

    fn leave(&self, waker: &Arc<Waker>) {
        self.wait_queue.leave(waker);
        self.kernel.leave(waker, &self.wait_queue);
    }
}

impl Context for PollContext {
    fn has_thread_inside(&self) -> bool {
        PollContext::has_thread_inside(self)
    }

    fn has_unprocessed_frames(&self) -> bool {
        PollContext::has_unprocessed_frames(self)
    }

    fn process(&self, core: &Core) {
        PollContext::process(self, core);
    }
}
