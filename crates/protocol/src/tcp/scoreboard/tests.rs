//! The scoreboard compared with a mark for each byte.

use super::*;
use proptest::prelude::*;

/// Chosen so that everything wraps.
const FIRST: u32 = u32::MAX - 40;

fn at(offset: u32) -> u32 {
    FIRST.wrapping_add(offset)
}

fn pieces(board: &Scoreboard) -> Vec<(u32, u32, u8)> {
    board
        .pieces()
        .map(|piece| {
            let offset = |sequence: u32| sequence.wrapping_sub(FIRST);
            (offset(piece.start), offset(piece.end), piece.flags)
        })
        .collect()
}

#[test]
fn a_burst_is_a_run_and_one_run_costs_no_memory() {
    let mut board = Scoreboard::new(FIRST);
    for end in 1..=5 {
        board.sent(at(end * 10), 7, false);
    }
    assert_eq!(pieces(&board), [(0, 50, 0)]);
    assert_eq!(board.earlier.capacity(), 0);
    board.sent(at(60), 8, false);
    board.sent(at(70), 8, true);
    assert_eq!(pieces(&board), [(0, 50, 0), (50, 60, 0), (60, 70, 0)]);
    let mut reported = Vec::new();
    board.acknowledge(at(55), |piece| reported.push((piece.start, piece.end)));
    assert_eq!(reported, [(at(0), at(50)), (at(50), at(55))]);
    board.acknowledge(at(70), |_| {});
    assert_eq!(board.runs(), 0);
    assert_eq!(board.earlier.capacity(), 0, "given back");
}

#[test]
fn what_is_lost_waits_until_it_is_sent_again() {
    let mut board = Scoreboard::new(FIRST);
    board.sent(at(100), 1, false);
    board.sack((at(30), at(40)), 10, |_| {});
    let losses = board.mark_lost(|piece| match before(piece.start, at(30)) {
        true => Verdict::Lost,
        false => Verdict::Stop,
    });
    assert_eq!((losses.bytes, losses.retransmitted), (30, false));
    assert_eq!(board.left_network(), 40);
    assert_eq!(board.next_to_retransmit(20), Some((at(0), at(20))));
    board.mark_retransmitted(at(0), at(20), 9);
    assert_eq!(board.next_to_retransmit(20), Some((at(20), at(30))));
    board.mark_retransmitted(at(20), at(30), 9);
    assert_eq!(board.next_to_retransmit(20), None);
    assert_eq!(board.left_network(), 10);
    assert_eq!(
        pieces(&board),
        [
            (0, 30, LOST | RETRANSMITTED | EVER_RETRANSMITTED),
            (30, 40, SACKED),
            (40, 100, 0)
        ]
    );
    // It is lost again.
    let losses = board.mark_lost(|piece| match piece.has(RETRANSMITTED) {
        true => Verdict::Lost,
        false => Verdict::Keep,
    });
    assert_eq!((losses.bytes, losses.retransmitted), (30, true));
    assert_eq!(board.next_to_retransmit(100), Some((at(0), at(30))));
}

#[test]
fn less_than_a_segment_counts_once_it_is_one() {
    let sacked = |blocks: &[(u32, u32)]| {
        let mut board = Scoreboard::new(FIRST);
        // Four full segments and a smaller one; one alone; the last bytes and a FIN.
        board.sent(at(45), 1, false);
        board.sent(at(48), 1, true);
        board.sent(at(61), 1, true);
        for &(start, end) in blocks {
            board.sack((at(start), at(end)), 10, |_| {});
        }
        board.sacked()
    };
    // The last byte of a segment, its first, some between, and of a smaller one.
    for hair in [
        (39, 40),
        (30, 31),
        (33, 36),
        (41, 45),
        (40, 43),
        (45, 47 - 1),
    ] {
        assert_eq!(sacked(&[hair]), 0, "{hair:?}");
    }
    // Whole segments, two small ones together, and a FIN that is not counted.
    for whole in [(30, 40), (40, 45), (45, 48), (40, 48), (58, 61), (58, 60)] {
        assert_eq!(sacked(&[whole]), whole.1 - whole.0, "{whole:?}");
    }
    // A block that was ignored counts once it has grown, and so does the growth of a
    // SACKed range.
    assert_eq!(sacked(&[(33, 36), (30, 40)]), 10);
    assert_eq!(sacked(&[(30, 40), (40, 43)]), 13);
    assert_eq!(sacked(&[(33, 43)]), 10, "as long as a segment");
}

