//! One connection of the server: bytes and times go in, bytes of responses come out. No
//! sockets, clocks or threads.
//!
//! ```text
//!  receive(bytes) ─► heads ─► respond ─► output() ─► sent(n)
//!        ▲                                  │
//!        └── wants_input ◄── resume ◄──────┘ (pipelined requests wait here)
//! ```

use std::fs::File;
use std::mem::{self, MaybeUninit};
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::Limits;
use super::entry::{Bytes, Entry};
use super::pace::Pace;
use super::request::{FIELDS_MAX, Head, Parsed, parse};
use super::site::{Site, Store};
use super::status::Status;

/// Waiting bytes of responses at which no further request is answered.
const OUTPUT_FULL: usize = 64 * 1024;
/// Most requests answered before the other connections run.
const BURST: usize = 64;
/// Most bytes read ahead while a request is held.
const HELD_BYTES: usize = 16 * 1024;
/// Bytes that are read and discarded after the last response, so that the peer can read
/// it: closing with unread bytes would send a reset (RFC 9112 §9.6).
const LINGER_BYTES: u64 = 1024 * 1024;
/// Time for the same.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Answers the requests of all connections of a server.
pub trait Answers: Sized {
    /// Answers a request, or calls `Connection::hold` to do so later.
    fn respond(site: &mut Site<Self>, connection: &mut Connection, head: &Head<'_, '_>);

    /// Answers an invalid request; nothing is read after it.
    fn refuse(site: &mut Site<Self>, connection: &mut Connection, status: Status);
}

impl<S: Store> Answers for S {
    fn respond(site: &mut Site<S>, connection: &mut Connection, head: &Head<'_, '_>) {
        connection.respond(head, site);
    }

    fn refuse(site: &mut Site<S>, connection: &mut Connection, status: Status) {
        connection.refuse(status, site);
    }
}

/// The next output.
#[derive(Debug)]
pub enum Output<'a> {
    /// Nothing.
    Nothing,
    /// These bytes; with `more`, others of the same response follow.
    Bytes {
        /// To be sent.
        bytes: &'a [u8],
        /// Others of the same response follow.
        more: bool,
    },
    /// Bytes of a file.
    File {
        /// The file.
        file: &'a File,
        /// Offset of the first.
        offset: u64,
        /// How many.
        length: u64,
    },
}

/// The connection's treatment of its peer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Answers requests.
    Open,
    /// Sends its last response, then closes; `linger` if the peer may still be sending.
    Last { linger: bool },
    /// Everything was sent and the sending side is closed: discards this many more bytes
    /// until the peer closes, too.
    Lingering { left: u64, until: Duration },
    /// Over: to be closed.
    Over,
}

/// The next step of a connection whose responses have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Go on.
    Open,
    /// Close the sending side, and call [`Connection::linger`].
    Shutdown,
    /// Close it.
    Close,
}

/// One connection of the server.
#[derive(Debug)]
pub struct Connection {
    pub(super) peer: IpAddr,
    state: State,
    /// Unanswered bytes: part of a head, or requests that wait for an earlier response to
    /// leave. Uses no memory while there are none.
    input: Vec<u8>,
    /// Number of these without the end of a head.
    scanned: usize,
    /// Bytes of a request's content still to be thrown away.
    skip: u64,
    /// The current request is being answered elsewhere: arriving bytes are kept for that,
    /// and for later.
    held: bool,
    /// The peer has ended its side meanwhile.
    ended: bool,
    /// Output bytes, of which `written` have been sent.
    output: Vec<u8>,
    written: usize,
    /// Bytes of a file that follow them.
    pub(super) content: Option<(Rc<Entry>, Range<u64>)>,
    /// When the current request began; for the first, when the connection did.
    since: Option<Duration>,
    /// Time of the last byte sent or received.
    moved: Duration,
    /// How fast the peer reads the output.
    pace: Pace,
}

impl Connection {
    /// Creates a connection that was accepted `now`.
    pub fn new(peer: IpAddr, now: Duration) -> Self {
        Connection {
            peer,
            state: State::Open,
            input: Vec::new(),
            scanned: 0,
            skip: 0,
            held: false,
            ended: false,
            output: Vec::new(),
            written: 0,
            content: None,
            since: Some(now),
            moved: now,
            pace: Pace::default(),
        }
    }

    /// Returns whether to read bytes for it.
    pub fn wants_input(&self) -> bool {
        match self.state {
            State::Open if self.ended => false,
            State::Open if self.held => self.input.len() < HELD_BYTES,
            State::Open => self.may_answer() && !self.has_work(),
            State::Lingering { .. } => true,
            State::Last { .. } | State::Over => false,
        }
    }

