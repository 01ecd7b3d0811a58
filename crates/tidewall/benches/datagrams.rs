//! Instructions that a received datagram costs: from the device to its channel, and from
//! there to the application.
//!
//! `cargo bench -p tidewall --bench datagrams -- --instructions` counts them under
//! valgrind and judges them against `benches/datagrams_instructions.txt`; with `--keep` it
//! writes that. Frames reach the channel through the in-memory device. Its work in place
//! of the driver program is counted with them.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use tidewall::{MemoryConfig, Stack, UdpSocket};
use tidewall_bench_instructions::Scenario;
use tidewall_device::memory::{LinkConfig, pair};
use tidewall_wire::ethernet::MacAddress;

/// Datagrams of a round, as many as a service takes of a socket at once.
const BATCH: usize = 64;
/// LRP's.
const PAYLOAD: [u8; 14] = [0; 14];
const PORTS: [u16; 2] = [7, 9];

const SCENARIOS: [Scenario; 2] = [
    ("from the device to the channel", |counter| {
        let bed = Bed::new();
        while counter.next_round() {
            bed.send();
            counter.count(BATCH, || bed.poll());
            bed.take();
        }
    }),
    ("from the channel to the application", |counter| {
        let bed = Bed::new();
        while counter.next_round() {
            bed.send();
            bed.poll();
            counter.count(BATCH, || bed.take());
        }
    }),
];

struct Bed {
    /// One that nothing comes for, and one that is blasted.
    idle: UdpSocket,
    blasted: UdpSocket,
    sender: UdpSocket,
    to: SocketAddr,
}

impl Bed {
    fn new() -> Self {
        let (_, near, far) = pair(LinkConfig::default()).expect("memory");
        let on = |end, own: u8, other: u8| {
            let config = MemoryConfig {
                addresses: vec![Ipv4Addr::new(10, 0, 0, own).into()],
                mac: MacAddress([2, 0, 0, 0, 0, own]),
                peer: MacAddress([2, 0, 0, 0, 0, other]),
            };
            Stack::in_memory_on_clock(end, config, || Duration::ZERO).expect("a stack")
        };
        let (near, far) = (on(near, 1, 2), on(far, 2, 1));
        let bind = |stack: &Stack, address: [u8; 4], port: u16| {
            let socket = UdpSocket::bind(stack, (address, port).into()).expect("a port");
            socket.set_nonblocking(true).expect("an own socket");
            socket
        };
        Bed {
            idle: bind(&near, [10, 0, 0, 1], PORTS[0]),
            blasted: bind(&near, [10, 0, 0, 1], PORTS[1]),
            sender: bind(&far, [10, 0, 0, 2], 1000),
            to: ([10, 0, 0, 1], PORTS[1]).into(),
        }
    }

    fn send(&self) {
        for _ in 0..BATCH {
            self.sender.queue_to(&PAYLOAD, self.to).expect("room");
        }
        self.sender.flush().expect("a device");
        // It takes back what it has sent.
        let _ = self.sender.recv_batch(1, |_| ());
    }

    /// A receiver that finds nothing polls for all.
    fn poll(&self) {
        let found = self.idle.recv_batch(BATCH, |_| ());
        assert!(found.is_err(), "{found:?}");
    }

    fn take(&self) {
        let taken = self.blasted.recv_batch(BATCH, |datagram| {
            black_box((datagram.payload, datagram.source));
        });
        assert_eq!(taken.ok(), Some(BATCH));
    }
}

fn main() -> ExitCode {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/datagrams_instructions.txt"
    );
    tidewall_bench_instructions::main(file, &SCENARIOS).unwrap_or_else(|| {
        eprintln!("only instructions are counted: add -- --instructions");
        ExitCode::FAILURE
    })
}
