//! The proxy on Linux sockets over loopback, between plain clients and origins
//! that do as they are told.

mod cache;
mod forwarding;
mod hosts;
mod origin;
mod poison;
mod trouble;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tidewall_service::counters::ProxyCounts;
use tidewall_service::http::proxy::{self, Spec};
use tidewall_service::linux_stream::{LinuxStreams, Options};
use tidewall_service::{Counters, Reader, StreamHost};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Bytes each of which tells its place.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// A name for a file of counters that nobody else has.
fn page() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tw-proxy-{}-{number}", std::process::id()))
}

/// Sets it at the end, a panic's included.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A proxy that runs.
struct Running<'a> {
    address: SocketAddr,
    counts: &'a Reader,
    stop: &'a AtomicBool,
}

impl Running<'_> {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    fn proxy(&self) -> ProxyCounts {
        self.counts.proxy()
    }

    /// Waits until the counts are as they should be: they are written down
    /// after the last byte has left.
    fn until(&self, what: &str, holds: impl Fn(&ProxyCounts, &Reader) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !holds(&self.proxy(), self.counts) {
            assert!(
                Instant::now() < deadline,
                "{what}: {:?} {:?}",
                self.proxy(),
                self.counts.read()
            );
            thread::yield_now();
        }
    }

    /// curl through it.
    fn curl(&self, arguments: &[&str]) -> (i32, Vec<u8>) {
        let output = Command::new("curl")
            .args(["-s", "-m", "10", "-x", &format!("http://{}", self.address)])
            .args(arguments)
            .output()
            .expect("curl can be run");
        (output.status.code().unwrap_or(-1), output.stdout)
    }
}

/// Runs a proxy on `host` while `during` does.
fn proxying_on<H: StreamHost>(
    host: impl FnOnce() -> H + Send,
    spec: &Spec,
    during: impl FnOnce(&Running<'_>),
) {
    let page = page();
    let counters = Counters::create(&page, 1).unwrap();
    let reader = Reader::open(&page).unwrap();
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let host = host();
            proxy::serve(&host, LOCAL, spec, None, &counters, 0, &stop, |address| {
                ready.send(address).unwrap();
            })
        });
        let stopping = StopAtEnd(&stop);
        let address = is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
        during(&Running {
            address,
            counts: &reader,
            stop: &stop,
        });
        let asked = Instant::now();
        drop(stopping);
        server.join().unwrap().unwrap();
        assert!(
            asked.elapsed() < spec.limits.grace + Duration::from_secs(2),
            "it must stop promptly"
        );
    });
}

fn proxying(spec: &Spec, during: impl FnOnce(&Running<'_>)) {
    proxying_on(epoll, spec, during);
}

fn epoll() -> LinuxStreams {
    LinuxStreams::new(Options::default()).unwrap()
}

struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

fn line(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(line)
}

/// Reads one response; `content` is false for the answer to a HEAD.
fn response(from: &mut impl Read, content: bool) -> io::Result<Response> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(line(from)?);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut response = Response {
        status,
        head,
        body: Vec::new(),
    };
    if !content || status == 304 || status == 204 || status < 200 {
        return Ok(response);
    }
    if response.field("Transfer-Encoding") == Some("chunked") {
        loop {
            let size = String::from_utf8(line(from)?).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let start = response.body.len();
            response.body.resize(start + size, 0);
            from.read_exact(&mut response.body[start..])?;
            assert_eq!(line(from)?, b"\r\n");
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = response.field("Content-Length") {
        response.body = vec![0; length.parse().unwrap()];
        from.read_exact(&mut response.body)?;
    } else {
        from.read_to_end(&mut response.body)?;
    }
    Ok(response)
}

fn ask(stream: &mut TcpStream, request: &str) -> Response {
    stream.write_all(request.as_bytes()).unwrap();
    response(stream, !request.starts_with("HEAD")).unwrap()
}

fn get(stream: &mut TcpStream, target: &str, fields: &str) -> Response {
    ask(
        stream,
        &format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"),
    )
}
