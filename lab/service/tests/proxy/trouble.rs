//! Slow, broken and absent origins; clients that disconnect.

use std::net::TcpListener;

use tidewall_service::http::Limits;
use tidewall_service::http::proxy::UpstreamLimits;

use super::origin::{Origin, reply};
use super::*;

/// Longer than any buffer between origin, proxy and client.
const LARGE: usize = 24 * 1024 * 1024;

fn status_from(origin: &Origin) -> u16 {
    let mut status = 0;
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        status = get(&mut stream, "/", "").status;
        // The client's connection is unaffected.
        assert_eq!(get(&mut stream, "/", "").status, status);
        proxy.until("counts", |uses, _| {
            uses.upstream_errors == 2 && uses.upstream_open == 0
        });
    });
    status
}

#[test]
fn an_origin_that_makes_no_sense_is_a_bad_gateway() {
    for reply in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA",
        "",
    ] {
        let origin = Origin::new(move |_, stream| {
            let _ = stream.write_all(reply.as_bytes());
            false
        });
        assert_eq!(status_from(&origin), 502, "{reply:?}");
    }
    let long = Origin::saying(format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(100_000)));
    assert_eq!(status_from(&long), 502);
}

#[test]
fn an_absent_origin_is_a_bad_gateway() {
    // A port that was just released has no listener.
    let address = TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap();
    proxying(&Spec::new(0, Some(address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").status, 502);
        assert_eq!(get(&mut stream, "/", "").status, 502);
    });
}

#[test]
fn a_slow_origin_is_waited_for_so_long() {
    let silent = Origin::new(|_, stream| stream.read(&mut [0]).is_ok_and(|count| count > 0));
    let upstream = UpstreamLimits {
        answer: Duration::from_millis(300),
        ..UpstreamLimits::default()
    };
    let spec = Spec {
        upstream,
        ..Spec::new(0, Some(silent.address))
    };
    proxying(&spec, |proxy| {
        let begun = Instant::now();
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").status, 504);
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert!(begun.elapsed() < Duration::from_secs(4));
        proxy.until("counts", |uses, _| {
            uses.upstream_errors == 1 && uses.upstream_open == 0
        });
    });
    // If it stops in the middle, the client sees that the answer is incomplete.
    let half = Origin::new(|_, stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"e\"\r\n\r\nhalf");
        stream.read(&mut [0]).is_ok_and(|count| count > 0)
    });
    let spec = Spec {
        origin: Some(half.address),
        ..spec
    };
    proxying(&spec, |proxy| {
        let mut stream = proxy.connect();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert!(response(&mut stream, true).is_err());
    });
}

#[test]
fn a_response_larger_than_any_buffer_passes_through() {
    let origin = Origin::new(|asked, stream| {
        // With a length, and to the end of the connection.
        let head = match asked.path() {
            "/length" => format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"),
            _ => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        };
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&text(LARGE));
        false
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for target in ["/length", "/end"] {
            let got = get(&mut stream, target, "");
            assert!(got.body == text(LARGE), "{target}: every byte in its place");
        }
    });
}

#[test]
fn a_slow_reader_holds_the_origin_back_and_nobody_else() {
    let origin = Origin::new(|asked, stream| {
        let length = if asked.path() == "/large" { LARGE } else { 10 };
        stream
            .write_all(&reply("200 OK", "", &text(length)))
            .is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut slow = proxy.connect();
        slow.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut taken = vec![0; 1000];
        slow.read_exact(&mut taken).unwrap();
        let mut other = proxy.connect();
        for _ in 0..20 {
            assert_eq!(get(&mut other, "/small", "").body, text(10));
        }
        let through = proxy.proxy().upstream_bytes;
        assert!(through < LARGE as u64, "{through}: it was not held back");
        let mut rest = Vec::new();
        slow.shutdown(std::net::Shutdown::Write).unwrap();
        slow.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(&text(LARGE)[LARGE - 1000..]));
    });
}

