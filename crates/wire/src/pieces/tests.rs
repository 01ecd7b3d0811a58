use proptest::prelude::*;

use super::*;
use crate::checksum::checksum;

struct Rest(Vec<Vec<u8>>);

impl Behind for Rest {
    fn piece(&self, number: usize) -> Option<&[u8]> {
        self.0.get(number).map(Vec::as_slice)
    }
}

fn whole(pieces: Pieces<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    pieces.append_to(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn cut_bytes_are_what_whole_ones_are(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
        cut in 0..8usize,
        bounds in [0..200usize, 0..200usize],
    ) {
        let mut all = pieces.concat();
        all.truncate(all.len().saturating_sub(cut));
        let rest = Rest(pieces[1..].to_vec());
        let cut = Pieces::new(&pieces[0], &rest, all.len()).unwrap();
        prop_assert_eq!(cut.len(), all.len());
        prop_assert_eq!(whole(cut), all.clone());
        prop_assert_eq!(cut.sum().checksum(), checksum(&all));
        prop_assert_eq!(cut.as_slice().is_some(), all.len() <= pieces[0].len());
        prop_assert_eq!(cut.first_chunk::<4>(), all.first_chunk().copied());
        let part = cut.get(bounds[0]..bounds[1]);
        let wanted = all.get(bounds[0]..bounds[1]);
        prop_assert_eq!(part.map(whole), wanted.map(<[u8]>::to_vec));
        if let (Some(part), Some(wanted)) = (part, wanted) {
            prop_assert_eq!(part.len(), wanted.len());
            prop_assert_eq!(part.sum().checksum(), checksum(wanted));
            prop_assert_eq!(part.first_chunk::<4>(), wanted.first_chunk().copied());
            let half = part.get(wanted.len() / 2..wanted.len()).unwrap();
            prop_assert_eq!(whole(half), wanted[wanted.len() / 2..].to_vec());
        }
        let longer = all.len() + 1 + cut.len() + 200;
        prop_assert!(Pieces::new(&pieces[0], &rest, longer).is_none());
    }
}
