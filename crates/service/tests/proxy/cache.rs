//! What is kept, confirmed, replaced and forgotten.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tidewall_service::http::proxy::Revalidate;

use super::origin::{Origin, reply};
use super::*;

const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// An origin with one document, whose version the test sets: without a
/// lifetime, with both validators.
fn versioned() -> (Origin, Arc<AtomicUsize>) {
    let version = Arc::new(AtomicUsize::new(1));
    let shown = version.clone();
    let origin = Origin::new(move |asked, stream| {
        let tag = format!("\"v{}\"", shown.load(Ordering::Relaxed));
        let fields = format!("ETag: {tag}\r\nLast-Modified: {MODIFIED}\r\nServer: o\r\n");
        let answer = match asked.field("If-None-Match") {
            Some(known) if known == tag => format!("HTTP/1.1 304 x\r\n{fields}\r\n").into_bytes(),
            _ => reply("200 OK", &fields, format!("body of {tag}").as_bytes()),
        };
        stream.write_all(&answer).is_ok()
    });
    (origin, version)
}

#[test]
fn each_use_without_a_lifetime_is_confirmed() {
    let (origin, version) = versioned();
    proxying(&forward(), |proxy| {
        let mut stream = proxy.connect();
        let first = get(&mut stream, &origin.url("/a"), "");
        assert_eq!(
            (first.status, first.body.as_slice()),
            (200, &b"body of \"v1\""[..])
        );
        assert_eq!(first.field("Age"), None, "it comes from the origin");
        for _ in 0..3 {
            let again = get(&mut stream, &origin.url("/a"), "");
            assert_eq!(
                (again.status, again.body.as_slice()),
                (200, &b"body of \"v1\""[..])
            );
            assert_eq!(again.field("Server"), Some("o"));
            assert_eq!(again.field("Age"), Some("0"));
        }
        let heads = origin.heads();
        assert!(!heads[0].contains("If-"), "{}", heads[0]);
        for head in &heads[1..] {
            assert!(
                head.contains(&format!("\r\nIf-Modified-Since: {MODIFIED}\r\n")),
                "{head}"
            );
            assert!(head.contains("\r\nIf-None-Match: \"v1\"\r\n"), "{head}");
        }
        version.store(2, Ordering::Relaxed);
        let new = get(&mut stream, &origin.url("/a"), "");
        assert_eq!(new.body, b"body of \"v2\"");
        let again = get(&mut stream, &origin.url("/a"), "");
        assert_eq!(again.body, b"body of \"v2\"");
        proxy.until("counts", |uses, _| uses.revalidated == 4);
        let uses = proxy.proxy();
        assert_eq!((uses.misses, uses.replaced, uses.hits), (1, 1, 0));
        assert_eq!((uses.stored, uses.cached), (2, 1));
        assert_eq!(
            (origin.heads().len(), origin.connections()),
            (6, 1),
            "kept alive"
        );
        assert_eq!((uses.upstream_connections, uses.upstream_reused), (1, 5));
    });
}

#[test]
fn the_papers_way_is_a_connection_for_each_request() {
    let (origin, _) = versioned();
    let spec = Spec {
        fresh_upstream: true,
        ..Spec::new(0, Some(origin.address))
    };
    proxying(&spec, |proxy| {
        for _ in 0..5 {
            let mut stream = proxy.connect();
            let got = get(&mut stream, "/a", "Connection: close\r\n");
            assert_eq!((got.status, got.field("Connection")), (200, Some("close")));
        }
        assert_eq!(origin.connections(), 5);
        assert!(
            origin
                .heads()
                .iter()
                .all(|head| head.contains("\r\nConnection: close\r\n"))
        );
        proxy.until("counts", |uses, reader| {
            uses.revalidated == 4 && uses.upstream_open == 0 && reader.read()[0].open == 0
        });
        let counts = proxy.counts.read()[0];
        assert_eq!(
            (counts.received, counts.replies, counts.connections),
            (5, 5, 5)
        );
    });
}

