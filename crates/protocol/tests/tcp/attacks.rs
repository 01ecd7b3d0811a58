//! Attacks on a connection, by name: bounded memory, bounded answers, the connection
//! intact. A blind attacker knows the flow but not the sequence numbers; a hostile peer
//! knows both.

use std::time::Duration;

use tidewall_protocol::tcp::{Config, MSS_MIN, MemoryPressure, State, Timestamps};
use tidewall_wire::tcp::{Flags, SackBlocks};

use crate::link::{FAIR, Host, Link, Random, pattern};
use crate::peer::{ACK, MSS, OURS, Peer, RST, SYN, THEIRS, both, ms, plain};

/// The connection works in both directions.
fn assert_intact(peer: &mut Peer, offset: u32, acknowledged: u32) {
    assert_eq!(peer.state(), State::Established);
    peer.now += Duration::from_secs(1);
    let before = peer.engine.received().concat().len();
    peer.give(ACK, offset, acknowledged, b"intact");
    assert_eq!(peer.engine.received().concat().len(), before + 6);
    peer.write(5);
    assert!(peer.sent().iter().any(|frame| frame.payload == [7; 5]));
}

#[test]
fn blind_reset() {
    // RFC 5961 §3: only the exact sequence number resets. Within the window there is a
    // challenge, one per half second.
    let mut peer = Peer::past_quickack(&plain());
    let mut challenges = 0;
    for guess in 1..10_000u32 {
        peer.give(RST, guess * 5 % 50_000 + 1, 0, b"");
        challenges += peer.sent().len();
    }
    for guess in 0..10_000u32 {
        peer.give(RST, 60_000 + guess * 400_000, 0, b"");
        challenges += peer.sent().len();
    }
    assert_eq!(challenges, 1);
    peer.now += ms(600);
    peer.give(RST, 1, 0, b"");
    assert_eq!(peer.brief(), [(ACK, 0, 0, 0)]);
    assert_intact(&mut peer, 0, 0);
}

#[test]
fn blind_syn() {
    // RFC 5961 §4: a SYN never causes more than a challenge.
    let mut peer = Peer::past_quickack(&plain());
    let mut challenges = 0;
    for guess in 0..10_000u32 {
        for flags in [SYN, both(SYN, ACK)] {
            peer.give(flags, guess.wrapping_mul(429_497), 0, b"");
            challenges += peer.sent().len();
        }
    }
    assert_eq!(challenges, 1);
    assert_intact(&mut peer, 0, 0);
}

#[test]
fn blind_data() {
    // RFC 5961 §5: data in the window whose acknowledgment covers data never sent, or is
    // older than any window.
    let mut peer = Peer::past_quickack(&plain());
    let mut answers = 0;
    for guess in 0..10_000u32 {
        let acknowledged = 100_000 + guess * 200_000;
        peer.give(ACK, 0, acknowledged, b"forged");
        peer.give(ACK, 0, 0u32.wrapping_sub(acknowledged), b"forged");
        answers += peer.sent().len();
    }
    assert_eq!(answers, 1);
    assert!(!peer.engine.readable());
    // A segment without ACK is never accepted.
    peer.give(Flags::PSH, 0, 0, b"forged");
    assert!(!peer.engine.readable());
    assert_intact(&mut peer, 0, 0);
}

#[test]
fn acknowledgment_storm() {
    // Two ends that disagree after an injection answer each other's
    // acknowledgments for ever, unless the answers are limited.
    let mut a = Peer::past_quickack(&plain());
    let mut b = Peer::past_quickack(&plain());
    let mut sent = 0;
    a.give(ACK, 40_000_000, 0, b"");
    for _ in 0..1000 {
        for _ in a.sent() {
            sent += 1;
            b.give(ACK, 40_000_000, 0, b"");
        }
        for _ in b.sent() {
            sent += 1;
            a.give(ACK, 40_000_000, 0, b"");
        }
        a.now += Duration::from_micros(100);
        b.now += Duration::from_micros(100);
    }
    assert!(sent <= 4, "{sent} in a tenth of a second");
    assert_intact(&mut a, 0, 0);
}

