//! Segments through forwarders over in-memory links.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use tidewall_device::frame::{FRAME_SIZE, FrameMemory};
use tidewall_device::memory::{Link, LinkConfig, PortCounters, Rings, Side, Tap, pair_on_parts};
use tidewall_protocol::tcp::{self, FourTuple, Link as Neighbours, Outgoing};
use tidewall_protocol::{DropReason, InputOptions};
use tidewall_stack::stack::MemoryConfig;
use tidewall_wire::ethernet::MacAddress;
use tidewall_wire::tcp::{Flags, Header};
use tidewall_wire::udp::{Addresses, Checksum};

use super::*;

mod labelled;

const HERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const SERVICE: u16 = 6000;
/// The port from which the forwarder sends to members.
const FROM: u16 = 61_000;
/// Frames of each queue, half of them to receive into.
const FRAMES: u32 = 128;

/// Links to so many hosts, the ends of a forwarder at side A of each.
struct Bed {
    links: Vec<(Link, Tap)>,
    forwarder: Forwarder,
}

fn address(last: u8, v6: bool) -> IpAddr {
    match v6 {
        true => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, last.into()]),
        false => IpAddr::from([10, 77, 0, last]),
    }
}

/// Returns the addresses of the forwarder on a link, and of the host at its other end.
fn ends(link: usize, v6: bool) -> (IpAddr, IpAddr) {
    let number = link as u8;
    (address(1 + 2 * number, v6), address(2 + 2 * number, v6))
}

fn bed(links: usize, config: &LinkConfig) -> Bed {
    bed_of(links, config, FRAMES)
}

fn bed_of(links: usize, config: &LinkConfig, frames: u32) -> Bed {
    let parts = config.queues * links as u32;
    let mut parts = FrameMemory::in_parts(parts, frames, FRAME_SIZE).unwrap();
    let mut stacks = Vec::new();
    let mut made = Vec::new();
    for number in 0..links {
        let own = parts.drain(..config.queues as usize).collect();
        let (link, end, _) = pair_on_parts(config.clone(), own).unwrap();
        let addresses = [false, true].map(|v6| ends(number, v6).0).to_vec();
        let config = MemoryConfig {
            addresses,
            mac: HERE,
            peer: THERE,
        };
        stacks.push(StackHandle::in_memory(end, config, super::protocols).unwrap());
        let tap = link.tap();
        made.push((link, tap));
    }
    let mut forwarder = Forwarder::over(stacks, frames).unwrap();
    for number in 0..links {
        for v6 in [false, true] {
            let claimed = SocketAddr::new(ends(number, v6).0, SERVICE);
            forwarder.claim(number, claimed).unwrap();
        }
        forwarder.claim_ports(number, FROM..=FROM).unwrap();
    }
    Bed {
        links: made,
        forwarder,
    }
}

/// A segment from the host at a link's end.
fn from_host(link: usize, v6: bool, sequence: u32, payload: &[u8], checksum: Checksum) -> Vec<u8> {
    let (here, there) = ends(link, v6);
    let flow = FourTuple {
        local: SocketAddr::new(there, 40_000),
        remote: SocketAddr::new(here, SERVICE),
    };
    let link = Neighbours {
        source_mac: THERE,
        destination_mac: HERE,
        hop_limit: 64,
        checksum,
    };
    let outgoing = Outgoing {
        header: Header {
            source_port: 40_000,
            destination_port: SERVICE,
            sequence,
            acknowledgment: 1,
            flags: Flags::ACK | Flags::PSH,
            window: 1000,
            ..Header::default()
        },
        payload: [payload, &[]],
        segment_size: u16::MAX,
        traffic_class: 0,
    };
    let mut frame = vec![0; 100 + payload.len()];
    let length = tcp::output(&mut frame, &link, &flow, &outgoing).unwrap();
    frame.truncate(length);
    frame
}

