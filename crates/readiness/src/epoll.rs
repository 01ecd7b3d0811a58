//! epoll sets.
//!
//! A set is a context whose ready list works as Linux's. A level-triggered file that is
//! ready stays on the list, behind the others. An edge-triggered one leaves it when it is
//! reported. A lock serialises control and scans, as Linux's `ep->mtx` does; notifying
//! does not take it.

use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};

use super::files::KernelFile;
use super::kernel_descriptors;
use super::poll_context::{Interface, PollContext};
use super::registration::{File, Pollable, Registration};
use super::{Events, SignalSet};
use crate::raw::epoll;
use crate::wait_queue::WaitQueue;

/// The argument of `epoll_ctl`, and the result of `epoll_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// The requested events, with flags; or the events that are reported.
    pub events: Events,
    /// The application's own data.
    pub data: u64,
}

/// An epoll set that descriptors name.
pub struct EpollSet {
    pub(super) inner: Arc<SetInner>,
    stack: StackHandle,
}

/// A set that contexts hold while they poll it.
pub struct SetInner {
    pub(super) context: Arc<PollContext>,
    /// Held while the set is changed or scanned. A set's lock is taken before those of
    /// sets in it, and before any socket's.
    items: Mutex<Items, rank::EpollSet>,
    /// The next scan begins with the kernel descriptors.
    kernel_first: AtomicBool,
    /// A kernel set whose events are reported as if its entries were in this set.
    kernel_set: OnceLock<KernelSet>,
}

struct KernelSet {
    file: KernelFile,
    /// Ready when something in the kernel set is.
    registration: Arc<Registration>,
}

/// The contents of a set.
#[derive(Default)]
pub(super) struct Items {
    pub(super) items: Slab<Item>,
    /// Slots by descriptor and open file, identified by the address behind its `Arc`. An
    /// open file that is closed retires its registration, so that another never matches
    /// it. The key is in the item, which saves two thirds of the memory.
    by_file: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// Scratch lists of a scan: registrations taken out, and those to put back. Empty
    /// between scans.
    taken: Vec<Arc<Registration>>,
    kept: Vec<Arc<Registration>>,
}

/// A file in a set.
pub(super) struct Item {
    pub(super) registration: Arc<Registration>,
    fd: i32,
    file: usize,
    /// The set itself, if the file is one.
    pub(super) nested: Option<Weak<SetInner>>,
}

impl Items {
    pub(super) fn find(&self, fd: i32, file: &Arc<dyn File>) -> Option<&Item> {
        let key = (fd, address(file));
        let is = |slot: &usize| self.items.get(*slot).map(Item::key) == Some(key);
        let slot = self.by_file.find(self.hasher.hash_one(Some(key)), is)?;
        self.items.get(*slot)
    }

    /// Returns the slot for the next item.
    pub(super) fn next_slot(&self) -> usize {
        self.items.vacant_key()
    }

    pub(super) fn insert(
        &mut self,
        registration: Arc<Registration>,
        fd: i32,
        file: &Arc<dyn File>,
        nested: Option<Weak<SetInner>>,
    ) {
        let file = address(file);
        let slot = self.items.insert(Item {
            registration,
            fd,
            file,
            nested,
        });
        let Self {
            items,
            by_file,
            hasher,
            ..
        } = self;
        let key_of = |slot: &usize| items.get(*slot).map(Item::key);
        let key = key_of(&slot);
        let hash = |slot: &usize| hasher.hash_one(key_of(slot));
        match by_file.entry(hash(&slot), |other| key_of(other) == key, hash) {
            // A registration that has been retired.
            Entry::Occupied(mut other) => *other.get_mut() = slot,
            Entry::Vacant(place) => drop(place.insert(slot)),
        }
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Item> {
        let item = self.items.try_remove(slot)?;
        let hash = self.hasher.hash_one(Some(item.key()));
        if let Ok(entry) = self.by_file.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        Some(item)
    }
}

impl Item {
    fn key(&self) -> (i32, usize) {
        (self.fd, self.file)
    }
}

/// The address of an open file, which names it while it lives.
fn address(file: &Arc<dyn File>) -> usize {
    Arc::as_ptr(file).cast::<()>().addr()
}

/// The buffer into which a scan puts its events.
struct Found<'a> {
    events: &'a mut [EpollEvent],
    count: usize,
}

