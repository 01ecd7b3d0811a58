//! The event loop's part with origins: connections that are kept, made, given
//! to clients and taken back.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::super::wheel::Wheel;
use super::link::{UPSTREAM, Upstream, Went, token};
use super::resolve::Known;
use super::server::Server;
use super::session::{Failure, Left, Origin};
use crate::stream::{Interest, Progress, StreamHost};

impl<H: StreamHost> Server<'_, H> {
    /// Gives a client whose request needs one a connection to the origin.
    pub(super) fn attach(&mut self, key: usize) {
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
    pub(super) fn go_upstream(&mut self, key: usize) -> bool {
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
    pub(super) fn part(&mut self, key: usize) {
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
    pub(super) fn watch_upstream(&mut self, key: usize) {
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

    pub(super) fn close_upstream(&mut self, place: usize) {
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
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
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
