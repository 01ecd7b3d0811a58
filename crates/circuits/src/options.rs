//! Options of circuits.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::AtmSocket;

impl AtmSocket {
    /// Makes receiving and sending return EAGAIN when they would block.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Reports whether receiving and sending return EAGAIN when they would block.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Bounds how long receiving waits (SO_RCVTIMEO).
    ///
    /// # Errors
    /// EINVAL for a zero duration.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(timeout)
    }

    /// Returns the bound on waiting, if any.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.read_timeout.get()
    }

    /// Sets how many frames may wait for this circuit on each queue, 1 to 65,536; the
    /// driver drops the excess.
    ///
    /// # Errors
    /// EINVAL out of range.
    pub fn set_receive_limit(&self, frames: u32) -> io::Result<()> {
        if !(1..=65_536).contains(&frames) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.inner.limit.store(frames, Ordering::Relaxed);
        let core = self.stack.here()?;
        for queue in &core.receiver.queues {
            let number = self.inner.id().index();
            core.tables.set_limit(queue.shared.queue(), number, frames);
        }
        Ok(())
    }

    /// Has what is sent dropped first where there is congestion (SO_SETCLP, I.361's cell
    /// loss priority).
    pub fn set_low_priority(&self, low: bool) {
        self.inner.low_priority.store(low, Ordering::Relaxed);
    }
}
