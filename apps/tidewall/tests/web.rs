//! The web server on Tidewall in network namespaces, with common clients. Needs root;
//! skipped without.

mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::bed::Bed;
use common::{Place, Running, Service, content, signal, text};

/// Longer than any window.
const LARGE: usize = 8 * 1024 * 1024;

/// A directory to serve, in `root`.
fn place(name: &str) -> Place {
    Place::new(&format!("web-{name}"))
        .with("root/index.html", "<p>front")
        .with("root/a.txt", content(1300))
        .with("root/large.bin", content(LARGE))
}

fn serve(bed: &Bed, place: &Place) -> Service {
    let root = place.name("root");
    let arguments = ["serve", "http", &root, "--interface", &bed.interface];
    Service::start(Bed::command(&bed.server, &arguments))
}

/// Returns the output of a common client; `None` if it is not installed.
fn client(namespace: &str, program: &str, arguments: &[&str]) -> Option<String> {
    Bed::output(namespace, program, arguments).map(|said| text(&said))
}

#[test]
fn stopping_on_tidewall_finishes_the_response_at_hand() {
    let Some(bed) = Bed::or_skip("stopping_on_tidewall_finishes_the_response_at_hand", "g") else {
        return;
    };
    let place = place("stop");
    // More than the buffers of both ends together.
    let length: u64 = 40 * 1024 * 1024;
    let long = fs::File::create(place.name("root/long.bin")).unwrap();
    long.set_len(length).unwrap();
    let service = serve(&bed, &place);
    let to = place.name("fetched");
    let arguments = [
        "20",
        "curl",
        "-sSf",
        "--limit-rate",
        "16M",
        "-o",
        &to,
        "http://10.99.0.2/long.bin",
    ];
    let mut curl = Bed::other(&bed.client, "timeout", &arguments);
    let mut curl = Running(curl.spawn().unwrap());
    // Once part of the file is there, the rest is on its way.
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::metadata(&to).map_or(0, |file| file.len()) == 0 && Instant::now() < deadline {
        if let Some(status) = curl.0.try_wait().unwrap() {
            assert_eq!(status.code(), Some(127), "{status}");
            tidewall_skip::missing("stopping_on_tidewall_finishes_the_response_at_hand", "curl");
            return;
        }
        thread::yield_now();
    }
    signal("-TERM", &service.process);
    assert!(curl.0.wait().unwrap().success());
    assert_eq!(fs::metadata(&to).unwrap().len(), length);
    let totals = service.ended();
    assert!(totals.starts_with("answered 1 requests"), "{totals}");
}

#[test]
fn clients_of_all_kinds_are_served_on_tidewall() {
    let Some(bed) = Bed::or_skip("clients_of_all_kinds_are_served_on_tidewall", "w") else {
        return;
    };
    let place = place("clients");
    let service = serve(&bed, &place);
    let first = &service.first;
    assert!(
        first.starts_with("http on 0.0.0.0:80/tcp, files of "),
        "{first}"
    );
    assert!(first.contains(", Tidewall (tidewall)"), "{first}");
    let (small, large) = ("http://10.99.0.2/a.txt", "http://10.99.0.2/large.bin");
    let to = place.name("fetched");
    // Over the interface, and from the server's own host, through the kernel.
    for namespace in [&bed.client, &bed.server] {
        let _ = fs::remove_file(&to);
        if client(namespace, "curl", &["-sSf", "-o", &to, large]).is_none() {
            break;
        }
        assert!(fs::read(&to).unwrap() == content(LARGE), "{namespace}");
        let range = ["-sSf", "-r", "100-199", "-o", &to, small];
        client(namespace, "curl", &range);
        assert_eq!(fs::read(&to).unwrap(), content(1300)[100..200]);
    }
    if let Some(text) = client(&bed.client, "wrk", &["-t1", "-c16", "-d1s", small]) {
        assert!(
            !text.contains("Non-2xx") && !text.contains("Socket errors"),
            "{text}"
        );
        assert!(text.contains("requests in"), "{text}");
    }
    // One connection per request, and several at a time.
    for options in [&["-q", "-n500", "-c8"][..], &["-q", "-k", "-n500", "-c8"]] {
        if let Some(text) = client(&bed.client, "ab", &[options, &[small]].concat()) {
            assert!(text.contains("Complete requests:      500"), "{text}");
            assert!(text.contains("Failed requests:        0"), "{text}");
        }
    }
    let options = ["--h1", "-n500", "-c8", "-m4", small];
    if let Some(text) = client(&bed.client, "h2load", &options) {
        let all = "500 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(text.contains(all), "{text}");
    }
    let totals = service.end();
    assert!(totals.starts_with("answered "), "{totals}");
}
