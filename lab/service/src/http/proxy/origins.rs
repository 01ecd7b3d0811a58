//! Connections to origins: one for each request.

use std::io;
use std::net::SocketAddr;

use slab::Slab;

use super::super::link::{BEHIND, Link, READ_BYTES, parts};
use super::super::listener::{self, ClientConnection, is_shortage};
use super::resolve::{Known, Resolver};
use super::session::{Failure, Origin, Session, Shared};
use crate::stream::{Event, Interest, Progress, Stream, StreamHost};

/// The proxy's clients.
pub(super) type Listener<'a, H> = listener::Listener<'a, H, Session>;

/// A connection to an origin.
struct Upstream<S> {
    link: Link<S>,
    /// The key of its client.
    client: usize,
    connecting: bool,
    /// Addresses to try next if the connection fails.
    others: Vec<SocketAddr>,
}

/// The result of running an origin's connection.
enum Went {
    /// Nothing.
    Nowhere,
    /// Bytes have moved.
    Somewhere,
    /// The connection could not be established, or failed with this error.
    Wrong(io::Error),
}

impl<S: Stream> Upstream<S> {
    /// Sends and reads while it can: one read.
    fn run(&mut self, session: &mut Session, shared: &mut Shared, scratch: &mut [u8]) -> Went {
        if self.connecting {
            if !self.link.may_write {
                return Went::Nowhere;
            }
            // The first write shows whether it is established or has failed.
            session.connected(shared.clock.now());
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
                        // It may have sent the reason before it closed.
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
}

/// The connections to origins, and the look-ups of their names.
pub(super) struct Origins<S> {
    upstreams: Slab<Upstream<S>>,
    pub(super) resolver: Resolver,
}

impl<S: Stream> Origins<S> {
    /// Creates an empty set.
    pub(super) fn new() -> Self {
        Origins {
            upstreams: Slab::new(),
            resolver: Resolver::new(),
        }
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.upstreams.len()
    }

    /// Returns the connection of a token, unless it has gone.
    fn find(&mut self, token: u64) -> Option<&mut Upstream<S>> {
        let (key, generation) = parts(token);
        let upstream = self.upstreams.get_mut(key & !BEHIND)?;
        upstream.link.is(generation).then_some(upstream)
    }

    /// Handles an event; returns the client that needs a turn for it.
    pub(super) fn note(&mut self, event: &Event) -> Option<usize> {
        let upstream = self.find(event.token)?;
        upstream.link.note(event);
        Some(upstream.client)
    }

    /// Assigns a connection to the origin to a client whose request needs one.
    pub(super) fn attach<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        key: usize,
    ) {
        if let Some(client) = listener.clients.get_mut(key)
            && client.session.place.is_none()
            && let Some(origin) = client.session.wants_upstream()
        {
            let token = client.link.token(key);
            let connected = match self.addresses(&listener.shared, origin, token) {
                Ok(Some(addresses)) => self.connect(listener, key, addresses),
                Ok(None) => Ok(()),
                Err(failure) => Err(failure),
            };
            if let (Err(failure), Some(client)) = (connected, listener.clients.get_mut(key)) {
                client
                    .session
                    .upstream_failed(failure, &mut listener.shared);
            }
        }
    }

    /// Returns the addresses of an origin to which the proxy may connect, the first last;
    /// `None` during the look-up.
    fn addresses(
        &mut self,
        shared: &Shared,
        origin: &Origin,
        token: u64,
    ) -> Result<Option<Vec<SocketAddr>>, Failure> {
        let all = match origin {
            Origin::Address(address) => vec![*address],
            Origin::Name(name, port) => match self.resolver.ask(name, token) {
                Known::Addresses(all) => all.into_iter().map(|ip| (ip, *port).into()).collect(),
                Known::Soon => return Ok(None),
                Known::Busy => return Err(Failure::Full),
            },
        };
        let spec = &shared.store.spec;
        // A configured origin needs no check.
        let reached =
            |address: &SocketAddr| spec.origin.is_some() || spec.access.reaches(address.ip());
        let found = !all.is_empty();
        let reached: Vec<_> = all.into_iter().rev().filter(reached).collect();
        match found && reached.is_empty() {
            true => Err(Failure::Denied),
            false => Ok(Some(reached)),
        }
    }

    /// Connects to the last of `addresses`, or the one before it, for a client.
    fn connect<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        key: usize,
        mut addresses: Vec<SocketAddr>,
    ) -> Result<(), Failure> {
        let upstream = &listener.shared.store.spec.upstream;
        let most = upstream.connections.min(BEHIND - 1);
        let mut failure = Failure::Broken;
        while let Some(address) = addresses.pop() {
            if self.len() >= most {
                return Err(Failure::Full);
            }
            let (host, counters) = (listener.host, listener.tally.counters);
            let connect = || counters.time(false, || host.connect(address));
            let mut connected = connect();
            if connected.as_ref().is_err_and(is_shortage) && listener.evict() {
                connected = connect();
            }
            let (stream, progress) = match connected {
                Ok(connected) => connected,
                Err(error) => {
                    failure = failure_of(&error);
                    continue;
                }
            };
            listener.tally.counters.proxy_connected();
            let there = progress == Progress::Done;
            let place = self.upstreams.insert(Upstream {
                // No answer arrives before the question.
                link: Link::new(stream, listener.generation(), false, there),
                client: key,
                connecting: !there,
                others: addresses,
            });
            let now = listener.now();
            if let Some(client) = listener.clients.get_mut(key) {
                client.session.place = Some(place);
                match there {
                    true => client.session.connected(now),
                    false => client.session.connecting(),
                }
            }
            return Ok(());
        }
        Err(failure)
    }

