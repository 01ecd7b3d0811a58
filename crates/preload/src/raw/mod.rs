//! Functions that callers of the C library reach, and their accesses to the callers'
//! memory.

mod aliases;
mod cancellation;
mod copying;
mod data;
mod ends;
mod explicit;
mod given;
mod inherited;
mod numbers;
mod options;
mod originals;
mod processes;
mod readiness;
mod rings;
mod sandbox;
mod signals;
mod sockets;
mod stacks;
mod stdio;
mod syscall;

use std::ffi::{CStr, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::{ptr, slice};

use libc::{sockaddr, socklen_t};
use tidewall_posix::{Errno, Result};
use tidewall_sys::RawAddress;

pub(crate) use cancellation::{allow, forbid, test as test_cancellation};
pub(crate) use readiness::{control, leave_set, poll_now};
pub(crate) use signals::run_waiting;
pub(crate) use sockets::unconnected;
pub(crate) use stacks::with_room;

use crate::process::{self, last_error};
use crate::{promote, report};

/// Called by the dynamic linker when it has loaded the library.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    originals::resolve();
    stacks::note_main();
    // SAFETY: reads only the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // The program is setuid: its starter's environment has no effect.
        return;
    }
    let may_promote = promote::begin();
    let refused = match may_promote && process::is_filtered() {
        true => {
            sandbox::note_filter();
            inherited::refused()
        }
        false => None,
    };
    if refused.is_none_or(|(_, may_report)| may_report) {
        report::begin(refused.is_some());
    }
    if let Some((call, _)) = refused {
        promote::refuse(call);
    } else if may_promote {
        // SAFETY: a function that is never unloaded.
        unsafe { __cxa_at_quick_exit(ends::end_quickly, ptr::null_mut()) };
        watch_forks();
        // The descriptors that the program was started with.
        crate::protected::open_numbers()
            .into_iter()
            .flatten()
            .for_each(|fd| {
                crate::watch::executed(fd);
                promote::inherited(fd);
            });
    }
}

/// Makes forked children know that they have no stack.
pub(crate) fn watch_forks() {
    let (before, after) = (processes::forks, processes::has_forked);
    let child = processes::has_been_forked;
    // SAFETY: the child's handler does only what is async-signal-safe; none is unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
}

unsafe extern "C" {
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// Returns true once the process has had a second thread.
pub(crate) fn has_threads() -> bool {
    unsafe extern "C" {
        /// glibc's sys/single_threaded.h.
        static __libc_single_threaded: libc::c_char;
    }
    // SAFETY: a byte of the C library, which changes only where threads are created.
    unsafe { (&raw const __libc_single_threaded).read_volatile() == 0 }
}

/// Returns true for an open descriptor.
pub(crate) fn is_open(fd: i32) -> bool {
    // SAFETY: queries a descriptor.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) != -1 }
}

/// Sets errno.
pub(super) fn fail(errno: i32) {
    // SAFETY: errno belongs to this thread, and always exists.
    unsafe { *libc::__errno_location() = errno };
}

/// Converts a count of bytes or descriptors into a call's return value.
fn answer<N: TryInto<isize>>(result: Result<N>) -> isize {
    match result {
        Ok(value) => value.try_into().unwrap_or(isize::MAX),
        Err(Errno(number)) => {
            fail(number);
            -1
        }
    }
}

/// Converts a number, or plain success, into a call's return value.
fn number(result: Result<c_int>) -> c_int {
    match result {
        Ok(value) => value,
        Err(Errno(errno)) => {
            fail(errno);
            -1
        }
    }
}

fn done(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}

/// Converts a result of the C library.
fn checked(value: c_int) -> Result<c_int> {
    match value {
        -1 => last_error(),
        value => Ok(value),
    }
}

/// Borrows a descriptor that the program has open, for the length of a call.
pub(crate) fn borrow<'a>(fd: i32) -> Option<BorrowedFd<'a>> {
    // SAFETY: not −1. The program must keep it open during the call. If it is closed
    // meanwhile, the call returns EBADF or reaches another file of the program.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Returns memory of the caller.
///
/// # Safety
/// As for read(2): the call may read that many bytes.
unsafe fn bytes<'a>(buffer: *const c_void, length: usize) -> Result<&'a [u8]> {
    match (length.min(isize::MAX as usize), buffer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        (length, false) => Ok(unsafe { slice::from_raw_parts(buffer.cast(), length) }),
    }
}

/// Returns memory of the caller, to write.
///
/// # Safety
/// As for write(2): the call has exclusive access to that many bytes.
unsafe fn room<'a>(buffer: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    match (length.min(isize::MAX as usize), buffer.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller; the stack does not read bytes that it has not
        // written.
        (length, false) => Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), length) }),
    }
}

/// Parses an address argument; `None` for null, or for another family.
///
/// # Safety
/// The arguments are as connect(2) requires.
unsafe fn address(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes(address.cast(), length as usize) }.ok()?;
    promote::address_of(bytes)
}

/// Writes as much of an address as fits, and its length, if the caller requests it.
///
/// # Errors
/// EFAULT without a length, EINVAL for a negative one.
///
/// # Safety
/// The arguments are as accept(2) requires.
unsafe fn put_address(from: SocketAddr, to: *mut sockaddr, length: *mut socklen_t) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let length = unsafe { length.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    let (raw, used) = RawAddress::new(from);
    let room = length_of(*length)?.min(used as usize);
    // SAFETY: guaranteed by the caller: as many bytes as the length states.
    unsafe { ptr::copy_nonoverlapping(raw.0.as_ptr(), to.cast(), room) };
    *length = used;
    Ok(())
}

/// Checks a length argument, which the kernel treats as an int.
///
/// # Errors
/// EINVAL for a negative one.
fn length_of(length: socklen_t) -> Result<usize> {
    match length.cast_signed() {
        0.. => Ok(length as usize),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Returns the addresses of an interface.
pub(crate) fn addresses(interface: &str) -> Vec<IpAddr> {
    let mut first = ptr::null_mut();
    // SAFETY: returns a list, or nothing.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: elements of the list, until it is freed.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: each has a name, and null or an address of its family's length.
        unsafe {
            if CStr::from_ptr(element.ifa_name).to_bytes() != interface.as_bytes()
                || element.ifa_addr.is_null()
            {
                continue;
            }
            let length = match i32::from((*element.ifa_addr).sa_family) {
                libc::AF_INET => size_of::<libc::sockaddr_in>(),
                libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
                _ => continue,
            };
            found.extend(address(element.ifa_addr, length as socklen_t).map(|it| it.ip()));
        }
    }
    // SAFETY: the list that getifaddrs returned.
    unsafe { libc::freeifaddrs(first) };
    found
}
