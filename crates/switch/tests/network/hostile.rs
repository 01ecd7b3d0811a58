//! Ends that lie, and modules that fail: they cost other connections nothing.

use std::time::Duration;

use tidewall_switch::modules::{Frame, Lost, Members, Module, RoundRobin, Verdict};
use tidewall_switch::{MemberId, Payload};
use tidewall_wire::acp;
use tidewall_wire::tcp::Flags;

use super::bed::{config, round_robin};
use super::raw::{Raw, data, syn_options};

#[test]
fn a_frame_that_lies_or_spans_segments_resets_its_connection_alone() {
    let long = data(&[1; 100]);
    let cases: [&[u8]; 5] = [
        &long[..50],
        &long[..2],
        b"no frame",
        &[0xac, 7, 0, 0],
        &[0xac, 0, 0xff, 0xff, 1, 2, 3],
    ];
    for bytes in cases {
        let mut raw = Raw::open(2);
        let (peer, isn) = (raw.peer, raw.isn);
        let syns = raw.syn_from("203.0.113.9:1".parse().expect("an address"));
        raw.answer(&syns);
        raw.peer(1, 1, Flags::ACK, &[]);
        let emissions = raw.peer(1, 1, Flags::ACK, bytes);
        assert_eq!(
            raw.resets(&emissions),
            3,
            "the peer and two members: {emissions:?}"
        );
        assert_eq!(raw.switch.counters().reset_framing, 1);
        (raw.peer, raw.isn) = (peer, isn);
        let emissions = raw.peer(1, 1, Flags::ACK, &data(b"frame"));
        assert_eq!(raw.to_member(0, &emissions).len(), 1, "the other goes on");
    }
}

#[test]
fn a_members_frame_that_lies_resets_its_connection_alone() {
    let long = data(&[1; 100]);
    let cases: [&[u8]; 4] = [&long[..50], b"no frame", &[0xac, 7, 0, 0], &long[..2]];
    for bytes in cases {
        let mut raw = Raw::open(2);
        let (peer, isn) = (raw.peer, raw.isn);
        let syns = raw.syn_from("203.0.113.9:1".parse().expect("an address"));
        raw.answer(&syns);
        raw.peer(1, 1, Flags::ACK, &[]);
        let emissions = raw.member(2, 1, 1, Flags::ACK, bytes);
        assert_eq!(raw.resets(&emissions), 3, "{emissions:?}");
        assert_eq!(raw.switch.counters().reset_framing, 1);
        (raw.peer, raw.isn) = (peer, isn);
        let emissions = raw.member(0, 1, 1, Flags::ACK, &data(b"frame"));
        let to_peer = emissions.iter().filter(|emission| emission.flow == peer);
        assert_eq!(to_peer.count(), 1, "the other goes on");
    }
}

#[test]
fn good_frames_before_a_bad_one_get_through() {
    let mut raw = Raw::open(1);
    let good = data(b"good");
    let emissions = raw.peer(1, 1, Flags::ACK, &[&good[..], b"bad"].concat());
    let to_member = raw.to_member(0, &emissions);
    assert_eq!(to_member[0].2, Payload::Received(0..good.len()));
    assert!(to_member[1].1.contains(Flags::RST));
}

#[test]
fn headers_within_a_frame_are_its_bytes() {
    let mut raw = Raw::open(2);
    let inner = data(&data(b"inner"));
    let emissions = raw.peer(1, 1, Flags::ACK, &inner);
    assert_eq!(
        raw.to_member(0, &emissions)[0].2,
        Payload::Received(0..inner.len())
    );
    assert_eq!(raw.to_member(1, &emissions).len(), 0);
}

#[test]
fn repeated_frames_with_other_bounds_are_a_lie() {
    let mut raw = Raw::open(2);
    raw.peer(1, 1, Flags::ACK, &[data(b"one"), data(b"two")].concat());
    let emissions = raw.peer(1, 1, Flags::ACK, &data(b"one and two"));
    assert_eq!(raw.resets(&emissions), 3);
    assert_eq!(raw.switch.counters().reset_framing, 1);
}

struct Bad(u8);

impl Module for Bad {
    fn frame(&mut self, _frame: Frame<'_>, _members: Members<'_>) -> Verdict {
        match self.0 {
            0 => panic!("a module's mistake (this is part of a test)"),
            1 => Verdict::Send(MemberId(2), 0),
            2 => Verdict::Send(MemberId(255), 0),
            _ => Verdict::Reset,
        }
    }

