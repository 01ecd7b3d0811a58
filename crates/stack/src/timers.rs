//! The stack's timers: one wheel, and a slab of their owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slab::Slab;
use tidewall_protocol::timer::Wheel;

use crate::endpoint::Endpoint;
use crate::lock::{Mutex, lock, rank};

/// [`Timers::next`] when no timer is armed.
const NEVER: u64 = u64::MAX;

/// Most timers handled in one go; the others follow after frames were processed.
const BATCH: usize = 256;

/// All timers of a stack.
pub struct Timers {
    state: Mutex<State, rank::Leaf>,
    /// Nanoseconds, readable without the lock.
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    wheel: Wheel,
    owners: Slab<Arc<dyn Endpoint>>,
    /// Expired, and not handled yet.
    late: Vec<u32>,
    /// The position at which [`Timers::some`] continues.
    hand: usize,
}

impl Default for Timers {
    fn default() -> Self {
        Timers {
            state: Mutex::default(),
            next: AtomicU64::new(NEVER),
        }
    }
}

impl Timers {
    /// Adds an unarmed timer and its owner, which is created with its number.
    pub fn add<E: Endpoint + 'static>(&self, make: impl FnOnce(u32) -> Arc<E>) -> Arc<E> {
        let mut state = lock(&self.state);
        let entry = state.owners.vacant_entry();
        let owner = make(entry.key() as u32);
        entry.insert(owner.clone());
        owner
    }

    /// Disarms a timer and forgets its owner. If it has expired already, the next owner
    /// may be called for it, and must check whether it is its time.
    pub fn remove(&self, timer: u32) {
        let forgotten = {
            let mut state = lock(&self.state);
            state.wheel.cancel(timer);
            state.owners.try_remove(timer as usize)
        };
        drop(forgotten);
    }

    /// Disarms a timer, which its owner keeps.
    pub fn disarm(&self, timer: u32) {
        let mut state = lock(&self.state);
        state.wheel.cancel(timer);
        self.publish(&state);
    }

    /// Arms a timer, or moves it. Returns true when a thread must now check earlier than
    /// before.
    pub fn arm(&self, timer: u32, deadline: Duration) -> bool {
        let mut state = lock(&self.state);
        state.wheel.arm(timer, deadline);
        let before = self.next.load(Ordering::Relaxed);
        self.publish(&state);
        self.next.load(Ordering::Relaxed) < before
    }

    fn publish(&self, state: &State) {
        let next = if state.late.is_empty() {
            state.wheel.next().map_or(NEVER, |next| {
                u64::try_from(next.as_nanos()).unwrap_or(NEVER)
            })
        } else {
            0
        };
        self.next.store(next, Ordering::Release);
    }

    /// Returns the time until a thread must check; zero once a timer has expired.
    #[inline]
    pub fn next(&self, now: Duration) -> Option<Duration> {
        match self.next.load(Ordering::Acquire) {
            NEVER => None,
            next => Some(Duration::from_nanos(next).saturating_sub(now)),
        }
    }

    /// Moves expired timers into `due`, at most a batch.
    pub fn expire(&self, now: Duration, due: &mut Vec<Arc<dyn Endpoint>>) {
        if self.next(now).is_none_or(|left| !left.is_zero()) {
            return;
        }
        let mut state = lock(&self.state);
        let State {
            wheel,
            owners,
            late,
            ..
        } = &mut *state;
        if late.is_empty() {
            wheel.advance(now, |timer| late.push(timer));
            // Oldest first.
            late.reverse();
        }
        let rest = late.len().saturating_sub(BATCH);
        due.extend(
            late.drain(rest..)
                .rev()
                .filter_map(|timer| owners.get(timer as usize).cloned()),
        );
        self.publish(&state);
    }

    /// Returns the owners of up to `count` timers, different ones each time.
    pub fn some(&self, count: usize) -> Vec<Arc<dyn Endpoint>> {
        let mut state = lock(&self.state);
        let mut found = Vec::new();
        let end = state.owners.capacity();
        for _ in 0..count.min(end) {
            state.hand = if state.hand + 1 >= end {
                0
            } else {
                state.hand + 1
            };
            found.extend(state.owners.get(state.hand).cloned());
        }
        found
    }

    /// Returns the number of timers that are armed, or late.
    pub fn armed(&self) -> usize {
        let state = lock(&self.state);
        state.wheel.len() + state.late.len()
    }
}