#[test]
fn a_lifetime_spares_the_origin() {
    let fields = "Cache-Control: max-age=100\r\nAge: 40\r\nETag: \"e\"\r\n";
    let origin = Origin::saying(reply("200 OK", fields, b"fresh"));
    proxying(&forward(), |proxy| {
        let url = origin.url("/a");
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, &url, "").field("Age"), Some("40"));
        let hit = get(&mut stream, &url, "");
        assert_eq!((hit.status, hit.body.as_slice()), (200, &b"fresh"[..]));
        assert!(hit.field("Age").unwrap().parse::<u32>().unwrap() >= 40);
        assert_eq!(origin.heads().len(), 1);
        let head = ask(
            &mut stream,
            &format!("HEAD {url} HTTP/1.1\r\nHost: x\r\n\r\n"),
        );
        assert_eq!(head.field("Content-Length"), Some("5"));
        // What the client knows or wants of it is decided here.
        let known = get(&mut stream, &url, "If-None-Match: W/\"e\"\r\n");
        assert_eq!((known.status, known.field("ETag")), (304, Some("\"e\"")));
        let part = get(&mut stream, &url, "Range: bytes=1-2\r\n");
        assert_eq!((part.status, part.body.as_slice()), (206, &b"re"[..]));
        assert_eq!(part.field("Content-Range"), Some("bytes 1-2/5"));
        let none = get(&mut stream, &url, "Range: bytes=9-\r\n");
        assert_eq!(
            (none.status, none.field("Content-Range")),
            (416, Some("bytes */5"))
        );
        assert_eq!(origin.heads().len(), 1);
        // A client that will not have it makes the proxy ask.
        get(&mut stream, &url, "Cache-Control: no-cache\r\n");
        get(&mut stream, &url, "Pragma: no-cache\r\n");
        get(&mut stream, &url, "Cache-Control: max-age=10\r\n");
        assert_eq!(origin.heads().len(), 4);
        let other = origin.url("/b");
        let none = get(&mut stream, &other, "Cache-Control: only-if-cached\r\n");
        assert_eq!(none.status, 504);
        let uses = proxy.proxy();
        assert_eq!((uses.hits, uses.misses, uses.replaced), (5, 1, 3));
    });
    let spec = Spec {
        revalidate: Revalidate::Always,
        ..forward()
    };
    proxying(&spec, |proxy| {
        let before = origin.heads().len();
        let mut stream = proxy.connect();
        for _ in 0..3 {
            get(&mut stream, &origin.url("/a"), "");
        }
        assert_eq!(origin.heads().len(), before + 3, "asked each time");
    });
}

#[test]
fn what_must_not_be_kept_is_not() {
    for (fields, request, kept) in [
        ("Cache-Control: no-store\r\nETag: \"e\"\r\n", "", false),
        ("Cache-Control: private, max-age=60\r\n", "", false),
        (
            "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
            "",
            false,
        ),
        ("Cache-Control: max-age=60\r\nVary: *\r\n", "", false),
        (
            "Cache-Control: max-age=60\r\n",
            "Cache-Control: no-store\r\n",
            false,
        ),
        (
            "Cache-Control: max-age=60\r\n",
            "Authorization: Basic x\r\n",
            false,
        ),
        ("Expires: 0\r\n", "", false),
        ("", "", false),
        (
            "Cache-Control: max-age=60, public\r\n",
            "Authorization: Basic x\r\n",
            true,
        ),
        ("Cache-Control: s-maxage=60, max-age=0\r\n", "", true),
        (
            "Date: Sat, 06 Nov 2094 08:49:37 GMT\r\nExpires: Sat, 06 Nov 2094 08:50:37 GMT\r\n",
            "",
            true,
        ),
    ] {
        let origin = Origin::saying(reply("200 OK", fields, b"x"));
        proxying(&forward(), |proxy| {
            let mut stream = proxy.connect();
            for _ in 0..2 {
                assert_eq!(get(&mut stream, &origin.url("/"), request).body, b"x");
            }
            let expected = if kept { 1 } else { 2 };
            assert_eq!(origin.heads().len(), expected, "{fields:?} {request:?}");
        });
    }
}

