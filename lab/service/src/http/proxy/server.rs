//! The proxy: clients, and connections to origins behind them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::engine::{Back, Engine};
use super::super::listener::{Outcome, Tally, unix};
use super::super::log::Log;
use super::super::site::Clock;
use super::Spec;
use super::origins::{Listener, Origins};
use super::session::{Session, Shared};
use crate::counters::Counters;
use crate::stream::{Event, StreamHost};

/// How often the two sides of a connection run before the others run.
const ROUNDS: usize = 8;
/// Interval between two checks for answers of the resolver.
const RESOLVING: Duration = Duration::from_millis(5);

/// Runs the proxy at `address` until `stop` is set, then finishes the current answers.
/// Counts as the first service of `counters`. Calls `ready` once it listens, with the
/// address.
///
/// # Errors
/// The error of listening or waiting.
pub fn serve<H: StreamHost>(
    host: &H,
    address: IpAddr,
    spec: &Spec,
    log: Option<Log>,
    counters: &Counters,
    stop: &AtomicBool,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    // The standard library's hasher is seeded at random.
    let random = RandomState::new().build_hasher().finish();
    let clock = Clock::new(Duration::ZERO, unix());
    let mut shared = Shared::forwarding(spec.clone(), clock, random);
    shared.log = log;
    let local = SocketAddr::new(address, spec.port);
    let tally = Tally { counters };
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

    fn wake(&mut self, woken: &mut Vec<u64>) {
        self.resolver.collect(woken);
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
            listener.tally.count(&mut listener.shared, 0);
            let uses = std::mem::take(&mut listener.shared.store.uses);
            listener.tally.counters.proxy(&uses);
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