#[test]
fn window_shrink() {
    // RFC 9293 §3.8.6: the peer takes back part of its announced window.
    let mut peer = Peer::past_quickack(&plain());
    peer.write(20 * MSS);
    assert_eq!(peer.sent().len(), 10);
    peer.window = 100;
    peer.give(ACK, 0, 2 * MSS as u32, b"");
    assert_eq!(peer.brief(), [], "nothing new beyond the window");
    // Only the first segment is tried again, although it is beyond the window: the
    // tail-loss probe has nothing else to send.
    peer.wait_for_timer();
    assert_eq!(peer.brief(), []);
    peer.wait_for_timer();
    assert_eq!(peer.brief(), [(ACK, 2 * MSS as u32, 0, MSS)]);
    peer.window = 0;
    peer.give(ACK, 0, 2 * MSS as u32, b"");
    for _ in 0..30 {
        peer.wait_for_timer();
        for segment in peer.brief() {
            assert_eq!(segment.1, 2 * MSS as u32);
        }
        // The peer is alive: there is no reason to give up.
        peer.give(ACK, 0, 2 * MSS as u32, b"");
    }
    peer.window = 60_000;
    peer.give(ACK, 0, 2 * MSS as u32, b"");
    let mut acknowledged = 2 * MSS as u32;
    while peer.engine.info().unacknowledged + peer.engine.info().not_sent > 0 {
        if !peer.engine.wants_output() {
            peer.wait_for_timer();
        }
        for segment in peer.brief() {
            if segment.1 == acknowledged {
                acknowledged += segment.3 as u32;
            }
        }
        peer.give(ACK, 0, acknowledged, b"");
    }
    assert_eq!(acknowledged, 20 * MSS as u32);
    assert_intact(&mut peer, 0, acknowledged);
}

#[test]
fn acknowledgments_keep_to_a_window_taken_back() {
    // A Linux receiver out of memory closes its window below the data in flight. It then
    // refuses every segment beyond, also those without data.
    let mut peer = Peer::past_quickack(&plain());
    peer.write(20 * MSS);
    assert_eq!(peer.sent().len(), 10);
    peer.window = 0;
    peer.give(ACK, 0, 2 * MSS as u32, b"");
    peer.brief();
    peer.give(ACK, 0, 2 * MSS as u32, b"x");
    peer.wait_for_timer();
    let sent = peer.brief();
    assert!(sent.contains(&(ACK, 2 * MSS as u32, 1, 0)), "{sent:?}");
}

#[test]
fn tiny_maximum_segment() {
    // CVE-2019-11479: a packet per byte.
    for mss in [0, 1, 48, 87] {
        let hosts = [
            Host::new(
                Config {
                    mss: 1460,
                    ..Config::default()
                },
                pattern(100_000, 1),
            ),
            Host::new(
                Config {
                    mss,
                    ..Config::default()
                },
                Vec::new(),
            ),
        ];
        let mut link = Link::new(hosts, FAIR, 9);
        link.trace = Some(Vec::new());
        link.run(Duration::from_secs(3600));
        link.assert_delivered();
        let full = usize::from(MSS_MIN) - 12;
        let trace = link.trace.take().unwrap();
        let data = trace
            .iter()
            .filter(|(_, from, frame)| *from == 0 && !frame.payload.is_empty());
        assert!(
            data.clone().count() <= 100_000 / full + 30,
            "{}",
            data.count()
        );
        assert_eq!(
            usize::try_from(link.hosts[0].connection().info().send_mss),
            Ok(full)
        );
    }
}

#[test]
fn sack_holes_of_the_receiver() {
    // Every second byte, all over the window: the window bounds the ranges, and so the
    // cost of each further one.
    let mut peer = Peer::past_quickack(&plain());
    for hole in 0..24_000u32 {
        peer.give(ACK, hole * 2 + 1, 0, b"x");
    }
    let memory = peer.engine.memory();
    assert!(memory < 10_000, "{memory} bytes of a window of 50,000");
    let sent = peer.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.options.sack.as_slice().len(), 4);
    // Data that was not kept is retransmitted by an honest peer.
    peer.give(ACK, 0, 0, &[b'x'; 20_000]);
    assert_eq!(peer.engine.received().concat(), [b'x'; 20_000]);
    assert_intact(&mut peer, 20_000, 0);
}

#[test]
fn sack_holes_of_the_sender() {
    // CVE-2019-11477 and -11478: blocks that split the data in flight into tiny pieces.
    let mut peer = Peer::past_quickack(&plain());
    peer.write(10 * MSS);
    peer.sent();
    let at = |offset: u32| OURS.wrapping_add(1 + offset);
    let mut segments = 0;
    for hole in 0..5000u32 {
        peer.sack = SackBlocks::default();
        for part in 0..4 {
            let start = (hole * 4 + part) * 2 % 9_990 + 1;
            peer.sack.push(at(start), at(start + 1));
        }
        peer.now += Duration::from_micros(10);
        peer.give(ACK, 0, 0, b"");
        segments += peer.sent().len();
    }
    // Bounded by the lost data, not by the peer's report.
    assert!(segments < 100, "{segments}");
    // Blocks of data never sent, and reversed or empty blocks, are ignored.
    for (start, end) in [(20_000, 30_000), (500, 400), (400, 400), (u32::MAX - 9, 10)] {
        peer.sack.push(at(start), at(end));
    }
    peer.give(ACK, 0, 0, b"");
    peer.give(ACK, 0, 10 * MSS as u32, b"");
    peer.sent();
    assert_eq!(peer.engine.info().unacknowledged, 0);
    assert_intact(&mut peer, 0, 10 * MSS as u32);
}

