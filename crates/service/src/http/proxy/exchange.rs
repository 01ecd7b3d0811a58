//! One request that an origin is asked for, and its answer as it comes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::super::Limits;
use super::super::pace::Pace;
use super::super::request::Content;
use super::UpstreamLimits;
use super::body::Body;
use super::store::Stored;

/// With so many bytes of content on the way to the origin no more are taken
/// from the client.
const CONTENT_FULL: usize = 64 * 1024;

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Somebody at this address.
    Address(SocketAddr),
    /// A host of this name, at this port.
    Name(Box<str>, u16),
}

/// What has become of a connection to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// There is none, and none is needed before the client's content is whole or
    /// too much to be collected.
    Collecting { fresh: bool },
    /// There is none: one is needed, and a new one if `fresh`.
    Wanted { fresh: bool },
    /// It is being made.
    Connecting,
    /// It is there. `reused`: others have used it before, so that the origin
    /// may have closed it just now.
    There { reused: bool },
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its head has not come.
    Head,
    /// Its content is coming.
    Content(Body),
}

/// How content goes on to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onto {
    /// As it is: the client knows its length, or that it ends with the
    /// connection.
    Plain,
    /// In chunks.
    Chunks,
}

/// A stored response whose currency is asked for.
#[derive(Debug)]
pub(super) struct Validation {
    pub(super) stored: Rc<Stored>,
    pub(super) answer: Answer,
}

/// How a request is answered from what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: Kind,
    pub(super) to_head: bool,
}

/// The kind of answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As it is stored.
    Whole,
    /// The client has it: 304.
    NotModified,
    /// A part of it: 206.
    Part(Range<usize>),
    /// A part that it does not have: 416.
    Unsatisfiable,
}

/// A response on its way into the cache.
#[derive(Debug)]
pub(super) struct Storing {
    pub(super) stored: Stored,
    pub(super) body: Vec<u8>,
}

/// Who has asked, for the access log.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: Box<str>,
    pub(super) target: Box<str>,
    pub(super) version: u8,
}

/// The client's part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// Minor version of HTTP.
    pub(super) version: u8,
    /// Its request was a HEAD.
    pub(super) to_head: bool,
    /// Its connection ends with this answer.
    pub(super) last: bool,
    /// Its request may be sent again if the first time came to nothing
    /// (RFC 9110 §9.2.2).
    pub(super) idempotent: bool,
    /// Its request had credentials.
    pub(super) authorized: bool,
    /// It may be told that the answer is old, and nothing of it is kept.
    pub(super) no_store: bool,
}

/// Memory that an exchange has of what all may have for collecting content.
#[derive(Debug)]
pub(super) struct Collected {
    all: Rc<Cell<usize>>,
    own: usize,
    /// Most that this one may have, and that all may.
    most: usize,
    most_of_all: usize,
}

impl Collected {
    /// None yet of `all`, of which `most_of_all` may be taken, by one `most`.
    pub(super) fn new(all: &Rc<Cell<usize>>, most: usize, most_of_all: usize) -> Self {
        Collected {
            all: all.clone(),
            own: 0,
            most,
            most_of_all,
        }
    }

    /// Takes note that so many bytes have been collected; returns whether more
    /// may be.
    fn hold(&mut self, bytes: usize) -> bool {
        self.all.set(self.all.get() - self.own + bytes);
        self.own = bytes;
        bytes < self.most && self.all.get() < self.most_of_all
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// One request that an origin is asked for.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) origin: Origin,
    pub(super) link: Link,
    /// The head of the request, of which `sent` bytes have left.
    pub(super) request: Vec<u8>,
    pub(super) sent: usize,
    /// The client's content that is still to come.
    pub(super) content: Body,
    /// It goes on in chunks.
    chunks: bool,
    /// Content on its way, of which `content_sent` bytes have left.
    pub(super) outgoing: Vec<u8>,
    pub(super) outgoing_sent: usize,
    collected: Collected,
    /// How the client sends it.
    pace: Pace,
    /// Bytes of content that have been taken, and cannot be sent again.
    taken: u64,
    /// What has come of a head, and how much of that has no end.
    pub(super) input: Vec<u8>,
    pub(super) scanned: usize,
    /// A byte of an answer has come.
    pub(super) answered: bool,
    pub(super) phase: Phase,
    pub(super) keep_alive: bool,
    pub(super) onto: Onto,
    pub(super) client: Client,
    pub(super) validation: Option<Validation>,
    /// Where the answer is stored, if it may be; or what it invalidates.
    pub(super) key: Option<Box<[u8]>>,
    pub(super) invalidates: bool,
    pub(super) storing: Option<Storing>,
    /// When the request was ready, when it was last sent, and when a byte last
    /// moved.
    pub(super) since: Duration,
    pub(super) asked_at: Duration,
    pub(super) moved: Duration,
    pub(super) asked: Option<Asked>,
    /// The status and the length of the content that went to the client.
    pub(super) status: u16,
    pub(super) length: u64,
}

impl Exchange {
    pub(super) fn new(
        origin: Origin,
        fresh: bool,
        request: Vec<u8>,
        content: Content,
        collected: Collected,
        client: Client,
        now: Duration,
    ) -> Self {
        let chunks = content == Content::Chunked;
        let content = match content {
            Content::Length(length) => Body::Length(length),
            Content::Chunked => Body::chunked(),
        };
        let mut pace = Pace::default();
        let link = match content.is_over() {
            true => Link::Wanted { fresh },
            false => {
                pace.start(now);
                Link::Collecting { fresh }
            }
        };
        Exchange {
            origin,
            link,
            request,
            sent: 0,
            content,
            chunks,
            outgoing: Vec::new(),
            outgoing_sent: 0,
            collected,
            pace,
            taken: 0,
            input: Vec::new(),
            scanned: 0,
            answered: false,
            phase: Phase::Head,
            keep_alive: false,
            onto: Onto::Plain,
            client,
            validation: None,
            key: None,
            invalidates: false,
            storing: None,
            since: now,
            asked_at: now,
            moved: now,
            asked: None,
            status: 0,
            length: 0,
        }
    }

