//! A file that contexts poll, and its registration with one context.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::Waitable;

use super::exchange::Listed;
use super::poll_context::{Interface, PollContext};
use crate::epoll::EpollSet;
use crate::events::Events;
use crate::wait_queue::WaitQueue;

/// A socket that contexts poll while it exists.
pub trait Pollable: Send + Sync {
    /// Returns the queue of its waiters.
    fn wait_queue(&self) -> &WaitQueue;

    /// Returns what it is ready for now.
    fn events(&self) -> Events;

    /// As [`Pollable::events`], without asking the kernel, if the kernel reports its part
    /// by itself.
    fn own_events(&self) -> Events {
        self.events()
    }

    /// Returns true while frames wait that the protocol has not processed.
    fn has_unprocessed_frames(&self) -> bool {
        false
    }

    /// Runs the protocol on the waiting frames.
    fn process_frames(self: Arc<Self>, _core: &Core) {}

    /// Called when the kernel reports input on the socket's kernel descriptor.
    fn kernel_has_input(&self) {}

    /// Returns true for an epoll set: possibly only the kernel knows its readiness.
    fn is_epoll(&self) -> bool {
        false
    }
}

/// A file that contexts can poll.
pub trait File: Send + Sync {
    /// Returns the object that a registration queries. `None` for a kernel descriptor,
    /// which only the context's epoll descriptor knows.
    fn pollable(&self) -> Option<Arc<dyn Pollable>>;

    /// Returns the wait queue that holds its registrations.
    fn wait_queue(&self) -> &WaitQueue;

    /// Returns its kernel descriptor; -1 for none.
    fn descriptor(&self) -> i32;

    /// Returns true for a file of this stack, or of none.
    fn is_of(&self, stack: &StackHandle) -> bool;

    /// Returns false for files that epoll rejects: they never wait.
    fn can_poll(&self) -> bool {
        true
    }

    /// The epoll set that it is, if it is one.
    fn epoll_set(&self) -> Option<&EpollSet> {
        None
    }

    /// Returns the file's readiness, with the waiting frames processed; `None` if
    /// [`File::pollable`] reports it.
    fn ready_now(&self, _core: &Core) -> Option<Events> {
        None
    }
}

/// An application's reference to an open socket, until it is dropped: its stack, and the
/// state that the stack shares.
pub trait Handle {
    /// The state that the stack shares with the socket.
    type Shared: Pollable + Waitable + 'static;

    /// Returns the stack of the socket.
    fn stack(&self) -> &StackHandle;

    /// Returns the state that the stack shares with the socket.
    fn shared(&self) -> &Arc<Self::Shared>;
}

impl<H: Handle + Send + Sync> File for H {
    fn pollable(&self) -> Option<Arc<dyn Pollable>> {
        Some(self.shared().clone())
    }

    fn wait_queue(&self) -> &WaitQueue {
        Pollable::wait_queue(&**self.shared())
    }

    fn descriptor(&self) -> i32 {
        self.shared().kernel_descriptor()
    }

    fn is_of(&self, stack: &StackHandle) -> bool {
        self.stack().is(stack)
    }
}

/// One socket in one context.
pub struct Registration {
    /// The context.
    pub context: Arc<PollContext>,
    /// The socket. `None`: only the kernel knows the file. Without a descriptor either,
    /// the file is always ready, as poll(2) specifies.
    source: Option<Weak<dyn Pollable>>,
    /// A kernel descriptor that is polled too; -1 for none.
    pub(super) descriptor: i32,
    /// That descriptor, if the registration owns it.
    own: Mutex<Option<OwnedFd>, rank::Leaf>,
    /// Its index among those with a descriptor; `usize::MAX` for none.
    pub(super) kernel_key: AtomicUsize,
    /// The owner's key: a token, a descriptor.
    key: AtomicU64,
    slot: AtomicUsize,
    /// Events, and the flags of `epoll_ctl`.
    interest: AtomicU32,
    /// It is on the context's ready list.
    ready: Listed,
    /// It is in the context's list of those with frames.
    pub(crate) unprocessed: Listed,
    /// False once removed.
    active: AtomicBool,
    /// The context's wait that reported it to the application.
    reported: AtomicU32,
    interface: Interface,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .field("interest", &self.interest())
            .finish_non_exhaustive()
    }
}

