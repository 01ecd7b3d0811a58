//! Descriptors: closing them, and duplicating them.

use std::ffi::{c_int, c_uint};

use tidewall_posix::Errno;

use super::originals;
use crate::candidates;
use crate::process::{self, inside, is_inside, ours};
use crate::promote;
use crate::protected::{between, is_protected};
use crate::sleepers;
use crate::watch;

/// Forgets a descriptor of the stack.
pub(super) fn forget(fd: c_int) {
    if is_inside() {
        return;
    }
    if let Some(posix) = ours(fd) {
        // It is open, and closing it has no other error.
        let _ = inside(|| posix.close(fd));
        watch::forget(fd);
    }
    if candidates::is_any(fd) {
        sleepers::forget(fd);
        watch::forget(fd);
        candidates::forget(fd);
    }
}

/// Records a descriptor that the kernel has created for the same file as another.
fn copy(fd: c_int, number: c_int) {
    if is_inside() || number < 0 || fd == number {
        return;
    }
    match ours(fd) {
        Some(posix) => {
            let _ = inside(|| posix.duplicate_as(fd, number));
            watch::copy(fd, number);
        }
        None if candidates::is_set(fd) => candidates::note_set(number),
        None => {
            if let Some(kind) = candidates::kind(fd) {
                // An option that is set by one descriptor also applies to the other.
                candidates::set(fd, kind);
                candidates::set(number, kind);
                watch::copy(fd, number);
                promote::note_copy();
            } else {
                super::given::given(number);
            }
        }
    }
}

/// Records the result of fcntl(2).
pub(super) fn copied(fd: c_int, command: c_int, result: c_int) -> c_int {
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        copy(fd, result);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_protected(fd) {
        return super::done(Err(Errno(libc::EBADF)));
    }
    // First here: the kernel may give the descriptor to another thread at once.
    forget(fd);
    // SAFETY: guaranteed by the caller.
    unsafe { originals::close(fd) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    let number = unsafe { originals::dup(fd) };
    copy(fd, number);
    number
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup2(fd: c_int, number: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { replace(fd, number, || originals::dup2(fd, number)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { replace(fd, number, || originals::dup3(fd, number, flags)) }
}

/// # Safety
/// The arguments are as dup2(2) requires.
unsafe fn replace(fd: c_int, number: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if is_protected(number) && !is_inside() {
        return super::done(Err(Errno(libc::EBUSY)));
    }
    let result = call();
    if result >= 0 && fd != number {
        forget(number);
        copy(fd, number);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    // Other flags close nothing, or are EINVAL.
    let closes = flags as c_uint & !libc::CLOSE_RANGE_UNSHARE == 0 && first <= last;
    if is_inside() || !closes {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::close_range(first, last, flags) };
    }
    let known = |fd: &c_int| candidates::is_any(*fd) || ours(*fd).is_some();
    (first..=last.min(candidates::NUMBERS as c_uint))
        .map(|fd| fd as c_int)
        .filter(known)
        .for_each(forget);
    if process::posix().is_none() && !crate::protected::is_any() {
        // SAFETY: guaranteed by the caller.
        return unsafe { originals::close_range(first, last, flags) };
    }
    // The stack's own descriptors are unknown to the program, and stay open.
    let mut ranges = between(first, last).map(|(first, last)| {
        // SAFETY: the caller wants all of them closed.
        unsafe { originals::close_range(first, last, flags) }
    });
    ranges.find(|&result| result != 0).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: guaranteed by the caller.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}
