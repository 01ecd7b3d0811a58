//! The state that a thread keeps between calls of `select`, and the rule by
//! which it examines only what may have changed.
//!
//! Banga and Mogul, "Scalable kernel performance for Internet servers under
//! realistic loads", USENIX 1998. Kept are INTERESTED (what was ever selected),
//! HINTS (what has changed since it was last examined) and READY (what was
//! ready then). Of the descriptors SELECTING, a call examines
//!
//! ```text
//!  (SELECTING − INTERESTED) ∪ (SELECTING ∩ HINTS) ∪ (SELECTING ∩ READY)
//! ```
//!
//! and nothing else: a descriptor that had nothing and was not hinted has
//! nothing. The last term is there because the application may have left what
//! it was given. What holds between calls, for every number and class in
//! INTERESTED that is neither in HINTS nor in READY: the file has nothing of
//! that class ([`Classes::pending`]), and when that changes it will be hinted.
//!
//! No sockets, no clock: a caller says what the files are like ([`Files`]).

use super::classes::{CLASSES, Classes};
use crate::events::Events;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;
/// Words of the strides in which bitmaps are compared: enough for the compiler
/// to use vectors and for what ends each stride to count little (130 ns of a call
/// over 100,000 numbers with 16), few enough to find a difference soon.
const STRIDE: usize = 32;

/// The files behind the numbers.
pub trait Files {
    /// Why a number cannot be examined: nothing is open there.
    type Error;

    /// What the file is ready for now, in any class. Changes in `interest` are
    /// hinted from before that was looked at on.
    fn examine(&mut self, number: usize, interest: Classes) -> Result<Events, Self::Error>;

    /// Changes need not be hinted any more but in `interest`.
    fn narrow(&mut self, number: usize, interest: Classes);
}

/// What a call of `select` was given: a bitmap a class, of which bits from
/// `count` on are not looked at.
#[derive(Clone, Copy, Debug)]
pub struct Selecting<'a> {
    words: [&'a [u64]; CLASSES],
    /// Place of the word that is used in part, and the bits of it that are.
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

    /// Words of the widest set.
    fn width(&self) -> usize {
        self.words.iter().map(|set| set.len()).max().unwrap_or(0)
    }

    /// One word of each class.
    fn word(&self, place: usize) -> [u64; CLASSES] {
        let mask = if place == self.last.0 {
            self.last.1
        } else {
            !0
        };
        self.words
            .map(|set| set.get(place).copied().unwrap_or(0) & mask)
    }

    /// What is asked about a number.
    pub fn classes(&self, number: usize) -> Classes {
        Classes::of_words(self.word(number / BITS), (number % BITS) as u32)
    }

    /// Calls `each` with every number that is asked about, rising.
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

/// The bits of a word, rising.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    })
}

/// What a call found ready.
#[derive(Debug, Default)]
pub struct Found {
    list: Vec<(usize, Classes)>,
    /// Strides of each set that are not empty, a bit each, if that is known.
    occupied: [Vec<u64>; CLASSES],
    knows_occupied: bool,
}

impl Found {
    pub fn clear(&mut self) {
        self.list.clear();
        self.knows_occupied = false;
    }

    /// Descriptors that were found ready.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Notes what a descriptor is ready for, which may be nothing.
    pub fn push(&mut self, number: usize, classes: Classes) {
        if !classes.is_none() {
            self.list.push((number, classes));
        }
    }

    /// Makes the sets of a call its results: what is ready, and nothing else in
    /// the words that hold numbers below `count`. Returns what `select` does.
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
                    // One that was found twice counts once.
                    ready += usize::from(bit & !*word != 0);
                    *word |= bit;
                }
            }
        }
        ready
    }

    /// Forgets which strides are empty, for sets of so many words.
    fn begin(&mut self, words: usize) {
        self.knows_occupied = true;
        for class in &mut self.occupied {
            class.clear();
            class.resize(words.div_ceil(STRIDE * BITS), 0);
        }
    }
}

/// Empties a bitmap of which only some strides, and the words after the last whole
/// one, are not empty.
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

/// HINTS and READY of 64 numbers, together because they are used together.
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

    /// The bits of which `selecting` must be examined.
    fn examined(&self, selecting: [u64; CLASSES]) -> u64 {
        selecting
            .iter()
            .zip(self.ready)
            .fold(0, |all, (selecting, ready)| {
                all | selecting & (self.hints | ready)
            })
    }
}

/// INTERESTED, HINTS and READY of one thread in one table of descriptors.
#[derive(Debug, Default)]
pub struct Interest {
    interested: [Vec<u64>; CLASSES],
    rows: Vec<Row>,
    /// A bit for each row that is not empty.
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

    /// What is in INTERESTED of a number.
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

    /// Sets what is known of a number.
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

    /// A file has changed. False when nobody asks about it: nothing of it is in
    /// INTERESTED, or its last hint has not been looked at. It
    /// need not be hinted again then until it is examined.
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

    /// The number is closed, or another file's from now on.
    pub fn forget(&mut self, number: usize) {
        self.set(number, Classes::NONE, false, Classes::NONE);
    }

    /// Examines a number about which `asked` is asked, and notes its state.
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
            // It changed in something that was asked about once and is not now.
            // Left as it is, every further change of the kind would wake us.
            files.narrow(number, asked);
            interested = asked;
        }
        self.set(number, interested, false, pending.and(interested));
        Ok(state)
    }

    /// What a number is ready for of what is asked, whatever is known of it.
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

    /// The state of a number, for `poll`; `None` when it has nothing that was
    /// asked about.
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

    /// True for a number that the rule leaves out.
    #[inline]
    fn is_known_idle(&self, number: usize, asked: Classes) -> bool {
        let place = number / BITS;
        let Some(row) = self.rows.get(place) else {
            return false;
        };
        let asked_words = asked.to_words((number % BITS) as u32);
        asked.without(self.interested(number)).is_none() && row.examined(asked_words) == 0
    }

    /// Puts what is ready of `selecting` into `found`, examining what the rule
    /// says. On an error, which is the first number's that is not open, what was
    /// found of the others before stays known.
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

    /// SELECTING − INTERESTED. Comes after [`Interest::examine_filled`], or what
    /// it finds ready would be examined twice.
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

    /// The first stride at or after a word, of a multiple of [`STRIDE`], in which
    /// something is selected that was not before.
    ///
    /// This is the pass over every word of the sets, the one cost of a call that
    /// grows with them. A stride in which nothing is selected is not compared.
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
