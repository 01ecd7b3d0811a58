//! The handling of a request: forwarded to its origin, or answered here. This includes
//! which fields are forwarded or removed (RFC 9110 §7.6), and which are added.

use std::io::Write;
use std::net::IpAddr;

use super::super::connection::Connection;
use super::super::reply::Last;
use super::super::request::{Content, Fields, Head, decimal, tokens};
use super::super::site::Clock;
use super::super::status::Status;
use super::body::Body;
use super::response;
use super::session::{Exchange, Origin, Recipient, Shared};
use super::target::{self, Target};
use crate::work::multiply;

/// The methods that the proxy's own answers list.
const ALLOW: &str = "Allow: GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS\r\n";

/// The hop-by-hop fields, which are not forwarded: those of RFC 9110 §7.6.1, and the
/// credentials for a proxy (§11.7), which this one does not use. The length is written
/// afresh.
const HOP_BY_HOP: &[&str] = &[
    "Connection",
    "Content-Length",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authentication-Info",
    "Proxy-Authorization",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

impl Connection {
    /// Writes an error and a line that names it; returns the line's length.
    pub(super) fn refusal(
        &mut self,
        status: Status,
        (version, to_head, last): Recipient,
        clock: &Clock,
    ) -> u64 {
        self.begin(status, clock);
        match status {
            Status::METHOD_NOT_ALLOWED => self.out().extend_from_slice(ALLOW.as_bytes()),
            Status::SERVICE_UNAVAILABLE => self.out().extend_from_slice(b"Retry-After: 1\r\n"),
            _ => {}
        }
        let Status(code) = status;
        let why = match status {
            Status::NOT_IMPLEMENTED => ": this proxy has http alone, no CONNECT and no https",
            Status::FORBIDDEN => ": the access rules of this proxy do not allow it",
            _ => "",
        };
        let line = format!("{code} {}{why}\n", status.reason());
        self.line(&line, !to_head, version, last)
    }
}

impl Shared {
    /// Answers a request, or returns the exchange with its origin.
    pub(super) fn begin(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_, '_>,
    ) -> Option<Box<Exchange>> {
        self.counts.requests += 1;
        if self.work > 0 {
            multiply(self.work, 1.0 + head.target.len() as f64 * 1e-9);
        }
        let (status, length) = match self.prepare(connection, head) {
            Ok(Some(exchange)) => return Some(Box::new(exchange)),
            Ok(None) => {
                connection.begin(Status::NO_CONTENT, &self.clock);
                connection.out().extend_from_slice(ALLOW.as_bytes());
                connection.finish(head.version, self.last(head));
                (Status::NO_CONTENT, 0)
            }
            Err(status) => {
                let to_head = head.method == "HEAD";
                let recipient = (head.version, to_head, self.last(head));
                (status, connection.refusal(status, recipient, &self.clock))
            }
        };
        let request = Some((head.method, head.target, head.version));
        self.account(connection.peer, request, status, length);
        None
    }

    /// Returns whether an answer without an origin is the connection's last: unread
    /// content would be mistaken for the next request.
    fn last(&self, head: &Head<'_, '_>) -> Last {
        let linger = head.content != Content::Length(0) || self.stopping;
        Last::of(linger || !head.keep_alive, linger)
    }

    /// Returns the exchange with the origin; `None` for an OPTIONS that this proxy
    /// answers.
    fn prepare(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_, '_>,
    ) -> Result<Option<Exchange>, Status> {
        let spec = &self.store.spec;
        if !spec.access.admits(connection.peer) {
            return Err(Status::FORBIDDEN);
        }
        let content = match (head.method, head.content) {
            // There are no tunnels here.
            ("CONNECT", _) => return Err(Status::NOT_IMPLEMENTED),
            // It would show a client what other proxies add (§9.3.8).
            ("TRACE", _) => return Err(Status::METHOD_NOT_ALLOWED),
            (_, Content::Length(length)) if length > self.limits.content_bytes => {
                return Err(Status::CONTENT_TOO_LARGE);
            }
            (_, Content::Length(length)) => Body::Length(length),
            (_, Content::Chunked) => Body::chunked(),
        };
        let options = head.method == "OPTIONS";
        let (target, origin) = self.origin_of(head, options)?;
        if head.fields.all("Via").any(|via| self.has_passed(via)) {
            return Err(Status::LOOP_DETECTED);
        }
        let mut request = Vec::with_capacity(512);
        // Writing to a vector cannot fail.
        let _ = write!(request, "{} {} HTTP/1.1\r\n", head.method, target.path);
        match (target.authority, spec.origin) {
            ("", Some(origin)) => put(&mut request, "Host", origin.to_string().as_bytes()),
            (authority, _) => put(&mut request, "Host", authority.as_bytes()),
        }
        forward(
            &mut request,
            head.fields,
            &["Host", "Expect", "Max-Forwards"],
        );
        let _ = write!(
            request,
            "Via: 1.{} {}\r\n",
            head.version, self.store.pseudonym
        );
        if spec.origin.is_some() {
            // A proxy chosen by its users need not name them.
            let _ = write!(request, "X-Forwarded-For: {}\r\n", connection.peer);
        }
        for field in head.fields.all("Max-Forwards").take(1) {
            match decimal(field) {
                Some(0) if options => return Ok(None),
                Some(left) if options => {
                    let _ = write!(request, "Max-Forwards: {}\r\n", left - 1);
                }
                _ => put(&mut request, "Max-Forwards", field),
            }
        }
        if head.expects_continue && content != Body::Length(0) {
            // The content is buffered here whatever the origin answers.
            connection
                .out()
                .extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        Ok(Some(Exchange::new(self, head, origin, request, content)))
    }

    /// Returns whether a Via field names this proxy.
    fn has_passed(&self, via: &[u8]) -> bool {
        tokens(via).any(|hop| {
            let mut words = hop
                .split(u8::is_ascii_whitespace)
                .filter(|it| !it.is_empty());
            words.nth(1) == Some(self.store.pseudonym.as_bytes())
        })
    }

    /// Returns the target of a request and its origin.
    fn origin_of<'b>(
        &self,
        head: &Head<'_, 'b>,
        options: bool,
    ) -> Result<(Target<'b>, Origin), Status> {
        if let Some(address) = self.store.spec.origin {
            let host = head.fields.one("Host").unwrap_or_default();
            let host = std::str::from_utf8(host).map_err(|_| Status::BAD_REQUEST)?;
            let target = target::own(head.target, host, options)?;
            return Ok((target, Origin::Address(address)));
        }
        let target = target::absolute(head.target, options)?;
        let (host, port) = target::host_and_port(target.authority).ok_or(Status::BAD_REQUEST)?;
        // Ports of other protocols, which could be made to misinterpret the request.
        if port != 80 && port < 1024 {
            return Err(Status::FORBIDDEN);
        }
        let origin = match host.parse::<IpAddr>() {
            Ok(address) => Origin::Address((address, port).into()),
            Err(_) => Origin::Name(host.to_ascii_lowercase().into(), port),
        };
        Ok((target, origin))
    }
}

/// Writes a field.
pub(super) fn put(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Writes the forwarded fields of a message: all but the hop-by-hop ones, those that
/// Connection names, and `others`.
fn forward(out: &mut Vec<u8>, fields: Fields<'_, '_>, others: &[&str]) {
    for field in fields.0 {
        let is = |name: &&str| field.name.eq_ignore_ascii_case(name);
        let named = |name: &[u8]| field.name.as_bytes().eq_ignore_ascii_case(name);
        let stays = HOP_BY_HOP.iter().any(is)
            || others.iter().any(is)
            || fields.all("Connection").flat_map(tokens).any(named);
        if !stays {
            put(out, field.name, field.value);
        }
    }
}

/// Writes the head of a response as forwarded to the client, without its end and its
/// length; adds Date if it is missing.
pub(super) fn end_to_end(out: &mut Vec<u8>, head: &response::Head<'_, '_>, pseudonym: &str) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "HTTP/1.1 {} {}\r\n", head.status, head.reason);
    forward(out, head.fields, &[]);
    let _ = write!(out, "Via: 1.{} {pseudonym}\r\n", head.version);
}
