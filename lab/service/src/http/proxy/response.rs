//! The head of a response from upstream (RFC 9112 §§2–6), read by `httparse`.

use std::mem::MaybeUninit;

use super::super::request::{Fields, decimal, end_of_head};
use super::body::Body;

/// Most header fields of a response.
pub const FIELDS_MAX: usize = 128;

/// Room for the fields of one head.
pub type Room<'b> = [MaybeUninit<httparse::Header<'b>>; FIELDS_MAX];

/// The head of a response.
#[derive(Debug)]
pub struct Head<'h, 'b> {
    /// The minor version of HTTP/1: 0 or 1.
    pub version: u8,
    /// The status code.
    pub status: u16,
    /// The reason phrase, as received.
    pub reason: &'b str,
    /// Its content; [`Body::Length`] of 0 if there is none.
    pub body: Body,
    /// The stated length that content has, or would have (HEAD).
    pub length: Option<u64>,
    /// All fields.
    pub fields: Fields<'h, 'b>,
}

/// The result of parsing bytes.
#[derive(Debug)]
pub enum Parsed<'h, 'b> {
    /// More bytes are needed.
    Partial,
    /// A head, and its length in bytes.
    Complete(Head<'h, 'b>, usize),
    /// Not HTTP, ambiguous, or too long.
    Bad,
}

/// Parses a head of up to `limit` bytes from the start of `bytes`, the answer to a HEAD
/// if `to_head`. `scanned` is the number of bytes examined in vain before, and is
/// updated.
pub fn parse<'h, 'b>(
    bytes: &'b [u8],
    scanned: &mut usize,
    room: &'h mut Room<'b>,
    limit: usize,
    to_head: bool,
) -> Parsed<'h, 'b> {
    // Servers ignore empty lines before it (§2.2); clients do not.
    if matches!(bytes.first(), Some(b'\r' | b'\n')) {
        return Parsed::Bad;
    }
    let end = end_of_head(bytes, *scanned);
    if end.unwrap_or(bytes.len()) > limit {
        return Parsed::Bad;
    }
    if end.is_none() {
        *scanned = bytes.len();
        return Parsed::Partial;
    }
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut response, bytes, room) {
        Ok(httparse::Status::Complete(length)) => {
            let (Some(version), Some(status)) = (response.version, response.code) else {
                return Parsed::Bad;
            };
            let reason = response.reason.unwrap_or_default();
            match head(version, status, reason, response.headers, to_head) {
                Some(head) => Parsed::Complete(head, length),
                None => Parsed::Bad,
            }
        }
        // The end was seen, so more bytes will not help.
        _ => Parsed::Bad,
    }
}

