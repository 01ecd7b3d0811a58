//! A thread's state between calls, for each descriptor table.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};

use super::classes::Classes;
use super::interest::{Files, Found, Interest};
use super::poll_context::{Interface, PollContext};
use super::registration::{File, Registration};
use super::{Events, SignalSet};
use crate::descriptor::{Closing, FileTable, Identity};

/// Registrations of a thread with the files of a table, by descriptor.
///
/// Closing a descriptor in any thread retires its registration at once. The owner forgets
/// its state of the descriptor when it next calls [`DescriptorContext::take_closed`].
pub(super) struct DescriptorContext {
    pub(super) context: Arc<PollContext>,
    by_number: Mutex<ByNumber, rank::ThreadState>,
    /// Closed descriptors exist; read without the lock.
    has_closed: AtomicBool,
}

#[derive(Default)]
pub(super) struct ByNumber {
    registrations: Vec<Option<Arc<Registration>>>,
    /// The number of those that only the kernel knows.
    kernel_only: usize,
    /// Descriptors closed since the last query.
    closed: Vec<usize>,
}

impl ByNumber {
    pub(super) fn get(&self, number: usize) -> Option<&Arc<Registration>> {
        self.registrations.get(number)?.as_ref()
    }

    /// Returns true for the descriptor's current registration; the ready list may hold an older
    /// one.
    pub(super) fn is_current(&self, registration: &Arc<Registration>) -> bool {
        let current = self.get(registration.key() as usize);
        current.is_some_and(|current| Arc::ptr_eq(current, registration))
    }

    /// Returns true if there are descriptors that only the kernel knows.
    pub(super) fn has_kernel_only(&self) -> bool {
        self.kernel_only > 0
    }

    /// Returns true for a registration of a file that is not the kernel's alone.
    fn is_own(&self, number: usize) -> bool {
        self.get(number).is_some_and(|it| !it.is_kernel_only())
    }

    pub(super) fn insert(&mut self, number: usize, registration: Arc<Registration>) {
        if number >= self.registrations.len() {
            // Grows as a vector does by itself, unlike `resize`.
            self.registrations
                .reserve(number + 1 - self.registrations.len());
            self.registrations.resize(number + 1, None);
        }
        self.kernel_only += usize::from(registration.is_kernel_only());
        if let Some(place) = self.registrations.get_mut(number) {
            *place = Some(registration);
        }
    }

    /// Retires a descriptor's registration, if it has one.
    pub(super) fn remove(&mut self, number: usize) -> Option<Arc<Registration>> {
        let registration = self.registrations.get_mut(number)?.take()?;
        self.kernel_only -= usize::from(registration.is_kernel_only());
        registration.retire();
        Some(registration)
    }
}

impl Closing for DescriptorContext {
    fn closing(&self, fd: i32) {
        let Ok(number) = usize::try_from(fd) else {
            return;
        };
        let mut by_number = lock(&self.by_number);
        let Some(registration) = by_number.get(number).cloned() else {
            return;
        };
        by_number.closed.push(number);
        self.has_closed.store(true, Ordering::Release);
        // Wakes a thread that sleeps on it.
        registration.mark_ready();
        by_number.remove(number);
    }
}

impl DescriptorContext {
    pub(super) fn new(descriptors: &dyn FileTable) -> io::Result<Arc<Self>> {
        let polled = Arc::new(DescriptorContext {
            context: PollContext::new(descriptors.stack().here()?, false)?,
            by_number: Mutex::default(),
            has_closed: AtomicBool::new(false),
        });
        descriptors.observe(Arc::downgrade(&polled) as _);
        Ok(polled)
    }

