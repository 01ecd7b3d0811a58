//! The numbers in use, as a tree of bitmaps: the paper's `ufalloc`.
//!
//! A bit of the lowest level is a number in use. A bit of any other level is a full word
//! of the level below. The lowest free number is found by following the first clear bit
//! from the top, one word per level. The paper's tree has two levels, 4,096 numbers. This
//! one has as many as its limit needs: three up to 262,144, four up to 16,777,216, six
//! for every `u32`.
//!
//! Read first: Banga and Mogul, USENIX 1998, section 5.2 (`ufalloc`).

use std::io;

use super::error;

/// Bits per word, and as a shift.
const BITS: u32 = u64::BITS;
/// See [`BITS`].
const SHIFT: u32 = 6;

/// The numbers in use, below a limit.
///
/// Memory is one bit per number up to the highest ever used, and a 64th of that for the
/// levels above. Words past a level's end are clear.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    /// The lowest level first; each a 64th of the one before.
    levels: Vec<Vec<u64>>,
}

impl Bitmap {
    /// Creates an empty bitmap for numbers below `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        let mut bitmap = Bitmap {
            levels: vec![Vec::new()],
        };
        bitmap.deepen(limit);
        bitmap
    }

    /// Makes room for numbers below `limit`; never shrinks.
    pub(crate) fn deepen(&mut self, limit: u32) {
        // The top is one word, whose bits stand for 64 words of the level below.
        while self.reach() < u64::from(limit) {
            // All of the old tree is below the first bit of the new top.
            let top = self.levels.last().and_then(|top| top.first());
            let above = top.map(|top| u64::from(*top == u64::MAX));
            self.levels.push(Vec::from_iter(above));
        }
    }

    /// Returns how many numbers the tree can hold.
    fn reach(&self) -> u64 {
        1 << (SHIFT * self.levels.len().min(10) as u32)
    }

    /// Returns the number of levels: the words read to find a free number.
    #[cfg(all(test, not(loom)))]
    fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Returns the lowest free number not below `lowest`; `None` past the end of the
    /// tree. Reads at most two words per level.
    pub(crate) fn first_free(&self, lowest: u32) -> Option<u32> {
        let mut place = u64::from(lowest);
        if place >= self.reach() {
            return None;
        }
        // Up: past the end of each word that has nothing free after `place`.
        for (level, words) in self.levels.iter().enumerate() {
            let word = word(words, place >> SHIFT);
            let free = !word & (u64::MAX << (place % u64::from(BITS)));
            if free != 0 {
                let bit = u64::from(free.trailing_zeros());
                let mut found = (place & !u64::from(BITS - 1)) | bit;
                // Down: the first clear bit of each word that is not full.
                for below in self.levels.iter().take(level).rev() {
                    let word = self::word(below, found);
                    found = (found << SHIFT) | u64::from(word.trailing_ones());
                }
                return u32::try_from(found).ok();
            }
            place = (place >> SHIFT) + 1;
            if place >= 1 << (SHIFT * (self.levels.len() - 1 - level).min(10) as u32) {
                // No word follows: the tree ends.
                return None;
            }
        }
        None
    }

    /// Returns true for a number in use.
    pub(crate) fn is_used(&self, number: u32) -> bool {
        let words = self.levels.first().map_or(&[][..], Vec::as_slice);
        word(words, u64::from(number >> SHIFT)) & bit(u64::from(number)) != 0
    }

    /// Marks a number as in use.
    ///
    /// # Errors
    /// ENOMEM without memory for it, or if it is past the end of the tree; nothing has
    /// changed then.
    pub(crate) fn set(&mut self, number: u32) -> io::Result<()> {
        let number = u64::from(number);
        if number >= self.reach() {
            return Err(error(libc::ENOMEM));
        }
        // Memory first, so that an error leaves the tree unchanged. If the lowest level
        // has the word, so do the others.
        let words = self.levels.first().map_or(0, Vec::len);
        if number >> SHIFT >= words as u64 {
            self.grow(number)?;
        }
        let mut place = number;
        for words in &mut self.levels {
            let Some(word) = words.get_mut((place >> SHIFT) as usize) else {
                return Err(error(libc::ENOMEM));
            };
            *word |= bit(place);
            if *word != u64::MAX {
                break;
            }
            place >>= SHIFT;
        }
        Ok(())
    }

    /// Makes every level long enough for a number.
    #[cold]
    fn grow(&mut self, number: u64) -> io::Result<()> {
        let mut place = number;
        // The lowest level last: the others are never shorter than it requires.
        let mut needed = Vec::with_capacity(self.levels.len());
        for _ in &self.levels {
            place >>= SHIFT;
            needed.push(usize::try_from(place).map_err(|_| error(libc::ENOMEM))? + 1);
        }
        for (words, needed) in self.levels.iter_mut().zip(needed).rev() {
            if words.len() < needed {
                words
                    .try_reserve(needed - words.len())
                    .map_err(|_| error(libc::ENOMEM))?;
                words.resize(needed, 0);
            }
        }
        Ok(())
    }

    /// Marks a number as free. Words above change only if they marked the level below as
    /// full, which is rare.
    pub(crate) fn clear(&mut self, number: u32) {
        let mut place = u64::from(number);
        for words in &mut self.levels {
            let Some(word) = words.get_mut((place >> SHIFT) as usize) else {
                return;
            };
            let was_full = *word == u64::MAX;
            *word &= !bit(place);
            if !was_full {
                return;
            }
            place >>= SHIFT;
        }
    }

    /// Returns the lowest number in use not below `lowest`.
    pub(crate) fn next_used(&self, lowest: u32) -> Option<u32> {
        next_set(self.levels.first()?, lowest)
    }

    /// Returns the highest number in use.
    pub(crate) fn highest(&self) -> Option<u32> {
        let words = self.levels.first()?;
        let (place, word) = words
            .iter()
            .enumerate()
            .rev()
            .find(|(_, word)| **word != 0)?;
        u32::try_from((place << SHIFT) as u64 + u64::from(word.ilog2())).ok()
    }

    /// Returns the bytes that the tree occupies.
    #[cfg(all(test, not(loom)))]
    fn memory(&self) -> usize {
        let words: usize = self.levels.iter().map(Vec::capacity).sum();
        words * size_of::<u64>()
    }
}

