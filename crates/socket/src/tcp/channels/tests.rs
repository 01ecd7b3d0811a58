//! Channels and flows at their limits, and which thread may wait for which.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use tidewall_device::memory::{LinkConfig, pair};
use tidewall_protocol::ip::reassembly::Reassembled;
use tidewall_protocol::tcp::TimeWaitEntry;
use tidewall_stack::StackHandle;
use tidewall_stack::lock::lock;
use tidewall_stack::stack::MemoryConfig;
use tidewall_wire::ethernet::MacAddress;

use super::*;
use crate::tcp::Tcp;
use crate::tcp::frames::Deferred;

const PORT: u16 = 80;

fn stack() -> StackHandle {
    let (_, end, _) = pair(LinkConfig::default()).unwrap();
    let config = MemoryConfig {
        addresses: vec!["10.0.0.1".parse().unwrap()],
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        peer: MacAddress([2, 0, 0, 0, 0, 2]),
    };
    StackHandle::in_memory(end, config, crate::testing::protocols).unwrap()
}

fn flow(number: u32) -> FourTuple {
    let [host, high, low] = [number >> 16, number >> 8, number].map(|byte| byte as u8);
    FourTuple {
        local: "10.0.0.1:80".parse().unwrap(),
        remote: SocketAddr::new(
            [10, 1 + host, high, low].into(),
            1024 + number as u16 % 1024,
        ),
    }
}

fn entry(flow: FourTuple) -> TimeWaitEntry {
    TimeWaitEntry {
        flow,
        send_next: 1,
        receive_next: 1,
        window: 1000,
        timestamp_recent: None,
        timestamp_offset: 0,
    }
}

/// As after the end of a connection that closed first.
fn wait(core: &Core, flow: FourTuple) {
    Tcp::of(core).ports.again(PORT);
    Tcp::of(core).enter_flow(
        core,
        &flow,
        Tcp::of(core).channels.time_wait.id,
        Part::TimeWait,
    );
    Tcp::of(core).enter_time_wait(core, entry(flow));
}

fn waiting(core: &Core) -> usize {
    lock(&Tcp::of(core).time_wait.table).len()
}

#[test]
fn time_wait_makes_room_for_connections() {
    let stack = stack();
    let core = stack.core();
    let own = ChannelId::new(9, 1);
    let mut next = (0u32..).map(flow);
    let mut flows = || next.next().unwrap();
    // Connections that leave some room, and more in TIME-WAIT than fit there.
    let live = FLOWS_MAX / 2;
    for _ in 0..live {
        assert!(Tcp::of(core).enter_flow(core, &flows(), own, Part::All));
    }
    for _ in 0..FLOWS_MAX - live + 1000 {
        wait(core, flows());
    }
    assert_eq!(core.tables.flows(), FLOWS_MAX);
    assert_eq!(waiting(core), FLOWS_MAX - live);
    // Each further connection evicts one there ...
    for _ in 0..1000 {
        assert!(Tcp::of(core).enter_flow(core, &flows(), own, Part::All));
        Tcp::of(core).bound_time_wait(core);
    }
    assert_eq!(waiting(core), FLOWS_MAX - live - 1000);
    // ... also when two buckets are full, if one contains any of them.
    let (mut more, mut refused) = (0, 0);
    while waiting(core) > FLOWS_MAX / 4 {
        more += 1;
        refused += usize::from(!Tcp::of(core).enter_flow(core, &flows(), own, Part::All));
    }
    assert!(refused * 20 < more, "{refused} of {more}");
    let flows = core.tables.flows();
    assert!(flows > FLOW_BUCKETS * FLOW_WAYS * 8 / 10, "{flows}");
    let evicted = Tcp::of(core).counters.values();
    let evicted = evicted
        .iter()
        .find(|(name, _)| *name == "time-wait-evicted");
    assert!(evicted.unwrap().1 > 2000, "{evicted:?}");
}

/// A thread of a host architecture sorts fragments while it holds its queue. It must not
/// wait for that queue again, nor for a connection, whose thread may be waiting for the
/// queue.
#[test]
fn a_reassembled_segment_waits_for_no_lock() {
    let stack = stack();
    let core = stack.core();
    let listener = crate::TcpListener::bind(&stack, "10.0.0.1:80".parse().unwrap()).unwrap();
    let connection = {
        let config = Tcp::of(core).config(true);
        let connection =
            tidewall_protocol::tcp::Connection::connect(flow(1), 1, 0, &config, core.now());
        Deferred::collect(core, |deferred| {
            Tcp::of(core).open(core, connection, None, 0, 64, deferred)
        })
        .unwrap()
    };
    let mut bytes = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
    let FourTuple { local, remote } = flow(1);
    for address in [remote.ip(), local.ip()] {
        let std::net::IpAddr::V4(address) = address else {
            panic!("IPv4 only");
        };
        bytes.extend(address.octets());
    }
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend([0, 0, 0, 9, 0, 0, 0, 9, 0x50, 0x10, 4, 0, 0, 0, 0, 0]);
    let datagram = Reassembled {
        bytes,
        transport: 20,
        tag: Some(Tcp::of(core).channels.shared.id.value().into()),
    };
    let held = (connection.lock(), core.receiver.queues[0].poller.lock());
    let (done, seen) = channel();
    let other = stack.clone();
    let thread = std::thread::spawn(move || {
        other.core().ip.deliver(other.core(), vec![datagram]);
        done.send(()).unwrap();
    });
    let in_time = seen.recv_timeout(Duration::from_secs(10)).is_ok();
    drop(held);
    thread.join().unwrap();
    assert!(in_time, "it waited for a lock");
    drop(listener);
}

/// A thread that asks the kernel for a route holds the routes locked until the answer
/// arrives.
#[test]
fn sending_waits_for_no_route() {
    let stack = stack();
    let core = stack.core();
    let listener = crate::TcpListener::bind(&stack, "10.0.0.1:80".parse().unwrap()).unwrap();
    let config = Tcp::of(core).config(true);
    let connection =
        tidewall_protocol::tcp::Connection::connect(flow(1), 1, 0, &config, core.now());
    let neighbour = Some(MacAddress([2, 0, 0, 0, 0, 2]));
    let connection = Deferred::collect(core, |deferred| {
        Tcp::of(core).open(core, connection, neighbour, 0, 64, deferred)
    })
    .unwrap();
    let asking = lock(&core.ip.routes);
    let (done, seen) = channel();
    let other = stack.clone();
    let thread = std::thread::spawn(move || {
        let core = other.core();
        core.flush();
        done.send(()).unwrap();
    });
    let in_time = seen.recv_timeout(Duration::from_secs(10)).is_ok();
    drop(asking);
    thread.join().unwrap();
    assert!(in_time, "it waited for a route");
    assert!(
        !connection.lock().connection.wants_output(),
        "the SYN is still here"
    );
    drop(listener);
}
