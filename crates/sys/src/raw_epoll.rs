//! Busy polling of an epoll instance (linux/eventpoll.h, Linux 6.9).

use std::io;
use std::os::fd::BorrowedFd;

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

/// Has `epoll_wait` run the driver's poll for up to so many microseconds before
/// it sleeps, `budget` packets at a time, in preference to softirq.
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
