//! Socket options by number, for those without a name in rustix.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::done;

/// asm-generic/socket.h; the libc crate has some of these for Android only.
pub const SO_BUSY_POLL: i32 = 46;
/// Prefer busy polling to softirq.
pub const SO_PREFER_BUSY_POLL: i32 = 69;
/// Packets per busy poll.
pub const SO_BUSY_POLL_BUDGET: i32 = 70;
/// The NAPI of a socket's last packet.
pub const SO_INCOMING_NAPI_ID: i32 = 56;

const SO_PEERPIDFD: i32 = 77;

/// Whether the value of an option points to memory for the kernel to write.
fn names_memory(level: i32, name: i32) -> bool {
    /// linux/tcp.h: TCP_ZEROCOPY_RECEIVE maps received pages.
    const TCP_ZEROCOPY_RECEIVE: i32 = 35;
    [
        (libc::SOL_XDP, libc::XDP_UMEM_REG),
        (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE),
    ]
    .contains(&(level, name))
}

/// `setsockopt`.
///
/// # Errors
/// EINVAL for XDP_UMEM_REG and other options that point to memory; the kernel's errors.
pub fn set_option_bytes(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    if names_memory(level, name) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the bytes and their length are valid during the call.
    done(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    })
}

/// `setsockopt` with an int.
///
/// # Errors
/// As [`set_option_bytes`].
pub fn set_option(fd: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option_bytes(fd, level, name, &value.to_ne_bytes())
}

/// `getsockopt`; returns the length of the value.
///
/// # Errors
/// As [`set_option_bytes`].
pub fn option_bytes(fd: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    if names_memory(level, name) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: writable bytes and their length, valid during the call.
    done(unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(length as usize)
}

/// `getsockopt` of an int.
///
/// # Errors
/// As [`set_option_bytes`].
pub fn option(fd: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    option_bytes(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// A pidfd of the process at the other end of a Unix socket, as it was when they connected
/// (SO_PEERPIDFD).
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5; ESRCH if the process is gone, unless the kernel still
/// knows it.
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let number = option(socket, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just opened it for this process, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Attaches a classic BPF program that returns how many bytes of each packet the socket
/// receives; with 0 the packet is dropped (SO_ATTACH_FILTER).
///
/// # Errors
/// EINVAL for a program that the kernel refuses.
pub fn attach_filter(fd: impl AsFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The pointer is only read, and only during the call.
    let mut program = [0; size_of::<libc::sock_fprog>()];
    program[..2].copy_from_slice(&length.to_ne_bytes());
    program[offset_of!(libc::sock_fprog, filter)..]
        .copy_from_slice(&(filter.as_ptr() as usize).to_ne_bytes());
    set_option_bytes(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
