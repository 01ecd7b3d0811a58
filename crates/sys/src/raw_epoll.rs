//! epoll as a C program calls it, and its busy polling (linux/eventpoll.h, Linux 6.9).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::ioctl::{Setter, ioctl, opcode};

/// `struct epoll_params`.
#[repr(C)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

const EPIOCSPARAMS: rustix::ioctl::Opcode = opcode::write::<EpollParams>(0x8a, 1);

/// Makes `epoll_wait` run the driver's poll for up to `microseconds` before it sleeps,
/// `budget` packets at a time, in preference to softirq.
///
/// # Errors
/// ENOTTY before Linux 6.9; EPERM for budgets over 64 without CAP_NET_ADMIN.
pub fn busy_poll(epoll: BorrowedFd<'_>, microseconds: u32, budget: u16) -> io::Result<()> {
    let params = EpollParams {
        busy_poll_usecs: microseconds,
        busy_poll_budget: budget,
        prefer_busy_poll: 1,
        pad: 0,
    };
    // SAFETY: the request reads one struct epoll_params.
    unsafe { ioctl(epoll, Setter::<EPIOCSPARAMS, EpollParams>::new(params))? };
    Ok(())
}

/// Limit of events per wait.
const EVENTS: usize = 64;

/// A level-triggered epoll instance that uses the C library's calls, which a preloaded
/// library may intercept.
#[derive(Debug)]
pub struct Epoll {
    epoll: OwnedFd,
}

impl Epoll {
    /// A new instance.
    ///
    /// # Errors
    /// As epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above created it, and nothing else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        Ok(Epoll { epoll })
    }

    /// Enables busy polling in waits: see [`busy_poll`].
    ///
    /// # Errors
    /// As [`busy_poll`].
    pub fn busy_poll(&self, microseconds: u32, budget: u16) -> io::Result<()> {
        busy_poll(self.epoll.as_fd(), microseconds, budget)
    }

    /// Makes waits report `number` while `descriptor` has input.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add(&self, descriptor: impl AsFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        let (epoll, descriptor) = (self.epoll.as_raw_fd(), descriptor.as_fd().as_raw_fd());
        // SAFETY: `event` is a local that outlives the call.
        match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until a descriptor has input, at most `timeout`, rounded down to
    /// milliseconds. `ready` then has up to 64 numbers; none after the timeout or a
    /// signal.
    ///
    /// # Errors
    /// As epoll_wait(2), EINTR excepted.
    pub fn wait(&self, timeout: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let timeout = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: `events` has room for as many as the call is passed.
        let count =
            unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as libc::c_int, timeout) };
        let Ok(count) = usize::try_from(count) else {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            };
        };
        ready.extend(events.iter().take(count).map(|event| event.u64));
        Ok(())
    }
}
