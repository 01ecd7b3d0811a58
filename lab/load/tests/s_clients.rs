//! S-clients over loopback, without any privilege, at small rates.

mod server;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use server::{Accepting, Behaviour, FREELY, Server};
use tidewall_load::{LoadSpec, SClientReport, SClientSpec, run, run_until};

fn load(to: SocketAddr, change: impl FnOnce(&mut SClientSpec)) -> LoadSpec {
    let mut spec = SClientSpec::new(to, "/doc", 200);
    (spec.connect_timeout, spec.timeout) = (Duration::from_millis(50), Duration::from_millis(50));
    spec.sources = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
    change(&mut spec);
    let mut load = LoadSpec::new(Duration::from_millis(300));
    load.s_clients = Some(spec);
    load
}

fn against(behaviour: Behaviour, change: impl FnOnce(&mut SClientSpec)) -> SClientReport {
    let server = Server::start(behaviour, FREELY);
    let report = run(&load(server.address, change), |_| ()).unwrap();
    let report = report.s_clients.unwrap();
    let counts = report.whole;
    assert_eq!(
        counts.offered,
        counts.begun + counts.skipped + counts.no_room
    );
    assert_eq!(
        counts.begun,
        counts.ended() + report.unfinished,
        "{report:?}"
    );
    assert!(counts.offered <= 60, "200/s for 300 ms: {report:?}");
    assert!(counts.begun >= 3, "{report:?}");
    report
}

#[test]
fn each_connection_brings_one_response() {
    let report = against(Behaviour::Answer(1259), |_| ());
    let counts = report.measured;
    assert!(counts.responses > 5, "{report:?}");
    assert_eq!(
        counts.responses,
        counts.connected - report.unfinished,
        "{report:?}"
    );
    let (raw, corrected) = (
        report.response.raw.unwrap(),
        report.response.corrected.unwrap(),
    );
    assert_eq!(raw.summary.samples, counts.responses);
    assert_eq!(corrected.summary.samples, counts.responses);
    assert!(corrected.summary.max >= raw.summary.max);
    assert!(report.connect.unwrap().summary.samples >= counts.responses);
}

#[test]
fn another_status_is_counted_apart() {
    let counts = against(Behaviour::NotFound, |_| ()).whole;
    assert!(
        counts.other_status > 5 && counts.responses == 0,
        "{counts:?}"
    );
}

#[test]
fn servers_that_close_reset_or_answer_nonsense_are_distinguished() {
    for behaviour in [Behaviour::Close, Behaviour::Reset, Behaviour::Refuse] {
        let counts = against(behaviour, |_| ()).whole;
        assert!(
            counts.failed + counts.refused > 5 && counts.responses == 0,
            "{behaviour:?} {counts:?}"
        );
    }
    let counts = against(Behaviour::Garbage, |_| ()).whole;
    assert!(counts.malformed > 5 && counts.failed == 0, "{counts:?}");
}

#[test]
fn a_response_that_does_not_come_whole_in_time_is_given_up() {
    for behaviour in [Behaviour::Silence, Behaviour::Stall] {
        let counts = against(behaviour, |_| ()).whole;
        assert!(
            counts.timeouts > 5 && counts.responses == 0,
            "{behaviour:?} {counts:?}"
        );
    }
}

#[test]
fn a_server_that_never_closes_keeps_no_port() {
    let report = against(Behaviour::Linger, |_| ());
    assert!(
        report.whole.responses > 5 && report.whole.failed == 0,
        "{report:?}"
    );
}

#[test]
fn nobody_there_is_refused() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let report = run(&load(closed, |_| ()), |_| ())
        .unwrap()
        .s_clients
        .unwrap();
    let counts = report.whole;
    assert!(counts.refused > 5 && counts.connected == 0, "{report:?}");
    assert_eq!(
        counts.begun,
        counts.refused + report.unfinished,
        "{report:?}"
    );
}

#[test]
fn what_cannot_be_begun_is_this_side_s_fault() {
    // An address that this host does not have.
    let report = against(Behaviour::Answer(1), |spec| {
        spec.sources = vec!["192.0.2.1".parse().unwrap()];
    });
    assert_eq!(report.whole.begun, report.whole.local_errors);
    assert!(report.local_error.is_some(), "{report:?}");
}

#[test]
fn a_full_queue_is_given_up_after_t_and_the_rate_kept() {
    // One connection per second, one waiting: Linux does not answer what it cannot queue.
    let slow = Accepting {
        rate: 1,
        backlog: 1,
    };
    let server = Server::start(Behaviour::Answer(10), slow);
    let load = load(server.address, |spec| {
        spec.connect_timeout = Duration::from_millis(20)
    });
    let report = run(&load, |_| ()).unwrap().s_clients.unwrap();
    let counts = report.whole;
    assert!(counts.gave_up > counts.connected, "{report:?}");
    assert_eq!(
        counts.begun,
        counts.ended() + report.unfinished,
        "{report:?}"
    );
    assert_eq!(counts.local_errors + counts.no_room, 0, "{report:?}");
}

#[test]
fn a_limit_of_open_connections_is_kept() {
    let report = against(Behaviour::Silence, |spec| {
        spec.open_max = Some(3);
        spec.timeout = Duration::from_secs(5);
    });
    let counts = report.whole;
    assert_eq!((counts.connected, report.unfinished), (3, 3), "{report:?}");
    assert!(counts.no_room > 5, "{report:?}");
}

#[test]
fn a_proxy_is_asked_in_the_absolute_form() {
    let server = Server::start(Behaviour::Answer(10), FREELY);
    let load = load(server.address, |spec| {
        (spec.host, spec.proxy) = (Some("origin.test:81".into()), true);
    });
    run(&load, |_| ()).unwrap();
    let request = server.last_request();
    assert!(
        request.starts_with("GET http://origin.test:81/doc HTTP/1.1\r\nHost: origin.test:81\r\n"),
        "{request}"
    );
    assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
}

#[test]
fn a_run_ends_when_asked_to_and_reports_what_it_has() {
    let server = Server::start(Behaviour::Answer(10), FREELY);
    let mut load = load(server.address, |_| ());
    load.duration = Duration::from_secs(600);
    let stop = AtomicBool::new(false);
    let mut seen = 0;
    let report = run_until(&load, &stop, |progress| {
        seen += progress.s_clients.unwrap().responses;
        stop.store(seen > 20, Ordering::Relaxed);
    })
    .unwrap();
    assert!(report.stopped);
    let counts = report.s_clients.unwrap().measured;
    assert!(counts.responses >= seen, "{counts:?}");
}
