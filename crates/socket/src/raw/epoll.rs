//! epoll, for the kernel's descriptors among those that are watched.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What became of a descriptor.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Fired(libc::epoll_event);

impl Fired {
    /// What it was entered with.
    pub(crate) fn key(self) -> u64 {
        self.0.u64
    }

    /// EPOLL* bits.
    pub(crate) fn events(self) -> u32 {
        self.0.events
    }
}

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
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK => false,
        // It depends on the device.
        libc::S_IFCHR => {
            let asked = Epoll::new().and_then(|epoll| epoll.add(fd.as_raw_fd(), 0, 0));
            asked.map_err(|error| error.raw_os_error()) != Err(Some(libc::EPERM))
        }
        _ => true,
    }
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

    /// Puts descriptors that are ready now, `most` of them, in place of what is in
    /// `out`; does not wait.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn ready(&self, most: usize, out: &mut Vec<Fired>) -> io::Result<()> {
        let most = i32::try_from(most.max(1)).unwrap_or(i32::MAX);
        out.clear();
        out.reserve(most as usize);
        // SAFETY: a `Fired` is an epoll_event, and `out` has room for `most` of them.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), out.as_mut_ptr().cast(), most, 0) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has written as many, of those that there is room for.
        unsafe { out.set_len(count as usize) };
        Ok(())
    }
}
