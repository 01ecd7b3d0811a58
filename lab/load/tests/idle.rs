//! Load-adding clients over loopback, without any privilege.

mod server;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use server::{Behaviour, FREELY, Server};
use tidewall_load::{Habit, IdleReport, IdleSpec, LoadSpec, Phase, run, run_until};

const MANY: u32 = 20;

fn load(server: &Server, change: impl FnOnce(&mut IdleSpec)) -> LoadSpec {
    let mut spec = IdleSpec::new(server.address, MANY);
    spec.sources = vec!["127.0.0.3".parse().unwrap()];
    spec.open_timeout = Duration::from_millis(300);
    spec.every = Duration::from_millis(10);
    change(&mut spec);
    let mut load = LoadSpec::new(Duration::from_millis(300));
    load.idle = Some(spec);
    load
}

fn against(behaviour: Behaviour, change: impl FnOnce(&mut IdleSpec)) -> IdleReport {
    let server = Server::start(behaviour, FREELY);
    let report = run(&load(&server, change), |_| ()).unwrap().idle.unwrap();
    let counts = report.counts;
    assert_eq!(u64::from(report.kept), counts.open(), "{report:?}");
    let under_way = counts.begun - counts.opened - counts.failed - counts.timed_out;
    assert!(under_way <= u64::from(MANY), "{report:?}");
    report
}

#[test]
fn those_that_send_nothing_are_kept() {
    let report = against(Behaviour::Silence, |_| ());
    assert_eq!((report.opened, report.kept), (MANY, MANY), "{report:?}");
    assert_eq!(report.counts.begun, u64::from(MANY));
    assert_eq!((report.counts.bytes_sent, report.counts.bytes_read), (0, 0));
}

#[test]
fn one_response_can_come_first() {
    let report = against(Behaviour::Keep(1300), |spec| spec.path = "/doc".into());
    assert_eq!((report.opened, report.kept), (MANY, MANY), "{report:?}");
    // A server that closes after it keeps none, one that never answers has none.
    let report = against(Behaviour::Answer(10), |spec| spec.path = "/doc".into());
    assert_eq!(report.kept, 0, "{report:?}");
    assert!(
        report.counts.closed + report.counts.failed >= u64::from(MANY),
        "{report:?}"
    );
    for behaviour in [Behaviour::Close, Behaviour::Garbage, Behaviour::Reset] {
        let report = against(behaviour, |spec| spec.path = "/doc".into());
        assert!(report.counts.failed > 0, "{behaviour:?} {report:?}");
        assert_eq!(report.kept, 0, "{behaviour:?} {report:?}");
    }
    let report = against(Behaviour::Stall, |spec| spec.path = "/doc".into());
    assert_eq!(
        (report.opened, report.counts.timed_out),
        (0, u64::from(MANY))
    );
}

#[test]
fn a_trickle_sends_byte_after_byte_and_no_request() {
    // It would be answered if it were one.
    let report = against(Behaviour::Close, |spec| {
        (spec.habit, spec.path) = (Habit::Trickle, "/".into());
        spec.every = Duration::from_millis(1);
    });
    assert_eq!((report.opened, report.kept), (MANY, MANY), "{report:?}");
    assert!(report.counts.bytes_sent > u64::from(MANY), "{report:?}");
    assert!(
        report.counts.bytes_sent <= 301 * u64::from(MANY),
        "{report:?}"
    );
}

#[test]
fn one_that_sips_reads_byte_after_byte_and_asks_again() {
    let server = Server::start(Behaviour::Keep(10), FREELY);
    let load = load(&server, |spec| {
        (spec.habit, spec.path) = (Habit::Sip, "/doc".into());
        (spec.every, spec.connections) = (Duration::from_millis(1), 1);
    });
    let report = run(&load, |_| ()).unwrap().idle.unwrap();
    assert_eq!((report.opened, report.kept), (1, 1), "{report:?}");
    // More than one response of 50 bytes, and none faster than it may.
    assert!((51..=301).contains(&report.counts.bytes_read), "{report:?}");
    assert!(server.last_request().starts_with("GET /doc HTTP/1.1\r\n"));
}

#[test]
fn those_that_the_server_ends_are_counted_and_replaced_if_wanted() {
    let report = against(Behaviour::Refuse, |_| ());
    let counts = report.counts;
    assert_eq!(report.kept, 0, "{report:?}");
    assert!(
        counts.closed + counts.reset >= u64::from(MANY),
        "{report:?}"
    );
    let report = against(Behaviour::Refuse, |spec| {
        (spec.replace, spec.pace) = (true, Some(100));
    });
    let counts = report.counts;
    assert!(counts.closed + counts.reset > 5, "{report:?}");
    // 300 ms and what 20 take for opening, and 300 ms, at 100/s, with 10 ms of
    // catching up each.
    assert!(
        counts.begun <= 85 && counts.begun > counts.open(),
        "{report:?}"
    );
}

#[test]
fn they_are_opened_no_faster_than_asked_for() {
    let report = against(Behaviour::Silence, |spec| {
        (spec.connections, spec.pace) = (11, Some(50));
    });
    assert_eq!(report.opened, 11, "{report:?}");
    // Ten gaps of 20 ms, and 10 ms that may be caught up.
    assert!(report.opening_ms >= 190, "{report:?}");
}

#[test]
fn nobody_there_leaves_none() {
    let mut server = Server::start(Behaviour::Silence, FREELY);
    server.address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let report = run(&load(&server, |_| ()), |_| ()).unwrap().idle.unwrap();
    assert_eq!((report.opened, report.kept), (0, 0));
    assert!(report.counts.failed > 10, "{report:?}");
    // It pauses in between.
    assert!(report.counts.failed <= 20 * 301, "{report:?}");
}

#[test]
fn opening_is_reported_and_can_be_stopped() {
    let server = Server::start(Behaviour::Silence, FREELY);
    let load = load(&server, |spec| {
        (spec.connections, spec.pace) = (10_000, Some(100));
    });
    let stop = AtomicBool::new(false);
    let mut opened = 0;
    let report = run_until(&load, &stop, |progress| {
        assert_eq!(progress.phase, Phase::Opening);
        opened += progress.idle.unwrap().opened;
        stop.store(true, Ordering::Relaxed);
    })
    .unwrap();
    assert!(report.stopped && opened > 0);
    let idle = report.idle.unwrap();
    assert!(u64::from(idle.kept) >= opened, "{idle:?}");
    assert!(idle.kept < 1_000, "{idle:?}");
}
