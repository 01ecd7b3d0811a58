//! Options of UDP sockets.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::UdpSocket;

impl UdpSocket {
    /// Makes receiving and sending return EAGAIN instead of waiting.
    ///
    /// # Errors
    /// None; the signature is the standard library's.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Whether receiving and sending return EAGAIN instead of waiting.
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

    /// The bound on waiting, if any.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.read_timeout.get()
    }

    /// Sets how many frames may wait for this socket on each queue, 1 to 65,536; the
    /// driver drops the excess. It corresponds to Linux's SO_RCVBUF, in frames rather
    /// than bytes.
    ///
    /// # Errors
    /// EINVAL out of range.
    pub fn set_receive_limit(&self, frames: u32) -> io::Result<()> {
        if !(1..=65_536).contains(&frames) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.inner.options.limit.store(frames, Ordering::Relaxed);
        let core = self.stack.here()?;
        for queue in &core.receiver.queues {
            core.tables
                .set_limit(queue.shared.queue(), self.inner.id().index(), frames);
        }
        Ok(())
    }

    /// Returns how many frames may wait for this socket on each queue.
    pub fn receive_limit(&self) -> u32 {
        self.inner.limit()
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of outgoing segments.
    ///
    /// # Errors
    /// The kernel socket's errors.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        if let Some(reservation) = &self.inner.reservation {
            reservation.set_traffic_class(tos)?;
        }
        self.inner
            .options
            .traffic_class
            .store(tos, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the type of service or traffic class of outgoing datagrams.
    pub fn tos(&self) -> u8 {
        self.inner.options.traffic_class.load(Ordering::Relaxed)
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6), 1 to 255.
    ///
    /// # Errors
    /// EINVAL for 0.
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        if ttl == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(reservation) = &self.inner.reservation {
            reservation.set_hop_limit(ttl)?;
        }
        self.inner.options.hop_limit.store(ttl, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the time to live or hop limit of outgoing datagrams.
    pub fn ttl(&self) -> u8 {
        self.inner.options.hop_limit.load(Ordering::Relaxed)
    }

    /// The priority ([`UdpSocket::set_priority`]).
    pub fn priority(&self) -> u8 {
        self.inner.options.priority.load(Ordering::Relaxed)
    }

    /// Sets the priority among the stack's sockets, 0 (default) to 6, like Linux's
    /// SO_PRIORITY. `Stack::wait` reports sockets of higher priority first. When frame memory
    /// runs short, datagrams of lower priority are copied out first.
    ///
    /// # Errors
    /// EINVAL over 6.
    pub fn set_priority(&self, priority: u8) -> io::Result<()> {
        if priority > 6 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.inner
            .options
            .priority
            .store(priority, Ordering::Relaxed);
        Ok(())
    }
}