#[test]
fn vary_tells_variants_apart() {
    let origin = Origin::new(|asked, stream| {
        let language = asked.field("Accept-Language").unwrap_or("none").to_owned();
        let fields = "Vary: Accept-Language\r\nCache-Control: max-age=60\r\n";
        stream
            .write_all(&reply("200 OK", fields, language.as_bytes()))
            .is_ok()
    });
    proxying(&forward(), |proxy| {
        let mut stream = proxy.connect();
        for _ in 0..2 {
            for (fields, body) in [
                ("Accept-Language: de\r\n", "de"),
                ("accept-language:  fr\r\n", "fr"),
                ("", "none"),
            ] {
                let got = get(&mut stream, &origin.url("/"), fields);
                assert_eq!(got.body, body.as_bytes());
            }
        }
        assert_eq!(origin.heads().len(), 3);
        assert_eq!(proxy.proxy().hits, 3);
    });
}

#[test]
fn a_change_made_through_the_proxy_is_seen() {
    let origin = Origin::new(|asked, stream| {
        let status = if asked.path() == "/bad" {
            "500 x"
        } else {
            "200 OK"
        };
        let fields = "Cache-Control: max-age=60\r\n";
        let body = asked.number.to_string();
        stream
            .write_all(&reply(status, fields, body.as_bytes()))
            .is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/a", "").body, b"0");
        assert_eq!(get(&mut stream, "/a", "").body, b"0");
        let delete = "DELETE /a HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(ask(&mut stream, delete).body, b"1");
        assert_eq!(get(&mut stream, "/a", "").body, b"2", "asked again");
        assert_eq!(get(&mut stream, "/a", "").body, b"2");
        // Another Host is another resource.
        let other = ask(&mut stream, "GET /a HTTP/1.1\r\nHost: y\r\n\r\n");
        assert_eq!(other.body, b"3");
    });
}

#[test]
fn an_origin_in_trouble_is_stood_in_for_if_it_allows_it() {
    let fields = "Cache-Control: max-age=0, stale-if-error=60\r\nETag: \"e\"\r\n";
    let origin = Origin::new(move |asked, stream| {
        let answer = match asked.number {
            0 => reply("200 OK", fields, b"good"),
            1 => reply("503 x", "", b"bad"),
            _ => return false,
        };
        stream.write_all(&answer).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for _ in 0..3 {
            let got = get(&mut stream, "/", "");
            assert_eq!((got.status, got.body.as_slice()), (200, &b"good"[..]));
        }
        proxy.until("counts", |uses, _| uses.stale == 2);
    });
}

#[test]
fn the_cache_keeps_to_its_size() {
    let origin = Origin::saying(reply(
        "200 OK",
        "Cache-Control: max-age=60\r\n",
        &text(10_000),
    ));
    let spec = Spec {
        cache_bytes: 100_000,
        ..Spec::new(0, Some(origin.address))
    };
    proxying(&spec, |proxy| {
        let mut stream = proxy.connect();
        for number in 0..50 {
            let got = get(&mut stream, &format!("/{number}"), "");
            assert_eq!(got.body, text(10_000));
        }
        get(&mut stream, "/49", "");
        proxy.until("counts", |uses, _| uses.stored == 50 && uses.hits == 1);
        let uses = proxy.proxy();
        assert!(uses.cached_bytes <= 100_000 && uses.cached >= 8, "{uses:?}");
        assert_eq!(uses.evicted, 50 - uses.cached);
    });
}
