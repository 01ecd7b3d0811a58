//! The event loop of the web server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slab::Slab;

use super::Spec;
use super::connection::{Connection, End, Output};
use super::files::Files;
use super::log::Log;
use super::site::{Clock, Site};
use super::wheel::Wheel;
use crate::counters::Counters;
use crate::services::STOP_WITHIN;
use crate::stream::{Event, Interest, Stream, StreamHost};

/// The listener's token; connections have their place and generation.
const LISTENER: u64 = u64::MAX;
/// Most connections accepted before those that are there have their turn.
const ACCEPT_BATCH: usize = 64;
/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Bytes sent for one connection before the others' turn.
const TURN_BYTES: usize = 256 * 1024;
/// For how long nothing is accepted after a lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
/// With all places taken, connections idle for so long make room.
const EVICT_AFTER: Duration = Duration::from_secs(1);
/// Connections looked at for one that can make room.
const EVICT_LOOKS: usize = 64;

/// Serves the files of `spec.root` at `address` until `stop` is set, then
/// finishes the responses at hand. Counts as service `number` of `counters`.
/// `ready` is called once it listens, with the address.
///
/// # Errors
/// What opening the root, listening or waiting reports.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a server, each once"
)]
pub fn serve<H: StreamHost>(
    host: &H,
    address: IpAddr,
    spec: &Spec,
    log: Option<Log>,
    counters: &Counters,
    number: usize,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let files = Files::open(&spec.root).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot serve {}: {error}", spec.root.display()),
        )
    })?;
    let local = SocketAddr::new(address, spec.port);
    let listener = host.listen(local, spec.limits.backlog).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {local}: {error}"))
    })?;
    ready(host.local_address(&listener)?);
    host.watch_listener(&listener, LISTENER)?;
    let begun = Instant::now();
    let mut site = Site::new(files, Clock::new(Duration::ZERO, unix()), spec.limits);
    site.work = spec.work;
    site.log = log;
    let mut server = Server {
        host,
        listener: Some(listener),
        clients: Slab::new(),
        site,
        wheel: Wheel::new(Duration::ZERO),
        runnable: Vec::new(),
        generation: 0,
        hand: 0,
        paused_until: None,
        scratch: vec![0; READ_BYTES.max(64 * 1024)].into(),
        spare: Vec::new(),
        tally: Tally { counters, number },
    };
    server.run(begun, stop)
}