#[test]
fn a_client_that_goes_away_takes_its_exchange_with_it() {
    let origin = Origin::new(|asked, stream| match asked.path() {
        "/large" => stream.write_all(&reply("200 OK", "", &text(LARGE))).is_ok(),
        _ => stream.read(&mut [0]).is_ok_and(|count| count > 0),
    });
    let upstream = UpstreamLimits {
        answer: Duration::from_millis(500),
        ..UpstreamLimits::default()
    };
    let spec = Spec {
        upstream,
        ..Spec::new(0, Some(origin.address))
    };
    proxying(&spec, |proxy| {
        let gone = |uses: &ProxyCounts, reader: &Reader| {
            uses.upstream_open == 0 && reader.read()[0].open == 0
        };
        let mut stream = proxy.connect();
        stream
            .write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        // Closing with unread data resets the connection.
        drop(stream);
        proxy.until("a reset is seen at once", gone);
        // An end does not: it may concern only the client's side. So the exchange has its
        // time.
        let mut stream = proxy.connect();
        stream
            .write_all(b"GET /silent HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        proxy.until("asked", |uses, _| uses.upstream_open == 1);
        drop(stream);
        proxy.until("gone with the exchange", gone);
    });
}

#[test]
fn an_upload_that_nobody_wants_ends_early() {
    let origin = Origin::saying(reply("200 OK", "", b"no"));
    let limits = Limits {
        content_bytes: 1000,
        ..Limits::default()
    };
    let spec = Spec {
        limits,
        ..Spec::new(0, Some(origin.address))
    };
    proxying(&spec, |proxy| {
        for (head, status) in [
            ("Content-Length: 1001\r\n\r\nabc", 413),
            ("Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        ] {
            let mut stream = proxy.connect();
            let got = ask(&mut stream, &format!("PUT / HTTP/1.1\r\nHost: x\r\n{head}"));
            assert_eq!(got.status, status, "{head}");
            assert_eq!(got.field("Connection"), Some("close"), "{head}");
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{head}");
        }
        assert_eq!(origin.connections(), 0);
    });
}

#[test]
fn idle_connections_are_let_go_in_time() {
    let origin = Origin::saying(reply("200 OK", "", b"x"));
    let spec = Spec {
        limits: Limits {
            idle: Duration::from_millis(400),
            request: Duration::from_millis(400),
            ..Limits::default()
        },
        ..Spec::new(0, Some(origin.address))
    };
    proxying(&spec, |proxy| {
        let mut slow = proxy.connect();
        slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").status, 200);
        assert_eq!(response(&mut slow, true).unwrap().status, 408);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn answers_at_hand_are_finished_before_it_stops() {
    finishes(epoll);
}

/// On any host.
pub fn finishes<H: StreamHost>(host: impl FnOnce() -> H + Send) {
    let (ask_now, asked) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let origin = Origin::new(move |_, stream| {
        ask_now.send(()).unwrap();
        may_go.lock().unwrap().recv().unwrap();
        stream.write_all(&reply("200 OK", "", b"late")).is_ok()
    });
    proxying_on(host, &Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        let mut idle = proxy.connect();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        asked.recv_timeout(Duration::from_secs(5)).unwrap();
        proxy.stop.store(true, Ordering::Relaxed);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        // It continues to wait, without its listener, for a few turns.
        let turns = proxy.counts.iterations();
        proxy.until("turns", |_, reader| reader.iterations() > turns + 1);
        go.send(()).unwrap();
        let got = response(&mut stream, true).unwrap();
        assert_eq!(
            (got.body.as_slice(), got.field("Connection")),
            (&b"late"[..], Some("close"))
        );
    });
}

#[test]
fn a_complete_answer_is_not_lost_with_the_next() {
    let origin = Origin::new(|asked, stream| match asked.path() {
        "/good" => stream.write_all(&reply("200 OK", "", b"good")).is_ok(),
        _ => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
            false
        }
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/good", "").body, b"good");
        let both =
            ["/good", "/bad"].map(|target| format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
        stream.write_all(both.concat().as_bytes()).unwrap();
        assert_eq!(response(&mut stream, true).unwrap().body, b"good");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8(rest).unwrap();
        assert!(rest.contains("Content-Length: 9\r\n"), "{rest}");
        assert!(rest.ends_with("half"), "all that there was: {rest}");
    });
    // Nor does a request that its client gives up.
    let origin = Origin::new(move |asked, stream| match asked.path() {
        "/good" => stream.write_all(&reply("200 OK", "", b"good")).is_ok(),
        path => panic!("{path} is not complete"),
    });
    for expect in ["", "Expect: 100-continue\r\n"] {
        proxying(&Spec::new(0, Some(origin.address)), |proxy| {
            let mut stream = proxy.connect();
            assert_eq!(get(&mut stream, "/good", "").body, b"good");
            let both = format!(
                "GET /good HTTP/1.1\r\nHost: x\r\n\r\n\
                 POST / HTTP/1.1\r\nHost: x\r\n{expect}Content-Length: 9\r\n\r\nhalf"
            );
            stream.write_all(both.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(response(&mut stream, true).unwrap().body, b"good");
            if !expect.is_empty() {
                assert_eq!(response(&mut stream, true).unwrap().status, 100);
            }
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            proxy.until("closed", |uses, reader| {
                uses.upstream_open == 0 && reader.read()[0].open == 0
            });
        });
    }
}
