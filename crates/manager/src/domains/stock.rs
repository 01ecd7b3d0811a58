//! A stock of what takes long to make and to take away, kept by a thread of its own.
//!
//! A thread and no child process: it needs the descriptors of the programs and the same
//! network namespace, and has nothing that could outlive its process. What an earlier
//! process left is found by its names.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a step that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How often those are looked at that others may still have.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Makes and takes away what is kept in stock.
pub trait Maker: Send + 'static {
    /// What it makes.
    type Item: Send + 'static;

    /// Makes one.
    ///
    /// # Errors
    /// What the kernel reports; nothing is left then.
    fn make(&mut self) -> io::Result<Self::Item>;

    /// Waits until used ones may be used again; those that may. The others are taken
    /// away.
    fn rest(&mut self, used: Vec<Self::Item>) -> (Vec<Self::Item>, Vec<Self::Item>);

    /// Whether some that were used wait until others let go of them: they are looked at again
    /// by [`Maker::rest`] now and then.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Takes some away, together.
    ///
    /// # Errors
    /// What the kernel reports; it is tried again with all of them.
    fn take_away(&mut self, ended: &[Self::Item]) -> io::Result<()>;
}

/// What a stock has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockCounters {
    /// Ready to be taken.
    pub ready: u64,
    /// Made since it began.
    pub made: u64,
    /// Used again after a rest.
    pub reused: u64,
    /// Taken away.
    pub taken_away: u64,
    /// Steps that failed and were tried again.
    pub failed: u64,
}

/// See the module's documentation. Ends its thread when it is dropped; what is ready is
/// taken away then, and what was given back.
#[derive(Debug)]
pub struct Stock<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    ready: Vec<T>,
    used: Vec<T>,
    ended: Vec<T>,
    /// As many are to be ready.
    wanted: usize,
    closing: bool,
    counters: StockCounters,
    /// Why the last step failed, if it did.
    failure: Option<String>,
}

/// What a stock's thread does next.
#[derive(Debug, PartialEq, Eq)]
enum Step<T> {
    Make,
    Rest(Vec<T>),
    TakeAway(Vec<T>),
    Wait,
    End,
}

impl<T> State<T> {
    /// First what somebody may be waiting for; taking away waits for a time in which
    /// there is nothing else, and so gets more done at once.
    fn next(&mut self) -> Step<T> {
        if self.closing {
            self.ended.append(&mut self.used);
            self.ended.append(&mut self.ready);
        } else if !self.used.is_empty() {
            return Step::Rest(std::mem::take(&mut self.used));
        } else if self.ready.len() < self.wanted {
            return Step::Make;
        }
        if !self.ended.is_empty() {
            return Step::TakeAway(std::mem::take(&mut self.ended));
        }
        if self.closing { Step::End } else { Step::Wait }
    }

    /// Of rested ones those that the stock lacks.
    fn put(&mut self, rested: Vec<T>) {
        for item in rested {
            self.counters.reused += u64::from(self.keep(item));
        }
    }

    /// Whether the stock lacks it.
    fn keep(&mut self, item: T) -> bool {
        let lacks = self.ready.len() < self.wanted;
        match lacks {
            true => self.ready.push(item),
            false => self.ended.push(item),
        }
        lacks
    }
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The state stays true at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Stock<T> {
    /// A stock that tries to have `wanted` ready.
    ///
    /// # Errors
    /// EAGAIN where no thread can be started.
    pub fn start(wanted: usize, maker: impl Maker<Item = T>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                ready: Vec::new(),
                used: Vec::new(),
                ended: Vec::new(),
                wanted,
                closing: false,
                counters: StockCounters::default(),
                failure: None,
            }),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tw-stock".to_owned())
            .spawn(move || work(&of_thread, maker))?;
        Ok(Stock {
            shared,
            thread: Some(thread),
        })
    }

    /// Takes one, if one is ready.
    pub fn take(&self) -> Option<T> {
        let taken = self.take_several(1);
        self.refill();
        taken?.pop()
    }

    /// Takes so many, or none. They are made anew after [`Stock::refill`], not yet: what is
    /// taken may be put back.
    pub fn take_several(&self, count: usize) -> Option<Vec<T>> {
        let mut state = self.shared.state();
        let from = state.ready.len().checked_sub(count)?;
        Some(state.ready.split_off(from))
    }

    /// Has the thread make what is missing.
    pub fn refill(&self) {
        self.shared.changed.notify_one();
    }

    /// That it has too few, and why, as far as that is known: EBUSY. The thread makes them.
    pub fn not_ready(&self, what: &str) -> io::Error {
        self.refill();
        let text = match &self.shared.state().failure {
            None => format!("{what} are being made: try again"),
            Some(failure) => format!("{what} cannot be made: {failure}"),
        };
        io::Error::new(io::ErrorKind::ResourceBusy, text)
    }

    /// Gives one back that was not used.
    pub fn put_back(&self, item: T) {
        self.shared.state().keep(item);
        self.refill();
    }

    /// Gives one back that was used.
    pub fn give_back(&self, item: T) {
        self.shared.state().used.push(item);
        self.shared.changed.notify_one();
    }

    /// Gives one back that must not be used again.
    pub fn end(&self, item: T) {
        self.shared.state().ended.push(item);
        self.shared.changed.notify_one();
    }

    /// What it has counted.
    pub fn counters(&self) -> StockCounters {
        let state = self.shared.state();
        StockCounters {
            ready: state.ready.len() as u64,
            ..state.counters
        }
    }
}

