//! Finds a descriptor's entry without the table's lock.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewall_stack::lock::rank;

use super::error;
use super::sync::{Mutex, lock};

/// Slots per chunk. Few under loom, which follows every lock.
const CHUNK: u32 = if cfg!(loom) { 4 } else { 1024 };
/// Number of directories: the n-th has 2^n chunks, so these are enough for every `i32`.
const DIRECTORIES: usize = if cfg!(loom) { 30 } else { 22 };

/// The file that a descriptor names: one lock per descriptor, held while an entry is
/// cloned.
pub(super) type Slot<T> = Mutex<Option<T>, rank::Leaf>;
type Directory<T> = Box<[OnceLock<Chunk<T>>]>;

#[derive(Debug)]
struct Chunk<T> {
    slots: Box<[Slot<T>]>,
    /// True for a slot that has an entry; changed under the slot's lock.
    named: Box<[AtomicBool]>,
}

/// The slot of a descriptor's entry.
pub(super) struct Place<'a, T> {
    pub(super) slot: &'a Slot<T>,
    named: &'a AtomicBool,
}

impl<T> Place<'_, T> {
    /// Makes the descriptor name an entry; returns the previous one.
    pub(super) fn replace(&self, entry: T) -> Option<T> {
        let mut slot = lock(self.slot);
        self.named.store(true, Ordering::Release);
        slot.replace(entry)
    }

    /// Clears the entry; returns the previous one.
    pub(super) fn take(&self) -> Option<T> {
        let mut slot = lock(self.slot);
        self.named.store(false, Ordering::Release);
        slot.take()
    }

    /// Returns true for a descriptor that has an entry.
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

/// Slots by descriptor, in chunks that are created when one of their slots is first used,
/// and do not move.
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
    /// Returns the directory, the index in it, and the index in the chunk, of a
    /// descriptor.
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

    /// Returns a descriptor's slot, if its chunk exists. Takes no lock and allocates
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

    /// Returns a descriptor's slot, creating its chunk if needed. The caller holds the
    /// table's lock.
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
