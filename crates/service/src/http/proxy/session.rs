//! A client's connection and the exchange with an origin that it waits for:
//! bytes and a time go in on both sides, bytes come out. No sockets, clocks or
//! threads.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use super::super::Limits;
use super::super::connection::{Connection, Responder};
use super::super::request::Head;
use super::super::site::Clock;
use super::super::status::Status;
use super::body::Body;
use super::decide::{Recipient, finish};
use super::exchange::{Exchange, Link, Onto, Phase, Storing, Validation, chunk};
use super::message::{end_to_end, freshened, freshness, put, status_line, storable};
use super::response::{self, FIELDS_MAX, Parsed};
use super::shared::Shared;

pub use super::exchange::Origin;

/// With so many bytes of an answer on the way to the client no more are taken
/// from the origin.
const ANSWER_FULL: usize = 64 * 1024;

/// What went wrong with an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be reached, or has broken the connection: 502.
    Broken,
    /// It has not answered in time: 504.
    Timeout,
    /// This proxy has no room for a further connection: 503.
    Full,
}

/// What becomes of a connection to an origin that is no longer needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// To be closed.
    Close,
    /// Another request may use it.
    Keep,
}

/// A client's connection.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    exchange: Option<Box<Exchange>>,
    left: Option<Left>,
    /// Where whoever makes connections to origins has the one in use; of no
    /// meaning here.
    pub(super) place: Option<usize>,
}

/// The proxy, answering one connection.
struct Turn<'a> {
    shared: &'a mut Shared,
    exchange: &'a mut Option<Box<Exchange>>,
}

impl Responder for Turn<'_> {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn limits(&self) -> &Limits {
        &self.shared.spec.limits
    }

    fn respond(&mut self, connection: &mut Connection, head: &Head<'_, '_>) {
        *self.exchange = self.shared.decide(connection, head);
        if self.exchange.is_some() {
            connection.hold();
        }
    }

    fn refuse(&mut self, connection: &mut Connection, status: Status) {
        self.shared.counts.refused += 1;
        let recipient = Recipient {
            version: 1,
            to_head: false,
            last: true,
            linger: true,
        };
        let length = self.shared.error(connection, status, recipient);
        if let Some(log) = &mut self.shared.log {
            log.add(connection.peer, &self.shared.clock, None, status, length);
        }
    }
}

impl Session {
    /// A connection that was accepted `now`.
    pub fn new(peer: IpAddr, now: Duration) -> Self {
        Session {
            connection: Connection::new(peer, now),
            exchange: None,
            left: None,
            place: None,
        }
    }

    /// The connection with the client: what is to be sent over it, whether it
    /// wants input, how it ends.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The same, to be told what was sent.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    // ---- The client's side --------------------------------------------------

    /// Takes bytes from the client.
    pub fn receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        let mut turn = Turn {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.receive(bytes, &mut turn);
        self.take_content(shared);
    }

