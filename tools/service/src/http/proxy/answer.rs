//! An origin's answer on its way to the client.

use super::super::status::Status;
use super::body::Body;
use super::exchange::{Onto, Phase, chunk};
use super::message::{end_to_end, put, status_line};
use super::request::Recipient;
use super::response::Head;
use super::session::Session;
use super::shared::Shared;

impl Session {
    /// Forwards the head of an answer.
    pub(super) fn begin(&mut self, head: &Head<'_, '_>, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.phase = Phase::Content(head.body);
        exchange.status = head.status;
        let client = &mut exchange.client;
        shared.counts.responses += 1;
        let out = self.connection.out();
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
        let linger = !exchange.content.is_complete();
        exchange.client.last |= linger || shared.stopping;
        let recipient = Recipient::of(exchange.client, linger || shared.stopping);
        self.connection.finish(recipient.version, recipient.last);
    }

    /// Forwards content of an answer, perhaps none.
    pub(super) fn content(&mut self, mut bytes: &[u8], shared: &mut Shared) {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return;
            };
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
            let chunks = exchange.onto == Onto::Chunks;
            chunk(self.connection.out(), content, chunks);
        }
    }

    /// The answer is complete.
    pub(super) fn complete(&mut self, shared: &mut Shared) {
        let Some(exchange) = &self.exchange else {
            return;
        };
        if exchange.onto == Onto::Chunks {
            self.connection.out().extend_from_slice(b"0\r\n\r\n");
        }
        self.finish(shared);
    }

    /// The client has its answer, or all that there will be of it.
    fn finish(&mut self, shared: &mut Shared) {
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
        self.finished = true;
        self.connection.release(shared.clock.now());
    }

    /// There will be no answer from the origin, or no more of it.
    pub(super) fn fail(&mut self, status: Status, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        match status.0 >= 500 {
            true => shared.uses.upstream_errors += 1,
            false => shared.counts.refused += 1,
        }
        if exchange.phase != Phase::Head {
            // What has begun cannot become an error any more; the client sees
            // that it is incomplete.
            self.finish(shared);
            return self.connection.abort();
        }
        let linger = !exchange.content.is_complete();
        exchange.client.last |= linger;
        let recipient = Recipient::of(exchange.client, linger);
        exchange.status = status.0;
        exchange.length = shared.error(&mut self.connection, status, recipient);
        self.finish(shared);
    }
}
