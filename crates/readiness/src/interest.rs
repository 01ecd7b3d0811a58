//! The state that a thread keeps between calls of `select`, and the rule by which a call
//! examines only what may have changed.
//!
//! Banga and Mogul, "Scalable kernel performance for Internet servers under realistic
//! loads", USENIX 1998. The state is INTERESTED (every descriptor ever selected), HINTS
//! (those that have changed since their last examination) and READY (those that were
//! ready then). A call for the descriptors SELECTING examines
//!
//! ```text
//!  (SELECTING − INTERESTED) ∪ (SELECTING ∩ HINTS) ∪ (SELECTING ∩ READY)
//! ```
//!
//! and nothing else: a descriptor that had nothing and was not hinted has nothing. The
//! last term exists because the application may not have consumed what was reported. An
//! invariant holds between calls for every number and class in INTERESTED that is neither
//! in HINTS nor in READY. The file has nothing of that class ([`Classes::pending`]), and
//! a change of that will be hinted.
//!
//! No sockets, no clock: a caller describes the files ([`Files`]).

use super::classes::{CLASSES, Classes};
use crate::events::Events;

/// Bits per word.
const BITS: usize = u64::BITS as usize;
/// Words per stride in which bitmaps are compared. Enough for the compiler to use
/// vectors, and for a stride's end to cost little (130 ns of a call over 100,000 numbers
/// with 16). Few enough to find a difference soon.
const STRIDE: usize = 32;

/// The files behind the descriptors.
pub trait Files {
    /// The error of a descriptor that is not open.
    type Error;

    /// Returns what the file is ready for now, in any class. Hints for `interest` begin
    /// before this examination.
    fn examine(&mut self, number: usize, interest: Classes) -> Result<Events, Self::Error>;

    /// Ends hints for all changes but those in `interest`.
    fn narrow(&mut self, number: usize, interest: Classes);
}

/// The arguments of a `select` call: one bitmap per class. Bits from `count` on are
/// ignored.
#[derive(Clone, Copy, Debug)]
pub struct Selecting<'a> {
    words: [&'a [u64]; CLASSES],
    /// Index of the partly used word, and its used bits.
    last: (usize, u64),
}

impl<'a> Selecting<'a> {
    pub fn new(sets: [&'a [u64]; CLASSES], count: usize) -> Self {
        let (whole, rest) = (count / BITS, count % BITS);
        let used = whole + usize::from(rest != 0);
        Selecting {
            words: sets.map(|set| set.get(..used).unwrap_or(set)),
            last: match rest {
                0 => (usize::MAX, 0),
                rest => (whole, (1 << rest) - 1),
            },
        }
    }

    /// Returns the number of words in the widest set.
    fn width(&self) -> usize {
        self.words.iter().map(|set| set.len()).max().unwrap_or(0)
    }

    /// Returns one word of each class.
    fn word(&self, place: usize) -> [u64; CLASSES] {
        let mask = if place == self.last.0 {
            self.last.1
        } else {
            !0
        };
        self.words
            .map(|set| set.get(place).copied().unwrap_or(0) & mask)
    }

    /// Returns the classes requested for a descriptor.
    pub fn classes(&self, number: usize) -> Classes {
        Classes::of_words(self.word(number / BITS), (number % BITS) as u32)
    }

    /// Calls `each` with every requested descriptor, in ascending order.
    pub fn each<E>(&self, mut each: impl FnMut(usize, Classes) -> Result<(), E>) -> Result<(), E> {
        for place in 0..self.width() {
            let words = self.word(place);
            for bit in bits(words.iter().fold(0, |all, word| all | word)) {
                each(place * BITS + bit as usize, Classes::of_words(words, bit))?;
            }
        }
        Ok(())
    }
}

/// Iterates over the set bits of a word, in ascending order.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    })
}

/// Descriptors that a call found ready.
#[derive(Debug, Default)]
pub struct Found {
    list: Vec<(usize, Classes)>,
    /// Strides of each set that are not empty, one bit each, if known.
    occupied: [Vec<u64>; CLASSES],
    knows_occupied: bool,
}