/// The headers towards the host at a link's end.
fn heading(to: usize, v6: bool, sequence: u32) -> Heading {
    let (here, there) = ends(to, v6);
    Heading {
        flow: FourTuple {
            local: SocketAddr::new(here, FROM),
            remote: SocketAddr::new(there, 7000),
        },
        header: Header {
            source_port: FROM,
            destination_port: 7000,
            sequence,
            acknowledgment: 2,
            flags: Flags::ACK,
            window: 2000,
            ..Header::default()
        },
        traffic_class: 0,
    }
}

impl Bed {
    fn poll(&mut self) {
        self.forwarder.wait(Some(Duration::ZERO)).unwrap();
    }

    /// Forwards all that has come by `to`, whole.
    fn forward_all(&mut self, v6: bool, to: impl Fn(usize) -> usize) -> usize {
        self.poll();
        let forward = |output: &mut Output, arrived: &mut Arrived<'_>| {
            let to = to(arrived.interface());
            let segment = arrived.segment().unwrap();
            let (sequence, length) = (segment.header.sequence, segment.payload.len());
            output.forward(to, &heading(to, v6, sequence + 1), arrived, 0..length);
        };
        self.forwarder.receive(forward)
    }

    /// Returns the segments that the forwarder sent by a link: sequence numbers and
    /// payloads, all checked.
    fn sent(&self, link: usize) -> Vec<(u32, Vec<u8>)> {
        let captured = self.links[link].1.take();
        let sent = captured.iter().filter(|frame| frame.from == Side::A);
        let parsed = sent.map(|frame| {
            assert_eq!(frame.bytes[..6], THERE.0);
            assert_eq!(frame.bytes[6..12], HERE.0);
            let ip = &frame.bytes[14..];
            let transport = if ip[0] >> 4 == 4 { 20 } else { 40 };
            let options = InputOptions {
                checksum_offload_possible: false,
                verified: false,
            };
            let segment = tcp::input(ip, transport, &options).unwrap();
            assert_eq!(segment.flow.local.port(), 7000);
            assert_eq!(segment.flow.remote.port(), FROM);
            (segment.header.sequence, segment.payload.to_vec())
        });
        parsed.collect()
    }

    fn counters(&self, link: usize) -> PortCounters {
        self.links[link].0.port_counters(Side::A)
    }
}

#[test]
fn segments_go_on_in_their_frames_and_the_frames_go_home() {
    for (v6, queues) in [(false, 1), (true, 2)] {
        let config = LinkConfig {
            queues,
            ..LinkConfig::default()
        };
        let mut bed = bed(2, &config);
        // Far more than there are frames, and than a channel may hold.
        for round in 0..200u32 {
            for link in 0..2 {
                for number in 0..8 {
                    let payload = [number as u8; 100];
                    let sequence = round * 8 + number;
                    let frame = from_host(link, v6, sequence, &payload, Checksum::Software);
                    bed.links[link].0.send(Side::B, &frame);
                }
            }
            assert_eq!(bed.forward_all(v6, |from| 1 - from), 16);
            for link in 0..2 {
                let wanted: Vec<_> = (0..8)
                    .map(|number| (round * 8 + number + 1, vec![number as u8; 100]))
                    .collect();
                assert_eq!(bed.sent(link), wanted);
            }
        }
        let output = bed.forwarder.output().counters();
        let all = OutputCounters {
            in_place: 3200,
            ..OutputCounters::default()
        };
        assert_eq!(output, all);
        for link in 0..2 {
            let counters = bed.counters(link);
            assert_eq!((counters.received, counters.fill_empty), (1600, 0));
        }
        assert!(!bed.forwarder.output.is_sending());
    }
}

/// A payload longer than several frames of memory.
fn long_payload(length: usize, mark: u32) -> Vec<u8> {
    let byte = |at: u32| (at ^ at >> 8 ^ mark) as u8;
    (0..length as u32).map(byte).collect()
}

fn jumbo() -> LinkConfig {
    LinkConfig {
        mtu: 9000,
        joins: true,
        ..LinkConfig::default()
    }
}

