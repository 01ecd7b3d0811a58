//! epoll sets.
//!
//! A set is a context whose list of hinted registrations is Linux's ready list:
//! what is level-triggered and ready stays in it, behind the others; what is
//! edge-triggered leaves it when it is told. A lock serialises control and
//! scans, as Linux's `ep->mtx` does; hints need it not.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use slab::Slab;

use super::hints::Hints;
use super::registration::{Parts, Registration, Source, Watched};
use super::{Events, SignalSet};
use crate::descriptor::OpenFile;
use crate::stack::{Core, Stack, lock};

/// What `epoll_ctl` is told, and what `epoll_wait` tells.
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
    stack: Stack,
}

/// A set, as those that watch it hold it.
pub(crate) struct SetInner {
    pub(super) hints: Arc<Hints>,
    /// Held while the set is changed or scanned; that of a set before those of
    /// sets in it, and before any socket's.
    items: Mutex<Items>,
    /// The kernel's descriptors come first in the next scan.
    kernel_first: AtomicBool,
}

/// What is in a set.
#[derive(Default)]
pub(super) struct Items {
    pub(super) items: Slab<Item>,
    /// By descriptor and open file, which is where its `Arc` points: an open file
    /// that ends retires its registration, so that none is found for another.
    by_file: HashMap<(i32, usize), usize>,
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
    pub(super) fn find(&self, fd: i32, file: &Arc<OpenFile>) -> Option<&Item> {
        let slot = self.by_file.get(&(fd, Arc::as_ptr(file).addr()))?;
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
        file: &Arc<OpenFile>,
        nested: Option<Weak<SetInner>>,
    ) {
        let file = Arc::as_ptr(file).addr();
        let slot = self.items.insert(Item {
            registration,
            fd,
            file,
            nested,
        });
        self.by_file.insert((fd, file), slot);
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Item> {
        let item = self.items.try_remove(slot)?;
        let key = (item.fd, item.file);
        if self.by_file.get(&key) == Some(&slot) {
            self.by_file.remove(&key);
        }
        Some(item)
    }
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

    fn push(&mut self, registration: &Registration, events: Events) {
        if let Some(place) = self.events.get_mut(self.count) {
            *place = EpollEvent {
                events,
                data: registration.key(),
            };
            self.count += 1;
        }
    }
}

impl std::fmt::Debug for EpollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpollSet")
            .field("hints", &self.inner.hints)
            .finish_non_exhaustive()
    }
}

impl EpollSet {
    /// An empty set for files of a stack, and of the kernel.
    ///
    /// # Errors
    /// What starting the stack's helper thread reports.
    pub fn new(stack: &Stack) -> io::Result<Self> {
        Ok(EpollSet {
            inner: Arc::new(SetInner {
                hints: Hints::new(stack.here()?, true)?,
                items: Mutex::default(),
                kernel_first: AtomicBool::new(false),
            }),
            stack: stack.clone(),
        })
    }

    /// Waits until something in the set is ready and puts it into `events`.
    /// Returns how many there are; none at the timeout. `None` waits for ever;
    /// `signals` are blocked instead of those that are while it sleeps.
    ///
    /// # Errors
    /// EINVAL for no room at all; EINTR when a signal arrives; what the device
    /// reports.
    pub(crate) fn wait(
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
            .hints
            .wait(core, timeout, signals, &mut |insist| {
                self.inner.collect(core, insist, events)
            })
    }

    pub(super) fn stack(&self) -> &Stack {
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
        self.inner.hints.close(core);
    }
}

impl Watched for EpollSet {
    fn watched(&self) -> Parts<'_> {
        let hints = &self.inner.hints;
        Parts {
            source: Source::Set(Arc::downgrade(&self.inner)),
            watch: &hints.watch,
            // Its descriptors of the kernel are the watcher's too. Without one,
            // they are seen when somebody looks.
            descriptor: hints.make_kernel_descriptor().unwrap_or(-1),
        }
    }

    fn is_of(&self, stack: &Stack) -> bool {
        Arc::ptr_eq(&self.stack.inner, &stack.inner)
    }
}

