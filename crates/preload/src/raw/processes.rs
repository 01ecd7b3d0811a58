//! The ends of processes, and their children.

use std::ffi::c_int;

use super::originals;
use crate::process;
use crate::registered;

/// In a process that is about to have a child.
pub(super) extern "C" fn forks() {
    registered::hold();
}

/// In the process, when it has one.
pub(super) extern "C" fn has_forked() {
    registered::release();
}

/// In a child, before it is the program's: nothing of the parent's stack is here.
/// Async-signal-safe.
pub(super) extern "C" fn forked() {
    registered::release();
    process::forget();
}

/// fork(2) runs [`forked`] by pthread_atfork(3), which this does not.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: the caller's.
    let child = unsafe { originals::_Fork() };
    if child == 0 {
        forked();
    }
    child
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _exit(status: c_int) -> ! {
    super::end();
    // SAFETY: the caller's.
    unsafe { originals::_exit(status) };
    unreachable()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the caller's.
    unsafe { _exit(status) }
}

/// The process has ended: there is no way here.
fn unreachable() -> ! {
    loop {
        core::hint::spin_loop();
    }
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
