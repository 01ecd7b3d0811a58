//! The proxy between a random client and a random origin, without sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidewall_service::http::ClientConnection;
use tidewall_service::http::Limits;
use tidewall_service::http::connection::{End, Output};
use tidewall_service::http::proxy::body::Body;
use tidewall_service::http::proxy::response::{FIELDS_MAX, Parsed, parse};
use tidewall_service::http::proxy::session::{Failure, Session, Shared};
use tidewall_service::http::proxy::{Spec, UpstreamLimits};
use tidewall_service::http::site::Clock;

/// Time for random inputs in an ordinary test run.
const TIME: Duration = Duration::from_millis(1500);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ORIGIN: SocketAddr = SocketAddr::new(PEER, 80);

fn shared() -> Shared {
    let spec = Spec {
        limits: Limits {
            head_bytes: 512,
            target_bytes: 64,
            content_bytes: 256,
            ..Limits::default()
        },
        upstream: UpstreamLimits {
            head_bytes: 512,
            ..UpstreamLimits::default()
        },
        ..Spec::new(0, Some(ORIGIN))
    };
    Shared::forwarding(spec, Clock::new(Duration::ZERO, 784_111_999), 7)
}

/// Takes all output to either side.
fn drain(session: &mut Session, shared: &mut Shared, step: usize, out: &mut [Vec<u8>; 2]) {
    loop {
        let (bytes, _) = session.upstream_output();
        if !bytes.is_empty() && session.wants_upstream().is_none() {
            let count = bytes.len().min(step);
            out[1].extend_from_slice(&bytes[..count]);
            session.upstream_sent(count, shared);
            continue;
        }
        match session.connection().output() {
            Output::Nothing if session.connection().has_work() => session.resume(shared),
            Output::Nothing => return,
            Output::Bytes { bytes, .. } => {
                assert!(!bytes.is_empty(), "nothing to send is Nothing");
                let count = bytes.len().min(step);
                out[0].extend_from_slice(&bytes[..count]);
                session
                    .connection_mut()
                    .sent(count, shared.clock.now(), &shared.limits);
            }
            Output::File { .. } => panic!("there are no files"),
        }
    }
}

/// Connects a client that sends `asked` with an origin that sends `answer` to each
/// request and then, if `closes`, ends: both in pieces of `step`. Returns the output to
/// both.
fn converse(asked: &[u8], answer: &[u8], closes: bool, step: usize) -> [Vec<u8>; 2] {
    let mut shared = shared();
    let mut session = Session::new(PEER, Duration::ZERO);
    let mut out = [Vec::new(), Vec::new()];
    let mut asked = asked.chunks(step);
    // More turns than there are requests in so few bytes.
    for _ in 0..10_000 {
        drain(&mut session, &mut shared, step, &mut out);
        session.take_finished();
        if session.connection().end() != End::Open {
            return out;
        }
        if session.wants_upstream().is_some() {
            session.connecting();
            session.connected(Duration::ZERO);
            // The origin is the slower one, so its input does not depend on how the rest
            // is divided.
            while session.connection().wants_input()
                && let Some(piece) = asked.next()
            {
                session.receive(piece, &mut shared);
            }
            drain(&mut session, &mut shared, step, &mut out);
            let mut pieces = answer.chunks(step);
            // Until it is done, or the client has more to send.
            while session.upstream_wants_input() {
                match pieces.next() {
                    Some(piece) => session.upstream_receive(piece, &mut shared),
                    None => break,
                }
                drain(&mut session, &mut shared, step, &mut out);
                if session.take_finished() || session.wants_upstream().is_some() {
                    break;
                }
            }
            // A missing rest ends with the connection.
            let waiting = session.upstream_wants_input() && session.wants_upstream().is_none();
            if waiting && !session.take_finished() {
                match closes {
                    true => session.upstream_end(&mut shared),
                    false => session.upstream_failed(Failure::Timeout, &mut shared),
                }
            }
            continue;
        }
        match asked.next() {
            Some(piece) if session.connection().wants_input() => {
                session.receive(piece, &mut shared)
            }
            Some(_) => panic!("it is stuck"),
            None => {
                session.end_of_input();
                drain(&mut session, &mut shared, step, &mut out);
                if session.connection().end() != End::Open {
                    return out;
                }
                assert!(session.wants_upstream().is_some(), "it is stuck at the end");
            }
        }
    }
    panic!("it goes on and on");
}

