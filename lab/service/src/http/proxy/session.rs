//! A client's connection and its current exchange with an origin: bytes and times go in
//! on both sides, bytes come out. No sockets, clocks or threads.

use std::cell::Cell;
use std::io::Write;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use super::super::connection::{Answers, Connection};
use super::super::listener::ClientConnection;
use super::super::pace::Pace;
use super::super::reply::Last;
use super::super::request::Head;
use super::super::site::{Clock, Site};
use super::super::status::Status;
use super::Spec;
use super::body::Body;
use super::request::{end_to_end, put};
use super::response::{self, FIELDS_MAX, Parsed};

/// Unsent bytes of an answer at which no more are read from the origin.
const ANSWER_FULL: usize = 64 * 1024;

/// The failure of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be reached, or has closed the connection early: 502.
    Broken,
    /// It has not answered in time: 504.
    Timeout,
    /// This proxy has no room for a further connection: 503.
    Full,
    /// This proxy does not connect there: 403.
    Denied,
}

/// The origin of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A host at this address.
    Address(SocketAddr),
    /// A host of this name, at this port.
    Name(Box<str>, u16),
}

/// The use of origins since it was last counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Origins that could not be reached or gave no valid answer: 502, 504, 503.
    pub upstream_errors: u64,
    /// Bytes received from origins.
    pub upstream_bytes: u64,
}

/// The source of a proxy's answers: its rules, and its counts.
#[derive(Debug)]
pub struct Forward {
    /// Its configuration.
    pub spec: Spec,
    /// The use of origins since it was last counted.
    pub uses: Uses,
    /// Buffered bytes of requests' content.
    pub(super) buffered: Rc<Cell<usize>>,
    /// Its name in Via.
    pub(super) pseudonym: String,
    /// The exchange that the current request has begun.
    begun: Option<Box<Exchange>>,
}

/// The state shared by all connections of a proxy.
pub type Shared = Site<Forward>;

impl Shared {
    /// Creates a proxy. `number`, ideally random, distinguishes it from other proxies
    /// that requests pass.
    pub fn forwarding(spec: Spec, clock: Clock, number: u64) -> Self {
        let (limits, work) = (spec.limits, spec.work);
        let forward = Forward {
            spec,
            uses: Uses::default(),
            buffered: Rc::default(),
            pseudonym: format!("tidewall-{number:x}"),
            begun: None,
        };
        let mut shared = Site::new(forward, clock, limits);
        shared.work = work;
        shared
    }
}

impl Answers for Forward {
    fn respond(shared: &mut Shared, connection: &mut Connection, head: &Head<'_, '_>) {
        shared.store.begun = shared.begin(connection, head);
        if shared.store.begun.is_some() {
            connection.hold();
        }
    }

    fn refuse(shared: &mut Shared, connection: &mut Connection, status: Status) {
        shared.counts.refused += 1;
        let length = connection.refusal(status, (1, false, Last::Linger), &shared.clock);
        shared.account(connection.peer, None, status, length);
    }
}

/// The progress of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client's content is arriving.
    Collecting(Body),
    /// A connection to the origin is needed.
    Wanted,
    /// It is being established.
    Connecting,
    /// The head of the answer has not arrived.
    Head,
    /// The content of the answer is arriving.
    Content(Body),
}

/// One exchange's share of the memory for buffered content.
#[derive(Debug)]
struct Buffered {
    all: Rc<Cell<usize>>,
    own: usize,
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.own);
    }
}

/// One request to an origin, and its answer.
#[derive(Debug)]
pub(super) struct Exchange {
    origin: Origin,
    phase: Phase,
    /// The head of the request, without its end while content is collected.
    request: Vec<u8>,
    /// Its content, and how much of both has been sent.
    content: Vec<u8>,
    sent: usize,
    buffered: Buffered,
    /// The pace at which the client sends it.
    pace: Pace,
    /// The received part of the answer's head, and how much of it has no end.
    input: Vec<u8>,
    scanned: usize,
    /// The answer's content is forwarded in chunks.
    chunks: bool,
    /// The client's minor version of HTTP, and whether it wants no content.
    version: u8,
    to_head: bool,
    /// The client's connection ends with this answer.
    last: bool,
    /// When the request was ready, and then the time of the last byte sent or received.
    moved: Duration,
    /// Method and target, for the access log.
    asked: Option<(Box<str>, Box<str>)>,
    /// The status, and the length of the content sent to the client.
    status: u16,
    length: u64,
}

