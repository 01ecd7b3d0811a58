//! The connections of one HTTP client, and the event that each waits for. Times are
//! nanoseconds since the run began.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::request;
use super::response::{Outcome, Response};
use crate::pacer::nanoseconds;
use crate::report::{HttpCounts, HttpReport, Latency, Measures, per_second};
use crate::spec::{HttpSpec, Reuse, Wait};
use crate::tcp::{Epoll, Event, Ways, poll_much};

/// Pause after a connection that could not be opened, ns.
const RETRY_AFTER: u64 = 1_000_000;
/// How often timeouts are checked, ns.
const SCAN_EVERY: u64 = 5_000_000;
/// The histogram's longest time, ns: twice the longest timeout.
const LATENCY_MAX: u64 = 120_000_000_000;
/// Requests of an open loop that may wait for a connection; further ones are skipped.
const WAITING_MAX: usize = 100_000;
/// Bytes read at once: a document of usual size with its head.
const BUFFER: usize = 64 * 1024;
/// How long the connection that polls the device may take to open.
const POLLER_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection.
    Closed,
    Connecting,
    /// Connected and without a request.
    Ready,
    /// A request was sent.
    Awaiting,
    /// The response arrived; the server is to close.
    Closing,
}

#[derive(Debug)]
struct Slot {
    stream: Option<TcpStream>,
    state: State,
    /// Distinguishes events of this connection from those of its predecessor.
    generation: u32,
    /// When the wait of the present state began.
    since: u64,
    /// Start of the response time.
    due: u64,
    /// When the request was sent, or when its connection was begun if each request has
    /// its own.
    begun: u64,
    response: Response,
}

/// A running client.
#[derive(Debug)]
pub(crate) struct Client {
    spec: HttpSpec,
    request: Vec<u8>,
    epoll: Epoll,
    events: Vec<Event>,
    buffer: Vec<u8>,
    slots: Vec<Slot>,
    /// Slots that can take a request now: connected ones, or closed ones if each request
    /// has its own connection.
    free: VecDeque<usize>,
    /// Slots to be connected (again), and when.
    closed: VecDeque<(usize, u64)>,
    /// Due times of requests that wait for a slot.
    waiting: VecDeque<u64>,
    /// Number of the next request of an open loop.
    next: u64,
    ways: Ways,
    scan_at: u64,
    poller: Option<TcpStream>,
    poller_retry: u64,
    counts: HttpCounts,
    measures: Measures<HttpCounts>,
}

impl Client {
    /// Creates a client that has not begun. If it is to poll its device, it connects once
    /// to learn which device that is.
    pub(crate) fn open(spec: &HttpSpec) -> io::Result<Self> {
        let poller = match spec.wait == Wait::Spin {
            true => Some(open_poller(spec.destination)?),
            false => None,
        };
        let slots: Vec<Slot> = (0..spec.connections)
            .map(|_| Slot {
                stream: None,
                state: State::Closed,
                generation: 0,
                since: 0,
                due: 0,
                begun: 0,
                response: Response::default(),
            })
            .collect();
        let all = 0..slots.len();
        let (free, closed) = match spec.reuse {
            Reuse::KeepAlive => (VecDeque::new(), all.map(|slot| (slot, 0)).collect()),
            Reuse::OneRequest => (all.collect(), VecDeque::new()),
        };
        Ok(Client {
            request: match &spec.exchange {
                Some(exchange) => exchange.request.clone().into_bytes(),
                None => request(
                    spec.destination,
                    spec.host.as_deref(),
                    spec.proxy,
                    &spec.path,
                    spec.reuse,
                ),
            },
            epoll: Epoll::new()?,
            events: Vec::new(),
            buffer: vec![0; BUFFER],
            slots,
            free,
            closed,
            waiting: VecDeque::new(),
            next: 0,
            ways: Ways::new(spec.destination, &spec.sources, None),
            scan_at: 0,
            poller,
            poller_retry: 0,
            counts: HttpCounts::default(),
            measures: Measures::new(LATENCY_MAX)?,
            spec: spec.clone(),
        })
    }

    /// Handles the events and does what may be done. Returns true if there were any
    /// events.
    pub(crate) fn poll(&mut self, now: impl Fn() -> u64) -> io::Result<bool> {
        self.poll_device(now());
        let mut events = std::mem::take(&mut self.events);
        let taken = self.epoll.wait(0, &mut events);
        let mut busy = !events.is_empty();
        for event in &events {
            self.event(*event, &now);
        }
        self.events = events;
        taken?;
        busy |= self.reopen(now());
        busy |= self.dispatch(&now);
        self.expire(now());
        Ok(busy)
    }

