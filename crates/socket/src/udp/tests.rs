//! Rounds of receiving with sockets in them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_stack::StackHandle;
use tidewall_stack::receiver::steering::{UNMEASURED, frame_cost};
use tidewall_stack::stack::MemoryConfig;
use tidewall_stack::threads::thread_waker;
use tidewall_sys::priority::Priority;
use tidewall_wire::ethernet::MacAddress;

use super::UdpSocket;
use crate::testing::protocols;

fn config() -> MemoryConfig {
    MemoryConfig {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        peer: MacAddress([2, 0, 0, 0, 0, 2]),
    }
}

/// A frame that is dropped in an interrupt is charged as those of polls.
#[test]
fn a_frame_costs_the_time_of_polls_over_their_frames() {
    const POLL: u64 = 1_000;
    let (_link, end, other) = pair(LinkConfig::default()).unwrap();
    let clock = Arc::new(AtomicU64::new(0));
    let reads = clock.clone();
    let now = move || Duration::from_nanos(reads.fetch_add(POLL, Ordering::Relaxed));
    let stack = StackHandle::in_memory_on_clock(end, config(), now, protocols).unwrap();
    let peer = MemoryConfig {
        addresses: vec!["10.0.0.2".parse().unwrap()],
        mac: config().peer,
        peer: config().mac,
    };
    let peer = StackHandle::in_memory(other, peer, protocols).unwrap();
    let at = "10.0.0.1:7".parse().unwrap();
    let _socket = UdpSocket::bind(&stack, at).unwrap();
    let sender = UdpSocket::bind(&peer, "10.0.0.2:9".parse().unwrap()).unwrap();
    let core = stack.core();
    assert_eq!(frame_cost(core), UNMEASURED);
    let (mut polls, mut frames) = (0, 0);
    while frames < 10 {
        sender.send_to(b"a datagram", at).unwrap();
        sender.send_to(b"a datagram", at).unwrap();
        let progress = core.receiver.round_and_return(core);
        let taken = progress.unwrap().frames as u64;
        polls += u64::from(taken > 0);
        frames += taken;
    }
    assert_eq!(frame_cost(core), (POLL * polls) as f64 / frames as f64);
}

/// A batch that has made a round ends where that woke a thread of higher priority.
#[test]
fn a_batch_ends_for_a_thread_of_higher_priority() {
    for (priority, expected) in [(Priority::IDLE, 20), (Priority::from_u8(u8::MAX), 4)] {
        let (_link, near, far) = pair(LinkConfig::default()).unwrap();
        let [here, there] = ["10.0.0.1", "10.0.0.2"].map(|it| it.parse::<IpAddr>().unwrap());
        let MemoryConfig { mac, peer, .. } = config();
        let near_config = MemoryConfig {
            addresses: vec![there],
            mac: peer,
            peer: mac,
        };
        let near = StackHandle::in_memory(near, near_config, protocols).unwrap();
        let clock = Arc::new(AtomicU64::new(50));
        let reads = clock.clone();
        let now = move || Duration::from_nanos(reads.load(Ordering::Relaxed));
        let far = StackHandle::in_memory_on_clock(far, config(), now, protocols).unwrap();
        let sender = UdpSocket::bind(&near, (there, 7000).into()).unwrap();
        let [one, other] =
            [7000, 7001].map(|port| UdpSocket::bind(&far, (here, port).into()).unwrap());
        let waker = std::thread::spawn(|| thread_waker().unwrap());
        let waker = waker.join().unwrap();
        waker.set_priority(priority);
        other.inner.wait_queue.enter(&waker, true);
        for _ in 0..20 {
            sender.send_to(b"x", (here, 7000).into()).unwrap();
        }
        let core = far.core();
        core.receiver.round(core, false).unwrap();
        core.receiver.queues[0].set_due(100);
        let mut received = 0;
        let given = one.recv_batch(20, |_| {
            if received == 0 {
                clock.store(200, Ordering::Relaxed);
                sender.send_to(b"x", (here, 7001).into()).unwrap();
            }
            received += 1;
        });
        assert_eq!((given.unwrap(), received), (expected, expected));
        assert!(other.inner.has_input());
    }
}
