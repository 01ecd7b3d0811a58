//! Where the kernel's epoll sets have sockets that may still become the stack's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewall_posix::Posix;

use crate::process::{self, inside};
use crate::raw;

pub(crate) struct Entry {
    set: i32,
    fd: i32,
    /// EPOLL… bits and the program's data.
    event: (u32, u64),
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Nobody changes what is here meanwhile.
pub(crate) fn hold() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handlers of signals wait meanwhile: one may close a number.
fn with<T>(call: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
    inside(|| call(&mut hold()))
}

/// The kernel has done what `epoll_ctl` asked of a socket.
pub(crate) fn note(set: i32, operation: i32, fd: i32, event: Option<(u32, u64)>) {
    if process::is_forked() {
        return;
    }
    with(|entries| {
        entries.retain(|entry| (entry.set, entry.fd) != (set, fd));
        if operation != libc::EPOLL_CTL_DEL
            && let Some(event) = event
        {
            entries.push(Entry { set, fd, event });
        }
    });
}

/// A number is closed.
pub(crate) fn forget(fd: i32) {
    if process::is_forked() {
        return;
    }
    with(|entries| entries.retain(|entry| entry.fd != fd && entry.set != fd));
}

/// A socket is the stack's from now on: so is it in the sets that it is in.
pub(crate) fn move_over(posix: &Posix, fd: i32) {
    let moved =
        with(|entries| -> Vec<Entry> { entries.extract_if(.., |entry| entry.fd == fd).collect() });
    for Entry { set, fd, event } in moved {
        raw::leave_set(set, fd);
        // A set that is closed meanwhile has nothing in it.
        let _ = raw::control(posix, set, libc::EPOLL_CTL_ADD, fd, Some(event));
    }
}