    /// Returns true if it polls its device itself and so must not sleep.
    pub(crate) fn spins(&self) -> bool {
        self.spec.wait == Wait::Spin
    }

    /// Returns a descriptor that is readable when there is something to do.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns when there is something to do again, unless the server acts first.
    pub(crate) fn deadline(&self) -> u64 {
        let due = match self.due_time() {
            Some(due) if !self.free.is_empty() => due,
            _ => u64::MAX,
        };
        let retry = self.closed.front().map_or(u64::MAX, |(_, at)| *at);
        self.scan_at.min(due).min(retry)
    }

    pub(crate) fn begin_measuring(&mut self) {
        self.measures.begin(self.counts);
    }

    pub(crate) fn since_progress(&mut self) -> (HttpCounts, Option<Latency>) {
        self.measures.since_progress(self.counts)
    }

    pub(crate) fn report(self, measured: bool, duration: Duration) -> HttpReport {
        let counts = self.measures.counts(self.counts, measured);
        let places = self.spec.connections.into();
        let closed = (places, nanoseconds(duration));
        let closed = self.spec.rate.is_none().then_some(closed);
        HttpReport {
            measured: counts,
            whole: self.counts,
            duration,
            rate: per_second(counts.responses, duration),
            latency: Latency::of(&self.measures.corrected).filter(|_| measured),
            connect: Latency::of(&self.measures.connect).filter(|_| measured),
            response: self.measures.response(measured, closed),
        }
    }

    /// Polls the device on this thread, with a receive call on an idle connection whose
    /// socket prefers busy polling.
    fn poll_device(&mut self, now: u64) {
        if let Some(poller) = &mut self.poller
            && self.poller_retry <= now
        {
            match poller.read(&mut [0; 16]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The server has closed it, or is away for a while.
                _ => {
                    self.poller_retry = now.saturating_add(100 * RETRY_AFTER);
                    if let Ok(stream) = self.ways.connect() {
                        let _ = poll_much(&stream);
                        *poller = stream;
                    }
                }
            }
        }
    }

    fn event(&mut self, event: Event, now: &impl Fn() -> u64) {
        let index = (event.token & u64::from(u32::MAX)) as usize;
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if u64::from(slot.generation) != event.token >> 32 {
            return;
        }
        match slot.state {
            State::Connecting if event.writable => self.connected(index, now),
            State::Awaiting | State::Ready | State::Closing if event.readable => {
                self.receive(index, now);
            }
            _ => {}
        }
    }

    fn connected(&mut self, index: usize, now: &impl Fn() -> u64) {
        let time = now();
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        let error = match &slot.stream {
            Some(stream) => stream.take_error().unwrap_or_else(Some),
            None => None,
        };
        if error.is_some() {
            self.counts.connect_failures += 1;
            self.close(index, time + RETRY_AFTER);
            return;
        }
        self.counts.connected += 1;
        self.measures
            .connect
            .saturating_record(time.saturating_sub(slot.since));
        match self.spec.reuse {
            Reuse::KeepAlive => {
                slot.state = State::Ready;
                self.free.push_back(index);
            }
            Reuse::OneRequest => self.send(index, time),
        }
    }

    /// Sends a request on an established connection.
    fn send(&mut self, index: usize, time: u64) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.response.reset();
        slot.since = time;
        let written = match &mut slot.stream {
            Some(stream) => stream.write(&self.request),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        self.counts.requests += 1;
        match written {
            Ok(count) if count == self.request.len() => slot.state = State::Awaiting,
            // A request is smaller than any buffer: this connection is broken.
            _ => {
                self.counts.failed += 1;
                self.close(index, time + RETRY_AFTER);
            }
        }
    }

