//! Load-adding clients: many connections that are opened and then do next to nothing.
//!
//! Every connection begun is being opened, or it failed, timed out or was opened. Every
//! opened one is open, or the server closed or reset it. An idle connection costs no
//! time: epoll reports those that end. All slow connections have the same period, so
//! their bytes are due in the order of their last ones.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use tidewall_sys::wait_readable;

use crate::http::{Outcome, Response, request};
use crate::pacer::nanoseconds;
use crate::report::{IdleCounts, IdleReport};
use crate::spec::{Habit, IdleSpec, Reuse};
use crate::tcp::{Epoll, Event, Ways, raise_descriptors};

/// Connections being opened at once: fewer than any sensible backlog.
const AT_ONCE: usize = 256;
/// Descriptors beside the connections.
const OTHERS: u64 = 512;
/// How often the connections are checked while nothing is due, ns.
const LOOK: u64 = 20_000_000;
/// Shortest sleep between two connections of the pace, ns.
const PACE_SLEEP: u64 = 1_000_000;
/// Longest backlog that the pace may catch up, ns.
const BEHIND_MAX: u64 = 10_000_000;
/// Pause after a connection that failed, ns.
const RETRY_AFTER: u64 = 1_000_000;
/// Longest time that one connection may take to open, ns.
const OPENING_MAX: u64 = 10_000_000_000;
/// Bytes sent or read before anything else is checked.
const BATCH: usize = 256;
/// Receive buffer of a sipping connection: Linux raises it to its minimum (tcp(7)).
const SIP_BUFFER: u32 = 1;
/// Bytes behind the head of a request that never ends (RFC 9112 §5).
const FIELDS: &[u8] = b"X-More: 1\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Connecting,
    /// Has asked for the document that it receives before it is silent.
    Asked,
    Open,
}

#[derive(Debug)]
struct Place {
    stream: Option<TcpStream>,
    state: State,
    /// Distinguishes events for this connection from those for its predecessor.
    generation: u32,
    /// Bytes of the request sent by a trickle.
    sent: u32,
    /// The response, if it reads one.
    response: Option<Box<Response>>,
}

/// A slot and its generation.
type Key = (u32, u32);

/// Idle connections.
#[derive(Debug)]
pub(crate) struct Idle {
    spec: IdleSpec,
    ways: Ways,
    every: u64,
    request: Vec<u8>,
    epoll: Epoll,
    events: Vec<Event>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Connections being opened, in their order, with their deadlines.
    openings: VecDeque<(u64, Key)>,
    under_way: usize,
    open: usize,
    /// Connections with slow bytes, and when the next byte is due.
    bytes: VecDeque<(u64, Key)>,
    /// When the next connection may be begun.
    begin_at: u64,
    /// When there is something to do again.
    look_at: u64,
    /// How long after the beginning of the opening the run began; times count from that
    /// beginning.
    run_at: Option<u64>,
    opened: u32,
    counts: IdleCounts,
    reported: IdleCounts,
}

impl Idle {
    /// Opens all, or as many as can be opened in the time given, unless `stop` becomes
    /// true. Calls `progress` every `interval`, with the time since the beginning and the
    /// counts since the previous call.
    pub(crate) fn open(
        spec: &IdleSpec,
        stop: &AtomicBool,
        interval: Duration,
        mut progress: impl FnMut(Duration, Duration, IdleCounts),
    ) -> io::Result<Self> {
        raise_descriptors(u64::from(spec.connections) + OTHERS)?;
        let mut idle = Idle::new(spec)?;
        let clock = Instant::now();
        let limit = nanoseconds(spec.opening_max());
        let mut reported = Duration::ZERO;
        loop {
            let now = nanoseconds(clock.elapsed());
            if idle.open == spec.connections as usize
                || now >= limit
                || stop.load(Ordering::Relaxed)
            {
                break;
            }
            let busy = idle.poll_at(now)?;
            let elapsed = clock.elapsed();
            if elapsed - reported >= interval {
                progress(elapsed, elapsed - reported, idle.since_progress());
                reported = elapsed;
            }
            if !busy {
                let gap = idle.look_at.saturating_sub(nanoseconds(clock.elapsed()));
                wait_readable(&[idle.epoll.as_fd()], Duration::from_nanos(gap))?;
            }
        }
        let now = nanoseconds(clock.elapsed());
        idle.run_at = Some(now);
        idle.opened = u32::try_from(idle.open).unwrap_or(u32::MAX);
        if !spec.replace {
            idle.give_up(u64::MAX);
        }
        Ok(idle)
    }

