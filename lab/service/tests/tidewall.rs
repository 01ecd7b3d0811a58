//! The servers on Tidewall's stack, with each of its ways to wait, over a link
//! inside this process.

mod common;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use common::story::{self, Client, Stage};
use tidewall::descriptor::Allocator;
use tidewall::{MemoryConfig, Stack, TcpStream};
use tidewall_device::memory::{LinkConfig, pair_on_clock};
use tidewall_service::descriptor_host::{DescriptorEpoll, DescriptorQueue};
use tidewall_service::descriptor_sockets::{DescriptorSockets, Select};
use tidewall_service::tidewall_stream::TidewallStreams;
use tidewall_service::{PollHost, SelectHost, StreamHost};
use tidewall_wire::ethernet::MacAddress;

/// The clients and the origin.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The proxy.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn stacks() -> (Stack, Stack) {
    // With a running clock: with a stopped one, the device's interrupt would stay masked
    // after its first poll.
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

/// A client on the near stack.
struct Near(TcpStream);

impl Near {
    fn connect(stack: &Stack, to: SocketAddr) -> Self {
        let stream = TcpStream::connect(stack, to).unwrap();
        let timeout = Some(Duration::from_secs(10));
        stream.set_read_timeout(timeout).unwrap();
        Near(stream)
    }
}

impl Read for Near {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }
}

impl Write for Near {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&self.0).flush()
    }
}

impl Client for Near {
    fn end(&mut self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }
}

/// The story with the proxy on a host of the far stack.
fn story<H: StreamHost>(host: impl FnOnce(&Stack) -> H + Send) {
    let (near, far) = stacks();
    let stage = Stage {
        web: NEAR,
        proxy: FAR,
        cold: 80,
    };
    story::among_idle_clients(
        stage,
        || TidewallStreams::new(&near).unwrap(),
        || host(&far),
        |to| Near::connect(&near, to),
    );
}

fn sockets(stack: &Stack, allocator: Allocator, select: Select) -> DescriptorSockets {
    DescriptorSockets::new(stack, allocator, select).unwrap()
}

#[test]
fn the_selector() {
    story(|stack| TidewallStreams::new(stack).unwrap());
}

#[test]
fn select_of_what_is_hinted() {
    story(|stack| SelectHost::new(sockets(stack, Allocator::Bitmap, Select::Hinted)));
}

#[test]
fn the_classical_select() {
    story(|stack| SelectHost::new(sockets(stack, Allocator::Linear, Select::Classical)));
}

#[test]
fn poll() {
    story(|stack| PollHost::new(sockets(stack, Allocator::Bitmap, Select::Hinted)));
}

#[test]
fn epoll() {
    story(|stack| DescriptorEpoll::new(stack, Allocator::Bitmap).unwrap());
}

#[test]
fn an_event_queue() {
    story(|stack| DescriptorQueue::new(stack, Allocator::Linear).unwrap());
}

#[test]
fn an_absent_origin_is_noticed() {
    let (near, far) = stacks();
    // The near stack rejects it: there is no listener.
    let nobody = SocketAddr::new(NEAR, 81);
    let host = || SelectHost::new(sockets(&far, Allocator::Bitmap, Select::Hinted));
    story::an_absent_origin(FAR, nobody, host, |to| Near::connect(&near, to));
}
