//! Children of processes.

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

/// The locks that a child may take whose parent has no stack, in the order that they are
/// taken in.
type Guards = (
    Option<MutexGuard<'static, ()>>,
    Option<MutexGuard<'static, Said>>,
    MutexGuard<'static, Vec<Entry>>,
    MutexGuard<'static, Vec<(c_int, usize)>>,
);

thread_local! {
    /// While this thread makes a child: a lock that another thread had, it would have in the
    /// child for ever. Without a destructor, which would have to be entered in a list by the
    /// first process that gets here, a child.
    static HELD: Cell<Option<ManuallyDrop<Guards>>> = const { Cell::new(None) };
}

/// In a process that is about to have a child by fork(2). Handlers of signals wait, as one may
/// take what is held.
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

/// In the process, when it has one.
pub(super) extern "C" fn has_forked() {
    release();
    if let Some(posix) = process::posix() {
        posix.stack().note_fork();
    }
    if !process::is_inside() {
        signals::run_waiting();
    }
}

/// In the child, before it is the program's: nothing of the parent's stack is here.
/// Async-signal-safe.
pub(super) extern "C" fn has_been_forked() {
    release();
    signals::forget_waiting();
    readiness::forget_table();
    process::forget(false);
    watch::inherit();
}

/// In a child that was made by less than fork(2), for which nobody has held the locks: it
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
    // SAFETY: the caller's.
    let child = unsafe { originals::_Fork() };
    if child == 0 {
        left_alone(false);
    }
    child
}

/// What clone(2) has a child call.
pub(super) type Function = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child of `clone` begins with.
struct Beginning {
    function: Function,
    argument: *mut c_void,
    flags: c_int,
}

/// # Safety
/// As clone(2) has its function; `beginning` is a [`Beginning`], in memory that is shared with
/// a parent that waits, or the child's own.
unsafe extern "C" fn begin(beginning: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    let Beginning {
        function,
        argument,
        flags,
    } = unsafe { beginning.cast::<Beginning>().read() };
    if flags & libc::CLONE_VM == 0 {
        left_alone(flags & libc::CLONE_FILES != 0);
    }
    // SAFETY: the caller's.
    unsafe { function(argument) }
}

/// A child with memory of its own is one as of `_Fork`, one for which its parent waits one as
/// of vfork. Of others, threads, nothing is known.
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
        // SAFETY: the caller's.
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
    // SAFETY: the caller's, but for the function, which calls the caller's.
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

/// A child of vfork shares the memory with its parent, which waits: until it executes a
/// program or ends, its calls are for the kernel's table alone, and so are to pass us by.
#[cfg(target_arch = "x86_64")]
mod vfork {
    use std::ffi::c_int;

    use crate::process;

    /// Called by vfork, in the parent, before there is a child.
    extern "C" fn begins() {
        process::note_vfork(true);
    }

    /// Called in the parent when the child has gone on, with what the kernel has returned.
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

    // Parent and child return by the same stack, on which the child may have written: the
    // return address stays in a register meanwhile, as in the C library's.
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

    /// Its other name.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn __vfork() -> libc::pid_t {
        core::arch::naked_asm!("endbr64", "jmp {vfork}", vfork = sym vfork)
    }
}