    fn new(spec: &IdleSpec) -> io::Result<Self> {
        let mut bytes = request(
            spec.destination,
            spec.host.as_deref(),
            false,
            &spec.path,
            Reuse::KeepAlive,
        );
        if spec.habit == Habit::Trickle {
            // Without the empty line that ends it.
            bytes.truncate(bytes.len().saturating_sub(2));
        }
        let buffer = (spec.habit == Habit::Sip).then_some(SIP_BUFFER);
        Ok(Idle {
            spec: spec.clone(),
            ways: Ways::new(spec.destination, &spec.sources, buffer),
            every: nanoseconds(spec.every),
            request: bytes,
            epoll: Epoll::taking(BATCH)?,
            events: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
            openings: VecDeque::new(),
            under_way: 0,
            open: 0,
            bytes: VecDeque::new(),
            begin_at: 0,
            look_at: 0,
            run_at: None,
            opened: 0,
            counts: IdleCounts::default(),
            reported: IdleCounts::default(),
        })
    }

    /// Does what is due at `now`, ns since the run began. Returns true if there may be
    /// more to do at once.
    pub(crate) fn poll(&mut self, now: u64) -> io::Result<bool> {
        let now = now.saturating_add(self.run_at.unwrap_or(0));
        if now < self.look_at {
            return Ok(false);
        }
        self.poll_at(now)
    }

    /// Returns when there is something to do again, ns since the run began.
    pub(crate) fn deadline(&self) -> u64 {
        self.look_at.saturating_sub(self.run_at.unwrap_or(0))
    }

    pub(crate) fn since_progress(&mut self) -> IdleCounts {
        self.counts - std::mem::replace(&mut self.reported, self.counts)
    }

    /// Checks for connections that have ended, and closes all.
    pub(crate) fn report(mut self) -> IdleReport {
        for _ in 0..=self.places.len() / BATCH {
            if !matches!(self.take_events(0), Ok(true)) {
                break;
            }
        }
        IdleReport {
            opened: self.opened,
            kept: u32::try_from(self.open).unwrap_or(u32::MAX),
            opening_ms: self.run_at.unwrap_or(0) / 1_000_000,
            counts: self.counts,
        }
    }

    fn poll_at(&mut self, now: u64) -> io::Result<bool> {
        let mut busy = self.take_events(now)?;
        self.give_up(now);
        busy |= self.begin_due(now)?;
        busy |= self.send_and_read(now);
        let mut next = now.saturating_add(LOOK);
        if self.missing() > 0 && self.under_way < AT_ONCE {
            next = next.min(self.begin_at.max(now.saturating_add(PACE_SLEEP)));
        }
        if let Some(&(due, _)) = self.bytes.front() {
            next = next.min(due);
        }
        self.look_at = if busy { now } else { next };
        Ok(busy)
    }

    /// Returns the number of connections still to be begun.
    fn missing(&self) -> usize {
        if self.run_at.is_some() && !self.spec.replace {
            return 0;
        }
        (self.spec.connections as usize).saturating_sub(self.open + self.under_way)
    }

