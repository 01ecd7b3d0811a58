//! The thread that makes a script's calls, so that they may block.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use tidewall_posix::Posix;

use super::call::{Check, Job};
use crate::host::Time;

/// See the module documentation.
pub(super) struct Worker {
    time: Arc<Time>,
    jobs: Option<Sender<Job>>,
    checks: Receiver<Check>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(posix: &Arc<Posix>, time: &Arc<Time>) -> io::Result<Self> {
        let (jobs, to_make) = channel::<Job>();
        let (made, checks) = channel();
        let (posix, clock) = (posix.clone(), time.clone());
        let thread = Builder::new().name("calls".to_owned()).spawn(move || {
            for job in to_make {
                // A receiver that is gone needs no result.
                let _ = made.send(job(&posix));
                clock.leave();
            }
        })?;
        Ok(Self {
            time: time.clone(),
            jobs: Some(jobs),
            checks,
            thread: Some(thread),
        })
    }

    /// Begins a call. The clock stands still until it has returned or sleeps.
    pub(super) fn make(&self, job: Job) {
        self.time.enter();
        if self
            .jobs
            .as_ref()
            .is_none_or(|jobs| jobs.send(job).is_err())
        {
            self.time.leave();
        }
    }

    /// The check of the call, once it has returned.
    pub(super) fn finished(&self) -> Option<Check> {
        self.checks.try_recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.time.end();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Nothing is left to report a panic to.
            let _ = thread.join();
        }
    }
}