    /// Returns whether [`Connection::resume`] has something to do.
    pub fn has_work(&self) -> bool {
        self.state == State::Open && self.scanned < self.input.len() && self.may_answer()
    }

    /// Returns whether it has been answered fully and no byte of a next request has
    /// arrived: then closing it loses nothing.
    pub fn is_idle(&self) -> bool {
        self.state == State::Open
            && self.input.is_empty()
            && self.skip == 0
            && !self.held
            && !self.is_sending()
    }

    /// Handles received bytes.
    pub fn receive(&mut self, bytes: &[u8], site: &mut Site<impl Answers>) {
        self.moved = site.clock.now();
        match &mut self.state {
            State::Open => {}
            State::Lingering { left, .. } => {
                *left = left.saturating_sub(bytes.len() as u64);
                if *left == 0 {
                    self.state = State::Over;
                }
                return;
            }
            State::Last { .. } | State::Over => return,
        }
        if self.held {
            self.input.extend_from_slice(bytes);
        } else if self.input.is_empty() {
            let used = self.answer(bytes, site);
            if self.state == State::Open {
                self.input
                    .extend_from_slice(bytes.get(used..).unwrap_or_default());
            }
        } else {
            self.input.extend_from_slice(bytes);
            self.resume(site);
        }
        self.note_time(site.clock.now());
    }

    /// Continues with requests that had to wait.
    pub fn resume(&mut self, site: &mut Site<impl Answers>) {
        let mut input = mem::take(&mut self.input);
        let used = self.answer(&input, site);
        if self.state == State::Open && used < input.len() {
            input.drain(..used);
            self.input = input;
        }
        self.note_time(site.clock.now());
    }

    /// Records that the peer sends nothing more.
    pub fn end_of_input(&mut self) {
        match self.state {
            State::Open if self.held => self.ended = true,
            // It may still read the answers to its requests.
            State::Open if self.is_sending() => self.state = State::Last { linger: false },
            State::Last { .. } => self.state = State::Last { linger: false },
            State::Open | State::Lingering { .. } | State::Over => self.state = State::Over,
        }
    }

