//! Messages on their way through: which fields go on, which stay behind
//! (RFC 9110 §7.6), and what is added.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use httparse::Header;

use super::super::condition::opaque;
use super::super::entry::seconds;
use super::super::request::{self, tokens};
use super::control::Directives;
use super::response;
use super::store::{Freshness, Stored};

/// The fields between two neighbours, which go no further: those of RFC 9110
/// §7.6.1, and the credentials for a proxy (§11.7), which this one has no use
/// for.
pub(super) fn is_hop_by_hop(name: &str) -> bool {
    let is = |text: &str| name.eq_ignore_ascii_case(text);
    match name.len() {
        2 => is("TE"),
        7 => is("Upgrade") || is("Trailer"),
        10 => is("Connection") || is("Keep-Alive"),
        16 => is("Proxy-Connection"),
        17 => is("Transfer-Encoding"),
        18 => is("Proxy-Authenticate"),
        19 => is("Proxy-Authorization"),
        25 => is("Proxy-Authentication-Info"),
        _ => false,
    }
}

/// The fields that Connection names, which go no further either.
#[derive(Debug, Default)]
pub(super) struct Named<'b>(Vec<&'b [u8]>);

impl<'b> Named<'b> {
    pub(super) fn of(fields: &[Header<'b>]) -> Self {
        let connection = fields.iter().filter(|field| {
            field.name.len() == 10 && field.name.eq_ignore_ascii_case("Connection")
        });
        let options = connection.flat_map(|field| tokens(field.value));
        Named(
            options
                .filter(|option| {
                    !option.eq_ignore_ascii_case(b"close")
                        && !option.eq_ignore_ascii_case(b"keep-alive")
                })
                .collect(),
        )
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|named| named.eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// Writes a field.
pub(super) fn put(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// What of a request decides how a cache treats it.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Its Cache-Control, or Pragma where there is none (RFC 9111 §5.4).
    pub(super) wish: Directives,
    /// It has credentials.
    pub(super) authorized: bool,
    /// It has a condition that a stored response could not be tried against.
    pub(super) odd_condition: bool,
    /// It has If-None-Match or If-Modified-Since.
    pub(super) conditional: bool,
    /// It wants a part.
    pub(super) ranged: bool,
    /// This proxy has forwarded it already.
    pub(super) looped: bool,
    /// Max-Forwards.
    pub(super) forwards: Option<u64>,
}

impl Facts {
    pub(super) fn of(head: &request::Head<'_, '_>, pseudonym: &str) -> Self {
        let mut facts = Facts::default();
        let (mut control, mut pragma) = (false, false);
        for field in head.all() {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            match field.name.len() {
                3 if is("Via") => facts.looped |= passed(field.value, pseudonym),
                5 if is("Range") => facts.ranged = true,
                6 if is("Pragma") => {
                    pragma |= tokens(field.value).any(|it| it.eq_ignore_ascii_case(b"no-cache"));
                }
                8 if is("If-Match") || is("If-Range") => facts.odd_condition = true,
                12 if is("Max-Forwards") => {
                    let text = std::str::from_utf8(field.value).unwrap_or_default();
                    facts.forwards = text.trim().parse().ok();
                }
                13 if is("Authorization") => facts.authorized = true,
                13 if is("Cache-Control") => control = true,
                13 if is("If-None-Match") => facts.conditional = true,
                17 if is("If-Modified-Since") => facts.conditional = true,
                19 if is("If-Unmodified-Since") => facts.odd_condition = true,
                _ => {}
            }
        }
        if control {
            facts.wish = Directives::parse(head.fields("Cache-Control"));
        } else if pragma {
            facts.wish.no_cache = true;
        }
        facts
    }
}

/// Whether a Via field names this proxy.
fn passed(via: &[u8], pseudonym: &str) -> bool {
    tokens(via).any(|hop| {
        let mut words = hop
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        words.nth(1) == Some(pseudonym.as_bytes())
    })
}

/// How a request is forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Onward<'a> {
    pub(super) authority: &'a str,
    pub(super) path: &'a str,
    /// In Via.
    pub(super) pseudonym: &'a str,
    /// The value of X-Forwarded-For to be added, and the scheme's.
    pub(super) client: Option<std::net::IpAddr>,
    /// The connection is for this request alone.
    pub(super) close: bool,
    /// Asks whether this is still current, in place of the client's own
    /// conditions.
    pub(super) validates: Option<&'a Stored>,
    /// Leaves out the client's conditions and Range: all of it is wanted.
    pub(super) whole: bool,
    /// The value of Max-Forwards.
    pub(super) forwards: Option<u64>,
}

/// Writes the head of a request as it is forwarded.
pub(super) fn forward(out: &mut Vec<u8>, head: &request::Head<'_, '_>, onward: &Onward<'_>) {
    out.extend_from_slice(head.method_text.as_bytes());
    out.push(b' ');
    out.extend_from_slice(onward.path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    put(out, "Host", onward.authority.as_bytes());
    let named = Named::of(head.all());
    for field in head.all() {
        let name = field.name;
        let is = |text: &str| name.eq_ignore_ascii_case(text);
        let left_out = match name.len() {
            4 => is("Host"),
            5 => onward.whole && is("Range"),
            6 => is("Expect"),
            12 => is("Max-Forwards"),
            13 => onward.whole && is("If-None-Match"),
            14 => is("Content-Length"),
            17 => onward.whole && is("If-Modified-Since"),
            _ => false,
        };
        if !left_out && !is_hop_by_hop(name) && !named.has(name) {
            put(out, name, field.value);
        }
    }
    // Writing to a vector cannot fail.
    let _ = write!(out, "Via: 1.{} {}\r\n", head.version, onward.pseudonym);
    if let Some(client) = onward.client {
        let _ = write!(out, "X-Forwarded-For: {client}\r\n");
    }
    if let Some(forwards) = onward.forwards {
        let _ = write!(out, "Max-Forwards: {forwards}\r\n");
    }
    match head.content {
        request::Content::Length(0) if !has_length(head) => {}
        request::Content::Length(length) => {
            let _ = write!(out, "Content-Length: {length}\r\n");
        }
        request::Content::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    if head.expects_continue {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    if let Some(stored) = onward.validates {
        if let Some(etag) = &stored.etag {
            put(out, "If-None-Match", etag);
        }
        if let Some(modified) = &stored.last_modified {
            put(out, "If-Modified-Since", modified);
        }
    }
    if onward.close {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

fn has_length(head: &request::Head<'_, '_>) -> bool {
    head.fields("Content-Length").next().is_some()
}

/// The value that a head of a request has for `name`, all fields of it joined
/// (RFC 9111 §4.1).
pub(super) fn joined<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Box<[u8]>> {
    let mut all: Option<Vec<u8>> = None;
    for value in values {
        match &mut all {
            Some(all) => {
                all.extend_from_slice(b", ");
                all.extend_from_slice(value.trim_ascii());
            }
            None => all = Some(value.trim_ascii().to_vec()),
        }
    }
    all.map(Vec::into_boxed_slice)
}

/// The values of the fields `name` in a head that [`forward`] has written.
fn written<'a>(head: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    head.split(|&byte| byte == b'\n')
        .skip(1)
        .filter_map(move |line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let (found, value) = line.split_at(colon);
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.get(1..).unwrap_or_default().trim_ascii())
        })
}

/// Writes the fields of a response that go on to the client and into the store,
/// Date and Age apart, Via with this proxy's added.
pub(super) fn end_to_end(out: &mut Vec<u8>, head: &response::Head<'_, '_>, pseudonym: &str) {
    let named = Named::of(head.all());
    for field in head.all() {
        let name = field.name;
        let is = |text: &str| name.eq_ignore_ascii_case(text);
        let left_out = match name.len() {
            3 => is("Age"),
            4 => is("Date"),
            14 => is("Content-Length"),
            _ => false,
        };
        if !left_out && !is_hop_by_hop(name) && !named.has(name) {
            put(out, name, field.value);
        }
    }
    let _ = write!(out, "Via: 1.{} {pseudonym}\r\n", head.version);
}

/// Status codes whose meaning for caches is known here.
fn understood(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 302 | 303 | 307 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Those that may be stored although nothing says for how long (RFC 9110
/// §15.1).
fn heuristic(status: u16) -> bool {
    understood(status) && !matches!(status, 302 | 303 | 307)
}

/// The age and the lifetime of a response that has come `now`, `delay` after it
/// was asked for (RFC 9111 §4.2).
pub(super) fn freshness(
    head: &response::Head<'_, '_>,
    now: Duration,
    delay: Duration,
    unix: u64,
) -> Freshness {
    let control = Directives::parse(head.fields("Cache-Control"));
    let date = head.field("Date").and_then(seconds);
    let apparent = date.map_or(0, |date| unix.saturating_sub(date));
    let said = head.field("Age").and_then(|age| {
        let text = std::str::from_utf8(age).ok()?;
        text.trim().parse::<u64>().ok()
    });
    let corrected = said.unwrap_or(0).saturating_add(delay.as_secs());
    let expires = || {
        let mut fields = head.fields("Expires");
        let first = fields.next()?;
        // §5.3: an invalid one, as 0, is in the past.
        Some(seconds(first).map_or(0, |time| time.saturating_sub(date.unwrap_or(unix))))
    };
    Freshness {
        at: now,
        age: apparent.max(corrected),
        lifetime: control.s_maxage.or(control.max_age).or_else(expires),
        control,
    }
}

/// A response as it would be stored, without its content; `None` when it must
/// not be, or would be of no use (RFC 9111 §3). `request` is the head as it was
/// forwarded, `authorized` whether it had credentials.
pub(super) fn storable(
    head: &response::Head<'_, '_>,
    request: &[u8],
    authorized: bool,
    pseudonym: &str,
    freshness: Freshness,
    date: &str,
) -> Option<Stored> {
    let control = &freshness.control;
    if !control.may_be_kept() {
        return None;
    }
    if (control.must_understand || control.no_store) && !understood(head.status) {
        return None;
    }
    // §3.5.
    if authorized && !control.public && !control.must_revalidate {
        return None;
    }
    // Other codes, `public` or not, may tell of the request rather than of its
    // target: 400, 416, 431. Kept, they would be everybody's.
    let explicit = freshness.lifetime.is_some() || control.public;
    let allowed = heuristic(head.status) || explicit && understood(head.status);
    if !allowed {
        return None;
    }
    // Cookies are for one user, whatever the origin forgot to say (§7.3).
    if head.fields("Set-Cookie").next().is_some() && !control.public {
        return None;
    }
    let etag = head.field("ETag").map(Box::from);
    let last_modified: Option<Box<[u8]>> = head.field("Last-Modified").map(Box::from);
    if etag.is_none() && last_modified.is_none() && freshness.lifetime.unwrap_or(0) == 0 {
        return None;
    }
    let mut vary = Vec::new();
    for name in head.fields("Vary").flat_map(tokens) {
        let name = std::str::from_utf8(name).ok()?;
        if name == "*" {
            return None;
        }
        let value = joined(written(request, name));
        vary.push((name.to_ascii_lowercase().into_boxed_str(), value));
    }
    let mut fields = Vec::new();
    end_to_end(&mut fields, head, pseudonym);
    let mut line = Vec::new();
    status_line(&mut line, head.status, head.reason);
    Some(Stored {
        status: head.status,
        line: line.into(),
        fields: fields.into(),
        date: RefCell::new(head.field("Date").unwrap_or(date.as_bytes()).into()),
        body: Rc::new([]),
        modified: last_modified.as_deref().and_then(seconds),
        etag,
        last_modified,
        vary: vary.into(),
        freshness: Cell::new(freshness),
    })
}

/// Writes the first line of a response.
pub(super) fn status_line(out: &mut Vec<u8>, status: u16, reason: &str) {
    if status == 200 && reason == "OK" {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let _ = write!(out, "HTTP/1.1 {status} {reason}\r\n");
    }
}

/// Whether a 304 is of the stored version: not of another one, to judge by the
/// entity tags where both have one (RFC 9111 §4.3.4).
pub(super) fn is_version(stored: &Stored, head: &response::Head<'_, '_>) -> bool {
    match (&stored.etag, head.field("ETag")) {
        (Some(old), Some(new)) => opaque(old) == opaque(new),
        _ => true,
    }
}

/// What a 304 changes in what is stored (RFC 9111 §3.2): `None` when nothing
/// but Date and Age, the usual case, which have been noted.
pub(super) fn freshened(
    stored: &Rc<Stored>,
    head: &response::Head<'_, '_>,
    freshness: Freshness,
    date: &str,
) -> Option<Stored> {
    let date = head.field("Date").unwrap_or(date.as_bytes());
    let named = Named::of(head.all());
    let kept = |name: &str| {
        let is = |text: &str| name.eq_ignore_ascii_case(text);
        let apart = match name.len() {
            3 => is("Age") || is("Via"),
            4 => is("Date") || is("Vary"),
            // For whom it came (§7.3).
            10 => is("Set-Cookie"),
            // A server's name is no news of the content, and differs where
            // several answer for one.
            6 => is("Server"),
            12 => is("Content-Type"),
            13 => is("Content-Range"),
            14 => is("Content-Length"),
            16 => is("Content-Encoding"),
            _ => false,
        };
        apart || is_hop_by_hop(name) || named.has(name)
    };
    let news = || head.all().iter().filter(|field| !kept(field.name));
    let same = news().all(|field| {
        let mut there = lines(&stored.fields).filter(|line| has_name(line, field.name));
        there.any(|line| value(line) == field.value.trim_ascii())
    });
    if same {
        if **stored.date.borrow() != *date {
            *stored.date.borrow_mut() = date.into();
        }
        stored.freshness.set(Freshness {
            // A 304 that says nothing of it leaves things as they are.
            lifetime: freshness.lifetime.or(stored.freshness.get().lifetime),
            control: match head.fields("Cache-Control").next() {
                Some(_) => freshness.control,
                None => stored.freshness.get().control,
            },
            ..freshness
        });
        return None;
    }
    let mut fields = Vec::with_capacity(stored.fields.len());
    for line in lines(&stored.fields) {
        if !news().any(|field| has_name(line, field.name)) {
            fields.extend_from_slice(line);
            fields.extend_from_slice(b"\r\n");
        }
    }
    for field in news() {
        put(&mut fields, field.name, field.value);
    }
    let control = Directives::parse(
        lines(&fields)
            .filter(|line| has_name(line, "Cache-Control"))
            .map(value),
    );
    let last_modified = match head.field("Last-Modified") {
        Some(new) => Some(new.into()),
        None => stored.last_modified.clone(),
    };
    Some(Stored {
        status: stored.status,
        line: stored.line.clone(),
        fields: fields.into(),
        date: RefCell::new(date.into()),
        body: stored.body.clone(),
        modified: last_modified.as_deref().and_then(seconds),
        etag: match head.field("ETag") {
            Some(new) => Some(new.into()),
            None => stored.etag.clone(),
        },
        last_modified,
        vary: stored.vary.clone(),
        freshness: Cell::new(Freshness {
            lifetime: freshness.lifetime.or(stored.freshness.get().lifetime),
            control,
            ..freshness
        }),
    })
}

/// The lines of a head, without their ends.
pub(super) fn lines(fields: &[u8]) -> impl Iterator<Item = &[u8]> {
    fields
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
}

/// Whether a line is the field `name`.
pub(super) fn has_name(line: &[u8], name: &str) -> bool {
    line.get(name.len()) == Some(&b':')
        && line
            .get(..name.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes()))
}

fn value(line: &[u8]) -> &[u8] {
    let colon = line.iter().position(|&byte| byte == b':');
    colon
        .and_then(|colon| line.get(colon + 1..))
        .unwrap_or_default()
        .trim_ascii()
}
