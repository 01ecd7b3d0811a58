//! Where a number's entry is: found without a lock of the table's.

use std::io;
use std::sync::OnceLock;

use super::error;
use super::sync::Mutex;
use crate::lock::rank;

/// Slots of a chunk. Few where loom follows every lock.
const CHUNK: u32 = if cfg!(loom) { 4 } else { 1024 };
/// Sizes of directories: the n-th has 2^n chunks, so these are enough for every
/// `i32`.
const DIRECTORIES: usize = if cfg!(loom) { 30 } else { 22 };

/// What a number names: one lock a number, held while an entry is cloned.
pub(super) type Slot<T> = Mutex<Option<T>, rank::Leaf>;
type Chunk<T> = Box<[Slot<T>]>;
type Directory<T> = Box<[OnceLock<Chunk<T>>]>;

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
    fn place(number: u32) -> (usize, usize, usize) {
        let chunk = number / CHUNK + 1;
        let directory = chunk.ilog2();
        (
            directory as usize,
            (chunk - (1 << directory)) as usize,
            (number % CHUNK) as usize,
        )
    }

    /// A number's slot, if it was ever used or one near it.
    pub(super) fn get(&self, number: u32) -> Option<&Slot<T>> {
        let (directory, chunk, slot) = Self::place(number);
        let chunks = self.directories.get(directory)?.get()?;
        chunks.get(chunk)?.get()?.get(slot)
    }

    /// A number's slot, made if need be. The caller holds the table's lock.
    pub(super) fn make(&self, number: u32) -> io::Result<&Slot<T>> {
        if let Some(slot) = self.get(number) {
            return Ok(slot);
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
            let _ = place.set(filled(CHUNK as usize, || Mutex::new(None))?);
        }
        self.get(number).ok_or_else(|| error(libc::ENOMEM))
    }
}
