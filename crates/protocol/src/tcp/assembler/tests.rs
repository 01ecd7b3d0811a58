use super::*;
use crate::tcp::out_of_order::{FIRST_RANGE_OVERHEAD, RANGE_OVERHEAD, RANGES_MAX};
use proptest::prelude::*;

/// Chosen so that everything wraps.
const FIRST: u32 = u32::MAX - 300;

fn byte(offset: usize) -> u8 {
    (offset * 7 + offset / 256) as u8
}

fn data(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(byte).collect()
}

/// An assembler with `count` ranges of three bytes, ten bytes apart.
fn scattered(count: u32, limits: QueueLimits) -> Assembler {
    let mut assembler = Assembler::new(FIRST);
    for range in 0..count {
        let at = FIRST.wrapping_add(range * 10 + 5);
        assert_eq!(assembler.insert(at, b"abc", &limits), Inserted::Beyond);
    }
    assembler
}

#[test]
fn ranges_are_bounded_and_known_ones_grow() {
    let most = QueueLimits::MOST;
    let mut assembler = scattered(RANGES_MAX as u32, most);
    let next = FIRST.wrapping_add(RANGES_MAX as u32 * 10 + 5);
    assert_eq!(assembler.insert(next, b"abc", &most), Inserted::Refused);
    assert_eq!(
        assembler.insert(FIRST.wrapping_add(8), b"de", &most),
        Inserted::Beyond,
        "it touches one"
    );
    assert_eq!(
        assembler.insert(FIRST.wrapping_add(6), b"bcd", &most),
        Inserted::Duplicate
    );
    assert_eq!(
        assembler.insert(FIRST.wrapping_add(13), b"xyabc", &most),
        Inserted::Beyond,
        "it touches the next"
    );
    assert_eq!(assembler.furthest(), Some(next.wrapping_sub(7)));
    let memory = assembler.out_of_order_memory();
    assert!(
        memory <= FIRST_RANGE_OVERHEAD + RANGES_MAX * (64 + RANGE_OVERHEAD),
        "{memory}"
    );
    assembler.prune();
    assert_eq!(
        (assembler.out_of_order_memory(), assembler.furthest()),
        (0, None)
    );
    assert!(!assembler.has_sack_blocks());
}

#[test]
fn small_ranges_leave_places_to_segments() {
    let limits = QueueLimits::new(64 << 10, 1460);
    assert_eq!(limits.ranges, 64);
    let mut assembler = scattered(48, limits);
    let at = |range: u32| FIRST.wrapping_add(range * 2000 + 5000);
    assert_eq!(assembler.insert(at(0), b"abc", &limits), Inserted::Refused);
    for range in 0..16 {
        assert_eq!(
            assembler.insert(at(range), &[1; 1460], &limits),
            Inserted::Beyond
        );
    }
    assert_eq!(
        assembler.insert(at(16), &[1; 1460], &limits),
        Inserted::Refused
    );
    assert_eq!(
        assembler.insert(at(0), &[1; 1461], &QueueLimits::NOTHING),
        Inserted::Refused,
        "nothing more of a known one"
    );
}

#[test]
fn a_byte_far_beyond_costs_a_byte() {
    let mut assembler = Assembler::new(FIRST);
    let far = FIRST.wrapping_add(6 << 20);
    assert_eq!(
        assembler.insert(far, b"x", &QueueLimits::MOST),
        Inserted::Beyond
    );
    assert_eq!(assembler.capacity(), 0);
    assert!(assembler.out_of_order_memory() <= FIRST_RANGE_OVERHEAD + 64 + RANGE_OVERHEAD);
}

#[test]
fn a_hole_before_much_is_filled_without_copying_it() {
    let mut assembler = Assembler::new(FIRST);
    let at = |offset: usize| FIRST.wrapping_add(offset as u32);
    const END: usize = 1_000_000;
    for start in (1000..END).step_by(1000) {
        assembler.insert(at(start), &data(start, 1000), &QueueLimits::MOST);
    }
    let before = assembler.out_of_order_memory();
    let filled = assembler.insert(at(0), &data(0, 1000), &QueueLimits::MOST);
    assert_eq!(filled, Inserted::InOrder(END as u32));
    assert!(assembler.capacity() <= before, "its memory is the range's");
    assert_eq!(assembler.unread_slices().concat(), data(0, END));
    assert!(!assembler.has_sack_blocks());
}

proptest! {
    /// For any order and overlap of segments, the data in order is the data sent, and
    /// data reported as held is held.
    #[test]
    fn order_is_restored(
        segments in prop::collection::vec((0usize..600, 1usize..80, 0usize..90), 1..60),
    ) {
        let mut assembler = Assembler::new(FIRST);
        let mut held = vec![false; 700];
        let mut read = 0;
        for (from, length, consumed) in segments {
            let refused = assembler.insert(
                FIRST.wrapping_add(from as u32), &data(from, length), &QueueLimits::MOST,
            ) == Inserted::Refused;
            if !refused {
                held[from..from + length].fill(true);
            }
            let next = held.iter().position(|held| !held).unwrap();
            prop_assert_eq!(assembler.next(), FIRST.wrapping_add(next as u32));
            let unread = assembler.unread_slices().concat();
            prop_assert_eq!(&unread, &data(read, next - read));
            for (first, pieces) in assembler.beyond() {
                let first = first.wrapping_sub(FIRST) as usize;
                let bytes = pieces.concat();
                prop_assert!(!held[first - 1] && first > next);
                prop_assert!(!held[first + bytes.len()]);
                prop_assert_eq!(&bytes, &data(first, bytes.len()));
            }
            let bytes_beyond: usize = assembler.beyond().map(|range| range.1.concat().len()).sum();
            let beyond = held[next..].iter().filter(|held| **held).count();
            prop_assert_eq!(bytes_beyond, beyond);
            let count = assembler.beyond().count();
            let most = FIRST_RANGE_OVERHEAD + 2 * beyond + count * (64 + RANGE_OVERHEAD);
            prop_assert!(assembler.out_of_order_memory() <= most);
            prop_assert_eq!(assembler.has_sack_blocks(), count > 0 || assembler.duplicate() != (0, 0));
            read += assembler.consume(consumed) as usize;
        }
    }
}
