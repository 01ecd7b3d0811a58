//! Reports when bytes of a stream left, were acknowledged and arrived, and when their
//! memory is free: Linux's `SO_TIMESTAMPING`, `MSG_ZEROCOPY` and error queue
//! (`MSG_ERRQUEUE`).

use std::io::{self, IoSlice};
use std::time::Instant;

use tidewall_protocol::tcp::{Connection, Notification as Reported, Timestamping};

use super::TcpStream;

/// An out-of-band report of a stream (an entry of the error queue on Linux): a time that
/// [`Timestamping`] requests, or a completed call of [`TcpStream::write_zero_copy`].
pub type Notification = Reported<Instant>;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl TcpStream {
    /// Sets which times are reported (SO_TIMESTAMPING): of writes by
    /// [`TcpStream::take_notifications`], of reads by [`TcpStream::read_timestamp`]. A
    /// write is one call: in `write_all`, each iteration is one.
    ///
    /// # Errors
    /// `Unsupported` for a kernel connection.
    pub fn set_timestamping(&self, timestamping: Timestamping) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_timestamping(timestamping),
            |_| unsupported(),
        )
    }

    /// See [`TcpStream::set_timestamping`].
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn timestamping(&self) -> io::Result<Timestamping> {
        self.ask(Connection::timestamping, |_| unsupported())
    }

    /// Sets whether completions of [`TcpStream::write_zero_copy`] are reported
    /// (SO_ZEROCOPY).
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn set_zero_copy(&self, on: bool) -> io::Result<()> {
        self.set(
            |state, _| state.connection.set_zero_copy(on),
            |_| unsupported(),
        )
    }

    /// Writes as MSG_ZEROCOPY does: with [`TcpStream::set_zero_copy`] a
    /// [`Notification::Free`] follows. This stack copies into its send buffer all the
    /// same, and reports so at once. The call serves programs that expect these reports,
    /// and gains nothing over an ordinary write.
    ///
    /// # Errors
    /// Those of [`std::io::Write::write`] of this type, and of
    /// [`TcpStream::set_timestamping`]. A call that fails has no number.
    pub fn write_zero_copy(&self, buffer: &[u8]) -> io::Result<usize> {
        match self.kernels() {
            Some(_) => unsupported(),
            None => self.send_pieces(&[IoSlice::new(buffer)], libc::MSG_ZEROCOPY),
        }
    }

    /// Moves notifications to the end of `into`, oldest first, and returns their number.
    /// Never waits: a [`Selector`](tidewall_readiness::Selector) reports
    /// [`Event::error`](tidewall_readiness::Event::error) while there are some.
    ///
    /// 1024 are kept. Times beyond that are lost and counted
    /// ([`TcpStream::notifications_lost`]); free memory is always reported.
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn take_notifications(&self, into: &mut Vec<Notification>) -> io::Result<usize> {
        let before = into.len();
        while let Some(notification) = self.take_notification()? {
            into.push(notification);
        }
        Ok(into.len() - before)
    }

    /// Takes the oldest notification that [`TcpStream::take_notifications`] would return.
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn take_notification(&self) -> io::Result<Option<Notification>> {
        let Some(connection) = self.own_connection() else {
            return unsupported();
        };
        let core = self.stack.here()?;
        core.helper.application_is_here();
        connection.process(core);
        let reported = connection.lock().connection.take_notification();
        Ok(reported.map(|reported| reported.by(|at| core.clock.instant(at))))
    }

    /// Returns how many requested times were not reported: too many waited, or a write
    /// had left before it was complete.
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn notifications_lost(&self) -> io::Result<u32> {
        self.ask(Connection::notifications_lost, |_| unsupported())
    }

    /// Returns when the last byte that was read had arrived, in order, at this stack. It
    /// requires [`Timestamping::received`], and that the byte arrived after that was set.
    /// The time is when the protocol ran on it, which is lazy: in the thread that reads
    /// or waits (docs/architecture.md).
    ///
    /// # Errors
    /// As [`TcpStream::set_timestamping`].
    pub fn read_timestamp(&self) -> io::Result<Option<Instant>> {
        let at = self.ask(Connection::read_timestamp, |_| unsupported())?;
        Ok(at.map(|at| self.stack.core().clock.instant(at)))
    }
}
