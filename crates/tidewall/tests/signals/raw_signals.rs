//! Signals to one thread, for the tests of what they end.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, getpid};
use rustix::thread::gettid;

use tidewall_sys::SignalSet;

/// Signals handled so far.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Signals handled so far, by all threads.
pub fn handled() -> usize {
    HANDLED.load(Ordering::SeqCst)
}

/// Handles a signal; with SA_RESTART among the flags system calls go on after it.
pub fn handle(signal: i32, flags: i32) {
    // SAFETY: all-zero is a valid sigaction, and the handler does nothing that a
    // handler may not.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

/// Blocks a signal in the calling thread.
pub fn block(signal: i32) {
    let mut set = SignalSet::empty();
    set.insert(signal).unwrap();
    set.block();
}

/// A thread of this process, to be interrupted.
#[derive(Clone, Copy)]
pub struct Thread(Pid);

impl Thread {
    /// The calling one.
    pub fn current() -> Self {
        Thread(gettid())
    }

    /// Sends it a signal. It must live still.
    pub fn interrupt(self, signal: i32) {
        let (process, thread) = (getpid().as_raw_pid(), self.0.as_raw_pid());
        // SAFETY: three numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
        assert_eq!(sent, 0);
    }
}
