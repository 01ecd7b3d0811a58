//! The thread whose priority the helper follows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::process::{Pid, getpid};
use tidewall_sys::monotonic;
use tidewall_sys::priority::{Scheduling, this_thread};

/// Least interval between queries of the owner's priority.
const ASK_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// Lives as long as the thread.
    static LIFE: Arc<()> = Arc::new(());
}

/// The thread that started the helper; once that has ended, the first thread of the process.
#[derive(Debug)]
pub(super) struct Owner {
    thread: Option<Pid>,
    life: Weak<()>,
    first: Pid,
    /// Time of the last query of its priority, and the result.
    asked: Duration,
    known: Option<Scheduling>,
}

impl Owner {
    /// Returns the calling thread as the owner; a thread that it starts inherits its
    /// priority.
    pub(super) fn of_this_thread() -> Self {
        let life = LIFE.try_with(Arc::downgrade).unwrap_or_default();
        Owner {
            thread: this_thread().ok(),
            life,
            first: getpid(),
            asked: monotonic(),
            known: Scheduling::of(None).ok(),
        }
    }

    /// Sets the calling thread to the owner's class and nice value, if they have changed. A
    /// failure is returned once per change, for a warning.
    pub(super) fn follow(&mut self) -> Option<String> {
        let now = monotonic();
        if now.saturating_sub(self.asked) < ASK_EVERY {
            return None;
        }
        self.asked = now;
        let lives = self.life.strong_count() > 0;
        let owner = self.thread.filter(|_| lives).unwrap_or(self.first);
        let scheduling = Scheduling::of(Some(owner)).ok()?;
        if self.known.replace(scheduling) == Some(scheduling) {
            return None;
        }
        let error = scheduling.apply().err()?;
        Some(format!(
            "the helper thread does not follow the priority of the thread that started it: {error} \
             (to raise a priority takes CAP_SYS_NICE or RLIMIT_NICE)"
        ))
    }
}
