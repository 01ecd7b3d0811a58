//! Facts about the process at the other end of a Unix socket that its number alone does not
//! prove: a number may be another process's by the time that it is looked up.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tidewall_sys::peer_process;

/// What `look` says of the process that connected, if that lives afterwards and so had its
/// number until then. Before Linux 6.5 its number is believed.
pub(super) fn looked_up<T>(connection: impl AsFd, look: impl FnOnce() -> Option<T>) -> Option<T> {
    let held = match peer_process(connection) {
        Ok(held) => Some(held),
        Err(error) if error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => None,
        // It is gone.
        Err(_) => return None,
    };
    let found = look()?;
    held.is_none_or(lives).then_some(found)
}

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Of a pidfd, which is readable when its process has ended.
fn lives(process: impl AsFd) -> bool {
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut ended, Some(&AT_ONCE)) == Ok(0)
}
