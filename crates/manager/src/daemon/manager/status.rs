//! What a manager says of its applications and its device, and to whom.

use super::leases::count;
use super::refusal::refused;
use super::{Application, ClientId, Manager, Refusal, State};
use crate::daemon::Device;
use crate::protocol::{
    Answer, ApplicationNumber, Empty, QueueNumber, STATUS_AWAITED, STATUS_CLEARING, STATUS_LIVE,
    Status,
};

impl Manager {
    /// All applications.
    pub fn statuses(&self) -> impl Iterator<Item = Status> {
        let applications = (0..).zip(&self.applications);
        applications
            .filter_map(|(number, application)| Some(self.status(number, application.as_ref()?)))
    }

    fn status(&self, number: u16, application: &Application) -> Status {
        let holders = self.ports.holders();
        let holders = holders.filter(|(_, held)| held.application == number);
        let entry = &application.entry;
        Status {
            application: number.into(),
            domain: entry.uid,
            process: entry.pid,
            state: match application.state {
                State::Live => STATUS_LIVE,
                State::Awaited => STATUS_AWAITED,
                State::Clearing => STATUS_CLEARING,
            },
            queues: entry.queues,
            ports: self.ports.count_of(number) as u32,
            holders: holders.count() as u32,
            blocks: count(&entry.leases) as u32,
        }
    }

    pub(super) fn get_status(
        &self,
        client: ClientId,
        from: &ApplicationNumber,
    ) -> Result<Answer, Refusal> {
        let uid = self.user(client)?;
        let may_know = |status: &Status| {
            status.application >= from.application && (uid == 0 || status.domain == uid)
        };
        let found = self.statuses().find(may_know);
        Ok(found.map_or(Answer::Done(Empty {}), Answer::Status))
    }

    pub(super) fn get_queue_counters<D: Device>(
        &self,
        client: ClientId,
        of: &QueueNumber,
        device: &D,
    ) -> Result<Answer, Refusal> {
        if self.user(client)? != 0 {
            return refused(libc::EPERM, "only user 0 may know of all that comes");
        }
        match device.counters(of.queue) {
            Some(counters) => Ok(Answer::QueueCounters(counters)),
            None => refused(libc::EINVAL, "the device has no such queue"),
        }
    }

    fn user(&self, client: ClientId) -> Result<u32, Refusal> {
        match self.credentials_of(client) {
            Some(credentials) => Ok(credentials.uid),
            None => refused(libc::ENOTCONN, "no such client"),
        }
    }
}
