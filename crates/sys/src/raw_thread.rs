//! Scheduling policies, which rustix leaves out.

use std::io;

use crate::done;

/// Puts the calling thread, and those that it starts from now on, into
/// SCHED_FIFO: ahead of all ordinary ones.
///
/// # Errors
/// EPERM without CAP_SYS_NICE; EINVAL for a priority outside 1 to 99.
pub fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    done(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) })
}
