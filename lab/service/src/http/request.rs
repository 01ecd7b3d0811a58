//! The head of a request (RFC 9112 §§2–6), read by `httparse`.

use std::mem::MaybeUninit;

use super::Limits;
use super::status::Status;

/// Most header fields of a request.
pub const FIELDS_MAX: usize = 64;

/// Room for the fields of one head.
pub type Room<'b> = [MaybeUninit<httparse::Header<'b>>; FIELDS_MAX];

/// How the end of the request's content is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// None, or this many bytes.
    Length(u64),
    /// Chunked.
    Chunked,
}

/// A request's head.
#[derive(Debug)]
pub struct Head<'h, 'b> {
    /// The method, as received.
    pub method: &'b str,
    /// The target, as received.
    pub target: &'b str,
    /// The minor version of HTTP/1: 0 or 1.
    pub version: u8,
    /// The client wants to keep using the connection.
    pub keep_alive: bool,
    /// Its content.
    pub content: Content,
    /// It waits for `100 Continue` before it sends the content.
    pub expects_continue: bool,
    /// A field makes the answer conditional.
    pub conditional: bool,
    /// All fields.
    pub fields: Fields<'h, 'b>,
}

/// The fields of a head.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'h, 'b>(pub(super) &'h [httparse::Header<'b>]);

impl<'h, 'b> Fields<'h, 'b> {
    /// Returns the values of the fields of this name.
    pub fn all(self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// Returns the value of a field that occurs once.
    pub fn one(self, name: &str) -> Option<&'b [u8]> {
        let mut fields = self.all(name);
        let first = fields.next();
        first.filter(|_| fields.next().is_none())
    }
}

/// The result of parsing bytes.
#[derive(Debug)]
pub enum Parsed<'h, 'b> {
    /// More bytes are needed.
    Partial,
    /// A head, and its length in bytes.
    Whole(Head<'h, 'b>, usize),
    /// Invalid: to be answered with this status, and the connection closed, since the
    /// beginning of a next request is unknown.
    Refused(Status),
}

/// Parses a head from the start of `bytes`. `scanned` is the number of bytes examined in
/// vain before, and is updated: a head that arrives in many small pieces costs no more
/// than its length.
pub fn parse<'h, 'b>(
    bytes: &'b [u8],
    scanned: &mut usize,
    room: &'h mut Room<'b>,
    limits: &Limits,
) -> Parsed<'h, 'b> {
    // An empty line or two before a request are ignored (§2.2).
    let start = bytes
        .iter()
        .take_while(|&&byte| matches!(byte, b'\r' | b'\n'))
        .count();
    let rest = bytes.get(start..).unwrap_or_default();
    // The limits apply regardless of how the bytes were divided.
    if too_long(rest, limits) {
        return Parsed::Refused(Status::URI_TOO_LONG);
    }
    let end = end_of_head(rest, scanned.saturating_sub(start));
    if start.max(end.unwrap_or(rest.len())) > limits.head_bytes {
        return Parsed::Refused(Status::HEADER_FIELDS_TOO_LARGE);
    }
    if end.is_none() {
        *scanned = bytes.len();
        return Parsed::Partial;
    }
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(rest, room) {
        Ok(httparse::Status::Complete(length)) => {
            let (Some(method), Some(target), Some(version)) =
                (request.method, request.path, request.version)
            else {
                return Parsed::Refused(Status::BAD_REQUEST);
            };
            if target.len() > limits.target_bytes {
                return Parsed::Refused(Status::URI_TOO_LONG);
            }
            match head(method, target, version, request.headers) {
                Ok(head) => Parsed::Whole(head, start + length),
                Err(status) => Parsed::Refused(status),
            }
        }
        // The end was seen, so more bytes will not help.
        Ok(httparse::Status::Partial) => Parsed::Refused(Status::BAD_REQUEST),
        Err(httparse::Error::TooManyHeaders) => Parsed::Refused(Status::HEADER_FIELDS_TOO_LARGE),
        Err(httparse::Error::Version) => Parsed::Refused(Status::VERSION_NOT_SUPPORTED),
        Err(_) => Parsed::Refused(Status::BAD_REQUEST),
    }
}

