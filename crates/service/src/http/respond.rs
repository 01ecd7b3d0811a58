//! Responses: from the head of a request to the bytes that answer it.

use std::io::Write;
use std::ops::Range;
use std::rc::Rc;

use super::condition::{Verdict, evaluate, range_applies};
use super::connection::{Connection, Piece};
use super::entry::{Bytes, Entry};
use super::path::{self, PathError, location};
use super::range::{self, Ranges};
use super::request::{Content, Head, Method};
use super::site::{Found, Site, Store};
use super::status::Status;
use crate::work::multiply;

/// Content of up to so many bytes is copied behind its head, to leave in one
/// call; longer content is sent from where it is.
const COPY_MAX: u64 = 16 * 1024;
/// What a directory's path stands for.
const INDEX: &[u8] = b"index.html";
/// Methods that files have.
const ALLOW: &str = "Allow: GET, HEAD, OPTIONS\r\n";

impl Connection {
    /// Answers a request.
    pub(super) fn respond<S: Store>(&mut self, head: &Head<'_, '_>, site: &mut Site<S>) {
        site.counts.requests += 1;
        if site.work > 0 {
            multiply(site.work, 1.0 + head.target.len() as f64 * 1e-9);
        }
        let mut close = !head.keep_alive || site.stopping;
        // Whoever is told of the end only now may have sent the next request.
        let mut linger = site.stopping;
        match head.content {
            Content::Length(0) => {}
            Content::Length(length) if length > site.limits.content_bytes => {
                return self.error(Some(head), Status::CONTENT_TOO_LARGE, Last::Linger, site);
            }
            // Content of no meaning here. A client that waits to be told to
            // send it is told the end of the matter (RFC 9110 §10.1.1), and may
            // or may not send it then: no next request can be found after that.
            Content::Length(length) if !head.expects_continue && !close => self.skip(length),
            Content::Length(_) | Content::Chunked => (close, linger) = (true, true),
        }
        let last = match (close, linger) {
            (false, _) => Last::No,
            (true, false) => Last::Close,
            (true, true) => Last::Linger,
        };
        match head.method {
            Method::Get | Method::Head => self.file(head, last, site),
            Method::Options => {
                self.begin(Status::NO_CONTENT, site);
                self.head().extend_from_slice(ALLOW.as_bytes());
                self.finish(Some(head), last);
                self.account(Some(head), Status::NO_CONTENT, 0, site);
            }
            Method::Other => self.error(Some(head), Status::METHOD_NOT_ALLOWED, last, site),
            Method::Unknown => self.error(Some(head), Status::NOT_IMPLEMENTED, last, site),
        }
    }

    /// Answers what was no good, and ends the connection after that.
    pub(super) fn refuse<S: Store>(&mut self, status: Status, site: &mut Site<S>) {
        site.counts.refused += 1;
        self.error(None, status, Last::Linger, site);
    }