fn head<'h, 'b>(
    version: u8,
    status: u16,
    reason: &'b str,
    fields: &'h [httparse::Header<'b>],
    to_head: bool,
) -> Option<Head<'h, 'b>> {
    if !(100..=599).contains(&status) {
        return None;
    }
    let (mut length, mut coded) = (None, None);
    for field in fields {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        match field.name.len() {
            14 if is("Content-Length") => {
                // One number, or the same one repeated (RFC 9112 §6.3).
                for value in field.value.split(|&byte| byte == b',') {
                    let value = decimal(value.trim_ascii())?;
                    if length.is_some_and(|length| length != value) {
                        return None;
                    }
                    length = Some(value);
                }
            }
            17 if is("Transfer-Encoding") => {
                let chunked = field.value.eq_ignore_ascii_case(b"chunked") && coded.is_none();
                coded = Some(chunked);
            }
            _ => {}
        }
    }
    let none = to_head || status < 200 || status == 204 || status == 304;
    let body = match (coded, length) {
        _ if none => Body::Length(0),
        (None, Some(length)) => Body::Length(length),
        // HTTP/1.0 has no codings (§6.1): the end of this is unclear.
        (Some(_), _) if version == 0 => return None,
        // Both: the coding counts.
        (Some(true), _) => {
            length = None;
            Body::chunked()
        }
        // An unrequested coding: it cannot be undone here.
        (Some(false), _) => return None,
        (None, None) => Body::Close,
    };
    Some(Head {
        version,
        status,
        reason,
        body,
        length,
        fields: Fields(fields),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<T>(
        text: &str,
        to_head: bool,
        look: impl FnOnce(&Head<'_, '_>, usize) -> T,
    ) -> Result<T, bool> {
        let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        match parse(text.as_bytes(), &mut 0, &mut room, 4096, to_head) {
            Parsed::Complete(head, length) => Ok(look(&head, length)),
            Parsed::Partial => Err(true),
            Parsed::Bad => Err(false),
        }
    }

    #[test]
    fn a_response_is_read() {
        let text = "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nA: b\r\na: c\r\n\r\nhello";
        parsed(text, false, |head, length| {
            assert_eq!((head.version, head.status, head.reason), (1, 200, "Fine"));
            assert_eq!(head.body, Body::Length(5));
            assert_eq!(head.fields.one("a"), None, "there are two");
            assert_eq!(head.fields.all("A").count(), 2);
            assert_eq!(length, text.len() - 5);
        })
        .unwrap();
        for end in 0..text.len() - 5 {
            let part = parsed(&text[..end], false, |_, _| ());
            assert_eq!(part, Err(true), "{end} bytes are part of one");
        }
        parsed(text, true, |head, _| {
            assert_eq!((head.body, head.length), (Body::Length(0), Some(5)));
        })
        .unwrap();
    }

    #[test]
    fn where_it_ends() {
        let chunked = Body::chunked();
        for (status, fields, body) in [
            ("1.1 200", "", Body::Close),
            ("1.1 200", "Transfer-Encoding: Chunked\r\n", chunked),
            (
                "1.1 200",
                "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
                chunked,
            ),
            ("1.1 304", "Content-Length: 10\r\n", Body::Length(0)),
            ("1.1 204", "", Body::Length(0)),
            ("1.1 100", "", Body::Length(0)),
            ("1.0 200", "Content-Length: 1\r\n", Body::Length(1)),
            (
                "1.0 200",
                "Content-Length: 1\r\nConnection: keep-alive\r\n",
                Body::Length(1),
            ),
            (
                "1.1 200",
                "Content-Length: 2\r\nConnection: close\r\nConnection: keep-alive\r\n",
                Body::Length(2),
            ),
            (
                "1.1 200",
                "Content-Length: 7, 7\r\nConnection: x, close\r\n",
                Body::Length(7),
            ),
        ] {
            let text = format!("HTTP/{status} x\r\n{fields}\r\n");
            let found = parsed(&text, false, |head, _| head.body);
            assert_eq!(found, Ok(body), "{text:?}");
        }
    }

    #[test]
    fn ambiguity_is_refused() {
        for text in [
            "HTTP/1.1 200 x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 200 x\r\nContent-Length: +1\r\n\r\n",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.0 200 x\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 99 x\r\n\r\n",
            "HTTP/1.1 999 x\r\n\r\n",
            "HTTP/2 200 x\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
            "HTTP/1.1 200 x\r\nA : b\r\n\r\n",
            "HTTP/1.1 200 x\r\nA: b\r\n c: d\r\n\r\n",
            "\n\n",
            "\r\nHTTP/1.1 200 x\r\n\r\n",
        ] {
            assert_eq!(parsed(text, false, |_, _| ()), Err(false), "{text:?}");
        }
        let long = format!("HTTP/1.1 200 x\r\nA: {}", "x".repeat(4096));
        assert_eq!(parsed(&long, false, |_, _| ()), Err(false));
        let many = format!(
            "HTTP/1.1 200 x\r\n{}\r\n",
            "A: b\r\n".repeat(FIELDS_MAX + 1)
        );
        assert_eq!(parsed(&many, false, |_, _| ()), Err(false));
    }
}
