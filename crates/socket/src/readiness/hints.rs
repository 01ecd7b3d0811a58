//! A context: what was hinted, whose frames wait, and who waits for either.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::Events;
use super::kernel_part::KernelPart;
use super::registration::{Parts, Registration, Source};
use super::watch::{TURNING, Watch};
use crate::raw::epoll::{Epoll, duplicate};
use crate::stack::{Core, lock};
use crate::tcp::helper::Helper;
use crate::wait::{WaitList, Waitable, Waiter};

mod turns;

/// How a registration is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// The socket may be in no other context that says so: selectors.
    pub(crate) sole: bool,
    /// Files that epoll refuses (EPERM) are always ready, as poll(2) has it;
    /// otherwise they are refused here too.
    pub(crate) always: bool,
}

/// One waiting context: a selector, an epoll set, a thread's `select`, an event
/// queue.
pub(crate) struct Hints {
    /// Registrations with a hint, in the order in which it came.
    hinted: Mutex<VecDeque<Arc<Registration>>>,
    hinted_count: AtomicUsize,
    /// Those whose channels have frames that the protocol has not seen.
    framed: Mutex<Vec<Arc<Registration>>>,
    framed_count: AtomicUsize,
    /// Slots of those that were retired, for an owner that has a table of them.
    retired: Mutex<Vec<usize>>,
    retired_count: AtomicUsize,
    is_set: bool,
    waiters: WaitList,
    /// Threads that wait or turn here.
    inside: AtomicUsize,
    /// Who watches this context itself: sets in sets.
    pub(crate) watch: Watch,
    kernel: KernelPart,
    turns: AtomicU32,
    /// What an event has cost the application lately, ns, and what the next wait
    /// learns it from: when the last one returned, in ns since the stack started,
    /// and with how many.
    event_cost: AtomicU64,
    returned_at: AtomicU64,
    returned: AtomicUsize,
    /// Nobody waits here any more.
    gone: AtomicBool,
    helper: Arc<Helper>,
}

impl std::fmt::Debug for Hints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hints")
            .field("hinted", &self.hinted_count)
            .field("framed", &self.framed_count)
            .finish_non_exhaustive()
    }
}

impl Hints {
    /// A context on a stack. `is_set`: it is an epoll set's, which notes what is
    /// retired ([`Hints::take_retired`]).
    ///
    /// # Errors
    /// What starting the stack's helper thread reports.
    pub(crate) fn new(core: &Arc<Core>, is_set: bool) -> io::Result<Arc<Self>> {
        Helper::start(core)?;
        let hints = Arc::new(Hints {
            hinted: Mutex::default(),
            hinted_count: AtomicUsize::new(0),
            framed: Mutex::default(),
            framed_count: AtomicUsize::new(0),
            retired: Mutex::default(),
            retired_count: AtomicUsize::new(0),
            is_set,
            waiters: WaitList::default(),
            inside: AtomicUsize::new(0),
            watch: Watch::default(),
            kernel: KernelPart::default(),
            // Never the turn that a new registration remembers.
            turns: AtomicU32::new(1),
            event_cost: AtomicU64::new(0),
            returned_at: AtomicU64::new(0),
            returned: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            helper: core.tcp.helper.clone(),
        });
        core.tcp.helper.add_context(&hints);
        Ok(hints)
    }

    /// Ends it: registrations with it leave no hints any more, and are forgotten
    /// by their sockets in time.
    pub(crate) fn close(self: &Arc<Self>, core: &Core) {
        self.gone.store(true, Ordering::SeqCst);
        self.process(core);
        core.tcp.helper.remove_context(self);
        // They point to it, and it to them.
        let hinted = std::mem::take(&mut *lock(&self.hinted));
        drop(hinted);
        let framed = std::mem::take(&mut *lock(&self.framed));
        drop(framed);
        self.kernel.close();
        self.watch.retire();
    }

    /// True once it is closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    // ---- Registrations ------------------------------------------------------

    /// Watches a socket under a key of the owner's. What it is ready for already
    /// leaves a hint at once.
    ///
    /// # Errors
    /// EEXIST for a second sole registration; what epoll reports of a descriptor of
    /// the kernel's (EPERM, EBADF, ENOSPC, ENOMEM).
    pub(crate) fn register(
        self: &Arc<Self>,
        parts: Parts<'_>,
        key: u64,
        interest: Events,
        manner: Manner,
    ) -> io::Result<Arc<Registration>> {
        let Parts {
            source,
            watch,
            descriptor,
        } = parts;
        let make = |source, descriptor, own| {
            let hints = self.clone();
            let made = Registration::new(hints, source, descriptor, own, key, interest, manner);
            Arc::new(made)
        };
        let kind = source.clone();
        let mut registration = make(source, descriptor, None);
        if !watch.add(registration.clone()) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        if descriptor >= 0
            && let Err(error) = self.kernel.add(&registration, &self.waiters)
        {
            watch.remove(&registration);
            registration = match error.raw_os_error() {
                Some(libc::EPERM) if manner.always => make(Source::Always, -1, None),
                // The same descriptor of the kernel's under another number.
                Some(libc::EEXIST) => {
                    let own = duplicate(descriptor)?;
                    let again = make(kind, own.as_raw_fd(), Some(own));
                    self.kernel.add(&again, &self.waiters)?;
                    again
                }
                _ => return Err(error),
            };
            watch.add(registration.clone());
        }
        // What came before it was watched.
        registration.hint_at_first();
        if registration.has_waiting_frames() {
            watch.has_frames();
        }
        Ok(registration)
    }

