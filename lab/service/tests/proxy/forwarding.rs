//! Messages on their way through.

use std::fs;
use std::net::Shutdown;
use std::path::Path;

use tidewall_service::http::{self, Limits};

use super::common::{Start, chunked, path, running};
use super::origin::{Origin, reply};
use super::*;

/// The web server of this crate, as an origin, while `during` runs.
fn with_web_server(during: impl FnOnce(SocketAddr, &Path)) {
    let root = path("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a.txt"), text(1259)).unwrap();
    fs::write(root.join("b.txt"), text(100_000)).unwrap();
    let spec = http::Spec {
        root: root.clone(),
        port: 0,
        work: 0,
        limits: Limits::default(),
    };
    let serve = |start: &Start<'_>| {
        let (counters, stop) = (start.counters, start.stop);
        http::serve(&epoll(), LOCAL, &spec, None, counters, stop, start.ready())
    };
    let within = spec.limits.grace + Duration::from_secs(2);
    running(1, within, serve, |web| during(web.address, &root));
    let _ = fs::remove_dir_all(root);
}

/// The same story on any host.
pub fn curl_through<H: StreamHost>(host: impl FnOnce() -> H + Send) {
    with_web_server(|origin, root| {
        proxying_on(host, &forward(), |proxy| {
            let url = format!("http://{origin}/a.txt");
            for _ in 0..3 {
                assert_eq!(proxy.curl(&[&url]), (0, text(1259)));
            }
            proxy.until("counts", |uses, _| uses.upstream_connections == 3);
            let large = format!("http://{origin}/b.txt");
            for _ in 0..2 {
                assert_eq!(proxy.curl(&[&large]), (0, text(100_000)));
            }
            // Several over one connection.
            let many = proxy.curl(&[&url, &large, &url]);
            assert_eq!(many, (0, [text(1259), text(100_000), text(1259)].concat()));
            let (code, head) = proxy.curl(&["-I", &url]);
            assert_eq!(code, 0);
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains("Content-Length: 1259\r\n"), "{head}");
            fs::write(root.join("a.txt"), "changed").unwrap();
            // The web server checks a file again after a second.
            let deadline = Instant::now() + Duration::from_secs(5);
            while proxy.curl(&[&url]) != (0, b"changed".to_vec()) {
                assert!(Instant::now() < deadline, "the old version goes on");
            }
            let (_, missing) = proxy.curl(&["-w", "%{http_code}", &format!("http://{origin}/x")]);
            assert!(missing.ends_with(b"404"));
        });
    });
}

/// Content that no buffer holds, both ways, on any host.
pub fn answers_large_and_small<H: StreamHost>(host: impl FnOnce() -> H + Send) {
    const LARGE: usize = 8 * 1024 * 1024;
    let origin = Origin::new(|asked, stream| {
        let length = asked.field("Content-Length").unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        let length: usize = asked.path()[1..].parse().unwrap();
        body == text(body.len())
            && stream
                .write_all(&reply("200 OK", "", &text(length)))
                .is_ok()
    });
    proxying_on(host, &Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for (sent, wanted) in [(0, 0), (0, LARGE), (LARGE, 10), (1, 100_000)] {
            let head =
                format!("POST /{wanted} HTTP/1.1\r\nHost: x\r\nContent-Length: {sent}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&text(sent)).unwrap();
            let got = response(&mut stream, true).unwrap();
            assert!(got.body == text(wanted), "{sent} {wanted}");
        }
    });
}

#[test]
fn curl_goes_through() {
    curl_through(epoll);
}

#[test]
fn names_are_resolved() {
    with_web_server(|origin, _| {
        proxying(&forward(), |proxy| {
            let url = format!("http://localhost:{}/a.txt", origin.port());
            assert_eq!(proxy.curl(&[&url]), (0, text(1259)));
            assert_eq!(proxy.curl(&[&url]), (0, text(1259)));
            let (_, none) = proxy.curl(&["-w", "%{http_code}", "http://none.invalid/"]);
            assert!(none.ends_with(b"502"), "{}", String::from_utf8_lossy(&none));
        });
    });
}

#[test]
fn a_neighbours_fields_go_no_further() {
    let origin = Origin::saying(reply(
        "200 OK",
        "Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-End: 2\r\n\
         Proxy-Authenticate: Basic\r\nVia: 1.0 inner\r\n",
        b"x",
    ));
    proxying(&forward(), |proxy| {
        let mut stream = proxy.connect();
        let got = get(
            &mut stream,
            &origin.url("/p?q"),
            "Connection: keep-alive, x-mine\r\nX-Mine: 1\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic x\r\nTE: trailers\r\nUpgrade: h2c\r\nX-End: 2\r\n\
             Via: 1.1 outer\r\n",
        );
        for name in ["X-Hop", "Keep-Alive", "Proxy-Authenticate", "Connection"] {
            assert_eq!(got.field(name), None, "{}", got.head);
        }
        assert_eq!(got.field("X-End"), Some("2"));
        assert!(
            got.head
                .contains("\r\nVia: 1.0 inner\r\nVia: 1.1 tidewall-"),
            "{}",
            got.head
        );
        assert!(got.field("Date").is_some(), "{}", got.head);
        let heads = origin.heads();
        let asked = heads[0].to_ascii_lowercase();
        assert!(asked.starts_with("get /p?q http/1.1\r\n"), "{asked}");
        let host = format!("\r\nhost: {}\r\n", origin.address);
        assert!(asked.contains(&host), "not the client's: {asked}");
        for name in [
            "x-mine",
            "proxy-",
            "te:",
            "upgrade",
            "connection: keep-alive",
        ] {
            assert!(!asked.contains(&format!("\r\n{name}")), "{asked}");
        }
        assert!(asked.contains("\r\nx-end: 2\r\n"), "{asked}");
        assert!(
            asked.contains("\r\nvia: 1.1 outer\r\nvia: 1.1 tidewall-"),
            "{asked}"
        );
    });
}

