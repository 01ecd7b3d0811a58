//! Finds the end of a response, and its status (RFC 9112 §6).

/// Longest head of a response, bytes.
const HEAD_MAX: usize = 16 * 1024;
/// Most header fields.
const FIELDS_MAX: usize = 64;

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// More bytes are expected.
    Incomplete,
    /// It is whole: its status, and whether the connection ends with it.
    Complete { status: u16, close: bool },
    /// It is not an HTTP/1.1 response, or its end cannot be found by this client (chunked
    /// transfer coding).
    Malformed,
}

/// The response that is being received.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// The head as far as received; empty if it arrived in one piece.
    head: Vec<u8>,
    body: Option<Body>,
    /// Bytes received of a response known beforehand.
    known: usize,
}

#[derive(Clone, Copy, Debug)]
struct Body {
    status: u16,
    close: bool,
    /// Bytes still expected; `None`: everything until the end.
    left: Option<u64>,
}

impl Response {
    /// Resets the state: a new request was sent.
    pub(crate) fn reset(&mut self) {
        self.head.clear();
        self.body = None;
        self.known = 0;
    }

    /// Accepts received bytes. Bytes behind the response are ignored: they answer
    /// nothing.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Outcome {
        let Some(body) = &mut self.body else {
            return self.take_head(bytes);
        };
        if let Some(left) = &mut body.left {
            *left = left.saturating_sub(bytes.len() as u64);
        }
        self.outcome()
    }

    /// Accepts received bytes of a response that must be exactly `all`; once whole, it
    /// counts as one of status 200.
    pub(crate) fn take_known(&mut self, bytes: &[u8], all: &[u8]) -> Outcome {
        let left = all.get(self.known..).unwrap_or_default();
        self.known += bytes.len();
        match left.strip_prefix(bytes) {
            Some([]) => Outcome::Complete {
                status: 200,
                close: false,
            },
            Some(_) => Outcome::Incomplete,
            None => Outcome::Malformed,
        }
    }

    /// Records the connection's end.
    pub(crate) fn end(&mut self) -> Outcome {
        match self.body {
            Some(Body {
                status, left: None, ..
            }) => Outcome::Complete {
                status,
                close: true,
            },
            _ => Outcome::Malformed,
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> Outcome {
        if self.head.is_empty() {
            return match read_head(bytes) {
                Head::Whole(body) => self.begin(body),
                Head::Partial => {
                    self.head.extend_from_slice(bytes);
                    Outcome::Incomplete
                }
                Head::Wrong => Outcome::Malformed,
            };
        }
        self.head.extend_from_slice(bytes);
        match read_head(&self.head) {
            Head::Whole(body) => self.begin(body),
            Head::Partial if self.head.len() <= HEAD_MAX => Outcome::Incomplete,
            _ => Outcome::Malformed,
        }
    }

    fn begin(&mut self, body: Body) -> Outcome {
        // 1xx responses precede the final one (RFC 9110 §15.2). None is requested, so
        // none is waited for.
        if body.status < 200 {
            return Outcome::Malformed;
        }
        self.body = Some(body);
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        match self.body {
            Some(Body {
                status,
                close,
                left: Some(0),
            }) => Outcome::Complete { status, close },
            _ => Outcome::Incomplete,
        }
    }
}

enum Head {
    /// The body, less the part received already.
    Whole(Body),
    Partial,
    Wrong,
}

fn read_head(bytes: &[u8]) -> Head {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_MAX => return Head::Partial,
        _ => return Head::Wrong,
    };
    let status = response.code.unwrap_or(0);
    // HTTP/1.0 closes unless asked otherwise (RFC 9112 §9.3).
    let mut close = response.version == Some(0);
    let mut body_length = matches!(status, 204 | 304).then_some(0);
    for field in response.headers.iter() {
        let value = || std::str::from_utf8(field.value).ok().map(str::trim);
        if field.name.eq_ignore_ascii_case("content-length") {
            let Some(length) = value().and_then(|value| value.parse::<u64>().ok()) else {
                return Head::Wrong;
            };
            body_length = body_length.or(Some(length));
        } else if field.name.eq_ignore_ascii_case("connection") {
            let is = |name: &str| value().is_some_and(|value| value.eq_ignore_ascii_case(name));
            close = (close || is("close")) && !is("keep-alive");
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            return Head::Wrong;
        }
    }
    let there = bytes.len().saturating_sub(length) as u64;
    Head::Whole(Body {
        status,
        close: close || body_length.is_none(),
        left: body_length.map(|length| length.saturating_sub(there)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nhello";

    fn complete(close: bool) -> Outcome {
        Outcome::Complete { status: 200, close }
    }

    #[test]
    fn a_response_may_come_in_any_pieces() {
        let mut response = Response::default();
        assert_eq!(response.take(WHOLE), complete(false));
        for piece in 1..WHOLE.len() {
            response.reset();
            let mut outcome = Outcome::Incomplete;
            for bytes in WHOLE.chunks(piece) {
                assert_eq!(outcome, Outcome::Incomplete);
                outcome = response.take(bytes);
            }
            assert_eq!(outcome, complete(false), "pieces of {piece}");
        }
    }

    #[test]
    fn a_body_may_last_until_the_connection_ends() {
        let mut response = Response::default();
        assert_eq!(
            response.take(b"HTTP/1.0 200 OK\r\n\r\nhel"),
            Outcome::Incomplete
        );
        assert_eq!(response.take(b"lo"), Outcome::Incomplete);
        assert_eq!(response.end(), complete(true));
        response.reset();
        assert_eq!(response.take(&WHOLE[..50]), Outcome::Incomplete);
        assert_eq!(response.end(), Outcome::Malformed, "cut short");
    }

    #[test]
    fn who_closes_is_said_in_the_head() {
        let head = |text: &str| {
            Response::default()
                .take(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{text}\r\n\r\n").as_bytes())
        };
        assert_eq!(head("Connection: Close"), complete(true));
        assert_eq!(head("Connection: keep-alive"), complete(false));
        assert_eq!(head("X: y"), complete(false));
        let not_modified = Response::default().take(b"HTTP/1.1 304 Not Modified\r\n\r\n");
        assert_eq!(
            not_modified,
            Outcome::Complete {
                status: 304,
                close: false
            }
        );
    }

    #[test]
    fn a_known_response_comes_in_pieces_and_as_it_is() {
        let mut response = Response::default();
        for piece in 1..8 {
            response.reset();
            let mut outcome = Outcome::Incomplete;
            for bytes in b"$2\r\nxx\r\n".chunks(piece) {
                assert_eq!(outcome, Outcome::Incomplete);
                outcome = response.take_known(bytes, b"$2\r\nxx\r\n");
            }
            assert_eq!(outcome, complete(false));
        }
        for wrong in [&b"-ERR\r\n"[..], b"$2\r\nxx\r\n$2"] {
            response.reset();
            assert_eq!(
                response.take_known(wrong, b"$2\r\nxx\r\n"),
                Outcome::Malformed
            );
        }
        response.reset();
        response.take_known(b"$2", b"$2\r\n");
        assert_eq!(response.end(), Outcome::Malformed, "cut short");
    }

    #[test]
    fn nonsense_is_malformed() {
        for bytes in [
            &b"SSH-2.0-x\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ] {
            assert_eq!(Response::default().take(bytes), Outcome::Malformed);
        }
        let mut response = Response::default();
        assert_eq!(
            response.take(b"HTTP/1.1 200 OK\r\nX: "),
            Outcome::Incomplete
        );
        let mut outcome = Outcome::Incomplete;
        for _ in 0..20 {
            outcome = response.take(&[b'a'; 1024]);
        }
        assert_eq!(outcome, Outcome::Malformed, "a head without an end");
    }
}