impl Found {
    pub fn clear(&mut self) {
        self.list.clear();
        self.knows_occupied = false;
    }

    /// Returns the number of descriptors found ready.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Records the classes for which a descriptor is ready, possibly none.
    pub fn push(&mut self, number: usize, classes: Classes) {
        if !classes.is_none() {
            self.list.push((number, classes));
        }
    }

    /// Writes the results into the sets of a call: the ready descriptors, and nothing
    /// else in the words that hold descriptors below `count`. Returns the result of
    /// `select`.
    pub fn write(&self, sets: [Option<&mut [u64]>; CLASSES], count: usize) -> usize {
        let used = count.div_ceil(BITS);
        let mut ready = 0;
        for (class, set) in sets.into_iter().enumerate() {
            let Some(set) = set else { continue };
            let used = used.min(set.len());
            if let Some(set) = set.get_mut(..used) {
                match self.occupied.get(class) {
                    Some(occupied) if self.knows_occupied => clear(set, occupied),
                    _ => set.fill(0),
                }
            }
            for &(number, classes) in &self.list {
                let bit = classes.to_words((number % BITS) as u32)[class];
                if let Some(word) = set.get_mut(number / BITS) {
                    // A descriptor that was found twice counts once.
                    ready += usize::from(bit & !*word != 0);
                    *word |= bit;
                }
            }
        }
        ready
    }

    /// Forgets which strides are empty, for sets of that many words.
    fn begin(&mut self, words: usize) {
        self.knows_occupied = true;
        for class in &mut self.occupied {
            class.clear();
            class.resize(words.div_ceil(STRIDE * BITS), 0);
        }
    }
}

/// Clears a bitmap in which only some strides, and the words after the last whole one,
/// are not empty.
fn clear(set: &mut [u64], occupied: &[u64]) {
    let whole = set.len() / STRIDE;
    for (place, &word) in occupied.iter().enumerate() {
        for bit in bits(word) {
            let from = (place * BITS + bit as usize) * STRIDE;
            if let Some(stride) = set.get_mut(from..from + STRIDE) {
                stride.fill(0);
            }
        }
    }
    if let Some(rest) = set.get_mut(whole * STRIDE..) {
        rest.fill(0);
    }
}

/// HINTS and READY of 64 descriptors, together because they are used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    hints: u64,
    ready: [u64; CLASSES],
}

impl Row {
    const EMPTY: Row = Row {
        hints: 0,
        ready: [0; CLASSES],
    };

    /// Returns the bits of `selecting` that must be examined.
    fn examined(&self, selecting: [u64; CLASSES]) -> u64 {
        selecting
            .iter()
            .zip(self.ready)
            .fold(0, |all, (selecting, ready)| {
                all | selecting & (self.hints | ready)
            })
    }
}

/// INTERESTED, HINTS and READY of one thread in one descriptor table.
#[derive(Debug, Default)]
pub struct Interest {
    interested: [Vec<u64>; CLASSES],
    rows: Vec<Row>,
    /// One bit for each row that is not empty.
    filled: Vec<u64>,
}

impl Interest {
    /// Makes room for this many words.
    fn widen(&mut self, words: usize) {
        if words > self.rows.len() {
            let words = words.next_multiple_of(STRIDE);
            self.rows.resize(words, Row::EMPTY);
            self.filled.resize(words.div_ceil(BITS), 0);
            for class in &mut self.interested {
                class.resize(words, 0);
            }
        }
    }

    /// Returns the classes of a descriptor in INTERESTED.
    pub fn interested(&self, number: usize) -> Classes {
        let place = number / BITS;
        let words = self
            .interested
            .each_ref()
            .map(|class| class.get(place).copied().unwrap_or(0));
        Classes::of_words(words, (number % BITS) as u32)
    }

    fn is_hinted(&self, number: usize) -> bool {
        let row = self.rows.get(number / BITS);
        row.is_some_and(|row| row.hints & 1 << (number % BITS) != 0)
    }

