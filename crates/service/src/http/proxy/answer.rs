//! An origin's answer on its way to the client, and into the store.

use std::rc::Rc;

use super::super::status::Status;
use super::body::Body;
use super::decide::Recipient;
use super::exchange::{Answer, Onto, Phase, Storing, Validation, chunk};
use super::message::{end_to_end, freshened, freshness, is_version, put, status_line, storable};
use super::response::Head;
use super::session::{ANSWER_FULL, Left, Session};
use super::shared::Shared;
use super::store::{Freshness, Stored};

impl Session {
    /// The head of an answer has come.
    pub(super) fn begin(&mut self, head: &Head<'_, '_>, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let now = shared.clock.now();
        exchange.keep_alive = head.keep_alive;
        exchange.phase = Phase::Content(head.body);
        let delay = now.saturating_sub(exchange.asked_at);
        let freshness = freshness(head, now, delay, shared.clock.unix());
        let mut replaced = None;
        if let Some(asked) = exchange.validation.take() {
            if head.status == 304 {
                return self.confirmed(asked, head, freshness, shared);
            }
            if head.status >= 500 && asked.stored.freshness.get().serves_on_error(now) {
                shared.uses.stale += 1;
                exchange.keep_alive = false;
                let recipient = Recipient::of(exchange.client, false);
                return self.answer_stored(&asked.stored, &asked.answer, recipient, &[], shared);
            }
            shared.uses.replaced += 1;
            replaced = Some(asked.stored);
        }
        self.note_change(head, freshness, replaced, shared);
        self.forward_head(head, shared);
    }

    /// The origin says that what is stored is current (RFC 9111 §4.3.4).
    fn confirmed(
        &mut self,
        asked: Validation,
        head: &Head<'_, '_>,
        freshness: Freshness,
        shared: &mut Shared,
    ) {
        let Some(exchange) = &self.exchange else {
            return;
        };
        shared.uses.revalidated += 1;
        let Validation { mut stored, answer } = asked;
        // Of what a client wants nothing stored of, nothing is learnt.
        if let Some(key) = exchange.key.as_deref() {
            if !freshness.control.may_be_kept() || !is_version(&stored, head) {
                shared.cache.forget(key, &stored);
            } else if let Some(new) = freshened(&stored, head, freshness, shared.clock.date()) {
                let new = Rc::new(new);
                // What has gone meanwhile does not come back.
                if shared.cache.forget(key, &stored) {
                    shared.cache.store(key, new.clone());
                }
                stored = new;
            }
        }
        // Cookies are for whom they came, whoever gets the rest.
        let mut cookies = Vec::new();
        for cookie in head.fields("Set-Cookie") {
            put(&mut cookies, "Set-Cookie", cookie);
        }
        let recipient = Recipient::of(exchange.client, false);
        self.answer_stored(&stored, &answer, recipient, &cookies, shared);
    }

    /// Begins to store an answer that may be, and forgets what it tells to be
    /// out of date: `replaced`, which was asked for, or more.
    fn note_change(
        &mut self,
        head: &Head<'_, '_>,
        freshness: Freshness,
        replaced: Option<Rc<Stored>>,
        shared: &mut Shared,
    ) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let Some(key) = exchange.key.as_deref() else {
            return;
        };
        if exchange.invalidates {
            // RFC 9111 §4.4.
            if head.status < 400 {
                shared.cache.invalidate(key);
            }
            return;
        }
        if exchange.client.to_head {
            // §4.3.5.
            if let Some(old) = replaced
                && head.status == 200
            {
                shared.cache.forget(key, &old);
            }
            return;
        }
        let fits = |length: u64| length <= shared.spec.object_bytes as u64;
        let stored = storable(
            head,
            &exchange.request,
            exchange.client.authorized,
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
            // What was stored is history. Other codes tell of this request, or
            // of an origin that is unwell.
            _ if matches!(head.status, 200..=205 | 207..=303 | 305..=399 | 404 | 410) => {
                shared.cache.invalidate(key);
            }
            _ => {}
        }
    }

    /// Writes the head of an answer to the client.
    fn forward_head(&mut self, head: &Head<'_, '_>, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
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
        let linger = !exchange.content.is_over();
        exchange.client.last |= linger || shared.stopping;
        let recipient = Recipient::of(exchange.client, linger || shared.stopping);
        self.connection.finish(recipient.version, recipient.last);
    }

    /// Content of an answer has come, perhaps none.
    pub(super) fn content(&mut self, bytes: &[u8], shared: &mut Shared) {
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
            let chunks = exchange.onto == Onto::Chunks;
            chunk(self.connection.out(), content, chunks);
        }
    }

    /// The answer is whole; `surplus` bytes came behind it.
    pub(super) fn complete(&mut self, surplus: bool, shared: &mut Shared) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if exchange.onto == Onto::Chunks {
            self.connection.out().extend_from_slice(b"0\r\n\r\n");
        }
        exchange.keep_alive &= !surplus;
        if let (Some(storing), Some(key)) = (exchange.storing.take(), exchange.key.as_deref()) {
            let mut stored = storing.stored;
            stored.body = storing.body.into();
            if shared.cache.store(key, Rc::new(stored)) {
                shared.uses.stored += 1;
            }
        }
        self.finish(shared);
    }

    /// Answers with what is stored.
    fn answer_stored(
        &mut self,
        stored: &Rc<Stored>,
        answer: &Answer,
        recipient: Recipient,
        cookies: &[u8],
        shared: &mut Shared,
    ) {
        let written = shared.stored(&mut self.connection, stored, answer, recipient, cookies);
        if let Some(exchange) = &mut self.exchange {
            (exchange.status, exchange.length) = written;
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
    pub(super) fn fail(&mut self, status: Status, shared: &mut Shared) {
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
            self.finish(shared);
            return self.connection.abort();
        }
        let linger = !exchange.content.is_over();
        exchange.client.last |= linger;
        let recipient = Recipient::of(exchange.client, linger);
        let now = shared.clock.now();
        let validation = exchange.validation.take();
        let stale =
            validation.filter(|asked| theirs && asked.stored.freshness.get().serves_on_error(now));
        if let Some(Validation { stored, answer }) = stale {
            shared.uses.stale += 1;
            return self.answer_stored(&stored, &answer, recipient, &[], shared);
        }
        exchange.status = status.0;
        exchange.length = shared.error(&mut self.connection, status, recipient);
        self.finish(shared);
    }
}
