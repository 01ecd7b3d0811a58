//! Thread settings that rustix lacks: scheduling policies, and filters of calls.

use std::io;

use crate::{count, done};

/// Puts the calling thread, and those that it starts from now on, into SCHED_FIFO, which
/// runs before all ordinary threads.
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

/// A thread's attributes (sched_getattr(2)); 0 is the calling thread.
pub(crate) fn scheduling(thread: i32) -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let place = &raw mut attributes;
    // SAFETY: the kernel writes at most `size` bytes there.
    count(unsafe { libc::syscall(libc::SYS_sched_getattr, thread, place, size, 0) })?;
    Ok(attributes)
}

/// Sets the calling thread's attributes (sched_setattr(2)).
pub(crate) fn set_scheduling(attributes: &libc::sched_attr) -> io::Result<()> {
    let place = std::ptr::from_ref(attributes);
    // SAFETY: the kernel reads `size` bytes of it, and 0 is the calling thread.
    count(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, place, 0) }).map(|_| ())
}

/// Makes every lookup of a file by name fail in the calling thread from now on: openat(2)
/// returns ENOENT (seccomp(2)). This includes threads and programs that it starts.
///
/// # Errors
/// EINVAL or ENOSYS if the kernel has no such filters; the error of another filter.
pub fn find_no_files() -> io::Result<()> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let instruction = |code: u32, k: u32, otherwise: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: otherwise,
        k,
    };
    let mut filter = [
        // The number of the call.
        instruction(LOAD, 0, 0),
        instruction(IS, libc::SYS_openat as u32, 1),
        instruction(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOENT as u32, 0),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the first call has no pointers; the kernel copies the filter, which lives
    // until the second call returns.
    unsafe {
        done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        done(libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) as i32)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn one_thread_finds_no_files() {
        let opens = || File::open("/proc/self/stat").map_err(|error| error.raw_os_error());
        let blind = std::thread::spawn(move || {
            find_no_files().unwrap();
            opens().err()
        });
        assert_eq!(blind.join().unwrap(), Some(Some(libc::ENOENT)));
        assert!(opens().is_ok());
    }
}
