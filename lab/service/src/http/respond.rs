//! Responses: from the head of a request to the bytes of the answer.

use std::io::Write;
use std::ops::Range;
use std::rc::Rc;

use super::condition::{Verdict, evaluate, range_applies};
use super::connection::Connection;
use super::entry::{Bytes, Entry};
use super::path::{self, PathError, location};
use super::range::{self, Ranges};
use super::reply::{COPY_MAX, Last};
use super::request::{Content, Head};
use super::site::{Found, Site, Store};
use super::status::Status;
use crate::work::multiply;

/// The file that a directory's path stands for.
const INDEX: &[u8] = b"index.html";
/// Methods of files.
const ALLOW: &str = "Allow: GET, HEAD, OPTIONS\r\n";

impl Connection {
    /// Answers a request.
    pub(super) fn respond<S: Store>(&mut self, head: &Head<'_, '_>, site: &mut Site<S>) {
        site.counts.requests += 1;
        if site.work > 0 {
            multiply(site.work, 1.0 + head.target.len() as f64 * 1e-9);
        }
        let mut close = !head.keep_alive || site.stopping;
        // A client that learns only now of the end may have sent the next request.
        let mut linger = site.stopping;
        match head.content {
            Content::Length(0) => {}
            Content::Length(length) if length > site.limits.content_bytes => {
                return self.error(Some(head), Status::CONTENT_TOO_LARGE, Last::Linger, site);
            }
            // The content has no meaning here. A client that waits to be asked for it
            // receives the final answer (RFC 9110 §10.1.1), and may or may not send it
            // then: no next request can be found after that.
            Content::Length(length) if !head.expects_continue && !close => self.skip(length),
            Content::Length(_) | Content::Chunked => (close, linger) = (true, true),
        }
        let last = Last::of(close, linger);
        match head.method {
            "GET" | "HEAD" => self.file(head, last, site),
            "OPTIONS" => {
                self.begin(Status::NO_CONTENT, &site.clock);
                self.out().extend_from_slice(ALLOW.as_bytes());
                self.finish(head.version, last);
                self.account(Some(head), Status::NO_CONTENT, 0, site);
            }
            "POST" | "PUT" | "DELETE" | "CONNECT" | "TRACE" | "PATCH" => {
                self.error(Some(head), Status::METHOD_NOT_ALLOWED, last, site);
            }
            _ => self.error(Some(head), Status::NOT_IMPLEMENTED, last, site),
        }
    }

    /// Answers an invalid request, and ends the connection after that.
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
                    self.begin(Status::NOT_MODIFIED, &site.clock);
                    self.out().extend_from_slice(entry.fields.as_bytes());
                    self.finish(head.version, last);
                    return self.account(Some(head), Status::NOT_MODIFIED, 0, site);
                }
                Verdict::Failed => {
                    return self.error(Some(head), Status::PRECONDITION_FAILED, last, site);
                }
            }
            // Range is defined only for GET (RFC 9110 §14.2).
            if head.method == "GET"
                && let Some(field) = head.fields.one("Range")
                && range_applies(head, entry, site.clock.unix())
            {
                match range::parse(field, entry.size) {
                    Ranges::Whole => {}
                    Ranges::Part(part) => return self.part(head, entry, part, last, site),
                    Ranges::Unsatisfiable => {
                        let status = Status::RANGE_NOT_SATISFIABLE;
                        self.begin(status, &site.clock);
                        let _ = write!(self.out(), "Content-Range: bytes */{}\r\n", entry.size);
                        return self.text(Some(head), status, last, site);
                    }
                }
            }
        }
        self.begin(Status::OK, &site.clock);
        self.out().extend_from_slice(entry.full.as_bytes());
        self.finish(head.version, last);
        let sent = self.put_content(head, entry, 0..entry.size);
        self.account(Some(head), Status::OK, sent, site);
    }

    /// Answers 206 with one range.
    fn part<S: Store>(
        &mut self,
        head: &Head<'_, '_>,
        entry: &Rc<Entry>,
        part: Range<u64>,
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(Status::PARTIAL_CONTENT, &site.clock);
        let _ = write!(
            self.out(),
            "Content-Type: {}\r\nContent-Range: bytes {}-{}/{}\r\nContent-Length: {}\r\n{}",
            entry.content_type,
            part.start,
            part.end.saturating_sub(1),
            entry.size,
            part.end - part.start,
            entry.fields
        );
        self.finish(head.version, last);
        let sent = self.put_content(head, entry, part);
        self.account(Some(head), Status::PARTIAL_CONTENT, sent, site);
    }

    /// Appends content to a finished head, unless it was a HEAD; returns the content's
    /// length.
    fn put_content(&mut self, head: &Head<'_, '_>, entry: &Rc<Entry>, range: Range<u64>) -> u64 {
        let length = range.end - range.start;
        if head.method == "HEAD" || length == 0 {
            return 0;
        }
        if length <= COPY_MAX as u64
            && let Bytes::Memory(bytes) = &entry.bytes
            && let (Ok(start), Ok(end)) = (range.start.try_into(), range.end.try_into())
            && let Some(bytes) = bytes.get::<Range<usize>>(start..end)
        {
            self.out().extend_from_slice(bytes);
        } else {
            self.content = Some((entry.clone(), range));
        }
        length
    }

    /// Answers 301 to a path of this server.
    fn redirect<S: Store>(
        &mut self,
        head: &Head<'_, '_>,
        location: &str,
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(Status::MOVED_PERMANENTLY, &site.clock);
        let _ = write!(self.out(), "Location: {location}\r\n");
        self.text(Some(head), Status::MOVED_PERMANENTLY, last, site);
    }

    /// Answers with an error and a line that names it.
    fn error<S: Store>(
        &mut self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        last: Last,
        site: &mut Site<S>,
    ) {
        self.begin(status, &site.clock);
        match status {
            Status::METHOD_NOT_ALLOWED => self.out().extend_from_slice(ALLOW.as_bytes()),
            Status::SERVICE_UNAVAILABLE => {
                self.out().extend_from_slice(b"Retry-After: 1\r\n");
            }
            _ => {}
        }
        self.text(head, status, last, site);
    }

    /// Ends a head that has been begun with a line of content that names the status.
    fn text<S: Store>(
        &mut self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        last: Last,
        site: &mut Site<S>,
    ) {
        let line = format!("{} {}\n", status.0, status.reason());
        let content = head.is_none_or(|head| head.method != "HEAD");
        let version = head.map_or(1, |head| head.version);
        let length = self.line(&line, content, version, last);
        self.account(head, status, length, site);
    }

    fn account<S>(
        &self,
        head: Option<&Head<'_, '_>>,
        status: Status,
        length: u64,
        site: &mut Site<S>,
    ) {
        let request = head.map(|head| (head.method, head.target, head.version));
        site.account(self.peer, request, status, length);
    }
}
