//! What one client, or an origin through it, could do to what others get.

use tidewall_service::http::proxy::UpstreamLimits;

use super::origin::{Origin, reply};
use super::*;

/// An origin that answers the first request with `first` and what comes after
/// with `then`.
fn first_and_then(first: Vec<u8>, then: impl Into<Vec<u8>>) -> Origin {
    let then = then.into();
    Origin::new(move |asked, stream| {
        let answer = if asked.number == 0 { &first } else { &then };
        stream.write_all(answer).is_ok()
    })
}

#[test]
fn the_cookies_of_a_304_are_for_whom_it_came() {
    let whole = reply("200 OK", "ETag: \"e\"\r\nX-News: old\r\n", b"all's");
    let origin = Origin::new(move |asked, stream| {
        let answer = match asked.field("If-None-Match") {
            None => whole.clone(),
            Some(_) => {
                let user = asked.field("Cookie").unwrap_or("nobody");
                let cookie = match user {
                    "nobody" => String::new(),
                    user => format!("Set-Cookie: {user}-is-in\r\n"),
                };
                format!("HTTP/1.1 304 x\r\n{cookie}X-News: {user}\r\n\r\n").into_bytes()
            }
        };
        stream.write_all(&answer).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        get(&mut stream, "/", "");
        let hers = get(&mut stream, "/", "Cookie: alice\r\n");
        assert_eq!((hers.status, hers.body.as_slice()), (200, &b"all's"[..]));
        assert_eq!(hers.field("Set-Cookie"), Some("alice-is-in"));
        assert_eq!(hers.field("X-News"), Some("alice"));
        let others = get(&mut stream, "/", "");
        assert_eq!(others.field("X-News"), Some("nobody"));
        assert_eq!(others.field("Set-Cookie"), None, "{}", others.head);
    });
}

#[test]
fn a_304_may_take_back_what_is_stored() {
    for taken_back in ["private", "no-store"] {
        let whole = reply("200 OK", "ETag: \"e\"\r\n", b"once");
        let then = format!("HTTP/1.1 304 x\r\nCache-Control: {taken_back}, max-age=60\r\n\r\n");
        let origin = first_and_then(whole, then);
        proxying(&Spec::new(0, Some(origin.address)), |proxy| {
            let mut stream = proxy.connect();
            for _ in 0..2 {
                assert_eq!(get(&mut stream, "/", "").body, b"once");
            }
            proxy.until(taken_back, |uses, _| uses.cached == 0);
            get(&mut stream, "/", "If-None-Match: \"mine\"\r\n");
            let heads = origin.heads();
            assert!(heads[2].contains("If-None-Match: \"mine\""), "{}", heads[2]);
        });
    }
}

#[test]
fn a_304_for_another_version_confirms_nothing() {
    let whole = reply(
        "200 OK",
        "ETag: \"one\"\r\nCache-Control: max-age=0\r\n",
        b"one",
    );
    let then = "HTTP/1.1 304 x\r\nETag: \"two\"\r\nCache-Control: max-age=60\r\n\r\n";
    let origin = first_and_then(whole, then);
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").body, b"one");
        let second = get(&mut stream, "/", "");
        assert_eq!((second.body.as_slice(), second.status), (&b"one"[..], 200));
        assert_eq!(second.field("ETag"), Some("\"one\""));
        // RFC 9111 §4.3.4: it must not be made to look like the other one.
        proxy.until("forgotten", |uses, _| uses.cached == 0);
    });
    // The same version, weakly told, is the same version.
    let whole = reply("200 OK", "ETag: \"one\"\r\n", b"one");
    let then = "HTTP/1.1 304 x\r\nETag: W/\"one\"\r\n\r\n";
    let origin = first_and_then(whole, then);
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for _ in 0..3 {
            assert_eq!(get(&mut stream, "/", "").body, b"one");
        }
        proxy.until("kept", |uses, _| uses.cached == 1 && uses.revalidated == 2);
    });
}

#[test]
fn the_answer_to_one_clients_mistake_is_nobody_elses() {
    let origin = Origin::new(|asked, stream| {
        let status = match (asked.field("Range"), asked.field("X-Bad")) {
            (Some(_), _) => "416 x",
            (_, Some(_)) => "400 x",
            _ => "200 OK",
        };
        let fields = "Cache-Control: public, max-age=60\r\n";
        stream.write_all(&reply(status, fields, b"x")).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        for (target, fields, status) in [
            ("/range", "Range: bytes=900-\r\n", 416),
            ("/fields", "X-Bad: \\\r\n", 400),
        ] {
            assert_eq!(get(&mut stream, target, fields).status, status);
            assert_eq!(get(&mut stream, target, "").status, 200);
        }
    });
}

#[test]
fn a_clients_own_condition_costs_the_others_nothing() {
    let origin = Origin::new(|asked, stream| {
        let status = match asked.field("If-Match") {
            Some(_) => "412 x",
            None => "200 OK",
        };
        let fields = "Cache-Control: max-age=60\r\nETag: \"e\"\r\n";
        stream.write_all(&reply(status, fields, b"x")).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").status, 200);
        let failed = get(&mut stream, "/", "If-Match: \"other\"\r\n");
        assert_eq!(failed.status, 412);
        assert_eq!(get(&mut stream, "/", "").status, 200);
        assert_eq!(origin.heads().len(), 2, "the third was a hit");
    });
}

