//! The bounded queue between the interrupt and the softirq of a host architecture.
//!
//! Both are real-time threads on one processor. The interrupt may have preempted the
//! softirq anywhere. When it waits for the softirq it must therefore sleep and never
//! spin: a lower-priority thread never runs while a higher one spins. (The standard
//! library's bounded channel spins in `try_send` while a receiver is about to empty a
//! slot.)

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

/// A queue with one consumer thread.
pub(super) struct IpQueue<T> {
    room: usize,
    state: Mutex<State<T>>,
    taker: OnceLock<Thread>,
}

struct State<T> {
    waiting: VecDeque<T>,
    closed: bool,
}

impl<T> IpQueue<T> {
    pub(super) fn new(room: usize) -> Self {
        IpQueue {
            room,
            state: Mutex::new(State {
                waiting: VecDeque::with_capacity(room),
                closed: false,
            }),
            taker: OnceLock::new(),
        }
    }

    /// Appends an item and wakes the consumer. Returns the item where there is no room,
    /// or no consumer.
    pub(super) fn post(&self, item: T) -> Result<(), T> {
        let Some(taker) = self.taker.get() else {
            return Err(item);
        };
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= self.room {
            return Err(item);
        }
        state.waiting.push_back(item);
        drop(state);
        taker.unpark();
        Ok(())
    }

    /// Makes the calling thread the consumer.
    pub(super) fn begin(&self) {
        let _ = self.taker.set(thread::current());
    }

    /// Waits for the next item; `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<T> {
        loop {
            let mut state = self.lock();
            if let Some(item) = state.waiting.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            drop(state);
            thread::park();
        }
    }

    /// Refuses further items: the consumer ends after the last one.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        if let Some(taker) = self.taker.get() {
            taker.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_queue_gives_back_and_a_closed_one_ends_with_its_last_item() {
        let queue = IpQueue::new(2);
        assert_eq!(queue.post(0), Err(0), "no thread takes yet");
        queue.begin();
        assert_eq!([queue.post(1), queue.post(2)], [Ok(()), Ok(())]);
        assert_eq!(queue.post(3), Err(3));
        assert_eq!(queue.take(), Some(1));
        assert_eq!(queue.post(3), Ok(()));
        queue.close();
        assert_eq!(queue.post(4), Err(4));
        let rest: Vec<i32> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(rest, [2, 3]);
    }

    #[test]
    fn a_taker_wakes_for_items_and_for_the_end() {
        let queue = IpQueue::new(1);
        let (say, said) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.begin();
                let _ = say.send(None);
                while let Some(item) = queue.take() {
                    let _ = say.send(Some(item));
                }
            });
            assert_eq!(said.recv(), Ok(None));
            for item in 0..1_000 {
                assert_eq!(queue.post(item), Ok(()));
                assert_eq!(said.recv(), Ok(Some(item)));
            }
            queue.close();
        });
    }

    /// A real-time thread that spun here would keep the thread that it waits for from
    /// running.
    #[test]
    fn a_post_that_meets_the_taker_sleeps() {
        const HELD: Duration = Duration::from_millis(200);
        let queue = IpQueue::new(1);
        queue.begin();
        let spent = thread::scope(|scope| {
            let held = queue.lock();
            let poster = scope.spawn(|| {
                let before = tidewall_sys::thread_time();
                assert_eq!(queue.post(1), Ok(()));
                tidewall_sys::thread_time().saturating_sub(before)
            });
            thread::sleep(HELD);
            drop(held);
            poster.join().unwrap()
        });
        assert!(spent < HELD / 4, "{spent:?}");
    }
}