    /// Returns the next output.
    pub fn output(&self) -> Output<'_> {
        if let Some(bytes) = self.output.get(self.written..)
            && !bytes.is_empty()
        {
            let more = self.content.is_some();
            return Output::Bytes { bytes, more };
        }
        match &self.content {
            None => Output::Nothing,
            Some((entry, range)) => match &entry.bytes {
                Bytes::Memory(bytes) => {
                    let place = |at| usize::try_from(at).unwrap_or(usize::MAX);
                    let bytes = bytes.get(place(range.start)..place(range.end));
                    Output::Bytes {
                        bytes: bytes.unwrap_or_default(),
                        more: false,
                    }
                }
                Bytes::File(file) => Output::File {
                    file,
                    offset: range.start,
                    length: range.end.saturating_sub(range.start),
                },
            },
        }
    }

    /// Records that this many bytes of [`Connection::output`] were sent; none means that
    /// the peer accepts no more for now.
    pub fn sent(&mut self, count: usize, now: Duration, limits: &Limits) {
        self.pace.moved(count, now, limits);
        if count == 0 {
            return;
        }
        self.moved = now;
        if self.written < self.output.len() {
            self.written = self.output.len().min(self.written + count);
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
            }
        } else if let Some((_, range)) = &mut self.content {
            range.start = range.end.min(range.start.saturating_add(count as u64));
            if range.is_empty() {
                self.content = None;
            }
        }
        if !self.is_sending() {
            self.pace.rest();
            // A request that waited behind a response was not late.
            if self.since.is_some() {
                self.since = Some(now);
            }
        }
    }

    /// Returns what to do now.
    pub fn end(&self) -> End {
        match self.state {
            State::Over => End::Close,
            State::Last { .. } if self.is_sending() || self.held => End::Open,
            State::Last { linger: true } => End::Shutdown,
            State::Last { linger: false } => End::Close,
            State::Open if self.ended && !self.held && !self.is_sending() && !self.has_work() => {
                End::Close
            }
            State::Open | State::Lingering { .. } => End::Open,
        }
    }

    /// Records that the sending side was closed.
    pub fn linger(&mut self, now: Duration) {
        self.state = State::Lingering {
            left: LINGER_BYTES,
            until: now + LINGER_TIME,
        };
    }

    /// Lends it memory for its output, if it has none.
    pub fn lend(&mut self, memory: &mut Vec<u8>) {
        if self.output.capacity() == 0 {
            self.output = mem::take(memory);
        }
    }

    /// Takes back the memory of its output, if that is empty.
    pub fn give_back(&mut self, memory: &mut Vec<u8>) {
        if self.output.is_empty() && memory.capacity() == 0 {
            *memory = mem::take(&mut self.output);
        } else if self.output.is_empty() {
            self.output = Vec::new();
        }
    }

    /// Returns when [`Connection::expire`] is due.
    pub fn deadline(&self, limits: &Limits) -> Duration {
        match (self.state, self.since) {
            (State::Lingering { until, .. }, _) => until,
            (State::Over, _) => Duration::ZERO,
            _ if self.is_sending() => {
                let due = self.pace.deadline(limits);
                due.unwrap_or(self.moved + limits.stall)
            }
            // The answering side has its own deadline.
            _ if self.held => Duration::MAX,
            (_, Some(since)) => since + limits.request,
            (_, None) => self.moved + limits.idle,
        }
    }

    /// Ends it when its deadline has passed: with 408 if part of a request is there,
    /// otherwise silently.
    pub fn expire(&mut self, site: &mut Site<impl Answers>) {
        if site.clock.now() < self.deadline(&site.limits) {
            return;
        }
        let begun = !self.input.is_empty() || self.skip > 0;
        if self.state == State::Open && begun && !self.is_sending() {
            Answers::refuse(site, self, Status::REQUEST_TIMEOUT);
        } else {
            self.state = State::Over;
        }
        self.input = Vec::new();
    }

    /// Returns the time of the last byte sent or received.
    pub fn moved(&self) -> Duration {
        self.moved
    }

    /// Returns whether bytes are waiting to be sent.
    pub fn is_sending(&self) -> bool {
        self.written < self.output.len() || self.content.is_some()
    }

    /// Returns whether a further request may be answered.
    fn may_answer(&self) -> bool {
        self.state == State::Open
            && !self.held
            && self.content.is_none()
            && self.output.len() - self.written < OUTPUT_FULL
    }

    /// Answers the requests at the start of `bytes`; returns how many bytes are done
    /// with.
    fn answer(&mut self, bytes: &[u8], site: &mut Site<impl Answers>) -> usize {
        let mut used = 0;
        for _ in 0..BURST {
            let rest = bytes.get(used..).unwrap_or_default();
            if self.skip > 0 {
                let skipped = self.skip.min(rest.len() as u64);
                self.skip -= skipped;
                // It is no more than the length of a slice.
                used += usize::try_from(skipped).unwrap_or(rest.len());
            }
            let rest = bytes.get(used..).unwrap_or_default();
            if rest.is_empty() || !self.may_answer() {
                break;
            }
            let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
            match parse(rest, &mut self.scanned, &mut room, &site.limits) {
                Parsed::Partial => break,
                Parsed::Whole(head, length) => {
                    used += length;
                    self.scanned = 0;
                    self.since = None;
                    Answers::respond(site, self, &head);
                }
                Parsed::Refused(status) => {
                    Answers::refuse(site, self, status);
                    break;
                }
            }
        }
        // If the peer has sent more requests than will be answered, it must still be able
        // to read the last answer.
        if self.state == (State::Last { linger: false }) && used < bytes.len() {
            self.state = State::Last { linger: true };
        }
        used
    }

    /// Starts the time of a request at its first byte, whenever its last one arrives.
    fn note_time(&mut self, now: Duration) {
        if self.input.is_empty() && self.skip == 0 {
            self.since = None;
        } else {
            self.since.get_or_insert(now);
        }
    }

    /// Holds the current request, which will be answered later: until
    /// [`Connection::release`], no other one is.
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// Records that the held request has been answered.
    pub(super) fn release(&mut self, now: Duration) {
        self.held = false;
        self.moved = now;
        self.since = None;
        self.note_time(now);
    }

    /// Returns the received bytes that have not been examined.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.input
    }

    /// Returns whether the peer has ended its side while a request was held.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Consumes bytes of [`Connection::waiting`].
    pub(super) fn used(&mut self, count: usize) {
        if count >= self.input.len() {
            self.input = Vec::new();
        } else {
            self.input.drain(..count);
        }
    }

    /// Returns the number of unsent bytes of responses.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.written
    }

    /// Ends it once its output has been sent: the current response cannot be finished,
    /// but earlier ones may be complete.
    pub(super) fn abort(&mut self) {
        self.held = false;
        self.state = State::Last { linger: true };
    }

    /// Returns the output buffer, without the sent part. A peer that asks faster than it
    /// reads may always leave unsent bytes there; the sent ones do not pile up.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        if self.written >= OUTPUT_FULL {
            self.output.drain(..self.written);
            self.written = 0;
        }
        &mut self.output
    }

    /// Skips this many bytes of content behind the current head.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skip = bytes;
    }

    /// Marks the current response as the last.
    pub(super) fn close_after(&mut self, linger: bool) {
        self.state = State::Last { linger };
    }
}

#[cfg(test)]
mod tests;
