//! epoll, for the kernel's descriptors among those that are watched.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What became of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    /// What it was entered with.
    pub(crate) key: u64,
    /// EPOLL* bits.
    pub(crate) events: u32,
}

/// Most descriptors that [`Epoll::ready`] tells at once.
pub(crate) const AT_ONCE: usize = 64;

/// Another descriptor for the same open file.
pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a number that is nobody's is an error.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just returned to us, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// False for files that epoll refuses with EPERM, since they never wait.
pub(crate) fn can_poll(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: all-zero is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a writable stat for the call's duration.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return true;
    }
    !matches!(
        stat.st_mode & libc::S_IFMT,
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK
    )
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

    /// Enters a descriptor for `events` (EPOLL* bits and flags).
    pub(crate) fn add(&self, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, key, events)
    }

    /// Changes what a descriptor is watched for.
    pub(crate) fn modify(&self, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, key, events)
    }

    /// Removes a descriptor.
    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, what: i32, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: key };
        // SAFETY: a valid event for the call's duration.
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Descriptors that are ready now, `most` of them and [`AT_ONCE`]; does not
    /// wait.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn ready(&self, most: usize, out: &mut Vec<Fired>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        // SAFETY: `events` is writable for the length stated.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                most.clamp(1, AT_ONCE) as i32,
                0,
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        out.extend(events.iter().take(count as usize).map(|event| Fired {
            key: event.u64,
            events: event.events,
        }));
        Ok(())
    }
}
