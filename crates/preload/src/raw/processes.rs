//! Child processes.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;

use tidewall_device::forked;

use super::{originals, readiness, signals, stdio};
use crate::candidates;
use crate::process;
use crate::promote;
use crate::registered::{self, Entry};
use crate::report::{self, Said};
use crate::watch;

/// The locks that a child may take if its parent has no stack, in the order in which they
/// are taken.
type Guards = (
    Option<MutexGuard<'static, ()>>,
    Option<MutexGuard<'static, Said>>,
    MutexGuard<'static, Vec<Entry>>,
    MutexGuard<'static, Vec<(c_int, usize)>>,
);

thread_local! {
    /// The locks that this thread holds while it forks: a lock held by another thread would
    /// stay held in the child for ever. The value has no destructor: the first process to
    /// reach this code, a child, would have to register one.
    static HELD: Cell<Option<ManuallyDrop<Guards>>> = const { Cell::new(None) };
}

/// Called before fork(2). Signal handlers wait, since one may take a lock that is held.
pub(super) extern "C" fn forks() {
    process::note_inside(true);
    watch::forks();
    candidates::share_all();
    let guards = (
        promote::hold_to_fork(),
        report::hold(),
        registered::hold(),
        stdio::hold(),
    );
    let _ = HELD.try_with(|held| held.set(Some(ManuallyDrop::new(guards))));
}

fn release() {
    let _ = HELD.try_with(|held| drop(held.take().map(ManuallyDrop::into_inner)));
    process::note_inside(false);
}

/// Called in the parent after the fork.
pub(super) extern "C" fn has_forked() {
    release();
    if let Some(posix) = process::posix() {
        posix.stack().note_fork();
    }
    if !process::is_inside() {
        signals::run_waiting();
    }
}

/// Called in the child before the program runs in it: discards the parent's stack.
/// Async-signal-safe.
pub(super) extern "C" fn has_been_forked() {
    release();
    signals::forget_waiting();
    readiness::forget_table();
    process::forget(false);
    watch::inherit();
}

/// Called in a child that was created without fork(2), for which no locks were held. It
/// takes none, and all its sockets are the kernel's. Async-signal-safe.
pub(super) fn left_alone(shares_files: bool) {
    signals::forget_waiting();
    readiness::forget_table();
    process::forget(true);
    forked::note_child(shares_files);
    watch::inherit();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    candidates::share_all();
    // SAFETY: guaranteed by the caller.
    let child = unsafe { originals::_Fork() };
    if child == 0 {
        left_alone(false);
    }
    child
}

/// The function that a child of clone(2) calls.
pub(super) type Function = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The state that a child of `clone` begins with.
struct Beginning {
    function: Function,
    argument: *mut c_void,
    flags: c_int,
}

/// # Safety
/// The function is as clone(2) requires. `beginning` is a [`Beginning`], in the child's own
/// memory or in memory shared with a parent that waits.
unsafe extern "C" fn begin(beginning: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Beginning {
        function,
        argument,
        flags,
    } = unsafe { beginning.cast::<Beginning>().read() };
    if flags & libc::CLONE_VM == 0 {
        left_alone(flags & libc::CLONE_FILES != 0);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { function(argument) }
}

/// Treats a child with memory of its own as one of `_Fork`, and a child for which its parent
/// waits as one of vfork. Others are threads and need nothing.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn clone(
    function: Option<Function>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_number: usize,
    local: usize,
    child_number: usize,
) -> c_int {
    let shares = flags & libc::CLONE_VM != 0;
    let is_vfork = shares && flags & libc::CLONE_VFORK != 0;
    let (Some(known), true) = (function, is_vfork || !shares) else {
        // SAFETY: guaranteed by the caller.
        return unsafe {
            originals::clone(
                function,
                stack,
                flags,
                argument,
                parent_number,
                local,
                child_number,
            )
        };
    };
    let mut beginning = Beginning {
        function: known,
        argument,
        flags,
    };
    let place = (&raw mut beginning).cast();
    if is_vfork {
        process::note_vfork(true);
    } else {
        candidates::share_all();
    }
    // SAFETY: guaranteed by the caller, but for the function, which calls the caller's.
    let child = unsafe {
        originals::clone(
            Some(begin),
            stack,
            flags,
            place,
            parent_number,
            local,
            child_number,
        )
    };
    if is_vfork {
        process::note_vfork(false);
    }
    child
}

/// A child of vfork shares memory with its parent, which waits. Until it executes a
/// program or ends, its calls concern only the kernel's table, so they must bypass the
/// stack.
#[cfg(target_arch = "x86_64")]
mod vfork {
    use std::ffi::c_int;

    use crate::process;

    /// Called by vfork, in the parent, before there is a child.
    extern "C" fn begins() {
        process::note_vfork(true);
    }

    /// Called in the parent when the child has continued, with the kernel's result.
    extern "C" fn ended(result: c_int) -> c_int {
        process::note_vfork(false);
        match result {
            0.. => result,
            error => {
                super::super::fail(-error);
                -1
            }
        }
    }

    // Parent and child return by the same stack, on which the child may have written. So
    // the return address stays in a register meanwhile, as in the C library.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn vfork() -> libc::pid_t {
        core::arch::naked_asm!(
            "endbr64",
            "sub rsp, 8",
            "call {begins}",
            "add rsp, 8",
            "pop rdi",
            "mov eax, {number}",
            "syscall",
            "push rdi",
            "test eax, eax",
            "jz 2f",
            "mov edi, eax",
            "sub rsp, 8",
            "call {ended}",
            "add rsp, 8",
            "2:",
            "ret",
            begins = sym begins,
            ended = sym ended,
            number = const libc::SYS_vfork,
        );
    }

    /// The other name of vfork.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn __vfork() -> libc::pid_t {
        core::arch::naked_asm!("endbr64", "jmp {vfork}", vfork = sym vfork)
    }
}