#[test]
fn sequence_wrap() {
    // PAWS (RFC 7323 §5): a segment from 4 GiB ago has acceptable numbers and an old
    // timestamp.
    let config = Config {
        timestamps: true,
        ..plain()
    };
    let mut peer = Peer::past_quickack(&config);
    peer.timestamps = Some(Timestamps {
        value: 10_000,
        echo: 0,
    });
    peer.give(ACK, 0, 0, b"new");
    peer.sent();
    peer.timestamps = Some(Timestamps {
        value: 9000,
        echo: 0,
    });
    peer.give(ACK, 3, 0, b"4 GiB old");
    peer.give(both(ACK, Flags::FIN), 3, 0, b"");
    peer.give(SYN, 3, 0, b"");
    assert_eq!(peer.engine.received().concat(), b"new");
    assert_eq!(peer.state(), State::Established);
    peer.timestamps = Some(Timestamps {
        value: 10_001,
        echo: 0,
    });
    peer.sent();
    assert_intact(&mut peer, 3, 0);
    // All sequence numbers of these tests wrap near their beginning, and so do those of a
    // transfer of more than 4 GiB. This one begins just below.
    let mut wrapped = Peer::past_quickack(&plain());
    let mut offset = 0;
    for _ in 0..10 {
        wrapped.give(ACK, offset, 0, &[1; MSS]);
        offset += MSS as u32;
    }
    assert!(THEIRS.wrapping_add(1 + offset) < THEIRS);
    assert_eq!(wrapped.engine.received().concat().len(), 10 * MSS);
}

#[test]
fn out_of_order_gigabyte() {
    // Data all over the sequence space: only data in the window is kept.
    let mut peer = Peer::past_quickack(&Config {
        receive_buffer: 64 << 10,
        receive_buffer_max: 6 << 20,
        ..plain()
    });
    let mut random = Random::new(3);
    let mut answers = 0;
    for _ in 0..100_000 {
        let offset = 1 + random.below(1 << 31) as u32;
        peer.give(ACK, offset, 0, &[0; MSS]);
        if random.percent(1) {
            answers += peer.sent().len();
        }
    }
    peer.sent();
    assert!(answers <= 2000);
    assert!(!peer.engine.readable());
    let memory = peer.engine.memory();
    assert!(memory < 130 << 10, "{memory}, twice the window at most");
    // Filling the whole window, twice over, costs no more.
    for segment in 0..130u32 {
        peer.give(ACK, segment * 1000 % 65_000, 0, &[0; MSS]);
        peer.sent();
    }
    let info = peer.engine.info();
    assert!(info.unread + info.receive_window <= 64 << 10, "{info:?}");
}

#[test]
fn a_byte_at_the_far_end_of_the_window() {
    // 55 bytes on the wire, and a window that the peer may make as large as it likes.
    for window in [50_000, 65_000] {
        let mut peer = Peer::past_quickack(&Config {
            receive_buffer: window,
            receive_buffer_max: 6 << 20,
            ..plain()
        });
        peer.give(ACK, window - 1, 0, b"x");
        assert_eq!(peer.sent()[0].header.options.sack.as_slice().len(), 1);
        let memory = peer.engine.memory();
        assert!(memory <= 700, "{memory} bytes");
        peer.give(ACK, 0, 0, b"in order");
        assert_eq!(peer.engine.read(&mut [0; 100]), Ok(8));
        let kept = peer.engine.memory();
        assert_eq!(kept, memory, "what is empty is given back beside the hole");
    }
}

#[test]
fn memory_that_is_short_holds_nothing_beyond_holes() {
    let mut peer = Peer::past_quickack(&plain());
    peer.give(ACK, 1000, 0, &[2; MSS]);
    peer.give(ACK, 3000, 0, &[4; MSS]);
    peer.sent();
    peer.engine.set_memory_pressure(MemoryPressure::Short);
    peer.give(ACK, 5000, 0, &[6; MSS]);
    let reported = peer.sent()[0].header.options.sack;
    assert_eq!(reported.as_slice().len(), 2, "it was not kept");
    // Data reported as held may be dropped (RFC 2018 §8); the peer sends it again.
    peer.engine.prune();
    assert_eq!(peer.engine.memory(), 0);
    for segment in 0..6 {
        peer.give(ACK, segment * MSS as u32, 0, &[segment as u8 + 1; MSS]);
        let sent = peer.sent();
        assert!(
            sent.iter()
                .all(|frame| frame.header.options.sack.is_empty())
        );
    }
    assert_eq!(peer.engine.received().concat().len(), 6 * MSS);
    assert_intact(&mut peer, 6 * MSS as u32, 0);
}