#[test]
fn a_fin_that_is_held_is_not_in_flight_again_with_the_last_bytes() {
    let mut board = Scoreboard::new(FIRST);
    board.sent(at(20), 1, false);
    board.sent(at(21), 2, true);
    board.sack((at(20), at(21)), 10, |_| {});
    board.mark_lost(|piece| match before(piece.start, at(20)) {
        true => Verdict::Lost,
        false => Verdict::Stop,
    });
    board.mark_retransmitted(at(0), at(21), 9);
    assert_eq!(
        pieces(&board),
        [
            (0, 20, LOST | RETRANSMITTED | EVER_RETRANSMITTED),
            (20, 21, SACKED)
        ]
    );
}

#[test]
fn the_last_segment_is_what_a_probe_sends() {
    let mut board = Scoreboard::new(FIRST);
    assert_eq!(board.last_segment(10, false), None);
    board.sent(at(25), 1, false);
    assert_eq!(board.last_segment(10, false), Some((at(20), at(25))));
    board.sent(at(45), 2, false);
    assert_eq!(board.last_segment(10, false), Some((at(35), at(45))));
    board.mark_probed(at(35), at(45), 5);
    assert_eq!(board.last_segment(10, false), Some((at(35), at(45))));
    board.sent(at(56), 6, false);
    assert_eq!(board.last_segment(5, true), Some((at(50), at(56))));
    board.sent(at(57), 7, true);
    assert_eq!(board.last_segment(5, true), Some((at(56), at(57))));
    assert_eq!(board.left_network(), 0, "what is in flight stays as it was");
}

#[test]
fn a_peer_that_splits_hairs_is_not_followed() {
    let mut board = Scoreboard::new(FIRST);
    board.sent(at(1_000_000), 1, false);
    for hole in 0..10_000 {
        board.sack((at(hole * 2 + 1), at(hole * 2 + 2)), 1, |_| {});
    }
    assert_eq!(board.sacked_ranges, SACK_RANGES_MAX);
    assert!(board.runs() <= 2 * usize::from(SACK_RANGES_MAX) + 2);
    // Small ranges are refused much sooner; a block that extends a range is not.
    board.sack((at(1), at(20)), 1, |_| {});
    assert_eq!(board.sacked_ranges, SACK_RANGES_MAX - 9);
    board.sack((at(500_000), at(500_009)), 10, |_| {});
    assert_eq!(board.sacked_ranges, SACK_RANGES_MAX - 9, "a small one");
    board.sack((at(500_000), at(500_010)), 10, |_| {});
    assert_eq!(board.sacked_ranges, SACK_RANGES_MAX - 8);
}

#[test]
fn too_many_bursts_are_remembered_together() {
    let mut board = Scoreboard::new(FIRST);
    let count = 3 * RUNS_MAX as u32;
    for burst in 1..=count {
        board.sent(at(burst * 10), burst, false);
    }
    assert!(board.runs() <= RUNS_MAX + 1);
    let last = board.pieces().last().unwrap();
    assert_eq!((last.end, last.sent), (at(count * 10), count));
    for piece in board.pieces() {
        // The time is that of the last byte, so never too early.
        assert_eq!(piece.sent, piece.end.wrapping_sub(FIRST) / 10);
    }
}