/// Returns the length of a head with its empty line, if that is in `bytes`; the first
/// `scanned` were examined before.
pub(super) fn end_of_head(bytes: &[u8], scanned: usize) -> Option<usize> {
    let mut from = scanned.saturating_sub(3);
    loop {
        let feed = from + bytes.get(from..)?.iter().position(|&byte| byte == b'\n')?;
        match bytes.get(feed + 1..) {
            Some([b'\n', ..]) => return Some(feed + 2),
            Some([b'\r', b'\n', ..]) => return Some(feed + 3),
            _ => from = feed + 1,
        }
    }
}

/// Returns whether the first line is too long, even if it is incomplete.
fn too_long(bytes: &[u8], limits: &Limits) -> bool {
    // Method, spaces and version.
    let allowed = limits.target_bytes.saturating_add(32);
    bytes
        .get(..allowed.saturating_add(1))
        .is_some_and(|line| !line.contains(&b'\n'))
}

fn head<'h, 'b>(
    method: &'b str,
    target: &'b str,
    version: u8,
    fields: &'h [httparse::Header<'b>],
) -> Result<Head<'h, 'b>, Status> {
    let mut head = Head {
        method,
        target,
        version,
        keep_alive: false,
        content: Content::Length(0),
        expects_continue: false,
        conditional: false,
        fields: Fields(fields),
    };
    let (mut hosts, mut length, mut coded) = (0, None, None);
    let mut persistence = Persistence::new(version);
    for field in fields {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        // By length first: most fields are none of these.
        match field.name.len() {
            4 if is("Host") => hosts += 1,
            5 if is("Range") => head.conditional = true,
            6 if is("Expect") => {
                if !field.value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Status::EXPECTATION_FAILED);
                }
                head.expects_continue = version >= 1;
            }
            8 if is("If-Match") => head.conditional = true,
            10 if is("Connection") => persistence.note(field.value),
            13 if is("If-None-Match") => head.conditional = true,
            14 if is("Content-Length") => {
                // Also rejects a repeated field, which RFC 9110 §8.6 leaves to us: others
                // may use only the first or the last.
                let value = decimal(field.value).filter(|_| length.is_none());
                length = Some(value.ok_or(Status::BAD_REQUEST)?);
            }
            17 if is("Transfer-Encoding") => {
                let chunked = field.value.eq_ignore_ascii_case(b"chunked") && coded.is_none();
                coded = Some(chunked);
            }
            17 if is("If-Modified-Since") => head.conditional = true,
            19 if is("If-Unmodified-Since") => head.conditional = true,
            _ => {}
        }
    }
    head.keep_alive = persistence.holds();
    // RFC 9112 §3.2: exactly one Host in HTTP/1.1.
    if hosts > 1 || hosts == 0 && version >= 1 {
        return Err(Status::BAD_REQUEST);
    }
    // §6.1, §6.3: two lengths, or a coding in HTTP/1.0, enable request smuggling.
    head.content = match (coded, length) {
        (None, length) => Content::Length(length.unwrap_or(0)),
        (Some(_), Some(_)) => return Err(Status::BAD_REQUEST),
        (Some(_), None) if version == 0 => return Err(Status::BAD_REQUEST),
        (Some(true), None) => Content::Chunked,
        (Some(false), None) => return Err(Status::NOT_IMPLEMENTED),
    };
    Ok(head)
}

/// Whether a connection persists after a message (RFC 9112 §9.3): `close` wins, whatever
/// stands beside it and in whichever field.
pub(super) struct Persistence {
    close: bool,
    keep_alive: bool,
}

impl Persistence {
    /// Starts with the default of the minor version of HTTP.
    pub(super) fn new(version: u8) -> Self {
        Persistence {
            close: false,
            keep_alive: version >= 1,
        }
    }

    /// Parses a Connection field.
    pub(super) fn note(&mut self, field: &[u8]) {
        for option in tokens(field) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    pub(super) fn holds(&self) -> bool {
        self.keep_alive && !self.close
    }
}

/// Returns the elements of a comma-separated field.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// Parses a number of digits only.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of parsing: the status of a refusal, or the result of `look`.
    fn parsed<T>(
        bytes: &[u8],
        look: impl FnOnce(&Head<'_, '_>, usize) -> T,
    ) -> Result<T, Option<Status>> {
        let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        match parse(bytes, &mut 0, &mut room, &Limits::default()) {
            Parsed::Whole(head, length) => Ok(look(&head, length)),
            Parsed::Partial => Err(None),
            Parsed::Refused(status) => Err(Some(status)),
        }
    }

    fn refused(bytes: &[u8]) -> Option<Status> {
        parsed(bytes, |_, _| ()).expect_err("it must not be taken")
    }