    /// What is to be sent to the origin next.
    pub(super) fn output(&self) -> (&[u8], bool) {
        let head = self.request.get(self.sent..).unwrap_or_default();
        let content = self.outgoing.get(self.outgoing_sent..).unwrap_or_default();
        match (head.is_empty(), content.is_empty()) {
            (false, last) => (head, !last),
            (true, _) => (content, false),
        }
    }

    /// So many bytes of it have left.
    pub(super) fn sent(&mut self, count: usize, now: Duration) {
        self.moved = now;
        if self.sent < self.request.len() {
            self.sent = self.request.len().min(self.sent + count);
            if self.sent == self.request.len() {
                self.asked_at = now;
            }
        } else {
            self.outgoing_sent = self.outgoing.len().min(self.outgoing_sent + count);
            if self.outgoing_sent == self.outgoing.len() {
                // What was collected may be far more than what goes through.
                match self.outgoing.capacity() > 2 * CONTENT_FULL {
                    true => self.outgoing = Vec::new(),
                    false => self.outgoing.clear(),
                }
                self.outgoing_sent = 0;
                self.collected.hold(0);
            }
        }
        if self.wants_content() {
            self.pace.start(now);
        }
    }

    /// Whether all of the request has left.
    pub(super) fn is_asked(&self) -> bool {
        self.output().0.is_empty() && self.content.is_over()
    }

    /// Whether more of the client's content is wanted now.
    pub(super) fn wants_content(&self) -> bool {
        let collects = matches!(self.link, Link::Collecting { .. });
        !self.content.is_over() && (collects || self.outgoing.len() < CONTENT_FULL)
    }

    /// Takes content from the client; returns how many bytes belong to it,
    /// `None` when it is malformed.
    pub(super) fn take_content(
        &mut self,
        bytes: &[u8],
        now: Duration,
        limits: &Limits,
    ) -> Option<usize> {
        let mut used = 0;
        if self.outgoing.is_empty() {
            // The origin has had nothing to take.
            self.moved = now;
        }
        while self.wants_content() {
            let rest = bytes.get(used..).unwrap_or_default();
            let piece = self.content.take(rest).ok()?;
            if piece.used == 0 {
                break;
            }
            used += piece.used;
            let content = rest.get(piece.content).unwrap_or_default();
            self.taken += content.len() as u64;
            chunk(&mut self.outgoing, content, self.chunks);
        }
        if used > 0 && self.content.is_over() && self.chunks {
            self.outgoing.extend_from_slice(b"0\r\n\r\n");
        }
        self.pace.moved(used, now, limits);
        if let Link::Collecting { fresh } = self.link
            && (!self.collected.hold(self.outgoing.len()) || self.content.is_over())
        {
            self.link = Link::Wanted { fresh };
            self.since = now;
        }
        if !self.wants_content() {
            self.pace.rest();
        }
        Some(used)
    }

    /// A connection is needed at once, whatever has come of the content: the
    /// client waits for the origin's word before it sends any.
    pub(super) fn collect_nothing(&mut self) {
        if let Link::Collecting { fresh } = self.link {
            self.link = Link::Wanted { fresh };
        }
    }

    /// Bytes of content that the client has sent.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether it may be tried on another connection: nothing of an answer has
    /// come on one that others had used, and sending it again does no harm
    /// (RFC 9112 §9.3.1).
    pub(super) fn may_repeat(&self) -> bool {
        self.link == Link::There { reused: true }
            && !self.answered
            && self.taken == 0
            && self.client.idempotent
    }

    /// Begins again on a new connection.
    pub(super) fn repeat(&mut self, now: Duration) {
        self.link = Link::Wanted { fresh: true };
        self.sent = 0;
        self.scanned = 0;
        self.input.clear();
        (self.since, self.moved) = (now, now);
    }

    /// When the client must have sent more of its content.
    pub(super) fn client_deadline(&self, limits: &Limits) -> Duration {
        self.pace.deadline(limits).unwrap_or(Duration::MAX)
    }

    /// When something must have happened on the origin's side.
    pub(super) fn origin_deadline(&self, limits: &UpstreamLimits) -> Duration {
        match self.link {
            Link::Collecting { .. } => Duration::MAX,
            Link::Wanted { .. } | Link::Connecting => self.since + limits.connect,
            // It cannot answer before it has been asked.
            Link::There { .. } if self.output().0.is_empty() && !self.content.is_over() => {
                Duration::MAX
            }
            Link::There { .. } => self.moved + limits.answer,
        }
    }
}

/// Appends content, as a chunk if need be.
pub(super) fn chunk(out: &mut Vec<u8>, content: &[u8], chunked: bool) {
    if content.is_empty() {
        return;
    }
    if chunked {
        out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
    }
    out.extend_from_slice(content);
    if chunked {
        out.extend_from_slice(b"\r\n");
    }
}
