//! A descriptor that this process was started with.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first descriptor that systemd passes (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the first descriptor that systemd has passed, and closes it on exec. To be asked
/// before this process opens anything, and only if it was passed one.
///
/// # Errors
/// EBADF where there is none; NotFound the second time.
pub fn passed() -> io::Result<OwnedFd> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the number is one that systemd passed to this very process, which nothing
    // here has opened or closed, and it is taken once. One that is not open is forgotten.
    let descriptor = unsafe { OwnedFd::from_raw_fd(FIRST) };
    match fcntl_setfd(&descriptor, FdFlags::CLOEXEC) {
        Ok(()) => Ok(descriptor),
        Err(error) => {
            std::mem::forget(descriptor);
            Err(error.into())
        }
    }
}
