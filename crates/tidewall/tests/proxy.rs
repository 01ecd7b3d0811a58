//! The proxy on Tidewall in network namespaces, between curl and a web server
//! on Linux sockets. Needs root; skipped without.

mod bed;

use std::fs;
use std::io::{BufRead, BufReader, Read};

use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use bed::{Bed, Running, signal};

/// Longer than any window.
const LARGE: usize = 8 * 1024 * 1024;

/// A directory to serve, removed again.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tw-cli-proxy-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("a.txt"), text(1259)).unwrap();
        fs::write(path.join("large.bin"), text(LARGE)).unwrap();
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes each of which tells its place.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// A service in a namespace, and its first line.
fn serve(namespace: &str, arguments: &[&str]) -> (Running, BufReader<ChildStdout>, String) {
    let mut child = Bed::command(namespace, &[&["serve"], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    (Running(child), lines, first)
}

/// What curl gets through the proxy; `None` where there is no curl.
fn fetched(bed: &Bed, url: &str) -> Option<Vec<u8>> {
    let arguments = ["20", "curl", "-sSf", "-x", "http://10.99.0.2:3128", url];
    let output = Bed::other(&bed.client, "timeout", &arguments)
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        println!("SKIPPED curl: not installed (scripts/setup.sh)");
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{url}: {errors}");
    Some(output.stdout)
}

/// One story for each way to wait.
fn passes_on(name: &str, options: &[&str]) {
    let bed = match Bed::new(name) {
        Ok(bed) => bed,
        Err(error) => return println!("SKIPPED {options:?}: {error}"),
    };
    let place = Place::new(name);
    let root = place.0.to_str().unwrap();
    let (_origin, _lines, at) = serve(&bed.client, &["http", root, "--on", "linux"]);
    assert!(at.starts_with("http on 0.0.0.0:80/tcp"), "{at}");
    let proxy = [&["proxy", "--interface", &bed.interface], options].concat();
    let (mut proxy, mut rest, first) = serve(&bed.server, &proxy);
    assert!(
        first.starts_with("proxy on 0.0.0.0:3128/tcp, for whom"),
        "{first}"
    );
    let mut asked = 0;
    for _ in 0..5 {
        let Some(got) = fetched(&bed, "http://10.99.0.1/a.txt") else {
            return;
        };
        assert_eq!(got, text(1259));
        asked += 1;
    }
    // Too large to be kept, then from the origin again.
    for _ in 0..2 {
        let got = fetched(&bed, "http://10.99.0.1/large.bin");
        assert!(got == Some(text(LARGE)));
        asked += 1;
    }
    signal("-TERM", &proxy);
    let mut totals = String::new();
    rest.read_to_string(&mut totals).unwrap();
    assert!(proxy.0.wait().unwrap().success());
    assert!(
        totals.starts_with(&format!("answered {asked} requests")),
        "{totals}"
    );
    let uses = "0 from the cache, 4 after asking the origin (0 new), 3 missed, 0 passed on;";
    assert!(totals.contains(uses), "{totals}");
    let connections = match options.contains(&"--fresh-upstream") {
        true => "; 7 upstream connections, used again 0 times; 0 errors and 0 upstream",
        false => "; 1 upstream connections, used again 6 times; 0 errors and 0 upstream",
    };
    assert!(totals.contains(connections), "{totals}");
}

#[test]
fn requests_are_passed_on_with_the_selector() {
    passes_on("s", &[]);
}

#[test]
fn requests_are_passed_on_over_a_connection_each() {
    passes_on("f", &["--fresh-upstream"]);
}

#[test]
fn requests_are_passed_on_with_select() {
    passes_on("i", &["--events", "select", "--fresh-upstream"]);
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
    passes_on("e", &["--events", "epoll", "--fresh-upstream"]);
}

#[test]
fn requests_are_passed_on_with_an_event_queue() {
    passes_on("q", &["--events", "event-queue"]);
}

#[test]
fn an_origin_that_does_not_answer_is_given_up() {
    let bed = match Bed::new("n") {
        Ok(bed) => bed,
        Err(error) => return println!("SKIPPED an_origin_that_does_not_answer: {error}"),
    };
    // Nobody has that address.
    let origin = "10.99.0.9:80";
    let proxy = ["proxy", "--interface", &bed.interface, "--origin", origin];
    let (_proxy, _lines, first) = serve(&bed.server, &proxy);
    assert!(first.contains("for 10.99.0.9:80"), "{first}");
    let begun = Instant::now();
    let arguments = [
        "20",
        "curl",
        "-s",
        "-w",
        "%{http_code}",
        "http://10.99.0.2/",
    ];
    let output = Bed::other(&bed.client, "timeout", &arguments)
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        return println!("SKIPPED curl: not installed (scripts/setup.sh)");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with("502") || text.ends_with("504"), "{text}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}