    fn member_up(&mut self, _member: MemberId) {
        assert!(self.0 != 4, "a module's mistake (this is part of a test)");
    }
}

#[test]
fn a_module_that_fails_costs_its_connection() {
    for how in 0..4 {
        let mut raw = Raw::open_with(config(), move || Box::new(Bad(how)) as Box<dyn Module>, 2);
        let emissions = raw.peer(1, 1, Flags::ACK, &data(b"frame"));
        assert_eq!(raw.resets(&emissions), 3, "{how}");
        assert!(raw.switch.is_empty());
        assert_eq!(raw.switch.counters().reset_module, 1);
    }
    let mut raw = Raw::new(config(), || Box::new(Bad(4)) as Box<dyn Module>, 1);
    let syns = raw.syn(syn_options());
    raw.answer(&syns);
    let emissions = raw.peer(1, 1, Flags::ACK, &[]);
    assert_eq!(raw.resets(&emissions), 2);
}

/// Loops in each way in which a peer could make a module loop; a frame without bytes is
/// good.
struct Endless(u8);

impl Module for Endless {
    fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
        let mut at = 0;
        while !frame.is_empty() {
            match self.0 {
                // The peer's length is zero, so the next field is this one.
                0 => at += usize::from(frame.get(at..=at).map_or(0, |it| it[0])),
                1 => at = frame.payload().len().min(at),
                2 => at += members.get(MemberId(250)).map_or(0, |_| 1),
                3 => at += members.iter().filter(|it| it.room == u64::MAX).count(),
                4 => at += members.at_or_after(200).map_or(1, |_| 0),
                _ => at += members.for_key(at as u64).map_or(1, |_| 0),
            }
        }
        Verdict::Send(MemberId(0), 0)
    }
}

#[test]
fn a_module_that_loops_costs_its_connection_and_no_other() {
    for how in 0..6 {
        let mut raw = Raw::open_with(
            config(),
            move || Box::new(Endless(how)) as Box<dyn Module>,
            2,
        );
        let (looping, isn) = (raw.peer, raw.isn);
        let syns = raw.syn_from("198.51.100.7:40001".parse().expect("an address"));
        raw.answer(&syns);
        raw.peer(1, 1, Flags::ACK, &[]);
        let other = (raw.peer, raw.isn);
        (raw.peer, raw.isn) = (looping, isn);
        let emissions = raw.peer(1, 1, Flags::ACK, &data(&[0; 40]));
        assert_eq!(raw.resets(&emissions), 3, "{how}");
        let counters = raw.switch.counters();
        assert_eq!((counters.reset_module_work, counters.reset_module), (1, 0));
        assert_eq!(raw.switch.len(), 1);
        (raw.peer, raw.isn) = other;
        let emissions = raw.peer(1, 1, Flags::ACK, &data(&[]));
        assert_eq!(raw.to_member(2, &emissions).len(), 1);
        assert_eq!(raw.resets(&emissions), 0);
    }
}

#[test]
fn what_a_module_has_to_look_at_is_within_its_bounds() {
    // Looks at each byte of the longest frame, one by one, and at each member beside
    // each.
    struct Thorough;
    impl Module for Thorough {
        fn frame(&mut self, frame: Frame<'_>, members: Members<'_>) -> Verdict {
            let sum: usize = (0..frame.len())
                .filter_map(|at| frame.get(at..=at))
                .map(|it| usize::from(it[0]))
                .sum();
            let pairs = members
                .iter()
                .flat_map(|one| members.iter().map(move |it| (one, it)));
            let count = pairs.count().isqrt();
            let id = members.iter().nth(sum % count).map(|it| it.id);
            id.map_or(Verdict::Reset, |id| Verdict::Send(id, 0))
        }
    }
    let mut raw = Raw::open_with(config(), || Box::new(Thorough) as Box<dyn Module>, 64);
    let emissions = raw.peer(1, 1, Flags::ACK, &data(&[1; 800]));
    assert_eq!(raw.to_member(800 % 64, &emissions).len(), 1);
}