impl Registration {
    /// Creates a registration of a file in `context`. `source`: the socket; `None` if
    /// only the kernel knows the file. `descriptor`: a kernel descriptor that is polled
    /// too, -1 for none; `own`: that descriptor, if the registration owns it.
    pub fn new(
        context: Arc<PollContext>,
        source: Option<Weak<dyn Pollable>>,
        descriptor: i32,
        own: Option<OwnedFd>,
        key: u64,
        interest: Events,
        interface: Interface,
    ) -> Self {
        Registration {
            context,
            source,
            descriptor,
            own: Mutex::new(own),
            kernel_key: AtomicUsize::new(usize::MAX),
            key: AtomicU64::new(key),
            slot: AtomicUsize::new(usize::MAX),
            interest: AtomicU32::new(interest.bits()),
            ready: Listed::new(),
            unprocessed: Listed::new(),
            active: AtomicBool::new(true),
            reported: AtomicU32::new(0),
            interface,
        }
    }

    /// Returns the owner's key.
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Returns its index in the owner's table: see [`PollContext::take_retired`].
    pub(super) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    pub(super) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Changes the owner's key.
    pub fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// Returns the events that it is registered for, with the flags of `epoll_ctl`.
    pub fn interest(&self) -> Events {
        Events::from_bits(self.interest.load(Ordering::Relaxed))
    }

    /// Changes the events that it is registered for. The caller then checks
    /// [`Registration::events`], since earlier changes did not notify it. ERR and HUP are
    /// reported if included.
    ///
    /// # Errors
    /// Epoll's errors for a kernel descriptor.
    pub fn set_interest(&self, interest: Events) -> std::io::Result<()> {
        self.interest.store(interest.bits(), Ordering::Relaxed);
        // Either a notifier sees the new interest, or this thread sees the notifier's
        // change.
        fence(Ordering::SeqCst);
        self.context.kernel().change(self)
    }

    /// Clears the events that it is registered for, and leaves the kernel's part alone: a
    /// one-shot registration that was reported.
    pub fn disable(&self) {
        self.interest
            .fetch_and(Events::FLAGS.bits(), Ordering::Relaxed);
    }

    /// Returns false once it is retired.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Returns false once it is retired or its context closed.
    pub fn is_live(&self) -> bool {
        self.is_active() && !self.context.is_closed()
    }