#[test]
fn packets_in_several_frames_go_on_in_them_and_the_frames_go_home() {
    for (v6, checksum) in [
        (false, Checksum::Software),
        (true, Checksum::Software),
        (false, Checksum::Offload),
    ] {
        let mut bed = bed(2, &jumbo());
        // Far more than there are frames: five each.
        for round in 0..200u32 {
            let payload = long_payload(8192, round);
            for link in 0..2 {
                let frame = from_host(link, v6, round, &payload, checksum);
                bed.links[link].0.send(Side::B, &frame);
                let small = from_host(link, v6, round + 7, b"small", checksum);
                bed.links[link].0.send(Side::B, &small);
            }
            assert_eq!(bed.forward_all(v6, |from| 1 - from), 4);
            for link in 0..2 {
                let wanted = [(round + 1, payload.clone()), (round + 8, b"small".to_vec())];
                assert!(bed.sent(link) == wanted, "round {round}");
            }
        }
        let all = OutputCounters {
            in_place: 800,
            ..OutputCounters::default()
        };
        assert_eq!(bed.forwarder.output().counters(), all);
        for link in 0..2 {
            let counters = bed.counters(link);
            assert_eq!((counters.received, counters.fill_empty), (400, 0));
        }
    }
}

#[test]
fn a_part_of_several_frames_leaves_in_them_if_nothing_is_left_behind_it() {
    let mut bed = bed(2, &jumbo());
    let payload = long_payload(5000, 1);
    // From within the first frame to the end; from the second on; not to the end.
    let parts = [(100..5000, true), (3500..5000, false), (900..2700, false)];
    for round in 0..60u32 {
        for (part, _) in &parts {
            let frame = from_host(0, false, round, &payload, Checksum::Software);
            bed.links[0].0.inject(Side::A, &frame);
            bed.poll();
            let received = bed.forwarder.receive(|output, arrived| {
                let segment = arrived.segment().unwrap();
                assert_eq!(segment.payload.len(), 5000);
                output.forward(1, &heading(1, false, round), arrived, part.clone());
            });
            assert_eq!(received, 1);
            assert!(bed.sent(1) == [(round, payload[part.clone()].to_vec())]);
        }
    }
    let counters = bed.forwarder.output().counters();
    assert_eq!((counters.in_place, counters.copied), (60, 120));
    // This device has no packet socket for a copy that is longer than a frame.
    let frame = from_host(0, false, 1, &payload, Checksum::Software);
    bed.links[0].0.inject(Side::A, &frame);
    bed.poll();
    bed.forwarder.receive(|output, arrived| {
        output.forward(1, &heading(1, false, 1), arrived, 0..4000);
    });
    assert_eq!(bed.forwarder.output().counters().refused, 1);
    assert_eq!(bed.counters(0).fill_empty, 0);
}

#[test]
fn a_checksum_left_to_the_device_is_finished_or_left_to_the_next() {
    for checksum_offload in [false, true] {
        let config = LinkConfig {
            checksum_offload,
            ..LinkConfig::default()
        };
        let mut bed = bed(2, &config);
        for v6 in [false, true] {
            let frame = from_host(0, v6, 7, b"not yet summed", Checksum::Offload);
            bed.links[0].0.inject(Side::A, &frame);
            assert_eq!(bed.forward_all(v6, |_| 1), 1);
            assert_eq!(bed.sent(1), [(8, b"not yet summed".to_vec())]);
        }
        assert_eq!(bed.forwarder.output().counters().in_place, 2);
    }
}

#[test]
fn what_is_damaged_goes_nowhere() {
    let mut bed = bed(2, &LinkConfig::default());
    let mut frame = from_host(0, false, 7, b"whole", Checksum::Software);
    if let Some(last) = frame.last_mut() {
        *last ^= 1;
    }
    bed.links[0].0.inject(Side::A, &frame);
    bed.poll();
    let mut seen = 0;
    let received = bed.forwarder.receive(|output, arrived| {
        seen += 1;
        assert!(arrived.segment().is_none());
        // Forwarding it all the same does not make it right.
        output.forward(1, &heading(1, false, 1), arrived, 0..5);
    });
    assert_eq!((received, seen), (1, 1));
    let causes = bed
        .forwarder
        .stacks()
        .next()
        .unwrap()
        .snapshot()
        .counters
        .protocol;
    assert_eq!(causes.get(DropReason::TcpChecksum.name()), Some(&1));
    let sent = bed.links[1].1.take();
    let segment = tidewall_wire::tcp::Packet::new(&sent[0].bytes[34..]).unwrap();
    let addresses = Addresses::new(ends(1, false).0, ends(1, false).1).unwrap();
    assert_ne!(
        segment.checksum_state(addresses),
        tidewall_wire::udp::ChecksumState::Valid
    );
}

