//! Properties that hold for every way of cutting and ordering.

use super::*;
use proptest::prelude::*;
use tidewall_wire::checksum;

/// A payload, cut at multiples of eight, in any order, some fragments twice.
fn shuffled() -> impl Strategy<Value = (Vec<u8>, Vec<(usize, usize)>)> {
    (9usize..3000).prop_flat_map(|length| {
        let payload = prop::collection::vec(any::<u8>(), length);
        let cuts =
            prop::collection::btree_set(1..length.div_ceil(8), 1..20.min(length.div_ceil(8)));
        let pieces = (
            cuts,
            prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        )
            .prop_map(move |(cuts, twice)| {
                let mut edges = vec![0];
                edges.extend(cuts.iter().map(|cut| cut * 8));
                edges.push(length);
                let mut pieces: Vec<_> = edges.windows(2).map(|edge| (edge[0], edge[1])).collect();
                let again: Vec<_> = twice.iter().map(|index| *index.get(&pieces)).collect();
                pieces.extend(again);
                pieces
            });
        (payload, pieces.prop_shuffle())
    })
}

proptest! {
    #[test]
    fn any_order_with_duplicates_gives_the_original(
        (payload, pieces) in shuffled(),
        v6: bool,
    ) {
        let fragment = FAMILIES[usize::from(v6)];
        let mut reassembler = Reassembler::default();
        let mut whole = None;
        for (start, end) in pieces {
            let send = Send { at: start, more: end < payload.len(), payload: &payload[start..end], ..SEND };
            let tag = (start == 0).then_some(9);
            match reassembler.insert(START, &fragment(send), tag) {
                Ok(Some(found)) => {
                    whole = Some(found);
                    // Later fragments are duplicates of a finished datagram.
                    break;
                }
                Ok(None) | Err(DropReason::FragmentDuplicate) => {}
                Err(cause) => prop_assert!(false, "{cause}"),
            }
        }
        let whole = whole.expect("every piece came");
        prop_assert_eq!(payload_of(&whole), &payload[..]);
        prop_assert_eq!(whole.tag, Some(9));
        prop_assert!(is_empty(&reassembler));
        if !v6 {
            prop_assert_eq!(checksum::checksum(&whole.bytes[..20]), 0);
        }
    }

    #[test]
    fn no_datagram_comes_of_an_overlap(
        (payload, mut pieces) in shuffled(),
        at in any::<prop::sample::Index>(),
        (v6, reversed) in any::<(bool, bool)>(),
    ) {
        // One piece is also sent eight bytes longer or, if it is the last, starting eight
        // bytes earlier. It is sent before the datagram could be complete.
        let fragment = FAMILIES[usize::from(v6)];
        pieces.sort_unstable();
        pieces.dedup();
        let chosen = at.index(pieces.len());
        let (start, end) = pieces[chosen];
        let (place, wide) = if end == payload.len() {
            (chosen, (start - 8, end))
        } else {
            (chosen + 1, (start, (end + 8).min(payload.len())))
        };
        // The whole payload would not be a fragment.
        prop_assume!(wide != (0, payload.len()));
        pieces.insert(place, wide);
        if reversed {
            pieces.reverse();
        }
        let mut reassembler = Reassembler::default();
        let mut condemned = false;
        for (start, end) in pieces {
            let send = Send { at: start, more: end < payload.len(), payload: &payload[start..end], ..SEND };
            match reassembler.insert(START, &fragment(send), None) {
                Ok(Some(_)) => prop_assert!(false, "complete in spite of an overlap"),
                Ok(None) => prop_assert!(!condemned),
                Err(DropReason::FragmentOverlap | DropReason::FragmentEnd) => condemned = true,
                Err(cause) => prop_assert_eq!(cause, DropReason::FragmentRefused),
            }
        }
        prop_assert!(condemned);
        prop_assert_eq!(reassembler.bytes(), DATAGRAM_COST);
    }
}
