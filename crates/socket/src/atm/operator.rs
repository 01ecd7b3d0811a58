//! What an operator wants done with the circuits of a program: asked for by the control
//! thread, done by the program between two of its turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use crate::atm::Atm;
use crate::lock::{Mutex, lock, rank};
use crate::stack::Stack;

/// How long an answer may take: many of the longest waits of a program that serves.
const LIMIT: Duration = Duration::from_secs(2);

type Done = Result<String, String>;

/// Where a request waits.
#[derive(Default)]
pub(crate) struct Operator {
    /// The program looks here.
    served: AtomicBool,
    /// There is a request: all that is looked at in each turn.
    wanted: AtomicBool,
    request: Mutex<Option<(String, SyncSender<Done>)>, rank::Leaf>,
}

impl Operator {
    /// Has the program do something; what it came to, or why it did not.
    pub(crate) fn ask(&self, request: &str) -> Done {
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

    fn answer(&self, serve: impl FnOnce(&str) -> Done) {
        self.served.store(true, Ordering::Relaxed);
        if !self.wanted.swap(false, Ordering::Acquire) {
            return;
        }
        let request = lock(&self.request).take();
        if let Some((request, by)) = request {
            // Who no longer waits needs none.
            let _ = by.try_send(serve(&request));
        }
    }
}

impl Stack {
    /// Does with `serve` what an operator wants of this program's circuits (`tidewall atm pvc
    /// add` and `remove`), if somebody asks: the words behind `pvc` in, what was done or why
    /// not out. To be called now and then, no less than twice a second, which costs next to
    /// nothing while nobody asks; programs that never call it have their circuits left alone.
    pub fn answer_operator(&self, serve: impl FnOnce(&str) -> Result<String, String>) {
        if let Ok(core) = self.here() {
            Atm::of(core).operator.answer(serve);
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