    fn receive(&mut self, index: usize, now: &impl Fn() -> u64) {
        loop {
            let Some(slot) = self.slots.get_mut(index) else {
                return;
            };
            let Some(stream) = &mut slot.stream else {
                return;
            };
            let read = match stream.read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.counts.failed += u64::from(slot.state == State::Awaiting);
                    self.close(index, now());
                    return;
                }
            };
            if slot.state != State::Awaiting {
                // The end, or unsolicited bytes.
                self.close(index, now());
                return;
            }
            let bytes = self.buffer.get(..read).unwrap_or_default();
            let outcome = match (&self.spec.exchange, read) {
                (_, 0) => slot.response.end(),
                (None, _) => slot.response.take(bytes),
                (Some(exchange), _) => slot
                    .response
                    .take_known(bytes, exchange.response.as_bytes()),
            };
            match outcome {
                Outcome::Incomplete => {}
                Outcome::Malformed => {
                    self.counts.failed += 1;
                    self.close(index, now());
                    return;
                }
                Outcome::Complete { status, close } => {
                    let time = now();
                    let took = time.saturating_sub(slot.due);
                    if status == 200 {
                        self.counts.responses += 1;
                        let raw = time.saturating_sub(slot.begun);
                        self.measures.answered(took, raw);
                    } else {
                        self.counts.other_status += 1;
                    }
                    if read == 0 {
                        self.close(index, time);
                        return;
                    }
                    slot.since = time;
                    if !close && self.spec.reuse == Reuse::KeepAlive {
                        slot.state = State::Ready;
                        self.free.push_back(index);
                        return;
                    }
                    // Once more: the end often arrives with the response.
                    slot.state = State::Closing;
                }
            }
        }
    }

    /// Closes a connection; the slot may be used again from `retry` on.
    fn close(&mut self, index: usize, retry: u64) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if slot.state == State::Ready {
            self.free.retain(|&other| other != index);
        }
        slot.stream = None;
        slot.state = State::Closed;
        slot.generation = slot.generation.wrapping_add(1);
        self.closed.push_back((index, retry));
    }

    /// Reopens connections, or frees their slots for reuse.
    fn reopen(&mut self, now: u64) -> bool {
        let mut busy = false;
        while let Some(&(index, at)) = self.closed.front() {
            if at > now {
                break;
            }
            busy = true;
            self.closed.pop_front();
            match self.spec.reuse {
                Reuse::OneRequest => self.free.push_back(index),
                Reuse::KeepAlive => self.connect(index, now),
            }
        }
        busy
    }

    fn connect(&mut self, index: usize, now: u64) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        self.counts.connects += 1;
        let token = u64::from(slot.generation) << 32 | index as u64;
        let stream = self.ways.connect().and_then(|stream| {
            stream.set_nodelay(true)?;
            self.epoll.add(&stream, token)?;
            Ok(stream)
        });
        match stream {
            Ok(stream) => {
                slot.stream = Some(stream);
                slot.state = State::Connecting;
                slot.since = now;
            }
            // No port, no route, no descriptor: all may pass.
            Err(_) => {
                self.counts.connect_failures += 1;
                self.close(index, now + RETRY_AFTER);
            }
        }
    }

    /// Sends the due requests on the free slots.
    fn dispatch(&mut self, now: &impl Fn() -> u64) -> bool {
        let time = now();
        while let Some(due) = self.due_time()
            && due <= time
        {
            self.next += 1;
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push_back(due);
            } else {
                self.counts.skipped += 1;
            }
        }
        let mut busy = false;
        // Each slot once: one whose connection fails at once returns later.
        for _ in 0..self.free.len() {
            let time = now();
            let due = match self.spec.rate {
                None => Some(time),
                Some(_) => self.waiting.pop_front(),
            };
            let Some(due) = due else { break };
            let Some(index) = self.free.pop_front() else {
                break;
            };
            busy = true;
            if let Some(slot) = self.slots.get_mut(index) {
                (slot.due, slot.begun) = (due, time);
            }
            match self.spec.reuse {
                Reuse::KeepAlive => self.send(index, time),
                Reuse::OneRequest => self.connect(index, time),
            }
        }
        busy
    }

    /// Returns when the open loop's next request is due.
    fn due_time(&self) -> Option<u64> {
        let rate = self.spec.rate?;
        let after = u128::from(self.next) * 1_000_000_000 / u128::from(rate.max(1));
        Some(u64::try_from(after).unwrap_or(u64::MAX))
    }

    fn expire(&mut self, now: u64) {
        if now < self.scan_at {
            return;
        }
        self.scan_at = now.saturating_add(SCAN_EVERY);
        let timeout = nanoseconds(self.spec.timeout);
        for index in 0..self.slots.len() {
            let Some(slot) = self.slots.get(index) else {
                break;
            };
            if now.saturating_sub(slot.since) < timeout {
                continue;
            }
            match slot.state {
                State::Closed | State::Ready => continue,
                State::Connecting => self.counts.connect_timeouts += 1,
                State::Awaiting => self.counts.timeouts += 1,
                State::Closing => {}
            }
            self.close(index, now);
        }
    }
}

/// Opens the connection that polls the device. Without CAP_NET_ADMIN, interrupts drive
/// the device as usual.
fn open_poller(destination: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&destination, POLLER_TIMEOUT).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot connect to {destination}: {error}"),
        )
    })?;
    let _ = poll_much(&stream);
    stream.set_nonblocking(true)?;
    Ok(stream)
}