    /// Registers an open file under a descriptor.
    ///
    /// # Errors
    /// Epoll's errors for a kernel descriptor.
    pub(super) fn register(
        &self,
        file: &dyn File,
        number: usize,
        interest: Events,
    ) -> io::Result<Arc<Registration>> {
        self.context
            .register(file, number as u64, interest, Interface::Poll)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ByNumber, rank::ThreadState> {
        lock(&self.by_number)
    }

    /// Calls `each` with the descriptors closed since the last call; they may name other
    /// files now.
    pub(super) fn take_closed(&self, mut each: impl FnMut(usize)) {
        if self.has_closed.load(Ordering::Acquire) {
            let closed = {
                let mut by_number = self.lock();
                self.has_closed.store(false, Ordering::Release);
                std::mem::take(&mut by_number.closed)
            };
            closed.into_iter().for_each(&mut each);
        }
    }

    /// Ends the context. The stack may already be gone.
    fn close(&self, core: Option<&Core>) {
        let by_number = std::mem::take(&mut *self.lock());
        for registration in by_number.registrations.iter().flatten() {
            registration.retire();
        }
        if let Some(core) = core {
            self.context.close(core);
        }
    }
}

/// A thread's state for one table: that of `select` and `poll`, and, once requested, its
/// event queue.
pub(crate) struct ThreadState {
    table: Identity,
    core: Weak<Core>,
    pub(super) polled: Arc<DescriptorContext>,
    pub(super) interest: Interest,
    /// Reused from call to call.
    pub(crate) found: Found,
    pub(crate) taken: Vec<Arc<Registration>>,
    /// Descriptors that were closed or became ready while a call waited.
    pub(super) changed: Vec<usize>,
    /// Positions in the list of the sleeping `poll`, by descriptor.
    pub(super) places: Vec<u32>,
    pub(super) events: Option<Arc<DescriptorContext>>,
    /// The context in which a classical `select` sleeps; empty between calls.
    pub(crate) classical: Option<Arc<PollContext>>,
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        let core = self.core.upgrade();
        if core.as_ref().is_some_and(|core| !core.process.is_current()) {
            return;
        }
        self.polled.close(core.as_deref());
        if let Some(events) = &self.events {
            events.close(core.as_deref());
        }
        if let (Some(classical), Some(core)) = (&self.classical, &core) {
            classical.close(core);
        }
    }
}

thread_local! {
    /// One for each table on which the thread has waited.
    // Each call takes one out and puts it back: a pointer, not the whole.
    #[allow(clippy::vec_box)]
    static STATES: RefCell<Vec<Box<ThreadState>>> = const { RefCell::new(Vec::new()) };
}

/// Passes the calling thread's state for a table to `call`. It is empty at first, also in
/// a forked child, which has another table.
pub(crate) fn with_thread_state<T>(
    descriptors: &dyn FileTable,
    call: impl FnOnce(&mut ThreadState) -> io::Result<T>,
) -> io::Result<T> {
    let table = descriptors.address();
    // A thread that is ending has no states any more: it creates one per call.
    let known = STATES.try_with(|states| {
        let mut states = states.borrow_mut();
        let place = states.iter().position(|thread| thread.table.is_at(table))?;
        Some(states.swap_remove(place))
    });
    let mut thread = match known {
        Ok(Some(thread)) => thread,
        _ => {
            // States of tables that are gone are dropped now, outside the borrow.
            let gone = STATES.try_with(|states| {
                let gone = |thread: &mut Box<ThreadState>| thread.table.is_gone();
                let mut states = states.borrow_mut();
                states.extract_if(.., gone).collect::<Vec<_>>()
            });
            drop(gone);
            Box::new(ThreadState {
                table: descriptors.identity(),
                core: Arc::downgrade(descriptors.stack().core()),
                polled: DescriptorContext::new(descriptors)?,
                interest: Interest::default(),
                found: Found::default(),
                taken: Vec::new(),
                changed: Vec::new(),
                places: Vec::new(),
                events: None,
                classical: None,
            })
        }
    };
    let result = call(&mut thread);
    let _ = STATES.try_with(|states| states.borrow_mut().push(thread));
    result
}

