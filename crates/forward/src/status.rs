//! An operator's view of a forwarding program: the control thread asks for it, and the
//! forwarding thread answers between two rounds. Nothing is gathered without a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tidewall_stack::lock::{Mutex, lock, rank};
use tidewall_stack::snapshot::{CellSwitchSnapshot, SwitchSnapshot};

/// How long an answer may take: many of the longest waits of a switch.
const LIMIT: Duration = Duration::from_secs(2);

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// By the transport switch.
    Segments(SwitchSnapshot),
    /// By a switch of cells.
    Cells(CellSwitchSnapshot),
}

/// A question that waits for its answer.
#[derive(Default)]
pub(super) struct Status {
    /// There is a question. Each round reads this flag alone.
    wanted: AtomicBool,
    asked: Mutex<Asked, rank::Leaf>,
}

#[derive(Default)]
struct Asked {
    /// A thread answers questions.
    answers: bool,
    by: Option<SyncSender<Answer>>,
}

impl Status {
    /// Sets whether questions wait for [`Status::answer`].
    pub(super) fn set_answers(&self, answers: bool) {
        *lock(&self.asked) = Asked { answers, by: None };
    }

    /// Asks, and waits; `None` without an answering thread.
    pub(super) fn ask(&self) -> Option<Answer> {
        let answer = {
            let mut asked = lock(&self.asked);
            if !asked.answers {
                return None;
            }
            let (sender, answer) = sync_channel(1);
            asked.by = Some(sender);
            answer
        };
        self.wanted.store(true, Ordering::Release);
        answer.recv_timeout(LIMIT).ok()
    }

    /// Answers the pending question, if any.
    pub(super) fn answer(&self, make: impl FnOnce() -> Answer) {
        if !self.wanted.load(Ordering::Relaxed) {
            return;
        }
        self.wanted.store(false, Ordering::Relaxed);
        let by = lock(&self.asked).by.take();
        if let Some(by) = by {
            // A requester that no longer waits needs no answer.
            let _ = by.try_send(make());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_question_is_answered_by_the_thread_that_forwards() {
        let status = Arc::new(Status::default());
        assert_eq!(status.ask(), None);
        status.set_answers(true);
        status.answer(|| unreachable!("nobody has asked"));
        let asking = status.clone();
        let asking = std::thread::spawn(move || asking.ask());
        let mut snapshot = SwitchSnapshot::default();
        snapshot.connections = 3;
        let snapshot = Answer::Segments(snapshot);
        while !asking.is_finished() {
            status.answer(|| snapshot.clone());
            std::thread::yield_now();
        }
        assert_eq!(asking.join().unwrap(), Some(snapshot));
    }

    /// A thread that stops answering keeps no caller waiting.
    #[test]
    fn a_question_ends_with_who_would_answer() {
        let status = Arc::new(Status::default());
        status.set_answers(true);
        let asking = status.clone();
        let asking = std::thread::spawn(move || asking.ask());
        while !status.wanted.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        status.set_answers(false);
        assert_eq!(asking.join().unwrap(), None);
        assert_eq!(status.ask(), None);
    }
}
