//! Facts that a listener enters with the driver before its answer can leave.

use std::time::{Duration, Instant};

use tidewall_device::demux::layout::Counter;
use tidewall_device::memory::{Link, LinkConfig, Side, pair};
use tidewall_protocol::tcp::{FourTuple, Outgoing, Segment, output};
use tidewall_protocol::udp::Checksum;
use tidewall_stack::StackHandle;
use tidewall_stack::lock::lock;
use tidewall_stack::stack::MemoryConfig;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::{Flags, Header, Options};

use super::{ListenOptions, TcpListener};
use crate::tcp::Tcp;

const NEAR: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const FAR: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// Half-open connections per network that a small listener remembers; those beyond are
/// answered with cookies.
const REMEMBERED: u16 = 4;

/// Returns a client's header, and its flow as the server sees it.
fn from_client(port: u16, flags: Flags) -> (FourTuple, Header) {
    let flow = FourTuple {
        local: "10.0.0.2:80".parse().unwrap(),
        remote: ([10, 0, 0, 1], port).into(),
    };
    let header = Header {
        source_port: port,
        destination_port: 80,
        sequence: 1,
        acknowledgment: 1,
        flags,
        window: 1000,
        urgent: 0,
        options: Options {
            maximum_segment_size: flags.contains(Flags::SYN).then_some(1460),
            ..Options::default()
        },
    };
    (flow, header)
}

/// Returns a client's acknowledgment in a frame.
fn acknowledgment(port: u16) -> Vec<u8> {
    let (flow, header) = from_client(port, Flags::ACK);
    let link = tidewall_protocol::tcp::Link {
        source_mac: NEAR,
        destination_mac: FAR,
        hop_limit: 64,
        checksum: Checksum::Software,
    };
    let turned = FourTuple {
        local: flow.remote,
        remote: flow.local,
    };
    let outgoing = Outgoing {
        header,
        payload: [&[], &[]],
        segment_size: 0,
        traffic_class: 0,
    };
    let mut frame = vec![0; 200];
    let length = output(&mut frame, &link, &turned, &outgoing).unwrap();
    frame.truncate(length);
    frame
}

/// Delivers a client's SYN to a stack.
fn syn(stack: &StackHandle, port: u16) {
    let (flow, header) = from_client(port, Flags::SYN);
    let segment = Segment {
        flow,
        header,
        payload: &[],
        traffic_class: 0,
    };
    let core = stack.core();
    Tcp::of(core).dispatch(core, &segment, NEAR, 0, false);
}

/// Delivers SYNs to a listener's stack. No answer to the last can leave before `is_known`
/// holds, or time is over; returns which.
fn knows_first(syns: u16, mut is_known: impl FnMut(&StackHandle, &Link, u64) -> bool) -> bool {
    let (link, _, end) = pair(LinkConfig::default()).unwrap();
    let counters = end.tables.trusted.counters(0);
    let config = MemoryConfig {
        addresses: vec!["10.0.0.2".parse().unwrap()],
        mac: FAR,
        peer: NEAR,
    };
    let stack = StackHandle::in_memory(end, config, crate::testing::protocols).unwrap();
    let options = ListenOptions {
        backlog: 1,
        ..ListenOptions::default()
    };
    let listener = TcpListener::bind_with(&stack, "10.0.0.2:80".parse().unwrap(), options).unwrap();
    for port in 1..syns {
        syn(&stack, 1000 + port);
    }
    // A thread that holds the device's ring may make it send at any time.
    let sending = lock(&stack.core().receiver.queues[0].transmitter);
    let other = stack.clone();
    let thread = std::thread::spawn(move || syn(&other, 1000 + syns));
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut known = false;
    while !known && Instant::now() < deadline {
        known = is_known(&stack, &link, counters.counter(Counter::CookieFailed));
    }
    drop(sending);
    thread.join().unwrap();
    drop(listener);
    known
}

#[test]
fn an_answer_leaves_when_the_driver_knows_its_flow() {
    // Its address is entered as a flow of its own.
    let known = knows_first(1, |stack, _, _| stack.core().tables.flows() == 2);
    assert!(known, "what acknowledges it would be the kernel's to reset");
}

#[test]
fn a_cookie_leaves_when_the_driver_takes_cookies() {
    let known = knows_first(REMEMBERED + 1, |_, link, failed| {
        link.inject(Side::B, &acknowledgment(999));
        failed > 0
    });
    assert!(known, "what acknowledges it would be the kernel's to reset");
}
