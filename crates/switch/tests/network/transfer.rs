//! Frames through the switch, in and out, over impaired links.

use std::time::Duration;

use tidewall_simulator::link::{Impairment, Loss, Reorder};
use tidewall_simulator::random::Random;
use tidewall_switch::modules::{HashOfKey, LeastOutstanding, Lost, Module, Speed};
use tidewall_switch::{Emission, Phase, segments};
use tidewall_wire::tcp::Flags;

use super::bed::{Bed, bytes_of, config, delayed, round_robin};
use super::end::State;
use super::raw::{MEMBER_ISN, Raw, data};

/// A frame's payload: its number, and bytes that are unique to it.
pub fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    let mut random = Random::new(number.into());
    bytes.resize_with(length.max(4), || random.bits() as u8);
    bytes
}

pub fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.first_chunk().expect("a number"))
}

/// Runs a test for many seeds, or the one in `TIDEWALL_SEED`, and reports which failed.
pub fn each_seed(count: u64, test: impl Fn(u64)) {
    struct Failed(u64);
    impl Drop for Failed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with TIDEWALL_SEED={}", self.0);
            }
        }
    }
    let one = std::env::var("TIDEWALL_SEED").ok();
    let one = one.map(|seed| seed.parse().expect("a number"));
    for seed in one.map_or(0..count, |seed| seed..seed + 1) {
        let _failed = Failed(seed);
        test(seed);
    }
}

/// Checks that every frame arrived at one member, in order there, with all its bytes.
pub fn check_all(bed: &Bed, sent: &[Vec<u8>]) {
    let mut all = Vec::new();
    for end in bed.hosts.iter().flat_map(|host| host.connections.values()) {
        assert!(
            end.got.is_sorted_by_key(|frame| number(frame)),
            "order at a member"
        );
        all.extend(end.got.iter().cloned());
    }
    all.sort_by_key(|frame| number(frame));
    assert!(all == sent, "{} of {} frames", all.len(), sent.len());
}

pub fn lossy(random: &mut Random) -> Impairment {
    let part = |random: &mut Random, most: f64| random.below(1000) as f64 / 1000.0 * most;
    Impairment {
        delay: Duration::from_micros(100 + random.below(20_000)),
        jitter: Duration::from_micros(random.below(1000)),
        loss: Loss::Random {
            probability: part(random, 0.08),
        },
        reorder: Reorder {
            probability: part(random, 0.1),
            delay: Duration::from_micros(random.below(10_000)),
        },
        duplicate: part(random, 0.05),
        ..Impairment::default()
    }
}

fn module(choice: u64) -> Box<dyn Module> {
    match choice {
        0 => Box::new(LeastOutstanding::new(Lost::Reset)),
        1 => Box::new(HashOfKey::new(0..4, Lost::Reset)),
        2 => Box::new(Speed::new(Lost::Reset)),
        _ => round_robin(Lost::Reset)(),
    }
}

#[test]
fn frames_are_split_and_merged_without_loss() {
    let mut bed = Bed::new(
        config(),
        round_robin(Lost::Reset),
        3,
        delayed(Duration::from_millis(1)),
        1,
    );
    let sent: Vec<_> = (0..30).map(|number| frame(number, 100)).collect();
    for frame in &sent {
        bed.peer.write(frame);
    }
    for host in &mut bed.hosts {
        host.echoes = true;
    }
    bed.peer.close();
    bed.run_until(Duration::from_secs(5), |bed| {
        bed.peer.fin_received && bed.peer.is_done()
    });
    check_all(&bed, &sent);
    for host in &bed.hosts {
        let end = host.connections.values().next().expect("a connection");
        assert_eq!(end.got.len(), 10, "in turn");
    }
    let mut replies = bed.peer.got.clone();
    replies.sort();
    let mut expected = sent.clone();
    expected.sort();
    assert_eq!(replies, expected);
    let counters = *bed.switch.counters();
    assert_eq!(
        (counters.frames_in, counters.frames_out, counters.holes),
        (30, 30, 0)
    );
    assert_eq!((counters.frames_in_repeated, counters.null_frames), (0, 0));
    bed.run_until(Duration::from_secs(5), |bed| {
        bed.switch.flows().all(|flow| flow.phase == Phase::Closed)
    });
    let ended = bed.now + config().linger + Duration::from_secs(1);
    while bed.step(ended) {}
    assert!(bed.switch.is_empty(), "a closed connection is forgotten");
}

