//! The front of a server: its listening socket and its clients.
//!
//! [`Connection`] bounds what one connection may use; this module bounds what they may
//! use together. Each runs in turn ([`Client::run`]), bounded. If there are too many, or
//! no descriptors are left for them, those that have been idle for a while make room. If
//! none can, nothing is accepted for a while, and new clients wait in the backlog.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slab::Slab;
use tidewall_protocol::timer::Wheel;

use super::connection::{Answers, Connection, End, Output};
use super::link::{BEHIND, Link, READ_BYTES, parts};
use super::site::{Counts, Site};
use crate::counters::Counters;
use crate::stream::{Interest, Stream, StreamHost};

/// The listener's token; clients have their key and generation.
pub(super) const LISTENER: u64 = u64::MAX;
/// How long accepting pauses after a lack of descriptors or memory.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// Bytes sent for one connection before the others run.
const RUN_BYTES: usize = 256 * 1024;
/// Idle time after which a connection makes room if all slots are taken.
const EVICT_AFTER: Duration = Duration::from_secs(1);
/// Connections examined in search of one that can make room.
const EVICT_LOOKS: usize = 64;

/// A client's connection from HTTP's point of view: bytes and times go in, bytes come
/// out. The default methods are those of its [`Connection`].
pub trait ClientConnection {
    /// The source of answers, beside what every [`Site`] has.
    type Store: Answers;

    /// Creates one that was accepted `now`.
    fn new(peer: IpAddr, now: Duration) -> Self;

    /// Returns its connection with the client.
    fn connection(&self) -> &Connection;

    /// Returns the same, mutably.
    fn connection_mut(&mut self) -> &mut Connection;

    /// Handles received bytes.
    fn receive(&mut self, bytes: &[u8], site: &mut Site<Self::Store>) {
        self.connection_mut().receive(bytes, site);
    }

    /// Continues with requests that had to wait.
    fn resume(&mut self, site: &mut Site<Self::Store>) {
        self.connection_mut().resume(site);
    }

    /// Records that the client sends nothing more.
    fn end_of_input(&mut self) {
        self.connection_mut().end_of_input();
    }

    /// Returns when [`ClientConnection::expire`] is due.
    fn deadline(&self, site: &Site<Self::Store>) -> Duration {
        self.connection().deadline(&site.limits)
    }

    /// Ends what is overdue.
    fn expire(&mut self, site: &mut Site<Self::Store>) {
        self.connection_mut().expire(site);
    }
}

/// The server's index among the services of its counters.
const SERVICE: usize = 0;

/// The destination of counts.
pub(super) struct Tally<'a> {
    pub(super) counters: &'a Counters,
}

impl Tally<'_> {
    /// Counts the work of connections, which have `received` this many bytes, before
    /// their clients can see the answers.
    pub(super) fn count<S>(&self, site: &mut Site<S>, received: u64) {
        let Counts {
            requests,
            responses,
            refused,
        } = std::mem::take(&mut site.counts);
        self.counters.batch(SERVICE, requests, received, responses);
        for _ in 0..refused {
            self.error();
        }
    }

    pub(super) fn error(&self) {
        self.counters.error(SERVICE);
    }
}

/// Returns the seconds since 1970.
pub(super) fn unix() -> u64 {
    // A clock before 1970 is as good as none.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// The state of a client after it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It waits for its peer.
    Waiting,
    /// It has more to do, after the others' turn.
    Runnable,
    /// It is over.
    Closed,
    /// It failed.
    Failed,
}

/// A client.
pub(super) struct Client<S, P> {
    pub(super) link: Link<S>,
    pub(super) session: P,
    /// It waits in [`Listener::runnable`].
    pub(super) queued: bool,
}

