//! Kernel epoll sets that hold sockets which may still become the stack's.

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

/// Keeps other threads from changing the list.
pub(crate) fn hold() -> MutexGuard<'static, Vec<Entry>> {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Signal handlers wait meanwhile: one may close a descriptor.
fn with<T>(call: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
    inside(|| call(&mut hold()))
}

/// Records an `epoll_ctl` on a socket that the kernel has carried out.
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

/// Forgets a closed descriptor.
pub(crate) fn forget(fd: i32) {
    if process::is_forked() {
        return;
    }
    with(|entries| entries.retain(|entry| entry.fd != fd && entry.set != fd));
}

/// Moves a socket that the stack has adopted within the sets that hold it.
pub(crate) fn move_over(posix: &Posix, fd: i32) {
    let moved =
        with(|entries| -> Vec<Entry> { entries.extract_if(.., |entry| entry.fd == fd).collect() });
    for Entry { set, fd, event } in moved {
        raw::leave_set(set, fd);
        // A set that is closed meanwhile is empty.
        let _ = raw::control(posix, set, libc::EPOLL_CTL_ADD, fd, Some(event));
    }
}
