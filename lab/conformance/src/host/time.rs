//! The clock of a host: the script moves it, and calls that wait sleep on it in their own
//! threads.
//!
//! No thread waits for real time. The clock stands still until every thread in a call
//! either sleeps without a pending wake-up, or has returned.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tidewall::{Sleep, VirtualTime};

/// How long, in real time, to wait for a thread in a call.
const REAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a thread that must still ask for the time.
const RETURNING: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    now: Duration,
    /// Threads in a call that do not sleep.
    running: u32,
    /// Deadlines of threads in a call that sleep.
    asleep: Vec<(ThreadId, Option<Duration>)>,
    /// Threads that slept in a call and have not asked for the time since.
    returning: Vec<ThreadId>,
    /// Number of the sleepers' current check, how many have checked, and whether one of
    /// them continues.
    look: u64,
    looked: usize,
    woke: bool,
    ended: bool,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Time {
    state: Mutex<State>,
    moved: Condvar,
    /// A thread that slept asks for the time when the call is over ([`Time::asked`]).
    asks: bool,
}

impl VirtualTime for Time {
    fn now(&self) -> Duration {
        self.lock().now
    }

    fn sleep(&self, sleep: &Sleep<'_>) -> io::Result<()> {
        let thread = thread::current().id();
        let mut state = self.lock();
        if state.running == 0 {
            // The thread that moves the clock must not sleep: nothing would wake it.
            return Err(io::ErrorKind::Interrupted.into());
        }
        let deadline = sleep.timeout().map(|timeout| state.now + timeout);
        state.running -= 1;
        state.asleep.push((thread, deadline));
        let result = loop {
            if state.ended {
                break Err(io::ErrorKind::Interrupted.into());
            }
            if sleep.is_ready() || deadline.is_some_and(|deadline| state.now >= deadline) {
                state.woke = true;
                break Ok(());
            }
            state.looked += 1;
            self.moved.notify_all();
            let look = state.look;
            state = self
                .moved
                .wait_while(state, |state| state.look == look && !state.ended)
                .unwrap_or_else(PoisonError::into_inner);
        };
        state.asleep.retain(|(asleep, _)| *asleep != thread);
        state.running += 1;
        if self.asks && !state.returning.contains(&thread) {
            state.returning.push(thread);
        }
        result
    }
}

impl Time {
    /// A clock for threads that ask for the time after a call in which they slept.
    pub(crate) fn asking() -> Self {
        Self {
            asks: true,
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a thread is about to make a call that may sleep.
    pub(crate) fn enter(&self) {
        self.lock().running += 1;
    }

    /// Records that it has returned.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
        drop(state);
        self.moved.notify_all();
    }

    /// Records that the calling thread has asked for the time.
    pub(crate) fn asked(&self) {
        let thread = thread::current().id();
        self.lock().returning.retain(|other| *other != thread);
        self.moved.notify_all();
    }

    /// Makes the sleepers check whether they are woken, and waits until no thread runs.
    /// Returns true when one of them was woken.
    pub(crate) fn look(&self) -> bool {
        let mut state = self.lock();
        state.look += 1;
        state.looked = 0;
        state.woke = false;
        self.moved.notify_all();
        let busy = |state: &mut State| state.running > 0 || state.looked < state.asleep.len();
        let (mut state, _) = self
            .moved
            .wait_timeout_while(state, REAL_TIMEOUT, busy)
            .unwrap_or_else(PoisonError::into_inner);
        if !state.returning.is_empty() {
            let returning = |state: &mut State| !state.returning.is_empty();
            (state, _) = self
                .moved
                .wait_timeout_while(state, RETURNING, returning)
                .unwrap_or_else(PoisonError::into_inner);
            state.returning.clear();
        }
        state.woke
    }

    /// The next sleeper's deadline.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let state = self.lock();
        state
            .asleep
            .iter()
            .filter_map(|(_, deadline)| *deadline)
            .min()
    }

    /// Moves the clock; never back.
    pub(crate) fn set(&self, now: Duration) {
        let mut state = self.lock();
        state.now = state.now.max(now);
    }

    /// Ends every sleep, with EINTR.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.moved.notify_all();
    }
}
