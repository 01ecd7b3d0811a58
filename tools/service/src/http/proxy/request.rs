//! What becomes of a request: forwarded to its origin, or answered here.

use std::net::IpAddr;

use super::super::connection::Connection;
use super::super::reply::Last;
use super::super::request::{Content, Head, Method};
use super::super::status::Status;
use super::exchange::{Asked, Buffered, Client, Exchange, Origin};
use super::message::{Facts, Onward, forward};
use super::shared::Shared;
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
    /// Answers a request, or returns the exchange with its origin.
    pub(super) fn begin(
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
        };
        // Content that is not read would be taken for the next request.
        let last = client.last || !empty;
        let recipient = Recipient::of(Client { last, ..client }, !empty || self.stopping);
        match self.prepare(head, client, connection.peer) {
            Ok(Some(mut exchange)) => {
                if self.log.is_some() {
                    exchange.asked = Some(Asked {
                        method: head.method_text.into(),
                        target: head.target.into(),
                        version: head.version,
                    });
                }
                Some(exchange)
            }
            Ok(None) => {
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

    /// The exchange with the origin; `None` for an OPTIONS that this proxy
    /// answers.
    fn prepare(
        &mut self,
        head: &Head<'_, '_>,
        client: Client,
        peer: IpAddr,
    ) -> Result<Option<Box<Exchange>>, Status> {
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
        let (target, origin) = self.origin_of(head, options)?;
        let mut facts = Facts::of(head, &self.pseudonym);
        if facts.looped {
            return Err(Status::LOOP_DETECTED);
        }
        if options {
            match facts.forwards {
                Some(0) => return Ok(None),
                Some(left) => facts.forwards = Some(left - 1),
                None => {}
            }
        }
        let own: String;
        let authority = match (target.authority, self.spec.origin) {
            ("", Some(origin)) => {
                own = origin.to_string();
                own.as_str()
            }
            (authority, _) => authority,
        };
        let mut request = Vec::with_capacity(512);
        let onward = Onward {
            authority,
            path: target.path,
            pseudonym: &self.pseudonym,
            // Behind a proxy that people have chosen they need not be named.
            client: self.spec.origin.map(|_| peer),
            forwards: facts.forwards,
        };
        forward(&mut request, head, &onward);
        let limits = &self.spec.upstream;
        let (most, most_of_all) = (limits.content_bytes, limits.buffered_bytes);
        let mut exchange = Exchange::new(
            origin,
            request,
            head.content,
            Buffered::new(&self.buffered, most, most_of_all),
            client,
            self.clock.now(),
        );
        if head.expects_continue {
            exchange.connect_now();
        }
        Ok(Some(Box::new(exchange)))
    }

    /// The target of a request and its origin.
    fn origin_of<'b>(
        &self,
        head: &Head<'_, 'b>,
        options: bool,
    ) -> Result<(Target<'b>, Origin), Status> {
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
