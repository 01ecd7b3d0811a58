//! An operator's requests about the circuits of a program. The control thread passes them
//! on, and the program carries them out between two of its turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use crate::lock::{Mutex, lock, rank};

/// The time that an answer may take: many of the longest waits of a program that serves.
const LIMIT: Duration = Duration::from_secs(2);

type Done = Result<String, String>;

/// The slot in which a request waits.
#[derive(Default)]
pub struct Operator {
    /// The program looks here.
    served: AtomicBool,
    /// True while there is a request. It is the only field read in each turn.
    wanted: AtomicBool,
    request: Mutex<Option<(String, SyncSender<Done>)>, rank::Leaf>,
}

impl Operator {
    /// Passes a request to the program; returns its result, or the reason why it failed.
    pub fn ask(&self, request: &str) -> Done {
        if !self.served.load(Ordering::Relaxed) {
            return Err(
                "circuits of this program are its own: none is added or removed by hand".into(),
            );
        }
        let (sender, done) = sync_channel(1);
        *lock(&self.request) = Some((request.to_owned(), sender));
        self.wanted.store(true, Ordering::Release);
        let answer = done.recv_timeout(LIMIT);
        answer.unwrap_or_else(|_| Err("the program does not answer; is it stopped?".into()))
    }

    /// Carries out an operator's request by `serve`, if there is one.
    pub fn answer(&self, serve: impl FnOnce(&str) -> Done) {
        self.served.store(true, Ordering::Relaxed);
        if !self.wanted.swap(false, Ordering::Acquire) {
            return;
        }
        let request = lock(&self.request).take();
        if let Some((request, by)) = request {
            // A requester that no longer waits needs no answer.
            let _ = by.try_send(serve(&request));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_request_is_done_by_the_program() {
        let operator = Arc::new(Operator::default());
        assert!(operator.ask("add").is_err());
        operator.answer(|_| unreachable!("nobody has asked"));
        let asking = operator.clone();
        let asking = std::thread::spawn(move || asking.ask("add 0.100"));
        while !asking.is_finished() {
            operator.answer(|request| Ok(format!("{request} is done")));
            std::thread::yield_now();
        }
        assert_eq!(asking.join().unwrap(), Ok("add 0.100 is done".into()));
    }
}