    /// A registration was retired: for owners that have a table of them.
    pub(super) fn note_retired(&self, slot: usize) {
        if self.is_set && !self.is_gone() {
            let mut retired = lock(&self.retired);
            retired.push(slot);
            self.retired_count.store(retired.len(), Ordering::SeqCst);
        }
    }

    /// Slots of registrations that were retired since the last call.
    pub(crate) fn take_retired(&self) -> Vec<usize> {
        if self.retired_count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut retired = lock(&self.retired);
        self.retired_count.store(0, Ordering::SeqCst);
        std::mem::take(&mut *retired)
    }

    /// True for an epoll set's.
    pub(super) fn is_set(&self) -> bool {
        self.is_set
    }

    // ---- Hints --------------------------------------------------------------

    /// A registration has a hint. Its flag is set by the caller.
    pub(super) fn push_hinted(&self, registration: Arc<Registration>) {
        {
            let mut hinted = lock(&self.hinted);
            if self.is_gone() {
                return;
            }
            hinted.push_back(registration);
            self.hinted_count.store(hinted.len(), Ordering::SeqCst);
        }
        if !self.is_turned_here() {
            self.waiters.wake_next();
        }
    }

    /// Puts registrations back whose flags were left set: they are looked at
    /// again, after the others.
    pub(crate) fn put_back(&self, registrations: &mut Vec<Arc<Registration>>) {
        if registrations.is_empty() {
            return;
        }
        let mut hinted = lock(&self.hinted);
        hinted.extend(registrations.drain(..));
        self.hinted_count.store(hinted.len(), Ordering::SeqCst);
    }

    /// The registration that is looked at first, which stays where it is.
    pub(super) fn first_hinted(&self) -> Option<Arc<Registration>> {
        if !self.has_hints() {
            return None;
        }
        lock(&self.hinted).front().cloned()
    }

    /// Takes the registration out that is looked at first.
    pub(super) fn drop_first(&self) {
        let first = {
            let mut hinted = lock(&self.hinted);
            let first = hinted.pop_front();
            self.hinted_count.store(hinted.len(), Ordering::SeqCst);
            first
        };
        drop(first);
    }

    /// Puts a registration back that is looked at before the others. Whoever came to
    /// sleep here meanwhile has not seen it.
    pub(super) fn put_first(&self, registration: Arc<Registration>) {
        {
            let mut hinted = lock(&self.hinted);
            hinted.push_front(registration);
            self.hinted_count.store(hinted.len(), Ordering::SeqCst);
        }
        self.waiters.wake_next();
    }

    /// How many have a hint.
    pub(super) fn hinted_len(&self) -> usize {
        self.hinted_count.load(Ordering::SeqCst)
    }

    /// Takes registrations with a hint, `most` of them, in order. Their flags stay
    /// set: whoever does not put one back calls [`Registration::settle`].
    pub(crate) fn take_some(&self, most: usize, out: &mut Vec<Arc<Registration>>) {
        if !self.has_hints() {
            return;
        }
        let mut hinted = lock(&self.hinted);
        let count = hinted.len().min(most);
        out.extend(hinted.drain(..count));
        self.hinted_count.store(hinted.len(), Ordering::SeqCst);
    }

    /// Takes registrations that were hinted since the last call, those of kernel
    /// descriptors that are ready among them. Their flags are cleared first, so
    /// that a later hint is never lost.
    pub(crate) fn take(&self, out: &mut Vec<Arc<Registration>>) {
        let from = out.len();
        self.take_some(usize::MAX, out);
        for registration in out.iter().skip(from) {
            registration.settle();
        }
        out.retain(|registration| registration.is_active());
    }

    /// Gives registrations with a hint that are ready to `each`, `most` of them, and
    /// keeps those for the next call, behind the others: level-triggered. Those that
    /// are not ready after all are forgotten until their next hint.
    pub(crate) fn take_level(&self, most: usize, each: &mut dyn FnMut(&Arc<Registration>, Events)) {
        if !self.has_hints() {
            return;
        }
        let mut batch = Vec::new();
        self.take_some(most, &mut batch);
        batch.retain(|registration| {
            if !registration.is_active() {
                return false;
            }
            let mut ready = registration.events() & registration.interest();
            if ready.is_empty() {
                registration.settle();
                // It may have become ready since, and found its flag set.
                ready = registration.events() & registration.interest();
                if ready.is_empty() || !registration.unsettle() {
                    return false;
                }
            }
            each(registration, ready);
            true
        });
        self.put_back(&mut batch);
    }