impl<S: Stream, P: ClientConnection> Client<S, P> {
    /// Sends, answers and reads while it can, within bounds: one read, one burst of
    /// requests that had waited, [`RUN_BYTES`].
    fn run(
        &mut self,
        shared: &mut Site<P::Store>,
        scratch: &mut [u8],
        tally: &Tally<'_>,
    ) -> Outcome {
        let now = shared.clock.now();
        let mut left = RUN_BYTES;
        let (mut answered, mut read) = (false, false);
        loop {
            let sent = match self.session.connection().output() {
                _ if !self.link.may_write => None,
                Output::Nothing => None,
                Output::Bytes { bytes, more } => Some(self.link.write(bytes, more)),
                Output::File {
                    file,
                    offset,
                    length,
                } => {
                    let length = length.min(left as u64);
                    Some(self.link.send_file(file, offset, length, scratch))
                }
            };
            match sent {
                None => {}
                Some(Ok(count)) => {
                    tally.counters.sent(SERVICE, count as u64);
                    self.session
                        .connection_mut()
                        .sent(count, now, &shared.limits);
                    left = left.saturating_sub(count);
                    if left == 0 {
                        return Outcome::Runnable;
                    }
                    continue;
                }
                Some(Err(error)) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    // The peer's time begins.
                    io::ErrorKind::WouldBlock => {
                        self.session.connection_mut().sent(0, now, &shared.limits);
                    }
                    _ => return Outcome::Failed,
                },
            }
            match self.session.connection().end() {
                End::Open => {}
                End::Shutdown => {
                    if self.link.stream.shutdown_write().is_err() {
                        return Outcome::Closed;
                    }
                    self.session.connection_mut().linger(now);
                    self.link.may_read = true;
                }
                End::Close => return Outcome::Closed,
            }
            if self.session.connection().has_work() {
                if answered {
                    return Outcome::Runnable;
                }
                answered = true;
                self.session.resume(shared);
                tally.count(shared, 0);
                continue;
            }
            if !self.link.may_read || !self.session.connection().wants_input() {
                return Outcome::Waiting;
            }
            if read {
                return Outcome::Runnable;
            }
            let room = scratch.get_mut(..READ_BYTES).unwrap_or_default();
            match self.link.read(room) {
                Ok(0) => self.session.end_of_input(),
                Ok(count) => {
                    read = true;
                    let bytes = scratch.get(..count).unwrap_or_default();
                    self.session.receive(bytes, shared);
                    tally.count(shared, count as u64);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ => return Outcome::Failed,
                },
            }
        }
    }
}

/// The listening socket and the clients of a server.
pub(super) struct Listener<'a, H: StreamHost, P: ClientConnection> {
    pub(super) host: &'a H,
    pub(super) shared: Site<P::Store>,
    pub(super) tally: Tally<'a>,
    /// The clients' deadlines, by their keys.
    pub(super) wheel: Wheel,
    /// Scratch memory for reads, and for pieces of files.
    pub(super) scratch: Box<[u8]>,
    pub(super) clients: Slab<Client<H::Stream, P>>,
    /// Clients that have more to do.
    pub(super) runnable: Vec<usize>,
    /// Memory for output, lent to the client that runs.
    pub(super) output: Vec<u8>,
    /// `None` once the server is to stop.
    pub(super) listener: Option<H::Listener>,
    /// Accepting is paused until then.
    pub(super) paused_until: Option<Duration>,
    generation: u32,
    /// Position at which the search for an idle client continues.
    hand: usize,
}