impl Found<'_> {
    fn room(&self) -> usize {
        self.events.len() - self.count
    }

    fn push(&mut self, data: u64, events: Events) {
        if let Some(place) = self.events.get_mut(self.count) {
            *place = EpollEvent { events, data };
            self.count += 1;
        }
    }
}

impl std::fmt::Debug for EpollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpollSet")
            .field("context", &self.inner.context)
            .finish_non_exhaustive()
    }
}

impl EpollSet {
    /// Creates an empty set for files of a stack, and of the kernel.
    ///
    /// # Errors
    /// Those of starting the stack's helper thread.
    pub fn new(stack: &StackHandle) -> io::Result<Self> {
        Ok(EpollSet {
            inner: Arc::new(SetInner {
                context: PollContext::new(stack.here()?, true)?,
                items: Mutex::default(),
                kernel_first: AtomicBool::new(false),
                kernel_set: OnceLock::new(),
            }),
            stack: stack.clone(),
        })
    }

    /// Creates a set beside a kernel set: a wait reports events in either, with the data
    /// registered there. The kernel set's entries, also later ones, follow the kernel's
    /// rules for edges, one-shot and exclusive entries, and closed files. Other threads
    /// may wait in the kernel set alone, and see its part.
    ///
    /// # Errors
    /// EINVAL for a descriptor that is no epoll set, ELOOP for one with sets nested three
    /// deep; those of [`EpollSet::new`]; ENOMEM, ENOSPC.
    pub fn beside(stack: &StackHandle, kernel_set: OwnedFd) -> io::Result<Self> {
        if !epoll::is_epoll(kernel_set.as_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let set = Self::new(stack)?;
        let file = KernelFile::from(kernel_set);
        let context = &set.inner.context;
        let registration = context.register(&file, 0, Events::IN, Interface::Epoll)?;
        let _ = set.inner.kernel_set.set(KernelSet { file, registration });
        Ok(set)
    }

    /// Waits until something in the set is ready and puts it into `events`. Returns the
    /// number of events; 0 at the timeout. `None` waits forever. While it sleeps,
    /// `signals` replaces the thread's signal mask.
    ///
    /// # Errors
    /// EINVAL for an empty buffer; EINTR when a signal arrives; the device's errors.
    pub fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
    ) -> io::Result<usize> {
        if events.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let core = self.stack.here()?;
        self.inner
            .context
            .wait(core, timeout, signals, &mut |insist| {
                self.inner.collect(core, insist, events)
            })
    }

    pub(super) fn stack(&self) -> &StackHandle {
        &self.stack
    }
}

impl Drop for EpollSet {
    fn drop(&mut self) {
        let Ok(core) = self.stack.here() else { return };
        // Dropped without the lock: the files that they point to may end with them.
        let items = std::mem::take(&mut *lock(&self.inner.items));
        for (_, item) in &items.items {
            item.registration.retire();
        }
        self.inner.context.close(core);
    }
}

impl File for EpollSet {
    fn pollable(&self) -> Option<Arc<dyn Pollable>> {
        Some(self.inner.clone())
    }

    fn wait_queue(&self) -> &WaitQueue {
        &self.inner.context.wait_queue
    }

    fn descriptor(&self) -> i32 {
        // The context above polls its kernel descriptors, too. Without one, the set's own
        // scan finds them.
        let context = &self.inner.context;
        context.make_kernel_descriptor().unwrap_or(-1)
    }

    fn is_of(&self, stack: &StackHandle) -> bool {
        self.stack.is(stack)
    }

    fn epoll_set(&self) -> Option<&EpollSet> {
        Some(self)
    }
}

