//! One request that an origin is asked for, and its answer as it comes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::super::Limits;
use super::super::pace::Pace;
use super::super::request::Content;
use super::UpstreamLimits;
use super::body::Body;

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
    /// None, and none is needed before the client's content is complete or
    /// exceeds what is buffered.
    Buffering,
    /// None, but one is needed.
    Wanted,
    Connecting,
    Connected,
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
}

/// One exchange's part of the memory for buffered content.
#[derive(Debug)]
pub(super) struct Buffered {
    all: Rc<Cell<usize>>,
    own: usize,
    /// Most that this one may have, and that all may.
    most: usize,
    most_of_all: usize,
}

impl Buffered {
    /// None yet of `all`, of which `most_of_all` may be taken, by one `most`.
    pub(super) fn new(all: &Rc<Cell<usize>>, most: usize, most_of_all: usize) -> Self {
        Buffered {
            all: all.clone(),
            own: 0,
            most,
            most_of_all,
        }
    }

    /// Takes note that so many bytes have been buffered; returns whether more
    /// may be.
    fn hold(&mut self, bytes: usize) -> bool {
        self.all.set(self.all.get() - self.own + bytes);
        self.own = bytes;
        bytes < self.most && self.all.get() < self.most_of_all
    }
}

impl Drop for Buffered {
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
    buffered: Buffered,
    /// How the client sends it.
    pace: Pace,
    /// Bytes of content that have been taken, and cannot be sent again.
    taken: u64,
    /// What has come of a head, and how much of that has no end.
    pub(super) input: Vec<u8>,
    pub(super) scanned: usize,
    pub(super) phase: Phase,
    pub(super) onto: Onto,
    pub(super) client: Client,
    /// When the request was ready, and when a byte last moved.
    pub(super) since: Duration,
    pub(super) moved: Duration,
    pub(super) asked: Option<Asked>,
    /// The status and the length of the content that went to the client.
    pub(super) status: u16,
    pub(super) length: u64,
}

impl Exchange {
    pub(super) fn new(
        origin: Origin,
        request: Vec<u8>,
        content: Content,
        buffered: Buffered,
        client: Client,
        now: Duration,
    ) -> Self {
        let chunks = content == Content::Chunked;
        let content = match content {
            Content::Length(length) => Body::Length(length),
            Content::Chunked => Body::chunked(),
        };
        let mut pace = Pace::default();
        let link = match content.is_complete() {
            true => Link::Wanted,
            false => {
                pace.start(now);
                Link::Buffering
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
            buffered,
            pace,
            taken: 0,
            input: Vec::new(),
            scanned: 0,
            phase: Phase::Head,
            onto: Onto::Plain,
            client,
            since: now,
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
        } else {
            self.outgoing_sent = self.outgoing.len().min(self.outgoing_sent + count);
            if self.outgoing_sent == self.outgoing.len() {
                // What was buffered may be far more than what goes through.
                match self.outgoing.capacity() > 2 * CONTENT_FULL {
                    true => self.outgoing = Vec::new(),
                    false => self.outgoing.clear(),
                }
                self.outgoing_sent = 0;
                self.buffered.hold(0);
            }
        }
        if self.wants_content() {
            self.pace.start(now);
        }
    }

    /// Whether more of the client's content is wanted now.
    pub(super) fn wants_content(&self) -> bool {
        let collects = self.link == Link::Buffering;
        !self.content.is_complete() && (collects || self.outgoing.len() < CONTENT_FULL)
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
        if used > 0 && self.content.is_complete() && self.chunks {
            self.outgoing.extend_from_slice(b"0\r\n\r\n");
        }
        self.pace.moved(used, now, limits);
        if self.link == Link::Buffering
            && (!self.buffered.hold(self.outgoing.len()) || self.content.is_complete())
        {
            self.link = Link::Wanted;
            self.since = now;
        }
        if !self.wants_content() {
            self.pace.rest();
        }
        Some(used)
    }

    /// Asks for a connection at once: the client waits for the origin's 100
    /// (Continue) before it sends content.
    pub(super) fn connect_now(&mut self) {
        if self.link == Link::Buffering {
            self.link = Link::Wanted;
        }
    }

    /// Bytes of content that the client has sent.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// When the client must have sent more of its content.
    pub(super) fn client_deadline(&self, limits: &Limits) -> Duration {
        self.pace.deadline(limits).unwrap_or(Duration::MAX)
    }

    /// When something must have happened on the origin's side.
    pub(super) fn origin_deadline(&self, limits: &UpstreamLimits) -> Duration {
        match self.link {
            Link::Buffering => Duration::MAX,
            Link::Wanted | Link::Connecting => self.since + limits.connect,
            // It cannot answer before it has been asked.
            Link::Connected if self.output().0.is_empty() && !self.content.is_complete() => {
                Duration::MAX
            }
            Link::Connected => self.moved + limits.answer,
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