impl<'a, H: StreamHost, P: ClientConnection> Listener<'a, H, P> {
    /// Listens on `local`; calls `ready` with the address.
    ///
    /// # Errors
    /// The error of listening.
    pub(super) fn open(
        host: &'a H,
        local: SocketAddr,
        shared: Site<P::Store>,
        tally: Tally<'a>,
        ready: impl FnOnce(SocketAddr),
    ) -> io::Result<Self> {
        let listener = host.listen(local, shared.limits.backlog);
        let listener = listener.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen at {local}: {error}"))
        })?;
        ready(host.local_address(&listener)?);
        host.watch_listener(&listener, LISTENER)?;
        Ok(Listener {
            wheel: Wheel::default(),
            host,
            shared,
            tally,
            scratch: vec![0; READ_BYTES.max(64 * 1024)].into(),
            clients: Slab::new(),
            listener: Some(listener),
            paused_until: None,
            runnable: Vec::new(),
            generation: 0,
            hand: 0,
            output: Vec::new(),
        })
    }

    /// Returns the time.
    pub(super) fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// Returns a generation that has not been used for a long time.
    pub(super) fn generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Makes the log write its collected lines, and counts those it has dropped; at the
    /// `end`, waits for it.
    pub(super) fn write_log(&mut self, end: bool) {
        if let Some(log) = &mut self.shared.log {
            match end {
                true => log.finish(),
                false => log.flush(),
            }
            self.tally.counters.log_lost(log.take_lost());
        }
    }

    // ---- Accepting ----------------------------------------------------------

    /// Returns whether there is no room for another client.
    pub(super) fn is_full(&self) -> bool {
        self.clients.len() >= self.shared.limits.connections.min(BEHIND - 1)
    }

    /// Stops accepting for a while: connections wait in the backlog, and then with the
    /// peers.
    pub(super) fn pause_accepting(&mut self) -> io::Result<()> {
        if self.paused_until.is_none()
            && let Some(listener) = &self.listener
        {
            self.host.unwatch_listener(listener)?;
        }
        self.paused_until = Some(self.now() + PAUSE);
        Ok(())
    }

    /// Resumes accepting, if it was paused.
    pub(super) fn resume_accepting(&mut self) -> io::Result<()> {
        if self.paused_until.take().is_some()
            && let Some(listener) = &self.listener
        {
            self.host.watch_listener(listener, LISTENER)?;
        }
        Ok(())
    }

    /// Stops accepting for good.
    pub(super) fn shut(&mut self) {
        self.shared.stopping = true;
        if let Some(listener) = self.listener.take() {
            // Some hosts require this before a descriptor is closed; a paused listener is
            // not watched, which does not matter now.
            let _ = self.host.unwatch_listener(&listener);
        }
    }

    /// Makes a client of a connection; returns its key.
    pub(super) fn accept(&mut self, stream: H::Stream, peer: SocketAddr) -> usize {
        let now = self.now();
        // The request often arrives with the end of the handshake.
        let link = Link::new(stream, self.generation(), true, true);
        let key = self.clients.insert(Client {
            link,
            session: P::new(peer.ip(), now),
            queued: false,
        });
        let open = self.clients.len() as u64;
        self.tally.counters.accepted(SERVICE, open);
        if self.host.watch_early()
            && let Some(client) = self.clients.get_mut(key)
        {
            // Watching is retried once there is something to wait for.
            let _ = client.link.watch(self.host, key, Interest::READABLE);
        }
        key
    }

    // ---- Clients ------------------------------------------------------------

    /// Returns the client of a token, unless it has gone.
    pub(super) fn client(&mut self, token: u64) -> Option<(usize, &mut Client<H::Stream, P>)> {
        let (key, generation) = parts(token);
        let client = self.clients.get_mut(key)?;
        client.link.is(generation).then_some((key, client))
    }

    /// Finds a client that has been idle for a while, which can make room; each search
    /// continues where the last one ended.
    pub(super) fn find_idle(&mut self) -> Option<usize> {
        let now = self.now();
        let places = self.clients.capacity().max(1);
        for _ in 0..EVICT_LOOKS.min(places) {
            self.hand = (self.hand + 1) % places;
            let idle = self.clients.get(self.hand).is_some_and(|client| {
                let connection = client.session.connection();
                connection.is_idle() && now.saturating_sub(connection.moved()) >= EVICT_AFTER
            });
            if idle {
                return Some(self.hand);
            }
        }
        None
    }

    /// Closes a client's connection that has been idle for a while, if there is one.
    /// Nothing behind it is at work for it.
    pub(super) fn evict(&mut self) -> bool {
        let idle = self.find_idle();
        idle.is_some_and(|key| self.close(key).is_some())
    }

    /// Does everything currently possible that concerns only the client.
    pub(super) fn run(&mut self, key: usize) -> Outcome {
        match self.clients.get_mut(key) {
            Some(client) => client.run(&mut self.shared, &mut self.scratch, &self.tally),
            None => Outcome::Waiting,
        }
    }

    /// Watches a client for what it waits for.
    pub(super) fn watch(&mut self, key: usize) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(key) else {
            return Ok(());
        };
        let connection = client.session.connection();
        let interest = Interest {
            readable: connection.wants_input(),
            writable: connection.is_sending(),
        };
        client.link.watch(self.host, key, interest)
    }

    /// Queues a client to run again, after the others.
    pub(super) fn queue(&mut self, key: usize) {
        if let Some(client) = self.clients.get_mut(key)
            && !client.queued
        {
            client.queued = true;
            self.runnable.push(key);
        }
    }

    /// Arms a client's timer, if its deadline is earlier than the timer's. A deadline
    /// moves with every request, nearly always further away, and is checked again when
    /// the timer expires.
    pub(super) fn arm(&mut self, key: usize) {
        let (Some(client), Ok(timer)) = (self.clients.get_mut(key), u32::try_from(key)) else {
            return;
        };
        let deadline = client.session.deadline(&self.shared);
        let armed = self.wheel.deadline(timer);
        if armed.is_none_or(|armed| deadline < armed) {
            self.wheel.arm(timer, deadline);
        }
    }

    /// Handles a client's expired timer: ends what is overdue; returns true if the client
    /// must run for it.
    pub(super) fn expire(&mut self, key: usize) -> bool {
        let now = self.now();
        let Some(client) = self.clients.get_mut(key) else {
            return false;
        };
        if now < client.session.deadline(&self.shared) {
            self.arm(key);
            return false;
        }
        client.session.expire(&mut self.shared);
        true
    }

    /// Closes a client's connection.
    pub(super) fn close(&mut self, key: usize) -> Option<P> {
        let client = self.clients.try_remove(key)?;
        if let Ok(timer) = u32::try_from(key) {
            self.wheel.cancel(timer);
        }
        client.link.close(self.host);
        let open = self.clients.len() as u64;
        self.tally.counters.open(SERVICE, open);
        Some(client.session)
    }
}

/// Returns whether the error is a lack of descriptors or memory.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}
