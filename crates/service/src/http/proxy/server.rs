//! The event loop of the proxy.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slab::Slab;

use super::super::connection::{End, Output};
use super::super::log::Log;
use super::super::site::Clock;
use super::super::wheel::Wheel;
use super::Spec;
use super::resolve::{Known, Resolver, system};
use super::session::{Failure, Left, Origin, Session};
use super::shared::Shared;
use crate::counters::Counters;
use crate::services::STOP_WITHIN;
use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// The listener's token; connections have their place and generation.
const LISTENER: u64 = u64::MAX;
/// In a place: it is that of a connection to an origin.
const UPSTREAM: usize = 1 << 31;
/// Most connections accepted before those that are there have their turn.
const ACCEPT_BATCH: usize = 64;
/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Bytes sent for one connection before the others' turn.
const TURN_BYTES: usize = 256 * 1024;
/// How often the two sides of a connection have a go before the others' turn.
const ROUNDS: usize = 8;
/// For how long nothing is accepted after a lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks for answers of the resolver.
const RESOLVING: Duration = Duration::from_millis(5);
/// With all places taken, connections idle for so long make room.
const EVICT_AFTER: Duration = Duration::from_secs(1);
/// Connections looked at for one that can make room.
const EVICT_LOOKS: usize = 64;

/// Runs the proxy at `address` until `stop` is set, then finishes the answers
/// at hand. Counts as service `number` of `counters`. `ready` is called once it
/// listens, with the address.
///
/// # Errors
/// What listening or waiting reports.
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
    let local = SocketAddr::new(address, spec.port);
    let listener = host.listen(local, spec.limits.backlog).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {local}: {error}"))
    })?;
    ready(host.local_address(&listener)?);
    host.watch_listener(&listener, LISTENER)?;
    let begun = Instant::now();
    // The standard library's hasher is seeded at random.
    let random = RandomState::new().build_hasher().finish();
    let mut shared = Shared::new(spec.clone(), Clock::new(Duration::ZERO, unix()), random);
    shared.log = log;
    let mut server = Server {
        host,
        listener: Some(listener),
        clients: Slab::new(),
        upstreams: Slab::new(),
        idle: HashMap::new(),
        resolver: Resolver::new(system),
        shared,
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

/// A stream and what is known of it.
struct Link<S> {
    stream: S,
    generation: u32,
    /// A read, a write has not come back with `WouldBlock`, or short, since
    /// the last event.
    may_read: bool,
    may_write: bool,
    /// The peer will send nothing more: read to the end.
    hangup: bool,
    /// What it is watched for, if it is.
    watched: Option<Interest>,
}

impl<S: Stream> Link<S> {
    fn note(&mut self, event: &Event) {
        self.may_read |= event.readable;
        self.may_write |= event.writable;
        self.hangup |= event.hangup;
    }

    /// Watches it for what is wanted now.
    fn watch<H: StreamHost<Stream = S>>(
        &mut self,
        host: &H,
        key: usize,
        interest: Interest,
    ) -> io::Result<()> {
        let token = token(key, self.generation);
        match self.watched {
            Some(watched) if watched == interest => Ok(()),
            Some(_) => host.rewatch(&self.stream, token, interest),
            None => host.watch(&self.stream, token, interest),
        }?;
        self.watched = Some(interest);
        Ok(())
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(room);
        match &result {
            // A short read found no more, but for the end, which is an event of
            // its own.
            Ok(count) if *count > 0 && *count < room.len() && !self.hangup => self.may_read = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_read = false,
            _ => {}
        }
        result
    }

    fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let result = self.stream.write(bytes, more);
        match &result {
            // As much as there was room for.
            Ok(count) if *count < bytes.len() => self.may_write = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_write = false,
            _ => {}
        }
        result
    }
}

/// A client.
struct Client<S> {
    link: Link<S>,
    session: Session,
    /// The connection to the origin that it has.
    upstream: Option<usize>,
    /// It waits in `runnable`.
    queued: bool,
    /// The tick at which the wheel has it.
    due: u64,
}

