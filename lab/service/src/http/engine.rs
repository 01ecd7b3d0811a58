//! The event loop of a server: the steps of each iteration, and their order.
//!
//! ```text
//!  wait ─► events ─► run clients ──► accept ─► deadlines ─┐
//!    ▲         └───────► Back: origins, if there are any    │
//!    └──────────────────────────────────────────────────────┘
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::link::{BEHIND, parts};
use super::listener::{ClientConnection, LISTENER, Listener, Outcome, PAUSE, is_shortage, unix};
use crate::services::STOP_WITHIN;
use crate::stream::{Event, StreamHost};

/// Most connections accepted before the existing ones run.
const ACCEPT_BATCH: usize = 64;

/// The part behind the clients: nothing for a server that answers by itself, connections
/// to origins for a proxy.
pub(super) trait Back<H: StreamHost>: Sized {
    /// The clients' part.
    type ClientConnection: ClientConnection;

    /// Returns the longest wait for events, if something else is awaited, too.
    fn max_wait(&self) -> Option<Duration> {
        None
    }

    /// Handles one of its own events; returns the client that must run for it.
    fn event(
        &mut self,
        _listener: &mut Listener<'_, H, Self::ClientConnection>,
        _event: &Event,
    ) -> Option<usize> {
        None
    }

    /// Adds to `woken` the tokens of clients for which something arrived without an
    /// event.
    fn wake(&mut self, _woken: &mut Vec<u64>) {}

    /// Does everything currently possible for a client.
    fn drive(
        &mut self,
        listener: &mut Listener<'_, H, Self::ClientConnection>,
        key: usize,
    ) -> Outcome {
        listener.run(key)
    }

    /// Watches what a waiting client waits for.
    fn watch(&mut self, _listener: &mut Listener<'_, H, Self::ClientConnection>, _key: usize) {}

    /// Records that a client has gone.
    fn gone(
        &mut self,
        _listener: &mut Listener<'_, H, Self::ClientConnection>,
        _session: Self::ClientConnection,
    ) {
    }

    /// Updates its counters at the end of an iteration.
    fn report(&self, _listener: &Listener<'_, H, Self::ClientConnection>) {}
}

/// A running server.
pub(super) struct Engine<'a, H: StreamHost, B: Back<H>> {
    listener: Listener<'a, H, B::ClientConnection>,
    back: B,
}

impl<'a, H: StreamHost, B: Back<H>> Engine<'a, H, B> {
    pub(super) fn new(listener: Listener<'a, H, B::ClientConnection>, back: B) -> Self {
        Engine { listener, back }
    }

    /// Serves until `stop` is set, then finishes the current responses. The shared clock
    /// shows the time since now.
    ///
    /// # Errors
    /// The error of waiting.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let result = self.iterate(stop);
        self.listener.write_log(true);
        result
    }

    fn iterate(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let begun = Instant::now();
        let mut events = Vec::new();
        let mut runnable = Vec::new();
        let mut woken = Vec::new();
        let mut due = Vec::new();
        let mut stop_at = None;
        loop {
            let now = self.listener.now();
            if stop.load(Ordering::Relaxed) && stop_at.is_none() {
                stop_at = Some(now + self.listener.shared.limits.grace);
                self.begin_to_stop();
            }
            if stop_at.is_some_and(|at| self.listener.clients.is_empty() || now >= at) {
                return Ok(());
            }
            let timeout = self.timeout();
            let counters = self.listener.tally.counters;
            if timeout > Duration::ZERO {
                counters.waited();
            }
            let host = self.listener.host;
            counters.time(true, || host.wait(&mut events, timeout))?;
            if self.listener.shared.clock.set(begun.elapsed(), unix()) {
                self.listener.write_log(false);
            }
            counters.iterated();
            // Existing connections run before new ones, so that a flood of those does not
            // starve them.
            let mut accept = false;
            std::mem::swap(&mut runnable, &mut self.listener.runnable);
            for event in &events {
                if event.token == LISTENER {
                    accept = true;
                } else if let Some(key) = self.event(event) {
                    self.run_client(key);
                }
            }
            for key in runnable.drain(..) {
                // Another may have its key.
                if let Some(client) = self.listener.clients.get_mut(key)
                    && std::mem::take(&mut client.queued)
                {
                    self.run_client(key);
                }
            }
            self.back.wake(&mut woken);
            for token in woken.drain(..) {
                let client = self.listener.client(token);
                if let Some(key) = client.map(|(key, _)| key) {
                    self.run_client(key);
                }
            }
            if accept || self.listener.paused_until.is_some() {
                self.accept()?;
            }
            let now = self.listener.now();
            let expired = |timer| due.push(timer as usize);
            self.listener.wheel.advance(now, expired);
            for key in due.drain(..) {
                if self.listener.expire(key) {
                    self.run_client(key);
                }
            }
            self.back.report(&self.listener);
        }
    }

