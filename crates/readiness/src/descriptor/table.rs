//! Maps descriptors to entries, for many threads.

use std::io;
use std::sync::Weak;

use tidewall_stack::lock::rank;

use super::entries::{Entries, Place};
use super::numbers::Numbers;
use super::sync::{Mutex, lock};
use super::{Allocator, error};

/// Closes the descriptors on [`Table::exec`], not now ([`Table::close_range`]; Linux's
/// value).
pub const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// Is notified of each descriptor that is closed, or made to name another file.
pub trait Closing: Send + Sync {
    /// Called when `fd` is closed or replaced, before it can be allocated again. The
    /// table's lock is held: a call of the table from here would deadlock.
    fn closing(&self, fd: i32);
}

/// Descriptors and the entries that they name.
///
/// Descriptors are allocated lowest first. [`Table::get`], with which every call on a
/// descriptor begins, takes the lock of that descriptor alone. Changes of the set of
/// descriptors take the table's lock, for a few steps. Memory grows with the highest
/// descriptor ever used, not with the limit: 17 bytes per descriptor, in pieces of 1,024,
/// plus the allocator's overhead. It is freed with the table.
///
/// Errors are Linux's.
pub struct Table<T> {
    state: Mutex<State, rank::DescriptorTable>,
    /// Created when a descriptor is first used, under `state`; found without a lock.
    entries: Entries<T>,
}

struct State {
    numbers: Numbers,
    observers: Vec<Weak<dyn Closing>>,
}

impl<T> std::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Table")
            .field("open", &state.numbers.len())
            .field("limit", &state.numbers.limit())
            .finish_non_exhaustive()
    }
}

/// Converts a descriptor into a number.
fn number(fd: i32) -> io::Result<u32> {
    u32::try_from(fd).map_err(|_| error(libc::EBADF))
}

