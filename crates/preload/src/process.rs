//! The stack of this process, and the threads inside it.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use tidewall_posix::{Errno, Posix, Result};

use crate::raw;
use crate::watch;

thread_local! {
    /// Number of nested calls of this thread that are inside the stack, or between vfork
    /// and exec. Their own C library calls go to the C library.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// The calls of those that are between vfork and exec: a child that shares this
    /// memory.
    static IN_CHILD: Cell<u32> = const { Cell::new(0) };
}

static STACK: OnceLock<Posix> = OnceLock::new();
/// A stack exists, and this is its process; a forked child has none.
static PRESENT: AtomicBool = AtomicBool::new(false);
/// This process was forked from one that has a stack, or without the C library's fork.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns the stack of this process.
#[inline]
pub(crate) fn posix() -> Option<&'static Posix> {
    match PRESENT.load(Ordering::Acquire) {
        true => STACK.get(),
        false => None,
    }
}

/// Sets the stack of the process.
pub(crate) fn set(posix: Posix) -> &'static Posix {
    let posix = STACK.get_or_init(|| posix);
    PRESENT.store(true, Ordering::Release);
    posix
}

/// Disables the existing stack for a thread that may not make its calls (false), or enables
/// it again (true).
pub(crate) fn set_present(present: bool) {
    PRESENT.store(present && STACK.get().is_some(), Ordering::Release);
}

/// Discards the parent's stack in a forked child. With `for_good` the child will not have one
/// of its own either. Async-signal-safe.
pub(crate) fn forget(for_good: bool) {
    if PRESENT.swap(false, Ordering::AcqRel) || for_good {
        FORKED.store(true, Ordering::Release);
    }
}

/// Returns true in a child that creates no stack; its sockets are the kernel's.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Acquire)
}

/// Returns true while this thread is inside the stack.
#[inline]
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(|depth| depth.get() > 0).unwrap_or(true)
}

/// Returns true while this thread is inside the stack and may hold its locks.
pub(crate) fn is_in_stack() -> bool {
    let depth = INSIDE.try_with(Cell::get).unwrap_or(0);
    depth > IN_CHILD.try_with(Cell::get).unwrap_or(0)
}

/// Returns true in a child of vfork, which shares its parent's memory.
pub(crate) fn is_in_child() -> bool {
    IN_CHILD.try_with(Cell::get).unwrap_or(0) > 0
}

/// Records that a child of vfork begins, or that its parent continues. Async-signal-safe.
pub(crate) fn note_vfork(begins: bool) {
    watch::hands_over();
    note_inside(begins);
    let _ = IN_CHILD.try_with(|count| match begins {
        true => count.set(count.get() + 1),
        false => count.set(count.get().saturating_sub(1)),
    });
}

/// Directs calls of this thread to the C library (true), or to the stack again (false).
/// Async-signal-safe.
pub(crate) fn note_inside(inside: bool) {
    let change = |depth: &Cell<u32>| match inside {
        true => depth.set(depth.get() + 1),
        false => depth.set(depth.get().saturating_sub(1)),
    };
    // In a thread that is ending, no socket belongs to the stack any more.
    let _ = INSIDE.try_with(change);
}

/// Returns the stack if it owns the descriptor.
#[inline]
pub(crate) fn ours(fd: i32) -> Option<&'static Posix> {
    let posix = posix()?;
    (posix.owns(fd) && !is_inside()).then_some(posix)
}

/// Runs `call` with this thread marked as inside the stack.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    /// Holds whether the thread could be cancelled.
    struct Leave(Option<i32>);
    impl Drop for Leave {
        fn drop(&mut self) {
            note_inside(false);
            if !is_inside() {
                raw::allow(self.0);
                raw::run_waiting();
            }
        }
    }
    let _leave = Leave(if is_inside() { None } else { raw::forbid() });
    note_inside(true);
    call()
}

/// Reads the beginning of a file. Calls only functions that the dynamic linker has called
/// before.
pub(crate) fn beginning_of(path: &str) -> String {
    let mut bytes = [0; 4096];
    let file = rustix::fs::open(path, OFlags::CLOEXEC, Mode::empty());
    let length = file.and_then(|file| rustix::io::read(&file, &mut bytes));
    String::from_utf8_lossy(&bytes[..length.unwrap_or(0)]).into_owned()
}

/// Reports whether this thread is under a seccomp filter.
pub(crate) fn is_filtered() -> bool {
    let status = beginning_of("/proc/self/status");
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() != "0")
}

/// Returns the last error of the C library or the kernel.
pub(crate) fn last_error<T>() -> Result<T> {
    let number = std::io::Error::last_os_error().raw_os_error();
    Err(Errno(number.unwrap_or(libc::EIO)))
}