#[test]
fn a_member_that_withholds_acknowledgments_fills_the_ring_and_no_more() {
    let mut limited = config();
    limited.ring = 20;
    let mut raw = Raw::open_with(limited, round_robin(Lost::Reset), 2);
    let frame = data(&[5; 40]);
    for number in 0..200 {
        raw.peer(1 + number * frame.len() as u32, 1, Flags::ACK, &frame);
        let flow = raw.switch.flows().next().expect("a connection");
        assert!(flow.ring_in <= 20 && flow.holes <= 20);
    }
    let counters = raw.switch.counters();
    assert!(
        counters.dropped_ring_full + counters.dropped_window >= 180,
        "{counters:?}"
    );
    // One acknowledges: the peer receives an ACK up to the other's first frame.
    let one = raw.member(0, 1, 1 + 10 * frame.len() as u32, Flags::ACK, &[]);
    assert_eq!(raw.acks(&one), [1 + frame.len() as u32]);
    let other = raw.member(1, 1, 1 + 10 * frame.len() as u32, Flags::ACK, &[]);
    assert_eq!(raw.acks(&other), [1 + 20 * frame.len() as u32]);
}

#[test]
fn a_peer_that_withholds_acknowledgments_fills_the_ring_and_no_more() {
    let mut limited = config();
    limited.ring = 20;
    let mut raw = Raw::open_with(limited, round_robin(Lost::Reset), 2);
    let (peer, isn, length) = (raw.peer, raw.isn, data(&[5; 40]).len() as u32);
    let frame = data(&[5; 40]);
    // In turn, so that each is a stretch of its own.
    for number in 0..200 {
        for member in 0..2 {
            raw.member(member, 1 + number * length, 1, Flags::ACK, &frame);
            let flow = raw.switch.flows().next().expect("a connection");
            assert!(flow.ring_out <= 20, "{flow:?}");
        }
    }
    let counters = *raw.switch.counters();
    let dropped = counters.dropped_ring_full + counters.dropped_window;
    assert!(dropped >= 360, "{counters:?}");
    // Another connection has its own full share.
    let syns = raw.syn_from("203.0.113.9:1".parse().expect("an address"));
    raw.answer(&syns);
    raw.peer(1, 1, Flags::ACK, &[]);
    let emissions = raw.member(2, 1, 1, Flags::ACK, &frame);
    assert!(
        emissions
            .iter()
            .any(|it| it.flow == raw.peer && it.payload.len() == frame.len())
    );
    (raw.peer, raw.isn) = (peer, isn);
    // When the peer finally acknowledges, there is room for what members repeat.
    raw.peer(1, 1 + 2 * length, Flags::ACK, &[]);
    let flow = raw.switch.flows().find(|flow| flow.peer == peer);
    assert_eq!(flow.expect("a connection").ring_out, 18);
}

#[test]
fn a_member_without_a_window_closes_the_peers() {
    let mut raw = Raw::open(2);
    let frame = data(&[5; 800]);
    let mut sent = 0;
    while sent < 60 {
        let emissions = raw.peer(1 + sent * frame.len() as u32, 1, Flags::ACK, &frame);
        sent += 1;
        let goes = |emission: &tidewall_switch::Emission| !emission.payload.is_empty();
        if !emissions.iter().any(goes) {
            break;
        }
    }
    // Each gets no more than its window.
    let window = u32::from(super::raw::WINDOW);
    assert!((sent - 1) * frame.len() as u32 <= 2 * window, "{sent}");
    assert!(raw.switch.counters().dropped_window + raw.switch.counters().dropped_member_window > 0);
}

#[test]
fn an_acknowledgment_of_what_was_never_sent_changes_nothing() {
    let mut raw = Raw::open(2);
    let emissions = raw.peer(1, 5000, Flags::ACK, &[]);
    assert_eq!(raw.acks(&emissions).len(), 1, "a challenge");
    let emissions = raw.member(0, 1, 5000, Flags::ACK, &[]);
    assert_eq!(raw.to_member(0, &emissions).len(), 1);
    assert_eq!(raw.switch.len(), 1);
}

#[test]
fn an_acknowledgment_of_what_is_missing_is_a_lie() {
    let mut raw = Raw::open(1);
    let frame = data(b"reply");
    let missing = frame.len() as u32;
    raw.member(0, 1 + missing, 1, Flags::ACK, &frame);
    let emissions = raw.peer(1, 1 + 2 * missing, Flags::ACK, &[]);
    assert_eq!(raw.resets(&emissions), 2);
    assert_eq!(raw.switch.counters().reset_acknowledgment, 1);
}

#[test]
fn a_reset_has_to_be_where_the_sender_is() {
    let mut raw = Raw::open(2);
    for sequence in [0, 2, 5000, 1 << 31] {
        let emissions = raw.peer(sequence, 1, Flags::RST, &[]);
        assert_eq!(raw.resets(&emissions), 0);
        let emissions = raw.member(1, sequence, 1, Flags::RST, &[]);
        assert_eq!(raw.resets(&emissions), 0);
    }
    assert_eq!(raw.switch.len(), 1);
    let emissions = raw.peer(1, 1, Flags::RST, &[]);
    assert_eq!(raw.resets(&emissions), 2, "members hear of it");
    assert!(raw.switch.is_empty());
    // Late segments belong to no connection.
    let late = raw.member(0, 1, 1, Flags::ACK, &[]);
    assert_eq!(raw.resets(&late), 1);
}