/// Converts a number into a descriptor; numbers are below the limit, which is an `i32`.
fn descriptor(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl State {
    /// Notifies the observers that a descriptor is closed or replaced.
    fn notify_closing(&mut self, number: u32) {
        if self.observers.is_empty() {
            return;
        }
        let fd = descriptor(number);
        self.observers.retain(|observer| {
            let observer = observer.upgrade();
            if let Some(observer) = &observer {
                observer.closing(fd);
            }
            observer.is_some()
        });
    }
}

impl<T> Table<T> {
    /// Creates an empty table for descriptors below `limit` (at most 2^31 − 1; Linux
    /// calls it RLIMIT_NOFILE).
    pub fn new(limit: u32, allocator: Allocator) -> Self {
        Self::with(Numbers::new(limit, allocator))
    }

    fn with(numbers: Numbers) -> Self {
        Table {
            state: Mutex::new(State {
                numbers,
                observers: Vec::new(),
            }),
            entries: Entries::default(),
        }
    }

    // ---- Numbers ------------------------------------------------------------

    /// Allocates the lowest free descriptor; the caller fills its slot.
    fn allocate(
        &self,
        numbers: &mut Numbers,
        lowest: u32,
        close_on_exec: bool,
    ) -> io::Result<(u32, Place<'_, T>)> {
        let number = numbers.first_free(lowest)?;
        // Steps that may fail come before those that change something.
        let place = self.entries.make(number)?;
        numbers.take(number, close_on_exec)?;
        Ok((number, place))
    }

    /// Assigns the lowest free descriptor to an entry.
    ///
    /// # Errors
    /// EMFILE if that would not be below the limit; ENOMEM. The entry is dropped then.
    pub fn open(&self, entry: T, close_on_exec: bool) -> io::Result<i32> {
        let numbers = &mut lock(&self.state).numbers;
        let (number, place) = self.allocate(numbers, 0, close_on_exec)?;
        place.replace(entry);
        Ok(descriptor(number))
    }

    /// As [`Table::open`], with the lowest free descriptor from `lowest` on.
    ///
    /// # Errors
    /// As [`Table::open`]; EINVAL when `lowest` is negative or not below the
    /// limit.
    pub fn open_from(&self, entry: T, lowest: i32, close_on_exec: bool) -> io::Result<i32> {
        let numbers = &mut lock(&self.state).numbers;
        let lowest = u32::try_from(lowest)
            .ok()
            .filter(|&lowest| lowest < numbers.limit())
            .ok_or_else(|| error(libc::EINVAL))?;
        let (number, place) = self.allocate(numbers, lowest, close_on_exec)?;
        place.replace(entry);
        Ok(descriptor(number))
    }

    /// Reserves the lowest free descriptor for an entry that is still to be created, so
    /// that nothing is created without one. Until [`Reservation::install`] the descriptor
    /// names nothing (EBADF), and dropping the reservation frees it.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(crate) fn reserve(&self, close_on_exec: bool) -> io::Result<Reservation<'_, T>> {
        let (number, _) = self.allocate(&mut lock(&self.state).numbers, 0, close_on_exec)?;
        Ok(Reservation {
            table: self,
            number,
            installed: false,
        })
    }

    /// Closes a descriptor and returns its entry, for the caller to drop.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> io::Result<T> {
        let number = number(fd)?;
        // A descriptor without an entry is free, or reserved.
        self.take(&mut lock(&self.state), number)
            .ok_or_else(|| error(libc::EBADF))
    }

    /// Closes the descriptors from `first` to `last`, or marks them for [`Table::exec`]
    /// (`flags` [`CLOSE_RANGE_CLOEXEC`]). `last` may be past the end. This is Linux's
    /// `close_range`, whose CLOSE_RANGE_UNSHARE has no meaning here.
    ///
    /// # Errors
    /// EINVAL for `first` above `last`, or other flags.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> io::Result<()> {
        if first > last || flags & !CLOSE_RANGE_CLOEXEC != 0 {
            return Err(error(libc::EINVAL));
        }
        let mut closed = Vec::new();
        let mut state = lock(&self.state);
        let mut next = state.numbers.next_used(first);
        while let Some(number) = next.filter(|&number| number <= last) {
            if flags & CLOSE_RANGE_CLOEXEC != 0 {
                state.numbers.set_close_on_exec(number, true)?;
            } else {
                closed.extend(self.take(&mut state, number));
            }
            next = state.numbers.next_used(number + 1);
        }
        // Entries are dropped without the lock.
        drop(state);
        drop(closed);
        Ok(())
    }

    /// Removes a descriptor's entry, if it has one, and frees the descriptor.
    fn take(&self, state: &mut State, number: u32) -> Option<T> {
        let entry = self.entries.get(number)?.take()?;
        state.notify_closing(number);
        state.numbers.free(number);
        Some(entry)
    }

    /// Closes the descriptors whose close-on-exec flag is set, as `execve` does.
    pub fn exec(&self) {
        let mut closed = Vec::new();
        let mut state = lock(&self.state);
        let mut next = state.numbers.next_close_on_exec(0);
        while let Some(number) = next {
            closed.extend(self.take(&mut state, number));
            next = state.numbers.next_close_on_exec(number + 1);
        }
        drop(state);
        drop(closed);
    }

    /// Reports whether [`Table::exec`] closes a descriptor (F_GETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn close_on_exec(&self, fd: i32) -> io::Result<bool> {
        let number = number(fd)?;
        let state = lock(&self.state);
        self.named(number)?;
        Ok(state.numbers.is_close_on_exec(number))
    }

    /// Sets whether [`Table::exec`] closes a descriptor (F_SETFD). The flag belongs to
    /// the descriptor, not to the entry: duplicates have their own.
    ///
    /// # Errors
    /// EBADF.
    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> io::Result<()> {
        let number = number(fd)?;
        let mut state = lock(&self.state);
        self.named(number)?;
        state.numbers.set_close_on_exec(number, closes)
    }

    /// Returns the slot of an open descriptor.
    fn named(&self, number: u32) -> io::Result<Place<'_, T>> {
        self.entries
            .get(number)
            .filter(Place::is_named)
            .ok_or_else(|| error(libc::EBADF))
    }

    /// Returns true for an open descriptor. It makes a few loads, takes no lock,
    /// allocates nothing and makes no system call. So a signal handler and a child of
    /// `vfork` may call it.
    #[inline]
    pub fn is_open(&self, fd: i32) -> bool {
        let number = u32::try_from(fd).ok();
        let place = number.and_then(|number| self.entries.get(number));
        place.is_some_and(|place| place.is_named())
    }

    /// Makes a descriptor of the caller's choice name an entry, as `dup2` does. The
    /// previous entry is closed in the same step: no thread finds the descriptor free in
    /// between. It serves callers whose descriptors another allocator (the kernel) assigns.
    /// They call [`Table::close`] before that allocator may assign a descriptor again.
    ///
    /// # Errors
    /// EBADF for a descriptor that is negative or not below the limit; EBUSY when another
    /// thread has reserved it; ENOMEM. The entry is dropped then.
    pub fn install(&self, fd: i32, entry: T, close_on_exec: bool) -> io::Result<()> {
        self.place(fd, || Ok(entry), close_on_exec)
    }

    fn place(
        &self,
        fd: i32,
        entry: impl FnOnce() -> io::Result<T>,
        close_on_exec: bool,
    ) -> io::Result<()> {
        let number = number(fd)?;
        // Outlives the lock: another thread may make it the last reference.
        let entry_of_caller;
        let mut state = lock(&self.state);
        let numbers = &mut state.numbers;
        if number >= numbers.limit() {
            return Err(error(libc::EBADF));
        }
        entry_of_caller = entry()?;
        let place = self.entries.make(number)?;
        if !numbers.is_used(number) {
            numbers.take(number, close_on_exec)?;
        } else if !place.is_named() {
            return Err(error(libc::EBUSY));
        } else {
            numbers.set_close_on_exec(number, close_on_exec)?;
        }
        let replaced = place.replace(entry_of_caller);
        if replaced.is_some() {
            state.notify_closing(number);
        }
        // Dropped without the lock.
        drop(state);
        drop(replaced);
        Ok(())
    }

    /// Returns the limit: the lowest descriptor that is not allocated.
    pub fn limit(&self) -> u32 {
        lock(&self.state).numbers.limit()
    }

    /// Sets the limit, at most 2^31 − 1. Descriptors above a lowered limit stay open, as
    /// on Linux.
    pub fn set_limit(&self, limit: u32) {
        lock(&self.state).numbers.set_limit(limit);
    }

    /// Returns the number of descriptors in use, including reserved ones.
    pub fn len(&self) -> usize {
        lock(&self.state).numbers.len()
    }

    /// Returns true when no descriptor is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the highest descriptor in use.
    pub fn highest(&self) -> Option<i32> {
        lock(&self.state).numbers.highest().map(descriptor)
    }

    /// Calls `observer` for each descriptor that is closed, while the observer exists.
    pub fn observe(&self, observer: Weak<dyn Closing>) {
        let mut state = lock(&self.state);
        state.observers.retain(|other| other.strong_count() > 0);
        state.observers.push(observer);
    }
}

