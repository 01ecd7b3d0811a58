//! Where a number's entry is: found without a lock of the table's.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error;
use super::sync::{Mutex, lock};
use tidewall_stack::lock::rank;

/// Slots of a chunk. Few where loom follows every lock.
const CHUNK: u32 = if cfg!(loom) { 4 } else { 1024 };
/// Sizes of directories: the n-th has 2^n chunks, so these are enough for every
/// `i32`.
const DIRECTORIES: usize = if cfg!(loom) { 30 } else { 22 };

/// What a number names: one lock a number, held while an entry is cloned.
pub(super) type Slot<T> = Mutex<Option<T>, rank::Leaf>;
type Directory<T> = Box<[OnceLock<Chunk<T>>]>;

#[derive(Debug)]
struct Chunk<T> {
    slots: Box<[Slot<T>]>,
    /// True of a slot that has an entry; changed under the slot's lock.
    named: Box<[AtomicBool]>,
}

/// The place of a number's entry.
pub(super) struct Place<'a, T> {
    pub(super) slot: &'a Slot<T>,
    named: &'a AtomicBool,
}

impl<T> Place<'_, T> {
    /// Has the number name an entry; returns what it named.
    pub(super) fn replace(&self, entry: T) -> Option<T> {
        let mut slot = lock(self.slot);
        self.named.store(true, Ordering::Release);
        slot.replace(entry)
    }

    /// The number names nothing any more; returns what it named.
    pub(super) fn take(&self) -> Option<T> {
        let mut slot = lock(self.slot);
        self.named.store(false, Ordering::Release);
        slot.take()
    }

    /// True for a number that names something.
    pub(super) fn is_named(&self) -> bool {
        self.named.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<T>
    where
        T: Clone,
    {
        lock(self.slot).clone()
    }
}

/// Slots by number, in chunks that are made when one of them is first used and stay
/// where they are.
#[derive(Debug)]
pub(super) struct Entries<T> {
    directories: [OnceLock<Directory<T>>; DIRECTORIES],
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Entries {
            directories: [const { OnceLock::new() }; DIRECTORIES],
        }
    }
}

impl<T> Entries<T> {
    /// Directory, place in it, and place in the chunk, of a number.
    #[inline]
    fn place(number: u32) -> (usize, usize, usize) {
        let chunk = number / CHUNK + 1;
        let directory = chunk.ilog2();
        (
            directory as usize,
            (chunk - (1 << directory)) as usize,
            (number % CHUNK) as usize,
        )
    }

    /// A number's place, if it was ever used or one near it. Takes no lock and allocates
    /// nothing.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<Place<'_, T>> {
        let (directory, chunk, slot) = Self::place(number);
        let chunks = self.directories.get(directory)?.get()?;
        let chunk = chunks.get(chunk)?.get()?;
        Some(Place {
            slot: chunk.slots.get(slot)?,
            named: chunk.named.get(slot)?,
        })
    }

    /// A number's place, made if need be. The caller holds the table's lock.
    pub(super) fn make(&self, number: u32) -> io::Result<Place<'_, T>> {
        if let Some(place) = self.get(number) {
            return Ok(place);
        }
        fn filled<E>(length: usize, element: impl Fn() -> E) -> io::Result<Box<[E]>> {
            let mut elements = Vec::new();
            elements
                .try_reserve_exact(length)
                .map_err(|_| error(libc::ENOMEM))?;
            elements.resize_with(length, element);
            Ok(elements.into())
        }
        let (directory, chunk, _) = Self::place(number);
        if let Some(place) = self.directories.get(directory)
            && place.get().is_none()
        {
            let _ = place.set(filled(1 << directory, OnceLock::new)?);
        }
        let chunks = self.directories.get(directory).and_then(OnceLock::get);
        if let Some(place) = chunks.and_then(|chunks| chunks.get(chunk))
            && place.get().is_none()
        {
            let chunk = Chunk {
                slots: filled(CHUNK as usize, || Mutex::new(None))?,
                named: filled(CHUNK as usize, AtomicBool::default)?,
            };
            let _ = place.set(chunk);
        }
        self.get(number).ok_or_else(|| error(libc::ENOMEM))
    }
}