#[test]
fn parts_of_a_payload_go_to_several_places() {
    let mut bed = bed(3, &LinkConfig::default());
    let frame = from_host(0, false, 7, b"first second third", Checksum::Software);
    bed.links[0].0.inject(Side::A, &frame);
    bed.poll();
    let received = bed.forwarder.receive(|output, arrived| {
        let payload = arrived.segment().unwrap().payload;
        let payload = payload.as_slice().unwrap();
        output.send(1, &heading(1, false, 1), &payload[..6], Some(arrived));
        output.send(2, &heading(2, false, 1), &[], None);
        output.forward(1, &heading(1, false, 20), arrived, 13..18);
        assert!(arrived.segment().is_none(), "its frame is gone");
        // Again: there is nothing left to send.
        output.forward(2, &heading(2, false, 1), arrived, 0..5);
    });
    assert_eq!(received, 1);
    assert_eq!(
        bed.sent(1),
        [(1, b"first ".to_vec()), (20, b"third".to_vec())]
    );
    assert_eq!(bed.sent(2), [(1, Vec::new())]);
    let counters = bed.forwarder.output().counters();
    assert_eq!((counters.in_place, counters.copied), (1, 2));
}

#[test]
fn what_a_batch_has_together_is_sent_when_it_ends() {
    let mut bed = bed(2, &LinkConfig::default());
    for sequence in 0..3 {
        let frame = from_host(0, false, sequence, b"abc", Checksum::Software);
        bed.links[0].0.inject(Side::A, &frame);
    }
    bed.poll();
    let mut together = Vec::new();
    let received = bed
        .forwarder
        .receive_batch(|output, arrived| match arrived {
            Some(arrived) => arrived.payload().append_to(&mut together),
            None => output.send_by(1, 0, &heading(1, false, 1), &together),
        });
    assert_eq!(received, 3);
    assert_eq!(bed.sent(1), [(1, b"abcabcabc".to_vec())]);
    // A batch of nothing has no end.
    let received = bed.forwarder.receive_batch(|_, _| unreachable!());
    assert_eq!(received, 0);
}

#[test]
fn what_cannot_be_sent_is_dropped_and_its_frame_goes_home() {
    let mut bed = bed(2, &LinkConfig::default());
    let rounds = 3 * FRAMES;
    bed.links[1].0.refuse_frames(Side::A, true);
    for round in 0..rounds {
        let frame = from_host(0, false, round, b"lost", Checksum::Software);
        bed.links[0].0.inject(Side::A, &frame);
        assert_eq!(bed.forward_all(false, |_| 1), 1);
    }
    // Longer than the MTU with the longer header, and between two families.
    bed.links[1].0.refuse_frames(Side::A, false);
    let long = from_host(0, false, 1, &[0; 1460], Checksum::Software);
    bed.links[0].0.inject(Side::A, &long);
    assert_eq!(bed.forward_all(true, |_| 1), 1);
    let counters = bed.forwarder.output().counters();
    assert_eq!(counters.full, u64::from(rounds));
    assert_eq!((counters.refused, counters.in_place), (1, 0));
    assert_eq!(bed.sent(1), []);
    // From IPv4 to IPv6 where there is room.
    let short = from_host(0, false, 1, b"room", Checksum::Software);
    bed.links[0].0.inject(Side::A, &short);
    bed.forward_all(true, |_| 1);
    assert_eq!(bed.sent(1), [(2, b"room".to_vec())]);
    assert_eq!(bed.counters(0).fill_empty, 0);
}