impl<T: Clone> Table<T> {
    /// Returns the entry of a descriptor.
    ///
    /// # Errors
    /// EBADF.
    pub fn get(&self, fd: i32) -> io::Result<T> {
        u32::try_from(fd)
            .ok()
            .and_then(|number| self.entries.get(number)?.get())
            .ok_or_else(|| error(libc::EBADF))
    }

    /// Assigns the lowest free descriptor to the entry of `fd`, without close-on-exec.
    ///
    /// # Errors
    /// EBADF; EMFILE.
    pub fn dup(&self, fd: i32) -> io::Result<i32> {
        self.open(self.get(fd)?, false)
    }

    /// As [`Table::dup`], with the lowest free descriptor from `lowest` on (F_DUPFD,
    /// F_DUPFD_CLOEXEC).
    ///
    /// # Errors
    /// EBADF; EINVAL when `lowest` is negative or not below the limit; EMFILE.
    pub fn dup_from(&self, fd: i32, lowest: i32, close_on_exec: bool) -> io::Result<i32> {
        self.open_from(self.get(fd)?, lowest, close_on_exec)
    }

    /// Makes `new` name the entry of `old`, without close-on-exec. The previous entry is
    /// closed in the same step: no thread finds the descriptor free in between. If both
    /// are the same, nothing changes.
    ///
    /// # Errors
    /// EBADF when `old` names nothing, or `new` is negative or not below the limit; EBUSY
    /// when another thread has reserved `new`; ENOMEM.
    pub fn dup2(&self, old: i32, new: i32) -> io::Result<i32> {
        if old == new {
            return self.get(old).map(|_| new);
        }
        self.duplicate(old, new, false)
    }

    /// As [`Table::dup2`], with a choice of close-on-exec.
    ///
    /// # Errors
    /// Those of [`Table::dup2`]; EINVAL when both descriptors are the same.
    pub fn dup3(&self, old: i32, new: i32, close_on_exec: bool) -> io::Result<i32> {
        if old == new {
            return Err(error(libc::EINVAL));
        }
        self.duplicate(old, new, close_on_exec)
    }

    fn duplicate(&self, old: i32, new: i32, close_on_exec: bool) -> io::Result<i32> {
        self.place(new, || self.get(old), close_on_exec)?;
        Ok(new)
    }

    /// Returns the table that a child of `fork` receives: the same descriptors for the
    /// same entries. Reserved descriptors are free in it, as on Linux: the files created
    /// for them are the parent's.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn fork(&self) -> io::Result<Self> {
        let numbers = &lock(&self.state).numbers;
        let child = Self::with(numbers.clone());
        {
            let theirs = &mut lock(&child.state).numbers;
            let mut next = numbers.next_used(0);
            while let Some(number) = next {
                let entry = self.entries.get(number).and_then(|place| place.get());
                match entry {
                    Some(entry) => drop(child.entries.make(number)?.replace(entry)),
                    None => theirs.free(number),
                }
                next = numbers.next_used(number + 1);
            }
        }
        Ok(child)
    }
}

/// A reserved descriptor, which names nothing yet ([`Table::reserve`]).
#[derive(Debug)]
pub(crate) struct Reservation<'a, T> {
    table: &'a Table<T>,
    number: u32,
    installed: bool,
}

impl<T> Reservation<'_, T> {
    /// Makes the descriptor name `entry`, and returns it.
    pub(crate) fn install(mut self, entry: T) -> i32 {
        if let Some(place) = self.table.entries.get(self.number) {
            place.replace(entry);
            self.installed = true;
        }
        descriptor(self.number)
    }
}

impl<T> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        if !self.installed {
            lock(&self.table.state).numbers.free(self.number);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
