//! Questions and answers in turn, on a connection that one thread has to itself.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use super::link::{gone, is_gone, unexpected};
use crate::connection::{Connection, Received};
use crate::protocol::{Answer, Request, header};

/// A connection on which each answer is awaited for at most
/// [`ANSWER_WITHIN`](crate::connection::ANSWER_WITHIN).
#[derive(Debug)]
pub(crate) struct Session {
    connection: Arc<Connection>,
    next: Cell<u32>,
    /// The last unsolicited report of whether this application polls the device.
    lent: Cell<Option<bool>>,
}

impl Session {
    /// # Errors
    /// NotFound, ConnectionRefused where no manager listens; TimedOut where its queue of
    /// connections stays full.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        Ok(Session {
            connection: Arc::new(Connection::connect(path).map_err(timed_out)?),
            next: Cell::new(1),
            lent: Cell::new(None),
        })
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The last unsolicited report of whether this application polls the device.
    pub(super) fn lent(&self) -> Option<bool> {
        self.lent.get()
    }

    /// # Errors
    /// TimedOut; what the kernel reports.
    pub(super) fn receive(&self) -> io::Result<Received> {
        self.connection
            .receive()
            .map_err(timed_out)?
            .ok_or_else(gone)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The manager's error; TimedOut, ConnectionReset.
    pub(crate) fn ask(
        &self,
        request: &Request,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Received)> {
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        let sent = self.connection.request(request, id, beside);
        sent.map_err(timed_out)?;
        loop {
            let received = self.receive()?;
            // A refused connection is answered without a question.
            if header(&received.bytes).is_some_and(|header| ![id, 0].contains(&header.id)) {
                continue;
            }
            match Answer::parse(&received.bytes) {
                Ok((_, Answer::Polling(polling))) => self.lent.set(Some(polling.lent != 0)),
                Ok((_, Answer::Error(failure))) => return Err((&failure).into()),
                Ok((_, answer)) => return Ok((answer, received)),
                Err(_) => return Err(unexpected()),
            }
        }
    }

    /// As [`Session::ask`], but a refusal is not an error.
    ///
    /// # Errors
    /// TimedOut, ConnectionReset.
    pub(super) fn ask_again(&self, request: &Request, beside: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.ask(request, beside) {
            Err(error) if is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Converts a socket's time-out, which the kernel reports as EAGAIN.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
