//! Clients that send or read as slowly as they can, and the resources that they occupy
//! meanwhile. A client's connection without sockets, with a simulated clock.

use std::net::{IpAddr, Ipv4Addr};

use tidewall_service::http::ClientConnection;
use tidewall_service::http::connection::{End, Output};
use tidewall_service::http::proxy::UpstreamLimits;
use tidewall_service::http::proxy::session::{Session, Shared};
use tidewall_service::http::site::Clock;

use super::*;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ORIGIN: SocketAddr = SocketAddr::new(PEER, 80);

/// A client of a proxy with these limits.
struct Client {
    shared: Shared,
    session: Session,
}

impl Client {
    fn new(upstream: UpstreamLimits) -> Self {
        let spec = Spec {
            upstream,
            ..Spec::new(0, Some(ORIGIN))
        };
        Client {
            shared: Shared::forwarding(spec, Clock::new(Duration::ZERO, 784_111_999), 7),
            session: Session::new(PEER, Duration::ZERO),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.session.receive(bytes, &mut self.shared);
    }

    /// Sends the head of a request with this many bytes of content.
    fn post(&mut self, length: usize, fields: &str) {
        let head =
            format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {length}\r\n\r\n");
        self.send(head.as_bytes());
    }

    fn wants_upstream(&self) -> bool {
        self.session.wants_upstream().is_some()
    }

    /// Assigns it a connection to the origin, which accepts everything.
    fn pass_on(&mut self) -> String {
        assert!(self.wants_upstream());
        self.session.connecting();
        self.session.connected(self.shared.clock.now());
        self.taken()
    }

    /// Returns the bytes that the origin accepts.
    fn taken(&mut self) -> String {
        let mut all = Vec::new();
        loop {
            let bytes = self.session.upstream_output().0.to_vec();
            if bytes.is_empty() {
                return String::from_utf8(all).unwrap();
            }
            self.session.upstream_sent(bytes.len(), &self.shared);
            all.extend(bytes);
        }
    }

    /// Advances the time to the next deadline, at most by `most`.
    fn wait(&mut self, most: Duration) {
        let due = self.session.deadline(&self.shared);
        let now = self.shared.clock.now();
        self.shared
            .clock
            .set(due.min(now.saturating_add(most)), 784_111_999);
        self.session.expire(&mut self.shared);
    }

    fn answer(&self) -> &str {
        match self.session.connection().output() {
            Output::Bytes { bytes, .. } => std::str::from_utf8(bytes).unwrap(),
            _ => "",
        }
    }
}

#[test]
fn content_is_collected_before_the_origin_is_asked() {
    let mut client = Client::new(UpstreamLimits::default());
    client.post(900, "");
    for _ in 0..899 {
        client.send(b"x");
        assert!(!client.wants_upstream());
    }
    client.send(b"x");
    let all = client.pass_on();
    assert!(all.ends_with(&"x".repeat(900)), "{all}");
}

#[test]
fn memory_for_what_is_collected_is_bounded() {
    let mut client = Client::new(UpstreamLimits {
        buffered_bytes: 1000,
        ..UpstreamLimits::default()
    });
    // As much again for each: finished memory is returned.
    for _ in 0..3 {
        client.post(1000, "");
        client.send(&[b'x'; 1000]);
        client.pass_on();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        client.session.upstream_receive(answer, &mut client.shared);
        assert!(client.answer().starts_with("HTTP/1.1 200 OK"));
        let length = client.answer().len();
        let limits = client.shared.limits;
        let connection = client.session.connection_mut();
        connection.sent(length, Duration::ZERO, &limits);
        client.session.take_finished();
    }
    client.post(2000, "");
    client.send(&[b'x'; 1001]);
    assert!(client.answer().starts_with("HTTP/1.1 503 "));
}

#[test]
fn more_content_than_one_request_may_have_is_refused() {
    for fields in ["Content-Length: 1000000000", "Transfer-Encoding: chunked"] {
        let mut client = Client::new(UpstreamLimits::default());
        client.shared.limits.content_bytes = 1000;
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
        client.send(head.as_bytes());
        client.send(b"800\r\n");
        client.send(&[b'x'; 1001]);
        assert!(client.answer().starts_with("HTTP/1.1 413 "), "{fields}");
    }
}

#[test]
fn who_waits_for_a_word_before_sending_gets_it() {
    let mut client = Client::new(UpstreamLimits::default());
    client.post(900, "Expect: 100-continue\r\n");
    assert!(client.answer().starts_with("HTTP/1.1 100 "));
    assert!(!client.wants_upstream());
    client.send(&[b'x'; 900]);
    assert!(!client.pass_on().contains("Expect"));
}

/// One byte at regular intervals.
#[test]
fn a_post_that_drips_is_ended() {
    let mut client = Client::new(UpstreamLimits::default());
    client.post(1_000_000, "");
    while client.answer().is_empty() {
        client.send(b"x");
        assert!(!client.wants_upstream());
        client.wait(Duration::from_secs(25));
        let spent = client.shared.clock.now();
        assert!(spent < Duration::from_secs(100), "it goes on and on");
    }
    assert!(client.answer().starts_with("HTTP/1.1 408 "));
}

#[test]
fn a_post_at_the_least_rate_is_not() {
    let mut client = Client::new(UpstreamLimits::default());
    client.post(1_000_000, "");
    for _ in 0..99 {
        client.send(&[b'x'; 10_000]);
        client.wait(Duration::from_secs(20));
    }
    assert_eq!(client.answer(), "");
    client.send(&[b'x'; 10_000]);
    assert!(client.pass_on().ends_with(&"x".repeat(1_000_000)));
}

#[test]
fn an_origin_that_takes_nothing_is_given_up() {
    let mut client = Client::new(UpstreamLimits::default());
    client.post(1000, "");
    client.send(&[b'x'; 1000]);
    client.session.connecting();
    client.session.connected(Duration::ZERO);
    client.wait(Duration::MAX);
    assert_eq!(client.shared.clock.now(), Duration::from_secs(30));
    assert!(client.answer().starts_with("HTTP/1.1 504 "));
}

#[test]
fn a_reader_that_drips_is_ended() {
    let mut client = Client::new(UpstreamLimits::default());
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    client.pass_on();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    client.session.upstream_receive(answer, &mut client.shared);
    let begun = client.shared.clock.now();
    while client.session.connection().end() == End::Open {
        while client.session.upstream_wants_input() {
            let piece = [b'x'; 16_384];
            client.session.upstream_receive(&piece, &mut client.shared);
        }
        let (now, limits) = (client.shared.clock.now(), client.shared.limits);
        client.session.connection_mut().sent(1, now, &limits);
        client.wait(Duration::from_secs(25));
        let spent = client.shared.clock.now() - begun;
        assert!(spent < Duration::from_secs(100), "it goes on and on");
    }
}