    /// Goes on with requests that had to wait.
    pub fn proceed(&mut self, shared: &mut Shared) {
        let mut turn = Turn {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.proceed(&mut turn);
        self.take_content(shared);
    }

    /// Takes note that the client sends nothing more.
    pub fn end_of_input(&mut self) {
        let whole = self
            .exchange
            .as_ref()
            .is_none_or(|exchange| exchange.content.is_over());
        if whole {
            self.connection.end_of_input();
        } else {
            // Of a request that will never be whole nobody waits for the answer.
            self.connection.abort();
        }
    }

    /// When [`Session::expire`] is due.
    pub fn deadline(&self, shared: &Shared) -> Duration {
        let own = self.connection.deadline_within(&shared.spec.limits);
        match &self.exchange {
            // While the client is the slow one its own deadline counts.
            Some(exchange) if self.connection.unsent() < ANSWER_FULL => {
                own.min(exchange.deadline(&shared.spec.upstream))
            }
            _ => own,
        }
    }

    /// Ends what is overdue.
    pub fn expire(&mut self, shared: &mut Shared) {
        let now = shared.clock.now();
        if now < self.deadline(shared) {
            return;
        }
        if now < self.connection.deadline_within(&shared.spec.limits) {
            let waits_for_client = self.exchange.as_ref().is_some_and(|exchange| {
                exchange.output().0.is_empty() && !exchange.content.is_over()
            });
            return match waits_for_client {
                true => self.fail(Status::REQUEST_TIMEOUT, shared),
                false => self.upstream_failed(Failure::Timeout, shared),
            };
        }
        let mut turn = Turn {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.expire(&mut turn);
    }

    // ---- The origin's side --------------------------------------------------

    /// The origin to which a connection is needed; true if it has to be a new
    /// one.
    pub fn wants_upstream(&self) -> Option<(&Origin, bool)> {
        let exchange = self.exchange.as_ref()?;
        match exchange.link {
            Link::Wanted { fresh } => Some((&exchange.origin, fresh)),
            _ => None,
        }
    }

    /// A connection is being made.
    pub fn connecting(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.link = Link::Connecting;
        }
    }

    /// There is a connection, which others have used if `reused`.
    pub fn connected(&mut self, reused: bool, now: Duration) {
        if let Some(exchange) = &mut self.exchange {
            exchange.link = Link::There { reused };
            (exchange.moved, exchange.asked_at) = (now, now);
        }
    }

    /// What becomes of the connection to the origin, once it is no longer
    /// needed; says it once.
    pub fn take_left(&mut self) -> Option<Left> {
        self.left.take()
    }

    /// What is to be sent to the origin next; true if more follows at once.
    pub fn upstream_output(&self) -> (&[u8], bool) {
        match &self.exchange {
            Some(exchange) => exchange.output(),
            None => (&[], false),
        }
    }

    /// So many bytes of it have left.
    pub fn upstream_sent(&mut self, count: usize, shared: &mut Shared) {
        if let Some(exchange) = &mut self.exchange {
            exchange.sent(count, shared.clock.now());
        }
        self.take_content(shared);
    }

    /// Whether bytes are to be read from the origin.
    pub fn upstream_wants_input(&self) -> bool {
        self.exchange.is_some() && self.connection.unsent() < ANSWER_FULL
    }

    /// Takes bytes from the origin.
    pub fn upstream_receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        shared.uses.upstream_bytes += bytes.len() as u64;
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.moved = shared.clock.now();
        exchange.answered = true;
        match exchange.phase {
            Phase::Content(_) => self.content(bytes, shared),
            Phase::Head if exchange.input.is_empty() => {
                let used = self.heads(bytes, shared);
                let rest = bytes.get(used..).unwrap_or_default();
                self.after_heads(rest, shared);
            }
            Phase::Head => {
                let mut input = std::mem::take(&mut exchange.input);
                input.extend_from_slice(bytes);
                let used = self.heads(&input, shared);
                let rest = input.get(used..).unwrap_or_default();
                self.after_heads(rest, shared);
            }
        }
    }

    /// The origin sends nothing more.
    pub fn upstream_end(&mut self, shared: &mut Shared) {
        match self.exchange.as_ref().map(|exchange| exchange.phase) {
            Some(Phase::Content(Body::Close)) => self.complete(false, shared),
            Some(_) => self.upstream_failed(Failure::Broken, shared),
            None => {}
        }
    }

    /// The connection to the origin cannot be had, or is over.
    pub fn upstream_failed(&mut self, failure: Failure, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if failure == Failure::Broken && exchange.may_repeat() {
            exchange.repeat(shared.clock.now());
            self.left = Some(Left::Close);
            return;
        }
        let status = match failure {
            Failure::Broken => Status::BAD_GATEWAY,
            Failure::Timeout => Status::GATEWAY_TIMEOUT,
            Failure::Full => Status::SERVICE_UNAVAILABLE,
        };
        self.fail(status, shared);
    }

    // ---- In between ---------------------------------------------------------

    /// Moves the client's content on its way to the origin.
    fn take_content(&mut self, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if !exchange.wants_content() || self.connection.waiting().is_empty() {
            return;
        }
        let now = shared.clock.now();
        let used = exchange.take_content(self.connection.waiting(), now);
        let too_much = exchange.taken() > shared.spec.limits.content_bytes;
        match used {
            Some(used) if !too_much => self.connection.used(used),
            Some(_) => self.fail(Status::CONTENT_TOO_LARGE, shared),
            None => self.fail(Status::BAD_REQUEST, shared),
        }
    }

