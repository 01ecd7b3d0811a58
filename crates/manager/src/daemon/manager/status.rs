//! A manager's reports about its applications and its device, and who may read them.

use super::leases::count;
use super::refusal::refused;
use super::{Application, ClientId, Domain, Manager, Refusal, State};
use crate::daemon::{Device, Payer, Whom};
use crate::protocol::{
    Answer, ApplicationNumber, Empty, QueueNumber, STATUS_AWAITED, STATUS_CLEARING, STATUS_LIVE,
    Status,
};

impl Manager {
    /// All applications.
    pub fn statuses<D: Device>(&self, device: &D) -> impl Iterator<Item = Status> {
        let applications = (0..).zip(&self.applications);
        applications.filter_map(|(number, application)| {
            let charged = device.charged(number).as_nanos();
            Some(Status {
                charged: u64::try_from(charged).unwrap_or(u64::MAX),
                ..self.status(number, application.as_ref()?)
            })
        })
    }

    /// Applications that pay for polls.
    pub fn payers(&self) -> Vec<Payer> {
        let applications = (0..).zip(&self.applications);
        let payers = applications.filter_map(|(number, application)| {
            let application = application.as_ref()?;
            (application.entry.private != 0).then(|| Payer {
                application: number,
                domain: application.domain.number(),
                weight: self.weight_of(application.domain),
                process: application.entry.pid,
            })
        });
        payers.collect()
    }

    fn weight_of(&self, domain: Domain) -> u32 {
        let is_of = |(whom, _): &&(Whom, u32)| match (whom, domain) {
            (Whom::User(user), Domain::User(of)) => *user == of,
            (Whom::Unit(name), Domain::Unit(of)) => {
                let unit = self.limits.units.get(of);
                unit.is_some_and(|(unit, _)| unit == name)
            }
            _ => false,
        };
        self.limits.weights.iter().find(is_of).map_or(1, |of| of.1)
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
            weight: self.weight_of(application.domain),
            reserved: 0,
            charged: 0,
        }
    }

    pub(super) fn get_status<D: Device>(
        &self,
        client: ClientId,
        from: &ApplicationNumber,
        device: &D,
    ) -> Result<Answer, Refusal> {
        let uid = self.user(client)?;
        let may_know = |status: &Status| {
            status.application >= from.application && (uid == 0 || status.domain == uid)
        };
        let found = self.statuses(device).find(may_know);
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
