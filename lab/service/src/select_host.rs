//! `select` as a way to wait, on either stack, used as in real programs (thttpd's
//! fdwatch, Squid's comm_select). Two master bitmaps of the wanted events are copied
//! before each call, which overwrites the copies; the result is searched for bits word by
//! word.
//!
//! This is the program's own part, the same for every stack; they differ only in
//! [`SelectCall::select`]. Its cost grows with the highest descriptor: that follows from
//! the interface, not from an implementation of it.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use tidewall::readiness::DescriptorSet;

use crate::sockets::{Sockets, Waiter};
use crate::stream::{Event, Interest};

/// Descriptors per word.
const BITS: usize = u64::BITS as usize;

/// A stack with `select`.
pub trait SelectCall: Sockets {
    /// Waits for up to `timeout` until a descriptor below `nfds` in `read` can be read or
    /// one in `write` can be written. Leaves those that can in the sets; returns how many
    /// there are. Both sets have room for `nfds`, which may be any number.
    ///
    /// # Errors
    /// The error of the stack; EINTR, EBADF.
    fn select(
        &self,
        nfds: i32,
        read: &mut DescriptorSet,
        write: &mut DescriptorSet,
        timeout: Duration,
    ) -> io::Result<usize>;
}

fn empty(words: usize) -> DescriptorSet {
    DescriptorSet::from_words(vec![0; words])
}

/// A program's state between its calls.
struct Watched {
    /// The wanted events: readable, writable.
    wanted: [DescriptorSet; 2],
    /// The copies that the call overwrites.
    lent: [DescriptorSet; 2],
    /// By descriptor.
    tokens: Vec<u64>,
    /// One more than the highest descriptor in them.
    nfds: usize,
}

/// A host that waits with a stack's `select`.
pub struct SelectHost<C: SelectCall> {
    calls: C,
    watched: RefCell<Watched>,
}

impl Watched {
    fn new() -> Self {
        let none = || [empty(0), empty(0)];
        Watched {
            wanted: none(),
            lent: none(),
            tokens: Vec::new(),
            nfds: 0,
        }
    }

    /// Makes room for a descriptor.
    fn widen(&mut self, number: usize) {
        let words = self.wanted[0].words().len();
        if number < words * BITS {
            return;
        }
        let words = (number / BITS + 1).max(words * 2);
        for set in &mut self.wanted {
            let mut wider = empty(words);
            let old = set.words();
            if let Some(room) = wider.words_mut().get_mut(..old.len()) {
                room.copy_from_slice(old);
            }
            *set = wider;
        }
        // Not needed between two calls.
        self.lent = [empty(words), empty(words)];
        self.tokens.resize(words * BITS, 0);
    }

    fn set(&mut self, number: i32, token: u64, interest: Interest) {
        let Ok(number) = usize::try_from(number) else {
            return;
        };
        self.widen(number);
        if let Some(place) = self.tokens.get_mut(number) {
            *place = token;
        }
        let bit = 1 << (number % BITS);
        for (set, wanted) in self
            .wanted
            .iter_mut()
            .zip([interest.readable, interest.writable])
        {
            if let Some(word) = set.words_mut().get_mut(number / BITS) {
                *word = if wanted { *word | bit } else { *word & !bit };
            }
        }
        if interest.readable || interest.writable {
            self.nfds = self.nfds.max(number + 1);
        } else if number + 1 == self.nfds {
            self.nfds = self.highest();
        }
    }

    /// Returns one more than the highest wanted descriptor below `nfds`.
    fn highest(&self) -> usize {
        let [read, write] = &self.wanted;
        let words = self.nfds.div_ceil(BITS);
        let both = read.words().iter().zip(write.words()).take(words);
        let mut highest = 0;
        for (number, (read, write)) in both.enumerate() {
            let bits = read | write;
            if bits != 0 {
                highest = number * BITS + BITS - bits.leading_zeros() as usize;
            }
        }
        highest
    }

    /// Copies the wanted sets, as the call overwrites them. A separate function for
    /// profiles: with [`Watched::find`] it is what the paper calls comm_select.
    #[inline(never)]
    fn lend(&mut self) {
        let words = self.nfds.div_ceil(BITS);
        for (lent, wanted) in self.lent.iter_mut().zip(&self.wanted) {
            let wanted = wanted.words().get(..words).unwrap_or_default();
            if let Some(room) = lent.words_mut().get_mut(..words) {
                room.copy_from_slice(wanted);
            }
        }
    }