    /// Reads heads from the origin: any number of interim ones, and one more.
    /// Returns how many bytes they take.
    fn heads(&mut self, bytes: &[u8], shared: &mut Shared) -> usize {
        let mut used = 0;
        while let Some(exchange) = &mut self.exchange {
            let rest = bytes.get(used..).unwrap_or_default();
            let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
            let limit = shared.spec.upstream.head_bytes;
            let to_head = exchange.client.to_head;
            match response::parse(rest, &mut exchange.scanned, &mut room, limit, to_head) {
                Parsed::Partial => break,
                // Nobody has asked for another protocol.
                Parsed::Whole(head, _) if head.status == 101 => {
                    self.fail(Status::BAD_GATEWAY, shared);
                }
                Parsed::Whole(head, length) if head.status < 200 => {
                    exchange.scanned = 0;
                    used += length;
                    // RFC 9110 §15.2: they go on, but not to HTTP/1.0.
                    if exchange.client.version >= 1 {
                        let out = self.connection.head();
                        status_line(out, head.status, head.reason);
                        end_to_end(out, &head, &shared.pseudonym);
                        out.extend_from_slice(b"\r\n");
                    }
                }
                Parsed::Whole(head, length) => {
                    used += length;
                    self.begin(&head, shared);
                    break;
                }
                Parsed::Bad => self.fail(Status::BAD_GATEWAY, shared),
            }
        }
        used
    }

    /// What follows the heads that have come.
    fn after_heads(&mut self, rest: &[u8], shared: &mut Shared) {
        match &mut self.exchange {
            Some(exchange) if exchange.phase == Phase::Head => exchange.input = rest.to_vec(),
            Some(_) => self.content(rest, shared),
            // What comes behind the end is nobody's.
            None if !rest.is_empty() && self.left.is_some() => self.left = Some(Left::Close),
            None => {}
        }
    }

