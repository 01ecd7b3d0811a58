//! epoll, by number.

use std::io;
use std::time::Duration;

use super::epoll::{EpollEvent, EpollSet};
use super::epoll_control::Operation;
use crate::SignalSet;
use crate::descriptor::{Descriptors, Flags, TableFile};

impl<F: TableFile> Descriptors<F> {
    /// Opens an epoll set. [`Flags::CLOEXEC`] is EPOLL_CLOEXEC.
    ///
    /// # Errors
    /// EMFILE, ENOMEM; what starting the stack's helper thread reports.
    pub fn epoll_create1(&self, flags: Flags) -> io::Result<i32> {
        self.open(EpollSet::new(self.stack())?, flags)
    }

    /// Adds a descriptor to a set, changes what it is registered for, or removes it.
    ///
    /// What is in a set is a descriptor together with the open file that it named:
    /// it is reported until that file is closed, which is when the last descriptor
    /// of it is, whatever has become of this one (epoll(7), "Questions and
    /// answers", 6).
    ///
    /// # Errors
    /// EFAULT for no event where one is needed; EBADF; EPERM for a file that
    /// cannot be polled; EINVAL for `epfd` that is no set, or is `fd`, for a socket
    /// of another stack, and for [`Events::EXCLUSIVE`](super::Events::EXCLUSIVE) in a
    /// change, on a set, or beside what it does not go with; ELOOP for sets in a
    /// circle or more than five deep; EEXIST, ENOENT; what the kernel reports of its
    /// own (ENOSPC, ENOMEM).
    pub fn epoll_ctl(
        &self,
        epfd: i32,
        operation: Operation,
        fd: i32,
        event: Option<EpollEvent>,
    ) -> io::Result<()> {
        if operation != Operation::Delete && event.is_none() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let (set, file) = (self.file(epfd)?, self.file(fd)?);
        match set.epoll_set() {
            Some(set) => set.control(operation, fd, &(file as _), event),
            _ if !file.can_poll() => Err(io::Error::from_raw_os_error(libc::EPERM)),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Waits until something in a set is ready and puts it into `events`, as many as
    /// there is room for; the others come first next time. Returns how many
    /// there are; none at the timeout. `None` waits for ever, zero does not wait.
    ///
    /// While the device is flooded a call reports fewer, so that the next one polls
    /// it in time.
    ///
    /// # Errors
    /// EINVAL for no room at all, or a descriptor that is no set; EBADF; EINTR when
    /// a signal arrives; what [`Selector::wait`](crate::Selector::wait) reports.
    pub fn epoll_wait(
        &self,
        epfd: i32,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.epoll_pwait2(epfd, events, timeout, None)
    }

    /// As [`Descriptors::epoll_wait`], with `signals` blocked instead of those that
    /// are while it waits: a signal that arrives between a test of what its handler
    /// sets and the wait is not missed.
    ///
    /// # Errors
    /// As [`Descriptors::epoll_wait`].
    pub fn epoll_pwait2(
        &self,
        epfd: i32,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        signals: Option<&SignalSet>,
    ) -> io::Result<usize> {
        if events.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match self.file(epfd)?.epoll_set() {
            Some(set) => set.wait(events, timeout, signals),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }
}
