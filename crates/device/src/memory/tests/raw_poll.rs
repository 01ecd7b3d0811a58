//! `poll(2)`, as a program that sleeps on a queue calls it.

use std::os::fd::RawFd;

/// True when the descriptor is readable now.
pub(super) fn readable(descriptor: RawFd) -> bool {
    let mut wait = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd; a time limit of zero never waits.
    unsafe { libc::poll(&mut wait, 1, 0) == 1 }
}