#[test]
fn windows_stay_small_while_memory_is_short() {
    let mut peer = Peer::past_quickack(&plain());
    peer.engine.set_memory_pressure(MemoryPressure::Short);
    let window = |peer: &mut Peer| peer.sent().last().map(|frame| frame.header.window);
    // The announced window stays valid (RFC 9293 §3.8.6).
    for segment in 0..50 {
        peer.give(ACK, segment * MSS as u32, 0, &[0; MSS]);
        peer.engine.read(&mut [0; MSS]).unwrap();
        let promised = 50_000 - (segment + 1) * MSS as u32;
        if let Some(window) = window(&mut peer) {
            assert_eq!(u32::from(window), promised.max(4 * MSS as u32));
        }
    }
    // No more than 4 KiB are held, and unread data does not grow.
    peer.engine.set_memory_pressure(MemoryPressure::Exhausted);
    for segment in 50..60 {
        peer.give(ACK, segment * MSS as u32, 0, &[0; MSS]);
        peer.sent();
    }
    assert_eq!(peer.engine.received().concat().len(), 4 * MSS);
    assert_eq!(peer.engine.memory(), 4096);
    peer.engine.read(&mut [0; 4 * MSS]).unwrap();
    assert_eq!(window(&mut peer), Some(4096));
    assert_eq!(peer.engine.memory(), 0);
    // It grows again once there is memory.
    peer.engine.set_memory_pressure(MemoryPressure::None);
    peer.give(ACK, 54 * MSS as u32, 0, &[0; MSS]);
    peer.engine.read(&mut [0; MSS]).unwrap();
    assert_eq!(window(&mut peer), Some(50_000));
    assert_intact(&mut peer, 55 * MSS as u32, 0);
}

#[test]
fn little_is_taken_to_be_sent_while_memory_is_short() {
    let mut peer = Peer::past_quickack(&plain());
    let fills = |peer: &mut Peer, pressure| {
        peer.engine.set_memory_pressure(pressure);
        let mut taken = 0;
        while let Ok(bytes) = peer.engine.write(&[7; 100_000]) {
            taken += bytes;
        }
        assert!(!peer.engine.writable());
        taken
    };
    assert_eq!(fills(&mut peer, MemoryPressure::Exhausted), 4096);
    assert_eq!(fills(&mut peer, MemoryPressure::Short), 87_040 - 4096);
    // Accepted data is sent under any memory pressure.
    peer.engine.set_memory_pressure(MemoryPressure::Exhausted);
    let mut acknowledged = 0;
    while peer.engine.info().unacknowledged + peer.engine.info().not_sent > 0 {
        if !peer.engine.wants_output() {
            peer.wait_for_timer();
        }
        for segment in peer.brief() {
            acknowledged = acknowledged.max(segment.1 + segment.3 as u32);
        }
        peer.give(ACK, 0, acknowledged, b"");
    }
    assert_eq!((acknowledged, peer.engine.memory()), (87_040, 0));
    assert!(peer.engine.writable());
}

#[test]
fn optimistic_acknowledgments() {
    // Acknowledging data that was never sent does not make us send faster.
    let mut peer = Peer::past_quickack(&plain());
    peer.write(30 * MSS);
    assert_eq!(peer.sent().len(), 10);
    for segments in 11..30 {
        peer.give(ACK, 0, segments * MSS as u32, b"");
    }
    assert_eq!(peer.brief(), [(ACK, 10 * MSS as u32, 0, 0)]);
    assert_eq!(peer.engine.info().unacknowledged, 10 * MSS as u32);
    peer.give(ACK, 0, 10 * MSS as u32, b"");
    assert!(!peer.sent().is_empty());
}

#[test]
fn reneging() {
    // A peer that drops data that it has selectively acknowledged (RFC 2018 §8).
    let mut peer = Peer::past_quickack(&plain());
    peer.write(10 * MSS);
    peer.sent();
    let at = |segments: u32| OURS.wrapping_add(1 + segments * MSS as u32);
    peer.sack.push(at(1), at(10));
    peer.give(ACK, 0, 0, b"");
    assert_eq!(peer.brief(), [(ACK, 0, 0, MSS)]);
    let mut acknowledged = MSS as u32;
    peer.give(ACK, 0, acknowledged, b"");
    for _ in 0..100 {
        if acknowledged == 10 * MSS as u32 {
            break;
        }
        if !peer.engine.wants_output() {
            peer.wait_for_timer();
        }
        for segment in peer.brief() {
            if segment.1 == acknowledged {
                acknowledged += segment.3 as u32;
            }
        }
        peer.give(ACK, 0, acknowledged, b"");
    }
    assert_eq!(acknowledged, 10 * MSS as u32);
    assert_intact(&mut peer, 0, acknowledged);
}
