//! When a connection's timer expires.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidewall_device::memory::{Link, LinkConfig, pair};
use tidewall_readiness::{Interest, Selector};
use tidewall_stack::StackHandle;
use tidewall_stack::stack::MemoryConfig;

use super::*;
use crate::tcp::Tcp;
use crate::{TcpListener, TcpStream};

/// Bytes of an answer: two segments, which a receiver acknowledges at once.
const ANSWER: usize = 2_000;

/// Two stacks with a selector each, and a connection between them: near's end, far's end.
/// Their clock advances by 10 us each time that it is read.
struct Bed {
    clock: Arc<AtomicU64>,
    near: StackHandle,
    selectors: [Selector; 2],
    server: TcpStream,
    client: TcpStream,
    _listener: TcpListener,
    _far: StackHandle,
    _link: Link,
}

impl Bed {
    fn new() -> Self {
        let (link, one, other) = pair(LinkConfig::default()).unwrap();
        let clock = Arc::new(AtomicU64::new(0));
        let on = |end, own: u8, peer: u8| {
            let clock = clock.clone();
            let now = move || Duration::from_micros(10 * clock.fetch_add(1, Ordering::Relaxed));
            let config = MemoryConfig {
                addresses: vec![Ipv4Addr::new(10, 0, 0, own).into()],
                mac: MacAddress([2, 0, 0, 0, 0, own]),
                peer: MacAddress([2, 0, 0, 0, 0, peer]),
            };
            StackHandle::in_memory_on_clock(end, config, now, crate::testing::protocols).unwrap()
        };
        let (near, far) = (on(one, 1, 2), on(other, 2, 1));
        let selectors = [&near, &far].map(|stack| Selector::new(stack).unwrap());
        let service = SocketAddr::from(([10, 0, 0, 1], 80));
        let listener = TcpListener::bind(&near, service).unwrap();
        selectors[0].add(&listener, 0, Interest::READABLE).unwrap();
        let client = TcpStream::connect_nonblocking(&far, service).unwrap();
        selectors[1].add(&client, 0, Interest::READABLE).unwrap();
        (0..4).for_each(|_| turn(&selectors));
        listener.set_nonblocking(true).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        selectors[0].add(&server, 1, Interest::READABLE).unwrap();
        Bed {
            clock,
            near,
            selectors,
            server,
            client,
            _listener: listener,
            _far: far,
            _link: link,
        }
    }
}

fn turn(selectors: &[Selector]) {
    for selector in selectors {
        selector
            .wait(&mut Vec::new(), Some(Duration::ZERO))
            .unwrap();
    }
}

/// Keepalive probes of many connections leave together in one second. Work that is due
/// between a probe's time and that second is not delayed until then.
#[test]
fn a_keepalive_timer_puts_no_other_off() {
    let mut bed = Bed::new();
    let keepalive = tidewall_protocol::tcp::Keepalive {
        idle: Duration::from_millis(2100),
        ..Default::default()
    };
    bed.server.set_keepalive(Some(keepalive)).unwrap();
    bed.clock.store(150_000, Ordering::Relaxed);
    turn(&bed.selectors);
    // Just before its time data leaves, and its acknowledgment does not arrive.
    bed.clock.store(205_000, Ordering::Relaxed);
    bed.server.write_all(b"!").unwrap();
    turn(&bed.selectors[..1]);
    // The probes of the second that contains its time leave later than that.
    bed.clock.store(280_000, Ordering::Relaxed);
    turn(&bed.selectors[..1]);
    let info = bed.server.info().unwrap();
    assert!(info.retransmissions + info.loss_probes > 0, "{info:?}");
}

/// A thread that sleeps after each answer would be woken for nothing after two round
/// trips and 2 ms (RFC 8985 §7.2).
#[test]
fn a_timer_for_what_is_acknowledged_wakes_nobody() {
    let Bed {
        near,
        selectors,
        mut server,
        mut client,
        ..
    } = Bed::new();
    let turn = || turn(&selectors);
    let core = near.core();
    let connection = Tcp::of(core).flows.all().pop().unwrap();
    for _ in 0..10 {
        client.write_all(b"?").unwrap();
        (0..2).for_each(|_| turn());
        assert_eq!(server.read(&mut [0; 2]).unwrap(), 1);
        server.write_all(&[0; ANSWER]).unwrap();
        selectors[0]
            .wait(&mut Vec::new(), Some(Duration::ZERO))
            .unwrap();
        let armed = Duration::from_nanos(connection.look().armed);
        assert!(connection.look().connection.awaits_acknowledgment());
        assert!(armed < core.now() + Duration::from_millis(500), "{armed:?}");
        (0..3).for_each(|_| turn());
        client.read_exact(&mut [0; ANSWER]).unwrap();
        assert!(!connection.look().connection.awaits_acknowledgment());
        let armed = Duration::from_nanos(connection.look().armed);
        assert!(armed > core.now() + Duration::from_millis(500), "{armed:?}");
    }
}