/// A connection to an origin.
struct Upstream<S> {
    link: Link<S>,
    address: SocketAddr,
    /// Whose it is; nobody's while it waits to be used again.
    client: Option<usize>,
    /// It is not known to be there.
    connecting: bool,
    /// Addresses to try if this one is not.
    others: Vec<SocketAddr>,
    idle_since: Duration,
    due: u64,
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    fn go(&mut self, shared: &mut Shared, scratch: &mut [u8], tally: &Tally<'_>) -> Outcome {
        let now = shared.clock.now();
        let mut left = TURN_BYTES;
        let (mut answered, mut read) = (false, false);
        loop {
            if self.link.may_write
                && let Output::Bytes { bytes, more } = self.session.output()
            {
                match self.link.write(bytes, more) {
                    Ok(count) => {
                        tally.counters.sent(tally.number, count as u64);
                        self.session.sent(count, now);
                        left = left.saturating_sub(count);
                        if left == 0 {
                            return Outcome::Runnable;
                        }
                        continue;
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::Interrupted => continue,
                        io::ErrorKind::WouldBlock => {}
                        _ => return Outcome::Failed,
                    },
                }
            }
            match self.session.end() {
                End::Open => {}
                End::Shutdown => {
                    if self.link.stream.shutdown_write().is_err() {
                        return Outcome::Closed;
                    }
                    self.session.linger(now);
                    self.link.may_read = true;
                }
                End::Close => return Outcome::Closed,
            }
            if self.session.has_work() {
                if answered {
                    return Outcome::Runnable;
                }
                answered = true;
                self.session.proceed(shared);
                tally.count(shared, 0);
                continue;
            }
            if !self.link.may_read || !self.session.wants_input() {
                return Outcome::Waiting;
            }
            if read {
                return Outcome::Runnable;
            }
            match self
                .link
                .read(scratch.get_mut(..READ_BYTES).unwrap_or_default())
            {
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

/// What has come of a turn with an origin.
enum Went {
    /// Nothing.
    Nowhere,
    /// Bytes have moved.
    Somewhere,
    /// The connection could not be made, or broke: with this error.
    Wrong(io::Error),
}

impl<S: Stream> Upstream<S> {
    /// Sends and reads while it can: one read.
    fn go(&mut self, session: &mut Session, shared: &mut Shared, scratch: &mut [u8]) -> Went {
        if self.connecting {
            if !self.link.may_write {
                return Went::Nowhere;
            }
            // Whether it is there or has failed, the first write tells.
            session.connected(false, shared.clock.now());
        }
        let mut went = Went::Nowhere;
        loop {
            let (bytes, more) = session.upstream_output();
            if !bytes.is_empty() && self.link.may_write {
                match self.link.write(bytes, more) {
                    Ok(count) => {
                        self.connecting = false;
                        session.upstream_sent(count, shared);
                        went = Went::Somewhere;
                        continue;
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::Interrupted => continue,
                        io::ErrorKind::WouldBlock => {}
                        // It may have said why before it closed.
                        io::ErrorKind::BrokenPipe if !self.connecting => {
                            self.link.may_write = false;
                            self.link.may_read = true;
                        }
                        _ => return Went::Wrong(error),
                    },
                }
            }
            if self.connecting || !self.link.may_read || !session.upstream_wants_input() {
                return went;
            }
            match self
                .link
                .read(scratch.get_mut(..READ_BYTES).unwrap_or_default())
            {
                Ok(0) => {
                    session.upstream_end(shared);
                    return Went::Somewhere;
                }
                Ok(count) => {
                    let bytes = scratch.get(..count).unwrap_or_default();
                    session.upstream_receive(bytes, shared);
                    return Went::Somewhere;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return went,
                    _ => return Went::Wrong(error),
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
    /// Writes down what has been done, before whoever gets the answers can
    /// look.
    fn count(&self, shared: &mut Shared, received: u64) {
        let counts = std::mem::take(&mut shared.counts);
        self.counters
            .batch(self.number, counts.requests, received, counts.responses);
        for _ in 0..counts.refused {
            self.counters.error(self.number);
        }
        self.counters.proxy(&std::mem::take(&mut shared.uses));
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
    upstreams: Slab<Upstream<H::Stream>>,
    /// Connections to origins that nobody has, the latest used last.
    idle: HashMap<SocketAddr, Vec<usize>>,
    resolver: Resolver,
    shared: Shared,
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
        let mut resolved = Vec::new();
        let mut stop_at = None;
        loop {
            let now = self.shared.clock.now();
            if stop.load(Ordering::Relaxed) && stop_at.is_none() {
                stop_at = Some(now + self.shared.spec.limits.grace);
                self.begin_to_stop();
            }
            if stop_at.is_some_and(|at| self.clients.is_empty() || now >= at) {
                return Ok(());
            }
            let timeout = match (self.runnable.is_empty(), self.paused_until) {
                (false, _) => Duration::ZERO,
                (true, _) if self.resolver.is_busy() => RESOLVING,
                (true, Some(_)) => PAUSE,
                (true, None) => STOP_WITHIN,
            };
            if timeout > Duration::ZERO {
                self.tally.counters.waited();
            }
            self.host.wait(&mut events, timeout)?;
            let second = self.shared.clock.unix();
            self.shared.clock.set(begun.elapsed(), unix());
            if self.shared.clock.unix() != second
                && let Some(log) = &mut self.shared.log
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
                } else {
                    self.event(event);
                }
            }
            for key in turn.drain(..) {
                if let Some(client) = self.clients.get_mut(key)
                    && std::mem::take(&mut client.queued)
                {
                    self.turn(key);
                }
            }
            if self.resolver.is_busy() {
                self.resolver
                    .collect(self.shared.clock.now(), &mut resolved);
                for token in resolved.drain(..) {
                    let (key, generation) = parts(token);
                    if self.is_client(key, generation) {
                        self.turn(key);
                    }
                }
            }
            if accept || self.paused_until.is_some() {
                self.accept()?;
            }
            self.wheel.take(self.shared.clock.now(), &mut due);
            for (token, tick) in due.drain(..) {
                self.look_at_deadline(token, tick);
            }
            let stored = (self.shared.cache.len(), self.shared.cache.bytes());
            let counters = self.tally.counters;
            counters.proxy_state(stored, self.shared.cache.evicted(), self.upstreams.len());
        }
    }

    fn is_client(&self, key: usize, generation: u32) -> bool {
        let client = self.clients.get(key);
        client.is_some_and(|client| client.link.generation == generation)
    }

    /// Gives those whom an event concerns their turn. An event may outlive its
    /// connection by the rest of its batch.
    fn event(&mut self, event: &Event) {
        let (key, generation) = parts(event.token);
        if key & UPSTREAM == 0 {
            if self.is_client(key, generation)
                && let Some(client) = self.clients.get_mut(key)
            {
                client.link.note(event);
                self.turn(key);
            }
            return;
        }
        let key = key & !UPSTREAM;
        let Some(upstream) = self.upstreams.get_mut(key) else {
            return;
        };
        if upstream.link.generation != generation {
            return;
        }
        upstream.link.note(event);
        match upstream.client {
            Some(client) => self.turn(client),
            // Nothing is expected of it but its end.
            None => {
                let mut room = [0];
                let upstream = upstream.link.may_read.then_some(upstream);
                let read = upstream.map(|upstream| upstream.link.read(&mut room));
                match read {
                    Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Some(_) => self.close_upstream(key),
                    None => {}
                }
            }
        }
    }

    // ---- Clients ------------------------------------------------------------

    /// Accepts what is there, up to a batch; returns how many it took.
    fn accept(&mut self) -> io::Result<usize> {
        let now = self.shared.clock.now();
        if self.paused_until.is_some_and(|until| now < until) {
            return Ok(0);
        }
        let mut accepted = 0;
        for _ in 0..ACCEPT_BATCH {
            let full = self.clients.len() >= self.shared.spec.limits.connections.min(UPSTREAM - 1);
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
                Err(error) if is_shortage(&error) => {
                    self.tally.counters.error(self.tally.number);
                    if !self.make_room() {
                        return self.pause().map(|()| accepted);
                    }
                }
                // The peer has gone again, or the network had something to say
                // of it (accept(2)): the next one may be well.
                Err(_) => self.tally.counters.error(self.tally.number),
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
        self.paused_until = Some(self.shared.clock.now() + PAUSE);
        Ok(())
    }

    fn link(&mut self, stream: H::Stream, there: bool) -> Link<H::Stream> {
        self.generation = self.generation.wrapping_add(1);
        Link {
            stream,
            generation: self.generation,
            may_read: there,
            may_write: there,
            hangup: false,
            watched: None,
        }
    }

    fn welcome(&mut self, stream: H::Stream, peer: SocketAddr) {
        let now = self.shared.clock.now();
        // The request often comes along with the end of the handshake.
        let link = self.link(stream, true);
        let key = self.clients.insert(Client {
            link,
            session: Session::new(peer.ip(), now),
            upstream: None,
            queued: false,
            due: u64::MAX,
        });
        if self.host.watch_early()
            && let Some(client) = self.clients.get_mut(key)
        {
            let interest = Interest {
                readable: true,
                writable: false,
            };
            // It is tried again once there is something to wait for.
            let _ = client.link.watch(self.host, key, interest);
        }
        self.turn(key);
    }

    /// Looks for a connection that has been idle for a while, which can make
    /// room; each search goes on where the last one ended.
    fn find_idle(&mut self) -> Option<usize> {
        let now = self.shared.clock.now();
        let places = self.clients.capacity().max(1);
        for _ in 0..EVICT_LOOKS.min(places) {
            self.hand = (self.hand + 1) % places;
            let idle = self.clients.get(self.hand).is_some_and(|client| {
                client.session.is_idle()
                    && now.saturating_sub(client.session.moved()) >= EVICT_AFTER
            });
            if idle {
                return Some(self.hand);
            }
        }
        None
    }

    /// Gives back a descriptor that is not in use, if there is one.
    fn make_room(&mut self) -> bool {
        let spare = self.idle.values().find_map(|keys| keys.first().copied());
        if let Some(key) = spare {
            self.close_upstream(key);
            return true;
        }
        match self.find_idle() {
            Some(key) => self.close(key),
            None => return false,
        }
        true
    }

    /// Does for a connection, on both sides, what can be done now.
    fn turn(&mut self, key: usize) {
        match self.drive(key) {
            Outcome::Waiting => {
                let Some(client) = self.clients.get_mut(key) else {
                    return;
                };
                if self.shared.stopping && client.session.is_idle() {
                    return self.close(key);
                }
                let interest = Interest {
                    readable: client.session.wants_input(),
                    writable: client.session.is_sending(),
                };
                if client.link.watch(self.host, key, interest).is_err() {
                    return self.fail(key);
                }
                self.watch_upstream(key);
            }
            Outcome::Runnable => {
                if let Some(client) = self.clients.get_mut(key)
                    && !client.queued
                {
                    client.queued = true;
                    self.runnable.push(key);
                }
            }
            Outcome::Closed => return self.close(key),
            Outcome::Failed => return self.fail(key),
        }
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        let deadline = client.session.deadline(&self.shared);
        if Wheel::due(deadline) < client.due {
            client.due = self
                .wheel
                .enter(token(key, client.link.generation), deadline);
        }
    }

    fn drive(&mut self, key: usize) -> Outcome {
        for _ in 0..ROUNDS {
            let Some(client) = self.clients.get_mut(key) else {
                return Outcome::Waiting;
            };
            client.session.lend(&mut self.spare);
            let outcome = client.go(&mut self.shared, &mut self.scratch, &self.tally);
            if matches!(outcome, Outcome::Closed | Outcome::Failed) {
                client.session.give_back(&mut self.spare);
                return outcome;
            }
            self.part(key);
            self.attach(key);
            let moved = self.go_upstream(key);
            self.part(key);
            self.tally.count(&mut self.shared, 0);
            if let Some(client) = self.clients.get_mut(key) {
                client.session.give_back(&mut self.spare);
            }
            if !moved {
                return outcome;
            }
        }
        Outcome::Runnable
    }

    /// What the wheel has come to.
    fn look_at_deadline(&mut self, token: u64, tick: u64) {
        let now = self.shared.clock.now();
        let (key, generation) = parts(token);
        if key & UPSTREAM != 0 {
            let place = key & !UPSTREAM;
            let Some(upstream) = self.upstreams.get_mut(place) else {
                return;
            };
            if upstream.link.generation != generation || upstream.due != tick {
                return;
            }
            upstream.due = u64::MAX;
            if upstream.client.is_some() {
                return;
            }
            let deadline = upstream.idle_since + self.shared.spec.upstream.idle;
            if now < deadline {
                upstream.due = self.wheel.enter(token, deadline);
            } else {
                self.close_upstream(place);
            }
            return;
        }
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        // It has been entered again since.
        if client.link.generation != generation || client.due != tick {
            return;
        }
        client.due = u64::MAX;
        let deadline = client.session.deadline(&self.shared);
        if now < deadline {
            client.due = self.wheel.enter(token, deadline);
            return;
        }
        client.session.expire(&mut self.shared);
        self.turn(key);
    }

    /// Answers those who have got through, and lets go of everybody who is not
    /// waiting for an answer.
    fn begin_to_stop(&mut self) {
        self.paused_until = None;
        // Bounded: nobody can keep it from stopping by connecting.
        for _ in 0..self
            .shared
            .spec
            .limits
            .backlog
            .div_ceil(ACCEPT_BATCH as u32)
        {
            if !self.accept().is_ok_and(|accepted| accepted > 0) {
                break;
            }
        }
        self.shared.stopping = true;
        self.listener = None;
        let idle: Vec<usize> = self
            .clients
            .iter()
            .filter(|(_, client)| client.session.is_idle())
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
        let Some(client) = self.clients.try_remove(key) else {
            return;
        };
        if client.link.watched.is_some() {
            self.host.unwatch(&client.link.stream);
        }
        if let Some(upstream) = client.upstream {
            self.close_upstream(upstream);
        }
        self.tally
            .counters
            .open(self.tally.number, self.clients.len() as u64);
    }

    // ---- Origins ------------------------------------------------------------

    /// Gives a client whose request needs one a connection to the origin.
    fn attach(&mut self, key: usize) {
        let now = self.shared.clock.now();
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        if client.upstream.is_some() {
            return;
        }
        let Some((origin, fresh)) = client.session.wants_upstream() else {
            return;
        };
        let mut addresses = match origin {
            Origin::Address(address) => vec![*address],
            Origin::Name(name, port) => {
                let token = token(key, client.link.generation);
                match self.resolver.ask(name, token, now) {
                    Known::Addresses(all) => {
                        let port = *port;
                        all.into_iter()
                            .map(|ip| SocketAddr::new(ip, port))
                            .collect()
                    }
                    Known::Soon => return,
                    Known::Busy => {
                        return client
                            .session
                            .upstream_failed(Failure::Full, &mut self.shared);
                    }
                }
            }
        };
        if !fresh && let Some(&address) = addresses.first() {
            while let Some(place) = self.idle.get_mut(&address).and_then(Vec::pop) {
                let Some(upstream) = self.upstreams.get_mut(place) else {
                    continue;
                };
                upstream.client = Some(key);
                upstream.link.may_write = true;
                client.upstream = Some(place);
                client.session.connected(true, now);
                self.tally.counters.proxy_reused();
                return;
            }
        }
        addresses.reverse();
        self.connect(key, addresses);
    }

    /// Connects to the last of `addresses`, or the one before it, for a client.
    fn connect(&mut self, key: usize, mut addresses: Vec<SocketAddr>) {
        let mut failure = Failure::Broken;
        while let Some(address) = addresses.pop() {
            if self.upstreams.len() >= self.shared.spec.upstream.connections.min(UPSTREAM - 1) {
                failure = Failure::Full;
                break;
            }
            let mut connected = self.host.connect(address);
            if connected.as_ref().is_err_and(is_shortage) && self.make_room() {
                connected = self.host.connect(address);
            }
            let (stream, progress) = match connected {
                Ok(connected) => connected,
                Err(error) => {
                    failure = failure_of(&error);
                    continue;
                }
            };
            self.tally.counters.proxy_connected();
            let there = progress == Progress::Done;
            let mut link = self.link(stream, there);
            // No answer comes before the question.
            link.may_read = false;
            let place = self.upstreams.insert(Upstream {
                link,
                address,
                client: Some(key),
                connecting: !there,
                others: addresses,
                idle_since: Duration::ZERO,
                due: u64::MAX,
            });
            if let Some(client) = self.clients.get_mut(key) {
                client.upstream = Some(place);
                match there {
                    true => client.session.connected(false, self.shared.clock.now()),
                    false => client.session.connecting(),
                }
            }
            return;
        }
        if let Some(client) = self.clients.get_mut(key) {
            client.session.upstream_failed(failure, &mut self.shared);
        }
    }

    /// Does what can be done on the origin's side; returns whether something
    /// was.
    fn go_upstream(&mut self, key: usize) -> bool {
        let Some(client) = self.clients.get_mut(key) else {
            return false;
        };
        let Some(place) = client.upstream else {
            // An answer without an origin.
            return client.session.is_sending() && client.link.may_write;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return false;
        };
        match upstream.go(&mut client.session, &mut self.shared, &mut self.scratch) {
            Went::Nowhere => false,
            Went::Somewhere => true,
            Went::Wrong(error) => {
                let others = std::mem::take(&mut upstream.others);
                if upstream.connecting && !others.is_empty() {
                    client.upstream = None;
                    self.close_upstream(place);
                    self.connect(key, others);
                } else {
                    let failure = failure_of(&error);
                    client.session.upstream_failed(failure, &mut self.shared);
                }
                true
            }
        }
    }

    /// Parts a client and the connection to the origin that it needs no more.
    fn part(&mut self, key: usize) {
        let now = self.shared.clock.now();
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        let Some(left) = client.session.take_left() else {
            return;
        };
        let Some(place) = client.upstream.take() else {
            return;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return;
        };
        let address = upstream.address;
        let idle = self.idle.get(&address).map_or(0, Vec::len);
        let limits = &self.shared.spec.upstream;
        if left == Left::Close || upstream.link.hangup || idle >= limits.idle_connections {
            return self.close_upstream(place);
        }
        upstream.client = None;
        upstream.idle_since = now;
        let interest = Interest {
            readable: true,
            writable: false,
        };
        let watched = upstream.link.watch(self.host, place | UPSTREAM, interest);
        let deadline = now + limits.idle;
        if Wheel::due(deadline) < upstream.due {
            let token = token(place | UPSTREAM, upstream.link.generation);
            upstream.due = self.wheel.enter(token, deadline);
        }
        self.idle.entry(address).or_default().push(place);
        if watched.is_err() {
            self.close_upstream(place);
        }
    }

    /// Watches the connection to a client's origin for what is wanted of it.
    fn watch_upstream(&mut self, key: usize) {
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        let Some(place) = client.upstream else {
            return;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return;
        };
        let interest = Interest {
            readable: !upstream.connecting && client.session.upstream_wants_input(),
            writable: upstream.connecting || !client.session.upstream_output().0.is_empty(),
        };
        let watched = upstream.link.watch(self.host, place | UPSTREAM, interest);
        if watched.is_err() {
            let failure = Failure::Full;
            client.session.upstream_failed(failure, &mut self.shared);
            client.queued = true;
            self.runnable.push(key);
        }
    }

    fn close_upstream(&mut self, place: usize) {
        let Some(upstream) = self.upstreams.try_remove(place) else {
            return;
        };
        if upstream.link.watched.is_some() {
            self.host.unwatch(&upstream.link.stream);
        }
        if upstream.client.is_none()
            && let Some(keys) = self.idle.get_mut(&upstream.address)
        {
            keys.retain(|&key| key != place);
            if keys.is_empty() {
                self.idle.remove(&upstream.address);
            }
        }
    }
}

/// Whether it is for want of descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// What the client is told of it.
fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::Timeout,
        _ if is_shortage(error) => Failure::Full,
        _ => Failure::Broken,
    }
}