#[test]
fn a_link_that_is_down_keeps_nobody_from_the_others() {
    let mut bed = bed(3, &LinkConfig::default());
    bed.links[2].0.set_down(Side::A, true);
    for round in 0..4 {
        let frame = from_host(0, false, round, b"to one", Checksum::Software);
        bed.links[0].0.inject(Side::A, &frame);
        assert_eq!(bed.forward_all(false, |_| 1 + round as usize % 2), 1);
    }
    assert_eq!(bed.sent(1).len(), 2);
    assert_eq!(bed.sent(2), []);
    let counters = bed.forwarder.output().counters();
    assert_eq!((counters.in_place, counters.down), (4, 2));
    // Waiting frames leave when the link is up and another frame is sent there.
    bed.links[2].0.set_down(Side::A, false);
    let frame = from_host(0, false, 9, b"to one", Checksum::Software);
    bed.links[0].0.inject(Side::A, &frame);
    bed.forward_all(false, |_| 2);
    assert_eq!(bed.sent(2).len(), 3);
}

/// Frame from the peer at the first link, as [`from_host`] writes it.
fn peer_flow() -> FourTuple {
    FourTuple {
        local: SocketAddr::new(ends(0, false).0, SERVICE),
        remote: SocketAddr::new(ends(0, false).1, 40_000),
    }
}

#[test]
fn a_flood_at_a_port_keeps_out_nothing_of_connections_that_were_admitted() {
    // The memory holds more frames than a channel.
    let mut bed = bed_of(2, &LinkConfig::default(), 4096);
    let segment = from_host(0, false, 7, b"of a connection", Checksum::Software);
    let received = |bed: &mut Bed| {
        let mut kept = 0;
        while bed.forwarder.receive(|_, arrived| {
            kept += usize::from(arrived.segment().is_some());
        }) > 0
        {}
        kept
    };
    for (admitted, wanted) in [(false, 0), (true, 1), (false, 0)] {
        match admitted {
            true => bed.forwarder.output().admit(0, &peer_flow()),
            false => bed.forwarder.output().retain(0, |_| false),
        }
        assert_eq!(bed.forwarder.output().admitted(0), wanted);
        for _ in 0..6 {
            bed.links[0].0.inject_burst(Side::A, vec![stranger(); 128]);
            bed.poll();
        }
        bed.links[0].0.inject(Side::A, &segment);
        bed.poll();
        assert_eq!(received(&mut bed), wanted, "admitted: {admitted}");
    }
}

fn stranger() -> Vec<u8> {
    let mut frame = from_host(0, false, 7, b"a flood", Checksum::Software);
    // From another port; its checksum is wrong then.
    frame[34..36].copy_from_slice(&1000u16.to_be_bytes());
    frame
}

fn of_connection(sequences: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    let frame = |sequence| from_host(0, false, sequence, b"of one", Checksum::Software);
    sequences.map(frame).collect()
}

#[test]
fn admitted_connections_go_before_strangers() {
    let mut bed = bed_of(2, &LinkConfig::default(), 4096);
    bed.forwarder.output().admit(0, &peer_flow());
    // Nothing of the connection waits from before.
    assert_eq!(bed.forwarder.receive(|_, _| ()), 0);
    let mut waiting = vec![stranger(); 40];
    waiting.extend(of_connection(1..2));
    let link = &bed.links[0].0;
    link.inject_burst(Side::A, waiting);
    bed.forwarder.wait(Some(Duration::ZERO)).unwrap();
    let mut order = Vec::new();
    bed.forwarder
        .receive(|_, arrived| order.push(arrived.segment().map(|it| it.header.sequence)));
    assert_eq!(order.len(), 41);
    assert_eq!(order.iter().position(Option::is_some), Some(0));
}