#[test]
fn chunks_of_the_origin() {
    let origin = Origin::saying(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;x=y\r\nhello\r\n7\r\n, world\r\n0\r\nTrailer: no\r\n\r\n",
    );
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        let first = get(&mut stream, "/", "");
        assert_eq!(first.field("Transfer-Encoding"), Some("chunked"));
        assert_eq!(first.body, b"hello, world");
        let mut old = proxy.connect();
        let got = ask(&mut old, "GET /other HTTP/1.0\r\n\r\n");
        assert_eq!(got.field("Transfer-Encoding"), None);
        assert_eq!(got.body, b"hello, world", "to the end of the connection");
        let heads = origin.heads();
        assert!(
            heads
                .iter()
                .all(|head| head.contains("\r\nConnection: close\r\n"))
        );
        assert_eq!(origin.connections(), 2, "one for each request");
    });
}

#[test]
fn an_origin_of_http_1_0() {
    let origin = Origin::new(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.0 200 Fine\r\nETag: \"e\"\r\n\r\nuntil the end");
        false
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for target in ["/a", "/b"] {
            let got = get(&mut stream, target, "");
            assert_eq!(got.body, b"until the end");
            assert!(
                got.head.starts_with("HTTP/1.1 200 Fine\r\n"),
                "{}",
                got.head
            );
        }
        assert_eq!(origin.connections(), 2);
    });
}

#[test]
fn content_of_clients_goes_through() {
    // It reports how much arrived, and in what form.
    let origin = Origin::new(|asked, stream| {
        let _ = stream.write_all(b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n");
        let mut body = Vec::new();
        if let Some(length) = asked.field("Content-Length") {
            body.resize(length.parse().unwrap(), 0);
            stream.read_exact(&mut body).unwrap();
        } else if asked.field("Transfer-Encoding").is_some() {
            body = chunked(stream).unwrap();
        }
        let good = body == text(body.len());
        let said = format!("{} {good}", body.len());
        stream
            .write_all(&reply("200 OK", "", said.as_bytes()))
            .is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for length in [0usize, 1, 1000, 300_000] {
            let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&text(length)).unwrap();
            let early = response(&mut stream, true).unwrap();
            assert_eq!((early.status, early.field("X")), (103, Some("y")));
            let got = response(&mut stream, true).unwrap();
            assert_eq!(got.body, format!("{length} true").as_bytes());
        }
        let mut chunked =
            b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in text(100_000).chunks(777) {
            chunked.extend_from_slice(format!("{:x};a\r\n", piece.len()).as_bytes());
            chunked.extend_from_slice(piece);
            chunked.extend_from_slice(b"\r\n");
        }
        chunked.extend_from_slice(b"0\r\nT: u\r\n\r\n");
        stream.write_all(&chunked).unwrap();
        assert_eq!(response(&mut stream, true).unwrap().status, 103);
        assert_eq!(response(&mut stream, true).unwrap().body, b"100000 true");
        let expecting =
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
        let interim = ask(&mut stream, expecting);
        assert_eq!(interim.status, 100);
        stream.write_all(&text(3)).unwrap();
        assert_eq!(response(&mut stream, true).unwrap().status, 103);
        assert_eq!(response(&mut stream, true).unwrap().body, b"3 true");
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::new(|asked, stream| {
        let body = [asked.path().as_bytes(), &text(40_000)].concat();
        stream.write_all(&reply("200 OK", "", &body)).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        let order: Vec<usize> = (0..60).map(|n| n * 7 % 10).collect();
        let requests: String = order
            .iter()
            .map(|n| format!("GET /{n} HTTP/1.1\r\nHost: x\r\n\r\n"))
            .collect();
        stream.write_all(requests.as_bytes()).unwrap();
        // A client that ends its side still receives the answers to its requests.
        stream.shutdown(Shutdown::Write).unwrap();
        for n in order {
            let got = response(&mut stream, true).unwrap();
            assert!(got.body.starts_with(format!("/{n}").as_bytes()), "{n}");
            assert_eq!(got.body.len(), 40_002);
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        assert_eq!(origin.heads().len(), 60);
    });
}

#[test]
fn what_is_not_for_a_proxy_is_refused() {
    let origin = Origin::saying(reply("200 OK", "", b"x"));
    proxying(&forward(), |proxy| {
        let url = origin.url("/");
        let seen = get(&mut proxy.connect(), &url, "");
        let own = seen.field("Via").unwrap().to_owned();
        for (request, status) in [
            ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 501),
            (format!("TRACE {url} HTTP/1.1\r\nHost: a\r\n\r\n"), 405),
            ("GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 501),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
            (
                "GET http://127.0.0.1:25/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
                403,
            ),
            (
                format!("GET {url} HTTP/1.1\r\nHost: a\r\nVia: {own}\r\n\r\n"),
                508,
            ),
            (
                format!("OPTIONS {url} HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n"),
                204,
            ),
            (
                format!("OPTIONS {url} HTTP/1.1\r\nHost: a\r\nMax-Forwards: 2\r\n\r\n"),
                200,
            ),
            (
                format!("GET {url} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
                400,
            ),
        ] {
            let got = ask(&mut proxy.connect(), &request);
            assert_eq!(got.status, status, "{request}");
        }
        let heads = origin.heads();
        assert_eq!(heads.len(), 2);
        assert!(heads[1].contains("\r\nMax-Forwards: 1\r\n"), "{}", heads[1]);
    });
}
