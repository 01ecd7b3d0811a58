//! The manager's decisions, without I/O.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tidewall_device::demux::layout::{APPLICATIONS, Protocol};
use tidewall_wire::atm::Circuit;

mod holders;
mod joining;
mod leases;
mod refusal;
mod status;

pub use refusal::Refusal;

use leases::{BLOCKS, contains, count};
pub(in crate::daemon) use refusal::refused;

use super::circuits::{AtmConfig, CallNotice, Circuits};
use super::foreign::ForeignFd;
use super::journal::{ACTIVE, Entry, FREE, INCOMPLETE};
use super::ports::{HolderFacts, PortKey, Ports};
use super::unit::UnitName;
use super::{Device, Limits, PRESENT_WITHIN};
use crate::connection::Credentials;
use crate::protocol::{Answer, AtmAttached, Counters, Failure, Joined, Request, header};

/// How soon a step that failed is retried.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How long a client has to send its Join, and to join after it has sent one.
const JOIN_WITHIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// The longest part of the presentation time that one turn of the loop uses up. A loop
/// that was delayed for longer has not read from any client meanwhile.
const TURN_MOST: Duration = Duration::from_millis(200);
/// While clients' messages are unread the presentation time continues, up to this many
/// times its length.
const HEARD_WITHIN: u32 = 4;

/// A client's connection, numbered by its server; never reused.
pub type ClientId = u64;

/// The state that an earlier run left.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Journal entries, by application.
    pub entries: Vec<Entry>,
    /// Ports in the driver program's tables, each with its application.
    pub ports: Vec<(PortKey, u16)>,
    /// Circuits, each with its application.
    pub circuits: Vec<(Circuit, u16)>,
}

/// The reply to a client.
#[derive(Debug)]
pub enum Reply<P> {
    /// One message, and its descriptors.
    Answer(Answer, Vec<OwnedFd>),
    /// It has joined: the message, and what goes beside it and after it.
    Joined(Joined, P),
    /// It has circuits: the message, with the connection of its notices beside it.
    Attached(AtmAttached),
    /// It has left: one message, after which its connection must be closed.
    Left,
}

/// The state of a manager. Time is that of the caller's clock.
#[derive(Debug)]
pub struct Manager {
    limits: Limits,
    clients: HashMap<ClientId, Client>,
    applications: Vec<Option<Application>>,
    /// Applications that have ended, and whose objects may still be referenced.
    departed: Vec<Departed>,
    ports: Ports,
    circuits: Circuits,
    /// Owner of each block: UDP, TCP.
    blocks: [[Option<u16>; BLOCKS]; 2],
    /// Start of the next search for a block.
    next_block: usize,
    /// Time until which applications of an earlier run may present themselves, as
    /// currently known.
    present_until: Option<Duration>,
    /// Time at which that ends even if clients' messages are unread.
    present_at_most: Duration,
    /// When the loop was last known to turn.
    turned: Duration,
    /// Whether clients' messages are unread.
    is_behind: bool,
    /// The last application that a turn of the loop cleared.
    swept: u16,
    /// Whether more of them wait for the next turn.
    is_sweeping: bool,
    /// Time at which failed steps are retried.
    retry_at: Option<Duration>,
    /// When holders of private applications are examined next, and when those are that
    /// need it more often.
    look_at_all: Option<Duration>,
    look_often: Option<Duration>,
    counters: Counters,
}

#[derive(Debug)]
struct Client {
    credentials: Credentials,
    application: Option<u16>,
    of_program: bool,
    may_send_anything: bool,
    /// Index into [`Limits::units`].
    unit: Option<usize>,
    /// When its connection ends unless it has joined; `None`: never.
    until: Option<Duration>,
    /// Whether it has asked to join.
    has_asked: bool,
    /// Whether it may join only because every user may, and its user has no application.
    is_stranger: bool,
}