#[test]
fn silence_ends_a_connection() {
    let mut raw = Raw::open_with(
        config(),
        || Box::new(RoundRobin::new(Lost::Reset)) as Box<dyn Module>,
        1,
    );
    let emissions = raw.poll(config().idle_timeout + Duration::from_secs(10));
    assert_eq!(raw.resets(&emissions), 2);
    assert_eq!(raw.switch.counters().reset_timeout, 1);
    assert_eq!(raw.switch.next_deadline(), None);
}

/// A sender at its longest timeout repeats every two minutes, and may lose some
/// repetitions.
#[test]
fn what_is_outstanding_at_the_end_has_time_to_be_repeated() {
    let mut raw = Raw::open(1);
    let begun = raw.now;
    raw.peer(1, 1, Flags::ACK | Flags::FIN, &[]);
    let second = Duration::from_secs(1);
    let silent = |times: u32| begun + config().closing_timeout * times;
    assert!(
        raw.poll(silent(4) - second).is_empty(),
        "it repeats nothing"
    );
    assert_eq!(raw.switch.len(), 1);
    let emissions = raw.poll(silent(4) + second);
    assert_eq!(raw.resets(&emissions), 2);
    // With nothing outstanding it is only half closed.
    let mut raw = Raw::open(1);
    raw.peer(1, 1, Flags::ACK | Flags::FIN, &[]);
    raw.member(0, 1, 2, Flags::ACK, &[]);
    assert!(raw.poll(silent(1) - second).is_empty());
    let emissions = raw.poll(silent(1) + second);
    assert_eq!(raw.resets(&emissions), 2);
}

/// The last member's acknowledgment covers the peer's FIN; the others' acknowledgments
/// would be duplicates, which make the peer repeat it.
#[test]
fn the_peer_hears_once_that_its_end_has_come() {
    let mut raw = Raw::open(4);
    raw.peer(1, 1, Flags::ACK | Flags::FIN, &[]);
    for member in 0..3 {
        let emissions = raw.member(member, 1, 2, Flags::ACK, &[]);
        assert_eq!(raw.acks(&emissions), [], "{member}");
    }
    let emissions = raw.member(3, 1, 2, Flags::ACK, &[]);
    assert_eq!(raw.acks(&emissions), [2]);
}

#[test]
fn null_frames_fill_what_went_elsewhere_with_the_same_bounds() {
    let mut raw = Raw::open(2);
    let frame = data(&[1; 46]);
    // The second frame arrives first, for the first member, with a gap before it.
    let emissions = raw.peer(51, 1, Flags::ACK, &frame);
    assert_eq!(
        raw.to_member(0, &emissions),
        [(51, Flags::ACK, Payload::Received(0..50))]
    );
    // The first goes to the second member: the gap is void.
    let emissions = raw.peer(1, 1, Flags::ACK, &frame);
    assert_eq!(
        raw.to_member(1, &emissions),
        [(1, Flags::ACK, Payload::Received(0..50))]
    );
    assert_eq!(
        raw.to_member(0, &emissions),
        [(1, Flags::ACK, Payload::Null(50))]
    );
    // Repeated with the frame above it.
    let emissions = raw.peer(51, 1, Flags::ACK, &frame);
    let again = raw.to_member(0, &emissions);
    assert_eq!(again[0], (1, Flags::ACK, Payload::Null(50)));
    assert_eq!(again[1], (51, Flags::ACK, Payload::Received(0..50)));
    // And when the member asks for it.
    let duplicates: Vec<_> = (0..3)
        .map(|_| raw.member(0, 1, 1, Flags::ACK, &[]))
        .collect();
    assert_eq!(
        raw.to_member(0, &duplicates[2]),
        [(1, Flags::ACK, Payload::Null(50))]
    );
    let emissions = raw.member(0, 1, 101, Flags::ACK, &[]);
    assert_eq!(raw.acks(&emissions), [], "the other has not acknowledged");
    let emissions = raw.member(1, 1, 51, Flags::ACK, &[]);
    assert_eq!(raw.acks(&emissions), [101]);
    assert_eq!(acp::Header::null(50).map(|header| header.size()), Some(50));
}

