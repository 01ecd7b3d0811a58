//! `poll` as a way to wait, on either stack: an array of the wanted events, passed whole
//! with each call and searched after it.
//!
//! As with [`SelectHost`](crate::SelectHost) the program's own part is the same
//! for every stack.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use crate::sockets::{Sockets, Waiter};
use crate::stream::{Event, Interest};

/// An entry of the array, as a stack's `poll` takes it; the events are those of
/// poll(2).
pub trait Entry {
    /// Creates an entry for `events` of `descriptor`.
    fn new(descriptor: i32, events: i16) -> Self;

    /// Returns the descriptor.
    fn descriptor(&self) -> i32;

    /// Sets the wanted events.
    fn set_events(&mut self, events: i16);

    /// Returns the events that the call has found.
    fn found(&self) -> i16;
}

impl Entry for libc::pollfd {
    fn new(descriptor: i32, events: i16) -> Self {
        libc::pollfd {
            fd: descriptor,
            events,
            revents: 0,
        }
    }

    fn descriptor(&self) -> i32 {
        self.fd
    }

    fn set_events(&mut self, events: i16) {
        self.events = events;
    }

    fn found(&self) -> i16 {
        self.revents
    }
}

/// A stack with `poll`.
pub trait PollCall: Sockets {
    /// Its entries.
    type Entry: Entry;

    /// Waits for up to `timeout` until an entry has an event; returns how many have.
    ///
    /// # Errors
    /// The error of the stack; EINTR.
    fn poll(&self, entries: &mut [Self::Entry], timeout: Duration) -> io::Result<usize>;
}

/// Not in the array.
const NOWHERE: u32 = u32::MAX;

/// A program's state between its calls.
struct Watched<E> {
    entries: Vec<E>,
    /// By descriptor: its token, and its index in the array.
    known: Vec<(u64, u32)>,
}

/// A host that waits with a stack's `poll`.
pub struct PollHost<C: PollCall> {
    calls: C,
    watched: RefCell<Watched<C::Entry>>,
}

impl<E: Entry> Watched<E> {
    fn set(&mut self, descriptor: i32, token: u64, interest: Interest) {
        let Ok(number) = usize::try_from(descriptor) else {
            return;
        };
        if number >= self.known.len() {
            let room = (number + 1).max(self.known.len() * 2);
            self.known.resize(room, (0, NOWHERE));
        }
        let Some(known) = self.known.get_mut(number) else {
            return;
        };
        known.0 = token;
        let place = known.1;
        let mut events = 0;
        if interest.readable {
            events |= libc::POLLIN;
        }
        if interest.writable {
            events |= libc::POLLOUT;
        }
        match self.entries.get_mut(place as usize) {
            // An entry without wanted events would still receive errors, again and again.
            Some(_) if events == 0 => self.remove(place as usize),
            Some(entry) => entry.set_events(events),
            None if events != 0 => {
                known.1 = u32::try_from(self.entries.len()).unwrap_or(NOWHERE);
                self.entries.push(E::new(descriptor, events));
            }
            None => {}
        }
    }

    /// Removes an entry; the last one takes its index.
    fn remove(&mut self, place: usize) {
        let gone = self.entries.swap_remove(place);
        let moved = self.entries.get(place).map(Entry::descriptor);
        let mut at = |descriptor: i32, place: u32| {
            let number = usize::try_from(descriptor).unwrap_or(usize::MAX);
            if let Some(known) = self.known.get_mut(number) {
                known.1 = place;
            }
        };
        at(gone.descriptor(), NOWHERE);
        if let Some(moved) = moved {
            at(moved, u32::try_from(place).unwrap_or(NOWHERE));
        }
    }

    fn find(&self, count: usize, events: &mut Vec<Event>) {
        let ready = self.entries.iter().filter(|entry| entry.found() != 0);
        for entry in ready.take(count) {
            let found = entry.found();
            let broken = found & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
            let number = usize::try_from(entry.descriptor()).unwrap_or(usize::MAX);
            events.push(Event {
                token: self.known.get(number).map_or(0, |known| known.0),
                readable: broken || found & libc::POLLIN != 0,
                writable: broken || found & libc::POLLOUT != 0,
                hangup: broken,
            });
        }
    }
}

impl<C: PollCall> PollHost<C> {
    /// Creates a host that waits for the sockets of `calls`.
    pub fn new(calls: C) -> Self {
        PollHost {
            calls,
            watched: RefCell::new(Watched {
                entries: Vec::new(),
                known: Vec::new(),
            }),
        }
    }
}

impl<C: PollCall> Waiter for PollHost<C> {
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
        match self.calls.poll(&mut watched.entries, timeout)? {
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

    #[test]
    fn the_array_is_what_is_wanted() {
        let mut watched: Watched<libc::pollfd> = Watched {
            entries: Vec::new(),
            known: Vec::new(),
        };
        let mut model = BTreeMap::new();
        // A linear congruential generator: the same history each time.
        let mut state = 1u64;
        for step in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = ((state >> 40) % 300) as i32;
            let bits = (state >> 60) & 3;
            let interest = Interest {
                readable: bits & 1 != 0,
                writable: bits & 2 != 0,
            };
            watched.set(number, step, interest);
            match bits {
                0 => model.remove(&number),
                bits => model.insert(number, (step, bits)),
            };
            assert_eq!(watched.entries.len(), model.len());
            // The state after a call with everything ready.
            for entry in &mut watched.entries {
                entry.revents = entry.events;
            }
            let mut events = Vec::new();
            watched.find(usize::MAX, &mut events);
            let mut found: Vec<_> = events
                .iter()
                .map(|event| (event.token, event.readable, event.writable))
                .collect();
            found.sort_unstable();
            let mut expected: Vec<_> = model
                .values()
                .map(|&(token, bits)| (token, bits & 1 != 0, bits & 2 != 0))
                .collect();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}
