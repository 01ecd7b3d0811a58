//! The system calls of the Linux side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// An epoll descriptor.
pub fn epoll_create() -> io::Result<OwnedFd> {
    Ok(epoll::create(CreateFlags::CLOEXEC)?)
}

/// Watches a descriptor for input, level-triggered, under its number.
pub fn watch(set: &OwnedFd, fd: i32) -> io::Result<()> {
    let data = EventData::new_u64(fd as u64);
    Ok(epoll::add(set, borrow(fd), data, EventFlags::IN)?)
}

/// Waits for events without end.
pub fn wait(set: &OwnedFd, events: &mut [Event]) -> io::Result<usize> {
    Ok(epoll::wait(set.as_fd(), events, None)?)
}

/// `read` of a descriptor that is known by its number.
pub fn read(fd: i32, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(borrow(fd), buffer)?)
}

fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: one of the sockets that the benchmark holds meanwhile.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