impl Exchange {
    /// Creates a request with `content` still to arrive; `request` is its head, without
    /// the fields that state the content's length.
    pub(super) fn new(
        shared: &Shared,
        head: &Head<'_, '_>,
        origin: Origin,
        request: Vec<u8>,
        content: Body,
    ) -> Self {
        let now = shared.clock.now();
        let mut exchange = Exchange {
            origin,
            phase: Phase::Collecting(content),
            request,
            content: Vec::new(),
            sent: 0,
            buffered: Buffered {
                all: shared.store.buffered.clone(),
                own: 0,
            },
            pace: Pace::default(),
            input: Vec::new(),
            scanned: 0,
            chunks: false,
            version: head.version,
            to_head: head.method == "HEAD",
            last: !head.keep_alive || shared.stopping,
            moved: now,
            asked: shared
                .log
                .is_some()
                .then(|| (head.method.into(), head.target.into())),
            status: 0,
            length: 0,
        };
        exchange.pace.start(now);
        if content == Body::Length(0) {
            exchange.ready(head.fields.all("Content-Length").next().is_some(), now);
        }
        exchange
    }

    /// Records that the whole request is here.
    fn ready(&mut self, says_length: bool, now: Duration) {
        if says_length {
            // Writing to a vector cannot fail.
            let _ = write!(self.request, "Content-Length: {}\r\n", self.content.len());
        }
        self.request.extend_from_slice(b"Connection: close\r\n\r\n");
        self.phase = Phase::Wanted;
        self.moved = now;
    }

    /// Accepts content from the client; returns how many bytes belong to it.
    fn collect(&mut self, bytes: &[u8], shared: &Shared) -> Result<usize, Status> {
        let Phase::Collecting(body) = &mut self.phase else {
            return Ok(0);
        };
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            let piece = body.take(rest).map_err(|_| Status::BAD_REQUEST)?;
            if piece.used == 0 {
                break;
            }
            used += piece.used;
            let content = rest.get(piece.content).unwrap_or_default();
            self.content.extend_from_slice(content);
        }
        let whole = body.is_complete();
        let (own, all) = (self.content.len(), &self.buffered.all);
        all.set(all.get() + own - mem::replace(&mut self.buffered.own, own));
        if own as u64 > shared.limits.content_bytes {
            return Err(Status::CONTENT_TOO_LARGE);
        }
        if all.get() > shared.store.spec.upstream.buffered_bytes {
            return Err(Status::SERVICE_UNAVAILABLE);
        }
        let now = shared.clock.now();
        self.pace.moved(used, now, &shared.limits);
        if whole {
            self.ready(true, now);
        }
        Ok(used)
    }

    fn recipient(&self, linger: bool) -> Recipient {
        let last = Last::of(self.last || linger, linger);
        (self.version, self.to_head, last)
    }

    /// Returns the deadline for the next progress.
    fn deadline(&self, shared: &Shared) -> Duration {
        let upstream = &shared.store.spec.upstream;
        match self.phase {
            Phase::Collecting(_) => self.pace.deadline(&shared.limits).unwrap_or(Duration::MAX),
            Phase::Wanted | Phase::Connecting => self.moved + upstream.connect,
            Phase::Head | Phase::Content(_) => self.moved + upstream.answer,
        }
    }
}

/// The recipient of an answer of the proxy itself: the minor version of HTTP, whether no
/// content is wanted, and whether the connection ends with it.
pub(super) type Recipient = (u8, bool, Last);

/// A client's connection.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    exchange: Option<Box<Exchange>>,
    /// The connection to the origin is no longer needed.
    finished: bool,
    /// The index of that connection among [`Origins`](super::origins::Origins).
    pub(super) place: Option<usize>,
}

impl ClientConnection for Session {
    type Store = Forward;

    fn new(peer: IpAddr, now: Duration) -> Self {
        Session {
            connection: Connection::new(peer, now),
            exchange: None,
            finished: false,
            place: None,
        }
    }

    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        self.connection.receive(bytes, shared);
        self.begin(shared);
    }

    fn resume(&mut self, shared: &mut Shared) {
        self.connection.resume(shared);
        self.begin(shared);
    }

    fn end_of_input(&mut self) {
        if !self.drop_incomplete() {
            self.connection.end_of_input();
        }
    }

    fn deadline(&self, shared: &Shared) -> Duration {
        let own = self.connection.deadline(&shared.limits);
        match &self.exchange {
            // While the client is the slow one, its own deadline counts.
            Some(exchange) if self.connection.unsent() < ANSWER_FULL => {
                own.min(exchange.deadline(shared))
            }
            _ => own,
        }
    }

    fn expire(&mut self, shared: &mut Shared) {
        let now = shared.clock.now();
        if now < self.deadline(shared) {
            return;
        }
        if now >= self.connection.deadline(&shared.limits) {
            return self.connection.expire(shared);
        }
        match self.exchange.as_ref().map(|exchange| exchange.phase) {
            Some(Phase::Collecting(_)) => self.fail(Status::REQUEST_TIMEOUT, shared),
            _ => self.upstream_failed(Failure::Timeout, shared),
        }
    }
}

