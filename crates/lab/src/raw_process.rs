//! What a worker asks of the kernel about itself.

use std::io;

/// Puts the calling process into a session of its own, so that a Ctrl-C at the
/// terminal reaches the lab alone, which then ends its workers in order.
pub(crate) fn own_session() {
    // SAFETY: no pointers. Fails only for a process group leader, which then
    // has the separation already.
    unsafe { libc::setsid() };
}

/// Makes the kernel kill the calling process when the thread that started it
/// is gone.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Sets the calling process's nice value.
pub(crate) fn set_nice(value: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers; 0 is the caller.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Puts the calling thread, and those that it starts from now on, ahead of all
/// ordinary ones (SCHED_FIFO 1).
///
/// # Errors
/// EPERM without CAP_SYS_NICE.
pub(crate) fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: `parameters` outlives the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Restricts the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: zeroes are a valid, empty set; CPU_SET checks the range; the
    // length is that of the set.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Lets this process, and those that it starts, have up to `wanted` files open,
/// or as many as its hard limit allows; returns how many.
///
/// # Errors
/// What `getrlimit` and `setrlimit` report.
pub(crate) fn raise_files(wanted: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one rlimit to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_cur.max(wanted.min(limit.rlim_max));
    // SAFETY: one rlimit to read from.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// True for user 0.
pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Sends a signal to a child of ours that has not been waited for.
pub(crate) fn signal(pid: u32, signal: libc::c_int) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: no pointers; an unreaped child's id is not reused.
        unsafe { libc::kill(pid, signal) };
    }
}
