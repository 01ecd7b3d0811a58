//! Read access to a manager without being an application of it, for `tidewall top`.

use std::io;
use std::path::Path;

use crate::client::session::Session;
use crate::protocol::{
    Answer, ApplicationNumber, Counters, Empty, QueueCounters, QueueNumber, Request, Status,
};

/// A read-only connection to a manager.
#[derive(Debug)]
pub struct View {
    session: Session,
}

impl View {
    /// Connects to the manager at a path.
    ///
    /// # Errors
    /// NotFound, ConnectionRefused where no manager listens.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let session = Session::connect(path)?;
        Ok(View { session })
    }

    /// The applications that this user may see: all for user 0, else the user's own.
    ///
    /// # Errors
    /// Those the connection reports.
    pub fn applications(&self) -> io::Result<Vec<Status>> {
        let mut all = Vec::new();
        let mut application = 0;
        loop {
            match self.ask(&Request::GetStatus(ApplicationNumber { application })) {
                Ok(Answer::Status(status)) if status.application >= application => {
                    application = status.application.saturating_add(1);
                    all.push(status);
                }
                Ok(Answer::Done(_)) => return Ok(all),
                Ok(_) => return Err(unexpected()),
                // A user who may not join, and has none.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }

    /// The driver program's counters of a queue.
    ///
    /// # Errors
    /// PermissionDenied to users other than 0; InvalidInput if there is no such queue.
    pub fn queue(&self, queue: u32) -> io::Result<QueueCounters> {
        match self.ask(&Request::GetQueueCounters(QueueNumber { queue }))? {
            Answer::QueueCounters(counters) => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    /// The driver program's counters of each queue of the device.
    ///
    /// # Errors
    /// As [`View::queue`].
    pub fn queues(&self) -> io::Result<Vec<QueueCounters>> {
        let first = self.queue(0)?;
        let others = (1..first.queues).map(|queue| self.queue(queue));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// The manager's counters.
    ///
    /// # Errors
    /// Those the connection reports.
    pub fn counters(&self) -> io::Result<Counters> {
        match self.ask(&Request::GetCounters(Empty {}))? {
            Answer::Counters(counters) => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, request: &Request) -> io::Result<Answer> {
        self.session.ask(request, &[]).map(|(answer, _)| answer)
    }
}

fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the manager answered something else",
    )
}