/// The driver gives a connection's frames another channel in the middle of a burst.
#[test]
fn frames_of_a_connection_stay_in_order_while_it_is_admitted() {
    let mut bed = bed_of(2, &LinkConfig::default(), 4096);
    let link = &bed.links[0].0;
    link.inject_burst(Side::A, of_connection(1..101));
    bed.forwarder.wait(Some(Duration::ZERO)).unwrap();
    let mut order = Vec::new();
    for _ in 0..4 {
        bed.forwarder.receive(|output, arrived| {
            order.push(arrived.segment().unwrap().header.sequence);
            if order.len() == 1 {
                output.admit(0, &peer_flow());
                link.inject_burst(Side::A, of_connection(101..151));
            }
        });
        bed.forwarder.wait(Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(order, (1..151).collect::<Vec<_>>());
}

/// Connections of which each keeps within its window fill no channel together.
#[test]
fn windows_of_several_connections_find_room() {
    let mut bed = bed_of(2, &LinkConfig::default(), 8192);
    bed.forwarder.output().admit(0, &peer_flow());
    let segment = from_host(0, false, 7, b"of a window", Checksum::Software);
    for _ in 0..15 {
        bed.links[0]
            .0
            .inject_burst(Side::A, vec![segment.clone(); 128]);
        bed.poll();
    }
    let mut kept = 0;
    while bed.forwarder.receive(|_, _| kept += 1) > 0 {}
    assert_eq!(kept, 15 * 128);
}

#[test]
fn a_dropped_forwarder_gives_its_ports_back() {
    let mut bed = bed(2, &LinkConfig::default());
    let stack = bed.forwarder.stacks().next().unwrap().clone();
    let frame = from_host(0, false, 7, b"in the channel", Checksum::Software);
    bed.links[0].0.inject(Side::A, &frame);
    bed.poll();
    drop(bed.forwarder);
    bed.links[0].0.inject(Side::A, &frame);
    let core = stack.core();
    core.receiver.round(core, true).unwrap();
    assert_eq!(bed.links[0].0.take_kernel(Side::A).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    /// So many segments come by a link.
    Come(usize, u8),
    /// All that has come goes on by the link so many further, itself included.
    Forward(usize),
    /// A link's device takes frames, or none.
    Refuse(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3usize, 1..40u8).prop_map(|(link, count)| Step::Come(link, count)),
        4 => (0..3usize).prop_map(Step::Forward),
        1 => (0..3usize, any::<bool>()).prop_map(|(link, refuses)| Step::Refuse(link, refuses)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever arrives, leaves and is rejected, in the end every frame is back with the
    /// queue that receives into it, and with no other.
    #[test]
    fn no_frame_is_lost_or_had_twice(steps in prop::collection::vec(step(), 1..60)) {
        let config = LinkConfig {
            rings: Rings { transmit: 24, completion: 16, ..Rings::default() },
            ..LinkConfig::default()
        };
        let mut bed = bed(3, &config);
        let mut sequence = 0;
        let mut come = |bed: &mut Bed, link: usize| {
            sequence += 1;
            let payload = [sequence as u8; 64];
            bed.links[link].0.inject(
                Side::A,
                &from_host(link, false, sequence, &payload, Checksum::Software),
            );
        };
        for step in steps {
            match step {
                Step::Come(link, count) => (0..count).for_each(|_| come(&mut bed, link)),
                Step::Forward(by) => {
                    bed.forward_all(false, |from| (from + by) % 3);
                }
                Step::Refuse(link, refuses) => bed.links[link].0.refuse_frames(Side::A, refuses),
            }
            // Each segment that left is whole: had two owners written to one frame, it
            // would not be.
            for link in 0..3 {
                for (number, payload) in bed.sent(link) {
                    prop_assert_eq!(payload, vec![(number - 1) as u8; 64]);
                }
            }
        }
        for link in 0..3 {
            bed.links[link].0.refuse_frames(Side::A, false);
        }
        // No more than all frames of all queues, sixteen at a time.
        for _ in 0..3 * FRAMES / 16 + 2 {
            bed.forward_all(false, |from| (from + 1) % 3);
        }
        prop_assert!(!bed.forwarder.output.is_sending());
        // As many at once as there are frames to receive into.
        for link in 0..3 {
            let before = bed.counters(link);
            let all = FRAMES / 2;
            (0..all).for_each(|_| come(&mut bed, link));
            bed.poll();
            let after = bed.counters(link);
            // The last ones are for channels that hold few.
            let most = all - all / 32;
            prop_assert_eq!(after.received - before.received, u64::from(most));
            prop_assert_eq!(after.fill_empty, before.fill_empty);
        }
    }
}
