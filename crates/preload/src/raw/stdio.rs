//! Streams of the C library over sockets of ours: it reads and writes by itself, so it is
//! given functions for that.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, off64_t, ssize_t};

use super::{data, originals};
use crate::process::ours;

/// `cookie_io_functions_t` of stdio.h.
#[repr(C)]
pub(super) struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// The cookie is the number.
fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: usize) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { data::read(number(cookie), buffer.cast(), length) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: usize) -> ssize_t {
    // SAFETY: the C library's buffer. An error is 0 there.
    unsafe { data::write(number(cookie), buffer.cast(), length) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: closes the number that the stream has.
    unsafe { super::numbers::close(number(cookie)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if ours(fd).is_none() {
        // SAFETY: the caller's.
        return unsafe { originals::fdopen(fd, mode) };
    }
    let functions = Functions {
        read,
        write,
        seek: None,
        close,
    };
    let cookie = std::ptr::without_provenance_mut(fd as usize);
    // SAFETY: functions for such a cookie, and the caller's mode.
    unsafe { originals::fopencookie(cookie, mode, functions) }
}