#[test]
fn segments_that_somebody_has_joined_are_dropped_by_name() {
    let mut raw = Raw::open(1);
    let joined = [data(&[1; 600]), data(&[2; 600])].concat();
    assert_eq!(raw.peer(1, 1, Flags::ACK, &joined), []);
    assert_eq!(raw.member(0, 1, 1, Flags::ACK, &joined), []);
    assert_eq!(raw.switch.counters().dropped_too_long, 2);
    let emissions = raw.peer(1, 1, Flags::ACK, &joined[..604]);
    assert_eq!(raw.to_member(0, &emissions).len(), 1);
}

/// Frames so small that many more than the ring holds fit into the windows.
#[test]
fn small_frames_do_not_overrun_the_ring() {
    let mut raw = Raw::open(2);
    let frame = data(&[3; 60]);
    let many = frame.repeat(14);
    let mut sequence = 1;
    // The peer sends what it may, and members acknowledge one round trip later.
    for _ in 0..40 {
        let window = raw.switch.flows().next().expect("a connection").window_in;
        for _ in 0..(window / many.len() as u64).min(60) {
            raw.peer(sequence, 1, Flags::ACK, &many);
            sequence += many.len() as u32;
        }
        let half = 1 + (sequence - 1) / 2;
        raw.member(0, 1, half, Flags::ACK, &[]);
        raw.member(1, 1, half, Flags::ACK, &[]);
        let flow = raw.switch.flows().next().expect("a connection");
        assert_eq!(flow.unacknowledged_in, 0);
    }
    let counters = raw.switch.counters();
    assert_eq!(counters.dropped_ring_full, 0, "{counters:?}");
    assert!(sequence > 40 * 300 * 64, "{sequence}");
}

/// Memory depends on frames: w of them in each direction, and no more for more bytes.
#[test]
fn memory_is_bounded_by_the_ring() {
    let mut raw = Raw::open(2);
    let memory = |raw: &Raw| raw.switch.flows().next().expect("a connection").memory;
    let empty = memory(&raw);
    let many = data(&[3; 60]).repeat(14);
    for number in 0..40 {
        raw.peer(1 + number * many.len() as u32, 1, Flags::ACK, &many);
    }
    let flow = raw.switch.flows().next().expect("a connection");
    let frame = 40;
    assert!(flow.memory >= empty + flow.ring_in * frame, "{flow:?}");
    let bound = 2 * usize::from(config().ring) * frame + (8 << 10);
    assert!(flow.memory <= bound, "{flow:?}");
}

/// A kernel that waits for a window probes with the part of a frame that fits.
#[test]
fn kernels_are_not_offered_a_part_of_a_frame() {
    for kernel_ends in [true, false] {
        let mut set = config();
        set.kernel_ends = kernel_ends;
        let mut raw = Raw::open_with(set, round_robin(Lost::Reset), 1);
        let frame = data(&[4; 846]);
        let count = super::raw::WINDOW / 850;
        for number in 0..u32::from(count) {
            raw.peer(1 + 850 * number, 1, Flags::ACK, &frame);
        }
        // The member has acknowledged everything and read nothing.
        raw.window = super::raw::WINDOW - 850 * count;
        assert_eq!(raw.window, 450);
        let all = 1 + 850 * u32::from(count);
        let emitted = raw.member(0, 1, all, Flags::ACK, &[]);
        let window =
            |emitted: &[tidewall_switch::Emission]| emitted.last().map(|last| last.header.window);
        assert_eq!(window(&emitted), Some(if kernel_ends { 0 } else { 450 }));
        // With room for frames again it is announced, and repeated on request.
        raw.window = 5000;
        let emitted = raw.member(0, 1, all, Flags::ACK, &[]);
        assert_eq!(window(&emitted), Some(5000));
        assert_eq!(raw.acks(&emitted), [all]);
    }
}

/// A kernel's segments are no longer than half of its first offered window.
#[test]
fn kernels_are_offered_two_segments_at_first() {
    const MEMBERS: usize = 5;
    let mut set = config();
    set.kernel_ends = true;
    // Its room, in frames of unknown size, is less than that.
    set.ring = 96;
    let mut raw = Raw::new(set, round_robin(Lost::Reset), MEMBERS);
    let syns = raw.syn(super::raw::syn_options());
    raw.answer(&syns);
    let opened = raw.peer(1, 1, Flags::ACK, &[]);
    assert_eq!(opened.len(), MEMBERS);
    for emission in &opened {
        assert!(emission.header.window >= 2 * 900, "{emission:?}");
    }
}