    /// Answers a GET or HEAD.
    fn file<S: Store>(&mut self, head: &Head<'_, '_>, last: Last, site: &mut Site<S>) {
        let mut path = std::mem::take(&mut site.path);
        let found = match path::resolve(head.target, &mut path) {
            Ok(false) => site.store.find(&path, &site.clock),
            Ok(true) => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(INDEX);
                match site.store.find(&path, &site.clock) {
                    // A directory of that name is no index.
                    Found::Directory => Found::Missing,
                    found => found,
                }
            }
            Err(error) => {
                let status = match error {
                    PathError::Malformed => Status::BAD_REQUEST,
                    PathError::Hidden => Status::NOT_FOUND,
                    PathError::TooLong => Status::URI_TOO_LONG,
                };
                site.path = path;
                return self.error(Some(head), status, last, site);
            }
        };
        match found {
            Found::Entry(entry) => self.entry(head, &entry, last, site),
            Found::Directory => self.redirect(head, &location(&path), last, site),
            Found::Missing => self.error(Some(head), Status::NOT_FOUND, last, site),
            Found::Forbidden => self.error(Some(head), Status::FORBIDDEN, last, site),
            Found::Busy => self.error(Some(head), Status::SERVICE_UNAVAILABLE, last, site),
            Found::Failed => self.error(Some(head), Status::INTERNAL_SERVER_ERROR, last, site),
        }
        site.path = path;
    }

    fn entry<S: Store>(
        &mut self,
        head: &Head<'_, '_>,
        entry: &Rc<Entry>,
        last: Last,
        site: &mut Site<S>,
    ) {
        if head.conditional {
            match evaluate(head, entry) {
                Verdict::Proceed => {}
                Verdict::NotModified => {
                    self.begin(Status::NOT_MODIFIED, site);
                    self.head().extend_from_slice(entry.fields.as_bytes());
                    self.finish(Some(head), last);
                    return self.account(Some(head), Status::NOT_MODIFIED, 0, site);
                }
                Verdict::Failed => {
                    return self.error(Some(head), Status::PRECONDITION_FAILED, last, site);
                }
            }
            // Range is defined for GET alone (RFC 9110 §14.2).
            if head.method == Method::Get
                && let Some(field) = head.field("Range")
                && range_applies(head, entry, site.clock.unix())
            {
                match range::parse(field, entry.size) {
                    Ranges::Whole => {}
                    Ranges::Parts(parts) => return self.parts(head, entry, &parts, last, site),
                    Ranges::Unsatisfiable => {
                        let status = Status::RANGE_NOT_SATISFIABLE;
                        self.begin(status, site);
                        let _ = write!(self.head(), "Content-Range: bytes */{}\r\n", entry.size);
                        return self.text(Some(head), status, last, site);
                    }
                }
            }
        }
        self.begin(Status::OK, site);
        self.head().extend_from_slice(entry.whole.as_bytes());
        self.finish(Some(head), last);
        let sent = self.content(head, entry, 0..entry.size);
        self.account(Some(head), Status::OK, sent, site);
    }

    /// 206 with one range, or several as multipart/byteranges (RFC 9110 §14.6).
    fn parts<S: Store>(
        &mut self,
        head: &Head<'_, '_>,
        entry: &Rc<Entry>,
        parts: &[Range<u64>],
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(Status::PARTIAL_CONTENT, site);
        let size = entry.size;
        let content_range = |part: &Range<u64>| {
            let end = part.end.saturating_sub(1);
            format!("Content-Range: bytes {}-{end}/{size}\r\n", part.start)
        };
        let length = |part: &Range<u64>| part.end - part.start;
        if let [part] = parts {
            let _ = write!(
                self.head(),
                "Content-Type: {}\r\n{}Content-Length: {}\r\n{}",
                entry.content_type,
                content_range(part),
                length(part),
                entry.fields
            );
            self.finish(Some(head), last);
            let sent = self.content(head, entry, part.clone());
            return self.account(Some(head), Status::PARTIAL_CONTENT, sent, site);
        }
        // The tag has nothing that a boundary may not have, but for its quotes.
        let boundary = format!("tidewall-{}", entry.etag.trim_matches('"'));
        let heads: Vec<String> = parts
            .iter()
            .map(|part| {
                format!(
                    "\r\n--{boundary}\r\nContent-Type: {}\r\n{}\r\n",
                    entry.content_type,
                    content_range(part)
                )
            })
            .collect();
        let end = format!("\r\n--{boundary}--\r\n");
        let total = heads.iter().map(|head| head.len() as u64).sum::<u64>()
            + parts.iter().map(length).sum::<u64>()
            + end.len() as u64;
        let _ = write!(
            self.head(),
            "Content-Type: multipart/byteranges; boundary={boundary}\r\nContent-Length: {total}\r\n{}",
            entry.fields
        );
        self.finish(Some(head), last);
        for (text, part) in heads.into_iter().zip(parts) {
            self.pieces.push_back(Piece::Text(text.into_bytes()));
            self.pieces
                .push_back(Piece::Content(entry.clone(), part.clone()));
        }
        self.pieces.push_back(Piece::Text(end.into_bytes()));
        self.account(Some(head), Status::PARTIAL_CONTENT, total, site);
    }

    /// Puts content behind a finished head, unless it was a HEAD; returns its
    /// length.
    fn content(&mut self, head: &Head<'_, '_>, entry: &Rc<Entry>, range: Range<u64>) -> u64 {
        let length = range.end - range.start;
        if head.method == Method::Head || length == 0 {
            return 0;
        }
        if length <= COPY_MAX
            && let Bytes::Memory(bytes) = &entry.bytes
            && let (Ok(start), Ok(end)) = (range.start.try_into(), range.end.try_into())
            && let Some(bytes) = bytes.get::<Range<usize>>(start..end)
        {
            self.head().extend_from_slice(bytes);
        } else {
            self.pieces.push_back(Piece::Content(entry.clone(), range));
        }
        length
    }

    /// 301 to a path of this server.
    fn redirect<S: Store>(
        &mut self,
        head: &Head<'_, '_>,
        location: &str,
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(Status::MOVED_PERMANENTLY, site);
        let _ = write!(self.head(), "Location: {location}\r\n");
        self.text(Some(head), Status::MOVED_PERMANENTLY, last, site);
    }

    /// An error and a line that names it.
    fn error<S: Store>(
        &mut self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(status, site);
        match status {
            Status::METHOD_NOT_ALLOWED => self.head().extend_from_slice(ALLOW.as_bytes()),
            Status::SERVICE_UNAVAILABLE => {
                self.head().extend_from_slice(b"Retry-After: 1\r\n");
            }
            _ => {}
        }
        self.text(head, status, last, site);
    }

    /// Ends a head that has been begun with a line of content that names the
    /// status.
    fn text<S: Store>(
        &mut self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        last: Last,
        site: &mut Site<S>,
    ) {
        let line = format!("{} {}\n", status.0, status.reason());
        let _ = write!(
            self.head(),
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n",
            line.len()
        );
        self.finish(head, last);
        let silent = head.is_some_and(|head| head.method == Method::Head);
        if !silent {
            self.head().extend_from_slice(line.as_bytes());
        }
        let length = if silent { 0 } else { line.len() as u64 };
        self.account(head, status, length, site);
    }

    /// The status line and the fields that every response has.
    fn begin<S>(&mut self, status: Status, site: &Site<S>) {
        let out = self.head();
        if status == Status::OK {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\nServer: tidewall\r\nDate: ");
        } else {
            let (code, reason) = (status.0, status.reason());
            let _ = write!(
                out,
                "HTTP/1.1 {code} {reason}\r\nServer: tidewall\r\nDate: "
            );
        }
        out.extend_from_slice(site.clock.date().as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Says whether the connection goes on, and ends the head.
    fn finish(&mut self, head: Option<&Head<'_, '_>>, last: Last) {
        let out = self.head();
        match last {
            // HTTP/1.0 takes nothing for granted.
            Last::No if head.is_some_and(|head| head.version == 0) => {
                out.extend_from_slice(b"Connection: keep-alive\r\n");
            }
            Last::No => {}
            Last::Close | Last::Linger => out.extend_from_slice(b"Connection: close\r\n"),
        }
        out.extend_from_slice(b"\r\n");
        if last != Last::No {
            self.close_after(last == Last::Linger);
        }
    }

    fn account<S>(
        &mut self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        length: u64,
        site: &mut Site<S>,
    ) {
        site.counts.responses += 1;
        if let Some(log) = &mut site.log {
            let request = head.map(|head| (head.method_text, head.target, head.version));
            log.add(self.peer, &site.clock, request, status, length);
        }
    }
}

/// Whether a response is the connection's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    No,
    /// It is, and the peer has nothing more to send.
    Close,
    /// It is, and the peer may still be sending.
    Linger,
}