/// Returns the lowest bit set in `words` not below `lowest`.
pub(super) fn next_set(words: &[u64], lowest: u32) -> Option<u32> {
    let first = (lowest >> SHIFT) as usize;
    let mut mask = u64::MAX << (lowest % BITS);
    for (place, word) in words.iter().enumerate().skip(first) {
        let used = word & mask;
        if used != 0 {
            return u32::try_from((place << SHIFT) as u64 + u64::from(used.trailing_zeros())).ok();
        }
        mask = u64::MAX;
    }
    None
}

/// Returns a word of a level; those past its end are clear.
fn word(words: &[u64], place: u64) -> u64 {
    usize::try_from(place)
        .ok()
        .and_then(|place| words.get(place))
        .copied()
        .unwrap_or(0)
}

/// Returns a number's bit in its word.
fn bit(place: u64) -> u64 {
    1 << (place % u64::from(BITS))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_deep_as_its_limit_needs() {
        for (limit, depth) in [
            (0, 1),
            (64, 1),
            (65, 2),
            (4096, 2),
            (4097, 3),
            (262_144, 3),
            (1_048_576, 4),
            (16_777_216, 4),
            (16_777_217, 5),
            (1 << 30, 5),
            (i32::MAX as u32, 6),
            (u32::MAX, 6),
        ] {
            assert_eq!(Bitmap::new(limit).depth(), depth, "limit {limit}");
        }
    }

    #[test]
    fn full_words_are_skipped_at_every_level() {
        let mut bitmap = Bitmap::new(1 << 20);
        for number in 0..70_000 {
            assert_eq!(bitmap.first_free(0), Some(number));
            bitmap.set(number).unwrap();
        }
        // Words of three levels are full.
        assert_eq!(bitmap.first_free(0), Some(70_000));
        assert_eq!(bitmap.first_free(5), Some(70_000));
        bitmap.clear(4095);
        assert_eq!(bitmap.first_free(0), Some(4095));
        assert_eq!(bitmap.first_free(4096), Some(70_000));
        bitmap.set(4095).unwrap();
        assert_eq!(bitmap.first_free(0), Some(70_000));
        assert_eq!(bitmap.highest(), Some(69_999));
    }

    #[test]
    fn a_full_tree_has_nothing_free() {
        for limit in [64u32, 4096] {
            let mut bitmap = Bitmap::new(limit);
            for number in 0..limit {
                bitmap.set(number).unwrap();
            }
            assert_eq!(bitmap.first_free(0), None);
            assert_eq!(bitmap.first_free(limit - 1), None);
            assert!(bitmap.set(limit).is_err());
            // After deepening, full words stay marked as full.
            bitmap.deepen(limit + 1);
            assert_eq!(bitmap.first_free(0), Some(limit));
            bitmap.clear(7);
            assert_eq!(bitmap.first_free(0), Some(7));
        }
    }

    #[test]
    fn numbers_at_the_end_of_the_range_are_found_and_cleared() {
        let mut bitmap = Bitmap::new(u32::MAX);
        assert_eq!(bitmap.first_free(u32::MAX), Some(u32::MAX));
        bitmap.set(1 << 24).unwrap();
        assert_eq!(bitmap.first_free(1 << 24), Some((1 << 24) + 1));
        assert_eq!(bitmap.next_used(0), Some(1 << 24));
        bitmap.clear(1 << 24);
        assert_eq!(bitmap.next_used(0), None);
        // A number far from any used one is cleared without growing anything.
        let memory = bitmap.memory();
        bitmap.clear(u32::MAX);
        assert_eq!(bitmap.memory(), memory);
    }

    #[test]
    fn memory_grows_with_the_highest_number_not_with_the_limit() {
        let mut bitmap = Bitmap::new(i32::MAX as u32);
        assert_eq!(bitmap.memory(), 0);
        for number in 0..1000 {
            bitmap.set(number).unwrap();
        }
        assert!(bitmap.memory() < 1024, "{} bytes", bitmap.memory());
        bitmap.set(1_000_000).unwrap();
        assert!(bitmap.memory() < 300_000, "{} bytes", bitmap.memory());
    }
}
