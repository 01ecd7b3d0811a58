//! The web server on Tidewall in network namespaces, with the clients that
//! people use. Needs root; skipped without.

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
        let path = std::env::temp_dir().join(format!("tw-web-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("root")).unwrap();
        fs::write(path.join("root/index.html"), "<p>front").unwrap();
        fs::write(path.join("root/a.txt"), text(1300)).unwrap();
        fs::write(path.join("root/large.bin"), text(LARGE)).unwrap();
        Place(path)
    }

    fn name(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
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

fn serve(bed: &Bed, place: &Place) -> (Running, BufReader<ChildStdout>, String) {
    let root = place.name("root");
    let arguments = ["serve", "http", &root, "--interface", &bed.interface];
    let mut child = Bed::command(&bed.server, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    (Running(child), lines, first)
}

/// What a program in a namespace prints; `None`, and said so, where it is not
/// installed.
fn client(namespace: &str, program: &str, arguments: &[&str]) -> Option<String> {
    // Whatever is wrong, a test ends.
    let limited = [&["20", program], arguments].concat();
    let output = Bed::other(namespace, "timeout", &limited).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // What timeout says of a program that is not there.
    if output.status.code() == Some(127) {
        println!("SKIPPED {program}: not installed (scripts/setup.sh)");
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{namespace}: {program} {arguments:?}: {text}\n{errors}"
    );
    Some(text)
}

/// Set up by whoever may; says so and returns `None` otherwise.
fn bed(test: &str, name: &str) -> Option<Bed> {
    Bed::new(name)
        .map_err(|error| println!("SKIPPED {test}: {error}"))
        .ok()
}

#[test]
fn stopping_on_tidewall_finishes_the_response_at_hand() {
    let Some(bed) = bed("stopping_on_tidewall_finishes_the_response_at_hand", "g") else {
        return;
    };
    let place = Place::new("stop");
    // More than the buffers of both ends together.
    let length: u64 = 40 * 1024 * 1024;
    let long = fs::File::create(place.name("root/long.bin")).unwrap();
    long.set_len(length).unwrap();
    let (mut service, mut rest, _) = serve(&bed, &place);
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
    // Once part of the file is there the rest is on its way.
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::metadata(&to).map_or(0, |file| file.len()) == 0 && Instant::now() < deadline {
        if let Some(status) = curl.0.try_wait().unwrap() {
            assert_eq!(status.code(), Some(127), "{status}");
            println!("SKIPPED stopping_on_tidewall_finishes_the_response_at_hand: no curl");
            return;
        }
        std::thread::yield_now();
    }
    signal("-TERM", &service);
    assert!(curl.0.wait().unwrap().success());
    assert_eq!(fs::metadata(&to).unwrap().len(), length);
    let mut totals = String::new();
    rest.read_to_string(&mut totals).unwrap();
    assert!(service.0.wait().unwrap().success());
    assert!(totals.starts_with("answered 1 requests"), "{totals}");
}

#[test]
fn clients_of_all_kinds_are_served_on_tidewall() {
    let Some(bed) = bed("clients_of_all_kinds_are_served_on_tidewall", "w") else {
        return;
    };
    let place = Place::new("clients");
    let (mut service, mut rest, first) = serve(&bed, &place);
    assert!(
        first.starts_with("http on 0.0.0.0:80/tcp, files of "),
        "{first}"
    );
    assert!(first.contains(", Tidewall (ni-lrp)"), "{first}");
    let (small, large) = ("http://10.99.0.2/a.txt", "http://10.99.0.2/large.bin");
    let to = place.name("fetched");
    // Over the interface, and from the server's own host, through the kernel.
    for namespace in [&bed.client, &bed.server] {
        let _ = fs::remove_file(&to);
        if client(namespace, "curl", &["-sSf", "-o", &to, large]).is_none() {
            break;
        }
        assert!(fs::read(&to).unwrap() == text(LARGE), "{namespace}");
        let range = ["-sSf", "-r", "100-199", "-o", &to, small];
        client(namespace, "curl", &range);
        assert_eq!(fs::read(&to).unwrap(), text(1300)[100..200]);
    }
    if let Some(text) = client(&bed.client, "wrk", &["-t1", "-c16", "-d1s", small]) {
        assert!(
            !text.contains("Non-2xx") && !text.contains("Socket errors"),
            "{text}"
        );
        assert!(text.contains("requests in"), "{text}");
    }
    // A connection a request, and several at a time.
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
    signal("-TERM", &service);
    let mut totals = String::new();
    rest.read_to_string(&mut totals).unwrap();
    assert!(service.0.wait().unwrap().success());
    assert!(totals.starts_with("answered "), "{totals}");
}
