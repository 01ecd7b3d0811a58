//! Who looks at a manager without being an application of it: `tidewall top`.

use std::io;
use std::path::Path;

use crate::client::session::Session;
use crate::protocol::{
    Answer, ApplicationNumber, Counters, Empty, QueueCounters, QueueNumber, Request, Status,
};

/// A connection to a manager, by which nothing changes.
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

    /// The applications that this user may know of: all for user 0, else the user's own.
    ///
    /// # Errors
    /// What the connection reports.
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

    /// What the driver program counts on a queue.
    ///
    /// # Errors
    /// PermissionDenied to others than user 0; InvalidInput where there is no such queue.
    pub fn queue(&self, queue: u32) -> io::Result<QueueCounters> {
        match self.ask(&Request::GetQueueCounters(QueueNumber { queue }))? {
            Answer::QueueCounters(counters) => Ok(counters),
            _ => Err(unexpected()),
        }
    }

    /// What it counts on each queue of the device.
    ///
    /// # Errors
    /// As [`View::queue`].
    pub fn queues(&self) -> io::Result<Vec<QueueCounters>> {
        let first = self.queue(0)?;
        let others = (1..first.queues).map(|queue| self.queue(queue));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// What the manager counts.
    ///
    /// # Errors
    /// What the connection reports.
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