    /// The head of an answer has come.
    fn begin(&mut self, head: &response::Head<'_, '_>, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let now = shared.clock.now();
        exchange.keep_alive = head.keep_alive;
        exchange.phase = Phase::Content(head.body);
        let delay = now.saturating_sub(exchange.asked_at);
        let freshness = freshness(head, now, delay, shared.clock.unix());
        if let Some(Validation { stored, answer }) = exchange.validation.take() {
            let old = stored.freshness.get();
            if head.status == 304 {
                shared.uses.revalidated += 1;
                let date = shared.clock.date();
                let stored = match freshened(&stored, head, freshness, date) {
                    None => stored,
                    Some(new) => {
                        let new = Rc::new(new);
                        if let Some(key) = &exchange.key {
                            shared.cache.store(key, new.clone());
                        }
                        new
                    }
                };
                let recipient = exchange.client.into();
                (exchange.status, exchange.length) =
                    shared.stored(&mut self.connection, &stored, &answer, recipient);
                return self.complete_stored(shared);
            }
            if head.status >= 500 && old.serves_on_error(now) {
                shared.uses.stale += 1;
                exchange.keep_alive = false;
                let recipient = exchange.client.into();
                (exchange.status, exchange.length) =
                    shared.stored(&mut self.connection, &stored, &answer, recipient);
                return self.complete_stored(shared);
            }
            shared.uses.replaced += 1;
        }
        exchange.status = head.status;
        let client = &mut exchange.client;
        if let Some(key) = exchange.key.as_deref() {
            if exchange.invalidates {
                // RFC 9111 §4.4.
                if head.status < 400 {
                    shared.cache.invalidate(key);
                }
            } else if !client.to_head {
                let fits = |length: u64| length <= shared.spec.object_bytes as u64;
                let stored = storable(
                    head,
                    &exchange.request,
                    client.authorized,
                    &shared.pseudonym,
                    freshness,
                    shared.clock.date(),
                );
                match stored {
                    Some(stored) if head.length.is_none_or(fits) => {
                        // An origin's word alone is worth little memory.
                        let room = head.length.unwrap_or(0).min(ANSWER_FULL as u64);
                        exchange.storing = Some(Storing {
                            stored,
                            body: Vec::with_capacity(room as usize),
                        });
                    }
                    // What was stored is history, unless the origin is just
                    // unwell.
                    _ if head.status < 500 && head.status != 304 && head.status != 206 => {
                        shared.cache.invalidate(key);
                    }
                    _ => {}
                }
            }
        }
        shared.counts.responses += 1;
        let out = self.connection.head();
        status_line(out, head.status, head.reason);
        end_to_end(out, head, &shared.pseudonym);
        put(
            out,
            "Date",
            head.field("Date").unwrap_or(shared.clock.date().as_bytes()),
        );
        if let Some(age) = head.field("Age") {
            put(out, "Age", age);
        }
        match (head.body, head.length) {
            (Body::Length(_), Some(length)) if head.status != 204 => {
                put(out, "Content-Length", length.to_string().as_bytes());
            }
            (Body::Length(_), _) => {}
            (Body::Chunked(_) | Body::Close, _) if client.version >= 1 => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                exchange.onto = Onto::Chunks;
            }
            // The end of the connection is the end of the content.
            (Body::Chunked(_) | Body::Close, _) => client.last = true,
        }
        // An answer before all of the question: the rest of it is not wanted.
        let linger = !exchange.content.is_over();
        exchange.client.last |= linger || shared.stopping;
        let recipient = Recipient {
            linger: linger || shared.stopping,
            ..exchange.client.into()
        };
        finish(&mut self.connection, recipient);
    }

    /// Content of an answer has come, perhaps none.
    fn content(&mut self, bytes: &[u8], shared: &mut Shared) {
        let mut used = 0;
        loop {
            let Some(exchange) = &mut self.exchange else {
                return;
            };
            let Phase::Content(body) = &mut exchange.phase else {
                return;
            };
            if body.is_over() {
                return self.complete(used < bytes.len(), shared);
            }
            let rest = bytes.get(used..).unwrap_or_default();
            let Ok(piece) = body.take(rest) else {
                return self.fail(Status::BAD_GATEWAY, shared);
            };
            if piece.used == 0 {
                return;
            }
            used += piece.used;
            let content = rest.get(piece.content).unwrap_or_default();
            exchange.length += content.len() as u64;
            if let Some(storing) = &mut exchange.storing {
                if storing.body.len() + content.len() > shared.spec.object_bytes {
                    exchange.storing = None;
                    if let Some(key) = exchange.key.as_deref() {
                        shared.cache.invalidate(key);
                    }
                } else {
                    storing.body.extend_from_slice(content);
                }
            }
            if exchange.onto == Onto::Chunks {
                let mut framed = Vec::with_capacity(content.len() + 16);
                chunk(&mut framed, content, true);
                self.connection.append(&framed);
            } else {
                self.connection.append(content);
            }
        }
    }

    /// The answer is whole; `surplus` bytes came behind it.
    fn complete(&mut self, surplus: bool, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if exchange.onto == Onto::Chunks {
            self.connection.append(b"0\r\n\r\n");
        }
        exchange.keep_alive &= !surplus;
        if let (Some(storing), Some(key)) = (exchange.storing.take(), exchange.key.as_deref()) {
            let mut stored = storing.stored;
            stored.body = storing.body.into();
            if shared.cache.store(key, Rc::new(stored)) {
                shared.uses.stored += 1;
            }
        }
        self.complete_stored(shared);
    }

    /// The client has its answer, or all that there will be of it.
    fn complete_stored(&mut self, shared: &mut Shared) {
        let Some(exchange) = self.exchange.take() else {
            return;
        };
        if let (Some(log), Some(asked)) = (&mut shared.log, &exchange.asked) {
            let request = Some((&*asked.method, &*asked.target, asked.version));
            let status = Status(exchange.status);
            log.add(
                self.connection.peer,
                &shared.clock,
                request,
                status,
                exchange.length,
            );
        }
        let over = match exchange.phase {
            Phase::Content(body) => body.is_over(),
            Phase::Head => false,
        };
        let keep = over
            && exchange.keep_alive
            && exchange.is_asked()
            && !shared.spec.fresh_upstream
            && !shared.stopping;
        self.left = Some(if keep { Left::Keep } else { Left::Close });
        self.connection.release(shared.clock.now());
    }

    /// There will be no answer from the origin, or no more of it.
    fn fail(&mut self, status: Status, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.keep_alive = false;
        exchange.storing = None;
        let theirs = status.0 >= 500;
        if theirs {
            shared.uses.upstream_errors += 1;
        } else {
            shared.counts.refused += 1;
        }
        if exchange.phase != Phase::Head {
            // What has begun cannot become an error any more; the client sees
            // that it is not whole.
            self.complete_stored(shared);
            return self.connection.abort();
        }
        let linger = !exchange.content.is_over();
        let recipient = Recipient {
            last: exchange.client.last || linger,
            linger,
            ..exchange.client.into()
        };
        let now = shared.clock.now();
        let validation = exchange.validation.take();
        let stale =
            validation.filter(|asked| theirs && asked.stored.freshness.get().serves_on_error(now));
        if let Some(Validation { stored, answer }) = stale {
            shared.uses.stale += 1;
            (exchange.status, exchange.length) =
                shared.stored(&mut self.connection, &stored, &answer, recipient);
        } else {
            exchange.status = status.0;
            exchange.length = shared.error(&mut self.connection, status, recipient);
        }
        self.complete_stored(shared);
    }
}
