//! A client's connection and the exchange with an origin that it waits for:
//! bytes and a time go in on both sides, bytes come out. No sockets, clocks or
//! threads.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::time::Duration;

use super::super::Limits;
use super::super::connection::{Connection, Responder};
use super::super::reply::Last;
use super::super::request::Head;
use super::super::site::Clock;
use super::super::status::Status;
use super::body::Body;
use super::exchange::{Exchange, Link, Phase};
use super::message::{end_to_end, status_line};
use super::request::Recipient;
use super::response::{self, FIELDS_MAX, Parsed};
use super::shared::Shared;

pub use super::exchange::Origin;

/// With so many bytes of an answer on the way to the client no more are taken
/// from the origin.
pub(super) const ANSWER_FULL: usize = 64 * 1024;

/// What went wrong with an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be reached, or has broken the connection: 502.
    Broken,
    /// It has not answered in time: 504.
    Timeout,
    /// This proxy has no room for a further connection: 503.
    Full,
    /// This proxy does not go there: 403.
    Denied,
}

/// A client's connection.
#[derive(Debug)]
pub struct Session {
    pub(super) connection: Connection,
    pub(super) exchange: Option<Box<Exchange>>,
    /// The connection to the origin is no longer needed.
    pub(super) finished: bool,
    /// The index of that connection among [`Origins`](super::origins::Origins).
    pub(super) place: Option<usize>,
}

/// The proxy, answering one connection.
struct Answering<'a> {
    shared: &'a mut Shared,
    exchange: &'a mut Option<Box<Exchange>>,
}

impl Responder for Answering<'_> {
    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn limits(&self) -> &Limits {
        &self.shared.spec.limits
    }

    fn respond(&mut self, connection: &mut Connection, head: &Head<'_, '_>) {
        *self.exchange = self.shared.begin(connection, head);
        if self.exchange.is_some() {
            connection.hold();
        }
    }

    fn refuse(&mut self, connection: &mut Connection, status: Status) {
        self.shared.counts.refused += 1;
        let recipient = Recipient {
            version: 1,
            to_head: false,
            last: Last::Linger,
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
            finished: false,
            place: None,
        }
    }

    /// The connection with the client: what is to be sent over it, whether it
    /// wants input, how it ends.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The same, mutable.
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    // ---- The client's side --------------------------------------------------

    /// Takes bytes from the client.
    pub fn receive(&mut self, bytes: &[u8], shared: &mut Shared) {
        let mut answering = Answering {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.receive(bytes, &mut answering);
        self.take_content(shared);
    }

    /// Goes on with requests that had to wait.
    pub fn resume(&mut self, shared: &mut Shared) {
        let mut answering = Answering {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.resume(&mut answering);
        self.take_content(shared);
    }

    /// Takes note that the client sends nothing more.
    pub fn end_of_input(&mut self) {
        if !self.drop_incomplete() {
            self.connection.end_of_input();
        }
    }

    /// Drops a request of which no more will come: nobody waits for its answer.
    fn drop_incomplete(&mut self) -> bool {
        let incomplete = |exchange: &mut Box<Exchange>| !exchange.content.is_complete();
        let dropped = self.exchange.take_if(incomplete).is_some();
        if dropped {
            self.finished = true;
            self.connection.abort();
        }
        dropped
    }

    /// When [`Session::expire`] is due.
    pub fn deadline(&self, shared: &Shared) -> Duration {
        let own = self.connection.deadline_within(&shared.spec.limits);
        match &self.exchange {
            // While the client is the slow one its own deadline counts.
            Some(exchange) if self.connection.unsent() < ANSWER_FULL => own
                .min(exchange.client_deadline(&shared.spec.limits))
                .min(exchange.origin_deadline(&shared.spec.upstream)),
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
            let limits = &shared.spec.limits;
            let exchange = self.exchange.as_ref();
            let late = exchange.is_some_and(|exchange| now >= exchange.client_deadline(limits));
            return match late {
                true => self.fail(Status::REQUEST_TIMEOUT, shared),
                false => self.upstream_failed(Failure::Timeout, shared),
            };
        }
        let mut answering = Answering {
            shared,
            exchange: &mut self.exchange,
        };
        self.connection.expire(&mut answering);
    }

    // ---- The origin's side --------------------------------------------------

    /// The origin to which a connection is needed.
    pub fn wants_upstream(&self) -> Option<&Origin> {
        let exchange = self.exchange.as_ref()?;
        (exchange.link == Link::Wanted).then_some(&exchange.origin)
    }

    /// A connection is being made.
    pub fn connecting(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.link = Link::Connecting;
        }
    }

    /// The connection is established.
    pub fn connected(&mut self, now: Duration) {
        if let Some(exchange) = &mut self.exchange {
            exchange.link = Link::Connected;
            exchange.moved = now;
        }
    }

    /// Whether the connection to the origin is no longer needed; says it once.
    pub fn take_finished(&mut self) -> bool {
        std::mem::take(&mut self.finished)
    }

    /// What is to be sent to the origin next; true if more follows at once.
    pub fn upstream_output(&self) -> (&[u8], bool) {
        match &self.exchange {
            Some(exchange) if exchange.link != Link::Buffering => exchange.output(),
            _ => (&[], false),
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
            Some(Phase::Content(Body::Close)) => self.complete(shared),
            Some(_) => self.upstream_failed(Failure::Broken, shared),
            None => {}
        }
    }

    /// The connection to the origin failed.
    pub fn upstream_failed(&mut self, failure: Failure, shared: &mut Shared) {
        let status = match failure {
            Failure::Broken => Status::BAD_GATEWAY,
            Failure::Timeout => Status::GATEWAY_TIMEOUT,
            Failure::Full => Status::SERVICE_UNAVAILABLE,
            Failure::Denied => Status::FORBIDDEN,
        };
        self.fail(status, shared);
    }

    // ---- In between ---------------------------------------------------------

    /// Moves the client's content on its way to the origin.
    fn take_content(&mut self, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if self.connection.waiting().is_empty() {
            if self.connection.has_ended() {
                self.drop_incomplete();
            }
            return;
        }
        if !exchange.wants_content() {
            return;
        }
        let now = shared.clock.now();
        let limits = &shared.spec.limits;
        let used = exchange.take_content(self.connection.waiting(), now, limits);
        let too_much = exchange.taken() > shared.spec.limits.content_bytes;
        match used {
            Some(used) if !too_much => {
                self.connection.used(used);
                if self.connection.has_ended() && self.connection.waiting().is_empty() {
                    self.drop_incomplete();
                }
            }
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
                Parsed::Complete(head, _) if head.status == 101 => {
                    self.fail(Status::BAD_GATEWAY, shared);
                }
                Parsed::Complete(head, length) if head.status < 200 => {
                    exchange.scanned = 0;
                    used += length;
                    // RFC 9110 §15.2: they go on, but not to HTTP/1.0.
                    if exchange.client.version >= 1 {
                        let out = self.connection.out();
                        status_line(out, head.status, head.reason);
                        end_to_end(out, &head, &shared.pseudonym);
                        out.extend_from_slice(b"\r\n");
                    }
                }
                Parsed::Complete(head, length) => {
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
            None => {}
        }
    }
}