impl<T> Drop for Stock<T> {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; what it could not take away is found by its names.
            let _ = thread.join();
        }
    }
}

fn work<M: Maker>(shared: &Shared<M::Item>, mut maker: M) {
    loop {
        let step = shared.state().next();
        let done = match step {
            Step::Make => maker.make().map(|made| {
                let mut state = shared.state();
                state.counters.made += 1;
                state.ready.push(made);
            }),
            Step::Rest(used) => {
                let (rested, others) = maker.rest(used);
                let mut state = shared.state();
                state.put(rested);
                state.ended.extend(others);
                Ok(())
            }
            Step::TakeAway(ended) => {
                let done = maker.take_away(&ended);
                let mut state = shared.state();
                match done {
                    Ok(()) => state.counters.taken_away += ended.len() as u64,
                    // What the next process finds by its names need not keep this one.
                    Err(_) if state.closing => {}
                    Err(_) => state.ended.extend(ended),
                }
                done
            }
            Step::Wait => {
                let state = shared.state();
                // Nothing may have come since.
                match state.is_idle() {
                    true if maker.is_waiting() => {
                        drop(shared.changed.wait_timeout(state, LOOK_AGAIN));
                        let (rested, others) = maker.rest(Vec::new());
                        let mut state = shared.state();
                        state.put(rested);
                        state.ended.extend(others);
                    }
                    true => drop(shared.changed.wait(state)),
                    false => {}
                }
                Ok(())
            }
            Step::End => return,
        };
        let mut state = shared.state();
        state.failure = done.err().map(|error| error.to_string());
        if state.failure.is_some() {
            state.counters.failed += 1;
            if !state.closing {
                drop(shared.changed.wait_timeout(state, RETRY_AFTER));
            }
        }
    }
}

impl<T> State<T> {
    fn is_idle(&self) -> bool {
        !self.closing
            && self.used.is_empty()
            && self.ended.is_empty()
            && self.ready.len() >= self.wanted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn state(wanted: usize) -> State<u32> {
        State {
            ready: Vec::new(),
            used: Vec::new(),
            ended: Vec::new(),
            wanted,
            closing: false,
            counters: StockCounters::default(),
            failure: None,
        }
    }

    #[test]
    fn used_ones_rest_before_new_ones_are_made_and_the_surplus_is_taken_away() {
        let mut state = state(2);
        assert_eq!(state.next(), Step::Make);
        state.used = vec![1, 2, 3];
        assert_eq!(state.next(), Step::Rest(vec![1, 2, 3]));
        state.put(vec![1, 2, 3]);
        assert_eq!(state.ready, [1, 2]);
        assert_eq!(state.next(), Step::TakeAway(vec![3]));
        assert_eq!(state.next(), Step::Wait);
        state.closing = true;
        assert_eq!(state.next(), Step::TakeAway(vec![1, 2]));
        assert_eq!(state.next(), Step::End);
    }

    /// Counts what lives, and fails at times.
    struct Fake {
        next: u32,
        live: Arc<AtomicU32>,
    }

    impl Maker for Fake {
        type Item = u32;

        fn make(&mut self) -> io::Result<u32> {
            self.next += 1;
            if self.next.is_multiple_of(3) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            self.live.fetch_add(1, Relaxed);
            Ok(self.next)
        }

        fn rest(&mut self, used: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
            used.into_iter().partition(|item| item.is_multiple_of(2))
        }

        fn take_away(&mut self, ended: &[u32]) -> io::Result<()> {
            self.live.fetch_sub(ended.len() as u32, Relaxed);
            Ok(())
        }
    }

    #[test]
    fn nothing_is_left_of_a_stock_that_was_dropped() {
        let live = Arc::new(AtomicU32::new(0));
        let maker = Fake {
            next: 0,
            live: Arc::clone(&live),
        };
        let stock = Stock::start(3, maker).unwrap();
        let (mut taken, mut ended) = (0, 0);
        while taken < 20 {
            match stock.take() {
                Some(item) if item % 5 == 0 => {
                    stock.end(item);
                    ended += 1;
                }
                Some(item) => stock.give_back(item),
                None => {
                    std::thread::yield_now();
                    continue;
                }
            }
            taken += 1;
        }
        let counters = stock.counters();
        assert!(counters.made >= 3 && counters.failed > 0, "{counters:?}");
        assert!(ended > 0 || counters.reused > 0);
        drop(stock);
        assert_eq!(live.load(Relaxed), 0);
    }
}
