//! The C interface by which the public packetdrill tool drives a TCP that is a
//! library (`--so_filename`): a table of functions, filled in by
//! `packetdrill_interface_init`, over one host whose
//! clock is virtual.
//!
//! The library itself, `libtidewall_packetdrill.so`, is the example of that name;
//! docs/tcp.md says how to use it. Everything is written from the interface's
//! documented meaning; nothing of the tool is in this repository.
//!
//! - No call waits for real time, see `machine`.
//! - Kernel parameters and the MTU are those of the network namespace, read
//!   whenever a socket is made, listens or connects, see `environment`.
//! - The device takes no packet while its queueing discipline takes none
//!   (`pfifo limit 0`), which is asked at each output, see `raw_device`.
//! - Descriptors that are not the host's (pipes, files) are the kernel's.
//! - A panic ends the call with EFAULT; it never reaches C.
//!
//! `raw_calls` has the table and the calls of sockets, `raw_transfer` those that
//! read and write, `raw_events` those that wait or move time and packets,
//! `raw_device` asks the device.
#![allow(unsafe_code)]

mod environment;
mod machine;
mod raw_calls;
mod raw_device;
mod raw_events;
#[cfg(test)]
mod raw_tests;
mod raw_transfer;

use core::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libc::{
    epoll_event, iovec, msghdr, nfds_t, off64_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use environment::Flags;
use machine::Machine;

use crate::host::FIRST_FD;

/// The machine that was made last, for calls without a table (see
/// [`getsockopt`]).
static LAST: Mutex<Weak<Machine>> = Mutex::new(Weak::new());

/// `struct packetdrill_interface`, field by field. Where C has an ellipsis here
/// is the one argument that is ever given: the calling conventions of Linux on
/// x86-64 and aarch64 pass both alike.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Interface {
    pub userdata: *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
    pub socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    pub fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    pub ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_void) -> c_int,
    pub close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    pub getsockopt: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut socklen_t,
    ) -> c_int,
    pub setsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    pub netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    pub netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(*mut c_void, c_uint) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    pub epoll_ctl:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait:
        unsafe extern "C" fn(*mut c_void, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub splice: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut off64_t,
        c_int,
        *mut off64_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}

/// Fills in the table for a new host; `flags` is what `--so_flags` says, or null
/// (`local=ADDRESS`, `mtu=BYTES`, `interface=NAME`, separated by commas).
///
/// # Safety
/// `flags` is null or a C string; `interface` is null or may be written.
pub unsafe fn initialize(flags: *const c_char, interface: *mut Interface) {
    if interface.is_null() {
        return;
    }
    let text = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: a C string, says the caller.
        unsafe { CStr::from_ptr(flags) }
            .to_string_lossy()
            .into_owned()
    };
    let Ok(machine) = Machine::new(Flags::parse(&text)) else {
        // No memory, or no descriptors.
        return;
    };
    let machine = Arc::new(machine);
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&machine);
    let table = raw_calls::table(Arc::into_raw(machine).cast_mut().cast());
    // SAFETY: not null, and may be written.
    unsafe { interface.write(table) };
}

/// The machine that was made last, if it still is.
fn last() -> Option<Arc<Machine>> {
    LAST.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .upgrade()
}

/// `getsockopt(2)` for a process that has this library loaded before its C
/// library (`LD_PRELOAD`): descriptors of the host that was made last are the
/// host's, all others the kernel's. The tool reads `TCP_INFO` for its
/// assertions in this way, without the table.
///
/// # Safety
/// As `getsockopt(2)`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if let Some(machine) = last().filter(|machine| machine.owns(fd)) {
        // SAFETY: as the caller promises.
        return unsafe { raw_calls::get_option(&machine, fd, level, option, value, length) };
    }
    // SAFETY: the caller's arguments, which are the kernel's to check.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, option, value, length) as c_int }
}

/// `sendfile(2)`, as [`getsockopt`]: from the kernel's file to the host's
/// socket.
///
/// # Safety
/// As `sendfile(2)`.
pub unsafe fn sendfile(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
    if let Some(machine) = last().filter(|machine| machine.owns(to)) {
        // SAFETY: as the caller promises.
        return unsafe { raw_events::send_file(&machine, to, from, offset, count) };
    }
    // SAFETY: the caller's arguments, which are the kernel's to check.
    unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t }
}

/// `close(2)`, as [`getsockopt`]: the tool closes what a script has left open in
/// this way.
///
/// # Safety
/// As `close(2)`: the kernel's descriptor is nobody else's.
pub unsafe fn close(fd: c_int) -> c_int {
    if fd >= FIRST_FD
        && let Some(machine) = last()
        && machine.call(|posix| posix.close(fd)).is_ok()
    {
        return 0;
    }
    // SAFETY: the caller's argument, which is the kernel's to check.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}
