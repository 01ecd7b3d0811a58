//! The web server on Linux sockets over loopback, against plain clients.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LOCAL, Running, Start, ask, get, is_closed, path, response, running, text};
use tidewall_service::Counters;
use tidewall_service::http::{self, Limits, Log, Spec};
use tidewall_service::linux_stream::{LinuxStreams, Options};

/// Longer than any buffer between server and client.
const LARGE: usize = 24 * 1024 * 1024;

/// A directory of its own to serve, removed again.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = path("http");
        fs::create_dir_all(path.join("root/sub")).unwrap();
        let place = Place(path);
        fs::write(place.file("index.html"), "<p>front").unwrap();
        fs::write(place.file("sub/index.html"), "<p>sub").unwrap();
        fs::write(place.file("a.txt"), text(1300)).unwrap();
        fs::write(place.file("medium.bin"), text(60_000)).unwrap();
        fs::write(place.file("empty"), "").unwrap();
        fs::write(place.0.join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret", place.file("link")).unwrap();
        place
    }

    fn large(&self) {
        fs::write(self.file("large.bin"), text(LARGE)).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join("root").join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Serves `place` while `during` runs.
fn serving(
    place: &Place,
    options: Options,
    limits: Limits,
    log: Option<Log>,
    during: impl FnOnce(&Running<'_>),
) {
    let spec = Spec {
        root: place.0.join("root"),
        port: 0,
        work: 10,
        limits,
    };
    let serve = |start: &Start<'_>| {
        let host = LinuxStreams::new(options).unwrap();
        let (counters, stop) = (start.counters, start.stop);
        http::serve(&host, LOCAL, &spec, log, counters, stop, start.ready())
    };
    let within = limits.grace + Duration::from_secs(2);
    running(1, within, serve, during);
}

fn plainly(during: impl FnOnce(&Place, &Running<'_>)) {
    let place = Place::new();
    serving(
        &place,
        Options::default(),
        Limits::default(),
        None,
        |running| during(&place, running),
    );
}

#[test]
fn one_connection_brings_many_files() {
    plainly(|_, server| {
        let mut stream = server.connect();
        for (target, status, kind, body) in [
            ("/", 200, "text/html", b"<p>front".to_vec()),
            ("/sub/", 200, "text/html", b"<p>sub".to_vec()),
            ("/a.txt?x", 200, "text/plain", text(1300)),
            ("/medium.bin", 200, "application/octet-stream", text(60_000)),
            ("/empty", 200, "application/octet-stream", Vec::new()),
            (
                "/none",
                404,
                "text/plain; charset=utf-8",
                b"404 Not Found\n".to_vec(),
            ),
            (
                "/link",
                404,
                "text/plain; charset=utf-8",
                b"404 Not Found\n".to_vec(),
            ),
            (
                "/../secret",
                400,
                "text/plain; charset=utf-8",
                b"400 Bad Request\n".to_vec(),
            ),
        ] {
            let got = get(&mut stream, target, "");
            assert_eq!(got.status, status, "{target}");
            assert_eq!(got.field("Content-Type"), Some(kind), "{target}");
            assert_eq!(got.body, body, "{target}");
            assert!(got.field("Date").is_some_and(|date| date.ends_with("GMT")));
        }
        let moved = get(&mut stream, "/sub", "");
        assert_eq!(
            (moved.status, moved.field("Location")),
            (301, Some("/sub/"))
        );
        let head = ask(&mut stream, "HEAD /a.txt HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(head.field("Content-Length"), Some("1300"));
        let post = ask(
            &mut stream,
            "POST /a.txt HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde",
        );
        assert_eq!(
            (post.status, post.field("Allow")),
            (405, Some("GET, HEAD, OPTIONS"))
        );
        let counts = server.service();
        assert_eq!((counts.received, counts.replies), (11, 11));
        assert_eq!((counts.connections, counts.open, counts.errors), (1, 1, 0));
        assert!(counts.sent > 62_000 && counts.bytes > 200);
    });
}

#[test]
fn conditions_and_ranges() {
    plainly(|place, server| {
        let mut stream = server.connect();
        let whole = get(&mut stream, "/a.txt", "");
        let tag = whole.field("ETag").unwrap().to_owned();
        let date = whole.field("Last-Modified").unwrap().to_owned();
        let got = get(&mut stream, "/a.txt", &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((got.status, got.field("ETag")), (304, Some(&*tag)));
        let got = get(
            &mut stream,
            "/a.txt",
            &format!("If-Modified-Since: {date}\r\n"),
        );
        assert_eq!(got.status, 304);
        let got = get(&mut stream, "/a.txt", "If-Match: \"x\"\r\n");
        assert_eq!(got.status, 412);
        let got = get(&mut stream, "/a.txt", "Range: bytes=100-199\r\n");
        assert_eq!(got.status, 206);
        assert_eq!(got.field("Content-Range"), Some("bytes 100-199/1300"));
        assert_eq!(got.body, text(1300)[100..200]);
        let got = get(&mut stream, "/a.txt", "Range: bytes=1300-\r\n");
        assert_eq!(
            (got.status, got.field("Content-Range")),
            (416, Some("bytes */1300"))
        );
        let got = get(
            &mut stream,
            "/a.txt",
            "Range: bytes=0-0\r\nIf-Range: \"x\"\r\n",
        );
        assert_eq!((got.status, got.body.len()), (200, 1300));
        let got = get(&mut stream, "/a.txt", "Range: bytes=0-9,500-509\r\n");
        // Several are answered in full.
        assert_eq!((got.status, got.body), (200, text(1300)));
        place.large();
        let got = get(
            &mut stream,
            "/large.bin",
            "Range: bytes=20000000-20100000\r\n",
        );
        assert_eq!(got.body, text(LARGE)[20_000_000..=20_100_000]);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    plainly(|place, server| {
        place.large();
        let mut stream = server.connect();
        let mut requests = String::new();
        for number in 0..300 {
            let target = if number % 100 == 50 {
                "/large.bin"
            } else {
                "/a.txt"
            };
            requests += &format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        let mut reading = stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || stream.write_all(requests.as_bytes()).unwrap());
            for number in 0..300 {
                let got = response(&mut reading, true).unwrap();
                let length = if number % 100 == 50 { LARGE } else { 1300 };
                assert_eq!(got.body.len(), length, "{number}");
                assert!(got.body == text(length), "{number}");
            }
        });
    });
}

#[test]
fn bytes_may_come_one_by_one_and_end_early() {
    plainly(|_, server| {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        for byte in b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        assert_eq!(response(&mut stream, true).unwrap().body.len(), 1300);
        // A client that closes its side first receives the answers to its requests.
        let mut stream = server.connect();
        stream
            .write_all(b"GET /medium.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(response(&mut stream, true).unwrap().body, text(60_000));
        assert!(is_closed(&mut stream));
    });
}

#[test]
fn connections_end_when_they_are_to() {
    plainly(|_, server| {
        for (request, last) in [
            ("GET /a.txt HTTP/1.0\r\n\r\n", true),
            (
                "GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                false,
            ),
            (
                "GET /a.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                true,
            ),
            ("GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n", false),
        ] {
            let mut stream = server.connect();
            let got = ask(&mut stream, request);
            assert_eq!(got.body.len(), 1300);
            if last {
                assert_eq!(got.field("Connection"), Some("close"), "{request}");
                assert!(is_closed(&mut stream), "{request}");
            } else {
                assert_ne!(got.field("Connection"), Some("close"), "{request}");
                assert_eq!(ask(&mut stream, request).status, 200, "{request}");
            }
        }
        // Bytes behind a rejected request do not cost the client the answer.
        for (request, status) in [
            (format!("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{}", "x".repeat(900_000)), 413),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(500_000)), 414),
            (format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(500_000)), 431),
            ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n".into(), 200),
            ("nonsense\r\n\r\n".into(), 400),
        ] {
            let mut stream = server.connect();
            let mut writing = stream.try_clone().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || writing.write_all(request.as_bytes()));
                let got = response(&mut stream, true).unwrap();
                assert_eq!((got.status, got.field("Connection")), (status, Some("close")));
                assert!(is_closed(&mut stream));
            });
        }
    });
}

