//! The event loop of a server: what each turn of it does, and in which order.
//!
//! ```text
//!  wait ─► events ─► clients' turns ─► accept ─► deadlines ─┐
//!    ▲         └───────► Back: origins, if there are any    │
//!    └──────────────────────────────────────────────────────┘
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::front::{Front, LISTENER, Outcome, PAUSE, Session, World, is_shortage, unix};
use super::link::{BEHIND, parts};
use crate::services::STOP_WITHIN;
use crate::stream::{Event, StreamHost};

/// Most connections accepted before those that are there have their turn.
const ACCEPT_BATCH: usize = 64;

/// What stands behind the clients: for a server that answers by itself nothing,
/// for a proxy its connections to origins.
pub(super) trait Back<H: StreamHost>: Sized {
    /// The clients' part.
    type Session: Session;

    /// How long may be waited for events when something else is awaited, too.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Takes note of an event of its own; returns the client that needs a turn
    /// for it.
    fn event(&mut self, _front: &mut Front<'_, H, Self::Session>, _event: &Event) -> Option<usize> {
        None
    }

    /// Puts into `woken` the tokens of clients for which something has come
    /// that is no event.
    fn wake(&mut self, _now: Duration, _woken: &mut Vec<u64>) {}

    /// Does for a client what can be done now.
    fn drive(&mut self, front: &mut Front<'_, H, Self::Session>, key: usize) -> Outcome {
        front.go(key)
    }

