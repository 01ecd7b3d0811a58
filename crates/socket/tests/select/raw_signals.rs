//! Signals, a descriptor of the kernel's, and what a thread has used.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Signals handled so far.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

pub fn handled() -> usize {
    HANDLED.load(Ordering::SeqCst)
}

/// Handles a signal, even where system calls would be restarted.
pub fn handle(signal: i32) {
    // SAFETY: all-zero is a valid sigaction, and the handler does nothing that a
    // handler may not.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

/// The calling thread, to be interrupted.
#[derive(Clone, Copy)]
pub struct Thread(libc::pthread_t);

impl Thread {
    pub fn current() -> Self {
        // SAFETY: no pointers.
        Thread(unsafe { libc::pthread_self() })
    }

    /// Sends it a signal. It must live still.
    pub fn interrupt(self, signal: i32) {
        // SAFETY: the caller's threads are joined after the last call.
        assert_eq!(unsafe { libc::pthread_kill(self.0, signal) }, 0);
    }
}

/// Blocks a signal in the calling thread.
pub fn block(signal: i32) {
    // SAFETY: an initialised set, valid for the call's duration.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a descriptor just returned to us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a thread has used so far.
pub struct Usage {
    /// Processor time, its own and the kernel's for it.
    pub time: Duration,
    /// How often it has gone to sleep.
    pub switches: usize,
}

/// What the calling thread has used.
pub fn usage() -> Usage {
    // SAFETY: all-zero is a valid rusage, writable for the call's duration.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    let time = |it: libc::timeval| Duration::new(it.tv_sec as u64, it.tv_usec as u32 * 1000);
    Usage {
        time: time(usage.ru_utime) + time(usage.ru_stime),
        switches: usage.ru_nvcsw as usize,
    }
}
