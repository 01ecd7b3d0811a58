//! A stock of items that take long to make and to remove, kept by a separate thread.
//!
//! It is a thread and not a child process. It needs the descriptors of the programs and
//! the same network namespace. Nothing of it could outlive its process. Items that an
//! earlier process left are found by their names.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a step that failed is retried.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How often items are checked that other processes may still have.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Makes and removes the items in stock.
pub trait Maker: Send + 'static {
    /// The type of the items.
    type Item: Send + 'static;

    /// Makes one.
    ///
    /// # Errors
    /// Those the kernel reports; nothing is left then.
    fn make(&mut self) -> io::Result<Self::Item>;

    /// Waits until used items may be reused. Returns those that may, and those to remove.
    fn rest(&mut self, used: Vec<Self::Item>) -> (Vec<Self::Item>, Vec<Self::Item>);

    /// Whether some used items wait until others release them: [`Maker::rest`] checks
    /// them again now and then.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Removes some items, together.
    ///
    /// # Errors
    /// Those the kernel reports; it is retried with all of them.
    fn take_away(&mut self, ended: &[Self::Item]) -> io::Result<()>;
}

/// A stock's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockCounters {
    /// Ready to be taken.
    pub ready: u64,
    /// Made since it began.
    pub made: u64,
    /// Reused after a rest.
    pub reused: u64,
    /// Removed.
    pub taken_away: u64,
    /// Steps that failed and were retried.
    pub failed: u64,
}

/// See the module's documentation. Dropping it ends its thread; ready and returned items
/// are removed then.
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
    /// Number to keep ready.
    wanted: usize,
    closing: bool,
    counters: StockCounters,
    /// The last step's failure, if it failed.
    failure: Option<String>,
}

/// The next step of a stock's thread.
#[derive(Debug, PartialEq, Eq)]
enum Step<T> {
    Make,
    Rest(Vec<T>),
    TakeAway(Vec<T>),
    Wait,
    End,
}

impl<T> State<T> {
    /// Work that a client may be waiting for comes first. Removal waits until there is
    /// nothing else, and so handles more at once.
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

    /// Keeps those rested items that the stock lacks.
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
        // The state is valid at every point where a panic could strike.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Stock<T> {
    /// Creates a stock that tries to keep `wanted` items ready.
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

    /// Takes this many, or none. [`Stock::refill`] replaces them later: taken items may
    /// be put back.
    pub fn take_several(&self, count: usize) -> Option<Vec<T>> {
        let mut state = self.shared.state();
        let from = state.ready.len().checked_sub(count)?;
        Some(state.ready.split_off(from))
    }

    /// Makes the thread produce what is missing.
    pub fn refill(&self) {
        self.shared.changed.notify_one();
    }

    /// The error that it has too few, and the reason if known: EBUSY. The thread makes
    /// them.
    pub fn not_ready(&self, what: &str) -> io::Error {
        self.refill();
        let text = match &self.shared.state().failure {
            None => format!("{what} are being made: try again"),
            Some(failure) => format!("{what} cannot be made: {failure}"),
        };
        io::Error::new(io::ErrorKind::ResourceBusy, text)
    }

    /// Returns an unused item.
    pub fn put_back(&self, item: T) {
        self.shared.state().keep(item);
        self.refill();
    }

    /// Returns a used item.
    pub fn give_back(&self, item: T) {
        self.shared.state().used.push(item);
        self.shared.changed.notify_one();
    }

    /// Returns an item that must not be reused.
    pub fn end(&self, item: T) {
        self.shared.state().ended.push(item);
        self.shared.changed.notify_one();
    }

    /// The counters.
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
            // It has nothing to report; what it could not remove is found by its names.
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
                    // Items that the next process finds by their names need not delay
                    // this one.
                    Err(_) if state.closing => {}
                    Err(_) => state.ended.extend(ended),
                }
                done
            }
            Step::Wait => {
                let state = shared.state();
                // Nothing may have arrived since.
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

    /// Counts living items, and fails at times.
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
