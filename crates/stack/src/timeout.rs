//! Bounds on how long calls wait (SO_RCVTIMEO, SO_SNDTIMEO).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Such a bound, which several threads read and change: nanoseconds, 0 for none.
#[derive(Debug, Default)]
pub struct Timeout(AtomicU64);

impl Timeout {
    /// The bound, if any.
    pub fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Changes it.
    ///
    /// # Errors
    /// EINVAL for a zero duration.
    pub fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanoseconds = match timeout {
            None => 0,
            Some(Duration::ZERO) => return Err(io::ErrorKind::InvalidInput.into()),
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.0.store(nanoseconds, Ordering::Relaxed);
        Ok(())
    }
}