fn unix() -> u64 {
    // A clock before 1970 is as good as none.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// A connection and its stream.
struct Client<S> {
    stream: S,
    connection: Connection,
    generation: u32,
    /// A read, a write has not come back with `WouldBlock`, or short, since
    /// the last event.
    may_read: bool,
    may_write: bool,
    /// The peer will send nothing more: read to the end.
    hangup: bool,
    /// It waits in `runnable`.
    queued: bool,
    /// What it is watched for, if it is.
    watched: Option<Interest>,
    /// The tick at which the wheel has it.
    due: u64,
}

/// What becomes of a connection after its turn.
enum Outcome {
    /// It waits for its peer.
    Waiting,
    /// There is more to do, after the others' turn.
    Runnable,
    /// It is over.
    Closed,
    /// It broke.
    Failed,
}

impl<S: Stream> Client<S> {
    /// Sends, answers and reads while it can, within bounds: one read, one
    /// burst of requests that had waited, [`TURN_BYTES`].
    fn go(&mut self, site: &mut Site<Files>, scratch: &mut [u8], tally: &Tally<'_>) -> Outcome {
        let now = site.clock.now();
        let mut left = TURN_BYTES;
        let (mut answered, mut read) = (false, false);
        loop {
            let sent = match self.connection.output() {
                Output::Nothing => None,
                _ if !self.may_write => None,
                Output::Bytes { bytes, more } => {
                    Some((self.stream.write(bytes, more), bytes.len()))
                }
                Output::File {
                    file,
                    offset,
                    length,
                } => {
                    let length = length.min(left as u64);
                    Some((self.stream.send_file(file, offset, length, scratch), 0))
                }
            };
            match sent {
                None => {}
                Some((Ok(count), wanted)) => {
                    // As much as there was room for.
                    if count < wanted {
                        self.may_write = false;
                    }
                    tally.counters.sent(tally.number, count as u64);
                    self.connection.sent(count, now);
                    left = left.saturating_sub(count);
                    if left == 0 {
                        return Outcome::Runnable;
                    }
                    continue;
                }
                Some((Err(error), _)) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => self.may_write = false,
                    _ => return Outcome::Failed,
                },
            }
            match self.connection.end() {
                End::Open => {}
                End::Shutdown => {
                    if self.stream.shutdown_write().is_err() {
                        return Outcome::Closed;
                    }
                    self.connection.linger(now);
                    self.may_read = true;
                }
                End::Close => return Outcome::Closed,
            }
            if self.connection.has_work() {
                if answered {
                    return Outcome::Runnable;
                }
                answered = true;
                self.connection.proceed(site);
                tally.count(site, 0);
                continue;
            }
            if !self.may_read || !self.connection.wants_input() {
                return Outcome::Waiting;
            }
            if read {
                return Outcome::Runnable;
            }
            let room = scratch.get_mut(..READ_BYTES).unwrap_or_default();
            match self.stream.read(room) {
                Ok(0) => self.connection.end_of_input(),
                Ok(count) => {
                    // A short read found no more, but for the end, which is an
                    // event of its own.
                    if count < READ_BYTES && !self.hangup {
                        self.may_read = false;
                    }
                    read = true;
                    let bytes = scratch.get(..count).unwrap_or_default();
                    self.connection.receive(bytes, site);
                    tally.count(site, count as u64);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => self.may_read = false,
                    _ => return Outcome::Failed,
                },
            }
        }
    }
}

/// Where it is counted.
struct Tally<'a> {
    counters: &'a Counters,
    number: usize,
}

impl Tally<'_> {
    /// Writes down what connections have done, before whoever gets the
    /// responses can look.
    fn count(&self, site: &mut Site<Files>, received: u64) {
        let counts = std::mem::take(&mut site.counts);
        self.counters
            .batch(self.number, counts.requests, received, counts.responses);
        for _ in 0..counts.refused {
            self.counters.error(self.number);
        }
    }
}

/// The place and the generation that a token is made of.
fn parts(token: u64) -> (usize, u32) {
    ((token & 0xffff_ffff) as usize, (token >> 32) as u32)
}

fn token(key: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | key as u64
}

struct Server<'a, H: StreamHost> {
    host: &'a H,
    /// `None` once it is to stop.
    listener: Option<H::Listener>,
    clients: Slab<Client<H::Stream>>,
    site: Site<Files>,
    wheel: Wheel,
    /// Connections that had to leave something for another turn.
    runnable: Vec<usize>,
    generation: u32,
    /// Where the search for an idle connection goes on.
    hand: usize,
    paused_until: Option<Duration>,
    scratch: Box<[u8]>,
    /// Memory for output, lent to the connection whose turn it is.
    spare: Vec<u8>,
    tally: Tally<'a>,
}

