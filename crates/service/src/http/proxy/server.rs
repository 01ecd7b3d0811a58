//! The event loop of the proxy.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slab::Slab;

use super::super::log::Log;
use super::super::site::Clock;
use super::super::wheel::Wheel;
use super::Spec;
use super::link::{Client, Link, Outcome, READ_BYTES, Tally, UPSTREAM, Upstream, parts, token};
use super::origins::is_shortage;
use super::resolve::{Resolver, system};
use super::session::Session;
use super::shared::Shared;
use crate::counters::Counters;
use crate::services::STOP_WITHIN;
use crate::stream::{Event, Interest, StreamHost};

/// The listener's token; connections have their place and generation.
const LISTENER: u64 = u64::MAX;
/// Most connections accepted before those that are there have their turn.
const ACCEPT_BATCH: usize = 64;
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

/// The proxy as it runs.
pub(super) struct Server<'a, H: StreamHost> {
    pub(super) host: &'a H,
    /// `None` once it is to stop.
    pub(super) listener: Option<H::Listener>,
    pub(super) clients: Slab<Client<H::Stream>>,
    pub(super) upstreams: Slab<Upstream<H::Stream>>,
    /// Connections to origins that nobody has, the latest used last.
    pub(super) idle: HashMap<SocketAddr, Vec<usize>>,
    pub(super) resolver: Resolver,
    pub(super) shared: Shared,
    pub(super) wheel: Wheel,
    /// Connections that had to leave something for another turn.
    pub(super) runnable: Vec<usize>,
    pub(super) generation: u32,
    /// Where the search for an idle connection goes on.
    pub(super) hand: usize,
    pub(super) paused_until: Option<Duration>,
    pub(super) scratch: Box<[u8]>,
    /// Memory for output, lent to the connection whose turn it is.
    pub(super) spare: Vec<u8>,
    pub(super) tally: Tally<'a>,
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

    pub(super) fn link(&mut self, stream: H::Stream, there: bool) -> Link<H::Stream> {
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
    pub(super) fn make_room(&mut self) -> bool {
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
        if let Some(listener) = self.listener.take() {
            // With some hosts a descriptor must not be closed before; one that
            // is paused is not watched, which is no matter now.
            let _ = self.host.unwatch_listener(&listener);
        }
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
}
