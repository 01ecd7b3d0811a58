//! From numbers to entries, for many threads.

use std::io;
use std::sync::{Arc, PoisonError, Weak};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use super::bitmap::next_set;
use super::{Allocator, Bitmap, Linear, NumbersError};
use slots::{Slot, Slots};

mod slots;

/// Close these numbers on [`Table::exec`] instead of now
/// ([`Table::close_range`]; Linux's value).
pub const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// Told of each number that no longer names what it named: closed, or made to
/// name something else.
pub trait Closing: Send + Sync {
    /// From now on `fd` does not name what it named. Called before the number
    /// can be given out again, under the table's lock: calls of the table from
    /// here would wait for ever.
    fn closing(&self, fd: i32);
}

/// Numbers and the entries they name.
///
/// Numbers are given out lowest first. [`Table::get`], which every call on a
/// descriptor begins with, takes the lock of that one number; everything that
/// changes which numbers are in use takes the table's, for a few steps. Memory
/// grows with the highest number ever used (16 bytes a number, in pieces of
/// 1,024 numbers, and what the allocator takes), not with the limit, and is
/// given back with the table.
///
/// Errors are Linux's.
#[derive(Debug)]
pub struct Table<T> {
    /// Taken before a slot's lock, never after one.
    numbers: Mutex<Numbers>,
    /// Made when a number is first used, under `numbers`; found without.
    slots: Slots<T>,
}