impl<H: StreamHost> Server<'_, H> {
    fn run(&mut self, begun: Instant, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::new();
        let mut turn = Vec::new();
        let mut due = Vec::new();
        let mut stop_at = None;
        loop {
            let now = self.site.clock.now();
            if stop.load(Ordering::Relaxed) && stop_at.is_none() {
                stop_at = Some(now + self.site.limits.grace);
                self.begin_to_stop();
            }
            if stop_at.is_some_and(|at| self.clients.is_empty() || now >= at) {
                return Ok(());
            }
            let timeout = match (self.runnable.is_empty(), self.paused_until) {
                (false, _) => Duration::ZERO,
                (true, Some(_)) => PAUSE,
                (true, None) => STOP_WITHIN,
            };
            if timeout > Duration::ZERO {
                self.tally.counters.waited();
            }
            self.host.wait(&mut events, timeout)?;
            let second = self.site.clock.unix();
            self.site.clock.set(begun.elapsed(), unix());
            if self.site.clock.unix() != second
                && let Some(log) = &mut self.site.log
            {
                log.flush();
            }
            self.tally.counters.turned();
            // Connections that are there come before new ones, so that a flood
            // of these does not starve those.
            let mut accept = false;
            std::mem::swap(&mut turn, &mut self.runnable);
            for event in &events {
                if event.token == LISTENER {
                    accept = true;
                } else if let Some(key) = self.note(event) {
                    self.turn(key);
                }
            }
            for key in turn.drain(..) {
                if let Some(client) = self.clients.get_mut(key)
                    && std::mem::take(&mut client.queued)
                {
                    self.turn(key);
                }
            }
            if accept || self.paused_until.is_some() {
                self.accept()?;
            }
            self.wheel.take(self.site.clock.now(), &mut due);
            for (token, tick) in due.drain(..) {
                self.look_at_deadline(token, tick);
            }
        }
    }

    /// Remembers what an event says; returns whose it is.
    fn note(&mut self, event: &Event) -> Option<usize> {
        let (key, generation) = parts(event.token);
        let client = self.clients.get_mut(key)?;
        // An event may outlive its connection by the rest of its batch.
        if client.generation != generation {
            return None;
        }
        client.may_read |= event.readable;
        client.may_write |= event.writable;
        client.hangup |= event.hangup;
        Some(key)
    }

    /// Accepts what is there, up to a batch; returns how many it took.
    fn accept(&mut self) -> io::Result<usize> {
        let now = self.site.clock.now();
        if self.paused_until.is_some_and(|until| now < until) {
            return Ok(0);
        }
        let mut accepted = 0;
        for _ in 0..ACCEPT_BATCH {
            let full = self.clients.len() >= self.site.limits.connections;
            let idle = if full { self.find_idle() } else { None };
            if full && idle.is_none() {
                return self.pause().map(|()| accepted);
            }
            let Some(listener) = &self.listener else {
                return Ok(accepted);
            };
            match self.host.accept(listener) {
                Ok(Some((stream, peer))) => {
                    accepted += 1;
                    if let Some(idle) = idle {
                        self.close(idle);
                    }
                    let open = self.clients.len() as u64 + 1;
                    self.tally.counters.accepted(self.tally.number, open);
                    self.welcome(stream, peer);
                }
                Ok(None) => break,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        self.tally.counters.error(self.tally.number);
                        match self.find_idle() {
                            Some(idle) => self.close(idle),
                            None => return self.pause().map(|()| accepted),
                        }
                    }
                    // The peer has gone again, or the network had something to
                    // say of it (accept(2)): the next one may be well.
                    _ => self.tally.counters.error(self.tally.number),
                },
            }
        }
        if self.paused_until.take().is_some()
            && let Some(listener) = &self.listener
        {
            self.host.watch_listener(listener, LISTENER)?;
        }
        Ok(accepted)
    }

    /// Stops accepting for a while: what is not accepted waits in the backlog,
    /// and then with the peers.
    fn pause(&mut self) -> io::Result<()> {
        if self.paused_until.is_none()
            && let Some(listener) = &self.listener
        {
            self.host.unwatch_listener(listener)?;
        }
        self.paused_until = Some(self.site.clock.now() + PAUSE);
        Ok(())
    }

    fn welcome(&mut self, stream: H::Stream, peer: SocketAddr) {
        let now = self.site.clock.now();
        self.generation = self.generation.wrapping_add(1);
        let key = self.clients.insert(Client {
            stream,
            connection: Connection::new(peer.ip(), now),
            generation: self.generation,
            // The request often comes along with the end of the handshake.
            may_read: true,
            may_write: true,
            hangup: false,
            queued: false,
            watched: None,
            due: u64::MAX,
        });
        if self.host.watch_early()
            && let Some(client) = self.clients.get_mut(key)
        {
            let interest = Interest {
                readable: true,
                writable: false,
            };
            let token = token(key, client.generation);
            if self.host.watch(&client.stream, token, interest).is_ok() {
                client.watched = Some(interest);
            }
        }
        self.turn(key);
    }

    /// Looks for a connection that has been idle for a while, which can make
    /// room; each search goes on where the last one ended.
    fn find_idle(&mut self) -> Option<usize> {
        let now = self.site.clock.now();
        let places = self.clients.capacity().max(1);
        for _ in 0..EVICT_LOOKS.min(places) {
            self.hand = (self.hand + 1) % places;
            let idle = self.clients.get(self.hand).is_some_and(|client| {
                client.connection.is_idle()
                    && now.saturating_sub(client.connection.moved()) >= EVICT_AFTER
            });
            if idle {
                return Some(self.hand);
            }
        }
        None
    }

    /// Does for a connection what can be done now.
    fn turn(&mut self, key: usize) {
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        client.connection.lend(&mut self.spare);
        let outcome = client.go(&mut self.site, &mut self.scratch, &self.tally);
        client.connection.give_back(&mut self.spare);
        match outcome {
            Outcome::Waiting => {
                if self.site.stopping && client.connection.is_idle() {
                    return self.close(key);
                }
                let interest = Interest {
                    readable: client.connection.wants_input(),
                    writable: client.connection.is_sending(),
                };
                let token = token(key, client.generation);
                let watched = match client.watched {
                    Some(watched) if watched == interest => Ok(()),
                    Some(_) => self.host.rewatch(&client.stream, token, interest),
                    None => self.host.watch(&client.stream, token, interest),
                };
                if watched.is_err() {
                    return self.fail(key);
                }
                client.watched = Some(interest);
            }
            Outcome::Runnable => {
                if !client.queued {
                    client.queued = true;
                    self.runnable.push(key);
                }
            }
            Outcome::Closed => return self.close(key),
            Outcome::Failed => return self.fail(key),
        }
        let deadline = client.connection.deadline(&self.site);
        if Wheel::due(deadline) < client.due {
            client.due = self.wheel.enter(token(key, client.generation), deadline);
        }
    }

    /// What the wheel has come to.
    fn look_at_deadline(&mut self, token: u64, tick: u64) {
        let (key, generation) = parts(token);
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        // It has been entered again since.
        if client.generation != generation || client.due != tick {
            return;
        }
        client.due = u64::MAX;
        let deadline = client.connection.deadline(&self.site);
        if self.site.clock.now() < deadline {
            client.due = self.wheel.enter(token, deadline);
            return;
        }
        client.connection.expire(&mut self.site);
        self.turn(key);
    }

    /// Answers those who have got through, and lets go of everybody who is not
    /// waiting for an answer.
    fn begin_to_stop(&mut self) {
        self.paused_until = None;
        // Bounded: nobody can keep it from stopping by connecting.
        for _ in 0..self.site.limits.backlog.div_ceil(ACCEPT_BATCH as u32) {
            if !self.accept().is_ok_and(|accepted| accepted > 0) {
                break;
            }
        }
        self.site.stopping = true;
        if let Some(listener) = self.listener.take() {
            // With some hosts a descriptor must not be closed before; one that
            // is paused is not watched, which is no matter now.
            let _ = self.host.unwatch_listener(&listener);
        }
        let idle: Vec<usize> = self
            .clients
            .iter()
            .filter(|(_, client)| client.connection.is_idle())
            .map(|(key, _)| key)
            .collect();
        for key in idle {
            self.close(key);
        }
    }

    fn fail(&mut self, key: usize) {
        self.tally.counters.error(self.tally.number);
        self.close(key);
    }

    fn close(&mut self, key: usize) {
        if let Some(client) = self.clients.try_remove(key) {
            if client.watched.is_some() {
                self.host.unwatch(&client.stream);
            }
            self.tally
                .counters
                .open(self.tally.number, self.clients.len() as u64);
        }
    }
}
