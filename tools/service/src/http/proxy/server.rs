//! The proxy: clients, and connections to origins behind them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::Limits;
use super::super::connection::Connection;
use super::super::engine::{Back, Engine};
use super::super::listener::{self, Outcome, Shared as _, Tally, unix};
use super::super::log::Log;
use super::super::site::Clock;
use super::Spec;
use super::origins::{Listener, Origins};
use super::session::Session;
use super::shared::Shared;
use crate::counters::Counters;
use crate::stream::{Event, StreamHost};

/// How often the two sides of a connection run before the others run.
const ROUNDS: usize = 8;
/// Time between two looks for answers of the resolver.
const RESOLVING: Duration = Duration::from_millis(5);

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
    // The standard library's hasher is seeded at random.
    let random = RandomState::new().build_hasher().finish();
    let mut shared = Shared::new(spec.clone(), Clock::new(Duration::ZERO, unix()), random);
    shared.log = log;
    let local = SocketAddr::new(address, spec.port);
    let tally = Tally { counters, number };
    let listener = Listener::open(host, local, shared, tally, ready)?;
    Engine::new(listener, Origins::new()).run(stop)
}

impl<H: StreamHost> Back<H> for Origins<H::Stream> {
    type ClientConnection = Session;

    fn max_wait(&self) -> Option<Duration> {
        self.resolver.is_busy().then_some(RESOLVING)
    }

    fn event(&mut self, _: &mut Listener<'_, H>, event: &Event) -> Option<usize> {
        self.note(event)
    }

    fn wake(&mut self, now: Duration, woken: &mut Vec<u64>) {
        if self.resolver.is_busy() {
            self.resolver.collect(now, woken);
        }
    }

    fn drive(&mut self, listener: &mut Listener<'_, H>, key: usize) -> Outcome {
        for _ in 0..ROUNDS {
            let outcome = listener.run(key);
            if matches!(outcome, Outcome::Closed | Outcome::Failed) {
                return outcome;
            }
            self.part(listener, key);
            self.attach(listener, key);
            let moved = self.run(listener, key);
            self.part(listener, key);
            listener.shared.count(&listener.tally, 0);
            if !moved {
                return outcome;
            }
        }
        Outcome::Runnable
    }

    fn watch(&mut self, listener: &mut Listener<'_, H>, key: usize) {
        self.watch_for(listener, key);
    }

    fn gone(&mut self, listener: &mut Listener<'_, H>, session: Session) {
        if let Some(place) = session.place {
            self.close(listener, place);
        }
    }

    fn report(&self, listener: &Listener<'_, H>) {
        listener.tally.counters.proxy_open(self.len());
    }
}

impl listener::ClientConnection for Session {
    type Shared = Shared;

    fn new(peer: IpAddr, now: Duration) -> Self {
        Session::new(peer, now)
    }

    fn connection(&self) -> &Connection {
        self.connection()
    }

    fn connection_mut(&mut self) -> &mut Connection {
        self.connection_mut()
    }

    fn receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        self.receive(bytes, shared);
    }

    fn resume(&mut self, shared: &mut Shared) {
        self.resume(shared);
    }

    fn end_of_input(&mut self) {
        self.end_of_input();
    }

    fn deadline(&self, shared: &Shared) -> Duration {
        self.deadline(shared)
    }

    fn expire(&mut self, shared: &mut Shared) {
        self.expire(shared);
    }
}

impl listener::Shared for Shared {
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn tick(&mut self, now: Duration, unix: u64) -> bool {
        self.clock.set(now, unix)
    }

    fn log(&mut self) -> Option<&mut Log> {
        self.log.as_mut()
    }

    fn limits(&self) -> &Limits {
        &self.spec.limits
    }

    fn stopping(&self) -> bool {
        self.stopping
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn count(&mut self, tally: &Tally<'_>, received: u64) {
        tally.count(std::mem::take(&mut self.counts), received);
        tally.counters.proxy(&std::mem::take(&mut self.uses));
    }
}
