//! Descriptors that the kernel has just allocated for other files. If one is a socket's here,
//! that socket was closed without this library: inside the C library, as by `fclose`, or by a
//! function found through a handle of the C library.

use std::ffi::{c_char, c_int, c_uint};

use libc::{FILE, sigset_t};

use super::{numbers, originals};
use crate::candidates;
use crate::process::{is_inside, ours};

/// Forgets the socket that the descriptor named.
pub(super) fn given(number: c_int) -> c_int {
    if number >= 0 && (ours(number).is_some() || candidates::is_any(number)) {
        numbers::forget(number);
    }
    number
}

/// Functions that open files: the names of each, and the C library's function.
macro_rules! opens {
    ($($name:ident($($argument:ident: $type:ty),*) = $original:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: guaranteed by the caller.
            given(unsafe { originals::$original($($argument),*) })
        }
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: c_uint) = open;
    open64(path: *const c_char, flags: c_int, mode: c_uint) = open;
    __open(path: *const c_char, flags: c_int, mode: c_uint) = open;
    __open64(path: *const c_char, flags: c_int, mode: c_uint) = open;
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) = openat;
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) = openat;
    creat(path: *const c_char, mode: c_uint) = creat;
    creat64(path: *const c_char, mode: c_uint) = creat;
    __open_2(path: *const c_char, flags: c_int) = __open_2;
    __open64_2(path: *const c_char, flags: c_int) = __open64_2;
    __openat_2(directory: c_int, path: *const c_char, flags: c_int) = __openat_2;
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) = __openat64_2;
    eventfd(value: c_uint, flags: c_int) = eventfd;
    memfd_create(name: *const c_char, flags: c_uint) = memfd_create;
    timerfd_create(clock: c_int, flags: c_int) = timerfd_create;
    signalfd(number: c_int, signals: *const sigset_t, flags: c_int) = signalfd;
    inotify_init() = inotify_init;
    inotify_init1(flags: c_int) = inotify_init1;
}

/// Forgets the sockets of two new descriptors.
///
/// # Safety
/// The arguments are as pipe(2) requires.
unsafe fn both(result: c_int, numbers: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: the caller's: two numbers are there.
        for number in unsafe { *numbers.cast::<[c_int; 2]>() } {
            given(number);
        }
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pipe(numbers: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { both(originals::pipe(numbers), numbers) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pipe(numbers: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { pipe(numbers) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pipe2(numbers: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { both(originals::pipe2(numbers, flags), numbers) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    numbers: *mut c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let result = originals::socketpair(domain, kind, protocol, numbers);
        both(result, numbers)
    }
}

/// A stream of the C library, whose descriptor may meanwhile be a connection's (`dup2`).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() && !is_inside() {
        // SAFETY: guaranteed by the caller.
        let number = unsafe { libc::fileno(stream) };
        if number >= 0 && ours(number).is_some() {
            numbers::forget(number);
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { originals::fclose(stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _IO_fclose(stream: *mut FILE) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { fclose(stream) }
}
