//! Decides which clients may join, and in which mode.

use std::time::Duration;

use tidewall_device::demux::layout::APPLICATIONS;
use zerocopy::FromZeros;

use super::refusal::refused;
use super::{Application, Client, ClientId, Domain, JOIN_WITHIN, Manager, Refusal, Reply, State};
use crate::connection::Credentials;
use crate::daemon::journal::{ACTIVE, Entry};
use crate::daemon::{Device, Trust};
use crate::protocol::{Answer, JOIN_PRIVATE, JOIN_WITHOUT_QUEUES, Join, Joined, Present};

/// Application numbers withheld from clients that may join only because every user may.
const APPLICATIONS_KEPT: usize = 16;

/// A client's permissions.
struct Standing {
    /// May have the device's queues.
    is_trusted: bool,
    /// Permitted by its user's name, or its unit's or program's, and not as any user is.
    is_named: bool,
}

impl Manager {
    pub(super) fn domain_of(&self, client: ClientId) -> Option<Domain> {
        let client = self.clients.get(&client)?;
        Some(match client.unit {
            Some(unit) => Domain::Unit(unit),
            None => Domain::User(client.credentials.uid),
        })
    }

    /// Permissions of a client as a process of a unit, or of a program.
    fn group_trust(&self, client: ClientId) -> Option<Trust> {
        let unit = self.clients.get(&client)?.unit;
        let of_unit = unit.and_then(|unit| Some(self.limits.units.get(unit)?.1));
        of_unit.or_else(|| self.program_trust(client))
    }

    /// Permissions of a client as a process of that program.
    fn program_trust(&self, client: ClientId) -> Option<Trust> {
        let of_program = self.clients.get(&client)?.of_program;
        self.limits.program.filter(|_| of_program)
    }

    /// A client's permissions.
    ///
    /// # Errors
    /// EPERM if it has none.
    fn standing(&self, client: ClientId, uid: u32) -> Result<Standing, Refusal> {
        let by_group = self.group_trust(client);
        let is_trusted = match by_group {
            Some(trust) => trust == Trust::Direct,
            // A program's manager serves no other client, not even user 0.
            None if self.limits.program.is_some() => false,
            None => {
                let client = self.clients.get(&client);
                client.is_some_and(|client| client.may_send_anything)
                    || self.limits.trusted.contains(&uid)
            }
        };
        let is_named = is_trusted || by_group.is_some() || self.limits.private.names(uid);
        if !is_named && !self.limits.private.contains(uid) {
            let text = self.not_trusted(uid);
            return refused(libc::EPERM, text);
        }
        Ok(Standing {
            is_trusted,
            is_named,
        })
    }

    fn not_trusted(&self, uid: u32) -> String {
        match self.limits.program {
            None => format!(
                "user {uid} may not join: tidewalld --private {uid}, or --trust {uid} for a \
                 queue of the device, by which any frame can be sent{}",
                match uid {
                    0 => "; user 0 needs neither with CAP_NET_RAW in the daemon's user namespace",
                    _ => "",
                }
            ),
            Some(_) => format!(
                "user {uid} may not join: this manager is for the program that `tidewall run` \
                 has started, and its descendants"
            ),
        }
    }

