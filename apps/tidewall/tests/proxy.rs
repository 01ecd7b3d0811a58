//! The proxy on Tidewall in network namespaces, between curl and a web server
//! on Linux sockets. Needs root; skipped without.

mod common;

use std::time::{Duration, Instant};

use common::bed::Bed;
use common::{Place, Service, content};

/// Longer than any window.
const LARGE: usize = 8 * 1024 * 1024;

/// A service in a namespace.
fn serve(namespace: &str, arguments: &[&str]) -> Service {
    Service::start(Bed::command(namespace, &[&["serve"], arguments].concat()))
}

/// Returns curl's output through the proxy; `None` without curl.
fn fetched(bed: &Bed, url: &str) -> Option<Vec<u8>> {
    let arguments = ["-sSf", "-x", "http://10.99.0.2:3128", url];
    Bed::output(&bed.client, "curl", &arguments)
}

/// The same story for each way to wait.
fn passes_on(name: &str, options: &[&str]) {
    let Some(bed) = Bed::or_skip(&format!("{options:?}"), name) else {
        return;
    };
    let place = Place::new(&format!("proxy-{name}"))
        .with("a.txt", content(1259))
        .with("large.bin", content(LARGE));
    let root = place.name("");
    let origin = serve(&bed.client, &["http", &root, "--on", "linux"]);
    let at = &origin.first;
    assert!(at.starts_with("http on 0.0.0.0:80/tcp"), "{at}");
    let own = "--allow-client 10.99.0.0/24 --allow-destination 10.99.0.1";
    let own: Vec<&str> = own.split(' ').collect();
    let proxy = [&["proxy", "--interface", &bed.interface], &own[..], options].concat();
    let proxy = serve(&bed.server, &proxy);
    let first = &proxy.first;
    assert!(
        first.starts_with("proxy on 0.0.0.0:3128/tcp, for whom"),
        "{first}"
    );
    let mut asked = 0;
    for _ in 0..5 {
        let Some(got) = fetched(&bed, "http://10.99.0.1/a.txt") else {
            return;
        };
        assert_eq!(got, content(1259));
        asked += 1;
    }
    for _ in 0..2 {
        let got = fetched(&bed, "http://10.99.0.1/large.bin");
        assert!(got == Some(content(LARGE)));
        asked += 1;
    }
    let totals = proxy.end();
    assert!(
        totals.starts_with(&format!("answered {asked} requests")),
        "{totals}"
    );
    let connections = "; 7 upstream connections (";
    assert!(totals.contains(connections), "{totals}");
    assert!(totals.contains("; 0 errors and 0 upstream"), "{totals}");
}

#[test]
fn requests_are_passed_on_with_the_selector() {
    passes_on("s", &[]);
}

#[test]
fn requests_are_passed_on_with_select() {
    passes_on("i", &["--events", "select"]);
}

#[test]
fn requests_are_passed_on_with_the_comparator() {
    let options = ["--events", "classical-select", "--allocator", "linear"];
    passes_on("c", &options);
}

#[test]
fn requests_are_passed_on_with_poll() {
    passes_on("p", &["--events", "poll", "--allocator", "bitmap"]);
}

#[test]
fn requests_are_passed_on_with_epoll() {
    passes_on("e", &["--events", "epoll"]);
}

#[test]
fn requests_are_passed_on_with_an_event_queue() {
    passes_on("q", &["--events", "event-queue"]);
}

#[test]
fn an_origin_that_does_not_answer_is_given_up() {
    let Some(bed) = Bed::or_skip("an_origin_that_does_not_answer_is_given_up", "n") else {
        return;
    };
    // That address does not exist.
    let origin = "10.99.0.9:80";
    let proxy = ["proxy", "--interface", &bed.interface, "--origin", origin];
    let proxy = serve(&bed.server, &proxy);
    assert!(proxy.first.contains("for 10.99.0.9:80"), "{}", proxy.first);
    let begun = Instant::now();
    let arguments = ["-s", "-w", "%{http_code}", "http://10.99.0.2/"];
    let Some(got) = Bed::output(&bed.client, "curl", &arguments) else {
        return;
    };
    let text = String::from_utf8_lossy(&got);
    assert!(text.ends_with("502") || text.ends_with("504"), "{text}");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