/// The parts in which `select` and `poll` differ.
pub(super) trait Call {
    /// Examines the requested descriptors that the rule requires.
    fn examine_all(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()>;

    /// Examines the requested descriptors in [`ThreadState::changed`]; the others need
    /// not wake the thread again.
    fn examine_changed(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()>;

    /// Returns the number of descriptors found ready.
    fn found(&self, thread: &ThreadState) -> usize;

    /// Calls `each` with the requested descriptors while it returns true; returns whether
    /// it did for all.
    fn all_asked(&self, each: &mut dyn FnMut(usize) -> bool) -> bool;
}

impl ThreadState {
    /// Waits until `call` finds something ready. Returns the number of ready descriptors;
    /// 0 at the timeout.
    ///
    /// # Errors
    /// Those of [`PollContext::wait`]; EINTR also for a signal that was pending.
    pub(super) fn wait(
        &mut self,
        descriptors: &dyn FileTable,
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
        call: &mut dyn Call,
    ) -> io::Result<usize> {
        let polled = self.polled.clone();
        let context = &polled.context;
        let core = descriptors.stack().here()?;
        let mut first = true;
        let found = context.wait(core, timeout, signals, &mut |insist| {
            let mut files = self.gather(&polled, descriptors, insist, first)?;
            if std::mem::take(&mut first) {
                call.examine_all(self, &mut files)?;
            } else {
                call.examine_changed(self, &mut files)?;
            }
            drop(files);
            if context.has_unprocessed_frames() {
                // Processes frames that arrived before their socket was registered.
                context.process(core);
                let mut files = self.gather(&polled, descriptors, false, false)?;
                call.examine_changed(self, &mut files)?;
            }
            let found = call.found(self);
            if found > 0 {
                let (by_number, mut first) = (polled.lock(), None);
                let is_one = call.all_asked(&mut |number| {
                    !by_number.is_own(number) || *first.get_or_insert(number) == number
                });
                context.set_loops(!is_one);
            }
            Ok(found)
        })?;
        // A pending signal that the call does not block ends a call that does not wait,
        // too.
        if found == 0 && timeout == Some(Duration::ZERO) && signals.is_some() {
            tidewall_sys::poll_readable(&[], timeout, signals, &mut Vec::new())?;
        }
        Ok(found)
    }

    /// Collects descriptors that were closed or have changed since the last call. Unless
    /// this is the `first` time in a call, they go into `changed`.
    fn gather<'a>(
        &mut self,
        polled: &'a DescriptorContext,
        descriptors: &'a dyn FileTable,
        insist: bool,
        first: bool,
    ) -> io::Result<OpenFiles<'a>> {
        let (interest, changed) = (&mut self.interest, &mut self.changed);
        changed.clear();
        polled.take_closed(|number| {
            interest.forget(number);
            changed.push(number);
        });
        let mut files = OpenFiles::new(descriptors, polled);
        files.mark_kernel_ready(insist)?;
        polled.context.take_all(&mut self.taken);
        // All are recorded before one is examined, which may fail.
        for registration in self.taken.drain(..) {
            let number = registration.key() as usize;
            if !files.by_number.is_current(&registration) {
                continue;
            }
            let is_asked = interest.hint(number);
            if !first {
                changed.push(number);
            } else if !is_asked {
                files.park(number);
            }
        }
        Ok(files)
    }
}

/// The files of a table, as [`Interest`] examines them.
pub(super) struct OpenFiles<'a> {
    descriptors: &'a dyn FileTable,
    polled: &'a DescriptorContext,
    pub(super) by_number: MutexGuard<'a, ByNumber, rank::ThreadState>,
}

impl<'a> OpenFiles<'a> {
    pub(super) fn new(descriptors: &'a dyn FileTable, polled: &'a DescriptorContext) -> Self {
        OpenFiles {
            descriptors,
            polled,
            by_number: polled.lock(),
        }
    }

    /// Puts ready kernel descriptors on the ready list. The kernel is always polled for
    /// files that only it knows, since nothing else reports them. For sockets that have a
    /// kernel part, it is polled now and then.
    pub(super) fn mark_kernel_ready(&self, insist: bool) -> io::Result<()> {
        let context = &self.polled.context;
        context.mark_kernel_ready(insist || self.by_number.has_kernel_only())
    }

    /// Called when no call requests a hinted descriptor: it need not be hinted again
    /// until it is examined.
    pub(super) fn park(&mut self, number: usize) {
        self.narrow(number, Classes::NONE);
    }
}

/// Returns the events for these classes. Kernel descriptors are reported once per change,
/// like others: one that is ready but not selected must not wake a thread twice.
fn wanted(interest: Classes) -> Events {
    interest.interest() | Events::EDGE
}

impl Files for OpenFiles<'_> {
    type Error = io::Error;

    fn examine(&mut self, number: usize, interest: Classes) -> io::Result<Events> {
        let wanted = wanted(interest);
        if let Some(registration) = self.by_number.get(number) {
            if registration.interest() != wanted {
                registration.set_interest(wanted)?;
            }
            return Ok(registration.events());
        }
        let fd = i32::try_from(number).unwrap_or(-1);
        let file = self.descriptors.open_file(fd)?;
        let registration = self.polled.register(&*file, number, wanted)?;
        let state = registration.events();
        self.by_number.insert(number, registration);
        Ok(state)
    }

    fn narrow(&mut self, number: usize, interest: Classes) {
        if let Some(registration) = self.by_number.get(number) {
            // A registration that cannot be narrowed is only reported too often.
            let _ = registration.set_interest(wanted(interest));
        }
    }
}
