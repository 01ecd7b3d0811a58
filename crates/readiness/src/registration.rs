//! A file that contexts poll, and its registration with one of them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

use super::exchange::Listed;
use super::poll_context::{Interface, PollContext};
use crate::epoll::EpollSet;
use crate::events::Events;
use crate::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::threads::Waitable;

/// A socket as contexts poll it, while it lives.
pub trait Pollable: Send + Sync {
    /// Who waits for it.
    fn wait_queue(&self) -> &WaitQueue;

    /// What it is ready for now.
    fn events(&self) -> Events;

    /// As [`Pollable::events`], as far as it is known without asking the kernel, where
    /// that reports its part by itself.
    fn own_events(&self) -> Events {
        self.events()
    }

    /// True while frames wait that the protocol has not processed.
    fn has_unprocessed_frames(&self) -> bool {
        false
    }

    /// Runs the protocol on the frames that wait.
    fn process_frames(self: Arc<Self>, _core: &Core) {}

    /// The kernel says that its descriptor of it has input.
    fn kernel_has_input(&self) {}

    /// True for an epoll set: the kernel alone may know what it is ready for.
    fn is_epoll(&self) -> bool {
        false
    }
}

/// A file that contexts can poll.
pub trait File: Send + Sync {
    /// What a registration asks; `None` for a descriptor of the kernel's, which only
    /// the context's epoll descriptor knows about.
    fn pollable(&self) -> Option<Arc<dyn Pollable>>;

    /// Where its registrations are kept.
    fn wait_queue(&self) -> &WaitQueue;

    /// Its descriptor of the kernel; -1: none.
    fn descriptor(&self) -> i32;

    /// True for one of this stack, or of none.
    fn is_of(&self, stack: &StackHandle) -> bool;

    /// False for files that epoll refuses: they never wait.
    fn can_poll(&self) -> bool {
        true
    }

    /// The epoll set that it is, if it is one.
    fn epoll_set(&self) -> Option<&EpollSet> {
        None
    }

    /// What it is ready for, with the frames that wait processed; `None` where
    /// [`File::pollable`] knows.
    fn ready_now(&self, _core: &Core) -> Option<Events> {
        None
    }
}

/// What an application has of a socket that is open until it is dropped: its stack,
/// and what that shares.
pub trait Handle {
    type Shared: Pollable + Waitable + 'static;

    fn stack(&self) -> &StackHandle;

    /// What the stack shares with it.
    fn shared(&self) -> &Arc<Self::Shared>;

    /// See [`File::ready_now`].
    fn look(&self, _core: &Core) -> Option<Events> {
        None
    }
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

    fn ready_now(&self, core: &Core) -> Option<Events> {
        self.look(core)
    }

    fn is_of(&self, stack: &StackHandle) -> bool {
        self.stack().is(stack)
    }
}

/// One socket in one context.
pub struct Registration {
    pub context: Arc<PollContext>,
    /// The socket; `None`: only the kernel knows about the file, or nobody does if there
    /// is no descriptor either: it is always ready, as poll(2) has it.
    source: Option<Weak<dyn Pollable>>,
    /// Descriptor of the kernel that is polled too; -1: none.
    pub(super) descriptor: i32,
    /// That descriptor, where it is the registration's own.
    own: Mutex<Option<OwnedFd>, rank::Leaf>,
    /// Its place among those with a descriptor; `usize::MAX`: none.
    pub(super) kernel_key: AtomicUsize,
    /// The owner's: a token, a descriptor's number.
    key: AtomicU64,
    slot: AtomicUsize,
    /// Events, and the flags of `epoll_ctl`.
    interest: AtomicU32,
    /// It is on the context's ready list.
    ready: Listed,
    /// It is in the context's list of those with frames.
    pub unprocessed: Listed,
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

    /// What its owner calls it.
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Its place in a table of its owner's: see [`PollContext::take_retired`].
    pub(super) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    pub(super) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    pub fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// What it is registered for, with the flags of `epoll_ctl`.
    pub fn interest(&self) -> Events {
        Events::from_bits(self.interest.load(Ordering::Relaxed))
    }

    /// Changes what it is registered for; the caller looks at [`Registration::events`]
    /// afterwards, since it was not notified of what happened before. ERR and HUP
    /// are reported if they are in it.
    ///
    /// # Errors
    /// What epoll reports of a descriptor of the kernel's.
    pub fn set_interest(&self, interest: Events) -> std::io::Result<()> {
        self.interest.store(interest.bits(), Ordering::Relaxed);
        // Either a notifier sees it, or we see what it is about.
        fence(Ordering::SeqCst);
        self.context.kernel().change(self)
    }