    /// Sets the state of a descriptor.
    fn set(&mut self, number: usize, interested: Classes, hinted: bool, ready: Classes) {
        let (place, bit) = (number / BITS, (number % BITS) as u32);
        let mask = !(1u64 << bit);
        for (class, new) in self.interested.iter_mut().zip(interested.to_words(bit)) {
            if let Some(word) = class.get_mut(place) {
                *word = *word & mask | new;
            }
        }
        let Some(row) = self.rows.get_mut(place) else {
            return;
        };
        row.hints = row.hints & mask | u64::from(hinted) << bit;
        for (word, new) in row.ready.iter_mut().zip(ready.to_words(bit)) {
            *word = *word & mask | new;
        }
        let filled = *row != Row::EMPTY;
        if let Some(word) = self.filled.get_mut(place / BITS) {
            let bit = 1 << (place % BITS);
            *word = if filled { *word | bit } else { *word & !bit };
        }
    }

    /// Records a change of a file. Returns false when no call asks for it: nothing of it
    /// is in INTERESTED, or its last hint has not been examined. Then it need not be
    /// hinted again until it is examined.
    pub fn hint(&mut self, number: usize) -> bool {
        let (place, bit) = (number / BITS, 1 << (number % BITS));
        if self.interested(number).is_none() {
            return false;
        }
        let Some(row) = self.rows.get_mut(place) else {
            return false;
        };
        let new = row.hints & bit == 0;
        row.hints |= bit;
        if let Some(filled) = self.filled.get_mut(place / BITS) {
            *filled |= 1 << (place % BITS);
        }
        new
    }

    /// Forgets a descriptor that is closed, or names another file from now on.
    pub fn forget(&mut self, number: usize) {
        self.set(number, Classes::NONE, false, Classes::NONE);
    }

    /// Examines a descriptor for the classes `asked`, and records its state.
    fn examine<F: Files>(
        &mut self,
        number: usize,
        asked: Classes,
        files: &mut F,
    ) -> Result<Events, F::Error> {
        let known = self.interested(number);
        let mut interested = known.with(asked);
        let state = match files.examine(number, interested) {
            Ok(state) => state,
            Err(error) => {
                self.forget(number);
                return Err(error);
            }
        };
        let pending = Classes::pending(state);
        if pending.and(asked).is_none() && interested != asked && self.is_hinted(number) {
            // It changed in a class that was requested once and is not now. Left as it
            // is, every further change of the kind would wake the thread.
            files.narrow(number, asked);
            interested = asked;
        }
        self.set(number, interested, false, pending.and(interested));
        Ok(state)
    }

    /// Returns the requested classes for which a descriptor is ready, whatever is
    /// recorded of it.
    pub fn see<F: Files>(
        &mut self,
        number: usize,
        asked: Classes,
        files: &mut F,
    ) -> Result<Classes, F::Error> {
        self.widen(number / BITS + 1);
        let state = self.examine(number, asked, files)?;
        Ok(Classes::ready(state).and(asked))
    }

    /// Returns the state of a descriptor, for `poll`; `None` if it has nothing that was
    /// requested.
    #[inline]
    pub fn look<F: Files>(
        &mut self,
        number: usize,
        asked: Classes,
        files: &mut F,
    ) -> Result<Option<Events>, F::Error> {
        if self.is_known_idle(number, asked) {
            return Ok(None);
        }
        self.widen(number / BITS + 1);
        self.examine(number, asked, files).map(Some)
    }

    /// Returns true for a descriptor that the rule skips.
    #[inline]
    fn is_known_idle(&self, number: usize, asked: Classes) -> bool {
        let place = number / BITS;
        let Some(row) = self.rows.get(place) else {
            return false;
        };
        let asked_words = asked.to_words((number % BITS) as u32);
        asked.without(self.interested(number)).is_none() && row.examined(asked_words) == 0
    }

