//! The table, and its functions from `socket` to `close`.

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::mem;
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use libc::{sockaddr, socklen_t, ssize_t};

use super::Interface;
use super::machine::Machine;
use super::raw_events::{
    epoll_create, epoll_ctl, epoll_wait, gettimeofday, netdev_receive, netdev_send, pipe, poll,
    splice, usleep,
};
use super::raw_transfer::{
    read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, write, writev,
};
use tidewall_posix::raw::{address, bytes, put, put_address};
use tidewall_posix::{Errno, Result};

pub(super) fn table(userdata: *mut c_void) -> Interface {
    Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

pub(super) fn set_errno(number: i32) {
    // SAFETY: this thread's errno, always there.
    unsafe { *libc::__errno_location() = number };
}

/// As C has it: -1 and errno.
fn finish(result: Result<usize>) -> ssize_t {
    match result {
        Ok(value) => value as ssize_t,
        Err(failure) => {
            set_errno(failure.0);
            -1
        }
    }
}

/// Runs a call, and has a panic end as EFAULT.
pub(super) fn guarded(call: impl FnOnce() -> Result<usize>) -> ssize_t {
    let result = catch_unwind(AssertUnwindSafe(call));
    finish(result.unwrap_or(Err(Errno(libc::EFAULT))))
}

/// The machine of a table.
///
/// # Safety
/// `userdata` is a table's that was not freed.
pub(super) unsafe fn machine<'a>(userdata: *mut c_void) -> &'a Machine {
    // SAFETY: `initialize` made it of an `Arc<Machine>`, and `free` was not
    // called.
    unsafe { &*userdata.cast::<Machine>() }
}

pub(super) fn owns(machine: &Machine, fd: c_int) -> bool {
    machine.owns(fd)
}

/// The result of a call of the kernel's.
pub(super) fn kernel(result: ssize_t) -> Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    if !userdata.is_null() {
        // SAFETY: made by `Arc::into_raw`, and the caller uses it no more.
        drop(unsafe { Arc::from_raw(userdata.cast::<Machine>().cast_const()) });
    }
}

unsafe extern "C" fn socket(
    userdata: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let fd = machine.refreshed(|posix| posix.socket(domain, kind, protocol))?;
        Ok(fd as usize)
    }) as c_int
}

unsafe extern "C" fn bind(
    userdata: *mut c_void,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // SAFETY: as many bytes as the caller says.
    let to = unsafe { address(to, length) };
    guarded(|| {
        let to = to.ok_or(Errno(libc::EINVAL))?;
        machine.call(|posix| posix.bind(fd, to))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn listen(userdata: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.refreshed(|posix| posix.listen(fd, backlog))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn accept(
    userdata: *mut c_void,
    fd: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let (accepted, peer) = machine.call(|posix| posix.accept4(fd, 0))?;
        if let Some(peer) = peer {
            // SAFETY: as many bytes as the caller says.
            unsafe { put_address(peer, place, length) };
        }
        Ok(accepted as usize)
    }) as c_int
}

unsafe extern "C" fn connect(
    userdata: *mut c_void,
    fd: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    // SAFETY: as many bytes as the caller says.
    let to = unsafe { address(to, length) };
    guarded(|| {
        let to = to.ok_or(Errno(libc::EINVAL))?;
        machine.refreshed(|posix| posix.connect(fd, to))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn fcntl(
    userdata: *mut c_void,
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    if !owns(machine, fd) {
        // SAFETY: the caller's arguments.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    // An int was given; the rest of the register is anything.
    let argument = i64::from(argument as c_int);
    guarded(|| {
        let result = machine.call(|posix| posix.fcntl(fd, command, argument))?;
        Ok(result as usize)
    }) as c_int
}

unsafe extern "C" fn ioctl(
    userdata: *mut c_void,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        let given = if request == libc::FIONBIO && !argument.is_null() {
            // SAFETY: FIONBIO comes with an int.
            unsafe { ptr::read_unaligned(argument.cast::<c_int>()) }
        } else {
            0
        };
        let value = machine.call(|posix| posix.ioctl(fd, request, given))?;
        if request != libc::FIONBIO {
            if argument.is_null() {
                return Err(Errno(libc::EFAULT));
            }
            // SAFETY: the others have room for an int.
            unsafe { ptr::write_unaligned(argument.cast::<c_int>(), value) };
        }
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn close(userdata: *mut c_void, fd: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        if !owns(machine, fd) {
            // SAFETY: the caller's descriptor.
            return kernel(unsafe { libc::close(fd) } as ssize_t);
        }
        machine.call(|posix| posix.close(fd))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn shutdown(userdata: *mut c_void, fd: c_int, how: c_int) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        machine.call(|posix| posix.shutdown(fd, how))?;
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn getsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { get_option(machine(userdata), fd, level, option, value, length) }
}

/// `getsockopt(2)`: as much of the value as there is room for.
///
/// # Safety
/// `length` is null, or says how many bytes may be written at `value`.
pub(super) unsafe fn get_option(
    machine: &Machine,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    guarded(|| {
        let mut found = machine.call(|posix| posix.getsockopt(fd, level, option))?;
        if length.is_null() || (value.is_null() && !found.is_empty()) {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not null.
        let room = unsafe { ptr::read_unaligned(length) } as usize;
        found.truncate(room);
        // SAFETY: as many bytes as the caller says.
        unsafe { put(&found, value, length) };
        Ok(0)
    }) as c_int
}

unsafe extern "C" fn setsockopt(
    userdata: *mut c_void,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the table's, says the caller.
    let machine = unsafe { machine(userdata) };
    guarded(|| {
        // SAFETY: as many bytes as the caller says.
        let value = unsafe { bytes(value, length as usize) };
        machine.refreshed(|posix| posix.setsockopt(fd, level, option, value))?;
        Ok(0)
    }) as c_int
}

const _: () = assert!(mem::size_of::<Interface>() == 33 * mem::size_of::<usize>());
