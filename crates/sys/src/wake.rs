//! Sleeping on descriptors, and an eventfd that ends another thread's sleep.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::poll_readable;

/// A nonblocking eventfd.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Creates an eventfd that is not signalled.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> io::Result<Self> {
        Ok(WakeFd(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Its descriptor, for poll(2) by others.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable: ends the current or the next sleep.
    pub fn signal(&self) {
        // A full counter is already signalled.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the signal.
    pub fn clear(&self) {
        // An empty counter is not an error here.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    /// Sleeps until it is signalled, one of `others` is readable, or `timeout` expires.
    pub fn wait(&self, others: &[RawFd], timeout: Option<Duration>) {
        let mut all = others.to_vec();
        all.push(self.descriptor());
        // A signal also ends the sleep.
        let _ = poll_readable(&all, timeout, None, &mut Vec::new());
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of the descriptors is readable or in error, or `timeout` expires. A
/// signal also ends the sleep.
///
/// # Errors
/// EINVAL, ENOMEM.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<()> {
    // A time that does not fit into a Timespec counts as for ever.
    let timeout = Timespec::try_from(timeout).ok();
    let mut entries: Vec<_> = descriptors
        .iter()
        .map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    match poll(&mut entries, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_sleep_ends_with_the_timeout_or_a_signal() {
        let wake = WakeFd::new().unwrap();
        let begin = Instant::now();
        wait_readable(&[wake.as_fd()], Duration::from_millis(3)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(3));
        wake.signal();
        wait_readable(&[wake.as_fd()], Duration::MAX).unwrap();
        wake.clear();
        assert_eq!(rustix::io::read(&wake, &mut [0u8; 8]), Err(Errno::AGAIN));
    }
}