/// A byte of the simple model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Byte {
    sent: u32,
    flags: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Acknowledge(u32),
    Sack(u32, u32),
    Lose(u32),
    Resend(u32),
    Probe(u32),
    LoseFirst(u32),
    ForgetLost,
    ForgetSacked,
    Twice(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u32..30).prop_map(Step::Send),
        2 => (0u32..40).prop_map(Step::Acknowledge),
        6 => (0u32..80, 1u32..20).prop_map(|(start, len)| Step::Sack(start, len)),
        3 => (0u32..30).prop_map(Step::Lose),
        4 => (1u32..12).prop_map(Step::Resend),
        1 => (1u32..12).prop_map(Step::Probe),
        1 => (1u32..12).prop_map(Step::LoseFirst),
        1 => Just(Step::ForgetLost),
        1 => Just(Step::ForgetSacked),
        1 => (0u32..80, 1u32..20).prop_map(|(start, len)| Step::Twice(start, len)),
    ];
    prop::collection::vec(step, 1..60)
}

fn lose(byte: &mut Byte) -> u32 {
    if byte.flags & SACKED != 0 || needs_retransmit(byte.flags) {
        return 0;
    }
    byte.flags = byte.flags & EVER_RETRANSMITTED | LOST;
    1
}

proptest! {
    /// The scoreboard equals a model with a mark for each byte.
    #[test]
    fn each_byte_is_remembered(steps in steps()) {
        let mut board = Scoreboard::new(FIRST);
        let mut model: Vec<Byte> = Vec::new();
        let mut first = 0u32;
        for (now, step) in steps.into_iter().enumerate() {
            let now = now as u32;
            let next = first + model.len() as u32;
            // Offsets within the data in flight.
            let range = |start: u32, len: u32| {
                let start = (first + start).min(next);
                (start, (start + len).min(next))
            };
            let place = |offset: u32| (offset - first) as usize;
            match step {
                Step::Send(bytes) => {
                    board.sent(at(next + bytes), now, false);
                    model.extend((0..bytes).map(|_| Byte { sent: now, flags: 0 }));
                }
                Step::Acknowledge(bytes) => {
                    let (_, end) = range(0, bytes);
                    let mut reported = Vec::new();
                    board.acknowledge(at(end), |piece| {
                        reported.extend((0..piece.len()).map(|_| piece.flags));
                    });
                    let left_network: Vec<u8> = model.drain(..place(end)).map(|b| b.flags).collect();
                    // EVER of SACKed data is merged.
                    prop_assert_eq!(reported.len(), left_network.len());
                    for (reported, left_network) in reported.iter().zip(&left_network) {
                        prop_assert_eq!(reported & !EVER_RETRANSMITTED, left_network & !EVER_RETRANSMITTED);
                    }
                    first = end;
                }
                Step::Sack(start, len) => {
                    let (start, end) = range(start, len);
                    if start == end { continue; }
                    let mut reported = 0;
                    board.sack((at(start), at(end)), 1, |piece| reported += piece.len());
                    let mut new = 0;
                    for byte in &mut model[place(start)..place(end)] {
                        new += u32::from(byte.flags & SACKED == 0);
                        byte.flags = SACKED | byte.flags & EVER_RETRANSMITTED;
                    }
                    prop_assert_eq!(reported, new);
                }
                Step::Lose(before_time) => {
                    let losses = board.mark_lost(|piece| match piece.sent < before_time {
                        true => Verdict::Lost,
                        false => Verdict::Keep,
                    });
                    let lost: u32 = model
                        .iter_mut()
                        .filter(|byte| byte.sent < before_time)
                        .map(lose)
                        .sum();
                    prop_assert_eq!(losses.bytes, lost);
                }
                Step::LoseFirst(bytes) => {
                    let run = board.head().map_or(0, |piece| piece.len());
                    board.mark_head_lost(bytes);
                    for byte in model.iter_mut().take(run.min(bytes) as usize) {
                        lose(byte);
                    }
                }
                Step::Resend(most) => {
                    let to_retransmit = model.iter().position(|byte| needs_retransmit(byte.flags));
                    let found = board.next_to_retransmit(most);
                    let start = to_retransmit.map(|index| at(first + index as u32));
                    prop_assert_eq!(found.map(|found| found.0), start);
                    let Some((start, end)) = found else { continue };
                    let start = start.wrapping_sub(FIRST);
                    let end = end.wrapping_sub(FIRST);
                    prop_assert!(start < end && end - start <= most);
                    board.mark_retransmitted(at(start), at(end), now);
                    for byte in &mut model[place(start)..place(end)] {
                        prop_assert!(needs_retransmit(byte.flags));
                        *byte = Byte { sent: now, flags: byte.flags | RETRANSMITTED | EVER_RETRANSMITTED };
                    }
                }
                Step::Probe(most) => {
                    let Some((start, end)) = board.last_segment(most, false) else { continue };
                    prop_assert_eq!(end, at(next));
                    board.mark_probed(start, end, now);
                    for byte in &mut model[place(start.wrapping_sub(FIRST))..] {
                        *byte = Byte { sent: now, flags: byte.flags | EVER_RETRANSMITTED };
                    }
                }
                Step::ForgetLost => {
                    board.clear_lost();
                    model.iter_mut().for_each(|byte| byte.flags &= !LOST);
                }
                Step::ForgetSacked => {
                    board.clear_sacked();
                    model.iter_mut().for_each(|byte| byte.flags &= !SACKED);
                }
                Step::Twice(start, len) => {
                    let (start, end) = range(start, len);
                    if start == end { continue; }
                    board.dsack(at(start), at(end));
                    for byte in &mut model[place(start)..place(end)] {
                        if byte.flags & LOST == 0 {
                            byte.flags &= !RETRANSMITTED;
                        }
                    }
                }
            }
            let next = at(first + model.len() as u32);
            let count = |flags: u8| {
                model.iter().filter(|byte| byte.flags & flags != 0).count() as u32
            };
            prop_assert_eq!(board.una, at(first));
            prop_assert_eq!(board.end(), next);
            prop_assert_eq!(board.sacked(), count(SACKED));
            prop_assert_eq!(board.lost(), count(LOST));
            prop_assert_eq!(board.retransmitted(), count(RETRANSMITTED));
            let to_retransmit = model.iter().filter(|byte| needs_retransmit(byte.flags)).count() as u32;
            prop_assert_eq!(board.to_retransmit, to_retransmit);
            let mut flat = Vec::new();
            let mut sacked_ranges = 0;
            let mut last_sacked = false;
            for piece in board.pieces() {
                prop_assert!(before(piece.start, piece.end));
                sacked_ranges += u16::from(piece.has(SACKED));
                prop_assert!(!(last_sacked && piece.has(SACKED)), "joined");
                last_sacked = piece.has(SACKED);
                flat.extend((0..piece.len()).map(|_| Byte { sent: piece.sent, flags: piece.flags }));
            }
            prop_assert_eq!(board.sacked_ranges, sacked_ranges);
            prop_assert_eq!(flat.len(), model.len());
            for (kept, byte) in flat.iter().zip(&mut model) {
                if byte.flags & SACKED != 0 {
                    // Its time no longer matters; whether it was sent twice is a property
                    // of the complete range.
                    prop_assert_eq!(kept.flags & !EVER_RETRANSMITTED, byte.flags & !EVER_RETRANSMITTED);
                    prop_assert!(kept.flags & EVER_RETRANSMITTED >= byte.flags & EVER_RETRANSMITTED);
                    *byte = *kept;
                } else {
                    prop_assert_eq!(kept, &*byte);
                }
            }
            let furthest = model.iter().rposition(|byte| byte.flags & SACKED != 0);
            let furthest = furthest.map_or(first, |index| first + index as u32 + 1);
            prop_assert_eq!(board.highest_sack(), at(furthest));
            // Beyond it, later bytes have left later.
            let mark_retransmitted = board.high_rxt().wrapping_sub(FIRST);
            for pair in model.get((mark_retransmitted - first) as usize..).unwrap_or_default().windows(2) {
                prop_assert!(pair[0].sent <= pair[1].sent || pair[0].flags & SACKED != 0);
            }
        }
    }
}