    /// Returns how long to wait for events.
    fn timeout(&self) -> Duration {
        if !self.listener.runnable.is_empty() {
            return Duration::ZERO;
        }
        let paused = self.listener.paused_until.is_some();
        let most = if paused { PAUSE } else { STOP_WITHIN };
        self.back.max_wait().map_or(most, |least| least.min(most))
    }

    /// Handles an event; returns the client that must run for it.
    fn event(&mut self, event: &Event) -> Option<usize> {
        if parts(event.token).0 & BEHIND != 0 {
            return self.back.event(&mut self.listener, event);
        }
        let (key, client) = self.listener.client(event.token)?;
        client.link.note(event);
        Some(key)
    }

    /// Accepts waiting connections, up to a batch; returns how many there were.
    fn accept(&mut self) -> io::Result<usize> {
        let now = self.listener.now();
        if self.listener.paused_until.is_some_and(|until| now < until) {
            return Ok(0);
        }
        let mut accepted = 0;
        for _ in 0..ACCEPT_BATCH {
            let full = self.listener.is_full();
            let idle = if full {
                self.listener.find_idle()
            } else {
                None
            };
            if full && idle.is_none() {
                return self.listener.pause_accepting().map(|()| accepted);
            }
            let Some(listener) = &self.listener.listener else {
                return Ok(accepted);
            };
            let (host, counters) = (self.listener.host, self.listener.tally.counters);
            match counters.time(false, || host.accept(listener)) {
                Ok(Some((stream, peer))) => {
                    accepted += 1;
                    if let Some(idle) = idle {
                        self.close(idle);
                    }
                    let key = self.listener.accept(stream, peer);
                    self.run_client(key);
                }
                Ok(None) => break,
                Err(error) => {
                    self.listener.tally.error();
                    // Otherwise the peer has gone again, or the network reported an error
                    // (accept(2)): the next one may succeed.
                    if is_shortage(&error) && !self.listener.evict() {
                        return self.listener.pause_accepting().map(|()| accepted);
                    }
                }
            }
        }
        self.listener.resume_accepting()?;
        Ok(accepted)
    }

    /// Does everything currently possible for a client.
    fn run_client(&mut self, key: usize) {
        let Some(client) = self.listener.clients.get_mut(key) else {
            return;
        };
        let output = &mut self.listener.output;
        client.session.connection_mut().lend(output);
        let outcome = self.back.drive(&mut self.listener, key);
        let Some(client) = self.listener.clients.get_mut(key) else {
            return;
        };
        let connection = client.session.connection_mut();
        connection.give_back(&mut self.listener.output);
        match outcome {
            Outcome::Waiting => {
                if self.listener.shared.stopping && connection.is_idle() {
                    return self.close(key);
                }
                if self.listener.watch(key).is_err() {
                    return self.fail(key);
                }
                self.back.watch(&mut self.listener, key);
            }
            Outcome::Runnable => self.listener.queue(key),
            Outcome::Closed => return self.close(key),
            Outcome::Failed => return self.fail(key),
        }
        self.listener.arm(key);
    }

    /// Answers the clients that have got through, and closes every other connection that
    /// is not waiting for an answer.
    fn begin_to_stop(&mut self) {
        self.listener.paused_until = None;
        let backlog = self.listener.shared.limits.backlog;
        // Bounded: no client can keep it from stopping by connecting.
        for _ in 0..backlog.div_ceil(ACCEPT_BATCH as u32) {
            if !self.accept().is_ok_and(|accepted| accepted > 0) {
                break;
            }
        }
        self.listener.shut();
        let clients = self.listener.clients.iter();
        let idle = clients.filter(|(_, client)| client.session.connection().is_idle());
        let idle: Vec<usize> = idle.map(|(key, _)| key).collect();
        for key in idle {
            self.close(key);
        }
    }

    fn fail(&mut self, key: usize) {
        self.listener.tally.error();
        self.close(key);
    }

    fn close(&mut self, key: usize) {
        if let Some(session) = self.listener.close(key) {
            self.back.gone(&mut self.listener, session);
        }
    }
}