#[test]
fn slow_and_idle_clients_are_let_go() {
    let limits = Limits {
        request: Duration::from_millis(600),
        idle: Duration::from_millis(1200),
        ..Limits::default()
    };
    let place = Place::new();
    serving(&place, Options::default(), limits, None, |server| {
        let mut silent = server.connect();
        let mut slow = server.connect();
        let mut idle = server.connect();
        assert_eq!(get(&mut idle, "/", "").status, 200);
        // Further bytes do not gain it time.
        let begun = Instant::now();
        let mut dripping = slow.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for byte in b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: yes yes yes yes yes yes"
                    .iter()
                    .cycle()
                {
                    if dripping.write_all(&[*byte]).is_err()
                        || begun.elapsed() > Duration::from_secs(8)
                    {
                        break;
                    }
                    thread::park_timeout(Duration::from_millis(50));
                }
            });
            assert_eq!(response(&mut slow, true).unwrap().status, 408);
            assert!(begun.elapsed() < Duration::from_secs(4));
            slow.shutdown(Shutdown::Both).unwrap();
        });
        assert!(
            is_closed(&mut silent),
            "without a word, to one that said none"
        );
        assert!(is_closed(&mut idle));
        assert_eq!(get(&mut server.connect(), "/", "").status, 200);
    });
}