impl SetInner {
    /// Locks the items, and removes those whose files are closed.
    pub(super) fn lock_items(&self) -> MutexGuard<'_, Items, rank::EpollSet> {
        let mut items = lock(&self.items);
        self.context.take_retired(|slot| {
            // Another registration may use the slot by now.
            let ended = |item: &Item| !item.registration.is_active();
            if items.items.get(slot).is_some_and(ended) {
                items.remove(slot);
            }
        });
        items
    }

    fn collect(&self, core: &Core, insist: bool, events: &mut [EpollEvent]) -> io::Result<usize> {
        let mut items = self.lock_items();
        let most = self.context.most_events(core, events.len());
        let mut found = Found {
            events: events.get_mut(..most).unwrap_or_default(),
            count: 0,
        };
        // If one kind alone fills the buffer, the other comes first next time.
        if self.kernel_first.fetch_xor(true, Ordering::Relaxed) {
            self.collect_kernel(insist, &mut found)?;
            self.collect_ready(&mut items, &mut found);
        } else {
            self.collect_ready(&mut items, &mut found);
            self.collect_kernel(insist, &mut found)?;
        }
        Ok(found.count)
    }

    fn collect_kernel(&self, insist: bool, found: &mut Found<'_>) -> io::Result<()> {
        let room = found.room();
        if room == 0 {
            return Ok(());
        }
        // As on Linux, ready kernel descriptors are reported, however busy the others
        // are.
        let insist = insist || self.context.kernel().has_kernel_only();
        let kernel_set = self.kernel_set.get();
        let mut nested = None;
        self.context
            .poll_kernel(insist, room, &mut |registration, events| match kernel_set {
                Some(set) if Arc::ptr_eq(&set.registration, registration) => nested = Some(set),
                _ => found.push(registration.key(), events),
            })?;
        let Some(KernelSet { file, .. }) = nested else {
            return Ok(());
        };
        kernel_descriptors::fetch(file.as_fd(), found.room(), &mut |data, events| {
            found.push(data, events);
        })
    }

    /// Scans the ready list once, in order, while the buffer has room. Entries that stay
    /// go behind those that were not reached.
    fn collect_ready(&self, items: &mut Items, found: &mut Found<'_>) {
        let context = &self.context;
        let mut left = context.ready_len();
        while left > 0 && found.room() > 0 {
            context.take_ready(left.min(found.room()), &mut items.taken);
            if items.taken.is_empty() {
                break;
            }
            left -= items.taken.len();
            for registration in items.taken.drain(..) {
                if report(&registration, found) {
                    items.kept.push(registration);
                }
            }
        }
        context.requeue(&mut items.kept);
    }

    /// Returns true when something on the ready list is ready.
    fn has_ready(&self) -> bool {
        let _items = self.lock_items();
        let context = &self.context;
        for _ in 0..context.ready_len() {
            let Some(registration) = context.first_ready() else {
                break;
            };
            // Left on the list: it keeps threads awake that are about to sleep here.
            if registration.events().intersects(registration.interest()) {
                return true;
            }
            context.drop_first_ready();
            if !registration.level().is_empty() {
                context.put_first_ready(registration);
                return true;
            }
        }
        false
    }
}

impl Pollable for SetInner {
    fn wait_queue(&self) -> &WaitQueue {
        &self.context.wait_queue
    }

    fn events(&self) -> Events {
        let ready = self.context.kernel().is_ready() || self.has_ready();
        Events::NONE.with_if(Events::READABLE, ready)
    }

    fn own_events(&self) -> Events {
        Events::NONE.with_if(Events::READABLE, self.has_ready())
    }

    fn has_unprocessed_frames(&self) -> bool {
        self.context.has_unprocessed_frames()
    }

    fn process_frames(self: Arc<Self>, core: &Core) {
        self.context.process(core);
    }

    fn kernel_has_input(&self) {
        self.context.kernel().note_ready();
    }

    fn is_epoll(&self) -> bool {
        true
    }
}

/// Reports a registration taken off the ready list, if it is ready. Returns true if it is
/// to be put back.
fn report(registration: &Arc<Registration>, found: &mut Found<'_>) -> bool {
    let interest = registration.interest();
    if !interest.intersects(Events::EDGE | Events::ONESHOT) {
        let events = registration.level();
        if !events.is_empty() {
            found.push(registration.key(), events);
        }
        return !events.is_empty();
    }
    if registration.is_active() {
        // From here on a change puts it on the list again.
        registration.unmark();
        let events = registration.events() & interest;
        if !events.is_empty() {
            registration.note_reported();
            if interest.contains(Events::ONESHOT) {
                registration.disable();
            }
            found.push(registration.key(), events);
        }
    }
    false
}
