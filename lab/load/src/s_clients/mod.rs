//! S-clients over kernel sockets: the establisher and the handler on one thread. The
//! accounts decide when connections begin and end, and count them; the sockets are here.

mod accounts;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use accounts::{Accounts, End, Key, Plan, State, Step};
use rustix::net::sockopt::set_socket_linger;

use crate::http::{Outcome, Response, request};
use crate::pacer::nanoseconds;
use crate::report::{
    Distribution, Latency, Measures, ProbeReport, SClientCounts, SClientReport, per_second,
};
use crate::spec::{ProbeSpec, Reuse, SClientSpec};
use crate::tcp::{Epoll, Event, Ways, allow_descriptors, raise_descriptors};

/// Most events handled at once.
const EVENTS: usize = 256;
/// Account steps between two checks for events.
const STEPS: usize = 64;
/// Descriptors beside the connections.
const OTHERS: u64 = 512;
/// The histograms' longest time, ns: T and a timeout at their
/// longest.
const LATENCY_MAX: u64 = 120_000_000_000;
/// Bytes read at once.
const BUFFER: usize = 64 * 1024;

/// A connection's socket.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    response: Response,
}

/// Running S-clients.
#[derive(Debug)]
pub(crate) struct SClients {
    ways: Ways,
    request: Vec<u8>,
    accounts: Accounts,
    /// Indexed by slot.
    sockets: Vec<Option<Socket>>,
    epoll: Epoll,
    events: Vec<Event>,
    buffer: Vec<u8>,
    deadline: u64,
    local_error: Option<String>,
    measures: Measures<SClientCounts>,
}

impl SClients {
    /// Creates new clients from `start` on, ns, each judged before `end`.
    pub(crate) fn probes(spec: &ProbeSpec, start: u64, end: u64) -> io::Result<Self> {
        let spec = SClientSpec {
            connect_timeout: spec.timeout,
            timeout: spec.timeout,
            sources: spec.sources.clone(),
            ..SClientSpec::new(spec.destination, &spec.path, spec.rate)
        };
        let until = end.saturating_sub(nanoseconds(spec.timeout));
        SClients::open(&spec, start, until)
    }

    /// Creates S-clients that run from `start` until `end`, ns.
    pub(crate) fn open(spec: &SClientSpec, start: u64, end: u64) -> io::Result<Self> {
        let mut open_max = u64::from(spec.open_limit());
        if spec.open_max.is_some() {
            raise_descriptors(open_max + OTHERS)?;
        } else {
            // Fewer will do if no more are allowed, but not fewer than the establisher
            // needs.
            let least = (spec.establishing().saturating_mul(5) / 4).min(open_max);
            open_max = allow_descriptors(open_max + OTHERS)?.saturating_sub(OTHERS);
            if open_max < least {
                raise_descriptors(least + OTHERS)?;
                open_max = least;
            }
        }
        let host = spec.host.as_deref();
        Ok(SClients {
            ways: Ways::new(spec.destination, &spec.sources, None),
            request: request(
                spec.destination,
                host,
                spec.proxy,
                &spec.path,
                Reuse::OneRequest,
            ),
            accounts: Accounts::new(Plan {
                rate: spec.rate,
                connect_timeout: nanoseconds(spec.connect_timeout),
                timeout: nanoseconds(spec.timeout),
                start,
                end,
                open_max: usize::try_from(open_max).unwrap_or(usize::MAX),
            }),
            sockets: Vec::new(),
            epoll: Epoll::taking(EVENTS)?,
            events: Vec::new(),
            buffer: vec![0; BUFFER],
            deadline: 0,
            local_error: None,
            measures: Measures::new(LATENCY_MAX)?,
        })
    }