    fn begin_due(&mut self, now: u64) -> io::Result<bool> {
        let mut busy = false;
        while self.missing() > 0 && self.under_way < AT_ONCE && self.begin_at <= now {
            if let Some(pace) = self.spec.pace {
                let gap = 1_000_000_000 / u64::from(pace.max(1));
                let from = self.begin_at.max(now.saturating_sub(BEHIND_MAX));
                self.begin_at = from.saturating_add(gap);
            }
            busy = true;
            self.counts.begun += 1;
            if let Err(error) = self.begin(now) {
                self.counts.failed += 1;
                // An immediate refusal is not caused by a shortage here.
                if self.run_at.is_none() && error.kind() != io::ErrorKind::ConnectionRefused {
                    return Err(io::Error::new(
                        error.kind(),
                        format!(
                            "after {} connections: {error} (each needs a port of a source address \
                             and a descriptor)",
                            self.open + self.under_way
                        ),
                    ));
                }
                self.begin_at = self.begin_at.max(now.saturating_add(RETRY_AFTER));
            }
        }
        Ok(busy)
    }

    fn begin(&mut self, now: u64) -> io::Result<()> {
        let stream = self.ways.connect()?;
        // Ports in TIME-WAIT would be missing for the next connections.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place {
                    stream: None,
                    state: State::Closed,
                    generation: 0,
                    sent: 0,
                    response: None,
                });
                // At most IDLE_CONNECTIONS_MAX.
                (self.places.len() - 1) as u32
            }
        };
        let Some(place) = self.places.get_mut(index as usize) else {
            return Ok(());
        };
        let token = u64::from(place.generation) << 32 | u64::from(index);
        if let Err(error) = self.epoll.add(&stream, token) {
            self.free.push(index);
            return Err(error);
        }
        (place.stream, place.state, place.sent) = (Some(stream), State::Connecting, 0);
        self.openings
            .push_back((now.saturating_add(OPENING_MAX), (index, place.generation)));
        self.under_way += 1;
        Ok(())
    }

    /// Gives up connections that are still being opened at `now`.
    fn give_up(&mut self, now: u64) {
        while let Some(&(at, (index, generation))) = self.openings.front() {
            let waits = self.places.get(index as usize).is_some_and(|place| {
                place.generation == generation
                    && matches!(place.state, State::Connecting | State::Asked)
            });
            if waits && at > now {
                break;
            }
            self.openings.pop_front();
            if waits {
                self.counts.timed_out += 1;
                self.close(index);
            }
        }
    }

    /// Handles events; returns true if there were any.
    fn take_events(&mut self, now: u64) -> io::Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        let taken = self.epoll.wait(0, &mut events);
        let busy = !events.is_empty();
        for event in &events {
            self.event(*event, now);
        }
        self.events = events;
        taken.map(|()| busy)
    }

    fn event(&mut self, event: Event, now: u64) {
        let index = event.token as u32;
        let Some(place) = self.places.get(index as usize) else {
            return;
        };
        if u64::from(place.generation) != event.token >> 32 {
            return;
        }
        match place.state {
            State::Connecting if event.failed => self.fail(index, now),
            State::Connecting if event.writable => {
                self.connected(index, now);
            }
            State::Asked if event.readable => self.read_document(index, now),
            State::Open if event.ended => return self.ended(index),
            _ => return,
        }
        // The end may arrive with the expected bytes: it is reported once.
        if event.ended {
            match self.places.get(index as usize).map(|place| place.state) {
                Some(State::Asked) => self.read_document(index, now),
                Some(State::Open) => self.ended(index),
                _ => {}
            }
        }
    }

    fn connected(&mut self, index: u32, now: u64) {
        let Some(place) = self.places.get_mut(index as usize) else {
            return;
        };
        let key = (index, place.generation);
        let asks = match self.spec.habit {
            Habit::Silent => !self.spec.path.is_empty(),
            Habit::Trickle => false,
            Habit::Sip => true,
        };
        if asks {
            let written = place
                .stream
                .as_mut()
                .map(|stream| stream.write(&self.request));
            if !matches!(written, Some(Ok(count)) if count == self.request.len()) {
                return self.fail(index, now);
            }
            place.response = Some(Box::default());
        }
        if self.spec.habit == Habit::Silent && asks {
            place.state = State::Asked;
            return;
        }
        if self.spec.habit != Habit::Silent {
            self.bytes.push_back((now.saturating_add(self.every), key));
        }
        self.stands(index);
    }

    /// Records that the connection is open.
    fn stands(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize) {
            place.state = State::Open;
            self.under_way = self.under_way.saturating_sub(1);
            self.open += 1;
            self.counts.opened += 1;
        }
    }

    fn read_document(&mut self, index: u32, now: u64) {
        let mut buffer = [0; 4096];
        loop {
            let Some(place) = self.places.get_mut(index as usize) else {
                return;
            };
            let (Some(stream), Some(response)) = (&mut place.stream, &mut place.response) else {
                return;
            };
            let outcome = match stream.read(&mut buffer) {
                Ok(0) => return self.fail(index, now),
                Ok(count) => response.take(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.fail(index, now),
            };
            match outcome {
                Outcome::Incomplete => {}
                Outcome::Complete { close: false, .. } => {
                    place.response = None;
                    return self.stands(index);
                }
                // A connection that the server does not keep counts as failed.
                _ => return self.fail(index, now),
            }
        }
    }

    /// Sends and reads the bytes that are due. Returns true if there may be more.
    fn send_and_read(&mut self, now: u64) -> bool {
        for _ in 0..BATCH {
            let Some(&(due, key)) = self.bytes.front() else {
                return false;
            };
            if due > now {
                return false;
            }
            self.bytes.pop_front();
            let (index, generation) = key;
            let here = self
                .places
                .get(index as usize)
                .is_some_and(|place| place.generation == generation && place.state == State::Open);
            if !here {
                continue;
            }
            if self.one_byte(index) {
                // Missed bytes are not made up for.
                let next = due.saturating_add(self.every);
                let next = if next > now {
                    next
                } else {
                    now.saturating_add(self.every)
                };
                self.bytes.push_back((next, key));
            } else {
                self.ended(index);
            }
        }
        true
    }

    /// Sends or reads one byte; returns false if the connection is gone.
    fn one_byte(&mut self, index: u32) -> bool {
        let Some(place) = self.places.get_mut(index as usize) else {
            return false;
        };
        let Some(stream) = &mut place.stream else {
            return false;
        };
        let waits = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            )
        };
        if self.spec.habit == Habit::Trickle {
            let sent = place.sent as usize;
            let further = sent.saturating_sub(self.request.len()) % FIELDS.len();
            let byte = self.request.get(sent).or_else(|| FIELDS.get(further));
            return match stream.write(&[byte.copied().unwrap_or(b'x')]) {
                Ok(_) => {
                    place.sent = place.sent.saturating_add(1);
                    self.counts.bytes_sent += 1;
                    true
                }
                Err(error) => waits(&error),
            };
        }
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => false,
            Ok(_) => {
                self.counts.bytes_read += 1;
                let Some(response) = &mut place.response else {
                    return true;
                };
                if let Outcome::Complete { close: false, .. } = response.take(&byte) {
                    response.reset();
                    // A request that does not fit now is never repeated: the connection
                    // is slow enough.
                    let _ = stream.write(&self.request);
                }
                true
            }
            Err(error) => waits(&error),
        }
    }

    /// Records that the server ended an open connection.
    fn ended(&mut self, index: u32) {
        let Some(place) = self.places.get(index as usize) else {
            return;
        };
        if place.state != State::Open {
            return;
        }
        let error = place.stream.as_ref().map(TcpStream::take_error);
        match error {
            Some(Ok(None)) => self.counts.closed += 1,
            _ => self.counts.reset += 1,
        }
        self.close(index);
    }

    /// Records that opening a connection failed.
    fn fail(&mut self, index: u32, now: u64) {
        self.counts.failed += 1;
        self.begin_at = self.begin_at.max(now.saturating_add(RETRY_AFTER));
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else {
            return;
        };
        match place.state {
            State::Closed => return,
            State::Open => self.open = self.open.saturating_sub(1),
            State::Connecting | State::Asked => {
                self.under_way = self.under_way.saturating_sub(1);
            }
        }
        (place.stream, place.response) = (None, None);
        place.state = State::Closed;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
    }
}
