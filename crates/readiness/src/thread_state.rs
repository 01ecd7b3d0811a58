//! What a thread keeps between calls, for each table of descriptors.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::classes::Classes;
use super::interest::{Files, Found, Interest};
use super::poll_context::{Interface, PollContext};
use super::registration::{File, Registration};
use super::{Events, SignalSet};
use crate::descriptor::{Closing, FileTable, Identity};
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};

/// Registrations of a thread with the files of a table, by number.
///
/// Closing a number retires its registration at once, in whichever thread that
/// happens; what the owner knows of the number is forgotten when it next asks
/// [`DescriptorContext::take_closed`].
pub(super) struct DescriptorContext {
    pub(super) context: Arc<PollContext>,
    by_number: Mutex<ByNumber, rank::ThreadState>,
    /// There are closed numbers; read without the lock.
    has_closed: AtomicBool,
}

#[derive(Default)]
pub(super) struct ByNumber {
    registrations: Vec<Option<Arc<Registration>>>,
    /// How many of them only the kernel knows about.
    kernel_only: usize,
    /// Numbers closed since they were last asked for.
    closed: Vec<usize>,
}

impl ByNumber {
    pub(super) fn get(&self, number: usize) -> Option<&Arc<Registration>> {
        self.registrations.get(number)?.as_ref()
    }

    /// True for the registration that the number has now; the ready list may have an older one.
    pub(super) fn is_current(&self, registration: &Arc<Registration>) -> bool {
        let current = self.get(registration.key() as usize);
        current.is_some_and(|current| Arc::ptr_eq(current, registration))
    }

    /// True when there are descriptors that only the kernel knows about.
    pub(super) fn has_kernel_only(&self) -> bool {
        self.kernel_only > 0
    }

    /// True for a registration of something that is not the kernel's alone.
    fn is_own(&self, number: usize) -> bool {
        self.get(number).is_some_and(|it| !it.is_kernel_only())
    }

    pub(super) fn insert(&mut self, number: usize, registration: Arc<Registration>) {
        if number >= self.registrations.len() {
            // As a vector grows by itself, which `resize` does not.
            self.registrations
                .reserve(number + 1 - self.registrations.len());
            self.registrations.resize(number + 1, None);
        }
        self.kernel_only += usize::from(registration.is_kernel_only());
        if let Some(place) = self.registrations.get_mut(number) {
            *place = Some(registration);
        }
    }

    /// Retires a number's registration, if it has one.
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
        // A thread that sleeps on it learns of it.
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

    /// Registers an open file under a number.
    ///
    /// # Errors
    /// What epoll reports of a descriptor of the kernel's.
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

    /// Calls `each` with the numbers that were closed since the last call; they
    /// may be other files' now.
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

    /// Ends it. The stack may be gone already.
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

/// A thread's state for one table: that of `select` and `poll`, and, once it was
/// asked for, its event queue.
pub(crate) struct ThreadState {
    table: Identity,
    core: Weak<Core>,
    pub(super) polled: Arc<DescriptorContext>,
    pub(super) interest: Interest,
    /// Reused from call to call.
    pub(crate) found: Found,
    pub(crate) taken: Vec<Arc<Registration>>,
    /// Numbers that were closed or became ready while a call waited.
    pub(super) changed: Vec<usize>,
    /// Places of descriptors in the list of the `poll` that sleeps, by number.
    pub(super) places: Vec<u32>,
    pub(super) events: Option<Arc<DescriptorContext>>,
    /// Where a classical `select` sleeps; empty between calls.
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
    /// One for each table that the thread has waited on.
    // Each call takes one out and puts it back: a pointer, not the whole.
    #[allow(clippy::vec_box)]
    static STATES: RefCell<Vec<Box<ThreadState>>> = const { RefCell::new(Vec::new()) };
}

/// Gives the calling thread's state for a table to `call`: an empty one at
/// first, so also in the child of a fork, which has another table.
pub(crate) fn with_thread_state<T>(
    descriptors: &dyn FileTable,
    call: impl FnOnce(&mut ThreadState) -> io::Result<T>,
) -> io::Result<T> {
    let table = descriptors.address();
    // A thread that is ending has no states any more: it makes one a call.
    let known = STATES.try_with(|states| {
        let mut states = states.borrow_mut();
        let place = states.iter().position(|thread| thread.table.is_at(table))?;
        Some(states.swap_remove(place))
    });
    let mut thread = match known {
        Ok(Some(thread)) => thread,
        _ => {
            // Those of tables that are gone go now, outside the borrow.
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

/// What `select` and `poll` do each in its way.
pub(super) trait Call {
    /// Examines what the rule says of all that is asked about.
    fn examine_all(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()>;

    /// Examines the numbers in [`ThreadState::changed`] that are asked about; the others
    /// need not wake the thread again.
    fn examine_changed(
        &mut self,
        thread: &mut ThreadState,
        files: &mut OpenFiles<'_>,
    ) -> io::Result<()>;

    /// Descriptors that were found ready.
    fn found(&self, thread: &ThreadState) -> usize;

    /// Calls `each` with the numbers that are asked about, as long as it is true of them;
    /// whether it was of all.
    fn all_asked(&self, each: &mut dyn FnMut(usize) -> bool) -> bool;
}

impl ThreadState {
    /// Waits until `call` finds something ready. Returns how many descriptors are; 0 at
    /// the timeout.
    ///
    /// # Errors
    /// As [`PollContext::wait`]; EINTR also for a signal that was pending.
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
                // Frames that were there before their socket was registered.
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
        // A signal that is pending ends a call that does not wait, too, if it is not
        // blocked for its time.
        if found == 0 && timeout == Some(Duration::ZERO) && signals.is_some() {
            tidewall_sys::poll_readable(&[], timeout, signals, &mut Vec::new())?;
        }
        Ok(found)
    }

    /// Learns what was closed and what has changed since the thread last looked. Unless
    /// it looks at all for the `first` time in a call, these are in `changed`.
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
        // All are noted before one is examined, which may fail.
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

    /// Puts the kernel's descriptors that are ready on the ready list. It is always
    /// asked about files that only it knows about, since nothing else reports them;
    /// about sockets that it has a part in, now and then.
    pub(super) fn mark_kernel_ready(&self, insist: bool) -> io::Result<()> {
        let context = &self.polled.context;
        context.mark_kernel_ready(insist || self.by_number.has_kernel_only())
    }

    /// Nobody asks about a number that was hinted: it need not be hinted again
    /// until it is examined.
    pub(super) fn park(&mut self, number: usize) {
        self.narrow(number, Classes::NONE);
    }
}

/// What a registration for these classes is interested in. Descriptors of the
/// kernel are reported once a change, as others are: what is ready and not selected
/// must not wake anybody twice.
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
            // What cannot be narrowed is reported too often, no more.
            let _ = registration.set_interest(wanted(interest));
        }
    }
}