#[test]
fn idle_connections_make_room_when_there_are_too_many() {
    let limits = Limits {
        connections: 8,
        ..Limits::default()
    };
    let place = Place::new();
    serving(&place, Options::default(), limits, None, |server| {
        let mut idle: Vec<TcpStream> = (0..8)
            .map(|_| {
                let mut stream = server.connect();
                assert_eq!(get(&mut stream, "/", "").status, 200);
                stream
            })
            .collect();
        let mut ninth = server.connect();
        assert_eq!(get(&mut ninth, "/", "").status, 200);
        assert!(server.service().open <= 8);
        let closed = idle
            .iter_mut()
            .map(|stream| {
                stream
                    .set_read_timeout(Some(Duration::from_millis(50)))
                    .unwrap();
                is_closed(stream)
            })
            .filter(|&closed| closed)
            .count();
        assert_eq!(closed, 1);
    });
}

#[test]
fn stopping_finishes_the_responses_at_hand() {
    let place = Place::new();
    place.large();
    serving(
        &place,
        Options::default(),
        Limits::default(),
        None,
        |server| {
            let mut idle = server.connect();
            assert_eq!(get(&mut idle, "/", "").status, 200);
            let mut busy = server.connect();
            busy.write_all(b"GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            let mut first = [0; 100];
            busy.read_exact(&mut first).unwrap();
            let mut partial = server.connect();
            assert_eq!(get(&mut partial, "/", "").status, 200);
            let before = server.service().bytes;
            let part = b"GET / HTTP/1.1\r\n";
            partial.write_all(part).unwrap();
            server.until("part of it has come", |_, reader| {
                reader.read()[0].bytes == before + part.len() as u64
            });
            server.stop.store(true, Ordering::Relaxed);
            assert!(is_closed(&mut idle));
            assert!(
                TcpStream::connect(server.address).is_err(),
                "nobody listens"
            );
            partial.write_all(b"Host: x\r\n\r\n").unwrap();
            let got = response(&mut partial, true).unwrap();
            assert_eq!((got.status, got.field("Connection")), (200, Some("close")));
            let mut rest = Vec::new();
            busy.read_to_end(&mut rest).unwrap();
            assert!(rest.ends_with(&text(LARGE)[LARGE - 1000..]));
            let head = first.len() + rest.len() - LARGE;
            assert!((100..1000).contains(&head), "all of it came");
        },
    );
}

#[test]
fn deferred_accept_serves_the_same() {
    let options = Options {
        defer_accept: true,
        ..Options::default()
    };
    let place = Place::new();
    let log = place.0.join("log");
    let file = fs::File::create(&log).unwrap();
    serving(
        &place,
        options,
        Limits::default(),
        Some(Log::new(file).unwrap()),
        |server| {
            for _ in 0..10 {
                let mut stream = server.connect();
                assert_eq!(
                    get(&mut stream, "/a.txt", "Connection: close\r\n").status,
                    200
                );
                assert!(is_closed(&mut stream));
            }
        },
    );
    let lines = fs::read_to_string(&log).unwrap();
    assert_eq!(lines.lines().count(), 10);
    for line in lines.lines() {
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(line.ends_with("\"GET /a.txt HTTP/1.1\" 200 1300"), "{line}");
    }
}

#[test]
fn a_port_in_use_and_a_missing_root_are_named() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind((LOCAL, 0)).unwrap();
    let counters = Counters::create(place.0.join("counters"), 1).unwrap();
    let host = LinuxStreams::new(Options::default()).unwrap();
    let begin = |root: &Path| {
        let spec = Spec {
            root: root.to_owned(),
            port: taken.local_addr().unwrap().port(),
            work: 0,
            limits: Limits::default(),
        };
        let stop = AtomicBool::new(false);
        http::serve(&host, LOCAL, &spec, None, &counters, &stop, |_| {
            panic!("it cannot be ready")
        })
        .unwrap_err()
    };
    let error = begin(&place.0);
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("127.0.0.1:"), "{error}");
    let error = begin(Path::new("/none-such"));
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("/none-such"), "{error}");
}

