//! The servers on Tidewall's stack, with each of its ways to wait, over a link
//! inside this process.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tidewall_device::memory::{LinkConfig, pair_on_clock};
use tidewall_service::counters::ProxyCounts;
use tidewall_service::descriptor_host::{DescriptorEpoll, DescriptorQueue};
use tidewall_service::descriptor_sockets::{DescriptorSockets, Select};
use tidewall_service::http::proxy::{self, Spec};
use tidewall_service::http::{self, Limits};
use tidewall_service::tidewall_stream::TidewallStreams;
use tidewall_service::{Counters, PollHost, Reader, SelectHost, StreamHost};
use tidewall_socket::descriptor::Allocator;
use tidewall_socket::{MemoryConfig, Stack, TcpStream};
use tidewall_wire::ethernet::MacAddress;

/// The clients and the origin.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The proxy.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const ORIGIN: SocketAddr = SocketAddr::new(NEAR, 80);
const PROXY: SocketAddr = SocketAddr::new(FAR, 3128);
/// Connections that do nothing.
const COLD: usize = 80;
/// Longer than any window.
const LARGE: usize = 1024 * 1024;

fn stacks() -> (Stack, Stack) {
    // On a clock that runs: on one that stands still the device's interrupt would
    // stay masked after its first poll.
    let start = Instant::now();
    let (_, a, b) = pair_on_clock(LinkConfig::default(), move || start.elapsed()).unwrap();
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let near = MemoryConfig {
        addresses: vec![NEAR],
        mac: mac(1),
        peer: mac(2),
    };
    let far = MemoryConfig {
        addresses: vec![FAR],
        mac: mac(2),
        peer: mac(1),
    };
    (
        Stack::in_memory(a, near).unwrap(),
        Stack::in_memory(b, far).unwrap(),
    )
}

/// Bytes each of which tells its place.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

fn path(name: &str) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    std::env::temp_dir().join(format!("tw-stack-{process}-{name}-{number}"))
}

/// Sets it at the end, a panic's included.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn connect(near: &Stack) -> TcpStream {
    let stream = TcpStream::connect(near, PROXY).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// Asks for a target and returns the status and the content.
fn get(stream: &TcpStream, target: &str) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = stream;
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body)?;
    Ok((status, body))
}