/// Texts of requests and responses, and fragments that break them.
const WORDS: &[&str] = &[
    "GET",
    "HEAD",
    "POST",
    "OPTIONS",
    "CONNECT",
    " ",
    "/",
    "/a",
    "http://h/b",
    "HTTP/1.1",
    "HTTP/1.0",
    "\r\n",
    "\r\n\r\n",
    "Host: x\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "hello",
    "200 OK",
    "304 x",
    "100 Continue",
    "204 x",
    "500 x",
    "ETag: \"e\"\r\n",
    "Cache-Control: max-age=60\r\n",
    "Cache-Control: no-cache\r\n",
    "If-None-Match: \"e\"\r\n",
    "Range: bytes=0-1\r\n",
    "Connection: close\r\n",
    "Expect: 100-continue\r\n",
    "Vary: Host\r\n",
    "\n",
    "\0",
    "x",
    "GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 304 x\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
];

fn sentence(words: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for &word in words {
        let word = WORDS[usize::from(word) % WORDS.len()];
        text.extend_from_slice(word.as_bytes());
    }
    text
}

#[test]
fn whatever_both_sides_send_is_survived_however_it_is_cut() {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<u8>, bool, u8)>()
        .with_test_time(TIME)
        .for_each(|(asked, answer, closes, step)| {
            let (asked, answer) = (sentence(asked), sentence(answer));
            let whole = converse(&asked, &answer, *closes, usize::MAX >> 1);
            let step = usize::from(*step % 16) + 1;
            let cut = converse(&asked, &answer, *closes, step);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            // The division of chunks follows that of the input; all else is the same.
            if !text(&whole[0]).contains("chunked") && !text(&cut[0]).contains("chunked") {
                assert_eq!(text(&whole[0]), text(&cut[0]));
            }
        });
}

#[test]
fn random_bytes_are_survived() {
    bolero::check!()
        .with_type::<(Vec<u8>, Vec<u8>, bool, u8)>()
        .with_test_time(TIME)
        .for_each(|(asked, answer, closes, step)| {
            let mut request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
            request.extend_from_slice(asked);
            converse(&request, answer, *closes, usize::from(*step) + 1);
            let mut response = b"HTTP/1.1 200 OK\r\n".to_vec();
            response.extend_from_slice(answer);
            converse(&request, &response, *closes, usize::from(*step) + 1);
        });
}

#[test]
fn the_parser_of_responses_says_the_same_however_they_are_cut() {
    bolero::check!()
        .with_type::<(Vec<u8>, bool)>()
        .with_test_time(TIME)
        .for_each(|(words, to_head)| {
            let bytes = sentence(words);
            let look = |bytes: &[u8], scanned: &mut usize| {
                let mut room = [const { std::mem::MaybeUninit::uninit() }; FIELDS_MAX];
                match parse(bytes, scanned, &mut room, 512, *to_head) {
                    Parsed::Partial => None,
                    Parsed::Bad => Some(None),
                    Parsed::Complete(head, length) => {
                        assert!(length <= bytes.len());
                        assert!((100..=599).contains(&head.status));
                        Some(Some((head.status, head.body, length)))
                    }
                }
            };
            let whole = look(&bytes, &mut 0);
            let mut scanned = 0;
            let grown = (0..=bytes.len()).find_map(|end| look(&bytes[..end], &mut scanned));
            match (&whole, &grown) {
                // A head is whole as soon as its end has come.
                (Some(Some(whole)), Some(Some(grown))) => assert_eq!(whole, grown),
                (Some(Some(_)), other) | (None, other @ Some(Some(_))) => {
                    panic!("{whole:?} {other:?}")
                }
                _ => {}
            }
        });
}

#[test]
fn bodies_end_where_they_end_however_they_are_cut() {
    bolero::check!()
        .with_type::<(Vec<u8>, u8)>()
        .with_test_time(TIME)
        .for_each(|(words, step)| {
            let bytes = sentence(words);
            let decode = |step: usize| {
                let (mut body, mut content, mut total) = (Body::chunked(), Vec::new(), 0);
                for mut piece in bytes.chunks(step) {
                    loop {
                        let Ok(taken) = body.take(piece) else {
                            return Err(());
                        };
                        assert!(taken.used <= piece.len() && taken.content.end <= taken.used);
                        content.extend_from_slice(&piece[taken.content.clone()]);
                        total += taken.used;
                        piece = &piece[taken.used..];
                        if taken.used == 0 {
                            break;
                        }
                    }
                }
                Ok((content, total, body.is_complete()))
            };
            assert_eq!(decode(usize::from(*step) + 1), decode(bytes.len().max(1)));
        });
}