    /// Admits a client that has connected, or forgets it. Places are limited only for
    /// clients that may join because every user may. So they are free for user 0, for
    /// named clients, and for users who have an application.
    ///
    /// # Errors
    /// The answer to send before closing its connection.
    pub fn admit(&mut self, client: ClientId, now: Duration) -> Result<(), Refusal> {
        let is_stranger = self.is_stranger(client);
        match is_stranger {
            Ok(is_stranger) => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.is_stranger = is_stranger;
                    // User 0 may watch for as long as it likes.
                    let limited = client.credentials.uid != 0;
                    client.until = limited.then_some(now + JOIN_WITHIN[0]);
                }
                Ok(())
            }
            Err(refusal) => {
                self.clients.remove(&client);
                self.counters.refused += 1;
                Err(refusal)
            }
        }
    }

    fn is_stranger(&self, client: ClientId) -> Result<bool, Refusal> {
        let uid = self.newcomer(client)?.uid;
        let domain = self.domain_of(client);
        let is_own = |of: &Application| of.entry.uid == uid || Some(of.domain) == domain;
        if uid == 0 || self.applications.iter().flatten().any(is_own) {
            return Ok(false);
        }
        if self.standing(client, uid)?.is_named {
            return Ok(false);
        }
        let strangers = self.clients.values().filter(|other| other.is_stranger);
        match strangers.count() < self.limits.clients {
            true => Ok(true),
            false => refused(libc::EMFILE, "too many connections to the manager"),
        }
    }

    /// Gives a client that asks to join the time for that.
    pub(super) fn asks_to_join(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client)
            && !std::mem::replace(&mut client.has_asked, true)
            && let Some(until) = &mut client.until
        {
            *until += JOIN_WITHIN[1] - JOIN_WITHIN[0];
        }
    }

    pub(super) fn join<D: Device>(
        &mut self,
        client: ClientId,
        join: &Join,
        now: Duration,
        device: &mut D,
    ) -> Result<Reply<D::Parts>, Refusal> {
        let Credentials { uid, pid } = self.newcomer(client)?;
        if join.flags & !(JOIN_WITHOUT_QUEUES | JOIN_PRIVATE) != 0 {
            return refused(libc::EINVAL, "flags that this manager does not know");
        }
        let standing = self.standing(client, uid)?;
        self.asks_to_join(client);
        let private = !standing.is_trusted || join.flags & JOIN_PRIVATE != 0;
        let domain = self.domain_of(client).unwrap_or(Domain::User(uid));
        let handed = self.check_quotas(domain, join, device)?;
        let free = self.applications.iter().filter(|of| of.is_none()).count();
        let kept = match standing.is_named {
            true => 0,
            false => APPLICATIONS_KEPT,
        };
        if free <= kept {
            let text = match free {
                0 => "the driver's table of applications is full",
                _ => "the numbers of applications that are left are for user 0 and named users",
            };
            return refused(libc::ENOBUFS, text);
        }
        let token = device.random()?;
        let is_free = |number| matches!(self.applications.get(usize::from(number)), Some(None));
        let number = device.take_number(&is_free)?;
        // From here on it is cleared if anything fails.
        self.put(
            number,
            Application {
                entry: Entry {
                    private: private.into(),
                    handed,
                    ..Entry::incomplete(uid, pid, token)
                },
                domain,
                state: State::Clearing,
            },
        );
        match self.make(number, join, device) {
            Ok((joined, parts)) => {
                self.set_application(client, number);
                self.counters.joined += 1;
                Ok(Reply::Joined(joined, parts))
            }
            Err(error) => {
                self.clear(number, now, device);
                Err(error)
            }
        }
    }

    /// KiB to be handed over to a domain's next application, if the quotas permit it.
    fn check_quotas<D: Device>(
        &mut self,
        domain: Domain,
        join: &Join,
        device: &mut D,
    ) -> Result<u32, Refusal> {
        let kib = |bytes: u64| u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let usual = kib(device.bytes(&Join::new_zeroed())?);
        let wanted = kib(device.bytes(join)?);
        let most_applications = self.limits.applications_of_domain;
        let most = match self.limits.bytes_of_domain {
            Some(bytes) => u64::from(kib(bytes)),
            None => u64::from(usual) * most_applications as u64,
        };
        let present = self.applications.iter().flatten();
        let present = present.filter(|application| application.domain == domain);
        let (count, held) = present.fold((0, 0), |(count, held), of| {
            (count + 1, held + u64::from(of.entry.handed))
        });
        // Objects that nothing refers to no longer count.
        let all = self.departed.len() > APPLICATIONS;
        self.departed.retain(|departed| {
            let is_looked_at = all || departed.domain == domain;
            !is_looked_at || device.is_held(&departed.token).unwrap_or(true)
        });
        let departed = self.departed.iter().filter(|of| of.domain == domain);
        let (departed, left) = departed.fold((0, 0), |(count, held), of| {
            (count + 1, held + u64::from(of.handed))
        });
        let wanted_in_all = held + u64::from(wanted);
        if count >= most_applications {
            return refused(libc::ENOBUFS, "too many applications of this user or unit");
        }
        if wanted_in_all > most {
            let text = format!(
                "too much memory of this user or unit: {wanted_in_all} KiB, and {most} it may have"
            );
            return refused(libc::ENOBUFS, text);
        }
        if count + departed >= most_applications || wanted_in_all + left > most {
            let text = "what earlier applications of this user or unit were handed is in use";
            return refused(libc::EBUSY, text);
        }
        Ok(wanted)
    }

    fn make<D: Device>(
        &mut self,
        number: u16,
        join: &Join,
        device: &mut D,
    ) -> Result<(Joined, D::Parts), Refusal> {
        let Some(application) = self.application_mut(number) else {
            return refused(libc::EIO, "no application");
        };
        let key: [u8; 16] = device.random()?;
        device.record(number, &application.entry)?;
        let (queues, parts) = device.make(number, join, application.entry.private != 0)?;
        application.entry.queues = queues;
        application.entry.state = ACTIVE;
        device.record(number, &application.entry)?;
        let joined = Joined {
            hash_key: zerocopy::transmute!(key),
            ..Self::describe(number, &application.entry, device)
        };
        Ok((joined, parts))
    }

    fn describe<D: Device>(number: u16, entry: &Entry, device: &D) -> Joined {
        Joined {
            token: entry.token,
            leases: entry.leases,
            application: number.into(),
            domain: entry.uid,
            queues: entry.queues,
            private: entry.private as u8,
            ..device.describe()
        }
    }

    pub(super) fn present<D: Device>(
        &mut self,
        client: ClientId,
        present: &Present,
        now: Duration,
        device: &mut D,
    ) -> Result<Answer, Refusal> {
        let Credentials { uid, .. } = self.newcomer(client)?;
        let standing = self.standing(client, uid);
        let domain = self.domain_of(client).unwrap_or(Domain::User(uid));
        let applications = (0..).zip(&mut self.applications);
        let found = applications
            .filter_map(|(number, application)| Some((number, application.as_mut()?)))
            .find(|(_, application)| {
                application.state == State::Awaited
                    && application.entry.uid == uid
                    && application.entry.token == present.token
            });
        let Some((number, application)) = found else {
            return refused(libc::ENOENT, "no such application is left: join again");
        };
        // This run may trust fewer users than the one before.
        let is_direct = application.entry.private == 0;
        if !standing.is_ok_and(|standing| standing.is_trusted || !is_direct) {
            application.state = State::Clearing;
            self.clear(number, now, device);
            return refused(libc::EPERM, self.not_trusted(uid));
        }
        application.state = State::Live;
        application.domain = domain;
        let mut joined = Self::describe(number, &application.entry, device);
        joined.queues = 0;
        self.set_application(client, number);
        self.counters.presented += 1;
        Ok(Answer::Joined(joined))
    }

    /// Credentials of a client that has not joined yet.
    fn newcomer(&self, client: ClientId) -> Result<Credentials, Refusal> {
        match self.clients.get(&client) {
            Some(Client {
                credentials,
                application: None,
                ..
            }) => Ok(*credentials),
            _ => refused(libc::EISCONN, "it has joined"),
        }
    }
}