    /// A client waits: watches what it waits for.
    fn watch(&mut self, _front: &mut Front<'_, H, Self::Session>, _key: usize) {}

    /// What the wheel has come to.
    fn expire(&mut self, _front: &mut Front<'_, H, Self::Session>, _token: u64, _tick: u64) {}

    /// Gives back a descriptor that is not in use, if there is one.
    fn make_room(&mut self, _front: &mut Front<'_, H, Self::Session>) -> bool {
        false
    }

    /// A client has gone.
    fn gone(&mut self, _front: &mut Front<'_, H, Self::Session>, _session: Self::Session) {}

    /// Writes down what there is at the end of a turn of the loop.
    fn report(&self, _front: &Front<'_, H, Self::Session>) {}
}

/// A server as it runs.
pub(super) struct Engine<'a, H: StreamHost, B: Back<H>> {
    front: Front<'a, H, B::Session>,
    back: B,
}

impl<'a, H: StreamHost, B: Back<H>> Engine<'a, H, B> {
    pub(super) fn new(front: Front<'a, H, B::Session>, back: B) -> Self {
        Engine { front, back }
    }

    /// Serves until `stop` is set, then finishes the responses at hand. The
    /// world's clock shows the time since now.
    ///
    /// # Errors
    /// What waiting reports.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let result = self.turns(stop);
        self.front.write_log(true);
        result
    }

    fn turns(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let begun = Instant::now();
        let mut events = Vec::new();
        let mut turn = Vec::new();
        let mut woken = Vec::new();
        let mut due = Vec::new();
        let mut stop_at = None;
        loop {
            let now = self.front.now();
            if stop.load(Ordering::Relaxed) && stop_at.is_none() {
                stop_at = Some(now + self.front.world.limits().grace);
                self.begin_to_stop();
            }
            if stop_at.is_some_and(|at| self.front.clients.is_empty() || now >= at) {
                return Ok(());
            }
            let timeout = self.timeout();
            let counters = self.front.tally.counters;
            if timeout > Duration::ZERO {
                counters.waited();
            }
            self.front.host.wait(&mut events, timeout)?;
            if self.front.world.tick(begun.elapsed(), unix()) {
                self.front.write_log(false);
            }
            counters.turned();
            // Connections that are there come before new ones, so that a flood
            // of these does not starve those.
            let mut accept = false;
            std::mem::swap(&mut turn, &mut self.front.runnable);
            for event in &events {
                if event.token == LISTENER {
                    accept = true;
                } else if let Some(key) = self.event(event) {
                    self.turn(key);
                }
            }
            for key in turn.drain(..) {
                // Another may have its key.
                if let Some(client) = self.front.clients.get_mut(key)
                    && std::mem::take(&mut client.queued)
                {
                    self.turn(key);
                }
            }
            self.back.wake(self.front.now(), &mut woken);
            for token in woken.drain(..) {
                let client = self.front.client(token);
                if let Some(key) = client.map(|(key, _)| key) {
                    self.turn(key);
                }
            }
            if accept || self.front.paused_until.is_some() {
                self.accept()?;
            }
            let now = self.front.now();
            self.front.wheel.take(now, &mut due);
            for (token, tick) in due.drain(..) {
                if parts(token).0 & BEHIND != 0 {
                    self.back.expire(&mut self.front, token, tick);
                } else if let Some(key) = self.front.expire(token, tick) {
                    self.turn(key);
                }
            }
            self.back.report(&self.front);
        }
    }

    /// How long events may be waited for.
    fn timeout(&self) -> Duration {
        if !self.front.runnable.is_empty() {
            return Duration::ZERO;
        }
        let paused = self.front.paused_until.is_some();
        let most = if paused { PAUSE } else { STOP_WITHIN };
        self.back.patience().map_or(most, |least| least.min(most))
    }

    /// Takes note of an event; returns the client that needs a turn for it.
    fn event(&mut self, event: &Event) -> Option<usize> {
        if parts(event.token).0 & BEHIND != 0 {
            return self.back.event(&mut self.front, event);
        }
        let (key, client) = self.front.client(event.token)?;
        client.link.note(event);
        Some(key)
    }

    /// Accepts what is there, up to a batch; returns how many it took.
    fn accept(&mut self) -> io::Result<usize> {
        let now = self.front.now();
        if self.front.paused_until.is_some_and(|until| now < until) {
            return Ok(0);
        }
        let mut accepted = 0;
        for _ in 0..ACCEPT_BATCH {
            let full = self.front.is_full();
            let idle = if full { self.front.find_idle() } else { None };
            if full && idle.is_none() {
                return self.front.pause().map(|()| accepted);
            }
            let Some(listener) = &self.front.listener else {
                return Ok(accepted);
            };
            match self.front.host.accept(listener) {
                Ok(Some((stream, peer))) => {
                    accepted += 1;
                    if let Some(idle) = idle {
                        self.close(idle);
                    }
                    let key = self.front.welcome(stream, peer);
                    self.turn(key);
                }
                Ok(None) => break,
                Err(error) => {
                    self.front.tally.error();
                    // Otherwise the peer has gone again, or the network had
                    // something to say of it (accept(2)): the next one may be
                    // well.
                    if is_shortage(&error)
                        && !self.back.make_room(&mut self.front)
                        && !self.front.evict()
                    {
                        return self.front.pause().map(|()| accepted);
                    }
                }
            }
        }
        self.front.resume()?;
        Ok(accepted)
    }

    /// Does for a client what can be done now.
    fn turn(&mut self, key: usize) {
        let Some(client) = self.front.clients.get_mut(key) else {
            return;
        };
        let spare = &mut self.front.spare;
        client.session.connection_mut().lend(spare);
        let outcome = self.back.drive(&mut self.front, key);
        let Some(client) = self.front.clients.get_mut(key) else {
            return;
        };
        let connection = client.session.connection_mut();
        connection.give_back(&mut self.front.spare);
        match outcome {
            Outcome::Waiting => {
                if self.front.world.stopping() && connection.is_idle() {
                    return self.close(key);
                }
                if self.front.watch(key).is_err() {
                    return self.fail(key);
                }
                self.back.watch(&mut self.front, key);
            }
            Outcome::Runnable => self.front.queue(key),
            Outcome::Closed => return self.close(key),
            Outcome::Failed => return self.fail(key),
        }
        self.front.enter_deadline(key);
    }

    /// Answers those who have got through, and lets go of everybody who is not
    /// waiting for an answer.
    fn begin_to_stop(&mut self) {
        self.front.paused_until = None;
        let backlog = self.front.world.limits().backlog;
        // Bounded: nobody can keep it from stopping by connecting.
        for _ in 0..backlog.div_ceil(ACCEPT_BATCH as u32) {
            if !self.accept().is_ok_and(|accepted| accepted > 0) {
                break;
            }
        }
        self.front.shut();
        let clients = self.front.clients.iter();
        let idle = clients.filter(|(_, client)| client.session.connection().is_idle());
        let idle: Vec<usize> = idle.map(|(key, _)| key).collect();
        for key in idle {
            self.close(key);
        }
    }

    fn fail(&mut self, key: usize) {
        self.front.tally.error();
        self.close(key);
    }

    fn close(&mut self, key: usize) {
        if let Some(session) = self.front.close(key) {
            self.back.gone(&mut self.front, session);
        }
    }
}
