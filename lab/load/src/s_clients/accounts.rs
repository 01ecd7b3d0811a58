//! S-clients without their sockets: when a connection begins, when one is abandoned, and
//! the outcome of each. Times are passed in as nanoseconds since the run began; there is
//! no clock inside.
//!
//! Every connection begun ends in exactly one cause, or is unfinished: `begun` =
//! `gave_up` + `refused` + `local_errors` + `responses` + `other_status` + `failed` +
//! `malformed` + `timeouts` + unfinished.

use std::collections::VecDeque;

use crate::pacer::{Pacer, Step as Paced};
use crate::report::SClientCounts;

/// Connections due within this many ns are begun together, so that the generator sleeps
/// in between and other threads on its processor can run.
const TOGETHER: u64 = 200_000;
/// Most connections begun together.
const TOGETHER_MAX: u64 = 64;
/// Longest wait for the server's close after the response, ns.
const CLOSING_MAX: u64 = 1_000_000_000;

/// The parameters of the accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Connections/s.
    pub(crate) rate: u64,
    /// T, ns.
    pub(crate) connect_timeout: u64,
    /// Timeout of a response, ns.
    pub(crate) timeout: u64,
    /// When the first connection is begun, and from when no more are, ns.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Most connections open at once.
    pub(crate) open_max: usize,
}

/// A connection. Its slot is reused: the generation distinguishes late events from those
/// of the successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the slot.
    pub(crate) fn index(self) -> usize {
        self.index as usize
    }

    /// Returns both as one number.
    pub(crate) fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Converts back from [`Key::token`].
    pub(crate) fn of_token(token: u64) -> Self {
        Key {
            index: token as u32,
            generation: (token >> 32) as u32,
        }
    }
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Begin this connection; it counts as begun.
    Begin(Key),
    /// Close this one: it was not established within T. Nothing is sent.
    GiveUp(Key),
    /// Reset this one: it timed out.
    Reset(Key),
    /// Nothing to do before this time, ns, unless there is an event.
    Wait(u64),
}

/// How a connection ended, other than with a response or a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The kernel could not even begin it: no port, no descriptor, no route.
    Local,
    /// Refused, or reset before its request was sent.
    Refused,
    /// Closed or reset before its response was whole.
    Failed,
    /// Answered by something other than an HTTP/1.1 response.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No connection.
    Free,
    /// With the establisher.
    Trying,
    /// With the handler, its request sent.
    Awaiting,
    /// With the handler: the response arrived, the server is to close.
    Closing,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    state: State,
    generation: u32,
    due: u64,
    begun: u64,
}

/// Times of a response, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    /// Since the connection was due.
    pub(crate) corrected: u64,
    /// Since it was begun.
    pub(crate) raw: u64,
}

/// Connections with the same timeout, in the order in which they expire.
#[derive(Debug)]
struct Queue {
    time: u64,
    entries: VecDeque<(Key, u64)>,
}

impl Queue {
    fn new(time: u64) -> Self {
        Queue {
            time,
            entries: VecDeque::new(),
        }
    }

    fn push(&mut self, key: Key, now: u64) {
        self.entries.push_back((key, now.saturating_add(self.time)));
    }

    /// Returns the first connection for which `is` holds, and its time.
    fn first(&mut self, is: impl Fn(Key) -> bool) -> Option<(Key, u64)> {
        while let Some(&(key, at)) = self.entries.front() {
            if is(key) {
                return Some((key, at));
            }
            self.entries.pop_front();
        }
        None
    }
}

/// The accounts of S-clients.
#[derive(Debug)]
pub(crate) struct Accounts {
    pacer: Pacer,
    /// Numbers of the connections that the pacer has released and that have not begun:
    /// from, until before.
    ready: (u64, u64),
    open_max: usize,
    places: Vec<Place>,
    free: Vec<u32>,
    trying: Queue,
    awaiting: Queue,
    closing: Queue,
    counts: SClientCounts,
}

