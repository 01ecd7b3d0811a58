//! The loads over TCP, over loopback and without any privilege, against small
//! servers of these tests' own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidewall_load::{
    HttpSpec, IdleSpec, LoadReport, LoadSpec, ProbeSpec, Reuse, StreamKind, StreamSpec, Wait, run,
};

/// Answers each request with `answer` of its number, one thread per connection; closes if
/// the request says so.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

type Answer = fn(u64) -> String;

impl Server {
    fn start(answer: Answer) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            over: Arc::default(),
        };
        let (connections, over) = (server.connections.clone(), server.over.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || serve(stream.unwrap(), answer));
            }
        });
        server
    }

    fn load(&self, change: impl FnOnce(&mut LoadSpec, SocketAddr)) -> LoadReport {
        let mut spec = LoadSpec::new(Duration::from_millis(300));
        change(&mut spec, self.address);
        run(&spec, |_| ()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, answer: Answer) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let mut number = 0;
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        request.extend_from_slice(&buffer[..count]);
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
        assert!(
            text.starts_with("GET /doc HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{text}"
        );
        if stream.write_all(answer(number).as_bytes()).is_err() || text.contains("close") {
            return;
        }
        number += 1;
    }
}

fn document(_: u64) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 1300\r\n\r\n{}",
        "x".repeat(1300)
    )
}

fn client(server: SocketAddr, change: impl FnOnce(&mut HttpSpec)) -> Option<HttpSpec> {
    let mut spec = HttpSpec::new(server, "/doc");
    spec.connections = 4;
    change(&mut spec);
    Some(spec)
}

