//! epoll, for the kernel descriptors among those that are watched. They belong to the
//! application, which may close them at any time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use tidewall_device::forked::Unshared;

/// Borrows a descriptor for one system call.
///
/// # Errors
/// EBADF for a number that cannot be a descriptor.
fn borrow<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: not -1. It is only named in epoll_ctl or fcntl. There a number that is
    // closed, or names another file by now, does no harm to this program's memory.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Returns another descriptor for the same open file.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(borrow(fd)?, 0)?)
}

/// Returns false for files that epoll refuses with EPERM, since they never wait.
pub fn can_poll(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = fstat(fd) else { return true };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory | FileType::BlockDevice => false,
        // It depends on the device.
        FileType::CharacterDevice => {
            let asked = Epoll::new().and_then(|epoll| epoll.add(fd.as_raw_fd(), 0, 0));
            asked.map_err(|error| error.raw_os_error()) != Err(Some(libc::EPERM))
        }
        _ => true,
    }
}

/// An epoll descriptor that belongs to the stack.
#[derive(Debug)]
pub struct Epoll(Unshared<OwnedFd>);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        let made = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Epoll(Unshared::new(made)?))
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds a descriptor for `events` (EPOLL* bits and flags).
    pub fn add(&self, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
        let events = EventFlags::from_bits_retain(events);
        Ok(epoll::add(
            &*self.0,
            borrow(fd)?,
            EventData::new_u64(key),
            events,
        )?)
    }

    /// Changes the events that a descriptor is watched for.
    pub fn modify(&self, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
        let events = EventFlags::from_bits_retain(events);
        Ok(epoll::modify(
            &*self.0,
            borrow(fd)?,
            EventData::new_u64(key),
            events,
        )?)
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        Ok(epoll::delete(&*self.0, borrow(fd)?)?)
    }

    /// [`ready`] of this descriptor.
    pub fn ready(&self, most: usize, out: &mut Vec<Event>) -> io::Result<()> {
        ready(self.0.as_fd(), most, out)
    }
}

/// Returns false for a descriptor that is no epoll descriptor. Its entries are not
/// examined.
pub fn is_epoll(fd: BorrowedFd<'_>) -> bool {
    let stranger = Epoll::new();
    stranger.is_ok_and(|stranger| epoll::delete(fd, &*stranger.0) == Err(Errno::NOENT))
}

/// Replaces `out` by the ready entries of an epoll descriptor, at most `most`; does not
/// wait.
///
/// # Errors
/// EINTR.
pub fn ready(set: BorrowedFd<'_>, most: usize, out: &mut Vec<Event>) -> io::Result<()> {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let most = most.max(1);
    out.clear();
    out.reserve(most);
    let room = out.spare_capacity_mut().get_mut(..most).unwrap_or_default();
    let (ready, _) = epoll::wait(set, room, Some(&at_once))?;
    let count = ready.len();
    // SAFETY: the call has written as many, at the front of what was free.
    unsafe { out.set_len(count) };
    Ok(())
}
