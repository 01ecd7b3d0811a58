//! A set of descriptors as `select` uses it, of any width.

use std::fmt;

/// Bits per word.
const BITS: usize = u64::BITS as usize;

/// A set of descriptors, one bit each: the argument and the result of
/// [`Descriptors::select`](crate::Descriptors::select).
///
/// The layout is that of C's `fd_set` on 64-bit Linux: descriptor `n` is bit `n % 64` of
/// word `n / 64`. The set is as wide as its largest descriptor needs: there is no
/// `FD_SETSIZE`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DescriptorSet {
    words: Vec<u64>,
}

impl DescriptorSet {
    /// Creates an empty set.
    pub const fn new() -> Self {
        DescriptorSet { words: Vec::new() }
    }

    /// Creates an empty set with room for the descriptors below `count`.
    pub fn with_width(count: usize) -> Self {
        DescriptorSet {
            words: vec![0; count.div_ceil(BITS)],
        }
    }

    /// Creates a set from words, as an `fd_set` holds them.
    pub const fn from_words(words: Vec<u64>) -> Self {
        DescriptorSet { words }
    }

    /// Returns the words, as an `fd_set` holds them.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the words, to be changed in place.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Returns the width, a multiple of 64: descriptors below it already have a bit.
    pub fn width(&self) -> usize {
        self.words.len() * BITS
    }

    /// Adds a descriptor; returns true if it was not in the set. A negative number is no
    /// descriptor and is not added.
    pub fn insert(&mut self, descriptor: i32) -> bool {
        let Some((word, bit)) = place(descriptor) else {
            return false;
        };
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let Some(word) = self.words.get_mut(word) else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a descriptor; returns true if it was in the set.
    pub fn remove(&mut self, descriptor: i32) -> bool {
        let Some((word, bit)) = place(descriptor) else {
            return false;
        };
        let Some(word) = self.words.get_mut(word) else {
            return false;
        };
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Returns true for a descriptor in the set.
    pub fn contains(&self, descriptor: i32) -> bool {
        place(descriptor)
            .is_some_and(|(word, bit)| self.words.get(word).is_some_and(|word| word & bit != 0))
    }

    /// Empties the set; its width stays.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Copies another set, reusing this one's memory. A program does so before each
    /// `select`, which overwrites its arguments.
    pub fn copy_from(&mut self, other: &DescriptorSet) {
        self.words.clone_from(&other.words);
    }

    /// Returns the number of descriptors in the set.
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Returns true for the empty set, of any width.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Iterates over the descriptors in the set, in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            words: &self.words,
            next: 0,
            bits: 0,
        }
    }

    /// Returns the `nfds` of a `select` on this set: its largest descriptor plus one, 0
    /// for the empty set.
    pub fn nfds(&self) -> i32 {
        let last = self.words.iter().rposition(|&word| word != 0);
        last.map_or(0, |place| {
            let word = self.words.get(place).copied().unwrap_or(0);
            (place * BITS + BITS - word.leading_zeros() as usize) as i32
        })
    }
}

/// Returns the position of a descriptor's bit: its word, and the mask in it.
fn place(descriptor: i32) -> Option<(usize, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((number / BITS, 1 << (number % BITS)))
}

impl fmt::Debug for DescriptorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Extend<i32> for DescriptorSet {
    fn extend<I: IntoIterator<Item = i32>>(&mut self, numbers: I) {
        for number in numbers {
            self.insert(number);
        }
    }
}

impl FromIterator<i32> for DescriptorSet {
    fn from_iter<I: IntoIterator<Item = i32>>(numbers: I) -> Self {
        let mut set = DescriptorSet::new();
        set.extend(numbers);
        set
    }
}

impl<'a> IntoIterator for &'a DescriptorSet {
    type Item = i32;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The descriptors of a [`DescriptorSet`], in ascending order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64],
    /// The word after the one whose bits remain.
    next: usize,
    bits: u64,
}

impl Iterator for Iter<'_> {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        while self.bits == 0 {
            self.bits = *self.words.get(self.next)?;
            self.next += 1;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(((self.next - 1) * BITS + bit) as i32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lies_in_memory_as_an_fd_set_does() {
        let set: DescriptorSet = [0, 63, 64, 1025, 100_000].into_iter().collect();
        assert_eq!(set.words()[0], 1 | 1 << 63);
        assert_eq!(set.words()[1], 1);
        assert_eq!(set.words()[16], 2);
        assert_eq!(set.words().len(), 100_000 / 64 + 1);
        assert_eq!(set.nfds(), 100_001);
        let same = DescriptorSet::from_words(set.words().to_vec());
        assert_eq!(same.iter().collect::<Vec<_>>(), [0, 63, 64, 1025, 100_000]);
        assert_eq!(format!("{same:?}"), "{0, 63, 64, 1025, 100000}");
    }

    #[test]
    fn a_negative_number_is_in_no_set() {
        let mut set = DescriptorSet::with_width(64);
        assert!(!set.insert(-1) && !set.contains(-1) && !set.remove(-1));
        assert!(set.is_empty());
        assert_eq!((set.width(), set.nfds()), (64, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(i32),
        Remove(i32),
        Clear,
    }

    proptest! {
        #[test]
        fn is_a_set(steps in prop::collection::vec(prop_oneof![
            6 => (0..300i32).prop_map(Step::Insert),
            3 => (0..300i32).prop_map(Step::Remove),
            1 => Just(Step::Clear),
        ], 0..60)) {
            let (mut set, mut model) = (DescriptorSet::new(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(n) => prop_assert_eq!(set.insert(n), model.insert(n)),
                    Step::Remove(n) => prop_assert_eq!(set.remove(n), model.remove(&n)),
                    Step::Clear => { set.clear(); model.clear(); }
                }
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert!(set.iter().eq(model.iter().copied()));
                prop_assert_eq!(set.nfds(), model.last().map_or(0, |&last| last + 1));
                prop_assert!((0..310).all(|n| set.contains(n) == model.contains(&n)));
            }
        }
    }
}
