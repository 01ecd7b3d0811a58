//! epoll, by descriptor.

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
    /// EMFILE, ENOMEM; those of starting the stack's helper thread.
    pub fn epoll_create1(&self, flags: Flags) -> io::Result<i32> {
        self.open(EpollSet::new(self.stack())?, flags)
    }

    /// Adds a descriptor to a set, changes what it is registered for, or removes it.
    ///
    /// An entry is a descriptor together with the open file that it named. It is reported
    /// until that file is closed, that is, until its last descriptor is. Closing this
    /// descriptor alone does not end it (epoll(7), "Questions and answers", 6).
    ///
    /// # Errors
    /// - EFAULT without an event where one is needed;
    /// - EBADF;
    /// - EPERM for a file that cannot be polled;
    /// - EINVAL for `epfd` that is no set or equals `fd`, or for a socket of another
    ///   stack;
    /// - EINVAL for [`Events::EXCLUSIVE`](super::Events::EXCLUSIVE) in a change, on a
    ///   set, or with an event that it excludes;
    /// - ELOOP for sets in a cycle or more than five deep;
    /// - EEXIST, ENOENT;
    /// - the kernel's own errors (ENOSPC, ENOMEM).
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

    /// Waits until something in a set is ready and puts as much as fits into `events`;
    /// the rest comes first next time. Returns the number of events; 0 at the timeout.
    /// `None` waits forever, zero does not wait.
    ///
    /// While the device is flooded a call reports fewer events, so that the next one
    /// polls it in time.
    ///
    /// # Errors
    /// EINVAL for an empty buffer, or a descriptor that is no set; EBADF; EINTR when a
    /// signal arrives; those of [`Selector::wait`](crate::Selector::wait).
    pub fn epoll_wait(
        &self,
        epfd: i32,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.epoll_pwait2(epfd, events, timeout, None)
    }

    /// As [`Descriptors::epoll_wait`], with `signals` as the signal mask while it waits.
    /// A signal that arrives between a test of its handler's result and the wait is not
    /// missed.
    ///
    /// # Errors
    /// Those of [`Descriptors::epoll_wait`].
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
