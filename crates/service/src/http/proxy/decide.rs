//! What becomes of a request: answered here, from what is stored, or by its
//! origin.

use std::io::Write;
use std::net::IpAddr;
use std::rc::Rc;

use super::super::condition::{any_tag, opaque};
use super::super::connection::{Connection, Piece};
use super::super::entry::seconds;
use super::super::range::{self, Ranges};
use super::super::reply::{COPY_MAX, Last};
use super::super::request::{Content, Head, Method};
use super::super::status::Status;
use super::Revalidate;
use super::exchange::{Answer, Asked, Client, Collected, Exchange, Kind, Origin, Validation};
use super::message::{Facts, Onward, forward, has_name, joined, lines};
use super::shared::Shared;
use super::store::Stored;
use super::target::{self, Target};
use crate::work::multiply;

/// The methods that a proxy would answer for itself.
const ALLOW: &str = "Allow: GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS\r\n";

/// Whom an answer is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient {
    /// Minor version of HTTP.
    pub(super) version: u8,
    /// It wants no content.
    pub(super) to_head: bool,
    /// Whether the connection ends with the answer.
    pub(super) last: Last,
}

impl Recipient {
    /// A client, which may still be sending if `linger`.
    pub(super) fn of(client: Client, linger: bool) -> Self {
        Recipient {
            version: client.version,
            to_head: client.to_head,
            last: Last::of(client.last, linger),
        }
    }
}

impl Shared {
    /// Answers a request, or returns what an origin is to be asked.
    pub(super) fn decide(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_, '_>,
    ) -> Option<Box<Exchange>> {
        self.counts.requests += 1;
        if self.spec.work > 0 {
            multiply(self.spec.work, 1.0 + head.target.len() as f64 * 1e-9);
        }
        let empty = matches!(head.content, Content::Length(0));
        let client = Client {
            version: head.version,
            to_head: head.method == Method::Head,
            last: !head.keep_alive || self.stopping,
            idempotent: matches!(
                head.method_text,
                "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE"
            ),
            authorized: false,
            no_store: false,
        };
        // Content that is not read would be taken for the next request.
        let last = client.last || !empty;
        let recipient = Recipient::of(Client { last, ..client }, !empty || self.stopping);
        match self.prepare(head, client, empty, connection.peer) {
            Ok(Prepared::Ask(mut exchange)) => {
                if self.log.is_some() {
                    exchange.asked = Some(Asked {
                        method: head.method_text.into(),
                        target: head.target.into(),
                        version: head.version,
                    });
                }
                Some(exchange)
            }
            Ok(Prepared::Stored(stored, answer)) => {
                let (status, length) = self.stored(connection, &stored, &answer, recipient, &[]);
                self.note(connection, head, status, length);
                None
            }
            Ok(Prepared::Options) => {
                connection.begin(Status::NO_CONTENT, &self.clock);
                connection.out().extend_from_slice(ALLOW.as_bytes());
                connection.finish(recipient.version, recipient.last);
                self.note(connection, head, Status::NO_CONTENT.0, 0);
                None
            }
            Err(status) => {
                let length = self.error(connection, status, recipient);
                self.note(connection, head, status.0, length);
                None
            }
        }
    }

