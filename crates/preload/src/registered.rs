//! Where the kernel's epoll sets have sockets that may still become the stack's.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewall_posix::Posix;

use crate::process::inside;
use crate::raw;

struct Entry {
    set: i32,
    fd: i32,
    /// EPOLL… bits and the program's data.
    event: (u32, u64),
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

type Guard = MutexGuard<'static, Vec<Entry>>;

thread_local! {
    /// While this thread makes a child. Without a destructor, which would have to be entered in
    /// a list by the first process that gets here, a child.
    static HELD: Cell<Option<ManuallyDrop<Guard>>> = const { Cell::new(None) };
}

fn lock() -> Guard {
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handlers of signals wait meanwhile: one may close a number.
fn with<T>(call: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
    inside(|| call(&mut lock()))
}

/// Nobody changes what is here until [`release`], which parent and child call, as another
/// thread that held the lock would hold it in the child for ever.
pub(crate) fn hold() {
    let _ = HELD.try_with(|held| held.set(Some(ManuallyDrop::new(lock()))));
}

/// A child was made. Async-signal-safe.
pub(crate) fn release() {
    let _ = HELD.try_with(|held| drop(held.take().map(ManuallyDrop::into_inner)));
}

/// The kernel has done what `epoll_ctl` asked of a socket.
pub(crate) fn note(set: i32, operation: i32, fd: i32, event: Option<(u32, u64)>) {
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
