//! Messages on their way through: which fields go on, which stay behind
//! (RFC 9110 §7.6), and what is added.

use std::io::Write;

use httparse::Header;

use super::super::request::{self, tokens};
use super::response;

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

/// The fields of a request that bound how far it is forwarded.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// This proxy has forwarded it already.
    pub(super) looped: bool,
    /// Max-Forwards.
    pub(super) forwards: Option<u64>,
}

impl Facts {
    pub(super) fn of(head: &request::Head<'_, '_>, pseudonym: &str) -> Self {
        let forwards = head.fields("Max-Forwards").last();
        let forwards = forwards.and_then(|value| std::str::from_utf8(value).ok());
        Facts {
            looped: head.fields("Via").any(|via| passed(via, pseudonym)),
            forwards: forwards.and_then(|text| text.trim().parse().ok()),
        }
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
            6 => is("Expect"),
            12 => is("Max-Forwards"),
            14 => is("Content-Length"),
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
    out.extend_from_slice(b"Connection: close\r\n\r\n");
}

fn has_length(head: &request::Head<'_, '_>) -> bool {
    head.fields("Content-Length").next().is_some()
}

/// Writes the fields of a response that go on to the client,
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

/// Writes the first line of a response.
pub(super) fn status_line(out: &mut Vec<u8>, status: u16, reason: &str) {
    if status == 200 && reason == "OK" {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let _ = write!(out, "HTTP/1.1 {status} {reason}\r\n");
    }
}
