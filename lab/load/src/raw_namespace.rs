//! A network namespace for one thread.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling thread into a new, empty network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only the calling thread changes its
    // namespace.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}
