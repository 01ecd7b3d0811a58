//! Sandboxes that a program enters.

use std::ffi::{c_char, c_int, c_uint};

use std::sync::atomic::{AtomicBool, Ordering};

use libc::sock_fprog;
use tidewall_posix::Result;

use super::{checked, number, originals};
use crate::confinement;
use crate::needed::Confinement;
use crate::report;

/// A server that has its sockets and changes its root directory will attend to them
/// afterwards. The new root may lack its manager and the kernel's files about the interface.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    confinement::before();
    // SAFETY: guaranteed by the caller.
    unsafe { originals::chroot(path) }
}

/// Called before a limit is set.
fn before(resource: c_uint) {
    match resource {
        libc::RLIMIT_NPROC => confinement::before(),
        libc::RLIMIT_FSIZE => report::note_limit(),
        _ => {}
    }
}

/// A server that forbids itself to create threads, as HAProxy does, will also attend to
/// its sockets afterwards.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    before(resource);
    // SAFETY: guaranteed by the caller.
    unsafe { originals::setrlimit(resource, limit) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's; both have 64 bits.
    unsafe { setrlimit(resource, limit) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_uint,
    limit: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // For another process it does no harm.
    if !limit.is_null() {
        before(resource);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { originals::prlimit(process, resource, limit, old) }
}

/// This process is under a seccomp filter.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Records that it is under one from now on, or may be.
pub(super) fn note_filter() {
    FILTERED.store(true, Ordering::Relaxed);
}

/// Reports whether a filter may refuse calls that no stack needs.
pub(super) fn has_filter() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// Operations and flags of seccomp(2).
const SET_MODE_STRICT: c_uint = libc::SECCOMP_SET_MODE_STRICT;
const SET_MODE_FILTER: c_uint = libc::SECCOMP_SET_MODE_FILTER;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn prctl(
    option: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let call = || unsafe { originals::prctl(option, a, b, c, d) };
    if option != libc::PR_SET_SECCOMP {
        return call();
    }
    note_filter();
    let install = || checked(call());
    number(match a as c_uint {
        libc::SECCOMP_MODE_STRICT => confinement::confine(&Confinement::Strict, false, install),
        // SAFETY: guaranteed by the caller.
        libc::SECCOMP_MODE_FILTER => unsafe { filtered(b as _, false, install) },
        _ => install(),
    })
}

/// seccomp(2), which the C library lacks.
pub(super) unsafe fn seccomp(
    operation: c_uint,
    flags: c_uint,
    arguments: *const sock_fprog,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let call = || unsafe {
        let (operation, flags) = (operation as usize, flags as usize);
        originals::syscall(
            libc::SYS_seccomp,
            operation,
            flags,
            arguments as usize,
            0,
            0,
            0,
        )
    };
    let install = || checked(call() as c_int);
    note_filter();
    let all_threads = u64::from(flags) & libc::SECCOMP_FILTER_FLAG_TSYNC != 0;
    number(match operation {
        SET_MODE_STRICT => confinement::confine(&Confinement::Strict, false, install),
        // SAFETY: guaranteed by the caller.
        SET_MODE_FILTER => unsafe { filtered(arguments, all_threads, install) },
        _ => install(),
    })
}

/// # Safety
/// The filters are as seccomp(2) requires.
unsafe fn filtered(
    program: *const sock_fprog,
    all_threads: bool,
    install: impl FnOnce() -> Result<c_int>,
) -> Result<c_int> {
    // SAFETY: guaranteed by the caller: null, or a program.
    let filter = unsafe { program.as_ref() }.filter(|it| !it.filter.is_null());
    // The kernel reports the error.
    let Some(program) = filter else {
        return install();
    };
    // SAFETY: guaranteed by the caller: that many instructions.
    let filter = unsafe { std::slice::from_raw_parts(program.filter, program.len.into()) };
    // Filters may check whether a call comes from the C library.
    let address = originals::syscall as *const () as u64;
    confinement::confine(&Confinement::Filter(filter, address), all_threads, install)
}
