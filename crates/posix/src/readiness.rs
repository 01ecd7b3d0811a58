//! `poll(2)` and `epoll(7)`.

use std::time::Duration;

use tidewall::descriptor::Flags;
use tidewall::readiness::{EpollEvent, Events, Operation, PollFd};

use crate::{Errno, Posix, Result, errno};

/// Converts a timeout in milliseconds: negative waits forever.
fn timeout(milliseconds: i32) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

impl Posix {
    /// `poll(2)`: returns how many descriptors have something in `revents`.
    ///
    /// # Errors
    /// EINVAL for a list longer than the descriptor limit, EINTR.
    pub fn poll(&self, list: &mut [PollFd], milliseconds: i32) -> Result<usize> {
        let timeout = timeout(milliseconds);
        self.descriptors.poll(list, timeout).map_err(errno)
    }

    /// `epoll_create1(2)`.
    ///
    /// # Errors
    /// EINVAL for a flag other than EPOLL_CLOEXEC; EMFILE, ENOMEM.
    pub fn epoll_create1(&self, flags: i32) -> Result<i32> {
        let flags = match flags {
            0 => Flags::NONE,
            libc::EPOLL_CLOEXEC => Flags::CLOEXEC,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let fd = self.descriptors.epoll_create1(flags).map_err(errno)?;
        self.renumber(fd)
    }

    /// `epoll_ctl(2)`; `event` is EPOLL… bits and the caller's data.
    ///
    /// # Errors
    /// EINVAL for another operation; as [`tidewall::readiness::Descriptors::epoll_ctl`].
    pub fn epoll_ctl(
        &self,
        set: i32,
        operation: i32,
        fd: i32,
        event: Option<(u32, u64)>,
    ) -> Result<()> {
        let operation = match operation {
            libc::EPOLL_CTL_ADD => Operation::Add,
            libc::EPOLL_CTL_MOD => Operation::Modify,
            libc::EPOLL_CTL_DEL => Operation::Delete,
            _ => {
                self.file(set)?;
                return Err(Errno(libc::EINVAL));
            }
        };
        let event = event.map(|(events, data)| EpollEvent {
            events: Events::from_bits(events),
            data,
        });
        self.descriptors
            .epoll_ctl(set, operation, fd, event)
            .map_err(errno)
    }

    /// `epoll_wait(2)`: returns the EPOLL… bits and the caller's data of each ready
    /// descriptor, at most `limit`.
    ///
    /// # Errors
    /// EINVAL for a limit of zero or a descriptor that is not an epoll set, EINTR.
    pub fn epoll_wait(&self, set: i32, limit: usize, milliseconds: i32) -> Result<Vec<(u32, u64)>> {
        /// Most events that one call reports; the caller calls again for more.
        const MOST: usize = 4096;
        let mut events = vec![EpollEvent::default(); limit.min(MOST)];
        let count = self
            .descriptors
            .epoll_wait(set, &mut events, timeout(milliseconds))
            .map_err(errno)?;
        events.truncate(count);
        let bits = |event: EpollEvent| (event.events.bits(), event.data);
        Ok(events.into_iter().map(bits).collect())
    }
}