/// Runs a program; `None`, with a report, if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program}: {text}\n{errors}");
            Some(text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed (scripts/setup.sh)");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn curl_resumes_and_revalidates() {
    plainly(|place, server| {
        place.large();
        let to = place.0.join("fetched");
        let to = to.to_str().unwrap();
        let url = server.url("/large.bin");
        let tags = place.0.join("tags");
        let tags = tags.to_str().unwrap();
        if run("curl", &["-sSf", "-r", "0-9999", "-o", to, &url]).is_none() {
            return;
        }
        run("curl", &["-sSf", "-C", "-", "-o", to, &url]);
        assert!(fs::read(to).unwrap() == text(LARGE));
        let small = server.url("/a.txt");
        run("curl", &["-sSf", "--etag-save", tags, "-o", to, &small]);
        let format = [
            "-sSf",
            "--etag-compare",
            tags,
            "-w",
            "%{http_code}",
            "-o",
            to,
        ];
        let code = run("curl", &[&format[..], &[&small]].concat()).unwrap();
        assert_eq!(code, "304");
        let expect = [
            "-sS",
            "-H",
            "Expect: 100-continue",
            "-d",
            "x",
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
        ];
        assert_eq!(
            run("curl", &[&expect[..], &[&small]].concat()).unwrap(),
            "405"
        );
    });
}

#[test]
fn load_generators_find_nothing_wrong() {
    plainly(|_, server| {
        let url = server.url("/a.txt");
        if let Some(text) = run("wrk", &["-t1", "-c16", "-d1s", &url]) {
            assert!(
                !text.contains("Non-2xx") && !text.contains("Socket errors"),
                "{text}"
            );
            assert!(text.contains("requests in"), "{text}");
        }
        for options in [&["-q", "-n500", "-c8"][..], &["-q", "-k", "-n500", "-c8"]] {
            if let Some(text) = run("ab", &[options, &[&url]].concat()) {
                assert!(text.contains("Complete requests:      500"), "{text}");
                assert!(text.contains("Failed requests:        0"), "{text}");
            }
        }
        if let Some(text) = run("h2load", &["--h1", "-n500", "-c8", "-m4", &url]) {
            assert!(
                text.contains("500 succeeded, 0 failed, 0 errored, 0 timeout"),
                "{text}"
            );
        }
    });
}
