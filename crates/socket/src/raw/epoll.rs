//! epoll, for the kernel's sockets among those that a selector watches.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What became of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    /// What it was entered with.
    pub(crate) key: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) hangup: bool,
    pub(crate) error: bool,
}

/// An epoll descriptor.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just returned to us, owned by nobody else.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Enters a descriptor, level-triggered.
    pub(crate) fn add(&self, fd: RawFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, key, read, write)
    }

    /// Changes what a descriptor is watched for.
    pub(crate) fn modify(&self, fd: RawFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, key, read, write)
    }

    /// Removes a descriptor.
    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false, false)
    }

    fn control(&self, what: i32, fd: RawFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        let mut events = libc::EPOLLRDHUP;
        if read {
            events |= libc::EPOLLIN;
        }
        if write {
            events |= libc::EPOLLOUT;
        }
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: key,
        };
        // SAFETY: a valid event for the call's duration.
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Descriptors that are ready now; does not wait.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn ready(&self, out: &mut Vec<Fired>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `events` is writable for the length stated.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                0,
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for event in events.iter().take(count as usize) {
            let (bits, key) = (event.events, event.u64);
            let any = |mask: i32| bits & mask as u32 != 0;
            out.push(Fired {
                key,
                readable: any(libc::EPOLLIN | libc::EPOLLRDHUP),
                writable: any(libc::EPOLLOUT),
                hangup: any(libc::EPOLLHUP),
                error: any(libc::EPOLLERR),
            });
        }
        Ok(())
    }
}