#[derive(Debug)]
struct Application {
    entry: Entry,
    domain: Domain,
    state: State,
}

/// An application that has ended.
#[derive(Debug)]
struct Departed {
    domain: Domain,
    token: [u8; 16],
    /// As in its entry.
    handed: u32,
}

/// The domain whose quotas an application counts toward. Not in the journal: an earlier
/// run's application counts toward its user's until it presents itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    User(u32),
    /// Index into [`Limits::units`].
    Unit(usize),
}

impl Domain {
    /// A distinct number for each domain.
    fn number(self) -> u64 {
        match self {
            Domain::User(user) => user.into(),
            Domain::Unit(place) => 1 << 32 | place as u64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its client is connected.
    Live,
    /// From an earlier run, and not presented yet.
    Awaited,
    /// Being cleared.
    Clearing,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

impl Manager {
    /// Creates a manager of a device, with the state that an earlier run left of it.
    pub fn new<D: Device>(
        limits: Limits,
        recovered: Recovered,
        now: Duration,
        device: &mut D,
    ) -> Self {
        let mut manager = Manager {
            limits,
            clients: HashMap::new(),
            applications: (0..APPLICATIONS).map(|_| None).collect(),
            departed: Vec::new(),
            ports: Ports::default(),
            circuits: Circuits::default(),
            blocks: [[None; BLOCKS]; 2],
            next_block: 0,
            present_until: None,
            present_at_most: Duration::ZERO,
            turned: now,
            is_behind: false,
            swept: 0,
            is_sweeping: false,
            retry_at: None,
            look_at_all: None,
            look_often: None,
            counters: Counters {
                applications: 0,
                clients: 0,
                ports: 0,
                blocks: 0,
                joined: 0,
                presented: 0,
                cleared: 0,
                refused: 0,
                malformed: 0,
                retried: 0,
                circuits: 0,
                calls: 0,
            },
        };
        manager.recover(recovered, now, device);
        manager
    }

    fn recover<D: Device>(&mut self, recovered: Recovered, now: Duration, device: &mut D) {
        for (number, mut entry) in recovered.entries.into_iter().enumerate() {
            let Some(place) = self.applications.get_mut(number) else {
                break;
            };
            // It was never written.
            if entry.state == FREE {
                continue;
            }
            let whole = entry.version == Entry::VERSION && entry.state == ACTIVE;
            if entry.version != Entry::VERSION {
                entry.leases = [[0; 4]; 2];
            }
            for (owners, blocks) in self.blocks.iter_mut().zip(&entry.leases) {
                for (block, owner) in owners.iter_mut().enumerate() {
                    if contains(blocks, block) {
                        *owner = Some(number as u16);
                    }
                }
            }
            let state = if whole {
                State::Awaited
            } else {
                State::Clearing
            };
            let domain = Domain::User(entry.uid);
            *place = Some(Application {
                entry,
                domain,
                state,
            });
        }
        self.circuits = Circuits::new(recovered.circuits.into_iter());
        let mut ownerless = Vec::new();
        for (key, application) in recovered.ports {
            match self.application(application) {
                Some(_) if self.is_leased_to(&key, application) => {}
                Some(_) => self.ports.insert_unheld(key, application),
                None => ownerless.push(key),
            }
        }
        // While there was no daemon, nothing kept other users from their ports.
        self.look_at_holders(now, device);
        self.hold_recovered(now, device);
        for key in ownerless {
            if device.disown_port(&key).is_err() {
                // No application has the number APPLICATIONS.
                self.ports.insert_unheld(key, APPLICATIONS as u16);
                self.retry(now);
            }
        }
        for number in 0..APPLICATIONS as u16 {
            if self.state(number) == Some(State::Clearing) {
                self.clear(number, now, device);
            }
        }
        if device.reserve(&self.all_blocks()).is_err() {
            self.retry(now);
        }
        let awaited = |application: &Application| application.state == State::Awaited;
        if self.applications.iter().flatten().any(awaited) {
            self.present_until = Some(now + PRESENT_WITHIN);
            self.present_at_most = now + PRESENT_WITHIN * HEARD_WITHIN;
        }
    }

    /// Enables calls by and to applications, over a signalling link that the caller
    /// maintains. `seed`: a random number.
    pub fn control_circuits(&mut self, config: AtmConfig, seed: u32, now: Duration) {
        let is_awaited = |number: &u16| self.state(*number) == Some(State::Awaited);
        let awaited = (0..APPLICATIONS as u16).filter(is_awaited).collect();
        self.circuits.control(config, seed, awaited, now);
    }

    /// Processes a PDU received on the signalling link.
    pub fn signalling_received<D: Device>(&mut self, pdu: &[u8], now: Duration, device: &mut D) {
        self.circuits.pdu_received(pdu, now);
        self.circuits.step(now, device);
    }

    /// True while the signalling link waits: received PDUs are left where they are.
    pub fn signalling_waits(&self) -> bool {
        self.circuits.link_waits()
    }

    /// The next PDU for the signalling link.
    pub fn poll_signalling(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.circuits.poll_transmit(now)
    }

    /// Whether an application has a call of this number.
    pub fn has_call(&self, application: u16, call: u32) -> bool {
        self.circuits.has_call(application, call)
    }

    /// The next notice to an application about its calls.
    pub fn poll_call_notice(&mut self) -> Option<CallNotice> {
        self.circuits.poll_notice()
    }

    /// Notes a client, which [`Manager::admit`] then admits or not.
    ///
    /// # Errors
    /// The answer to send before closing its connection.
    pub fn connected(&mut self, client: ClientId, credentials: Credentials) -> Result<(), Refusal> {
        let of_user = |other: &&Client| {
            other.credentials.uid == credentials.uid && other.application.is_none()
        };
        if self.clients.values().filter(of_user).count() >= self.limits.clients_of_user {
            self.counters.refused += 1;
            return refused(libc::EMFILE, "too many connections to the manager");
        }
        let application = None;
        let taken_in = Client {
            credentials,
            application,
            of_program: false,
            may_send_anything: false,
            unit: None,
            until: None,
            has_asked: false,
            is_stranger: false,
        };
        self.clients.insert(client, taken_in);
        Ok(())
    }

    /// Notes that a client is a process of the program that the manager is for
    /// ([`Limits::program`]).
    pub fn is_of_program(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.of_program = true;
        }
    }

    /// Notes that a client could send and read any frame of the host by itself: its
    /// process is user 0's and has CAP_NET_RAW in the manager's user namespace.
    pub fn may_send_anything(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.may_send_anything = true;
        }
    }

    /// Notes a client's unit, if it is one of [`Limits::units`].
    pub fn is_of_unit(&mut self, client: ClientId, unit: &UnitName) {
        let listed = self.limits.units.iter().position(|(name, _)| name == unit);
        if let Some(client) = self.clients.get_mut(&client) {
            client.unit = listed;
        }
    }

    /// Handles the end of a client's connection, and of the application that it was.
    pub fn gone<D: Device>(&mut self, client: ClientId, now: Duration, device: &mut D) {
        let Some(Client {
            application: Some(number),
            ..
        }) = self.clients.remove(&client)
        else {
            return;
        };
        if let Some(application) = self.application_mut(number) {
            application.state = State::Clearing;
        }
        self.clear(number, now, device);
    }

    /// The application of a client, if it has joined.
    pub fn application_of(&self, client: ClientId) -> Option<u16> {
        self.clients.get(&client)?.application
    }

    /// A client's credentials.
    pub fn credentials_of(&self, client: ClientId) -> Option<Credentials> {
        Some(self.clients.get(&client)?.credentials)
    }

    /// Time at which [`Manager::tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        let presenting = self
            .present_until
            .map(|until| until.min(self.turned + TURN_MOST / 2));
        let overdue = self.clients.values().filter_map(|client| client.until);
        let own = [
            presenting,
            self.is_sweeping.then_some(self.turned),
            self.retry_at,
            self.look_at_all,
            self.look_often,
            self.circuits.deadline(),
        ];
        own.into_iter().flatten().chain(overdue).min()
    }

