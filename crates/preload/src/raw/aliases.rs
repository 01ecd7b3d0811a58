//! Other names of C library functions that are replaced here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{fd_set, iovec, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t};

use super::processes::{self, Function};
use super::{data, numbers, options, readiness, sandbox, signals, sockets, stdio};

macro_rules! aliases {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $function:path;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: guaranteed by the caller, for the same function.
            unsafe { $function($($argument),*) }
        }
    )*};
}

aliases! {
    fn __read(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t = data::read;
    fn __write(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t = data::write;
    fn __send(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> ssize_t = data::send;
    fn preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = data::preadv2;
    fn pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = data::pwritev2;
    fn __connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int = sockets::connect;
    fn __close(fd: c_int) -> c_int = numbers::close;
    fn __dup2(fd: c_int, number: c_int) -> c_int = numbers::dup2;
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = options::fcntl;
    fn __poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = readiness::poll;
    fn __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut libc::timeval) -> c_int = readiness::select;
    fn __sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = signals::sigaction;
    fn __clone(function: Option<Function>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_number: usize, local: usize, child_number: usize) -> c_int = processes::clone;
    fn prlimit64(process: libc::pid_t, resource: c_uint, limit: *const libc::rlimit, old: *mut libc::rlimit) -> c_int = sandbox::prlimit;
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE = stdio::fdopen;
}
