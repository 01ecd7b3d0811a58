//! A descriptor that this process was started with.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The first descriptor that systemd passes (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the first descriptor that systemd passed, and sets close-on-exec. Must be called
/// before this process opens anything, and only if systemd passed a descriptor.
///
/// # Errors
/// EBADF if it is not open; NotFound on the second call.
pub fn passed() -> io::Result<OwnedFd> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: systemd passed this descriptor to this very process; nothing here has
    // opened or closed it, and it is taken once. A descriptor that is not open is
    // forgotten.
    let descriptor = unsafe { OwnedFd::from_raw_fd(FIRST) };
    match fcntl_setfd(&descriptor, FdFlags::CLOEXEC) {
        Ok(()) => Ok(descriptor),
        Err(error) => {
            std::mem::forget(descriptor);
            Err(error.into())
        }
    }
}