    /// Notes whether clients' messages are unread. While they are, nothing is cleared for
    /// not having been presented, for some time.
    pub fn set_behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// A client whose time to join has expired, and whose connection must be closed.
    pub fn overdue(&self, now: Duration) -> Option<ClientId> {
        let is_overdue = |client: &Client| client.until.is_some_and(|until| now >= until);
        let mut clients = self.clients.iter();
        clients.find_map(|(&number, client)| is_overdue(client).then_some(number))
    }

    /// Does what is due: clears applications that were not presented, and retries failed
    /// steps.
    pub fn tick<D: Device>(&mut self, now: Duration, device: &mut D) {
        self.circuits.step(now, device);
        self.turn(now);
        let expired = |until: Option<Duration>| until.is_some_and(|until| now >= until);
        let mut sweep = std::mem::take(&mut self.is_sweeping);
        if expired(self.present_until) {
            self.present_until = None;
            sweep = true;
            for application in self.applications.iter_mut().flatten() {
                if application.state == State::Awaited {
                    application.state = State::Clearing;
                }
            }
        }
        if expired(self.look_at_all) || expired(self.look_often) {
            self.look_at_holders(now, device);
        }
        if expired(self.retry_at) {
            self.retry_at = None;
            self.counters.retried += 1;
            sweep = true;
            self.hold_recovered(now, device);
            if device.reserve(&self.all_blocks()).is_err() {
                self.retry(now);
            }
        }
        if !sweep {
            return;
        }
        self.clear_next(now, device);
        if self.present_until.is_none() {
            self.disown_unheld(now, device);
        }
    }

