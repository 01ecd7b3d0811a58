//! The thread that makes a script's calls, where they may wait.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use tidewall_posix::Posix;

use super::call::{Check, Job};
use crate::host::Time;

/// See the module.
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
                // Who has gone needs no result.
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

    /// What checks the call, once it has returned.
    pub(super) fn finished(&self) -> Option<Check> {
        self.checks.try_recv().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.time.end();
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Nobody is there to hear of a panic.
            let _ = thread.join();
        }
    }
}
