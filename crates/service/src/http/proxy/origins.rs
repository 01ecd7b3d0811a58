//! Connections to origins: made, given to clients, taken back and kept.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use slab::Slab;

use super::super::front::{self, is_shortage};
use super::super::link::{BEHIND, Link, READ_BYTES, parts};
use super::super::wheel::Wheel;
use super::pool::Pool;
use super::prefix::{Prefix, Shares};
use super::resolve::{Known, Resolver, system};
use super::session::{Failure, Left, Origin, Session};
use super::shared::Shared;
use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// The proxy's clients.
pub(super) type Front<'a, H> = front::Front<'a, H, Session>;

/// A connection to an origin.
struct Upstream<S> {
    link: Link<S>,
    address: SocketAddr,
    /// Whose it is; nobody's while it waits to be used again.
    client: Option<usize>,
    /// On whose account it is in use.
    prefix: Option<Prefix>,
    /// It is not known to be there.
    connecting: bool,
    /// Addresses to try if this one is not.
    others: Vec<SocketAddr>,
    idle_since: Duration,
    /// The tick at which the wheel has it.
    due: u64,
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
            let room = scratch.get_mut(..READ_BYTES).unwrap_or_default();
            match self.link.read(room) {
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

    /// Whether nothing has come of what nobody has asked for. Nothing is
    /// expected of a connection that nobody uses but its end; anything else
    /// would be taken for the answer to the next request.
    fn is_silent(&mut self) -> bool {
        if !self.link.may_read {
            return true;
        }
        let read = self.link.read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The connections to origins, and the look-ups of their names.
pub(super) struct Origins<S> {
    upstreams: Slab<Upstream<S>>,
    idle: Pool,
    /// Those in use.
    shares: Shares,
    pub(super) resolver: Resolver,
}

impl<S: Stream> Origins<S> {
    /// None yet.
    pub(super) fn new() -> Self {
        Origins {
            upstreams: Slab::new(),
            idle: Pool::default(),
            shares: Shares::default(),
            resolver: Resolver::new(system),
        }
    }

    /// Connections there are.
    pub(super) fn len(&self) -> usize {
        self.upstreams.len()
    }

    /// The connection of a token, unless it has gone.
    fn find(&mut self, token: u64) -> Option<(usize, &mut Upstream<S>)> {
        let (key, generation) = parts(token);
        let place = key & !BEHIND;
        let upstream = self.upstreams.get_mut(place)?;
        upstream.link.is(generation).then_some((place, upstream))
    }

    /// Takes note of an event; returns the client that needs a turn for it.
    pub(super) fn note<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        event: &Event,
    ) -> Option<usize> {
        let (place, upstream) = self.find(event.token)?;
        upstream.link.note(event);
        if upstream.client.is_some() {
            return upstream.client;
        }
        if !upstream.is_silent() {
            self.close(front, place);
        }
        None
    }

    /// Gives a client whose request needs one a connection to the origin.
    pub(super) fn attach<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        key: usize,
    ) {
        let now = front.now();
        let Some(client) = front.clients.get_mut(key) else {
            return;
        };
        if client.session.place.is_some() {
            return;
        }
        let Some((origin, fresh)) = client.session.wants_upstream() else {
            return;
        };
        let peer = client.session.connection().peer;
        let spec = &front.world.spec;
        let mut addresses = match origin {
            Origin::Address(address) => vec![*address],
            Origin::Name(name, port) => {
                match self.resolver.ask(name, client.link.token(key), peer, now) {
                    Known::Addresses(all) => {
                        let port = *port;
                        let all = all.into_iter();
                        all.map(|ip| SocketAddr::new(ip, port)).collect()
                    }
                    Known::Soon => return,
                    Known::Busy => {
                        let failure = Failure::Full;
                        return client.session.upstream_failed(failure, &mut front.world);
                    }
                }
            }
        };
        // Of the origin that the proxy was told there is no doubt.
        let has_some = !addresses.is_empty();
        if spec.origin.is_none() {
            addresses.retain(|address| spec.access.reaches(address.ip()));
        }
        if has_some && addresses.is_empty() {
            let failure = Failure::Denied;
            return client.session.upstream_failed(failure, &mut front.world);
        }
        let prefix = Prefix::of(peer);
        if !self.shares.take(prefix, spec.upstream.prefix_connections) {
            let failure = Failure::Full;
            return client.session.upstream_failed(failure, &mut front.world);
        }
        if !fresh && let Some(&address) = addresses.first() {
            while let Some(place) = self.idle.take(address) {
                let Some(upstream) = self.upstreams.get_mut(place) else {
                    continue;
                };
                (upstream.client, upstream.prefix) = (Some(key), Some(prefix));
                upstream.link.may_write = true;
                client.session.place = Some(place);
                client.session.connected(true, now);
                front.tally.counters.proxy_reused();
                return;
            }
        }
        addresses.reverse();
        self.connect(front, key, prefix, addresses);
    }

    /// Connects to the last of `addresses`, or the one before it, for a client,
    /// on the account of a prefix that has been charged for it.
    fn connect<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        key: usize,
        prefix: Prefix,
        mut addresses: Vec<SocketAddr>,
    ) {
        let mut failure = Failure::Broken;
        while let Some(address) = addresses.pop() {
            // Those that nobody uses are not in the way of those that somebody
            // needs.
            let most = front.world.spec.upstream.connections.min(BEHIND - 1);
            if self.len() >= most && !self.close_idle(front) {
                failure = Failure::Full;
                break;
            }
            let mut connected = front.host.connect(address);
            if connected.as_ref().is_err_and(is_shortage)
                && (self.close_idle(front) || front.evict())
            {
                connected = front.host.connect(address);
            }
            let (stream, progress) = match connected {
                Ok(connected) => connected,
                Err(error) => {
                    failure = failure_of(&error);
                    continue;
                }
            };
            front.tally.counters.proxy_connected();
            let there = progress == Progress::Done;
            let place = self.upstreams.insert(Upstream {
                // No answer comes before the question.
                link: Link::new(stream, front.generation(), false, there),
                address,
                client: Some(key),
                prefix: Some(prefix),
                connecting: !there,
                others: addresses,
                idle_since: Duration::ZERO,
                due: u64::MAX,
            });
            let now = front.now();
            if let Some(client) = front.clients.get_mut(key) {
                client.session.place = Some(place);
                match there {
                    true => client.session.connected(false, now),
                    false => client.session.connecting(),
                }
            }
            return;
        }
        self.shares.give(prefix);
        if let Some(client) = front.clients.get_mut(key) {
            client.session.upstream_failed(failure, &mut front.world);
        }
    }