    /// Searches the result.
    #[inline(never)]
    fn find(&self, count: usize, events: &mut Vec<Event>) {
        let mut left = count;
        let [read, write] = &self.lent;
        let words = self.nfds.div_ceil(BITS);
        let both = read.words().iter().zip(write.words()).take(words);
        for (number, (&read, &write)) in both.enumerate() {
            let mut bits = read | write;
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                let (readable, writable) = (read >> bit & 1 == 1, write >> bit & 1 == 1);
                let token = self.tokens.get(number * BITS + bit as usize);
                events.push(Event {
                    token: token.copied().unwrap_or(0),
                    readable,
                    writable,
                    // It cannot know: the end is read like everything else.
                    hangup: false,
                });
                left = left.saturating_sub(usize::from(readable) + usize::from(writable));
            }
            // The call returned the number of bits, so the search can stop.
            if left == 0 {
                return;
            }
        }
    }
}

impl<C: SelectCall> SelectHost<C> {
    /// Creates a host that waits for the sockets of `calls`.
    pub fn new(calls: C) -> Self {
        SelectHost {
            calls,
            watched: RefCell::new(Watched::new()),
        }
    }
}

impl<C: SelectCall> Waiter for SelectHost<C> {
    type Sockets = C;

    fn sockets(&self) -> &C {
        &self.calls
    }

    fn set(&self, number: i32, token: u64, interest: Interest) -> io::Result<()> {
        self.watched.borrow_mut().set(number, token, interest);
        Ok(())
    }

    fn find(&self, events: &mut Vec<Event>, timeout: Duration) -> io::Result<()> {
        let mut watched = self.watched.borrow_mut();
        watched.lend();
        let nfds = i32::try_from(watched.nfds).unwrap_or(i32::MAX);
        let [read, write] = &mut watched.lent;
        match self.calls.select(nfds, read, write, timeout)? {
            0 => {}
            count => watched.find(count, events),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn interest(bits: u64) -> Interest {
        Interest {
            readable: bits & 1 != 0,
            writable: bits & 2 != 0,
        }
    }

    #[test]
    fn the_bitmaps_are_what_is_wanted() {
        let mut watched = Watched::new();
        let mut model = BTreeMap::new();
        // A linear congruential generator: the same history each time.
        let mut state = 1u64;
        for step in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (state >> 40) % 3000;
            let bits = (state >> 60) & 3;
            watched.set(number as i32, step, interest(bits));
            match bits {
                0 => model.remove(&number),
                bits => model.insert(number, (step, bits)),
            };
            let nfds = model.last_key_value().map_or(0, |(number, _)| number + 1);
            assert_eq!(watched.nfds as u64, nfds);
            if step % 500 != 0 {
                continue;
            }
            watched.lend();
            // The state after a call with everything ready.
            let count: u32 = model.values().map(|(_, bits)| bits.count_ones()).sum();
            let mut events = Vec::new();
            watched.find(count as usize, &mut events);
            let found: Vec<_> = events
                .iter()
                .map(|event| (event.token, event.readable, event.writable))
                .collect();
            let expected: Vec<_> = model
                .values()
                .map(|&(token, bits)| (token, bits & 1 != 0, bits & 2 != 0))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_search_ends_with_the_last_that_is_ready() {
        let mut watched = Watched::new();
        for number in [3, 200, 70_000] {
            watched.set(number, number as u64, interest(3));
        }
        watched.lend();
        // 200 and 70,000 are not ready; the call reports one bit.
        watched.lent[0].words_mut().fill(0);
        watched.lent[1].words_mut().fill(0);
        watched.lent[0].words_mut()[0] = 8;
        watched.lent[1].words_mut()[70_000 / BITS] = u64::MAX;
        let mut events = Vec::new();
        watched.find(1, &mut events);
        assert_eq!(events.len(), 1, "it looked no further");
        assert_eq!(
            (events[0].token, events[0].readable, events[0].writable),
            (3, true, false)
        );
        // An unknown descriptor does nothing.
        watched.set(-1, 9, interest(3));
        assert_eq!(watched.nfds, 70_001);
    }
}