    /// Clears what it is registered for, and leaves the kernel's part alone: a
    /// one-shot registration that was reported.
    pub fn disable(&self) {
        self.interest
            .fetch_and(Events::FLAGS.bits(), Ordering::Relaxed);
    }

    /// False once it is retired.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// False once it is retired or its context closed.
    pub fn is_live(&self) -> bool {
        self.is_active() && !self.context.is_closed()
    }

    /// True for one of this context.
    pub fn is_of(&self, context: &Arc<PollContext>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// True for one of a selector.
    pub fn is_selectors(&self) -> bool {
        self.interface == Interface::Selector
    }

    /// What the kernel's epoll is asked about its descriptor. Of what the kernel has
    /// but a part in it reports changes of the input alone, whatever is asked for.
    pub(super) fn kernel_interest(&self) -> u32 {
        if self.is_kernel_only() {
            self.interest().without(Events::WAKEUP).bits()
        } else {
            (Events::IN | Events::EDGE).bits()
        }
    }

    /// It is off the ready list: from now on a change puts it there again. Look at
    /// [`Registration::events`] afterwards. False when it was unmarked before.
    pub fn unmark(&self) -> bool {
        self.ready.leave()
    }

    /// What it is ready for of what it is registered for, when it was taken off the
    /// ready list: the caller puts it back, as what is level-triggered. Nothing: it is
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
        // It may have become ready since, and found its flag set.
        let events = ready();
        if !events.is_empty() && self.ready.enter() {
            return events;
        }
        Events::NONE
    }

    /// True for one of which only the kernel knows what it is ready for; a set may
    /// have such in it.
    pub(super) fn may_need_kernel(&self) -> bool {
        match &self.source {
            Some(source) => source.upgrade().is_some_and(|source| source.is_epoll()),
            None => self.descriptor >= 0,
        }
    }

    /// True for one that only the kernel knows about.
    pub fn is_kernel_only(&self) -> bool {
        self.source.is_none() && self.descriptor >= 0
    }

    /// It is being reported to the application: what its connection wants to send
    /// waits for what it writes.
    pub fn note_reported(&self) {
        let wait = self.context.wait_number();
        self.reported.store(wait, Ordering::Relaxed);
    }

    /// True while it was reported to the application, or is about to be.
    pub fn is_ready(&self) -> bool {
        self.ready.is_in() || self.reported.load(Ordering::Relaxed) == self.context.wait_number()
    }

    /// What its file is ready for now, whatever it is registered for; nothing once
    /// it is retired.
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

    /// Something changed: if it is of interest, this goes on the ready list. True when
    /// a thread takes it: see [`WaitQueue::notify_registrations`].
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

    /// Puts it on the ready list if it is ready for what it is registered for.
    pub fn mark_if_ready(self: &Arc<Self>) {
        if !self.is_kernel_only() && self.events().intersects(self.interest()) {
            self.mark_ready();
        }
    }

    /// As [`Registration::mark_if_ready`], for one that is new: what the kernel has for
    /// it, the kernel reports by itself.
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
        // A set in a set is readable.
        let above = &self.context.wait_queue;
        above.notify_registrations(Events::READABLE);
    }

    /// Runs the protocol on the frames that wait for its socket.
    pub(super) fn process(&self, core: &Core) {
        if let Some(source) = self.source.as_ref().and_then(Weak::upgrade) {
            source.process_frames(core);
        }
    }

    /// The kernel says that a descriptor of a socket that it has a part in has
    /// input.
    pub(super) fn kernel_has_input(self: &Arc<Self>) {
        if let Some(source) = self.source.as_ref().and_then(Weak::upgrade) {
            source.kernel_has_input();
        }
        self.notify(Events::DATA_CAME);
    }

    /// It is removed: it is not reported any more, though it may be on the ready list.
    pub fn retire(&self) {
        // Of a file of the kernel's, its place is cleared with the next one there.
        if self.deactivate()
            && let Some(source) = self.source.as_ref().and_then(Weak::upgrade)
        {
            source.wait_queue().unregister(self);
        }
    }

    /// As [`Registration::retire`], but for its place in the socket's list. False
    /// when it was retired before.
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