    /// Handles events and does what is due. Returns true if there may be more to do at
    /// once.
    pub(crate) fn poll(&mut self, now: impl Fn() -> u64) -> io::Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        let taken = self.epoll.wait(0, &mut events);
        let mut busy = !events.is_empty();
        for event in &events {
            self.event(*event, &now);
        }
        self.events = events;
        taken?;
        for _ in 0..STEPS {
            match self.accounts.step(now()) {
                Step::Begin(key) => self.begin(key),
                Step::GiveUp(key) => self.close(key, false),
                Step::Reset(key) => self.close(key, true),
                Step::Wait(until) => {
                    self.deadline = until;
                    return Ok(busy);
                }
            }
            busy = true;
        }
        Ok(busy)
    }

    /// Returns a descriptor that is readable when there is something to do.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns when there is something to do again, unless the server acts first.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    pub(crate) fn begin_measuring(&mut self) {
        self.measures.begin(self.accounts.counts());
    }

    pub(crate) fn since_progress(&mut self) -> (SClientCounts, Option<Latency>) {
        self.measures.since_progress(self.accounts.counts())
    }

    pub(crate) fn report(self, measured: bool, duration: Duration) -> SClientReport {
        let whole = self.accounts.counts();
        let counts = self.measures.counts(whole, measured);
        SClientReport {
            measured: counts,
            whole,
            unfinished: self.accounts.unfinished(),
            duration,
            offered_rate: per_second(counts.begun, duration),
            rate: per_second(counts.responses, duration),
            connect: Distribution::of(&self.measures.connect).filter(|_| measured),
            response: self.measures.response(measured, None),
            local_error: self.local_error,
        }
    }

    pub(crate) fn probe_report(self) -> ProbeReport {
        let counts = self.accounts.counts();
        ProbeReport {
            begun: counts.begun,
            connected: counts.connected,
            answered: counts.responses,
            refused: counts.refused,
            connect: Latency::of(&self.measures.connect),
        }
    }

    fn begin(&mut self, key: Key) {
        let begun = self
            .ways
            .connect()
            .and_then(|stream| self.epoll.add(&stream, key.token()).map(|()| stream));
        match begun {
            Ok(stream) => {
                let socket = Socket {
                    stream,
                    response: Response::default(),
                };
                if self.sockets.len() <= key.index() {
                    self.sockets.resize_with(key.index() + 1, || None);
                }
                if let Some(place) = self.sockets.get_mut(key.index()) {
                    *place = Some(socket);
                }
            }
            // Loopback can refuse at once.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.accounts.ended(key, End::Refused);
            }
            Err(error) => {
                self.local_error.get_or_insert_with(|| error.to_string());
                self.accounts.ended(key, End::Local);
            }
        }
    }

    /// Closes the socket of a connection that the accounts no longer need.
    fn close(&mut self, key: Key, abort: bool) {
        if let Some(socket) = self.sockets.get_mut(key.index()).and_then(Option::take)
            && abort
        {
            // Otherwise its port would be held in TIME-WAIT.
            let _ = set_socket_linger(&socket.stream, Some(Duration::ZERO));
        }
    }

    fn end(&mut self, key: Key, end: End) {
        self.accounts.ended(key, end);
        // If the server has not closed, this side does not wait.
        self.close(key, end == End::Malformed);
    }

    fn event(&mut self, event: Event, now: &impl Fn() -> u64) {
        let key = Key::of_token(event.token);
        match self.accounts.state(key) {
            State::Trying if event.writable => self.send(key, event, now),
            State::Awaiting | State::Closing if event.readable => self.receive(key, now),
            _ => {}
        }
    }

    /// Records that the connection is established: sends the request and hands it over.
    fn send(&mut self, key: Key, event: Event, now: &impl Fn() -> u64) {
        let Some(Some(socket)) = self.sockets.get_mut(key.index()) else {
            return;
        };
        // A request is smaller than any buffer: if it does not fit, the connection is
        // broken.
        let sent = !event.failed
            && matches!(socket.stream.write(&self.request), Ok(count) if count == self.request.len());
        if !sent {
            self.end(key, End::Refused);
            return;
        }
        if let Some(took) = self.accounts.connected(key, now()) {
            self.measures.connect.saturating_record(took);
        }
        if event.readable {
            self.receive(key, now);
        }
    }

    fn receive(&mut self, key: Key, now: &impl Fn() -> u64) {
        loop {
            let Some(Some(socket)) = self.sockets.get_mut(key.index()) else {
                return;
            };
            let read = match socket.stream.read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.end(key, End::Failed),
            };
            if self.accounts.state(key) == State::Closing {
                // The end, or unsolicited bytes.
                self.accounts.ended(key, End::Failed);
                return self.close(key, read > 0);
            }
            let outcome = match read {
                0 => socket.response.end(),
                _ => {
                    let bytes = self.buffer.get(..read).unwrap_or_default();
                    socket.response.take(bytes)
                }
            };
            match outcome {
                Outcome::Incomplete => {}
                Outcome::Malformed if read == 0 => return self.end(key, End::Failed),
                Outcome::Malformed => return self.end(key, End::Malformed),
                // Once more: the end often arrives with the response.
                Outcome::Complete { status, .. } => {
                    if let Some(took) = self.accounts.answered(key, status, now()) {
                        self.measures.answered(took.corrected, took.raw);
                    }
                    if read == 0 {
                        return self.end(key, End::Failed);
                    }
                }
            }
        }
    }
}
