//! A bpffs that is mounted nowhere (fsmount(2)).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// `enum fsconfig_command` (linux/mount.h).
const SET_STRING: libc::c_int = 1;
const CREATE: libc::c_int = 6;
/// FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC.
const CLOEXEC: libc::c_int = 1;

/// Creates it; only its owner may enter. It ends with its last descriptor.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN; what the kernel reports.
pub(crate) fn bpffs() -> io::Result<OwnedFd> {
    // SAFETY: a name that ends with a zero byte; the result is a new descriptor.
    let context = descriptor(unsafe { libc::syscall(libc::SYS_fsopen, c"bpf".as_ptr(), CLOEXEC) })?;
    configure(&context, SET_STRING, Some((c"mode", c"0700")))?;
    configure(&context, CREATE, None)?;
    let context = context.as_raw_fd();
    // SAFETY: no memory is passed; the result is a new descriptor.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context, CLOEXEC, 0) })
}

fn configure(
    context: &OwnedFd,
    command: libc::c_int,
    value: Option<(&CStr, &CStr)>,
) -> io::Result<()> {
    let (key, value) = match value {
        Some((key, value)) => (key.as_ptr(), value.as_ptr()),
        None => (ptr::null(), ptr::null()),
    };
    let context = context.as_raw_fd();
    // SAFETY: strings that end with a zero byte, or null where the command has none.
    match unsafe { libc::syscall(libc::SYS_fsconfig, context, command, key, value, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match libc::c_int::try_from(result) {
        // SAFETY: the kernel has just created it, so nothing else owns it.
        Ok(number @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}
