//! Sandboxes that a program enters.

use std::ffi::{c_char, c_int, c_uint};

use super::originals;
use crate::promote;

/// A server that has its sockets and leaves the root directory, in which its manager and the
/// kernel's files about the interface are found, attends to them afterwards.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    promote::before_confinement();
    // SAFETY: the caller's.
    unsafe { originals::chroot(path) }
}

/// A server that forbids itself to make threads, as HAProxy does, attends to its sockets
/// afterwards, too.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    if resource == libc::RLIMIT_NPROC {
        promote::before_confinement();
    }
    // SAFETY: the caller's.
    unsafe { originals::setrlimit(resource, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's; both have 64 bits.
    unsafe { setrlimit(resource, limit) }
}
