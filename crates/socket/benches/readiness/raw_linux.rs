//! The system calls of Linux's side.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// An epoll descriptor.
pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    check(fd as isize)?;
    // SAFETY: a descriptor just returned to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Watches a descriptor for input, level-triggered, under its number.
pub fn watch(set: &OwnedFd, fd: i32) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: fd as u64,
    };
    let set = set.as_raw_fd();
    // SAFETY: a valid event for the call's duration.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) };
    check(added as isize).map(drop)
}

/// Waits for events without end.
pub fn wait(set: &OwnedFd, events: &mut [libc::epoll_event]) -> io::Result<usize> {
    let (set, length) = (set.as_raw_fd(), events.len() as i32);
    // SAFETY: writable for the length stated.
    check(unsafe { libc::epoll_wait(set, events.as_mut_ptr(), length, -1) } as isize)
}

/// `read` of a descriptor that is known by its number.
pub fn read(fd: i32, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writable for the length stated.
    check(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Lets the process have so many descriptors, if it may.
pub fn raise_descriptor_limit(limit: u64) {
    let limit = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: a valid rlimit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
}