    /// Returns true for a registration of this context.
    pub fn is_of(&self, context: &Arc<PollContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Returns true for a selector's registration.
    pub fn is_selectors(&self) -> bool {
        self.interface == Interface::Selector
    }

    /// Returns the events that the kernel's epoll reports for its descriptor. For a file
    /// that has only a kernel part, it reports changes of the input alone, whatever is
    /// requested.
    pub(super) fn kernel_interest(&self) -> u32 {
        if self.is_kernel_only() {
            self.interest().without(Events::WAKEUP).bits()
        } else {
            (Events::IN | Events::EDGE).bits()
        }
    }

    /// Clears the mark of the ready list: from now on a change puts it there again. Check
    /// [`Registration::events`] afterwards. Returns false if it was unmarked before.
    pub fn unmark(&self) -> bool {
        self.ready.leave()
    }

    /// Returns the registered events that it is ready for, after it was taken off the
    /// ready list. The caller puts it back, as level-triggered. Without events, it is
    /// unmarked.
    pub fn level(&self) -> Events {
        if !self.is_active() {
            return Events::NONE;
        }
        let ready = || self.events() & self.interest();
        let events = ready();
        if !events.is_empty() {
            return events;
        }
        self.unmark();
        // It may have become ready since, with its flag still set.
        let events = ready();
        if !events.is_empty() && self.ready.enter() {
            return events;
        }
        Events::NONE
    }

    /// Returns true if only the kernel knows its readiness; a set may contain such files.
    pub(super) fn may_need_kernel(&self) -> bool {
        match &self.source {
            Some(source) => source.upgrade().is_some_and(|source| source.is_epoll()),
            None => self.descriptor >= 0,
        }
    }

    /// Returns true for a file that only the kernel knows.
    pub fn is_kernel_only(&self) -> bool {
        self.source.is_none() && self.descriptor >= 0
    }

    /// Records that it is being reported to the application: its connection's output
    /// waits for what the application writes.
    pub fn note_reported(&self) {
        let wait = self.context.wait_number();
        self.reported.store(wait, Ordering::Relaxed);
    }

    /// Returns true while it was reported to the application, or is about to be.
    pub fn is_ready(&self) -> bool {
        self.ready.is_in() || self.reported.load(Ordering::Relaxed) == self.context.wait_number()
    }

    /// Returns what its file is ready for now, whatever it is registered for; nothing
    /// once it is retired.
    pub fn events(&self) -> Events {
        if !self.is_active() {
            return Events::NONE;
        }
        match &self.source {
            Some(source) => source.upgrade().map_or(Events::NONE, |it| it.events()),
            None if self.descriptor < 0 => Events::READABLE | Events::WRITABLE,
            None => {
                let wanted = self.interest().bits() & !Events::FLAGS.bits();
                let ready = tidewall_sys::ready_now(self.descriptor, wanted as u16 as i16);
                Events::from_bits(u32::from(ready as u16) & !(libc::POLLNVAL as u32))
            }
        }
    }

    /// Records a change: if it is of interest, the registration goes on the ready list.
    /// Returns true when a thread handles it: see [`WaitQueue::notify_registrations`].
    pub fn notify(self: &Arc<Self>, changed: Events) -> bool {
        let interest = self.interest();
        if !interest.intersects(changed) {
            return false;
        }
        self.mark_ready();
        if !interest.contains(Events::EXCLUSIVE) {
            return true;
        }
        let direction = changed & (Events::IN | Events::OUT);
        self.context.has_taker()
            && match direction {
                Events::IN | Events::OUT => interest.intersects(direction),
                other => other.is_empty(),
            }
    }

    /// Puts it on the ready list if it is ready for its registered events.
    pub fn mark_if_ready(self: &Arc<Self>) {
        if !self.is_kernel_only() && self.events().intersects(self.interest()) {
            self.mark_ready();
        }
    }

    /// As [`Registration::mark_if_ready`], for a new one: the kernel reports its own part
    /// by itself.
    pub(super) fn mark_at_first(self: &Arc<Self>) {
        match self.source.as_ref().and_then(Weak::upgrade) {
            Some(source) if self.descriptor >= 0 => {
                if source.own_events().intersects(self.interest()) {
                    self.mark_ready();
                }
            }
            _ => self.mark_if_ready(),
        }
    }

    /// Puts it on the ready list, whatever it is registered for.
    pub fn mark_ready(self: &Arc<Self>) {
        if self.ready.enter() {
            self.context.push_ready(self.clone());
        }
        // A set that contains a ready set is readable.
        let above = &self.context.wait_queue;
        above.notify_registrations(Events::READABLE);
    }

    /// Runs the protocol on the waiting frames of its socket.
    pub(super) fn process(&self, core: &Core) {
        if let Some(source) = self.source.as_ref().and_then(Weak::upgrade) {
            source.process_frames(core);
        }
    }

    /// Called when the kernel reports input on the descriptor of a socket that has a
    /// kernel part.
    pub(super) fn kernel_has_input(self: &Arc<Self>) {
        if let Some(source) = self.source.as_ref().and_then(Weak::upgrade) {
            source.kernel_has_input();
        }
        self.notify(Events::DATA_CAME);
    }

    /// Retires it: it is not reported any more, though it may be on the ready list.
    pub fn retire(&self) {
        // For a kernel file, its entry is cleared with the next one there.
        if self.deactivate()
            && let Some(source) = self.source.as_ref().and_then(Weak::upgrade)
        {
            source.wait_queue().unregister(self);
        }
    }

    /// As [`Registration::retire`], but keeps its entry in the socket's list. Returns
    /// false if it was retired before.
    pub fn deactivate(&self) -> bool {
        let first = self.active.swap(false, Ordering::AcqRel);
        if first {
            self.interest.store(0, Ordering::Relaxed);
            self.context.kernel().remove(self);
            drop(lock(&self.own).take());
            self.context.note_retired(self.slot());
        }
        first
    }
}
