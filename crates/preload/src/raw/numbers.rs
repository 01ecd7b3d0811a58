//! Numbers: closing them, and more of them for one file.

use std::ffi::c_int;

use super::originals;
use crate::candidates;
use crate::process::{inside, is_inside, ours};

/// The number names nothing of ours from now on.
fn forget(fd: c_int) {
    if is_inside() {
        return;
    }
    if let Some(posix) = ours(fd) {
        // It is open, and closing it has no other error.
        let _ = inside(|| posix.close(fd));
    }
    candidates::set(fd, None);
}

/// A number that the kernel has made for the same file as another.
fn copy(fd: c_int, number: c_int) {
    if is_inside() || number < 0 || fd == number {
        return;
    }
    match ours(fd) {
        Some(posix) => drop(inside(|| posix.duplicate_as(fd, number))),
        None => candidates::set(number, candidates::kind(fd)),
    }
}

/// What fcntl(2) has returned.
pub(super) fn copied(fd: c_int, command: c_int, result: c_int) -> c_int {
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        copy(fd, result);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // First here: the kernel may give the number to another thread at once.
    forget(fd);
    // SAFETY: the caller's.
    unsafe { originals::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    let number = unsafe { originals::dup(fd) };
    copy(fd, number);
    number
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, number: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { replace(fd, number, || originals::dup2(fd, number)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { replace(fd, number, || originals::dup3(fd, number, flags)) }
}

/// # Safety
/// As dup2(2) has it.
unsafe fn replace(fd: c_int, number: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if result >= 0 && fd != number {
        forget(number);
        copy(fd, number);
    }
    result
}