    /// True when registrations have hints.
    pub(crate) fn has_hints(&self) -> bool {
        self.hinted_count.load(Ordering::SeqCst) != 0
    }

    /// True when somebody will take a hint without being woken by another one: a
    /// thread that sleeps here, or the calling one.
    pub(super) fn has_taker(&self) -> bool {
        !self.waiters.is_empty() || self.is_turned_here()
    }

    /// Something is ready here: whoever watches this context is told.
    pub(super) fn tell_watchers(&self) {
        self.watch.notify(Events::READABLE);
    }

    // ---- Frames -------------------------------------------------------------

    /// Frames came for a socket. Its flag is set by the caller. `wake`: a thread
    /// is woken for them. True when somebody is here who sees to them.
    pub(super) fn push_framed(&self, registration: Arc<Registration>, wake: bool) -> bool {
        {
            let mut framed = lock(&self.framed);
            if self.is_gone() {
                return false;
            }
            framed.push(registration);
            self.framed_count.store(framed.len(), Ordering::SeqCst);
        }
        let attended = self.attend_frames(wake);
        if self.watch.is_watched() {
            return attended | self.watch.enter_frames(wake && !attended).attended;
        }
        attended
    }

    /// Frames wait in sockets of this context; `wake`: a thread is woken for them.
    /// True when somebody is here who sees to them.
    pub(super) fn attend_frames(&self, wake: bool) -> bool {
        let inside = self.is_inside();
        if wake && !self.is_turned_here() {
            return self.waiters.wake_any() | inside;
        }
        inside
    }

    /// True when frames wait that the protocol has not seen.
    pub(crate) fn has_frames(&self) -> bool {
        self.framed_count.load(Ordering::SeqCst) != 0
    }

    /// True while a thread waits here, or turns.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::SeqCst) != 0
    }

    /// As [`Hints::is_inside`], or one that watches this one.
    pub(super) fn is_attended(&self) -> bool {
        self.is_inside() || self.watch.is_attended()
    }

    fn is_turned_here(&self) -> bool {
        TURNING.get() == std::ptr::from_ref(self).addr()
    }

    pub(super) fn helper(&self) -> &Arc<Helper> {
        &self.helper
    }

    /// Runs the protocol on the frames of the sockets watched.
    pub(crate) fn process(&self, core: &Core) {
        let mut taken = Vec::new();
        while self.has_frames() {
            {
                let mut framed = lock(&self.framed);
                self.framed_count.store(0, Ordering::SeqCst);
                // Each lends the other its memory.
                std::mem::swap(&mut *framed, &mut taken);
            }
            for registration in taken.drain(..) {
                registration.framed.leave();
                registration.process(core);
            }
        }
        if taken.capacity() > 0 {
            let mut framed = lock(&self.framed);
            if framed.capacity() == 0 {
                *framed = taken;
            }
        }
    }

    // ---- The kernel's descriptors -------------------------------------------

    /// The descriptor that the kernel's sit in, for a context that watches this one.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn make_kernel_descriptor(&self) -> io::Result<i32> {
        self.kernel.make(&self.waiters).map(Epoll::descriptor)
    }

    /// True when the kernel has something to tell; asks it.
    pub(super) fn kernel_is_ready(&self) -> bool {
        self.kernel.is_ready()
    }

    /// The kernel said so to whoever watches this context.
    pub(super) fn note_kernel_ready(&self) {
        self.kernel.note_ready();
    }

    /// A registration's interest has changed.
    pub(super) fn change_kernel(&self, registration: &Registration) -> io::Result<()> {
        self.kernel.change(registration)
    }

    /// A registration is retired.
    pub(super) fn forget_kernel(&self, registration: &Registration) {
        self.kernel.remove(registration);
    }

    /// True when only the kernel knows what some are ready for: whoever must not miss
    /// them insists.
    pub(super) fn has_kernels(&self) -> bool {
        self.kernel.has_kernels()
    }

    /// Gives descriptors of the kernel's that are ready to `each`, `most` of them, and
    /// leaves hints with sockets that it has a part in. It is asked if it has said
    /// that there are some, now and then, and if `insist`.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn look_at_kernel(
        &self,
        insist: bool,
        most: usize,
        each: &mut dyn FnMut(&Arc<Registration>, Events),
    ) -> io::Result<()> {
        self.kernel.look(self.turn_number(), insist, most, each)
    }

    /// As [`Hints::look_at_kernel`], with a hint for every one that is ready: for
    /// whoever treats them as any other.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn hint_kernel(&self, insist: bool) -> io::Result<()> {
        self.kernel.hint(self.turn_number(), insist)
    }
}

impl Waitable for Hints {
    fn waiters(&self) -> &WaitList {
        &self.waiters
    }

    fn has_input(&self) -> bool {
        self.has_hints() || self.has_frames() || self.kernel.is_said_ready()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn slept_on(&self, waiter: &Arc<Waiter>) -> i32 {
        self.kernel.watched_by(waiter)
    }

    fn kernel_has_input(&self) {
        self.kernel.note_ready();
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        self.waiters.leave(waiter);
        self.kernel.left(waiter, &self.waiters);
    }
}