impl Accounts {
    pub(crate) fn new(plan: Plan) -> Self {
        let together = u128::from(plan.rate) * u128::from(TOGETHER) / 1_000_000_000;
        let together = together.clamp(1, TOGETHER_MAX.into()) as u32;
        Accounts {
            // A stolen time slice is caught up within T.
            pacer: Pacer::new(Some(plan.rate), together, plan.start, plan.end, None)
                .behind_at_most(plan.connect_timeout / 5),
            ready: (0, 0),
            open_max: plan.open_max,
            places: Vec::new(),
            free: Vec::new(),
            trying: Queue::new(plan.connect_timeout),
            awaiting: Queue::new(plan.timeout),
            closing: Queue::new(CLOSING_MAX),
            counts: SClientCounts::default(),
        }
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> SClientCounts {
        SClientCounts {
            offered: self.pacer.offered() - (self.ready.1 - self.ready.0),
            skipped: self.pacer.skipped(),
            ..self.counts
        }
    }

    /// Returns the connections without an outcome so far.
    pub(crate) fn unfinished(&self) -> u64 {
        self.counts.begun - self.counts.ended()
    }

    /// Returns a connection's state; [`State::Free`] for one that is gone.
    pub(crate) fn state(&self, key: Key) -> State {
        match self.places.get(key.index()) {
            Some(place) if place.generation == key.generation => place.state,
            _ => State::Free,
        }
    }

    /// Returns the action at time `now`. Call it until it returns a wait.
    pub(crate) fn step(&mut self, now: u64) -> Step {
        let mut next = u64::MAX;
        // Expired connections make room first.
        for (state, count) in [
            (State::Trying, Some(0)),
            (State::Awaiting, Some(1)),
            (State::Closing, None),
        ] {
            let places = &self.places;
            let is = |key: Key| {
                let place = places.get(key.index());
                place
                    .is_some_and(|place| place.generation == key.generation && place.state == state)
            };
            let queue = match state {
                State::Trying => &mut self.trying,
                State::Awaiting => &mut self.awaiting,
                _ => &mut self.closing,
            };
            let Some((key, at)) = queue.first(is) else {
                continue;
            };
            if at > now {
                next = next.min(at);
                continue;
            }
            queue.entries.pop_front();
            self.release(key);
            return match count {
                Some(0) => {
                    self.counts.gave_up += 1;
                    Step::GiveUp(key)
                }
                Some(_) => {
                    self.counts.timeouts += 1;
                    Step::Reset(key)
                }
                None => Step::Reset(key),
            };
        }
        loop {
            if self.ready.0 < self.ready.1 {
                let due = self.pacer.due(self.ready.0);
                self.ready.0 += 1;
                match self.take() {
                    Some(index) => return Step::Begin(self.begin(index, due, now)),
                    None => self.counts.no_room += 1,
                }
                continue;
            }
            match self.pacer.step(now) {
                Paced::Send(count) => {
                    let offered = self.pacer.offered();
                    self.ready = (offered - u64::from(count), offered);
                }
                Paced::Wait(until) => return Step::Wait(next.min(until)),
                Paced::Finished => return Step::Wait(next),
            }
        }
    }

    /// Records that a connection is established and its request sent. Returns its time
    /// since it was begun, ns; `None` for one that is not expected.
    pub(crate) fn connected(&mut self, key: Key, now: u64) -> Option<u64> {
        let place = self.place(key, State::Trying)?;
        place.state = State::Awaiting;
        let took = now.saturating_sub(place.begun);
        self.awaiting.push(key, now);
        self.counts.connected += 1;
        Some(took)
    }

    /// Records a complete response, of status 200 or another; the server is to close the
    /// connection. Returns `None` for one that is not expected.
    pub(crate) fn answered(&mut self, key: Key, status: u16, now: u64) -> Option<Took> {
        let place = self.place(key, State::Awaiting)?;
        place.state = State::Closing;
        let took = Took {
            corrected: now.saturating_sub(place.due.min(place.begun)),
            raw: now.saturating_sub(place.begun),
        };
        self.closing.push(key, now);
        match status {
            200 => self.counts.responses += 1,
            _ => self.counts.other_status += 1,
        }
        Some(took)
    }

    /// Records the end of a connection, whose socket is to be closed. An answered one has
    /// its cause already.
    pub(crate) fn ended(&mut self, key: Key, end: End) {
        match self.state(key) {
            State::Free => return,
            State::Closing => {}
            State::Trying | State::Awaiting => {
                let count = match end {
                    End::Local => &mut self.counts.local_errors,
                    End::Refused => &mut self.counts.refused,
                    End::Failed => &mut self.counts.failed,
                    End::Malformed => &mut self.counts.malformed,
                };
                *count += 1;
            }
        }
        self.release(key);
    }

    fn place(&mut self, key: Key, state: State) -> Option<&mut Place> {
        self.places
            .get_mut(key.index())
            .filter(|place| place.generation == key.generation && place.state == state)
    }

    /// Allocates a slot for one more connection.
    fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = self.places.len();
        if index >= self.open_max {
            return None;
        }
        self.places.push(Place {
            state: State::Free,
            generation: 0,
            due: 0,
            begun: 0,
        });
        u32::try_from(index).ok()
    }

    fn begin(&mut self, index: u32, due: u64, now: u64) -> Key {
        let mut key = Key {
            index,
            generation: 0,
        };
        if let Some(place) = self.places.get_mut(key.index()) {
            (place.state, place.due, place.begun) = (State::Trying, due, now);
            key.generation = place.generation;
        }
        self.trying.push(key, now);
        self.counts.begun += 1;
        key
    }

    fn release(&mut self, key: Key) {
        if let Some(place) = self.places.get_mut(key.index()) {
            place.state = State::Free;
            place.generation = place.generation.wrapping_add(1);
            self.free.push(key.index);
        }
    }
}

#[cfg(test)]
mod tests;