    /// Clears one application, the next after the last cleared, so that clients have
    /// their turn before the others.
    fn clear_next<D: Device>(&mut self, now: Duration, device: &mut D) {
        let all = APPLICATIONS as u16;
        let is_clearing = |number: &u16| self.state(*number) == Some(State::Clearing);
        let after = (1..=all).map(|step| (self.swept + step) % all);
        let mut clearing = after.filter(is_clearing);
        let Some(number) = clearing.next() else {
            return;
        };
        self.is_sweeping = clearing.next().is_some();
        self.swept = number;
        self.clear(number, now, device);
    }

    /// Advances the presentation time, which runs only while the loop turns and clients'
    /// messages are read.
    fn turn(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.turned);
        self.turned = now;
        if let Some(until) = &mut self.present_until {
            let held_up = elapsed.saturating_sub(TURN_MOST);
            *until += held_up;
            self.present_at_most += held_up;
            if self.is_behind && now < self.present_at_most {
                *until = (*until).max(now + TURN_MOST);
            }
        }
    }

    /// Acts on a client's message, which may be anything. `holder`: the kernel's facts
    /// about the descriptor that came with it, if one did. Also returns the id for the
    /// answer.
    pub fn handle<D: Device>(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        holder: Option<&HolderFacts>,
        now: Duration,
        device: &mut D,
    ) -> (u32, Reply<D::Parts>) {
        let (id, request) = match Request::parse(bytes) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                self.counters.malformed += 1;
                let id = header(bytes).map_or(0, |header| header.id);
                let failure = Failure::new(libc::EPROTO, &malformed.to_string());
                return (id, Reply::Answer(Answer::Error(failure), Vec::new()));
            }
        };
        let reply = self.request(client, &request, holder, now, device);
        let reply = reply.unwrap_or_else(|refusal| {
            self.counters.refused += 1;
            Reply::Answer(refusal.answer(), Vec::new())
        });
        (id, reply)
    }

    /// Acts on an application's message by its notice connection, which carries the
    /// consequences. `circuit`: the descriptor that came with it, if one did.
    ///
    /// # Errors
    /// The reason why nothing follows; for a call the application has been notified of
    /// it.
    pub fn said<D: Device>(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        circuit: Option<ForeignFd>,
        now: Duration,
        device: &mut D,
    ) -> Result<(), Refusal> {
        let done = match Request::parse(bytes) {
            Ok((_, request)) => self.joined(client).and_then(|number| {
                let room = self.room_for_calls(number);
                let circuits = &mut self.circuits;
                let done = circuits.said(number, room, &request, circuit, now, device);
                circuits.step(now, device);
                done
            }),
            Err(malformed) => {
                self.counters.malformed += 1;
                refused(libc::EPROTO, malformed.to_string())
            }
        };
        self.counters.refused += u64::from(done.is_err());
        done
    }

    /// True if an application's domain may have one more call.
    fn room_for_calls(&self, number: u16) -> bool {
        let domain = |number: u16| {
            let application = self.applications.get(usize::from(number))?.as_ref();
            application.map(|it| it.domain)
        };
        let own = domain(number);
        let calls = (self.circuits.calls_by_application())
            .filter(|(other, _)| domain(*other) == own)
            .map(|(_, calls)| calls)
            .sum::<usize>();
        calls < self.limits.calls_of_domain
    }

    fn request<D: Device>(
        &mut self,
        client: ClientId,
        request: &Request,
        holder: Option<&HolderFacts>,
        now: Duration,
        device: &mut D,
    ) -> Result<Reply<D::Parts>, Refusal> {
        let answer = match request {
            Request::Join(join) => return self.join(client, join, now, device),
            Request::Present(present) => self.present(client, present, now, device)?,
            Request::OwnPort(port) => self.own_port(client, port, holder, now, device)?,
            Request::DisownPort(holder) => self.let_go(client, holder.cookie, now, device)?,
            Request::Lease(of) => self.lease(client, of, now, device)?,
            Request::ReturnLease(block) => self.return_lease(client, block, now, device)?,
            Request::AttachAtm(_) => {
                let number = self.joined(client)?;
                return Ok(Reply::Attached(self.circuits.attach(number)?));
            }
            Request::OpenCircuit(_)
            | Request::CloseCircuit(_)
            | Request::AtmListen(_)
            | Request::AtmUnlisten(_)
            | Request::AtmCall(_)
            | Request::AtmAccept(_)
            | Request::AtmRelease(_)
            | Request::AtmPresent(_)
            | Request::AtmPresented(_)
            | Request::AtmAcknowledge(_) => {
                let number = self.joined(client)?;
                let user = self.credentials_of(client).map_or(u32::MAX, |it| it.uid);
                let asked = self.circuits.request(number, user, request, now, device);
                self.circuits.step(now, device);
                asked?
            }
            Request::GetCounters(_) => Answer::Counters(self.counters()),
            Request::GetStatus(of) => self.get_status(client, of, device)?,
            Request::GetQueueCounters(of) => self.get_queue_counters(client, of, device)?,
            Request::Leave(_) => {
                self.gone(client, now, device);
                return Ok(Reply::Left);
            }
            Request::Moderation(_)
            | Request::Probe(_)
            | Request::GetProbe(_)
            | Request::Input(_)
            | Request::GetHelpers(_)
            | Request::Resolve(_) => {
                let (answer, beside) = device.request(self.joined(client)?, request)?;
                return Ok(Reply::Answer(answer, beside));
            }
        };
        Ok(Reply::Answer(answer, Vec::new()))
    }

    /// Removes everything that an application has; failed steps are retried.
    fn clear<D: Device>(&mut self, number: u16, now: Duration, device: &mut D) {
        if self.try_clear(number, now, device).is_ok() {
            let place = self.applications.get_mut(usize::from(number));
            if let Some(ended) = place.and_then(Option::take) {
                self.departed.push(Departed {
                    domain: ended.domain,
                    token: ended.entry.token,
                    handed: ended.entry.handed,
                });
            }
            self.counters.cleared += 1;
            self.reserve_leased(now, device);
        } else {
            self.retry(now);
        }
    }

    fn try_clear<D: Device>(
        &mut self,
        number: u16,
        now: Duration,
        device: &mut D,
    ) -> io::Result<()> {
        let Some(application) = self.application_mut(number) else {
            return Ok(());
        };
        let mut entry = application.entry.clone();
        entry.state = INCOMPLETE;
        let mut done = Ok(());
        if application.entry.state == ACTIVE {
            done = device.record(number, &entry);
            if done.is_ok() {
                application.entry.state = INCOMPLETE;
            }
        }
        let owned: Vec<PortKey> = self
            .ports
            .iter()
            .filter(|(_, owned)| owned.application == number)
            .map(|(key, _)| key)
            .collect();
        for key in owned {
            match device.disown_port(&key) {
                Ok(()) => self.ports.remove(&key),
                Err(error) => done = Err(error),
            }
        }
        self.release_holders(number, device);
        for (protocol, blocks) in PROTOCOLS.into_iter().zip(&entry.leases) {
            for block in (0..BLOCKS).filter(|&block| contains(blocks, block)) {
                for key in self.keys_of(protocol, block) {
                    done = done.and(device.disown_port(&key));
                }
            }
        }
        self.circuits.clear(number, now, device);
        self.circuits.step(now, device);
        done?;
        device.clear(number)?;
        device.record(number, &Entry::free())?;
        for (protocol, blocks) in PROTOCOLS.into_iter().zip(&entry.leases) {
            for block in (0..BLOCKS).filter(|&block| contains(blocks, block)) {
                if let Some(ports) = self.ports_of(block) {
                    device.release_block(protocol, ports);
                }
            }
        }
        for owner in self.blocks.iter_mut().flatten() {
            if *owner == Some(number) {
                *owner = None;
            }
        }
        Ok(())
    }

    fn retry(&mut self, now: Duration) {
        self.retry_at.get_or_insert(now + RETRY_AFTER);
    }

    /// The application of a client.
    fn joined(&self, client: ClientId) -> Result<u16, Refusal> {
        match self.clients.get(&client).and_then(|of| of.application) {
            Some(number) => Ok(number),
            None => refused(libc::ENOTCONN, "join first"),
        }
    }

    fn set_application(&mut self, client: ClientId, number: u16) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.application = Some(number);
            client.until = None;
            client.is_stranger = false;
        }
        if let Some(application) = self.application_mut(number) {
            application.state = State::Live;
        }
    }

    fn application(&self, number: u16) -> Option<&Application> {
        self.applications.get(usize::from(number))?.as_ref()
    }

    fn application_mut(&mut self, number: u16) -> Option<&mut Application> {
        self.applications.get_mut(usize::from(number))?.as_mut()
    }

    fn put(&mut self, number: u16, application: Application) {
        if let Some(place) = self.applications.get_mut(usize::from(number)) {
            *place = Some(application);
        }
    }

    fn state(&self, number: u16) -> Option<State> {
        self.application(number)
            .map(|application| application.state)
    }

    /// The manager's counters.
    pub fn counters(&self) -> Counters {
        let applications = self.applications.iter().flatten();
        let leases = applications
            .clone()
            .map(|of| count(&of.entry.leases) as u64);
        Counters {
            applications: applications.count() as u64,
            clients: self.clients.len() as u64,
            ports: self.ports.count() as u64,
            blocks: leases.sum(),
            circuits: self.circuits.owned() as u64,
            calls: self.circuits.calls() as u64,
            ..self.counters.clone()
        }
    }
}