    /// Puts the ready descriptors of `selecting` into `found`, examining those that the
    /// rule requires. An error comes from the first descriptor that is not open; the
    /// results for those before it stay recorded.
    pub fn select<F: Files>(
        &mut self,
        selecting: &Selecting<'_>,
        files: &mut F,
        found: &mut Found,
    ) -> Result<(), F::Error> {
        self.widen(selecting.width());
        found.begin(selecting.width());
        self.examine_filled(selecting, files, found)?;
        self.examine_new(selecting, files, found)
    }

    /// (SELECTING ∩ HINTS) ∪ (SELECTING ∩ READY).
    fn examine_filled<F: Files>(
        &mut self,
        selecting: &Selecting<'_>,
        files: &mut F,
        found: &mut Found,
    ) -> Result<(), F::Error> {
        for upper in 0..self.filled.len() {
            for place in bits(self.filled.get(upper).copied().unwrap_or(0)) {
                let place = upper * BITS + place as usize;
                let words = selecting.word(place);
                let row = self.rows.get(place).copied().unwrap_or_default();
                for bit in bits(row.examined(words)) {
                    let number = place * BITS + bit as usize;
                    let asked = Classes::of_words(words, bit);
                    let state = self.examine(number, asked, files)?;
                    found.push(number, Classes::ready(state).and(asked));
                }
            }
        }
        Ok(())
    }

    /// SELECTING − INTERESTED. Runs after [`Interest::examine_filled`]; otherwise
    /// descriptors that it finds ready would be examined twice.
    fn examine_new<F: Files>(
        &mut self,
        selecting: &Selecting<'_>,
        files: &mut F,
        found: &mut Found,
    ) -> Result<(), F::Error> {
        for class in 0..CLASSES {
            let mut from = 0;
            while let Some(stride) = self.differs(selecting, class, from, found) {
                for place in stride..stride + STRIDE {
                    let words = selecting.word(place);
                    let known = self
                        .interested
                        .each_ref()
                        .map(|class| class.get(place).copied().unwrap_or(0));
                    let new = words
                        .iter()
                        .zip(known)
                        .fold(0, |all, (word, known)| all | word & !known);
                    for bit in bits(new) {
                        let number = place * BITS + bit as usize;
                        let asked = Classes::of_words(words, bit);
                        let state = self.examine(number, asked, files)?;
                        found.push(number, Classes::ready(state).and(asked));
                    }
                }
                from = stride + STRIDE;
            }
        }
        Ok(())
    }

    /// Returns the first stride at or after a word, a multiple of [`STRIDE`], in which a
    /// descriptor is selected that was not before.
    ///
    /// This pass over every word of the sets is the one cost of a call that grows with
    /// them. A stride in which nothing is selected is not compared.
    fn differs(
        &self,
        selecting: &Selecting<'_>,
        class: usize,
        from: usize,
        found: &mut Found,
    ) -> Option<usize> {
        let occupied = found.occupied.get_mut(class)?;
        let selected = selecting.words.get(class)?;
        let known = self.interested.get(class)?;
        let (selected, known) = (selected.get(from..)?, known.get(from..)?);
        let mut strides = selected.chunks_exact(STRIDE);
        let whole = strides.by_ref().zip(known.chunks_exact(STRIDE));
        for (n, (selected, known)) in whole.enumerate() {
            if selected.iter().fold(0, |all, word| all | word) == 0 {
                continue;
            }
            let stride = from / STRIDE + n;
            if let Some(word) = occupied.get_mut(stride / BITS) {
                *word |= 1 << (stride % BITS);
            }
            let pairs = selected.iter().zip(known);
            if pairs.fold(0, |all, (selected, known)| all | selected & !known) != 0 {
                return Some(from + n * STRIDE);
            }
        }
        let rest = strides.remainder();
        let start = selected.len() - rest.len();
        let pairs = rest.iter().zip(known.get(start..)?);
        let new = pairs.fold(0, |all, (selected, known)| all | selected & !known);
        (new != 0).then_some(from + start)
    }
}

#[cfg(test)]
mod tests;