impl SetInner {
    /// The items, without those whose files have ended.
    pub(super) fn lock_items(&self) -> MutexGuard<'_, Items> {
        let mut items = lock(&self.items);
        for slot in self.hints.take_retired() {
            // It may be another's by now.
            let ended = |item: &Item| !item.registration.is_active();
            if items.items.get(slot).is_some_and(ended) {
                items.remove(slot);
            }
        }
        items
    }

    fn collect(&self, core: &Core, insist: bool, events: &mut [EpollEvent]) -> io::Result<usize> {
        let mut items = self.lock_items();
        let most = self.hints.most_events(core, events.len());
        let mut found = Found {
            events: events.get_mut(..most).unwrap_or_default(),
            count: 0,
        };
        // Where one kind alone fills the room, the other's turn comes next time.
        if self.kernel_first.fetch_xor(true, Ordering::Relaxed) {
            self.collect_kernel(insist, &mut found)?;
            self.collect_hinted(&mut items, &mut found);
        } else {
            self.collect_hinted(&mut items, &mut found);
            self.collect_kernel(insist, &mut found)?;
        }
        Ok(found.count)
    }

    fn collect_kernel(&self, insist: bool, found: &mut Found<'_>) -> io::Result<()> {
        let room = found.room();
        if room == 0 {
            return Ok(());
        }
        // As by Linux, what is ready is told, however busy the others are.
        let insist = insist || self.hints.has_kernels();
        self.hints
            .look_at_kernel(insist, room, &mut |registration, events| {
                found.push(registration, events);
            })
    }

    /// One pass over what was hinted, as far as there is room: in order, what stays
    /// goes behind what was not reached.
    fn collect_hinted(&self, items: &mut Items, found: &mut Found<'_>) {
        let hints = &self.hints;
        let mut left = hints.hinted_len();
        while left > 0 && found.room() > 0 {
            hints.take_some(left.min(found.room()), &mut items.taken);
            if items.taken.is_empty() {
                break;
            }
            left -= items.taken.len();
            for registration in items.taken.drain(..) {
                if tell(&registration, found) {
                    items.kept.push(registration);
                }
            }
        }
        hints.put_back(&mut items.kept);
    }

    /// What it is ready for as a file: it has something to tell.
    pub(crate) fn events(&self) -> Events {
        let ready = self.hints.kernel_is_ready() || self.has_hinted();
        Events::NONE.with_if(Events::READABLE, ready)
    }

    /// True when something in it is ready that hints tell of.
    pub(super) fn has_hinted(&self) -> bool {
        let _items = self.lock_items();
        let hints = &self.hints;
        for _ in 0..hints.hinted_len() {
            let Some(registration) = hints.first_hinted() else {
                break;
            };
            // Left where it is: it is what keeps those awake who come to sleep here.
            if registration.events().intersects(registration.interest()) {
                return true;
            }
            hints.drop_first();
            if !level(&registration).is_empty() {
                hints.put_first(registration);
                return true;
            }
        }
        false
    }
}

/// What a hinted registration, taken out, is ready for of what it is watched for;
/// nothing: it is settled.
fn level(registration: &Arc<Registration>) -> Events {
    if !registration.is_active() {
        return Events::NONE;
    }
    let ready = || registration.events() & registration.interest();
    let events = ready();
    if !events.is_empty() {
        return events;
    }
    registration.settle();
    // It may have become ready since, and found its flag set.
    let events = ready();
    if !events.is_empty() && registration.unsettle() {
        return events;
    }
    Events::NONE
}

/// Tells of a hinted registration that was taken out, if it is ready. True when it
/// is to be put back.
fn tell(registration: &Arc<Registration>, found: &mut Found<'_>) -> bool {
    let interest = registration.interest();
    if !interest.intersects(Events::EDGE | Events::ONESHOT) {
        let events = level(registration);
        if !events.is_empty() {
            found.push(registration, events);
        }
        return !events.is_empty();
    }
    if registration.is_active() {
        // What changes from here on leaves a new hint.
        registration.settle();
        let events = registration.events() & interest;
        if !events.is_empty() {
            registration.note_told();
            if interest.contains(Events::ONESHOT) {
                registration.disable();
            }
            found.push(registration, events);
        }
    }
    false
}