impl Session {
    /// Takes up the exchange that a request has begun, and its content.
    fn begin(&mut self, shared: &mut Shared) {
        if let Some(begun) = shared.store.begun.take() {
            self.exchange = Some(begun);
        }
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        match exchange.collect(self.connection.waiting(), shared) {
            Ok(used) => {
                self.connection.used(used);
                if self.connection.has_ended() {
                    self.drop_incomplete();
                }
            }
            Err(status) => self.fail(status, shared),
        }
    }

    /// Drops a request that will stay incomplete: no client waits for its answer.
    fn drop_incomplete(&mut self) -> bool {
        let collects =
            |exchange: &mut Box<Exchange>| matches!(exchange.phase, Phase::Collecting(_));
        let dropped = self.exchange.take_if(collects).is_some();
        if dropped {
            self.connection.abort();
        }
        dropped
    }

    // ---- The origin's side --------------------------------------------------

    /// Returns the origin to which a connection is needed.
    pub fn wants_upstream(&self) -> Option<&Origin> {
        let exchange = self.exchange.as_ref()?;
        (exchange.phase == Phase::Wanted).then_some(&exchange.origin)
    }

    /// Records that a connection is being established.
    pub fn connecting(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.phase = Phase::Connecting;
        }
    }

    /// Records that the connection is established.
    pub fn connected(&mut self, now: Duration) {
        if let Some(exchange) = &mut self.exchange {
            exchange.phase = Phase::Head;
            exchange.moved = now;
        }
    }

    /// Returns whether the connection to the origin is no longer needed; true only once.
    pub fn take_finished(&mut self) -> bool {
        mem::take(&mut self.finished)
    }

    /// Returns the next output to the origin; true if more follows at once.
    pub fn upstream_output(&self) -> (&[u8], bool) {
        let Some(exchange) = &self.exchange else {
            return (&[], false);
        };
        if matches!(exchange.phase, Phase::Collecting(_)) {
            return (&[], false);
        }
        let (head, content) = (&exchange.request, &exchange.content);
        match head.get(exchange.sent..) {
            Some(rest) if !rest.is_empty() => (rest, !content.is_empty()),
            _ => {
                let rest = content.get(exchange.sent - head.len()..);
                (rest.unwrap_or_default(), false)
            }
        }
    }

    /// Records that this many bytes of it have been sent.
    pub fn upstream_sent(&mut self, count: usize, shared: &Shared) {
        if let Some(exchange) = &mut self.exchange {
            exchange.moved = shared.clock.now();
            exchange.sent += count;
        }
    }

    /// Returns whether to read bytes from the origin.
    pub fn upstream_wants_input(&self) -> bool {
        self.exchange.is_some() && self.connection.unsent() < ANSWER_FULL
    }

    /// Handles bytes from the origin.
    pub fn upstream_receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        shared.store.uses.upstream_bytes += bytes.len() as u64;
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.moved = shared.clock.now();
        match exchange.phase {
            Phase::Content(_) => self.content(bytes, shared),
            _ if exchange.input.is_empty() => self.heads(bytes, shared),
            _ => {
                let mut input = mem::take(&mut exchange.input);
                input.extend_from_slice(bytes);
                self.heads(&input, shared);
            }
        }
    }

    /// Records that the origin sends nothing more.
    pub fn upstream_end(&mut self, shared: &mut Shared) {
        match self.exchange.as_ref().map(|exchange| exchange.phase) {
            Some(Phase::Content(Body::Close)) => self.complete(shared),
            Some(_) => self.upstream_failed(Failure::Broken, shared),
            None => {}
        }
    }

    /// Records that the connection to the origin failed.
    pub fn upstream_failed(&mut self, failure: Failure, shared: &mut Shared) {
        let status = match failure {
            Failure::Broken => Status::BAD_GATEWAY,
            Failure::Timeout => Status::GATEWAY_TIMEOUT,
            Failure::Full => Status::SERVICE_UNAVAILABLE,
            Failure::Denied => Status::FORBIDDEN,
        };
        self.fail(status, shared);
    }

    // ---- The answer ---------------------------------------------------------

    /// Parses heads from the origin, any number of interim ones and a final one, and the
    /// content.
    fn heads(&mut self, mut bytes: &[u8], shared: &mut Shared) {
        while let Some(exchange) = &mut self.exchange {
            let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
            let limit = shared.store.spec.upstream.head_bytes;
            let to_head = exchange.to_head;
            match response::parse(bytes, &mut exchange.scanned, &mut room, limit, to_head) {
                Parsed::Partial => {
                    exchange.input = bytes.to_vec();
                    return;
                }
                // No client has requested another protocol.
                Parsed::Complete(head, _) if head.status == 101 => {
                    self.fail(Status::BAD_GATEWAY, shared);
                }
                Parsed::Complete(head, length) if head.status < 200 => {
                    exchange.scanned = 0;
                    bytes = bytes.get(length..).unwrap_or_default();
                    // RFC 9110 §15.2: they are forwarded, but not to HTTP/1.0.
                    if exchange.version >= 1 {
                        let out = self.connection.out();
                        end_to_end(out, &head, &shared.store.pseudonym);
                        out.extend_from_slice(b"\r\n");
                    }
                }
                Parsed::Complete(head, length) => {
                    self.answer(&head, shared);
                    return self.content(bytes.get(length..).unwrap_or_default(), shared);
                }
                Parsed::Bad => self.fail(Status::BAD_GATEWAY, shared),
            }
        }
    }

    /// Forwards the head of an answer.
    fn answer(&mut self, head: &response::Head<'_, '_>, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.phase = Phase::Content(head.body);
        exchange.status = head.status;
        let out = self.connection.out();
        end_to_end(out, head, &shared.store.pseudonym);
        if head.fields.all("Date").next().is_none() {
            put(out, "Date", shared.clock.date().as_bytes());
        }
        match (head.body, head.length) {
            (Body::Length(_), Some(length)) if head.status != 204 => {
                put(out, "Content-Length", length.to_string().as_bytes());
            }
            (Body::Length(_), _) => {}
            (Body::Chunked(_) | Body::Close, _) if exchange.version >= 1 => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                exchange.chunks = true;
            }
            // The end of the connection is the end of the content.
            (Body::Chunked(_) | Body::Close, _) => exchange.last = true,
        }
        let (version, _, last) = exchange.recipient(shared.stopping);
        self.connection.finish(version, last);
    }

    /// Forwards content of an answer, possibly none.
    fn content(&mut self, mut bytes: &[u8], shared: &mut Shared) {
        while let Some(exchange) = &mut self.exchange {
            let Phase::Content(body) = &mut exchange.phase else {
                return;
            };
            if body.is_complete() {
                return self.complete(shared);
            }
            let Ok(piece) = body.take(bytes) else {
                return self.fail(Status::BAD_GATEWAY, shared);
            };
            if piece.used == 0 {
                return;
            }
            let content = bytes.get(piece.content).unwrap_or_default();
            bytes = bytes.get(piece.used..).unwrap_or_default();
            exchange.length += content.len() as u64;
            let out = self.connection.out();
            if exchange.chunks && !content.is_empty() {
                let _ = write!(out, "{:x}\r\n", content.len());
                out.extend_from_slice(content);
                out.extend_from_slice(b"\r\n");
            } else {
                out.extend_from_slice(content);
            }
        }
    }

    /// Records that the answer is complete.
    fn complete(&mut self, shared: &mut Shared) {
        if self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.chunks)
        {
            self.connection.out().extend_from_slice(b"0\r\n\r\n");
        }
        self.finish(shared);
    }

    /// Records that the client has its answer, or all of it that there will be.
    fn finish(&mut self, shared: &mut Shared) {
        let Some(exchange) = self.exchange.take() else {
            return;
        };
        let asked = exchange.asked.as_ref();
        let request = asked.map(|(method, target)| (&**method, &**target, exchange.version));
        let (peer, status) = (self.connection.peer, Status(exchange.status));
        shared.account(peer, request, status, exchange.length);
        self.finished = true;
        self.connection.release(shared.clock.now());
    }

    /// Fails the exchange: there will be no answer from the origin, or no more of it.
    fn fail(&mut self, status: Status, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        match status.0 >= 500 {
            true => shared.store.uses.upstream_errors += 1,
            false => shared.counts.refused += 1,
        }
        if let Phase::Content(_) = exchange.phase {
            // An answer that has begun cannot become an error any more; the client sees
            // that it is incomplete.
            self.finish(shared);
            return self.connection.abort();
        }
        let linger = matches!(exchange.phase, Phase::Collecting(_));
        let recipient = exchange.recipient(linger);
        exchange.status = status.0;
        exchange.length = self.connection.refusal(status, recipient, &shared.clock);
        self.finish(shared);
    }
}
