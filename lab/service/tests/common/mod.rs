//! Common parts of the servers' tests: servers that run while a test queries them, and
//! clients that read answers.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod story;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tidewall_service::counters::ProxyCounts;
use tidewall_service::http::proxy;
use tidewall_service::linux_stream::{LinuxStreams, Options};
use tidewall_service::{Counters, Reader, ServiceCounts, StreamHost};

pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns bytes that each depend on their position.
pub fn text(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// Returns a unique name for a file or a directory.
pub fn path(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    std::env::temp_dir().join(format!("tw-service-{process}-{name}-{number}"))
}

// ---- Servers ----------------------------------------------------------------

/// The parameters of a server's start.
pub struct Start<'a> {
    pub counters: &'a Counters,
    pub stop: &'a AtomicBool,
    ready: Sender<SocketAddr>,
}

impl Start<'_> {
    /// To be called once it listens.
    pub fn ready(&self) -> impl FnOnce(SocketAddr) {
        |address| self.ready.send(address).unwrap()
    }
}

/// A running server.
pub struct Running<'a> {
    pub address: SocketAddr,
    pub counts: &'a Reader,
    pub stop: &'a AtomicBool,
}

/// Sets the flag at the end, also of a panic: a server that is not asked to stop would
/// keep the test from failing.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the services of `serve`, `services` of them, while `during` runs; it must stop
/// `within` that time.
pub fn running(
    services: usize,
    within: Duration,
    serve: impl FnOnce(&Start<'_>) -> io::Result<()> + Send,
    during: impl FnOnce(&Running<'_>),
) {
    let page = path("page");
    let counters = &Counters::create(&page, services).unwrap();
    let counts = &Reader::open(&page).unwrap();
    let stop = &AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            serve(&Start {
                counters,
                stop,
                ready,
            })
        });
        let stopping = StopAtEnd(stop);
        let address = is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
        during(&Running {
            address,
            counts,
            stop,
        });
        let asked = Instant::now();
        drop(stopping);
        server.join().unwrap().unwrap();
        assert!(asked.elapsed() < within, "it must stop promptly");
    });
}

/// Runs a proxy at `address` on `host` while `during` does.
pub fn proxying_at<H: StreamHost>(
    address: IpAddr,
    host: impl FnOnce() -> H + Send,
    spec: &proxy::Spec,
    during: impl FnOnce(&Running<'_>),
) {
    let within = spec.limits.grace + Duration::from_secs(2);
    let serve = |start: &Start<'_>| {
        let (counters, stop) = (start.counters, start.stop);
        proxy::serve(&host(), address, spec, None, counters, stop, start.ready())
    };
    running(1, within, serve, during);
}

/// The best host of Linux.
pub fn epoll() -> LinuxStreams {
    LinuxStreams::new(Options::default()).unwrap()
}

impl Running<'_> {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        let timeout = Some(Duration::from_secs(10));
        stream.set_read_timeout(timeout).unwrap();
        stream
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Runs curl through it, if it is a proxy.
    pub fn curl(&self, arguments: &[&str]) -> (i32, Vec<u8>) {
        let output = Command::new("curl")
            .args(["-s", "-m", "10", "-x", &self.url("")])
            .args(arguments)
            .output()
            .expect("curl can be run");
        (output.status.code().unwrap_or(-1), output.stdout)
    }

    /// Returns the counts of the first service.
    pub fn service(&self) -> ServiceCounts {
        self.counts.read()[0]
    }

    pub fn proxy(&self) -> ProxyCounts {
        self.counts.proxy()
    }

    /// Waits until the counts are as expected: they are updated once per turn, which an
    /// answer may overtake.
    pub fn until(&self, what: &str, holds: impl Fn(&ProxyCounts, &Reader) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
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
}

// ---- Clients ----------------------------------------------------------------

/// A response as read by a client.
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

/// The value of a field in a head.
pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Reads up to `end`.
pub fn read_to(from: &mut impl Read, end: &[u8]) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        read.push(byte[0]);
    }
    Ok(read)
}

/// Reads content in chunks, to its end.
pub fn chunked(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = String::from_utf8(read_to(from, b"\r\n")?).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let start = body.len();
        body.resize(start + size, 0);
        from.read_exact(&mut body[start..])?;
        assert_eq!(read_to(from, b"\r\n")?, b"\r\n");
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Reads one response; `content` is false for the answer to a HEAD.
pub fn response(from: &mut impl Read, content: bool) -> io::Result<Response> {
    let head = String::from_utf8(read_to(from, b"\r\n\r\n")?).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if !content || status == 304 || status == 204 || status < 200 {
    } else if field(&head, "Transfer-Encoding") == Some("chunked") {
        body = chunked(from)?;
    } else if let Some(length) = field(&head, "Content-Length") {
        body = vec![0; length.parse().unwrap()];
        from.read_exact(&mut body)?;
    } else {
        from.read_to_end(&mut body)?;
    }
    Ok(Response { status, head, body })
}

pub fn ask(stream: &mut (impl Read + Write), request: &str) -> Response {
    stream.write_all(request.as_bytes()).unwrap();
    response(stream, !request.starts_with("HEAD")).unwrap()
}

pub fn get(stream: &mut (impl Read + Write), target: &str, fields: &str) -> Response {
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
    ask(stream, &request)
}

pub fn is_closed(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0]), Ok(0))
}