    #[test]
    fn a_request_is_read() {
        let bytes = b"\r\nGET /a?b HTTP/1.1\r\nhost: x\r\nRange: bytes=0-1\r\nAccept: a\r\nACCEPT: b\r\n\r\nGET";
        parsed(bytes, |head, length| {
            assert_eq!((head.method, head.target, head.version), ("GET", "/a?b", 1));
            assert!(head.keep_alive && head.conditional);
            assert_eq!(head.content, Content::Length(0));
            assert_eq!(head.fields.one("range"), Some(b"bytes=0-1".as_slice()));
            assert_eq!(head.fields.one("accept"), None, "there are two");
            assert_eq!(head.fields.all("accept").count(), 2);
            assert_eq!(length, bytes.len() - 3);
        })
        .unwrap();
        for end in 0..bytes.len() - 3 {
            assert_eq!(refused(&bytes[..end]), None, "{end} bytes are part of one");
        }
    }

    #[test]
    fn persistence_follows_version_and_field() {
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", true),
            (
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n",
                false,
            ),
            (
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n",
                false,
            ),
            (
                "GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: x, close\r\n\r\n",
                false,
            ),
            ("GET / HTTP/1.0\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
            ("GET / HTTP/1.0\n\n", false),
        ] {
            assert_eq!(
                parsed(text.as_bytes(), |head, _| head.keep_alive),
                Ok(expected),
                "{text:?}"
            );
        }
    }

    #[test]
    fn ambiguity_is_refused() {
        let with = |fields: &str| refused(format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes());
        for (fields, status) in [
            ("Accept: x", 400),
            ("Host: a\r\nHost: a", 400),
            ("Host: a\r\nContent-Length: 1\r\nContent-Length: 2", 400),
            ("Host: a\r\nContent-Length: 1\r\nContent-Length: 1", 400),
            ("Host: a\r\nContent-Length: -1", 400),
            ("Host: a\r\nContent-Length: 1, 1", 400),
            ("Host: a\r\nContent-Length: 99999999999999999999", 400),
            (
                "Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
                400,
            ),
            ("Host: a\r\nTransfer-Encoding: gzip, chunked", 501),
            (
                "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                501,
            ),
            ("Host: a\r\nExpect: miracles", 417),
            ("Host : a", 400),
            ("Host: a\r\n folded: b", 400),
            ("Host: a\x01", 400),
        ] {
            assert_eq!(with(fields), Some(Status(status)), "{fields:?}");
        }
        assert_eq!(
            refused(b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Some(Status(400))
        );
        assert_eq!(
            refused(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
            Some(Status(505))
        );
        assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01\n\n"), Some(Status(400)));
    }

    #[test]
    fn limits_are_kept_before_the_head_is_whole() {
        let limits = Limits::default();
        let long = format!(
            "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n",
            "x".repeat(limits.target_bytes)
        );
        assert_eq!(refused(long.as_bytes()), Some(Status::URI_TOO_LONG));
        assert_eq!(
            refused(&vec![b'x'; limits.target_bytes + 40]),
            Some(Status::URI_TOO_LONG)
        );
        let fields = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}",
            "x".repeat(limits.head_bytes)
        );
        assert_eq!(
            refused(fields.as_bytes()),
            Some(Status::HEADER_FIELDS_TOO_LARGE)
        );
        assert_eq!(
            refused(format!("{fields}\r\n\r\n").as_bytes()),
            Some(Status::HEADER_FIELDS_TOO_LARGE)
        );
        let many = format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "A: b\r\n".repeat(FIELDS_MAX)
        );
        assert_eq!(
            refused(many.as_bytes()),
            Some(Status::HEADER_FIELDS_TOO_LARGE)
        );
        assert_eq!(
            refused(&vec![b'\n'; limits.head_bytes + 1]),
            Some(Status::HEADER_FIELDS_TOO_LARGE)
        );
    }

    #[test]
    fn pieces_are_looked_at_once() {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut scanned = 0;
        for end in 0..bytes.len() {
            let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
            let parsed = parse(&bytes[..end], &mut scanned, &mut room, &Limits::default());
            assert!(matches!(parsed, Parsed::Partial), "{end}");
            assert_eq!(scanned, end);
        }
        let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let parsed = parse(bytes, &mut scanned, &mut room, &Limits::default());
        assert!(matches!(parsed, Parsed::Whole(_, length) if length == bytes.len()));
    }
}