struct Numbers {
    used: Used,
    /// Numbers that [`Table::exec`] closes, as bits; those past the end are not.
    close_on_exec: Vec<u64>,
    limit: u32,
    open: usize,
    observers: Vec<Weak<dyn Closing>>,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbers")
            .field("open", &self.open)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum Used {
    Bitmap(Bitmap),
    Linear(Linear),
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread left is whole: nothing here can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor as a number.
fn number(fd: i32) -> io::Result<u32> {
    u32::try_from(fd).map_err(|_| error(libc::EBADF))
}

/// A number as a descriptor; numbers are below the limit, which is an `i32`.
fn descriptor(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl From<NumbersError> for io::Error {
    fn from(_: NumbersError) -> Self {
        error(libc::ENOMEM)
    }
}

impl Used {
    fn first_free(&self, lowest: u32) -> Option<u32> {
        match self {
            Used::Bitmap(bitmap) => bitmap.first_free(lowest),
            Used::Linear(linear) => linear.first_free(lowest),
        }
    }

    fn is_used(&self, number: u32) -> bool {
        match self {
            Used::Bitmap(bitmap) => bitmap.is_used(number),
            Used::Linear(linear) => linear.is_used(number),
        }
    }

    fn set(&mut self, number: u32) -> Result<(), NumbersError> {
        match self {
            Used::Bitmap(bitmap) => bitmap.set(number),
            Used::Linear(linear) => linear.set(number),
        }
    }

    fn clear(&mut self, number: u32) {
        match self {
            Used::Bitmap(bitmap) => bitmap.clear(number),
            Used::Linear(linear) => linear.clear(number),
        }
    }

    fn next_used(&self, lowest: u32) -> Option<u32> {
        match self {
            Used::Bitmap(bitmap) => bitmap.next_used(lowest),
            Used::Linear(linear) => linear.next_used(lowest),
        }
    }

    fn highest(&self) -> Option<u32> {
        match self {
            Used::Bitmap(bitmap) => bitmap.highest(),
            Used::Linear(linear) => linear.highest(),
        }
    }

    fn deepen(&mut self, limit: u32) {
        match self {
            Used::Bitmap(bitmap) => bitmap.deepen(limit),
            Used::Linear(_) => {}
        }
    }
}

impl Numbers {
    fn closes_on_exec(&self, number: u32) -> bool {
        let word = self.close_on_exec.get((number / u64::BITS) as usize);
        word.is_some_and(|word| word & (1 << (number % u64::BITS)) != 0)
    }

    fn set_close_on_exec(&mut self, number: u32, closes: bool) -> io::Result<()> {
        let place = (number / u64::BITS) as usize;
        let bit = 1 << (number % u64::BITS);
        if closes && self.close_on_exec.len() <= place {
            let missing = place + 1 - self.close_on_exec.len();
            self.close_on_exec
                .try_reserve(missing)
                .map_err(|_| error(libc::ENOMEM))?;
            self.close_on_exec.resize(place + 1, 0);
        }
        match self.close_on_exec.get_mut(place) {
            Some(word) if closes => *word |= bit,
            Some(word) => *word &= !bit,
            None => {}
        }
        Ok(())
    }

    /// A number is free again.
    fn free(&mut self, number: u32) {
        self.used.clear(number);
        // Only setting it can fail.
        let _ = self.set_close_on_exec(number, false);
        self.open -= 1;
    }

    fn tell(&mut self, number: u32) {
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
    /// An empty table for numbers below `limit` (at most 2^31 − 1; Linux calls it
    /// RLIMIT_NOFILE).
    pub fn new(limit: u32, allocator: Allocator) -> Self {
        let limit = limit.min(i32::MAX as u32);
        let used = match allocator {
            Allocator::Bitmap => Used::Bitmap(Bitmap::new(limit)),
            Allocator::Linear => Used::Linear(Linear::new()),
        };
        Self::with(Numbers {
            used,
            close_on_exec: Vec::new(),
            limit,
            open: 0,
            observers: Vec::new(),
        })
    }

    fn with(numbers: Numbers) -> Self {
        Table {
            numbers: Mutex::new(numbers),
            slots: Slots::default(),
        }
    }

    // ---- Numbers ------------------------------------------------------------

    /// Takes the lowest free number, for the caller to fill its slot.
    fn allocate(
        &self,
        numbers: &mut Numbers,
        lowest: u32,
        close_on_exec: bool,
    ) -> io::Result<(u32, &Slot<T>)> {
        let number = numbers
            .used
            .first_free(lowest)
            .filter(|&number| number < numbers.limit)
            .ok_or_else(|| error(libc::EMFILE))?;
        // What may fail before what changes something.
        let slot = self.slots.make(number)?;
        numbers.set_close_on_exec(number, close_on_exec)?;
        numbers.used.set(number)?;
        numbers.open += 1;
        Ok((number, slot))
    }

    /// Gives the lowest free number to an entry.
    ///
    /// # Errors
    /// EMFILE when that would be the limit or above; ENOMEM. The entry is
    /// dropped then.
    pub fn open(&self, entry: T, close_on_exec: bool) -> io::Result<i32> {
        let mut numbers = lock(&self.numbers);
        let (number, slot) = self.allocate(&mut numbers, 0, close_on_exec)?;
        *lock(slot) = Some(entry);
        Ok(descriptor(number))
    }

    /// As [`Table::open`], with the lowest free number from `lowest` on.
    ///
    /// # Errors
    /// As [`Table::open`]; EINVAL when `lowest` is negative or not below the
    /// limit.
    pub fn open_from(&self, entry: T, lowest: i32, close_on_exec: bool) -> io::Result<i32> {
        let mut numbers = lock(&self.numbers);
        let lowest = u32::try_from(lowest)
            .ok()
            .filter(|&lowest| lowest < numbers.limit)
            .ok_or_else(|| error(libc::EINVAL))?;
        let (number, slot) = self.allocate(&mut numbers, lowest, close_on_exec)?;
        *lock(slot) = Some(entry);
        Ok(descriptor(number))
    }

    /// Takes the lowest free number for an entry that is still to be made, so
    /// that nothing is made that no number is left for. Until
    /// [`Reservation::install`] the number names nothing (EBADF), and dropping
    /// the reservation frees it.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn reserve(&self, close_on_exec: bool) -> io::Result<Reservation<'_, T>> {
        let mut numbers = lock(&self.numbers);
        let (number, _) = self.allocate(&mut numbers, 0, close_on_exec)?;
        Ok(Reservation {
            table: self,
            number,
            installed: false,
        })
    }

    /// Closes a number and returns what it named, for the caller to drop.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: i32) -> io::Result<T> {
        let number = number(fd)?;
        let slot = self.slots.get(number).ok_or_else(|| error(libc::EBADF))?;
        let mut numbers = lock(&self.numbers);
        // A number without an entry is free, or reserved.
        let entry = lock(slot).take().ok_or_else(|| error(libc::EBADF))?;
        numbers.tell(number);
        numbers.free(number);
        Ok(entry)
    }

    /// Closes the numbers from `first` to `last`, or lets [`Table::exec`] do so
    /// (`flags` [`CLOSE_RANGE_CLOEXEC`]). `last` may be past the end: Linux's
    /// `close_range`, whose CLOSE_RANGE_UNSHARE has no meaning here.
    ///
    /// # Errors
    /// EINVAL for `first` above `last`, or other flags.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> io::Result<()> {
        if first > last || flags & !CLOSE_RANGE_CLOEXEC != 0 {
            return Err(error(libc::EINVAL));
        }
        let mut closed = Vec::new();
        let mut numbers = lock(&self.numbers);
        let mut next = numbers.used.next_used(first);
        while let Some(number) = next.filter(|&number| number <= last) {
            if flags & CLOSE_RANGE_CLOEXEC != 0 {
                numbers.set_close_on_exec(number, true)?;
            } else {
                closed.extend(self.take(&mut numbers, number));
            }
            next = number
                .checked_add(1)
                .and_then(|n| numbers.used.next_used(n));
        }
        drop(numbers);
        // Their ends are no business of those who wait for the lock.
        drop(closed);
        Ok(())
    }

    /// Takes a number's entry, if it has one, and frees the number.
    fn take(&self, numbers: &mut Numbers, number: u32) -> Option<T> {
        let entry = lock(self.slots.get(number)?).take()?;
        numbers.tell(number);
        numbers.free(number);
        Some(entry)
    }

    /// What `execve` does: closes the numbers whose close-on-exec flag is set.
    pub fn exec(&self) {
        let mut closed = Vec::new();
        let mut numbers = lock(&self.numbers);
        let mut next = next_set(&numbers.close_on_exec, 0);
        while let Some(number) = next {
            closed.extend(self.take(&mut numbers, number));
            next = number
                .checked_add(1)
                .and_then(|n| next_set(&numbers.close_on_exec, n));
        }
        drop(numbers);
        drop(closed);
    }

    /// Whether [`Table::exec`] closes a number (F_GETFD).
    ///
    /// # Errors
    /// EBADF.
    pub fn close_on_exec(&self, fd: i32) -> io::Result<bool> {
        let number = number(fd)?;
        let numbers = lock(&self.numbers);
        self.named(number)?;
        Ok(numbers.closes_on_exec(number))
    }

    /// Says whether [`Table::exec`] closes a number (F_SETFD). The flag is the
    /// number's, not the entry's: its duplicates have their own.
    ///
    /// # Errors
    /// EBADF.
    pub fn set_close_on_exec(&self, fd: i32, closes: bool) -> io::Result<()> {
        let number = number(fd)?;
        let mut numbers = lock(&self.numbers);
        self.named(number)?;
        numbers.set_close_on_exec(number, closes)
    }

    /// The slot of a number that names something.
    fn named(&self, number: u32) -> io::Result<&Slot<T>> {
        self.slots
            .get(number)
            .filter(|slot| lock(slot).is_some())
            .ok_or_else(|| error(libc::EBADF))
    }

    /// The limit: the lowest number that is not given out.
    pub fn limit(&self) -> u32 {
        lock(&self.numbers).limit
    }

    /// Sets the limit, at most 2^31 − 1. Numbers above a lowered one stay open, as
    /// on Linux.
    pub fn set_limit(&self, limit: u32) {
        let mut numbers = lock(&self.numbers);
        numbers.limit = limit.min(i32::MAX as u32);
        let limit = numbers.limit;
        numbers.used.deepen(limit);
    }

    /// Numbers in use, reserved ones too.
    pub fn len(&self) -> usize {
        lock(&self.numbers).open
    }

    /// True when no number is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The highest number in use.
    pub fn highest(&self) -> Option<i32> {
        lock(&self.numbers).used.highest().map(descriptor)
    }

    /// Tells `observer` of numbers that are closed, while it lives.
    pub fn observe(&self, observer: Weak<dyn Closing>) {
        let mut numbers = lock(&self.numbers);
        numbers.observers.retain(|other| other.strong_count() > 0);
        numbers.observers.push(observer);
    }
}

impl<T: Clone> Table<T> {
    /// What a number names.
    ///
    /// # Errors
    /// EBADF.
    pub fn get(&self, fd: i32) -> io::Result<T> {
        u32::try_from(fd)
            .ok()
            .and_then(|number| lock(self.slots.get(number)?).clone())
            .ok_or_else(|| error(libc::EBADF))
    }