    fn prepare(
        &mut self,
        head: &Head<'_, '_>,
        mut client: Client,
        empty: bool,
        peer: IpAddr,
    ) -> Result<Prepared, Status> {
        if !self.spec.access.admits(peer) {
            return Err(Status::FORBIDDEN);
        }
        match (head.method_text, head.content) {
            // There are no tunnels here.
            ("CONNECT", _) => return Err(Status::NOT_IMPLEMENTED),
            // It would show a client what others' proxies add (§9.3.8).
            ("TRACE", _) => return Err(Status::METHOD_NOT_ALLOWED),
            (_, Content::Length(length)) if length > self.spec.limits.content_bytes => {
                return Err(Status::CONTENT_TOO_LARGE);
            }
            _ => {}
        }
        let options = head.method == Method::Options;
        let (target, origin) = self.whom(head, options)?;
        let mut facts = Facts::of(head, &self.pseudonym);
        if facts.looped {
            return Err(Status::LOOP_DETECTED);
        }
        if options {
            match facts.forwards {
                Some(0) => return Ok(Prepared::Options),
                Some(left) => facts.forwards = Some(left - 1),
                None => {}
            }
        }
        (client.authorized, client.no_store) = (facts.authorized, facts.wish.no_store);
        let shown;
        let authority = match target.authority {
            "" => {
                shown = self
                    .spec
                    .origin
                    .map_or_else(String::new, |at| at.to_string());
                shown.as_str()
            }
            authority => authority,
        };
        self.key.clear();
        let lower = authority.bytes().map(|byte| byte.to_ascii_lowercase());
        self.key.extend(lower);
        self.key.push(0);
        self.key.extend_from_slice(target.path.as_bytes());
        let get = matches!(head.method, Method::Get | Method::Head) && empty;
        let stored = if get && !facts.odd_condition {
            self.cache.find(&self.key, |name| joined(head.fields(name)))
        } else {
            None
        };
        if let Some(stored) = &stored {
            let fresh = stored.freshness.get().serves(&facts.wish, self.clock.now());
            if fresh && (self.spec.revalidate == Revalidate::Stale || facts.wish.only_if_cached) {
                self.uses.hits += 1;
                return Ok(Prepared::Stored(
                    stored.clone(),
                    answer(head, &facts, stored),
                ));
            }
        }
        if facts.wish.only_if_cached {
            return Err(Status::GATEWAY_TIMEOUT);
        }
        let validates = stored.filter(|stored| stored.has_validator());
        match (&validates, get && !facts.odd_condition) {
            (Some(_), _) => {}
            (None, true) => self.uses.misses += 1,
            (None, false) => self.uses.passed += 1,
        }
        let mut request = Vec::with_capacity(512);
        let onward = Onward {
            authority,
            path: target.path,
            pseudonym: &self.pseudonym,
            // Behind a proxy that people have chosen they need not be named.
            client: self.spec.origin.map(|_| peer),
            close: self.spec.fresh_upstream,
            validates: validates.as_deref(),
            whole: validates.is_some(),
            forwards: facts.forwards,
        };
        forward(&mut request, head, &onward);
        let most_of_all = self.spec.upstream.collected_bytes;
        let mut exchange = Exchange::new(
            origin,
            self.spec.fresh_upstream,
            request,
            head.content,
            Collected::new(&self.collected, self.spec.object_bytes, most_of_all),
            client,
            self.clock.now(),
        );
        if head.expects_continue {
            exchange.collect_nothing();
        }
        exchange.validation = validates.map(|stored| Validation {
            answer: answer(head, &facts, &stored),
            stored,
        });
        exchange.invalidates = !matches!(head.method, Method::Get | Method::Head | Method::Options);
        if exchange.invalidates || get && !facts.wish.no_store {
            exchange.key = Some(self.key.as_slice().into());
        }
        Ok(Prepared::Ask(Box::new(exchange)))
    }

