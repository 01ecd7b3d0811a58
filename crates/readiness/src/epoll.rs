//! epoll sets.
//!
//! A set is a context whose ready list is used as Linux's: what is level-triggered
//! and ready stays on it, behind the others; what is edge-triggered leaves it when it
//! is reported. A lock serialises control and scans, as Linux's `ep->mtx` does;
//! notifying does not take it.

use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use slab::Slab;

use super::files::KernelFile;
use super::kernel_descriptors;
use super::poll_context::{Interface, PollContext};
use super::registration::{File, Pollable, Registration};
use super::{Events, SignalSet};
use crate::raw::epoll;
use crate::wait_queue::WaitQueue;
use tidewall_stack::StackHandle;
use tidewall_stack::core::Core;
use tidewall_stack::lock::{Mutex, MutexGuard, lock, rank};

/// What `epoll_ctl` is given, and what `epoll_wait` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// What is asked for, with flags; or what is so.
    pub events: Events,
    /// The application's own.
    pub data: u64,
}

/// An epoll set, as descriptors name it.
pub struct EpollSet {
    pub(super) inner: Arc<SetInner>,
    stack: StackHandle,
}

/// A set, as contexts that poll it hold it.
pub struct SetInner {
    pub(super) context: Arc<PollContext>,
    /// Held while the set is changed or scanned; that of a set before those of
    /// sets in it, and before any socket's.
    items: Mutex<Items, rank::EpollSet>,
    /// The kernel's descriptors come first in the next scan.
    kernel_first: AtomicBool,
    /// A set of the kernel's, of which what is in it is reported as if it were in here.
    kernel_set: OnceLock<KernelSet>,
}

struct KernelSet {
    file: KernelFile,
    /// Ready when something in the kernel's set is.
    registration: Arc<Registration>,
}

/// What is in a set.
#[derive(Default)]
pub(super) struct Items {
    pub(super) items: Slab<Item>,
    /// Slots by descriptor and open file, which is where its `Arc` points: an open file
    /// that ends retires its registration, so that none is found for another. What they
    /// are found by is in the item: a third of the memory.
    by_file: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// Those that a scan has taken out, and those that it puts back; empty between
    /// two.
    taken: Vec<Arc<Registration>>,
    kept: Vec<Arc<Registration>>,
}

/// A file in a set.
pub(super) struct Item {
    pub(super) registration: Arc<Registration>,
    fd: i32,
    file: usize,
    /// The set that it is.
    pub(super) nested: Option<Weak<SetInner>>,
}

impl Items {
    pub(super) fn find(&self, fd: i32, file: &Arc<dyn File>) -> Option<&Item> {
        let key = (fd, address(file));
        let is = |slot: &usize| self.items.get(*slot).map(Item::key) == Some(key);
        let slot = self.by_file.find(self.hasher.hash_one(Some(key)), is)?;
        self.items.get(*slot)
    }

    /// Where the next item goes.
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
            // One that has ended.
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

/// Where a scan puts what it finds.
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
    /// An empty set for files of a stack, and of the kernel.
    ///
    /// # Errors
    /// What starting the stack's helper thread reports.
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

    /// A set beside one of the kernel's: waiting reports what is ready in either, with the
    /// data that it was entered with there. What the kernel's has, or gets later, is the
    /// kernel's own: its rules for edges, one-shot and exclusive entries, and for closed
    /// files, hold for it. Other threads may wait in the kernel's set alone, and see its
    /// part.
    ///
    /// # Errors
    /// EINVAL for a descriptor that is no epoll set, ELOOP for one with sets three deep in
    /// it; as [`EpollSet::new`]; ENOMEM, ENOSPC.
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

    /// Waits until something in the set is ready and puts it into `events`.
    /// Returns how many there are; none at the timeout. `None` waits for ever;
    /// `signals` are blocked instead of those that are while it sleeps.
    ///
    /// # Errors
    /// EINVAL for no room at all; EINTR when a signal arrives; what the device
    /// reports.
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
        // Out of the lock: what they point to may end with them.
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
        // Its descriptors of the kernel are polled by the context above, too. Without
        // one, they are seen when that looks.
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
    /// The items, without those whose files have ended.
    pub(super) fn lock_items(&self) -> MutexGuard<'_, Items, rank::EpollSet> {
        let mut items = lock(&self.items);
        self.context.take_retired(|slot| {
            // It may be another's by now.
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
        // Where one kind alone fills the room, the other comes first next time.
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
        // As by Linux, what is ready is reported, however busy the others are.
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

    /// One pass over the ready list, as far as there is room: in order, what stays
    /// goes behind what was not reached.
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

    /// True when something on the ready list is ready.
    fn has_ready(&self) -> bool {
        let _items = self.lock_items();
        let context = &self.context;
        for _ in 0..context.ready_len() {
            let Some(registration) = context.first_ready() else {
                break;
            };
            // Left where it is: it is what keeps those awake who come to sleep here.
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

/// Reports a registration that was taken off the ready list, if it is ready. True when
/// it is to be put back.
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
        // What changes from here on puts it on the list again.
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
