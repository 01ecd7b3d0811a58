//! The memory of a connection whose peer has sent one byte, at the far end of the
//! window. A separate binary, because it counts every allocation of the process.

#[path = "../idle_memory/raw_count.rs"]
mod raw_count;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tidewall::tcp::Interest;
use tidewall::{MemoryConfig, Selector, Stack, TcpListener};
use tidewall_device::memory::{LinkConfig, Side, Tap, pair};
use tidewall_protocol::InputOptions;
use tidewall_protocol::tcp::{Checksum, FourTuple, Link, Outgoing, input, output};
use tidewall_wire::ethernet::{HEADER_LEN, MacAddress};
use tidewall_wire::tcp::{Flags, Header, Options};

/// Connections that are counted; [`CONNECTIONS_VAR`] asks for another number.
const CONNECTIONS: usize = 100_000;
const CONNECTIONS_VAR: &str = "TIDEWALL_CONNECTIONS";
/// Connections before counting begins: more than there are channels.
const UNCOUNTED: usize = 5_000;
/// Most bytes that such a connection may take.
const LIMIT: usize = 2560;
/// Connections that are opened at a time.
const BATCH: usize = 50;

const NEAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const FAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER_ISN: u32 = u32::MAX - 40_000;

fn service() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 80))
}

/// A peer of its own for each connection.
fn flow(number: usize) -> FourTuple {
    let [_, _, high, low] = ((number / 10_000) as u32).to_be_bytes();
    FourTuple {
        local: SocketAddr::from(([10, 1, high, low], 10_000 + (number % 10_000) as u16)),
        remote: service(),
    }
}

fn frame(flow: &FourTuple, header: Header, payload: &[u8]) -> Vec<u8> {
    let link = Link {
        source_mac: NEAR_MAC,
        destination_mac: FAR_MAC,
        hop_limit: 64,
        checksum: Checksum::Software,
    };
    let outgoing = Outgoing {
        header: Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            ..header
        },
        payload: [payload, &[]],
        segment_size: 1460,
        traffic_class: 0,
    };
    let mut frame = vec![0; 200];
    let length = output(&mut frame, &link, flow, &outgoing).unwrap();
    frame.truncate(length);
    frame
}

/// The stack's segments since the last look, as their receivers see them.
fn sent(tap: &Tap) -> Vec<(FourTuple, Header)> {
    let options = InputOptions {
        verified: true,
        checksum_offload_possible: true,
    };
    let captured = tap.take();
    let segments = captured.iter().map(|captured| {
        let segment = input(&captured.bytes[HEADER_LEN..], 20, &options).unwrap();
        (segment.flow, segment.header)
    });
    segments
        .filter(|(flow, _)| flow.remote == service())
        .collect()
}

#[test]
fn a_byte_at_the_far_end_of_the_window_takes_little() {
    let connections =
        std::env::var(CONNECTIONS_VAR).map_or(CONNECTIONS, |number| number.parse().unwrap());
    let (link, _near, far) = pair(LinkConfig::default()).unwrap();
    let config = MemoryConfig {
        addresses: vec![Ipv4Addr::new(10, 0, 0, 2).into()],
        mac: FAR_MAC,
        peer: NEAR_MAC,
    };
    let stack = Stack::in_memory_on_clock(far, config, || Duration::ZERO).unwrap();
    let listener = TcpListener::bind(&stack, service()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let selector = Selector::new(&stack).unwrap();
    selector.add(&listener, 0, Interest::READABLE).unwrap();
    let tap = link.tap();
    let mut events = Vec::new();
    let mut streams = Vec::with_capacity(UNCOUNTED + connections);
    let mut before = 0;
    while streams.len() < UNCOUNTED + connections {
        if streams.len() >= UNCOUNTED && before == 0 {
            before = raw_count::bytes();
        }
        let numbers = streams.len()..streams.len() + BATCH;
        let mut send = |frames: Vec<Vec<u8>>| {
            tap.take();
            for frame in frames {
                link.inject(Side::B, &frame);
            }
            for _ in 0..4 {
                selector.wait(&mut events, Some(Duration::ZERO)).unwrap();
            }
        };
        let syn = |number| {
            let options = Options {
                maximum_segment_size: Some(1460),
                sack_permitted: true,
                window_scale: Some(7),
                ..Options::default()
            };
            let header = Header {
                sequence: PEER_ISN,
                flags: Flags::SYN,
                window: 65_535,
                options,
                ..Header::default()
            };
            frame(&flow(number), header, b"")
        };
        send(numbers.clone().map(syn).collect());
        // Each SYN-ACK is answered by its acknowledgment and one byte, the last
        // that the window of a SYN-ACK allows.
        let mut answers = Vec::new();
        for (flow, header) in sent(&tap) {
            assert!(header.flags.contains(Flags::SYN | Flags::ACK));
            let acknowledge = Header {
                sequence: PEER_ISN.wrapping_add(1),
                acknowledgment: header.sequence.wrapping_add(1),
                flags: Flags::ACK,
                window: 512,
                ..Header::default()
            };
            let last = u32::from(header.window) - 1;
            let beyond = Header {
                sequence: acknowledge.sequence.wrapping_add(last),
                ..acknowledge
            };
            answers.push(frame(&flow, acknowledge, b""));
            answers.push(frame(&flow, beyond, b"x"));
        }
        assert_eq!(answers.len(), 2 * BATCH);
        send(answers);
        // The acknowledgment of each tells of the byte.
        let reported = sent(&tap);
        assert!(
            reported
                .iter()
                .all(|(_, header)| !header.options.sack.is_empty())
        );
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            selector.add(&stream, 1, Interest::READABLE).unwrap();
            streams.push(stream);
        }
        assert_eq!((streams.len(), reported.len()), (numbers.end, BATCH));
    }
    let bytes = (raw_count::bytes() - before).div_ceil(connections);
    println!("{connections} connections, a byte at the far end of each window: {bytes} bytes each");
    assert!(bytes <= LIMIT, "{bytes} bytes a connection");
}