    /// Gives the lowest free number to what `fd` names, without close-on-exec.
    ///
    /// # Errors
    /// EBADF; EMFILE.
    pub fn dup(&self, fd: i32) -> io::Result<i32> {
        self.open(self.get(fd)?, false)
    }

    /// As [`Table::dup`], with the lowest free number from `lowest` on (F_DUPFD,
    /// F_DUPFD_CLOEXEC).
    ///
    /// # Errors
    /// EBADF; EINVAL when `lowest` is negative or not below the limit; EMFILE.
    pub fn dup_from(&self, fd: i32, lowest: i32, close_on_exec: bool) -> io::Result<i32> {
        self.open_from(self.get(fd)?, lowest, close_on_exec)
    }

    /// Makes `new` name what `old` names, without close-on-exec. What it named
    /// is closed in the same step: nobody finds the number free in between.
    /// `old` onto itself changes nothing.
    ///
    /// # Errors
    /// EBADF when `old` names nothing, or `new` is negative or not below the
    /// limit; EBUSY when `new` is reserved for what another thread is about to
    /// open; ENOMEM.
    pub fn dup2(&self, old: i32, new: i32) -> io::Result<i32> {
        if old == new {
            return self.get(old).map(|_| new);
        }
        self.duplicate(old, new, false)
    }