    /// Does everything possible on the origin's side; returns whether anything was done.
    pub(super) fn run<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        key: usize,
    ) -> bool {
        let Some(client) = listener.clients.get_mut(key) else {
            return false;
        };
        let Some(place) = client.session.place else {
            // An answer without an origin.
            return client.session.connection().is_sending() && client.link.may_write;
        };
        let Some(upstream) = self.upstreams.get_mut(place) else {
            return false;
        };
        match upstream.run(
            &mut client.session,
            &mut listener.shared,
            &mut listener.scratch,
        ) {
            Went::Nowhere => false,
            Went::Somewhere => true,
            Went::Wrong(error) => {
                let others = std::mem::take(&mut upstream.others);
                let mut failure = Some(failure_of(&error));
                if upstream.connecting && !others.is_empty() {
                    client.session.place = None;
                    self.close(listener, place);
                    failure = self.connect(listener, key, others).err();
                }
                if let (Some(failure), Some(client)) = (failure, listener.clients.get_mut(key)) {
                    client
                        .session
                        .upstream_failed(failure, &mut listener.shared);
                }
                true
            }
        }
    }

    /// Closes the connection to the origin that a client no longer needs.
    pub(super) fn part<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        key: usize,
    ) {
        if let Some(client) = listener.clients.get_mut(key)
            && client.session.take_finished()
            && let Some(place) = client.session.place.take()
        {
            self.close(listener, place);
        }
    }

    /// Watches the connection to a client's origin for what is wanted of it.
    pub(super) fn watch_for<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        key: usize,
    ) {
        let Some(client) = listener.clients.get_mut(key) else {
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
        let watched = upstream.link.watch(listener.host, place | BEHIND, interest);
        if watched.is_err() {
            let failure = Failure::Full;
            client
                .session
                .upstream_failed(failure, &mut listener.shared);
            listener.queue(key);
        }
    }

    /// Closes a connection.
    pub(super) fn close<H: StreamHost<Stream = S>>(
        &mut self,
        listener: &mut Listener<'_, H>,
        place: usize,
    ) {
        if let Some(upstream) = self.upstreams.try_remove(place) {
            upstream.link.close(listener.host);
        }
    }
}

/// Returns the failure that the client sees.
fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::Timeout,
        // For example, no port is free: those in TIME_WAIT will be.
        io::ErrorKind::AddrNotAvailable => Failure::Full,
        _ if is_shortage(error) => Failure::Full,
        _ => Failure::Broken,
    }
}