    /// Whom a request is for.
    fn whom<'b>(&self, head: &Head<'_, 'b>, options: bool) -> Result<(Target<'b>, Origin), Status> {
        let Some(address) = self.spec.origin else {
            let target = target::absolute(head.target, options)?;
            let (host, port) =
                target::host_and_port(target.authority).ok_or(Status::BAD_REQUEST)?;
            // Ports of other protocols, which could be made to misunderstand.
            if port != 80 && port < 1024 {
                return Err(Status::FORBIDDEN);
            }
            let origin = match target::literal(host) {
                Some(address) => Origin::Address((address, port).into()),
                None => Origin::Name(host.to_ascii_lowercase().into(), port),
            };
            return Ok((target, origin));
        };
        let host = head.field("Host").unwrap_or_default();
        let host = std::str::from_utf8(host).map_err(|_| Status::BAD_REQUEST)?;
        let target = target::own(head.target, host, options)?;
        Ok((target, Origin::Address(address)))
    }

    /// Writes what is stored, with fields that are for this client alone;
    /// returns the status and the length of the content.
    pub(super) fn stored(
        &mut self,
        connection: &mut Connection,
        stored: &Rc<Stored>,
        answer: &Answer,
        recipient: Recipient,
        own: &[u8],
    ) -> (u16, u64) {
        self.counts.responses += 1;
        let age = stored.freshness.get().age(self.clock.now());
        let size = stored.body.len();
        let out = connection.out();
        let (status, range) = match &answer.status {
            Kind::Whole => {
                out.extend_from_slice(&stored.line);
                out.extend_from_slice(&stored.fields);
                (stored.status, 0..size)
            }
            Kind::NotModified => {
                out.extend_from_slice(b"HTTP/1.1 304 Not Modified\r\n");
                // RFC 9110 §15.4.5.
                let kept = [
                    "Cache-Control",
                    "Content-Location",
                    "ETag",
                    "Expires",
                    "Last-Modified",
                    "Vary",
                    "Via",
                ];
                for line in lines(&stored.fields) {
                    if kept.iter().any(|name| has_name(line, name)) {
                        out.extend_from_slice(line);
                        out.extend_from_slice(b"\r\n");
                    }
                }
                (304, 0..0)
            }
            Kind::Part(range) => {
                out.extend_from_slice(b"HTTP/1.1 206 Partial Content\r\n");
                out.extend_from_slice(&stored.fields);
                let end = range.end.saturating_sub(1);
                // Writing to a vector cannot fail.
                let _ = write!(out, "Content-Range: bytes {}-{end}/{size}\r\n", range.start);
                (206, range.clone())
            }
            Kind::Unsatisfiable => {
                out.extend_from_slice(b"HTTP/1.1 416 Range Not Satisfiable\r\n");
                let _ = write!(out, "Content-Range: bytes */{size}\r\n");
                (416, 0..0)
            }
        };
        out.extend_from_slice(own);
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(&stored.date.borrow());
        let _ = write!(out, "\r\nAge: {age}\r\n");
        if !matches!(status, 204 | 304) {
            let _ = write!(out, "Content-Length: {}\r\n", range.len());
        }
        connection.finish(recipient.version, recipient.last);
        if answer.to_head || range.is_empty() {
            return (status, 0);
        }
        let length = range.len() as u64;
        match stored.body.get(range.clone()) {
            Some(content) if content.len() <= COPY_MAX => {
                connection.out().extend_from_slice(content)
            }
            _ => connection
                .pieces
                .push_back(Piece::Shared(stored.body.clone(), range)),
        }
        (status, length)
    }

    /// Writes an error and a line that names it; returns the line's length.
    pub(super) fn error(
        &mut self,
        connection: &mut Connection,
        status: Status,
        recipient: Recipient,
    ) -> u64 {
        self.counts.responses += 1;
        connection.begin(status, &self.clock);
        let out = connection.out();
        match status {
            Status::METHOD_NOT_ALLOWED => out.extend_from_slice(ALLOW.as_bytes()),
            Status::SERVICE_UNAVAILABLE => out.extend_from_slice(b"Retry-After: 1\r\n"),
            _ => {}
        }
        let line = match status {
            Status::NOT_IMPLEMENTED => {
                "501 Not Implemented: this proxy has http alone, no CONNECT and no https\n"
                    .to_owned()
            }
            Status::FORBIDDEN => {
                "403 Forbidden: the access rules of this proxy do not allow it\n".to_owned()
            }
            Status(code) => format!("{code} {}\n", status.reason()),
        };
        connection.line(&line, !recipient.to_head, recipient.version, recipient.last)
    }

    /// Writes a request that was answered at once into the log.
    fn note(&mut self, connection: &Connection, head: &Head<'_, '_>, status: u16, length: u64) {
        if let Some(log) = &mut self.log {
            let request = Some((head.method_text, head.target, head.version));
            log.add(
                connection.peer,
                &self.clock,
                request,
                Status(status),
                length,
            );
        }
    }
}

enum Prepared {
    /// An origin is to be asked.
    Ask(Box<Exchange>),
    /// It is here.
    Stored(Rc<Stored>, Answer),
    /// OPTIONS for this proxy.
    Options,
}

/// How a request is to be answered with what is stored (RFC 9110 §13.2.2,
/// RFC 9111 §4.3.2).
fn answer(head: &Head<'_, '_>, facts: &Facts, stored: &Stored) -> Answer {
    let to_head = head.method == Method::Head;
    let mut status = Kind::Whole;
    if stored.status == 200 && facts.conditional {
        let mut tags = head.fields("If-None-Match").peekable();
        let known = if tags.peek().is_some() {
            let own = stored.etag.as_deref().map(opaque);
            tags.any(|field| any_tag(field, |tag| own == Some(opaque(tag))))
        } else {
            let since = head.field("If-Modified-Since").and_then(seconds);
            matches!((since, stored.modified), (Some(since), Some(modified)) if modified <= since)
        };
        if known {
            status = Kind::NotModified;
        }
    }
    if status == Kind::Whole
        && stored.status == 200
        && facts.ranged
        && head.method == Method::Get
        && let Some(field) = head.field("Range")
    {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        match range::parse(field, stored.body.len() as u64) {
            Ranges::Unsatisfiable => status = Kind::Unsatisfiable,
            Ranges::Parts(parts) => {
                // Several parts are answered whole, which §14.2 allows.
                if let [part] = parts.as_slice() {
                    status = Kind::Part(place(part.start)..place(part.end));
                }
            }
            Ranges::Whole => {}
        }
    }
    Answer { status, to_head }
}
