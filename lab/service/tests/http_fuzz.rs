//! A connection of the web server against a random peer.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use tidewall_service::http::Limits;
use tidewall_service::http::connection::{Connection, End, Output};
use tidewall_service::http::entry::{Bytes, Entry};
use tidewall_service::http::site::{Clock, Found, Site, Store};

/// Time for random inputs in an ordinary test run.
const TIME: Duration = Duration::from_millis(1500);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Two files; any other is missing.
struct Memory {
    small: Rc<Entry>,
    large: Rc<Entry>,
}

impl Memory {
    fn new() -> Self {
        let entry = |length: usize| {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let modified = Duration::from_secs(784_111_777);
            let kind = "text/plain".to_owned();
            let bytes = Bytes::Memory(bytes.into());
            Rc::new(Entry::new(
                bytes,
                length as u64,
                7,
                modified,
                784_111_800,
                kind,
            ))
        };
        Memory {
            small: entry(100),
            large: entry(40_000),
        }
    }
}

impl Store for Memory {
    fn find(&mut self, path: &[u8], _clock: &Clock) -> Found {
        assert!(!path.contains(&0), "no NUL");
        assert!(path.split(|&b| b == b'/').all(|s| s != b".." && s != b"."));
        match path {
            b"" | b"d" => Found::Directory,
            b"index.html" | b"a" => Found::Entry(self.small.clone()),
            b"b" => Found::Entry(self.large.clone()),
            _ => Found::Missing,
        }
    }
}

fn site() -> Site<Memory> {
    let limits = Limits {
        head_bytes: 512,
        target_bytes: 64,
        content_bytes: 256,
        ..Limits::default()
    };
    Site::new(
        Memory::new(),
        Clock::new(Duration::ZERO, 784_111_999),
        limits,
    )
}

/// Takes all output, `step` bytes at a time.
fn drain(connection: &mut Connection, site: &mut Site<Memory>, step: usize, sent: &mut Vec<u8>) {
    loop {
        match connection.output() {
            Output::Nothing if connection.has_work() => connection.resume(site),
            Output::Nothing => return,
            Output::Bytes { bytes, .. } => {
                assert!(!bytes.is_empty(), "nothing to send is Nothing");
                let count = bytes.len().min(step);
                sent.extend_from_slice(&bytes[..count]);
                connection.sent(count, site.clock.now(), &site.limits);
            }
            Output::File { .. } => panic!("there are no files"),
        }
    }
}

/// Feeds `bytes` in pieces of `step`; returns the output, and how it ended.
fn converse(bytes: &[u8], step: usize) -> (Vec<u8>, End) {
    let mut site = site();
    let mut connection = Connection::new(PEER, Duration::ZERO);
    let mut sent = Vec::new();
    for piece in bytes.chunks(step) {
        drain(&mut connection, &mut site, step, &mut sent);
        if !connection.wants_input() {
            assert_ne!(connection.end(), End::Open, "it is stuck");
            break;
        }
        connection.receive(piece, &mut site);
    }
    drain(&mut connection, &mut site, step, &mut sent);
    let end = connection.end();
    if end == End::Open {
        // Whatever the input, it is over within the limits of time.
        site.clock.set(Duration::from_secs(3600), 784_115_599);
        connection.expire(&mut site);
        let mut last = Vec::new();
        drain(&mut connection, &mut site, step, &mut last);
        assert_ne!(connection.end(), End::Open);
    }
    assert!(site.counts.refused <= 1, "nothing is read after a refusal");
    (sent, end)
}

/// Checks that `sent` is a sequence of whole responses; returns their number. As HEAD is
/// among the requests, content may be missing.
fn responses(sent: &[u8]) -> usize {
    let mut rest = sent;
    let mut count = 0;
    while !rest.is_empty() {
        assert!(
            rest.starts_with(b"HTTP/1.1 "),
            "{:?}",
            String::from_utf8_lossy(rest)
        );
        let end = rest
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a whole head");
        let head = std::str::from_utf8(&rest[..end]).expect("text");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
        rest = &rest[end + 4..];
        count += 1;
        if length > 0 && !rest.starts_with(b"HTTP/1.1 ") && !rest.is_empty() {
            rest = rest.get(length..).expect("all of the content");
        }
    }
    count
}

/// Assembles requests, since random bytes hardly ever make one: each byte selects a
/// fragment.
fn assembled(bytes: &[u8]) -> Vec<u8> {
    const FRAGMENTS: [&str; 32] = [
        "GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /b HTTP/1.1\r\nHost: x\r\n\r\n",
        "HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /d HTTP/1.1\r\nHost: x\r\n",
        "GET ",
        "POST ",
        "HEAD ",
        "OPTIONS * ",
        "/a",
        "/b",
        "/%2e./",
        "/..",
        "?q",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: x\r\n",
        "\r\n",
        "\n",
        "\r\n\r\n",
        "Range: bytes=0-9,500-600,-5\r\n",
        "Range: bytes=-1\r\n",
        "If-None-Match: *\r\n",
        "If-None-Match: \"7-64-",
        "If-Range: \"x\"\r\n",
        "Content-Length: 9\r\n",
        "Content-Length: 300\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive\r\n",
        "Expect: 100-continue\r\n",
        "X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n",
        "\u{0}\u{7f}",
    ];
    let fragment = |byte: u8| FRAGMENTS[usize::from(byte) % FRAGMENTS.len()].as_bytes();
    bytes
        .iter()
        .flat_map(|&byte| fragment(byte))
        .copied()
        .collect()
}

#[test]
fn fuzz_connection() {
    let target = bolero::check!().with_test_time(TIME);
    target.for_each(|bytes: &[u8]| {
        for bytes in [bytes.to_vec(), assembled(bytes)] {
            let whole = converse(&bytes, usize::MAX);
            responses(&whole.0);
            // The division of the bytes does not affect the answers.
            for step in [1, 7, 1000] {
                let cut = converse(&bytes, step);
                assert!(cut.0 == whole.0, "in pieces of {step}");
                assert_eq!(
                    cut.1 == End::Open,
                    whole.1 == End::Open,
                    "in pieces of {step}"
                );
            }
        }
    });
}

#[test]
fn a_burst_is_answered_in_turns() {
    let request = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n".as_slice();
    let (sent, end) = converse(&request.repeat(500), 16 * 1024);
    assert_eq!((responses(&sent), end), (500, End::Open));
    assert!(sent.len() > 500 * 40_000);
}

#[test]
fn an_idle_connection_keeps_no_memory() {
    let mut site = site();
    let mut connection = Connection::new(PEER, Duration::ZERO);
    assert!(
        size_of::<Connection>() <= 256,
        "{}",
        size_of::<Connection>()
    );
    let mut memory = Vec::with_capacity(4096);
    connection.lend(&mut memory);
    assert_eq!(memory.capacity(), 0);
    connection.receive(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", &mut site);
    assert!(connection.is_sending() && !connection.is_idle());
    drain(&mut connection, &mut site, usize::MAX, &mut Vec::new());
    connection.give_back(&mut memory);
    assert!(memory.capacity() >= 4096 && connection.is_idle());
}
