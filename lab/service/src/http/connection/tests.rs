use std::net::Ipv4Addr;

use super::super::site::Clock;
use super::*;

/// Answers each request with this many bytes.
struct Answering(usize);

impl Answers for Answering {
    fn respond(site: &mut Site<Self>, connection: &mut Connection, head: &Head<'_, '_>) {
        match head.target {
            "/later" => connection.hold(),
            _ => connection.out().extend(vec![b'x'; site.store.0]),
        }
    }

    fn refuse(_: &mut Site<Self>, _: &mut Connection, status: Status) {
        panic!("{status:?}");
    }
}

fn answering(length: usize) -> (Connection, Site<Answering>) {
    let connection = Connection::new(Ipv4Addr::LOCALHOST.into(), Duration::ZERO);
    let clock = Clock::new(Duration::ZERO, 0);
    (
        connection,
        Site::new(Answering(length), clock, Limits::default()),
    )
}

/// It always has requests waiting and never reads all of the answers.
#[test]
fn a_peer_that_asks_faster_than_it_reads_takes_no_more_memory() {
    let (mut connection, mut site) = answering(1000);
    let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    for _ in 0..10_000 {
        if connection.has_work() {
            connection.resume(&mut site);
        } else if connection.wants_input() {
            connection.receive(&requests, &mut site);
        }
        connection.sent(1000, Duration::ZERO, &site.limits);
        assert!(connection.is_sending());
    }
    let most = 4 * OUTPUT_FULL;
    let capacity = connection.output.capacity();
    assert!(capacity <= most, "{capacity} bytes for 10,000 answers");
}

/// It has asked for more than buffers hold, reads a byte now and then, and keeps asking.
#[test]
fn a_peer_that_takes_a_byte_now_and_then_is_let_go() {
    let (mut connection, mut site) = answering(100_000);
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    connection.receive(request, &mut site);
    connection.sent(50_000, Duration::ZERO, &site.limits);
    let mut now = Duration::ZERO;
    while connection.end() == End::Open {
        now += Duration::from_secs(20);
        assert!(now < Duration::from_secs(100), "it goes on and on");
        connection.sent(1, now, &site.limits);
        connection.receive(b"G", &mut site);
        connection.sent(0, now, &site.limits);
        site.clock.set(now, 0);
        connection.expire(&mut site);
    }
    assert_eq!(connection.end(), End::Close);
}

#[test]
fn what_was_answered_before_the_end_is_sent_before_it() {
    let (mut connection, mut site) = answering(5);
    let both = "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n";
    for target in ["", "later"] {
        connection.receive(both.replace("{}", target).as_bytes(), &mut site);
    }
    connection.abort();
    assert_eq!(connection.end(), End::Open);
    assert!(matches!(
        connection.output(),
        Output::Bytes {
            bytes: b"xxxxx",
            ..
        }
    ));
    connection.sent(5, Duration::ZERO, &site.limits);
    assert_eq!(connection.end(), End::Shutdown);
    assert!(!connection.wants_input() && !connection.has_work());
}