#[test]
fn proxy_revalidate_alone_opens_nothing_to_credentials() {
    for (control, kept) in [
        ("proxy-revalidate, max-age=60", false),
        ("must-revalidate, max-age=60", true),
        ("s-maxage=60", true),
    ] {
        let fields = format!("Cache-Control: {control}\r\n");
        let origin = Origin::saying(reply("200 OK", &fields, b"hers"));
        proxying(&Spec::new(0, Some(origin.address)), |proxy| {
            let mut stream = proxy.connect();
            get(&mut stream, "/", "Authorization: Basic x\r\n");
            get(&mut stream, "/", "");
            let expected = if kept { 1 } else { 2 };
            assert_eq!(origin.heads().len(), expected, "{control}");
        });
    }
}

#[test]
fn of_responses_that_suit_the_latest_is_used() {
    // It learns to vary.
    let origin = Origin::new(|asked, stream| {
        let vary = if asked.number == 0 {
            ""
        } else {
            "Vary: Cookie\r\n"
        };
        let fields = format!("Cache-Control: max-age=60\r\n{vary}");
        let body = asked.number.to_string();
        let answer = reply("200 OK", &fields, body.as_bytes());
        stream.write_all(&answer).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").body, b"0");
        let asked_anew = "Cookie: a\r\nCache-Control: no-cache\r\n";
        assert_eq!(get(&mut stream, "/", asked_anew).body, b"1");
        assert_eq!(get(&mut stream, "/", "Cookie: a\r\n").body, b"1");
    });
}

#[test]
fn a_head_that_tells_of_another_version_is_believed() {
    let origin = Origin::new(|asked, stream| {
        let version = usize::from(asked.number > 0);
        let fields = format!("ETag: \"{version}\"\r\nCache-Control: max-age=60\r\n");
        let mut answer = reply("200 OK", &fields, version.to_string().as_bytes());
        if asked.head.starts_with("HEAD") {
            answer.truncate(answer.len() - 1);
        }
        stream.write_all(&answer).is_ok()
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut stream = proxy.connect();
        assert_eq!(get(&mut stream, "/", "").body, b"0");
        let head = "HEAD / HTTP/1.1\r\nHost: x\r\nCache-Control: no-cache\r\n\r\n";
        assert_eq!(ask(&mut stream, head).field("ETag"), Some("\"1\""));
        assert_eq!(get(&mut stream, "/", "").body, b"1");
    });
}

#[test]
fn connections_that_nobody_uses_make_room_for_other_origins() {
    let origins = [b"a", b"b"].map(|body| Origin::saying(reply("200 OK", "", body)));
    let spec = Spec {
        upstream: UpstreamLimits {
            connections: 1,
            ..UpstreamLimits::default()
        },
        ..forward()
    };
    proxying(&spec, |proxy| {
        let mut stream = proxy.connect();
        for _ in 0..3 {
            for (origin, body) in origins.iter().zip([b"a", b"b"]) {
                let got = get(&mut stream, &origin.url("/"), "");
                assert_eq!((got.status, got.body.as_slice()), (200, &body[..]));
            }
        }
        assert_eq!(proxy.proxy().upstream_open, 1);
    });
}

#[test]
fn an_answer_that_is_whole_is_not_lost_with_the_next() {
    let origin = Origin::new(|asked, stream| match asked.path() {
        "/good" => {
            let fields = "Cache-Control: max-age=60\r\n";
            stream.write_all(&reply("200 OK", fields, b"good")).is_ok()
        }
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
    // Nor with a request that its client gives up.
    let fields = "Cache-Control: max-age=60\r\n";
    let origin = Origin::new(move |asked, stream| match asked.path() {
        "/good" => stream.write_all(&reply("200 OK", fields, b"good")).is_ok(),
        _ => stream.read(&mut [0; 16]).is_ok_and(|count| count > 9),
    });
    // The origin has been asked if the client waits for its word.
    for (expect, left) in [("", 1), ("Expect: 100-continue\r\n", 0)] {
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
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            proxy.until("over", |uses, reader| {
                uses.upstream_open == left && reader.read()[0].open == 0
            });
        });
    }
}

#[test]
fn what_lies_behind_an_answer_is_not_the_next_one() {
    // The answer fills what is read at a time to the last byte.
    const READ: usize = 16 * 1024;
    let mut both = reply("200 OK", "", &text(READ - 100));
    both = reply("200 OK", "", &text(READ - 100 + READ - both.len()));
    assert_eq!(both.len(), READ);
    both.extend(reply("200 OK", "", b"forged"));
    let origin = Origin::new(move |asked, stream| match asked.path() {
        "/both" => stream.write_all(&both).is_ok(),
        _ => stream.write_all(&reply("200 OK", "", b"true")).is_ok(),
    });
    proxying(&Spec::new(0, Some(origin.address)), |proxy| {
        let mut one = proxy.connect();
        for _ in 0..20 {
            assert_eq!(get(&mut one, "/both", "").status, 200);
            let mut other = proxy.connect();
            assert_eq!(get(&mut other, "/", "").body, b"true");
        }
    });
}