/// Runs the web server at the near end, the proxy on a host of the far one, and
/// asks it many things among many idle connections.
fn story<H: StreamHost>(host: impl FnOnce(&Stack) -> H + Send, fresh: bool) {
    let (near, far) = stacks();
    let root = path("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a.txt"), text(1259)).unwrap();
    fs::write(root.join("large.bin"), text(LARGE)).unwrap();
    let web = http::Spec {
        root: root.clone(),
        port: ORIGIN.port(),
        work: 0,
        limits: Limits::default(),
    };
    let spec = Spec {
        fresh_upstream: fresh,
        object_bytes: LARGE / 2,
        ..Spec::new(PROXY.port(), Some(ORIGIN))
    };
    let pages = [path("web"), path("proxy")];
    let counters = pages
        .each_ref()
        .map(|page| Counters::create(page, 1).unwrap());
    let counts = Reader::open(&pages[1]).unwrap();
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let origin = scope.spawn(|| {
            let host = TidewallStreams::new(&near).unwrap();
            let ready = ready.clone();
            http::serve(&host, NEAR, &web, None, &counters[0], 0, &stop, |_| {
                ready.send(()).unwrap();
            })
        });
        let server = scope.spawn(|| {
            let host = host(&far);
            let ready = ready.clone();
            proxy::serve(&host, FAR, &spec, None, &counters[1], 0, &stop, |_| {
                ready.send(()).unwrap();
            })
        });
        let stopping = StopAtEnd(&stop);
        for _ in 0..2 {
            is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
        }
        let until = |what: &str, holds: &dyn Fn(&ProxyCounts, u64) -> bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !holds(&counts.proxy(), counts.read()[0].open) {
                assert!(
                    Instant::now() < deadline,
                    "{what}: {:?} {:?}",
                    counts.proxy(),
                    counts.read()
                );
                thread::yield_now();
            }
        };
        let cold: Vec<TcpStream> = (0..COLD).map(|_| connect(&near)).collect();
        until("all are there", &|_, open| open == COLD as u64);
        let warm = connect(&near);
        for _ in 0..20 {
            assert_eq!(get(&warm, "/a.txt").unwrap(), (200, text(1259)));
        }
        // A connection for each, as the paper's clients have.
        for _ in 0..20 {
            assert_eq!(get(&connect(&near), "/a.txt").unwrap(), (200, text(1259)));
        }
        for _ in 0..2 {
            let (status, body) = get(&warm, "/large.bin").unwrap();
            assert!(
                status == 200 && body == text(LARGE),
                "every byte in its place"
            );
        }
        until("counted", &|uses, _| {
            uses.revalidated == 39 && uses.misses == 3
        });
        let uses = counts.proxy();
        assert_eq!(uses.upstream_errors, 0);
        let expected = if fresh { (42, 0) } else { (1, 41) };
        assert_eq!((uses.upstream_connections, uses.upstream_reused), expected);
        // The cold ones leave, and their numbers are used again.
        drop(cold);
        until("all are gone", &|_, open| open == 1);
        let again: Vec<TcpStream> = (0..COLD / 2).map(|_| connect(&near)).collect();
        for stream in again.iter().step_by(10) {
            assert_eq!(get(stream, "/a.txt").unwrap(), (200, text(1259)));
        }
        // A client that ends its side is answered, and let go.
        let mut last = &warm;
        last.write_all(b"GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        warm.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        last.read_to_end(&mut rest).unwrap();
        assert!(rest.ends_with(&text(1259)));
        drop(again);
        until("nobody is left", &|_, open| open == 0);
        drop(stopping);
        server.join().unwrap().unwrap();
        origin.join().unwrap().unwrap();
    });
    let _ = fs::remove_dir_all(root);
}

fn sockets(stack: &Stack, allocator: Allocator, select: Select) -> DescriptorSockets {
    DescriptorSockets::new(stack, allocator, select).unwrap()
}

#[test]
fn the_selector() {
    story(|stack| TidewallStreams::new(stack).unwrap(), false);
    story(|stack| TidewallStreams::new(stack).unwrap(), true);
}

#[test]
fn select_of_what_is_hinted() {
    let host = |stack: &Stack| SelectHost::new(sockets(stack, Allocator::Bitmap, Select::Hinted));
    story(host, false);
    story(host, true);
}

#[test]
fn the_classical_select() {
    let host =
        |stack: &Stack| SelectHost::new(sockets(stack, Allocator::Linear, Select::Classical));
    story(host, false);
    story(host, true);
}

#[test]
fn poll() {
    story(
        |stack| PollHost::new(sockets(stack, Allocator::Bitmap, Select::Hinted)),
        true,
    );
}

#[test]
fn epoll() {
    let host = |stack: &Stack| DescriptorEpoll::new(stack, Allocator::Bitmap).unwrap();
    story(host, false);
    story(host, true);
}

#[test]
fn an_event_queue() {
    let host = |stack: &Stack| DescriptorQueue::new(stack, Allocator::Linear).unwrap();
    story(host, false);
    story(host, true);
}

/// Nobody answers at an address that no stack has.
#[test]
fn an_absent_origin_is_noticed() {
    let (near, far) = stacks();
    let page = path("absent");
    let counters = Counters::create(&page, 1).unwrap();
    let stop = AtomicBool::new(false);
    // The near stack refuses: nobody listens there.
    let spec = Spec::new(PROXY.port(), Some(SocketAddr::new(NEAR, 81)));
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let host = SelectHost::new(sockets(&far, Allocator::Bitmap, Select::Hinted));
            proxy::serve(&host, FAR, &spec, None, &counters, 0, &stop, |_| {
                ready.send(()).unwrap();
            })
        });
        let stopping = StopAtEnd(&stop);
        is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
        let stream = connect(&near);
        let (status, _) = get(&stream, "/").unwrap();
        assert!(matches!(status, 502 | 504), "{status}");
        drop(stopping);
        server.join().unwrap().unwrap();
    });
}