#[test]
fn connections_are_kept_or_made_anew() {
    let server = Server::start(document);
    for wait in [Wait::Spin, Wait::Block] {
        let report = server.load(|load, to| load.http = client(to, |http| http.wait = wait));
        let http = report.http.unwrap();
        let (counts, latency) = (http.measured, http.latency.unwrap());
        assert!(counts.responses > 100, "{http:?}");
        assert_eq!(latency.samples, counts.responses);
        let times = http.response.clone();
        let (raw, corrected) = (times.raw.unwrap(), times.corrected.unwrap());
        assert_eq!(raw.summary, latency);
        assert!(corrected.summary.samples >= latency.samples);
        assert_eq!((counts.connects, counts.connected), (4, 4), "{http:?}");
        assert_eq!(
            (counts.failed, counts.timeouts, counts.other_status),
            (0, 0, 0)
        );
        assert!(counts.requests - counts.responses <= 4, "{http:?}");
    }
    let before = server.connections.load(Ordering::Relaxed);
    let report = server.load(|load, to| {
        load.http = client(to, |http| {
            http.reuse = Reuse::OneRequest;
            http.sources = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
        });
    });
    let http = report.http.unwrap();
    let counts = http.measured;
    assert!(counts.responses > 20, "{http:?}");
    assert!(counts.connects - counts.responses <= 4, "{http:?}");
    assert_eq!((counts.failed, counts.connect_failures), (0, 0), "{http:?}");
    assert!(http.connect.unwrap().samples >= counts.responses);
    let made = server.connections.load(Ordering::Relaxed) - before;
    // The one that polls the device.
    assert!(made <= counts.connects + 1, "{made} {http:?}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_counts_the_waiting() {
    let server = Server::start(document);
    for reuse in [Reuse::KeepAlive, Reuse::OneRequest] {
        let report = server.load(|load, to| {
            load.http = client(to, |http| (http.rate, http.reuse) = (Some(500), reuse));
        });
        let http = report.http.unwrap();
        // A busy machine may delay it by more than 300 ms.
        let due = http.duration.as_millis() as u64 / 2 + 1;
        let counts = http.measured;
        assert!((20..=due).contains(&counts.requests), "{http:?}");
        assert!(counts.responses + 4 >= counts.requests, "{http:?}");
        let raw = http.response.raw.as_ref().unwrap().summary;
        assert_eq!(raw.samples, counts.responses);
        assert!(raw.max <= http.latency.unwrap().max, "{http:?}");
    }
    // One connection, 2 ms per response: of 1,000/s half can be answered, and the last
    // have waited half the time.
    let slow = Server::start(|_| {
        thread::sleep(Duration::from_millis(2));
        document(0)
    });
    let report = slow.load(|load, to| {
        load.http = client(to, |http| (http.rate, http.connections) = (Some(1000), 1));
    });
    let http = report.http.unwrap();
    assert!(http.measured.responses <= 150, "{http:?}");
    assert!(http.latency.unwrap().max > 50_000_000, "{http:?}");
}

#[test]
fn every_way_to_fail_has_a_count() {
    let missing = Server::start(|number| {
        if number % 2 == 0 {
            "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno".into()
        } else {
            "nonsense\r\n\r\n".into()
        }
    });
    let http = missing
        .load(|load, to| load.http = client(to, |_| ()))
        .http
        .unwrap();
    let counts = http.measured;
    assert!(counts.other_status > 10 && counts.failed > 10, "{http:?}");
    assert_eq!((counts.responses, http.latency), (0, None), "{http:?}");
    // A connection with an invalid answer is abandoned.
    assert!(counts.connects > 10, "{http:?}");

    let silent = Server::start(|_| String::new());
    let http = silent
        .load(|load, to| {
            load.http = client(to, |http| http.timeout = Duration::from_millis(50));
        })
        .http
        .unwrap();
    assert!((12..=24).contains(&http.measured.timeouts), "{http:?}");

    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut load = LoadSpec::new(Duration::from_millis(100));
    load.http = client(closed, |http| http.wait = Wait::Block);
    let http = run(&load, |_| ()).unwrap().http.unwrap();
    assert!(http.measured.connect_failures > 10, "{http:?}");
    // It pauses in between.
    assert!(http.measured.connect_failures <= 4 * 101, "{http:?}");
    load.http = client(closed, |_| ());
    let error = run(&load, |_| ()).unwrap_err().to_string();
    assert!(error.contains("cannot connect to 127.0.0.1"), "{error}");
}

#[test]
fn new_clients_are_all_judged() {
    let server = Server::start(document);
    let report = server.load(|load, to| {
        load.warm_up = Duration::from_millis(50);
        load.duration = Duration::from_millis(400);
        let mut probe = ProbeSpec::new(to, "/doc");
        (probe.rate, probe.timeout) = (100, Duration::from_millis(200));
        load.probe = Some(probe);
    });
    let probe = report.probe.unwrap();
    // As many as begin before the last 200 ms.
    assert!((18..=20).contains(&probe.begun), "{probe:?}");
    assert_eq!(
        (probe.connected, probe.answered),
        (probe.begun, probe.begun),
        "{probe:?}"
    );
    assert!(probe.connect.unwrap().max < 200_000_000);
}

#[test]
fn idle_connections_are_opened_kept_and_counted() {
    let server = Server::start(document);
    let report = server.load(|load, to| {
        let mut idle = IdleSpec::new(to, 300);
        idle.path = "/doc".into();
        idle.sources = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
        load.idle = Some(idle);
        load.http = client(to, |_| ());
    });
    let idle = report.idle.unwrap();
    assert_eq!((idle.opened, idle.kept), (300, 300), "{idle:?}");
    assert!(report.http.unwrap().measured.responses > 100);

    // A server that closes after each response keeps none.
    let closing = Server::start(|_| "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".into());
    let report = closing.load(|load, to| {
        load.idle = Some(IdleSpec {
            path: "/doc".into(),
            open_timeout: Duration::from_millis(200),
            ..IdleSpec::new(to, 3)
        });
    });
    assert_eq!(report.idle.unwrap().opened, 0);
}

#[test]
fn a_stream_is_echoed_or_swallowed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for echoes in [true, true, false] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut buffer = [0; 65536];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if echoes && stream.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            }
        });
        let load = |kind, size| {
            let mut load = LoadSpec::new(Duration::from_millis(200));
            load.stream = Some(StreamSpec::new(address, kind, size));
            run(&load, |_| ()).unwrap().stream.unwrap()
        };
        for size in [1, 20_000] {
            let echo = load(StreamKind::Echo, size);
            let samples = echo.latency.unwrap().samples;
            assert!(samples > 20, "{echo:?}");
            assert!(echo.bytes / u64::from(size) - samples <= 1, "{echo:?}");
        }
        let bulk = load(StreamKind::Bulk, 32_768);
        assert!(bulk.rate > 1e6 && bulk.latency.is_none(), "{bulk:?}");
    });
}