    /// As [`Table::dup2`], with a choice of close-on-exec.
    ///
    /// # Errors
    /// As [`Table::dup2`]; EINVAL when both numbers are the same.
    pub fn dup3(&self, old: i32, new: i32, close_on_exec: bool) -> io::Result<i32> {
        if old == new {
            return Err(error(libc::EINVAL));
        }
        self.duplicate(old, new, close_on_exec)
    }

    fn duplicate(&self, old: i32, new: i32, close_on_exec: bool) -> io::Result<i32> {
        let place = number(new)?;
        // Outlives the lock: another thread may make it the last of its kind.
        let entry;
        let mut numbers = lock(&self.numbers);
        if place >= numbers.limit {
            return Err(error(libc::EBADF));
        }
        entry = self.get(old)?;
        let slot = self.slots.make(place)?;
        let was_used = numbers.used.is_used(place);
        if was_used && lock(slot).is_none() {
            return Err(error(libc::EBUSY));
        }
        numbers.set_close_on_exec(place, close_on_exec)?;
        if !was_used {
            numbers.used.set(place)?;
            numbers.open += 1;
        }
        let replaced = lock(slot).replace(entry);
        if replaced.is_some() {
            numbers.tell(place);
        }
        drop(numbers);
        // Its end is no business of those who wait for the lock.
        drop(replaced);
        Ok(new)
    }

    /// What `fork` gives the child: the same numbers for the same entries, and a
    /// table of its own. Numbers that are only reserved are free in it, as on
    /// Linux: what is made for them is the parent's.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn fork(&self) -> io::Result<Self> {
        let numbers = lock(&self.numbers);
        let child = Self::with(Numbers {
            used: numbers.used.clone(),
            close_on_exec: numbers.close_on_exec.clone(),
            limit: numbers.limit,
            open: numbers.open,
            observers: Vec::new(),
        });
        {
            let mut theirs = lock(&child.numbers);
            let mut next = numbers.used.next_used(0);
            while let Some(number) = next {
                let entry = self.slots.get(number).and_then(|slot| lock(slot).clone());
                match entry {
                    Some(entry) => *lock(child.slots.make(number)?) = Some(entry),
                    None => theirs.free(number),
                }
                next = number
                    .checked_add(1)
                    .and_then(|n| numbers.used.next_used(n));
            }
        }
        Ok(child)
    }
}

/// A number that is taken, and names nothing yet ([`Table::reserve`]).
#[derive(Debug)]
pub struct Reservation<'a, T> {
    table: &'a Table<T>,
    number: u32,
    installed: bool,
}

impl<T> Reservation<'_, T> {
    /// Makes the number name `entry`, and returns it.
    pub fn install(mut self, entry: T) -> i32 {
        if let Some(slot) = self.table.slots.get(self.number) {
            *lock(slot) = Some(entry);
            self.installed = true;
        }
        descriptor(self.number)
    }
}

impl<T> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        if !self.installed {
            lock(&self.table.numbers).free(self.number);
        }
    }
}

/// A weak reference to an observer, for [`Table::observe`].
pub fn weak<O: Closing + 'static>(observer: &Arc<O>) -> Weak<dyn Closing> {
    let weak: Weak<O> = Arc::downgrade(observer);
    weak
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
