//! The manager's loop: connections, messages, time. It is one thread, which waits nowhere
//! else. For comparison there can be a thread for each activity
//! ([`Server::run_by_threads`]).

mod circuits;
mod events;
mod threads;

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{Shutdown, shutdown};
use tidewall_sys::monotonic;
use tidewall_sys::netlink::Monitor;

use super::closing::close_elsewhere;
use super::descent::descends;
use super::direct::{DirectDevice, Look, Parts};
use super::foreign::{ForeignFd, ForeignThreads, Found};
use super::log::{Level, Log};
use super::manager::{ClientId, Manager, Reply, refused};
use super::metrics::{self, Metrics, Next};
use super::ports::HolderFacts;
use super::process::has_net_raw;
use super::unit::unit_of;
use super::{Device, Limits};
use crate::connection::{Connection, Credentials, Listener};
use circuits::Atm;
use threads::{Activity, Threads};

use crate::protocol::{Answer, Counters, Empty, Polling, Queue};

fn timespec(timeout: Duration) -> Timespec {
    Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

/// Events taken at once.
const EVENTS: usize = 64;

/// Connections accepted at once: a flood of them leaves other clients their turn, and
/// conversely.
const ACCEPTED: usize = 16;

/// How long no connection is accepted after a failure.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const CHANGES: u64 = 2;
const METRICS: u64 = 3;
const SIGNALLING: u64 = 4;
const WAKE: u64 = 5;
const SEEN: u64 = 6;
const HOLDERS: u64 = 7;
const FIRST_CLIENT: u64 = 8;
/// The thread that closes the connections of clients that have not joined: no user has
/// this id.
const STRANGERS: u32 = u32::MAX;
/// Set in the number of a scraper of metrics.
const SCRAPER: u64 = 1 << 63;
/// Set in a client's number, for the connection of its notices.
const CIRCUITS: u64 = 1 << 62;

/// A client's connection.
#[derive(Debug)]
struct Peer {
    connection: Connection,
    /// The user whose thread handles its descriptors; none for a client that has not
    /// joined.
    user: u32,
}

/// A manager, its device and its clients.
#[derive(Debug)]
pub struct Server {
    manager: Manager,
    device: DirectDevice,
    listener: Listener,
    changes: Monitor,
    epoll: OwnedFd,
    clients: HashMap<ClientId, Peer>,
    next: ClientId,
    foreign: ForeignThreads,
    /// Clients whose message is being examined, and which are not read meanwhile.
    looked_at: HashSet<ClientId>,
    log: Log,
    metrics: Option<Metrics>,
    /// The application that knows that the device is lent to it, and the count of loans
    /// at that time.
    lent: Option<(u16, u32)>,
    /// The process whose descendants are the program that the manager is for.
    ancestor: Option<u32>,
    /// Whether some unit has more permissions than its processes' users.
    units: bool,
    /// Time at which connections are accepted again.
    accept_at: Option<Duration>,
    /// Set if the interface is an ATM one.
    atm: Option<Atm>,
    /// Set while there is a thread for each activity.
    threads: Option<Threads>,
}

impl Server {
    /// Serves a device, with the state that an earlier process left of it.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn new(
        limits: Limits,
        mut device: DirectDevice,
        listener: Listener,
        log: Log,
    ) -> io::Result<Self> {
        let recovered = device.recovered()?;
        device.get_ready()?;
        let units = !limits.units.is_empty();
        let manager = Manager::new(limits, recovered, monotonic(), &mut device);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let changes = Monitor::with_neighbours()?;
        device.refresh_uses();
        let holders = device.holders();
        let foreign = ForeignThreads::new(move |socket, user| holders.facts(socket, user))?;
        let server = Server {
            manager,
            device,
            listener,
            changes,
            epoll,
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            foreign,
            looked_at: HashSet::new(),
            log,
            metrics: None,
            lent: None,
            ancestor: None,
            units,
            accept_at: None,
            atm: None,
            threads: None,
        };
        server.watch(server.listener.as_fd(), LISTENER)?;
        server.watch(server.changes.as_fd(), CHANGES)?;
        server.watch(server.foreign.wake(), SEEN)?;
        server.watch(server.device.holder_changes(), HOLDERS)?;
        Ok(server)
    }

    /// Treats the descendants of a process as the program that the manager is for
    /// ([`Limits::program`]). The process must be their subreaper (prctl(2)).
    pub fn set_ancestor(&mut self, process: u32) {
        self.ancestor = Some(process);
    }

    /// Also answers metrics scrapers.
    ///
    /// # Errors
    /// Those the kernel reports.
    pub fn set_metrics(&mut self, metrics: Metrics) -> io::Result<()> {
        self.watch(metrics.as_fd(), METRICS)?;
        self.metrics = Some(metrics);
        Ok(())
    }

    fn accept_scraper(&mut self) {
        let Some(metrics) = &mut self.metrics else {
            return;
        };
        let taken_in = metrics.accept().and_then(|(number, socket)| {
            let data = epoll::EventData::new_u64(SCRAPER | number);
            Ok(epoll::add(
                &self.epoll,
                socket,
                data,
                epoll::EventFlags::IN,
            )?)
        });
        match taken_in {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                self.pause("scraper-not-taken-in", &error);
            }
            _ => {}
        }
    }

    fn serve_scraper(&mut self, number: u64) {
        let (manager, device) = (&self.manager, &self.device);
        let text = || {
            metrics::text(&metrics::Values {
                interface: device.interface(),
                counters: manager.counters(),
                applications: manager.statuses(device).collect(),
                queues: (0..).map_while(|queue| device.counters(queue)).collect(),
                classes: device.classes(),
                departures: device.all_departures(manager.statuses(device)),
            })
        };
        let Some(metrics) = &mut self.metrics else {
            return;
        };
        if metrics.serve(number, text) == Next::Writes
            && let Some(socket) = metrics.socket(number)
        {
            let data = epoll::EventData::new_u64(SCRAPER | number);
            // On failure it waits for its time-out.
            let _ = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::OUT);
        }
    }

    fn watch(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// Serves until `stop` is readable. Calls `alive` at least once per `interval`, if
    /// set.
    ///
    /// # Errors
    /// `NotFound` once the interface no longer exists; what the kernel reports.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        interval: Option<Duration>,
        mut alive: impl FnMut(),
    ) -> io::Result<()> {
        self.watch(stop, STOP)?;
        // Work that an earlier process left may be due.
        self.tick();
        self.follow_calls();
        let mut events = Vec::with_capacity(EVENTS);
        let mut next_alive = interval.map(|interval| Instant::now() + interval);
        loop {
            let until_alive = next_alive.map(|at| at.saturating_duration_since(Instant::now()));
            let until_due = self.due().map(|at| at.saturating_sub(monotonic()));
            let timeout = [until_alive, until_due].into_iter().flatten().min();
            let timeout = timeout.map(timespec);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if let (Some(at), Some(interval)) = (&mut next_alive, interval)
                && Instant::now() >= *at
            {
                *at = Instant::now() + interval;
                alive();
            }
            if !self.dispatch(&mut events)? {
                return Ok(());
            }
            self.tick();
            self.follow_calls();
        }
    }

    /// Time at which something is due without an event.
    fn due(&self) -> Option<Duration> {
        let unsent = self.atm.as_ref().and_then(|atm| {
            atm.unsent.as_ref()?;
            atm.link.look_at()
        });
        [
            self.manager.deadline(),
            self.device.deadline(),
            self.accept_at,
            unsent,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Acts on events; false once it must stop.
    fn dispatch(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<bool> {
        let is_unheard = |event: &epoll::Event| {
            let client = event.data.u64();
            client == LISTENER
                || (self.clients.contains_key(&client)
                    && self.manager.application_of(client).is_none())
        };
        let is_behind = self.accept_at.is_some() || events.iter().any(is_unheard);
        self.manager.set_behind(is_behind);
        // A closed connection makes room for a new one.
        let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        for event in &*events {
            let (flags, data) = (event.flags, event.data);
            if flags.intersects(ended) {
                self.end(data.u64() & !CIRCUITS);
            }
        }
        for event in events.drain(..) {
            let data = event.data;
            match data.u64() {
                STOP => return Ok(false),
                LISTENER => self.accept(),
                CHANGES => self.host_changed()?,
                METRICS => self.accept_scraper(),
                SIGNALLING => self.serve_signalling(),
                WAKE => {}
                SEEN => self.act_on_found(),
                HOLDERS => self.holders_changed(),
                number if number & SCRAPER != 0 => self.serve_scraper(number & !SCRAPER),
                client if client & CIRCUITS != 0 => {
                    self.serve_circuits(client & !CIRCUITS);
                    self.follow_calls();
                }
                client => {
                    self.serve(client);
                    self.follow_calls();
                }
            }
        }
        Ok(true)
    }

    fn tick(&mut self) {
        let now = monotonic();
        while let Some(client) = self.manager.overdue(now) {
            self.end(client);
        }
        if self.manager.deadline().is_some_and(|at| at <= now) {
            let before = self.manager.counters();
            self.manager.tick(now, &mut self.device);
            self.log_tick(&before);
        }
        if self.accept_at.take_if(|at| *at <= now).is_some() {
            self.set_accepting(epoll::EventFlags::IN);
        }
        self.look();
        if let Err(error) = self.device.tick(now) {
            self.warn("polling-not-switched", &error);
        }
        if self.device.is_charging_due(now) {
            self.device.charge(&self.manager.payers(), now);
        }
        let (before, lent) = (self.lent, self.device.lent());
        if before != lent {
            self.lent = lent;
            let clients: Vec<ClientId> = self.clients.keys().copied().collect();
            for client in clients {
                let Some(application) = self.manager.application_of(client) else {
                    continue;
                };
                let is_of = |lent: Option<(u16, u32)>| lent.is_some_and(|it| it.0 == application);
                let sent = match (is_of(before), is_of(lent)) {
                    // The settings that it had requested were reset in between.
                    (true, true) => self
                        .say_who_polls(client, false)
                        .and_then(|()| self.say_who_polls(client, true)),
                    (false, false) => Ok(()),
                    (_, lent) => self.say_who_polls(client, lent),
                };
                if sent.is_err() {
                    self.end(client);
                }
            }
        }
    }

    /// Notifies a private application whether it may poll the device.
    fn say_who_polls(&self, client: ClientId, lent: bool) -> io::Result<()> {
        let polling = Answer::Polling(Polling { lent: lent.into() });
        self.send(client, 0, &polling, &[])
    }

    /// # Errors
    /// ENODEV, with an explanation, where the interface no longer exists.
    fn host_changed(&mut self) -> io::Result<()> {
        let changes = self.changes.changes();
        let before = self.device.interface().to_owned();
        if let Err(error) = self.device.host_changed(&changes) {
            self.warn("addresses-unknown", &error);
        }
        if self.device.interface() != before {
            let now = self.device.interface().to_owned();
            let values: [(&str, &dyn Display); 2] = [("before", &before), ("now", &now)];
            self.log.write(Level::Warning, "renamed", &values);
        }
        self.device.is_there(&changes)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            match self.listener.accept() {
                Ok(Some(connection)) => {
                    let client = self.next;
                    self.next += 1;
                    if let Err(error) = self.take_in(client, connection) {
                        self.manager.gone(client, monotonic(), &mut self.device);
                        self.warn("client-not-taken-in", &error);
                    }
                }
                Ok(None) => return,
                Err(error) => return self.pause("no-client-can-be-taken-in", &error),
            }
        }
    }

    /// Makes connecting clients wait for a moment. Without a free descriptor none can be
    /// accepted, and the listening sockets stay readable.
    fn pause(&mut self, event: &str, error: &io::Error) {
        self.warn(event, error);
        self.accept_at = Some(monotonic() + ACCEPT_AGAIN);
        self.set_accepting(epoll::EventFlags::empty());
    }

    fn set_accepting(&self, events: epoll::EventFlags) {
        let listening = [
            Some((self.listener.as_fd(), LISTENER)),
            self.metrics.as_ref().map(|of| (of.as_fd(), METRICS)),
        ];
        for (socket, number) in listening.into_iter().flatten() {
            let data = epoll::EventData::new_u64(number);
            // It is already in the set, so nothing is allocated for it.
            let _ = epoll::modify(&self.epoll, socket, data, events);
        }
    }

    fn take_in(&mut self, client: ClientId, connection: Connection) -> io::Result<()> {
        let peer = connection.peer()?;
        let connected = match self.foreign.is_stuck(peer.uid) {
            true => refused(libc::EMFILE, "what this user has passed is not closed yet"),
            false => self.manager.connected(client, peer),
        };
        if let Err(refusal) = connected {
            self.refuse(connection, peer, &refusal.answer());
            return Ok(());
        }
        let descends = |ancestor| descends(connection.as_fd(), peer.pid, ancestor);
        let ours = self.ancestor.is_some_and(descends);
        if ours {
            self.manager.is_of_program(client);
        }
        if peer.uid == 0 && has_net_raw(connection.as_fd(), peer.pid) {
            self.manager.may_send_anything(client);
        }
        if self.units
            && let Some(unit) = unit_of(connection.as_fd(), peer.pid)
        {
            self.manager.is_of_unit(client, &unit);
        }
        if let Err(refusal) = self.manager.admit(client, monotonic()) {
            self.refuse(connection, peer, &refusal.answer());
            return Ok(());
        }
        match &self.threads {
            Some(threads) => {
                let connection = connection.as_fd().try_clone_to_owned()?;
                threads.begin(Activity::Client(client, connection));
            }
            None => self.watch(connection.as_fd(), client)?,
        }
        let user = STRANGERS;
        self.clients.insert(client, Peer { connection, user });
        Ok(())
    }

    fn refuse(&mut self, connection: Connection, peer: Credentials, answer: &Answer) {
        self.log_refused(peer, answer);
        // The connection of a client that does not read is closed regardless.
        let _ = connection.send(&answer.emit(0), &[]);
        self.foreign.close(STRANGERS, connection);
    }

    /// Takes one message, so that every client has its turn; the next wait reports
    /// further messages.
    fn serve(&mut self, client: ClientId) {
        let Some(peer) = self.clients.get(&client) else {
            return;
        };
        if self.looked_at.contains(&client) {
            return;
        }
        // From a client that has not joined only bytes are received.
        let received = match peer.user {
            STRANGERS => peer.connection.receive_bytes(),
            _ => peer.connection.receive(),
        };
        let received = match received {
            Ok(Some(received)) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => return self.end(client),
        };
        if received.descriptors.is_empty() {
            return self.act(client, &received.bytes, None);
        }
        let user = peer.user;
        self.looked_at.insert(client);
        self.set_read(client, false);
        self.foreign.look(user, client, received);
    }

    /// Acts on messages whose descriptors were examined, and on other results of threads.
    fn act_on_found(&mut self) {
        for found in self.foreign.found() {
            let (now, device) = (monotonic(), &mut self.device);
            match found {
                Found::Message(seen) => {
                    if self.looked_at.remove(&seen.client) {
                        self.set_read(seen.client, true);
                        let holder = seen.facts.zip(seen.descriptor);
                        self.act(seen.client, &seen.bytes, holder);
                        self.follow_calls();
                    }
                }
                Found::Holder(cookie, facts) => {
                    self.manager.looked_at(cookie, facts.as_ref(), now, device);
                }
                Found::Anothers(key) => self.manager.is_anothers(&key, now, device),
                Found::Closed(client, id) => {
                    if self.looked_at.remove(&client) {
                        self.set_read(client, true);
                        let done = Answer::Done(Empty {});
                        if id != 0 && self.send(client, id, &done, &[]).is_err() {
                            self.end(client);
                        }
                    }
                }
            }
        }
        self.look();
    }

    fn holders_changed(&mut self) {
        let now = monotonic();
        for cookie in self.device.take_changed_holders() {
            self.manager.holder_changed(cookie, now, &mut self.device);
        }
        self.look();
    }

    /// Makes threads close and query what the manager wants closed and queried.
    fn look(&mut self) {
        drop(self.device.take_released());
        let holders = self.device.holders();
        for look in self.device.take_looks() {
            match look {
                Look::Holder(cookie, socket, user) => self.foreign.ask(user, move |facts| {
                    let facts = facts(socket.as_fd(), user);
                    Some(Found::Holder(cookie, facts))
                }),
                Look::Port(key, user) => self.foreign.ask(user, move |_| {
                    let is_anothers = holders.is_anothers(&key, user).unwrap_or(false);
                    is_anothers.then_some(Found::Anothers(key))
                }),
            }
        }
    }

    /// Enables or disables reading a client's messages.
    fn set_read(&self, client: ClientId, is_read: bool) {
        if self.threads.is_some() {
            return;
        }
        if let Some(peer) = self.clients.get(&client) {
            let data = epoll::EventData::new_u64(client);
            let events = match is_read {
                true => epoll::EventFlags::IN,
                false => epoll::EventFlags::empty(),
            };
            // It is already in the set, so nothing is allocated for it.
            let _ = epoll::modify(&self.epoll, peer.connection.as_fd(), data, events);
        }
    }

    /// Acts on a client's message, and answers it.
    fn act(&mut self, client: ClientId, bytes: &[u8], holder: Option<(HolderFacts, ForeignFd)>) {
        let now = monotonic();
        let application = self.manager.application_of(client);
        let (facts, descriptor) = holder.unzip();
        if let (Some(facts), Some(descriptor)) = (&facts, descriptor) {
            self.device.show(facts.cookie, descriptor);
        }
        let (id, reply) = self
            .manager
            .handle(client, bytes, facts.as_ref(), now, &mut self.device);
        self.device.hide();
        let has_released = self.device.has_released();
        self.look();
        if application.is_none()
            && self.manager.application_of(client).is_some()
            && let Some(credentials) = self.manager.credentials_of(client)
            && let Some(peer) = self.clients.get_mut(&client)
        {
            peer.user = credentials.uid;
            peer.connection.set_descriptors_allowed(true);
        }
        let sent = match &reply {
            // The next socket can be bound there once this, or the next request, is
            // answered.
            Reply::Answer(Answer::Done(_), _) if has_released => {
                self.answer_when_closed(client, id);
                Ok(())
            }
            // The application does not wait for it.
            Reply::Answer(Answer::Done(_) | Answer::Error(_), _) if id == 0 => Ok(()),
            Reply::Answer(answer, beside) => {
                let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
                self.send(client, id, answer, &beside)
            }
            Reply::Joined(joined, parts) => {
                let joined = Answer::Joined(joined.clone());
                self.hand_over(client, id, &joined, parts)
            }
            Reply::Attached(attached) => self.attach(client).and_then(|theirs| {
                let answer = Answer::AtmAttached(attached.clone());
                self.send(client, id, &answer, &[theirs.as_fd()])
            }),
            Reply::Left => self.send(client, id, &Answer::Done(Empty {}), &[]),
        };
        match reply {
            Reply::Left => self.log_ended(application),
            _ => self.log_reply(client, &reply),
        }
        match &reply {
            Reply::Left => {
                self.close(client);
            }
            _ if sent.is_err() => self.end(client),
            // It has presented itself, and knows what an earlier process reported.
            Reply::Answer(Answer::Joined(joined), _) if joined.private != 0 => {
                let application = self.manager.application_of(client);
                let lent = self.device.lent().map(|it| it.0);
                let lent = application.is_some() && application == lent;
                if self.say_who_polls(client, lent).is_err() {
                    self.end(client);
                }
            }
            _ => {}
        }
        if let Reply::Joined(_, parts) = reply {
            // For descriptors not sent, these are the last of bound sockets; for those
            // sent, there is frame memory to unmap.
            close_elsewhere(parts);
        }
    }

    fn answer_when_closed(&mut self, client: ClientId, id: u32) {
        let Some(peer) = self.clients.get(&client) else {
            return;
        };
        let user = peer.user;
        self.looked_at.insert(client);
        self.set_read(client, false);
        let closed = move |_: &_| Some(Found::Closed(client, id));
        self.foreign.ask(user, closed);
    }

    fn hand_over(
        &self,
        client: ClientId,
        id: u32,
        joined: &Answer,
        parts: &Parts,
    ) -> io::Result<()> {
        let maps = [parts.tables.as_fd(), parts.counters.as_fd()];
        self.send(client, id, joined, &maps)?;
        for made in &parts.queues {
            let queue = Queue::new(&made.shape(), made.helpers().len() as u8);
            self.send(client, id, &Answer::Queue(queue), &made.descriptors())?;
        }
        Ok(())
    }

    fn send(
        &self,
        client: ClientId,
        id: u32,
        answer: &Answer,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let peer = self.clients.get(&client).ok_or(io::ErrorKind::NotFound)?;
        peer.connection.send(&answer.emit(id), descriptors)
    }

    fn end(&mut self, client: ClientId) {
        let application = self.manager.application_of(client);
        if self.close(client) {
            self.log_departures(application);
            self.log_ended(application);
        }
        self.manager.gone(client, monotonic(), &mut self.device);
    }

    /// Closes a connection; false if it was already closed. Descriptors passed by it and
    /// not received are closed with it, so a thread does that.
    fn close(&mut self, client: ClientId) -> bool {
        let Some(Peer { connection, user }) = self.clients.remove(&client) else {
            return false;
        };
        self.looked_at.remove(&client);
        let mut ended = Vec::new();
        if let Some(atm) = &mut self.atm {
            let of_client = atm.notices.extract_if(|_, (of, _)| *of == client);
            for (_, (_, notices)) in of_client {
                if self.threads.is_some() {
                    let _ = shutdown(notices.as_fd(), Shutdown::Both);
                }
                let _ = epoll::delete(&self.epoll, notices.as_fd());
                ended.push(notices);
            }
        }
        if self.threads.is_some() {
            // Its thread also has it.
            let _ = shutdown(connection.as_fd(), Shutdown::Both);
        }
        // Closing it here would remove it from the set.
        let _ = epoll::delete(&self.epoll, connection.as_fd());
        self.foreign.close(user, (connection, ended));
        true
    }

    /// The manager's counters.
    pub fn counters(&self) -> Counters {
        self.manager.counters()
    }
}