    /// Does what can be done on the origin's side; returns whether something
    /// was.
    pub(super) fn go<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        key: usize,
    ) -> bool {
        let Some(client) = front.clients.get_mut(key) else {
            return false;
        };
        let Some(place) = client.session.place else {
            // An answer without an origin.
            return client.session.connection().is_sending() && client.link.may_write;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return false;
        };
        match upstream.go(&mut client.session, &mut front.world, &mut front.scratch) {
            Went::Nowhere => false,
            Went::Somewhere => true,
            Went::Wrong(error) => {
                let others = std::mem::take(&mut upstream.others);
                if upstream.connecting
                    && !others.is_empty()
                    && let Some(prefix) = upstream.prefix.take()
                {
                    client.session.place = None;
                    self.close(front, place);
                    self.connect(front, key, prefix, others);
                } else {
                    let failure = failure_of(&error);
                    client.session.upstream_failed(failure, &mut front.world);
                }
                true
            }
        }
    }

    /// Parts a client and the connection to the origin that it needs no more.
    pub(super) fn part<H: StreamHost<Stream = S>>(&mut self, front: &mut Front<'_, H>, key: usize) {
        let now = front.now();
        let Some(client) = front.clients.get_mut(key) else {
            return;
        };
        let Some(left) = client.session.take_left() else {
            return;
        };
        let Some(place) = client.session.place.take() else {
            return;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return;
        };
        let address = upstream.address;
        let limits = &front.world.spec.upstream;
        if left == Left::Close
            || upstream.link.hangup
            || !upstream.is_silent()
            || self.idle.len(address) >= limits.idle_connections
        {
            return self.close(front, place);
        }
        upstream.client = None;
        upstream.idle_since = now;
        if let Some(prefix) = upstream.prefix.take() {
            self.shares.give(prefix);
        }
        let key = place | BEHIND;
        let watched = upstream.link.watch(front.host, key, Interest::READABLE);
        let deadline = now + limits.idle;
        if Wheel::due(deadline) < upstream.due {
            upstream.due = front.wheel.enter(upstream.link.token(key), deadline);
        }
        self.idle.put(address, place);
        if watched.is_err() {
            self.close(front, place);
        }
    }

    /// Watches the connection to a client's origin for what is wanted of it.
    pub(super) fn watch_for<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        key: usize,
    ) {
        let Some(client) = front.clients.get_mut(key) else {
            return;
        };
        let Some(place) = client.session.place else {
            return;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return;
        };
        let interest = Interest {
            readable: !upstream.connecting && client.session.upstream_wants_input(),
            writable: upstream.connecting || !client.session.upstream_output().0.is_empty(),
        };
        let watched = upstream.link.watch(front.host, place | BEHIND, interest);
        if watched.is_err() {
            let failure = Failure::Full;
            client.session.upstream_failed(failure, &mut front.world);
            front.queue(key);
        }
    }

    /// Closes a connection that nobody has used for too long.
    pub(super) fn look_at_idle<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        token: u64,
        tick: u64,
    ) {
        let Some((place, upstream)) = self.find(token) else {
            return;
        };
        // It has been entered again since.
        if upstream.due != tick {
            return;
        }
        upstream.due = u64::MAX;
        if upstream.client.is_some() {
            return;
        }
        let deadline = upstream.idle_since + front.world.spec.upstream.idle;
        if front.now() < deadline {
            upstream.due = front.wheel.enter(token, deadline);
        } else {
            self.close(front, place);
        }
    }

    /// Closes one that nobody uses, if there is one.
    pub(super) fn close_idle<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
    ) -> bool {
        let idle = self.idle.any();
        idle.is_some_and(|place| {
            self.close(front, place);
            true
        })
    }

    /// Closes a connection.
    pub(super) fn close<H: StreamHost<Stream = S>>(
        &mut self,
        front: &mut Front<'_, H>,
        place: usize,
    ) {
        if let Some(upstream) = self.upstreams.try_remove(place) {
            upstream.link.close(front.host);
            if let Some(prefix) = upstream.prefix {
                self.shares.give(prefix);
            }
            self.idle.closed(upstream.address, place);
        }
    }
}

/// What the client is told of it.
fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::Timeout,
        // No port is free, for one: what is in TIME_WAIT passes.
        io::ErrorKind::AddrNotAvailable => Failure::Full,
        _ if is_shortage(error) => Failure::Full,
        _ => Failure::Broken,
    }
}