/// Any number of members, any module, any frames, any impairment: everything arrives
/// once, at one member, in order; every reply comes back; both sides close.
fn any_transfer(seed: u64) {
    let mut random = Random::new(seed);
    let members = 1 + random.below(5) as usize;
    let choice = random.below(5);
    let impairment = lossy(&mut random);
    let mut config = config();
    if random.chance(0.3) {
        config.ring = 8 + random.below(30) as u16;
    }
    let mut bed = Bed::new(config, move || module(choice), members, impairment, seed);
    let small = random.chance(0.5);
    let count = 20 + random.below(200) as u32;
    let sent: Vec<_> = (0..count)
        .map(|number| {
            frame(
                number,
                4 + random.below(if small { 60 } else { 990 }) as usize,
            )
        })
        .collect();
    bed.peer.sack = random.chance(0.8);
    let mut discards = || random.chance(0.2).then(|| 1 + random.below(30) as u32);
    bed.peer.discards = discards();
    let host_discards: Vec<_> = bed.hosts.iter().map(|_| discards()).collect();
    for (host, discards) in bed.hosts.iter_mut().zip(host_discards) {
        host.sack = random.chance(0.95);
        host.discards = discards;
        host.echoes = random.chance(0.8);
        host.buffer = 4000 + random.below(100_000) as u32;
    }
    // A window is divided among the members, and has room for a frame of each.
    bed.peer.buffer = 16_000 + random.below(100_000) as u32;
    let mut next = 0;
    let mut closing = false;
    bed.run_until(Duration::from_secs(600), |bed| {
        while next < sent.len() && bed.got() + 80 > next {
            bed.peer.write(&sent[next]);
            next += 1;
        }
        if next == sent.len() && !closing && bed.got() == sent.len() {
            closing = true;
            bed.peer.close();
        }
        if closing {
            for end in bed
                .hosts
                .iter_mut()
                .flat_map(|host| host.connections.values_mut())
            {
                if end.fin_received {
                    end.close();
                }
            }
        }
        closing && bed.peer.fin_received && bed.peer.is_done()
    });
    check_all(&bed, &sent);
    let mut expected = Vec::new();
    for host in &bed.hosts {
        for end in host.connections.values() {
            assert!(end.is_whole(), "no gap is left");
            if host.echoes {
                expected.extend(end.got.iter().cloned());
                let of_member: Vec<_> = bed
                    .peer
                    .got
                    .iter()
                    .filter(|frame| end.got.contains(frame))
                    .collect();
                assert!(
                    of_member.is_sorted_by_key(|frame| number(frame)),
                    "replies in order"
                );
            }
        }
    }
    expected.sort();
    let mut replies = bed.peer.got.clone();
    replies.sort();
    assert!(replies == expected);
}

#[test]
fn any_transfer_arrives() {
    each_seed(3000, any_transfer);
}

/// A member that sends nothing keeps its grant from when frames were larger; that is now
/// more than the ring has room for.
#[test]
fn a_member_is_not_kept_waiting_by_grants_that_others_do_not_use() {
    let mut config = config();
    config.ring = 16;
    let path = delayed(Duration::from_millis(1));
    let mut bed = Bed::new(config, round_robin(Lost::Reset), 2, path, 1);
    bed.run_until(Duration::from_secs(5), |bed| {
        bed.peer.state == State::Open && bed.hosts.iter().all(|host| !host.connections.is_empty())
    });
    let write = |bed: &mut Bed, host: usize, count: u32, length| {
        let mut ends = bed.hosts[host].connections.values_mut();
        let end = ends.next().expect("a connection");
        (0..count).for_each(|number| end.write(&frame(number, length)));
    };
    write(&mut bed, 0, 40, 900);
    write(&mut bed, 1, 40, 900);
    bed.run_until(Duration::from_secs(10), |bed| bed.peer.got.len() == 80);
    write(&mut bed, 1, 400, 50);
    bed.run_until(Duration::from_secs(10), |bed| bed.peer.got.len() == 480);
}

#[test]
fn an_end_comes_again_behind_frames_that_are_acknowledged() {
    let mut raw = Raw::open(2);
    let last = data(b"the last frame");
    let behind = 1 + last.len() as u32;
    raw.member(0, 1, 1, Flags::ACK, &last);
    raw.peer(1, behind, Flags::ACK, &[]);
    // The acknowledgment was lost, and the member closes with the repeated segment.
    let emissions = raw.member(0, 1, 1, Flags::ACK | Flags::FIN, &last);
    assert_eq!(raw.resets(&emissions), 0, "{emissions:?}");
    let flow = raw.members[0].0;
    let mut to_member = emissions.iter().filter(|emission| emission.flow == flow);
    let ack = MEMBER_ISN.wrapping_add(behind + 1);
    assert!(to_member.any(|emission| emission.header.acknowledgment == ack));
}

/// However the frames of a segment alternate between members, each gets one segment.
#[test]
fn frames_of_a_segment_for_one_member_leave_together() {
    let mut raw = Raw::open(2);
    let frames = [&b"one"[..], b"two", b"three", b"four", b"five"].map(data);
    let whole = frames.concat();
    let sent = raw.peer(1, 1, Flags::ACK | Flags::PSH, &whole);
    let segments: Vec<_> = segments(&sent).collect();
    let payload = |parts: &[Emission]| -> Vec<u8> {
        let bytes = parts.iter().map(|part| bytes_of(part, &whole));
        bytes.collect::<Vec<_>>().concat()
    };
    assert_eq!(segments.len(), 2, "{segments:?}");
    for (member, (header, parts)) in segments.iter().enumerate() {
        let mine = frames.iter().skip(member).step_by(2).cloned();
        assert_eq!(payload(parts), mine.collect::<Vec<_>>().concat());
        let (flow, isn) = raw.members[member];
        assert_eq!(parts[0].flow, flow);
        assert_eq!(header.sequence.wrapping_sub(isn), 1);
    }
    assert!(segments[1].0.flags.contains(Flags::PSH));
    // Sent again, they leave as they did.
    assert_eq!(raw.peer(1, 1, Flags::ACK | Flags::PSH, &whole), sent);
}
