//! The thread whose priority the helper has.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::process::{Pid, getpid};
use tidewall_sys::monotonic;
use tidewall_sys::priority::{Scheduling, this_thread};

/// How often the owner's priority is asked for, at most.
const ASK_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// Lives as long as the thread.
    static LIFE: Arc<()> = Arc::new(());
}

/// The thread that started the helper, and once that has ended the first one of the process.
#[derive(Debug)]
pub(super) struct Owner {
    thread: Option<Pid>,
    life: Weak<()>,
    first: Pid,
    /// When it was last asked for its priority, and what that was.
    asked: Duration,
    known: Option<Scheduling>,
}

impl Owner {
    /// The calling thread, whose priority the thread inherits that it starts.
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

    /// Gives the calling thread the owner's class and nice value, where those have changed. A
    /// failure is returned once for each change, as what is to be warned of.
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
